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
_BYTES = {name: dtype.itemsize for name, dtype in DTYPES.items()} | {"U8": 1}
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
        pieces = [np.zeros(0, np.float32), *self.pieces()]
        return np.concatenate(pieces).reshape(self.shape)

    def pieces(self) -> Iterator[NDArray[np.float32]]:
        """Yields the values, float32 of shape (values,), in row-major order.

        Every value of bf16 and fp16 is a value of fp32, so nothing is rounded.

        Raises:
            InputError: a value is NaN or infinite, or the file ends too early.
        """
        dtype, left = DTYPES[self.dtype], self.size
        with self.path.open("rb") as file:
            file.seek(self.begin)
            while left:
                values = np.fromfile(file, dtype, min(left, _PIECE))
                if not len(values):
                    raise InputError(f"{self.path} became shorter while it was read", "import it again")
                left -= len(values)
                piece = (values.astype("<u4") << 16).view("<f4") if self.dtype == "BF16" else values.astype("<f4")
                self.check(piece)
                yield piece

    def rows(self) -> Iterator[NDArray[np.float32]]:
        """Yields the values of each first index."""
        shape = self.shape[1:]
        size = math.prod(shape) * DTYPES[self.dtype].itemsize
        for number in range(self.shape[0]):
            yield StoredTensor(self.path, self.name, self.dtype, shape, self.begin + number * size).values()

    def check(self, values: NDArray[np.float32]) -> None:
        """Raises InputError if one of these values is NaN or infinite."""
        if not np.isfinite(values).all():
            cause = f"{self.path}: {self.name} has values that are NaN or infinite"
            raise InputError(cause, "name a model whose weights are finite: no other computes anything")


@dataclass(frozen=True)
class StackedTensor(StoredTensor):
    """Tensors of one shape and dtype as one, with a dimension before theirs; `path` and `begin` are the first's."""

    parts: tuple[StoredTensor, ...]

    def pieces(self) -> Iterator[NDArray[np.float32]]:
        """Yields the values; see `StoredTensor.pieces`."""
        for part in self.parts:
            yield from part.pieces()


class Place(NamedTuple):
    """Where a layout has the matrices or biases of our experts, [experts, outputs, inputs] or [experts, outputs].

    In text `name|T1`: a name and, if anything is arranged in another way, marks after a bar.
    """

    name: str
    swapped: bool = False
    """`T`: outputs are the last dimension."""
    half: int | None = None
    """`0` or `1`: ours are every other of its outputs, from the first or the second one."""

    @classmethod
    def of(cls, text: str) -> "Place":
        """Returns the place that a text states.

        >>> Place.of("up"), Place.of("gate_up|T1")
        (Place(name='up', swapped=False, half=None), Place(name='gate_up', swapped=True, half=1))
        """
        name, _, marks = text.partition("|")
        return cls(name, marks.startswith("T"), int(marks[-1]) if marks[-1:].isdigit() else None)

    @property
    def is_arranged(self) -> bool:
        """Whether the tensor there is not ours as it is."""
        return self.swapped or self.half is not None

    def shape(self, ours: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the tensor there."""
        experts, outputs, *inputs = ours
        outputs *= 1 if self.half is None else 2
        return (experts, *inputs, outputs) if self.swapped else (experts, outputs, *inputs)

    def ours(self, theirs: Any) -> Any:
        """Returns our part of the tensor there, an array or a tensor."""
        theirs = theirs.swapaxes(1, 2) if self.swapped else theirs
        return theirs if self.half is None else theirs[:, self.half :: 2]

    def theirs(self, ours: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Returns the tensor there: the inverse of `ours`, of both halves in their order if there are two."""
        whole = np.stack(ours, axis=2).reshape(len(ours[0]), -1, *ours[0].shape[2:])
        return whole.swapaxes(1, 2) if self.swapped else whole


@dataclass(frozen=True)
class PlacedTensor(StoredTensor):
    """Our part of a tensor, read a first index at a time."""

    source: StoredTensor
    place: Place

    def pieces(self) -> Iterator[NDArray[np.float32]]:
        """Yields the values; see `StoredTensor.pieces`."""
        for row in self.source.rows():
            self.check(row)
            yield self.place.ours(row[None]).ravel()


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
            size_of_value = _BYTES.get(tensor.dtype)
            if size_of_value and end - first != tensor.size * size_of_value:
                raise ValueError(f"{name} has another size than its shape")
            yield name, tensor
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a complete safetensors file ({error})", "download it again") from None


def check_finite(tensors: Iterable[StoredTensor]) -> None:
    """Raises InputError, with the tensor, if one in a dtype of DTYPES has a value that is NaN or infinite."""
    for tensor in tensors:
        if tensor.dtype in DTYPES:
            for _ in tensor.pieces():
                pass


def write_fp32(tensors: Mapping[str, StoredTensor], file: BinaryIO) -> None:
    """Writes a safetensors file in fp32, in the order of `tensors`."""
    sizes = ((name, "F32", tensor.shape, DTYPES["F32"].itemsize * tensor.size) for name, tensor in tensors.items())
    write_file(file, sizes, (piece.tobytes() for tensor in tensors.values() for piece in tensor.pieces()))


class _Tensor(NamedTuple):
    """A tensor to export."""

    old: str
    new: str
    """Name in the new file."""
    stored: str
    """Dtype in the source."""
    dtype: str
    """Dtype in the new file."""
    shape: Sequence[int]
    """In the new file."""
    read: int
    """Bytes in the source."""
    written: int
    """Bytes in the new file; 0 for the half of a tensor whose other half follows, which is held until then."""
    rounded: bool
    """Whether values may be rounded."""
    place: Place
    ours: Sequence[int]
    """Our shape."""


_Held = dict[str, list[NDArray[Any]]]
"""Halves of tensors, by name in the new file and then by expert."""


def copy_renamed(source: BinaryIO, target: BinaryIO, rename: Callable[[str], str]) -> None:
    """Copies a safetensors file with renamed tensors.

    Args:
        source: the file, positioned at its beginning; it is read once, from its first byte to its last.
        target: the new file.
        rename: maps the name of a tensor to that in the new file; raises KeyError if the new layout has none. A name
            with `{}` is that of several tensors, which the first dimension numbers; one with `|` is a `Place`.

    Raises:
        InputError: the source is not a safetensors file, or has a tensor that the new layout does not have.
    """
    _write(source, target, _planned(source, rename, {}, ""), {})


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
        before = sum(one.written for one in shards[-1])
        if before and tensor.written and before + tensor.written > limit:
            shards.append([])
        shards[-1].append(tensor)
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    names = names if len(shards) > 1 else [WEIGHTS]
    held: _Held = {}
    for name, shard in zip(names, shards, strict=True):
        with (folder / name).open("wb") as target:
            _write(source, target, shard, held)
    if len(shards) > 1:
        files = {
            tensor.new: name for name, shard in zip(names, shards, strict=True) for tensor in shard if tensor.written
        }
        total = sum(tensor.written for shard in shards for tensor in shard)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
        (folder / INDEX).write_text(f"{json.dumps(index, indent=2)}\n")


def renamed(name: str, shape: Sequence[int]) -> list[tuple[str, Sequence[int]]]:
    """Returns name and shape of the tensors of a layout that are one of ours, in the order of its values.

    >>> renamed("norm", (8,)), renamed("experts.{}.up", (2, 8))
    ([('norm', (8,))], [('experts.0.up', (8,)), ('experts.1.up', (8,))])
    >>> renamed("gate_up|T0", (2, 8, 5))
    [('gate_up', (2, 5, 16))]
    """
    if "{}" in name:
        return [(name.format(number), shape[1:]) for number in range(shape[0])]
    place = Place.of(name)
    return [(place.name, place.shape(shape) if place.is_arranged else shape)]


def _planned(source: BinaryIO, rename: Callable[[str], str], dtypes: Mapping[str, str], all_: str) -> list[_Tensor]:
    """Reads the header of a safetensors file; returns its tensors in the order of their data, which follow."""
    try:
        header = json.loads(source.read(int.from_bytes(source.read(_HEADER_LENGTH), "little")))
        header.pop("__metadata__", None)
        planned, end, halves = [], 0, set[str]()
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            first, last = entry["data_offsets"]
            if first != end:
                raise ValueError(f"there is a gap before {name}")
            stored, shape, end, text = entry["dtype"], entry["shape"], last, rename(name)
            place = Place.of(text)
            dtype = all_ or dtypes.get(name, stored)
            written = last - first if dtype == stored else math.prod(shape) * DTYPES[dtype].itemsize
            if place.half is not None:
                written *= 2 if place.name in halves else 0
                halves ^= {place.name}
            parts = renamed(text, shape)
            sizes = (last - first) // len(parts), written // len(parts)
            planned += [
                _Tensor(name, new, stored, dtype, of_part, *sizes, bool(all_), place, shape) for new, of_part in parts
            ]
        if halves:
            raise KeyError(f"the other half of {min(halves)}")
    except (ValueError, MemoryError, OverflowError) as error:
        raise InputError(f"the weights cannot be read ({error})", "run the stage train again") from None
    except KeyError as error:
        raise InputError(f"the Llama layout has no weight {error}", "export a checkpoint of this version") from None
    return planned


def _write(source: BinaryIO, target: BinaryIO, tensors: Sequence[_Tensor], held: _Held) -> None:
    """Writes a safetensors file of the next tensors of the source."""
    sizes = ((tensor.new, tensor.dtype, tensor.shape, tensor.written) for tensor in tensors if tensor.written)
    write_file(target, sizes, _data(source, tensors, held), FRAMEWORK)


def _data(source: BinaryIO, tensors: Sequence[_Tensor], held: _Held) -> Iterator[bytes]:
    """Yields the data of the next tensors of the source as they are written."""
    for tensor in tensors:
        if not tensor.place.is_arranged:
            yield from _read(source, tensor, tensor.read)
            continue
        experts, dtype = tensor.ours[0], DTYPES[tensor.dtype]
        own = (b"".join(_read(source, tensor, tensor.read // experts)) for _ in range(experts))
        matrices = (np.frombuffer(data, dtype).reshape(1, *tensor.ours[1:]) for data in own)
        if not tensor.written:
            held[tensor.new] = list(matrices)
            continue
        others = held.pop(tensor.new, None)
        for expert, matrix in enumerate(matrices):
            halves = [matrix] if others is None else [others[expert], matrix][:: 1 if tensor.place.half else -1]
            yield tensor.place.theirs(halves).tobytes()


def _read(source: BinaryIO, tensor: _Tensor, left: int) -> Iterator[bytes]:
    """Yields the next bytes of a tensor in its new dtype, in pieces."""
    while left:
        data = source.read(min(left, _PIECE * DTYPES["F32"].itemsize))
        if not data:
            raise InputError("the weights end too early", "run the stage train again")
        left -= len(data)
        yield data if tensor.dtype == tensor.stored else _narrowed(data, tensor)


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
    """Writes a safetensors file to `target`; the other arguments as for `file_in_pieces`."""
    for piece in file_in_pieces(tensors, data, metadata):
        target.write(piece)


def file_in_pieces(
    tensors: Iterable[tuple[str, str, Sequence[int], int]],
    data: Iterable[bytes],
    metadata: Mapping[str, str] | None = None,
) -> Iterator[bytes]:
    """Yields a safetensors file, whose data are aligned to eight bytes.

    Args:
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
    yield len(text).to_bytes(_HEADER_LENGTH, "little") + text
    yield from data
