"""Loads a rank's shards from the files of a checkpoint of any layout, without collectives.

Only the files that the rank needs must be there: in the layout in which it was written, those of the same rank. Memory
is that of one part of a tensor.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from tasks.core.errors import InputError
from tasks.trainer.checkpoints.checkpoint import STATE, TensorPart, file_prefix, parts_in


def load_shards(state: Mapping[str, Tensor], folder: Path, rank: int) -> None:
    """Copies the values of this rank's shards from a checkpoint into them, in place.

    Args:
        state: DTensors, or whole tensors, by name.
        folder: of the checkpoint; its files are not verified.
        rank: of the process; its own files are read first, and others only as far as they are needed.

    Raises:
        InputError: a part of a shard is in none of the files, or a file is malformed.
    """
    boxes = {name: _box(tensor) for name, tensor in state.items()}
    missing = {name: size for name, (_, shape) in boxes.items() if (size := math.prod(shape))}
    for path in _in_order(folder, rank):
        if not missing:
            return
        for name, _, part in parts_in(path):
            if name in missing:
                offsets, shape = boxes[name]
                missing[name] -= _copy_overlap(state[name], offsets, shape, part)
                if not missing[name]:
                    del missing[name]
    if missing:
        name = next(iter(missing))
        raise InputError(f'{folder} lacks {missing[name]} values of "{name}" for rank {rank}', "delete the folder")


def _in_order(folder: Path, rank: int) -> Iterator[Path]:
    paths = sorted(path for path in folder.iterdir() if path.name != STATE and not path.name.startswith("."))
    own = file_prefix(rank)
    yield from sorted(paths, key=lambda path: not path.name.startswith(own))


def _box(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns offsets and shape of this rank's shard within the whole tensor."""
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.ndim, tuple(tensor.shape)
    shape, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(offsets), tuple(shape)


def _copy_overlap(tensor: Tensor, offsets: tuple[int, ...], shape: tuple[int, ...], part: TensorPart) -> int:
    """Copies the overlap of a part with the box of a shard into the shard; returns its number of values."""
    firsts = [max(a, b) for a, b in zip(offsets, part.offsets, strict=True)]
    lengths = [
        min(a + m, b + n) - first
        for a, m, b, n, first in zip(offsets, shape, part.offsets, part.shape, firsts, strict=True)
    ]
    if any(length <= 0 for length in lengths):
        return 0
    shard: Tensor = tensor.detach()
    if isinstance(shard, DTensor):
        shard = shard.to_local()
    there = tuple(slice(f - b, f - b + n) for f, b, n in zip(firsts, part.offsets, lengths, strict=True))
    here = tuple(slice(f - a, f - a + n) for f, a, n in zip(firsts, offsets, lengths, strict=True))
    stored = np.memmap(part.path, np.uint8, "r", part.begin, (*part.shape, shard.element_size()))
    values = torch.from_numpy(np.array(stored[there])).view(shard.dtype).squeeze(-1)
    shard[here].copy_(values)
    return math.prod(lengths)
