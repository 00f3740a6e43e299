"""Numbers as text, for terminals."""

from collections.abc import Sequence

SHOWN = 12
"""Entries of a list that are shown."""


def some(numbers: Sequence[int]) -> str:
    """Returns the first numbers of a list, and how many more there are.

    >>> some([1, 2000]), some([])
    ('1, 2,000', 'none')
    """
    shown = ", ".join(f"{number:,}" for number in numbers[:SHOWN])
    return f"{shown} and {len(numbers) - SHOWN:,} more" if len(numbers) > SHOWN else shown or "none"
