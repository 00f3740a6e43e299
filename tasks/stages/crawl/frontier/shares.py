"""Deals a limited number of requests out to claimants, such that nobody has to wait to know what is surely theirs.

The order in which requests are dealt is fixed beforehand: first one for every URL of a ranked list, then in turns. A
claimant that needs less than it was dealt gives the rest back, and it is dealt on. What everybody has in the end is
the longest beginning of that order that the total allows, where turns of those who need no more are passed over: it
depends on what each needs, never on who says so first. And until then nobody was dealt too much: shares only grow.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


class Shares(Generic[Name]):
    """Requests dealt out to claimants.

    Args:
        ranked: a claimant for each URL that is known to be wanted, the best URL first.
        caps: what each claimant may have at most; who is not named here gets nothing.

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
        # In the order of their best URLs; those without one come last.
        self._turns = deque(dict.fromkeys([*self._ranked, *self._caps]))
        self.dealt: dict[Name, int] = dict.fromkeys(self._turns, 0)

    def deal(self, count: int) -> set[Name]:
        """Deals `count` more requests; returns who got any."""
        self._left += count
        richer: set[Name] = set()
        while self._left and (name := self._next()) is not None:
            self.dealt[name] += 1
            self._left -= 1
            richer.add(name)
        return richer

    def finish(self, name: Name, used: int) -> set[Name]:
        """Takes back what a claimant does not need, now or later; returns who got some of it."""
        spare = self.dealt[name] - used
        self.dealt[name] = self._caps[name] = used
        return self.deal(spare)

    def _next(self) -> Name | None:
        """Returns whose turn it is."""
        while self._ranked:
            name = self._ranked.popleft()
            if self.dealt[name] < self._caps[name]:
                return name
        while self._turns:
            name = self._turns.popleft()
            if self.dealt[name] < self._caps[name]:
                self._turns.append(name)
                return name
        return None
