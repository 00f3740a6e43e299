"""Tensors of a checkpoint by name, from one safetensors file or from those of several ranks.

Reads safetensors files. A file of a rank has parts of tensors, and in its header under `DCP_SHARDING_INFO` where each
part begins in its tensor: the format of torch.distributed.checkpoint. Writes one file with whole tensors. Works without
torch, which a process that copies checkpoints for hours does not need.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import InputError

SHARDING = "DCP_SHARDING_INFO"
"""Key of the header's metadata: JSON, name -> {"saved_offsets": [..]}."""
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class TensorPart:
    """A box of a tensor in a file; `begin` is the place of its bytes there."""

    path: Path
    begin: int
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class StoredTensor:
    """A whole tensor: dtype by its name in safetensors, shape, and the parts that cover it."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[TensorPart, ...]

    @property
    def nbytes(self) -> int:
        """Size of the whole tensor."""
        return math.prod(self.shape) * _BYTES[self.dtype]

    def read(self) -> NDArray[np.uint8]:
        """Returns the values as bytes, shape (*shape, bytes of a value)."""
        size = _BYTES[self.dtype]
        whole = np.empty((*self.shape, size), dtype=np.uint8)
        for part in self.parts:
            count = math.prod(part.shape) * size
            values = np.fromfile(part.path, dtype=np.uint8, count=count, offset=part.begin)
            box = tuple(slice(first, first + length) for first, length in zip(part.offsets, part.shape, strict=True))
            whole[box] = values.reshape(*part.shape, size)
        return whole


def tensors_in(paths: Sequence[Path]) -> dict[str, StoredTensor]:
    """Returns the tensors that the files have together, by name in ascending order.

    Raises:
        InputError: a file is no safetensors file, or the parts of a tensor do not cover it.
    """
    found: dict[str, list[tuple[str, TensorPart]]] = {}
    for path in paths:
        for name, dtype, part in _parts(path):
            found.setdefault(name, []).append((dtype, part))
    tensors = {}
    for name in sorted(found):
        dtype, parts = found[name][0][0], [part for _, part in found[name]]
        ends = [tuple(a + b for a, b in zip(part.offsets, part.shape, strict=True)) for part in parts]
        shape = tuple(max(sizes) for sizes in zip(*ends, strict=True))
        if sum(math.prod(part.shape) for part in parts) != math.prod(shape):
            raise InputError(f'{paths[0].parent}: parts of the tensor "{name}" are missing', "delete the folder")
        tensors[name] = StoredTensor(dtype, shape, tuple(parts))
    return tensors


def _parts(path: Path) -> Iterator[tuple[str, str, TensorPart]]:
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(size))
        places = json.loads((header.pop("__metadata__", None) or {}).get(SHARDING, "{}"))
        for name, entry in header.items():
            shape = tuple(entry["shape"])
            offsets = tuple(places[name]["saved_offsets"]) if places else (0,) * len(shape)
            yield name, entry["dtype"], TensorPart(path, 8 + size + entry["data_offsets"][0], offsets, shape)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is not a safetensors file ({error})", "delete the folder") from error


def write_whole(tensors: dict[str, StoredTensor], file: IO[bytes]) -> None:
    """Writes one safetensors file, a tensor at a time, in the order of `tensors`."""
    header, place = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [place, place + tensor.nbytes]}
        place += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        file.write(tensor.read().tobytes())
