"""Token files of Megatron-LM: `<name>.bin` with tokens and `<name>.idx` with the documents in it; writer and reader.

Layout of version 1 (Megatron-LM, `megatron/core/datasets/indexed_dataset.py`), little-endian:

    .bin  the tokens of all sequences, one after the other
    .idx  9 bytes "MMIDIDX" and two zeros, u64 version, u8 code of the tokens' type, u64 sequences, u64 documents + 1,
          i32[sequences] tokens, i64[sequences] byte offsets in .bin, i64[documents + 1] first sequence of each document

Here every document is one sequence.
"""

import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import InputError

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Integer types by code; 6 and 7 are floats, which are no tokens."""


def bin_type(vocab_size: int) -> np.dtype[Any]:
    """Returns the type in which Megatron-LM stores tokens of a vocabulary: its own rule, 65,500 and not 65,536."""
    return np.dtype("<u2" if vocab_size < 65_500 else "<i4")


def write_index(file: BinaryIO, lengths: NDArray[np.int64], dtype: np.dtype[Any]) -> None:
    """Writes `.idx` for documents that follow each other in `.bin`.

    Args:
        file: the file.
        lengths: tokens of each document, shape (documents,).
        dtype: type of the tokens, of `bin_type`.
    """
    code = next(code for code, name in _DTYPES.items() if np.dtype(name) == dtype)
    offsets = (np.cumsum(lengths) - lengths) * dtype.itemsize
    file.write(_HEAD.pack(_MAGIC, 1, code, len(lengths), len(lengths) + 1))
    for array in (lengths.astype("<i4"), offsets.astype("<i8"), np.arange(len(lengths) + 1, dtype="<i8")):
        file.write(array.tobytes())


@dataclass(frozen=True)
class TokenFile:
    """A pair of `.bin` and `.idx`, mapped into memory."""

    tokens: NDArray[Any]
    """The bytes of `.bin` as tokens, shape (tokens,)."""
    begin: NDArray[np.int64]
    """First token of each document, shape (documents,)."""
    length: NDArray[np.int64]
    """Tokens of each document, shape (documents,)."""

    @classmethod
    def open(cls, index: str) -> "TokenFile":
        """Opens `<name>.idx` and the `.bin` beside it.

        Raises:
            InputError: a file is missing, of another format or cut short, or documents do not lie in one piece.
        """
        try:
            return cls._read(Path(index))
        except (OSError, struct.error, ValueError) as error:
            raise InputError(f"{index} is no readable Megatron index ({error})", "name a .idx with its .bin") from None

    @classmethod
    def _read(cls, index: Path) -> "TokenFile":
        data = np.memmap(index, dtype=np.uint8, mode="r")
        magic, version, code, sequences, documents = _HEAD.unpack(data[: _HEAD.size].tobytes())
        if magic != _MAGIC or version != 1 or code not in _DTYPES:
            raise ValueError("its first bytes are not those of version 1 with integer tokens")
        edges = np.cumsum([_HEAD.size, 4 * sequences, 8 * sequences, 8 * documents])
        if edges[-1] > len(data):
            raise ValueError(f"{edges[-1]:,} bytes are needed, {len(data):,} are there")
        lengths, offsets, firsts = (
            np.frombuffer(data[first:end], kind).astype(np.int64)
            for (first, end), kind in zip(pairwise(edges), ("<i4", "<i8", "<i8"), strict=True)
        )
        dtype = np.dtype(_DTYPES[code])
        tokens: NDArray[Any] = np.memmap(index.with_suffix(".bin"), dtype=dtype, mode="r").view(np.ndarray)
        begin = offsets // dtype.itemsize
        if sequences and (int((begin + lengths).max()) > len(tokens) or int(begin.min()) < 0):
            raise ValueError(f"it names tokens beyond the {len(tokens):,} of its .bin")
        if np.any((begin + lengths)[:-1] != begin[1:]):
            raise ValueError("its sequences do not follow each other")
        ends = np.append(begin, begin[-1:] + lengths[-1:])[firsts]
        return cls(tokens, ends[:-1], np.diff(ends))
