"""Plans of hosts: rank and request limit, before the first request."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

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
