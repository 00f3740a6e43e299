"""Weights in MXFP4, as gpt-oss is published: read as the values that they stand for, an expert at a time.

The format is that of the OCP Microscaling Formats (MX) Specification 1.0 (2023), sections 5.2 and 5.3: 32 values of
four bits (E2M1: a sign, two bits of exponent, one of mantissa) share a scale of eight bits (E8M0: a power of two). A
matrix [experts, outputs, inputs] is stored as two tensors: `..._blocks`, uint8 [experts, outputs, inputs / 32, 16],
with two values in a byte, of which the lower four bits are the first; and `..._scales`, uint8 [experts, outputs,
inputs / 32]. The layout has the dequantized matrix with its last two dimensions swapped. Does not import torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import InputError
from tasks.trainer.interchange.weights import StoredTensor

BLOCKS, SCALES = "_blocks", "_scales"
_POSITIVE = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
_VALUES = np.concatenate((_POSITIVE, -_POSITIVE))
"""Values of the 16 codes."""
_BIAS, _NAN = 127, 255
"""Exponent of the scale 1, and the scale that is not a number."""
_PACKED = "U8"


def dequantized(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Returns the values of blocks, float32 [..., 32 x groups]; each is also a value of bf16.

    Args:
        blocks: [..., groups, 16].
        scales: [..., groups].
    """
    values = np.stack((_VALUES[blocks & 15], _VALUES[blocks >> 4]), axis=-1).reshape(*scales.shape, -1)
    with np.errstate(over="ignore"):  # what becomes infinite is refused with the name of the tensor
        values = np.ldexp(values, scales[..., None].astype(np.int32) - _BIAS)
    values[scales == _NAN] = np.nan
    whole: NDArray[np.float32] = values.reshape(*scales.shape[:-1], -1)
    return whole


@dataclass(frozen=True)
class PackedTensor(StoredTensor):
    """A tensor in MXFP4; `dtype`, `shape` and `name` are those of its values, [experts, inputs, outputs]."""

    blocks: StoredTensor
    scales: StoredTensor

    def rows(self) -> Iterator[NDArray[np.float32]]:
        """Yields the values of each expert, [inputs, outputs]."""
        for expert in range(self.shape[0]):
            yield dequantized(_bytes(self.blocks, expert), _bytes(self.scales, expert)).T

    def pieces(self) -> Iterator[NDArray[np.float32]]:
        """Yields the values of a tensor; see `StoredTensor.pieces`."""
        for values in self.rows():
            self.check(values)
            yield values.ravel()


def with_unpacked(found: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Returns tensors by name, with one in place of each pair of blocks and scales.

    Raises:
        InputError: blocks and scales are not those of one matrix.
    """
    names = {name.removesuffix(BLOCKS) for name in found if name.endswith(BLOCKS)}
    names = {name for name in names if name + SCALES in found}
    pairs = {name: (found[name + BLOCKS], found[name + SCALES]) for name in names}
    packed = {name + ending for name in names for ending in (BLOCKS, SCALES)}
    return {name: tensor for name, tensor in found.items() if name not in packed} | {
        name: _packed(name, *pair) for name, pair in sorted(pairs.items())
    }


def _packed(name: str, blocks: StoredTensor, scales: StoredTensor) -> PackedTensor:
    if (blocks.dtype, scales.dtype, blocks.shape) != (_PACKED, _PACKED, (*scales.shape, 16)) or len(scales.shape) != 3:
        stated = f"{blocks.dtype} {list(blocks.shape)} and {scales.dtype} {list(scales.shape)}"
        raise InputError(f"{blocks.path}: blocks and scales of {name} are {stated}", "download the folder again")
    experts, outputs, groups = scales.shape
    return PackedTensor(blocks.path, name, "BF16", (experts, groups * 32, outputs), blocks.begin, blocks, scales)


def _bytes(tensor: StoredTensor, expert: int) -> NDArray[np.uint8]:
    """Returns the part of a uint8 tensor with this first index."""
    shape = tensor.shape[1:]
    size = int(np.prod(shape))
    values = np.fromfile(tensor.path, np.uint8, size, offset=tensor.begin + expert * size)
    if len(values) < size:
        raise InputError(f"{tensor.path} became shorter while it was read", "import it again")
    return values.reshape(shape)
