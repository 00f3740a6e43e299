"""Token files of other programs: Megatron-LM, Hugging Face, WebDataset.

Reads tokenized documents from `.idx` and `.bin` pairs (Megatron-LM), Parquet, or the Arrow streams of
`Dataset.save_to_disk`. If a file has columns `id` and `url`, as exports of Sluice do, both are kept; otherwise the URL
consists of the file and the document's number in it, and the id is a hash of URL and tokens.

Writes the index of Megatron-LM, and tars of WebDataset with two members per document, `<document id>.npy` and
`<document id>.json`.

Layout of Megatron-LM's files, version 1 (`megatron/core/datasets/indexed_dataset.py`), little-endian; here every
document is one sequence:

    .bin  the concatenated tokens of all sequences
    .idx  9 bytes "MMIDIDX" and two zeros, u64 version, u8 code of the tokens' type, u64 sequences, u64 documents + 1,
          i32[sequences] tokens, i64[sequences] byte offsets in .bin, i64[documents + 1] first sequence of each document
"""

import hashlib
import io
import json
import re
import struct
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.errors import InputError
from tasks.formats.documents.document import document_id
from tasks.formats.documents.external_files import SourceFile

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Integer types by code; 6 and 7 are floats, which cannot be tokens."""

_ID = re.compile(r"[0-9a-f]{32}")
_BATCH_ROWS = 1024

SUFFIXES = (".idx", ".parquet", ".arrow")


def bin_type(vocab_size: int) -> np.dtype[Any]:
    """Returns the dtype in which Megatron-LM stores tokens: its limit for uint16 is 65,500, not 65,536."""
    return np.dtype("<u2" if vocab_size < 65_500 else "<i4")


def write_megatron_index(file: BinaryIO, lengths: NDArray[np.int64], dtype: np.dtype[Any]) -> None:
    """Writes the `.idx` of documents that are contiguous in `.bin`.

    Args:
        file: the file.
        lengths: number of tokens of each document, shape (documents,).
        dtype: dtype of the tokens, from `bin_type`.
    """
    code = next(code for code, name in _DTYPES.items() if np.dtype(name) == dtype)
    offsets = (np.cumsum(lengths) - lengths) * dtype.itemsize
    file.write(_HEAD.pack(_MAGIC, 1, code, len(lengths), len(lengths) + 1))
    for array in (lengths.astype("<i4"), offsets.astype("<i8"), np.arange(len(lengths) + 1, dtype="<i8")):
        file.write(array.tobytes())


@dataclass(frozen=True)
class MegatronFile:
    """A pair of `.bin` and `.idx`, mapped into memory."""

    tokens: NDArray[Any]
    """The bytes of `.bin` as tokens, shape (tokens,)."""
    begin: NDArray[np.int64]
    """First token of each document, shape (documents,)."""
    length: NDArray[np.int64]
    """Number of tokens of each document, shape (documents,)."""

    @classmethod
    def open(cls, index: str) -> "MegatronFile":
        """Opens `<name>.idx` and `<name>.bin`.

        Raises:
            InputError: a file is missing, truncated or of another format, or documents are not contiguous.
        """
        try:
            return cls._read(Path(index))
        except (OSError, struct.error, ValueError) as error:
            raise InputError(f"{index} is no readable Megatron index ({error})", "name a .idx with its .bin") from None

    @classmethod
    def _read(cls, index: Path) -> "MegatronFile":
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


class TokenDocument(NamedTuple):
    """One document of a token file."""

    uid: bytes
    url: str
    tokens: NDArray[Any]
    """Integers in the dtype of the file, shape (n,)."""


def read(file: SourceFile, source: str, column: str) -> Iterator[TokenDocument]:
    """Yields the documents of a file in order.

    Args:
        file: a file with one of SUFFIXES.
        source: name of the source, used as the host in the URLs of documents without one.
        column: column with the tokens of a table.

    Raises:
        InputError: the file is not readable, or has no such column.
    """
    rows = _megatron(file) if file.name.endswith(".idx") else _table(file, column)
    for number, (doc_id, url, tokens) in enumerate(rows):
        document_url = url or f"file://{source}/{file.name}#{number}"
        yield TokenDocument(bytes.fromhex(doc_id or _id(document_url, tokens)), document_url, tokens)


def _id(url: str, tokens: NDArray[Any]) -> str:
    digest = hashlib.blake2b(tokens.astype("<u4").tobytes(), digest_size=16).hexdigest()
    return document_id(url, f"tokens:{digest}")


def _megatron(file: SourceFile) -> Iterator[tuple[str, str, NDArray[Any]]]:
    if "://" in file.path:  # only the .idx would be fetched
        raise InputError(f"{file.path}: Megatron files are read from a local disk", "copy both files to a local folder")
    path = Path(file.path)
    tokens = MegatronFile.open(str(path))
    names_file = path.with_suffix(".documents.parquet")
    columns = parquet.read(str(names_file), ["id", "url"]).to_pydict() if names_file.exists() else None
    if columns and len(columns["id"]) != len(tokens.length):
        raise InputError(f"{names_file} does not have one row per document of {path.name}", "remove it or restore it")
    for row, (begin, length) in enumerate(zip(tokens.begin.tolist(), tokens.length.tolist(), strict=True)):
        doc_id, url = (columns["id"][row], columns["url"][row]) if columns else ("", "")
        yield _valid_id(doc_id), url, tokens.tokens[begin : begin + length]


def _table(file: SourceFile, column: str) -> Iterator[tuple[str, str, NDArray[Any]]]:
    for batch in _batches(file):
        columns = batch.schema.names
        if column not in columns:
            raise InputError(
                f'{file.path} has no column "{column}" but {", ".join(columns)}', "name the one that holds the tokens"
            )
        kind = batch.schema.field(column).type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_integer(kind.value_type):
            raise InputError(f'{file.path}: the column "{column}" holds {kind}, not lists of integers', "name another")
        ids, urls = (batch.column(name).to_pylist() if name in columns else [""] * len(batch) for name in ("id", "url"))
        for row, (doc_id, url) in enumerate(zip(ids, urls, strict=True)):
            scalar = batch.column(column)[row]
            if scalar.values is None:
                raise InputError(f'{file.path}: a row has no tokens in "{column}"', "leave these rows out")
            yield _valid_id(doc_id), url if isinstance(url, str) else "", scalar.values.to_numpy(zero_copy_only=False)


def _batches(file: SourceFile) -> Iterator[pa.RecordBatch]:
    path = file.local()
    if file.name.endswith(".parquet"):
        with parquet.open_file(path) as opened:
            yield from opened.iter_batches(_BATCH_ROWS)
        return
    try:
        with pa.memory_map(path) as mapped:
            yield from pa.ipc.open_stream(mapped)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{file.path} is no Arrow stream ({error})", "name files of a saved dataset") from None


def _valid_id(doc_id: Any) -> str:
    """Returns a document id unchanged, or "" if it has another format."""
    return doc_id if isinstance(doc_id, str) and _ID.fullmatch(doc_id) else ""


def write_tar(file: BinaryIO, samples: Iterable[tuple[str, NDArray[Any], dict[str, Any]]]) -> None:
    """Writes a tar; equal samples give equal bytes.

    Args:
        file: the file.
        samples: (key, tokens of shape (n,), description) of each document. WebDataset ends a key at its first dot, so
            keys must not contain dots.
    """
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.USTAR_FORMAT) as tar:
        for key, tokens, about in samples:
            array = io.BytesIO()
            np.lib.format.write_array(array, tokens, allow_pickle=False)
            _add(tar, f"{key}.npy", array.getvalue())
            _add(tar, f"{key}.json", json.dumps(about, sort_keys=True, ensure_ascii=False).encode())


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)  # time 0 and user 0, for reproducible bytes
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
