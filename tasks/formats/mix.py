"""A bijection of 64-bit integers in which every input bit reaches every output bit. Pure functions over arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Applies the finaliser of splitmix64 (Steele, Lea, Flood 2014), a bijection; shape and dtype stay."""
    import numpy as np

    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
