"""Copies: which ranks have the same of something, and which of them have something else than the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.trainer.self_test import minority


@dataclass(frozen=True)
class RankCopies:
    """Something that several ranks have."""

    name: str
    """What it is a part of: "" for all that a rank has, "norms"."""
    holders: str
    """Whose copies these are, in the plural."""
    groups: Sequence[Sequence[int]]
    """The ranks with equal copies; each rank is in one group."""

    def of(self, what: str) -> str:
        """Returns the words for weights or state of these copies.

        >>> Copies("norms", "ranks", [[0, 1]]).of("state"), Copies("", "replicas", [[0, 1]]).of("state")
        ('state of norms', 'state')
        """
        return f"{what} of {self.name}" if self.name else what

    def differing(self, hashes: Sequence[float]) -> list[int]:
        """Returns the ranks whose hash is not that of most in their group; all of a group without a majority.

        >>> Copies("", "replicas", [[0, 2], [1, 3]]).differing([5.0, 7.0, 5.0, 8.0])
        [1, 3]
        """
        return sorted(rank for group in self.groups for rank in minority({one: hashes[one] for one in group}))
