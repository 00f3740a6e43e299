"""Safetensors files, read and written a piece of a tensor at a time, so that memory does not grow with the model.

Reads headers and values of files in fp32, bf16 and fp16; writes a file in fp32 (`write_fp32`), one with other names
(`copy_renamed`), or the files of a model folder (`export_weights`). The format is a little-endian u64, a JSON header of
that many bytes, and the data, to which offsets in the header refer. Does not import torch.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import InputError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
"""Supported dtypes, each with the type in which its values are read; a bf16 is the upper half of an fp32."""
TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Names of the dtypes in torch, and in `config.json`."""
FRAMEWORK = {"format": "pt"}
"""Metadata of a file, which `transformers` requires."""
SHARD_BYTES = 5_000_000_000
"""Largest exported file, unless one tensor is larger; `transformers` wrote files of this size up to version 4."""
_PIECE = 1 << 22
"""Values that are converted at a time."""
_HEADER_LENGTH = 8


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file: name, dtype by its name there, shape, and the byte where it begins."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    def values(self) -> NDArray[np.float32]:
        """Returns the whole tensor in fp32."""
        pieces = [np.zeros(0, np.float32), *pieces_of(self)]
        return np.concatenate(pieces).reshape(self.shape)


@dataclass(frozen=True)
class StackedTensor(StoredTensor):
    """Tensors of one shape and dtype as one, with a dimension before theirs; `path` and `begin` are the first's."""

    parts: tuple[StoredTensor, ...]


def tensors_in(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    """Yields name and place of each tensor in a safetensors file.

    Raises:
        InputError: the file is not one, or ends before its last tensor.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_HEADER_LENGTH), "little")
            if length > size - _HEADER_LENGTH:
                raise ValueError("it ends within its header")
            header = json.loads(file.read(length))
        first_byte = _HEADER_LENGTH + length
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            first, end = entry["data_offsets"]
            tensor = StoredTensor(path, name, entry["dtype"], tuple(entry["shape"]), first_byte + first)
            if not 0 <= first <= end <= size - first_byte:
                raise ValueError(f"it ends before {name} does")
            values = DTYPES.get(tensor.dtype)
            if values and end - first != tensor.size * values.itemsize:
                raise ValueError(f"{name} has another size than its shape")
            yield name, tensor
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a complete safetensors file ({error})", "download it again") from None


def pieces_of(tensor: StoredTensor) -> Iterator[NDArray[np.float32]]:
    """Yields the values of a tensor, float32 of shape (values,), in row-major order.

    Every value of bf16 and fp16 is a value of fp32, so nothing is rounded.

    Raises:
        InputError: a value is NaN or infinite, or the file ends too early.
    """
    if isinstance(tensor, StackedTensor):
        for part in tensor.parts:
            yield from pieces_of(part)
        return
    dtype, left = DTYPES[tensor.dtype], tensor.size
    with tensor.path.open("rb") as file:
        file.seek(tensor.begin)
        while left:
            values = np.fromfile(file, dtype, min(left, _PIECE))
            if not len(values):
                raise InputError(f"{tensor.path} became shorter while it was read", "import it again")
            left -= len(values)
            piece = (values.astype("<u4") << 16).view("<f4") if tensor.dtype == "BF16" else values.astype("<f4")
            if not np.isfinite(piece).all():
                cause = f"{tensor.path}: {tensor.name} has values that are NaN or infinite"
                raise InputError(cause, "name a model whose weights are finite: no other computes anything")
            yield piece


def check_finite(tensors: Iterable[StoredTensor]) -> None:
    """Raises InputError, with the tensor, if one in a dtype of DTYPES has a value that is NaN or infinite."""
    for tensor in tensors:
        if tensor.dtype in DTYPES:
            for _ in pieces_of(tensor):
                pass


def write_fp32(tensors: Mapping[str, StoredTensor], file: BinaryIO) -> None:
    """Writes a safetensors file in fp32, in the order of `tensors`."""
    sizes = ((name, "F32", tensor.shape, DTYPES["F32"].itemsize * tensor.size) for name, tensor in tensors.items())
    write_file(file, sizes, (piece.tobytes() for tensor in tensors.values() for piece in pieces_of(tensor)))


class _Tensor(NamedTuple):
    """A tensor to export: names, dtype to write, shape, bytes in source and new file, whether values may be rounded."""

    old: str
    new: str
    dtype: str
    shape: Sequence[int]
    read: int
    written: int
    rounded: bool


def copy_renamed(source: BinaryIO, target: BinaryIO, rename: Callable[[str], str]) -> None:
    """Copies a safetensors file with renamed tensors.

    Args:
        source: the file, positioned at its beginning; it is read once, from its first byte to its last.
        target: the new file.
        rename: maps the name of a tensor to that in the new file; raises KeyError if the new layout has none. A name
            with `{}` is that of several tensors, which the first dimension numbers.

    Raises:
        InputError: the source is not a safetensors file, or has a tensor that the new layout does not have.
    """
    _write(source, target, _planned(source, rename, {}, ""))


def export_weights(
    source: BinaryIO,
    folder: Path,
    rename: Callable[[str], str],
    dtypes: Mapping[str, str],
    limit: int = SHARD_BYTES,
    dtype: str = "",
) -> None:
    """Writes the tensors of a safetensors file in fp32 as those of a model folder, reading it once like `copy_renamed`.

    Args:
        source: the file, positioned at its beginning.
        folder: where WEIGHTS is written; if it would be larger than `limit`, then files "model-00001-of-00002" and so
            on, and INDEX, as `transformers` writes and reads them.
        rename: as for `copy_renamed`.
        dtypes: dtype of the tensors, by their name in `source`, that are written in bf16 or fp16. Their values must be
            values of that dtype.
        limit: bytes of a file; a larger tensor has a file of its own.
        dtype: of all tensors instead of `dtypes`; values that it does not have are rounded to the nearest one.

    Raises:
        InputError: as `copy_renamed`; or a value would be rounded.
    """
    shards: list[list[_Tensor]] = [[]]
    for tensor in _planned(source, rename, dtypes, dtype):
        if shards[-1] and sum(one.written for one in shards[-1]) + tensor.written > limit:
            shards.append([])
        shards[-1].append(tensor)
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    names = names if len(shards) > 1 else [WEIGHTS]
    for name, shard in zip(names, shards, strict=True):
        with (folder / name).open("wb") as target:
            _write(source, target, shard)
    if len(shards) > 1:
        files = {tensor.new: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        total = sum(tensor.written for shard in shards for tensor in shard)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
        (folder / INDEX).write_text(f"{json.dumps(index, indent=2)}\n")


def renamed(name: str, shape: Sequence[int]) -> list[tuple[str, Sequence[int]]]:
    """Returns name and shape of the tensors of a layout that are one of ours, in the order of its values.

    >>> renamed("norm", (8,)), renamed("experts.{}.up", (2, 8))
    ([('norm', (8,))], [('experts.0.up', (8,)), ('experts.1.up', (8,))])
    """
    return [(name.format(number), shape[1:]) for number in range(shape[0])] if "{}" in name else [(name, shape)]


def _planned(source: BinaryIO, rename: Callable[[str], str], dtypes: Mapping[str, str], all_: str) -> list[_Tensor]:
    """Reads the header of a safetensors file; returns its tensors in the order of their data, which follow."""
    try:
        header = json.loads(source.read(int.from_bytes(source.read(_HEADER_LENGTH), "little")))
        header.pop("__metadata__", None)
        planned, end = [], 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            first, last = entry["data_offsets"]
            if first != end:
                raise ValueError(f"there is a gap before {name}")
            dtype, shape, end = all_ or dtypes.get(name, entry["dtype"]), entry["shape"], last
            written = last - first if dtype == entry["dtype"] else math.prod(shape) * DTYPES[dtype].itemsize
            parts = renamed(rename(name), shape)
            sizes = (last - first) // len(parts), written // len(parts)
            planned += [_Tensor(name, new, dtype, of_part, *sizes, bool(all_)) for new, of_part in parts]
    except (ValueError, MemoryError, OverflowError) as error:
        raise InputError(f"the weights cannot be read ({error})", "run the stage train again") from None
    except KeyError as error:
        raise InputError(f"the Llama layout has no weight {error}", "export a checkpoint of this version") from None
    return planned


def _write(source: BinaryIO, target: BinaryIO, tensors: Sequence[_Tensor]) -> None:
    """Writes a safetensors file of the next tensors of the source."""
    sizes = ((tensor.new, tensor.dtype, tensor.shape, tensor.written) for tensor in tensors)
    write_file(target, sizes, _data(source, tensors), FRAMEWORK)


def _data(source: BinaryIO, tensors: Sequence[_Tensor]) -> Iterator[bytes]:
    """Yields the data of the next tensors of the source as they are written."""
    for tensor in tensors:
        left = tensor.read
        while left:
            data = source.read(min(left, _PIECE * DTYPES["F32"].itemsize))
            if not data:
                raise InputError("the weights end too early", "run the stage train again")
            left -= len(data)
            yield data if tensor.read == tensor.written else _narrowed(data, tensor)


def _narrowed(data: bytes, tensor: _Tensor) -> bytes:
    """Returns values of fp32 in the dtype of the tensor.

    Raises:
        InputError: it does not have one of them, and they are not rounded; or a rounded one is infinite.
    """
    values = np.frombuffer(data, "<u4")
    if tensor.dtype == "BF16" and tensor.rounded:
        # To the nearest, and of two to the one whose last bit is 0, as torch does.
        narrow = ((values + np.uint32(0x7FFF) + ((values >> 16) & 1)) >> 16).astype("<u2")
        exact = bool(((narrow & 0x7F80) != 0x7F80).all())
    elif tensor.dtype == "BF16":
        narrow = (values >> 16).astype("<u2")
        exact = not (values & 0xFFFF).any()
    else:
        narrow = values.view("<f4").astype(DTYPES[tensor.dtype])
        exact = bool((narrow.astype("<f4").view("<u4") == values).all())
    if not exact:
        raise InputError(f"{tensor.old} has values that {tensor.dtype} does not have", "export its own checkpoint")
    return narrow.tobytes()


def write_file(
    target: IO[bytes],
    tensors: Iterable[tuple[str, str, Sequence[int], int]],
    data: Iterable[bytes],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a safetensors file, whose data are aligned to eight bytes.

    Args:
        target: the new file.
        tensors: name, dtype, shape and number of bytes of each tensor.
        data: their bytes, in this order, in pieces of any size.
        metadata: of the file.
    """
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    begin = 0
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + size]}
        begin += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target.write(len(text).to_bytes(_HEADER_LENGTH, "little") + text)
    for piece in data:
        target.write(piece)
