"""Allocation of a limited number of requests to claimants, independent of the order in which demands become known.

The order of allocation is fixed beforehand: first one request for every URL of a ranked list, then in turns. A claimant
that needs less than its share returns the rest, which is allocated again. The final allocation is the longest prefix of
that order that the total allows, skipping claimants that need no more: it depends on the demands, never on the order in
which they are reported. Until then no claimant has more than its final share: shares only grow.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


class Shares(Generic[Name]):
    """Requests dealt out to claimants.

    Args:
        ranked: the claimant of each known URL, the best URL first.
        caps: maximum of each claimant; one that is not named gets nothing.

    Attributes:
        dealt: what each claimant has.

    >>> shares = Shares(["a", "b", "a"], {"a": 9, "b": 9})
    >>> sorted(shares.deal(5)), shares.dealt
    (['a', 'b'], {'a': 3, 'b': 2})
    >>> shares.finish("a", 1), shares.dealt
    ({'b'}, {'a': 1, 'b': 4})
    """

    __slots__ = ("_caps", "_left", "_ranked", "_turns", "dealt")

    def __init__(self, ranked: Iterable[Name], caps: Mapping[Name, int]) -> None:
        self._caps: dict[Name, int] = dict(caps)
        self._left = 0
        self._ranked: deque[Name] = deque(name for name in ranked if name in self._caps)
        # In the order of their best URLs; those without one are last.
        self._turns = list(dict.fromkeys([*self._ranked, *self._caps]))
        self.dealt: dict[Name, int] = dict.fromkeys(self._turns, 0)

    def deal(self, count: int) -> set[Name]:
        """Allocates `count` more requests; returns the claimants that got any."""
        self._left += count
        richer: set[Name] = set()
        while self._left and self._ranked:
            name = self._ranked.popleft()
            if self.dealt[name] < self._caps[name]:
                self.dealt[name] += 1
                self._left -= 1
                richer.add(name)
        while self._left and (turns := [name for name in self._turns if self.dealt[name] < self._caps[name]]):
            # As many whole rounds as all can take part in, or the beginning of one.
            rounds = min(self._left // len(turns), min(self._caps[name] - self.dealt[name] for name in turns))
            lucky = turns if rounds else turns[: self._left]
            for name in lucky:
                self.dealt[name] += rounds or 1
            self._left -= len(lucky) * (rounds or 1)
            richer.update(lucky)
            self._turns = turns if rounds else turns[len(lucky) :] + lucky
        return richer

    def finish(self, name: Name, used: int) -> set[Name]:
        """Reallocates what a claimant does not need; returns the claimants that got some of it."""
        spare = self.dealt[name] - used
        self.dealt[name] = self._caps[name] = used
        return self.deal(spare)
