"""Allocation of a limited number of requests to claimants, independent of the order in which demands become known.

The order of allocation is fixed beforehand: first one request for every URL of a ranked list, then in turns. A claimant
that needs less than its share returns the rest, which is allocated again. The final allocation is the longest prefix of
that order that the total allows, skipping claimants that need no more: it depends on the demands, never on the order in
which they are reported. Until then no claimant has more than its final share: shares only grow.

Plans of hosts: rank and request limit, before the first request.
"""

import math
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.policy import Policy

_MIDDLE = 1.0


@dataclass(frozen=True)
class HostPlan:
    """Plan of a host.

    Attributes:
        score: its rank; 1 is the mean.
        cap: requests it may get in this cycle.
    """

    score: float
    cap: int


class Plans:
    """The plans of all hosts; one that is found during the fetch gets the mean rank.

    Args:
        config: caps of the crawl.
        decided: by host, what generate decided.
        policy: caps and pauses that operators have set for single hosts.
    """

    def __init__(self, config: CrawlConfig, decided: Mapping[str, HostPlan], policy: Policy) -> None:
        self._config = config
        self._decided = decided
        self._policy = policy

    def of(self, host: str) -> HostPlan:
        """Returns the plan of a host."""
        if host in self._decided:
            return self._decided[host]
        most = self._policy.max_pages(host, self._config.max_pages_per_host)
        delay_s = self._policy.delay_s(host, self._config.delay_s)
        return HostPlan(_MIDDLE, min(most, max(1, int(self._config.time_box_s / delay_s))) if delay_s > 0 else most)

    def front(self, host: str, depth: int) -> int:
        """Returns the front queue of a link at some depth on a host; see `front_of`."""
        return front_of((self._decided[host].score if host in self._decided else _MIDDLE) / (1 + depth))


def front_of(score: float) -> int:
    """Returns the number of a score's front queue: each is a power of two, the best is the lowest.

    >>> front_of(1.0), front_of(0.4), front_of(4.0)
    (0, 2, -2)
    """
    return -math.floor(math.log2(score))


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
