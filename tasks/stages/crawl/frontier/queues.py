"""The queues of a fetch task: queued URLs by host, hosts by registered domain, and requests allocated to them.

The URLs of a host (`HostQueue`) are a priority queue without duplicates, in bounded memory. URLs of the fetch list are
never dropped. Links found during the fetch have a memory limit: the worst are dropped when they exceed it, or when
there are many more of them than requests left for the host in this cycle. A dropped link is queued again if it is found
again while there is memory; otherwise the next cycle knows it from the links in the log.

The hosts of one domain (`Domain`) share its requests. A round of the domain ends when all its hosts have processed
their URLs. Links from one of them to another wait for the next round, so that its start does not depend on which host
was faster.

Requests are allocated in a fixed order (`Shares`): first one for every URL of a ranked list, then in turns. A claimant
that needs less than its share returns the rest, which is reallocated. The final allocation is the longest prefix of
that order that the total allows, skipping claimants that need no more: it depends on the demands, not on the order in
which they become known. Until then no claimant has more than its final share, so shares only grow.
"""

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from tasks.formats.web.domain import Link, link
from tasks.formats.web.url import key
from tasks.stages.crawl.storage.fetchlist import Candidate

# Links queued for each remaining request of the host: robots.txt may forbid most of them, which costs no request.
_LINKS_PER_REQUEST = 8
# Links queued regardless of the memory limit.
_MIN_LINKS = 4
# Bytes of a queued URL besides its text: its tuple, its key, and its slots in the heap and in the set of keys.
_OVERHEAD = 260

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class HostPlan:
    """Plan of a host.

    Attributes:
        score: score of the host; 1 is the mean.
        cap: maximum number of requests in this cycle.
    """

    score: float
    cap: int


def front_of(score: float) -> int:
    """Returns the front queue of a score: a queue is a range between powers of two, and low numbers are best.

    >>> front_of(1.0), front_of(0.4), front_of(4.0)
    (0, 2, -2)
    """
    return -math.floor(math.log2(score))


class QueuedUrl(NamedTuple):
    """A URL in a queue; ascending order is the order of trial.

    Attributes:
        front: number of its front queue (`front_of`).
        depth: number of links from a seed.
        hops: number of redirects that led to it.
        url: canonical URL, as the page that links to it spells it.
        via: the page that links or redirects to it, or "".
    """

    front: int
    depth: int
    hops: int
    url: str
    via: str = ""


class HostQueue:
    """The URLs of one host, and the number of requests that it may get.

    Args:
        score: score of the host; 1 is the mean.
        cap: maximum number of requests in this cycle.

    Attributes:
        score: see above.
        cap: see above.
        remaining: requests it may still get in this cycle.
        used: requests made in this round of its domain.
        forwarded_bytes: memory of its links to other hosts in this round of the partition.
        in_flight: whether one of its URLs is being tried.
        dropped: number of links dropped because of the memory limit.
    """

    __slots__ = (
        *("_bytes", "_keys", "_links", "_listed"),
        *("cap", "dropped", "forwarded_bytes", "in_flight", "remaining", "score", "used"),
    )

    def __init__(self, score: float, cap: int) -> None:
        self.score = score
        self.cap = self.remaining = cap
        self.used = self.forwarded_bytes = 0
        self.in_flight = False
        self.dropped = 0
        # URLs of the fetch list, the best last; links, as a heap; keys of URLs that are not to be queued again.
        self._listed: list[tuple[QueuedUrl, Candidate]] = []
        self._links: list[QueuedUrl] = []
        self._keys: set[bytes] = set()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._listed) + len(self._links)

    def __contains__(self, key: bytes) -> bool:
        """Returns whether the URL with a key is queued, was tried, was forwarded to another host, or excluded."""
        return key in self._keys

    def ranked(self) -> Iterator[QueuedUrl]:
        """Yields queued URLs, the best first, up to the number of remaining requests."""
        listed = [queued for queued, _ in self._listed[: -self.remaining - 1 : -1]]
        return heapq.merge(listed, heapq.nsmallest(max(0, self.remaining - len(listed)), self._links))

    def load(self, listed: list[tuple[QueuedUrl, Candidate]]) -> None:
        """Queues the host's URLs of the fetch list."""
        self._listed = sorted(listed, key=lambda row: row[0], reverse=True)
        self._keys.update(candidate.link.key for _, candidate in listed)

    def push(self, queued: QueuedUrl, key: bytes, max_bytes: int) -> None:
        """Queues a link by its key; drops the worst links if they take much more than `max_bytes` of memory."""
        self._keys.add(key)
        heapq.heappush(self._links, queued)
        self._bytes += _OVERHEAD + len(queued.url)
        max_links = _MIN_LINKS + _LINKS_PER_REQUEST * self.remaining
        # Only at twice the limits, so that a new link costs a few comparisons and no sorting.
        if len(self._links) > 2 * max_links or (self._bytes > 2 * max_bytes and len(self._links) > 2 * _MIN_LINKS):
            self._prune(max_links, max_bytes)

    def exclude(self, key: bytes) -> None:
        """Marks a URL that must not be queued."""
        self._keys.add(key)

    def forward(self, target: Link, max_bytes: int) -> bool:
        """Marks a link to another host as forwarded; returns False if it was before, or if memory is used up."""
        if target.key in self or self.forwarded_bytes > max_bytes:
            return False
        self._keys.add(target.key)
        self.forwarded_bytes += _OVERHEAD + len(target.url)
        return True

    def peek(self) -> str:
        """Returns the URL to try next; the queue must not be empty."""
        return self._best().url

    def pop(self) -> Candidate:
        """Removes and returns the next URL."""
        if self._listed and self._best() is self._listed[-1][0]:
            return self._listed.pop()[1]
        queued = heapq.heappop(self._links)
        self._bytes -= _OVERHEAD + len(queued.url)
        score = self.score / (1 + queued.depth)
        return Candidate(link(queued.url), queued.depth, score, queued.hops, queued.via)

    def lower(self, cap: int) -> None:
        """Lowers the cap; a URL that is being tried keeps its request."""
        if cap < self.cap:
            self.remaining = max(self.remaining - (self.cap - cap), 1 if self.in_flight else 0)
            self.cap = cap

    def close(self) -> None:
        """Drops all queued URLs."""
        self._listed, self._links, self._bytes = [], [], 0

    def _best(self) -> QueuedUrl:
        if not self._links:
            return self._listed[-1][0]
        return min(self._links[0], self._listed[-1][0]) if self._listed else self._links[0]

    def _prune(self, max_links: int, max_bytes: int) -> None:
        self._links.sort()
        count = size = 0
        for queued in self._links[:max_links]:
            size += _OVERHEAD + len(queued.url)
            if size > max_bytes and count >= _MIN_LINKS:
                break
            count += 1
        for queued in self._links[count:]:
            self._keys.discard(key(queued.url))
            self._bytes -= _OVERHEAD + len(queued.url)
        self.dropped += len(self._links) - count
        del self._links[count:]  # a sorted list is a heap


class Shares(Generic[Name]):
    """Allocates requests to claimants, such as hosts.

    Args:
        ranked: the claimant of each queued URL, the best URL first.
        caps: maximum of each claimant; claimants without one get nothing.

    Attributes:
        allocated: requests of each claimant.

    >>> shares = Shares(["a", "b", "a"], {"a": 9, "b": 9})
    >>> sorted(shares.allocate(5)), shares.allocated
    (['a', 'b'], {'a': 3, 'b': 2})
    >>> shares.finish("a", 1), shares.allocated
    ({'b'}, {'a': 1, 'b': 4})
    """

    __slots__ = ("_caps", "_ranked", "_turns", "_unallocated", "allocated")

    def __init__(self, ranked: Iterable[Name], caps: Mapping[Name, int]) -> None:
        self._caps: dict[Name, int] = dict(caps)
        self._unallocated = 0
        self._ranked: deque[Name] = deque(name for name in ranked if name in self._caps)
        # In the order of their best URLs; claimants without one are last.
        self._turns = list(dict.fromkeys([*self._ranked, *self._caps]))
        self.allocated: dict[Name, int] = dict.fromkeys(self._turns, 0)

    def allocate(self, count: int) -> set[Name]:
        """Allocates `count` more requests; returns the claimants that got any."""
        self._unallocated += count
        recipients: set[Name] = set()
        while self._unallocated and self._ranked:
            name = self._ranked.popleft()
            if self.allocated[name] < self._caps[name]:
                self.allocated[name] += 1
                self._unallocated -= 1
                recipients.add(name)
        while self._unallocated and (
            turns := [name for name in self._turns if self.allocated[name] < self._caps[name]]
        ):
            # As many whole rounds as all can take part in, or the beginning of one.
            most = min(self._caps[name] - self.allocated[name] for name in turns)
            rounds = min(self._unallocated // len(turns), most)
            served = turns if rounds else turns[: self._unallocated]
            for name in served:
                self.allocated[name] += rounds or 1
            self._unallocated -= len(served) * (rounds or 1)
            recipients.update(served)
            self._turns = turns if rounds else turns[len(served) :] + served
        return recipients

    def finish(self, name: Name, used: int) -> set[Name]:
        """Reallocates the unused requests of a claimant; returns the claimants that got any."""
        spare = self.allocated[name] - used
        self.allocated[name] = self._caps[name] = used
        return self.allocate(spare)


class Domain:
    """The hosts of one registered domain.

    Args:
        owner: hash of its name (`tasks.formats.web.domain.owner_of`).
        cap: maximum number of requests in this cycle.

    Attributes:
        owner: see above.
        hosts: queues by host.
        links: links between its hosts, by key, which wait for the next round.
        remaining: requests it may still get in this cycle.
        allocated: requests allocated to it since `reset`.
        refused: number of links recorded as traps.
    """

    __slots__ = ("_open", "_shares", "_used_before", "allocated", "hosts", "links", "owner", "refused", "remaining")

    def __init__(self, owner: int, cap: int) -> None:
        self.owner = owner
        self.remaining = cap
        self.refused = 0
        self.hosts: dict[str, HostQueue] = {}
        self.links: dict[bytes, QueuedUrl] = {}
        # Hosts that have not finished this round.
        self._open: set[str] = set()
        # Requests since `reset`, and how many of them were used before this round.
        self.allocated = self._used_before = 0
        # Shares of the hosts in this round; None for a single host (the usual case), which gets everything.
        self._shares: Shares[str] | None = None

    @property
    def active_hosts(self) -> list[str]:
        """Hosts with queued URLs and remaining requests, sorted."""
        if not self.remaining:
            return []
        return sorted(name for name, queue in self.hosts.items() if queue and queue.remaining)

    @property
    def used(self) -> int:
        """Requests made since `reset`."""
        return self._used_before + sum(queue.used for queue in self.hosts.values())

    @property
    def is_open(self) -> bool:
        """Whether any host has not finished this round."""
        return bool(self._open)

    def reset(self) -> None:
        """Ends the round, and resets allocated and used requests."""
        self.allocated = self._used_before = 0
        self._open, self._shares = set(), None
        for queue in self.hosts.values():
            queue.used = queue.forwarded_bytes = 0

    def begin(self) -> list[str]:
        """Begins a round with the queued URLs; returns the hosts that may be requested."""
        self._used_before = self.used
        for queue in self.hosts.values():
            queue.used = 0
        active = self.active_hosts
        self._open = set(active)
        self._shares = None
        if len(active) > 1:
            caps = {name: self.hosts[name].remaining for name in active}
            self._shares = Shares(ranked((name, self.hosts[name]) for name in active), caps)
            self._shares.allocate(self.allocated - self._used_before)
        return self._available(active)

    def allocate(self, count: int) -> list[str]:
        """Allocates `count` more requests; returns the hosts that may be requested because of that."""
        self.allocated += count
        return self._available(self._open if self._shares is None else self._shares.allocate(count))

    def finish(self, host: str) -> list[str]:
        """Records that a host has finished the round; returns the hosts that may be requested because of that."""
        self._open.discard(host)
        return self._available(self._shares.finish(host, self.hosts[host].used)) if self._shares else []

    def is_pending(self, host: str) -> bool:
        """Returns whether a host has not finished this round."""
        return host in self._open

    def may_request(self, host: str) -> bool:
        """Returns whether a host may be requested now: it has URLs and requests in this round, and none in flight."""
        queue = self.hosts.get(host)
        if queue is None or not queue or queue.in_flight or host not in self._open:
            return False
        if self._shares is None:
            return queue.used < self.allocated - self._used_before
        return queue.used < self._shares.allocated[host]

    def _available(self, hosts: Iterable[str]) -> list[str]:
        return [host for host in hosts if self.may_request(host)]


def ranked(hosts: Iterable[tuple[str, HostQueue]]) -> list[str]:
    """Returns the host of every queued URL: by front queue, and in turns within a front queue."""
    rows = [(queued.front, turn, name) for name, queue in hosts for turn, queued in enumerate(queue.ranked())]
    rows.sort()
    return [name for _, _, name in rows]
