"""The queues of a fetch task: waiting URLs by host, hosts by registered domain, and requests shared among them.

A host's URLs (`HostQueue`) are a priority queue, the best first, without duplicates, in bounded memory. URLs of the
fetch list stay until they are tried. Links found during the fetch have a memory limit; the worst of them are dropped
when they exceed it, or when there are many times more of them than requests left for the host in this cycle. They are
lost for this cycle only: they are in the log's links, so the next cycle knows them. Found again while there is room,
they are queued again.

The hosts of one domain (`Domain`) share its requests. A round of the domain ends when all its hosts have processed
their URLs. Links from one of them to another wait for the next round, so that its start does not depend on which host
was faster.

Requests are allocated in an order that is fixed beforehand (`Shares`): first one for every URL of a ranked list, then
in turns. A claimant that needs less than its share returns the rest, which is allocated again. The final allocation is
the longest prefix of that order that the total allows, skipping claimants that need no more: it depends on the demands,
never on the order in which they are reported. Until then no claimant has more than its final share: shares only grow.
"""

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.policy import Policy
from tasks.stages.crawl.storage.fetchlist import Candidate

_MIDDLE = 1.0

# URLs kept for each request that the host may still get: robots.txt may forbid most of them, which costs no request.
_PER_REQUEST = 8
# URLs kept however little room there is.
_LEAST = 4
# Bytes of a waiting URL besides its text: its tuple, its places in the heap and in the set of those seen.
_OVERHEAD = 260

Name = TypeVar("Name", bound=Hashable)


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


class Waiting(NamedTuple):
    """A URL that waits; ascending order is the order of trial.

    Attributes:
        front: number of its front queue. Each is a power of two of the score; the best is the lowest.
        depth: links from a seed.
        hops: redirects followed to get there.
        url: canonical.
        via: the page that led there, or "".
    """

    front: int
    depth: int
    hops: int
    url: str
    via: str = ""


class HostQueue:
    """One host's URLs, and the requests that it may get.

    Args:
        score: rank of the host; 1 is the mean.
        cap: requests it may get in this cycle.

    Attributes:
        cap: requests it may get in this cycle.
        left: requests it may still get in this cycle.
        used: requests it got in this round of its domain.
        sent: bytes that links take which it handed to other hosts in this round of the partition.
        flying: whether one of its URLs is being tried.
        let_go: how many links were dropped for want of room.
    """

    __slots__ = ("_bytes", "_found", "_listed", "_seen", "cap", "flying", "left", "let_go", "score", "sent", "used")

    def __init__(self, score: float, cap: int) -> None:
        self.score = score
        self.cap = self.left = cap
        self.used = self.sent = 0
        self.flying = False
        self.let_go = 0
        self._listed: list[tuple[Waiting, Candidate]] = []
        self._found: list[Waiting] = []
        self._seen: set[str] = set()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._listed) + len(self._found)

    def __contains__(self, url: str) -> bool:
        """Returns whether a URL waits, was tried, was passed to another host, or is never tried."""
        return url in self._seen

    def ranked(self) -> Iterator[Waiting]:
        """Yields waiting URLs, the best first, up to the number of requests left."""
        listed = [one for one, _ in self._listed[: -self.left - 1 : -1]]
        return heapq.merge(listed, heapq.nsmallest(max(0, self.left - len(listed)), self._found))

    def list(self, listed: list[tuple[Waiting, Candidate]]) -> None:
        """Takes the host's URLs of the fetch list in."""
        self._listed = sorted(listed, key=lambda one: one[0], reverse=True)
        self._seen.update(one.url for one, _ in listed)

    def push(self, one: Waiting, room: int) -> None:
        """Adds a link; drops the worst when found links take more than `room` bytes."""
        self._seen.add(one.url)
        heapq.heappush(self._found, one)
        self._bytes += _OVERHEAD + len(one.url)
        most = _LEAST + _PER_REQUEST * self.left
        # Only at twice the room, so that each new link costs a few comparisons and no sorting.
        if len(self._found) > 2 * most or (self._bytes > 2 * room and len(self._found) > 2 * _LEAST):
            self._prune(most, room)

    def pass_over(self, url: str) -> None:
        """Marks a URL that is none for this host to try."""
        self._seen.add(url)

    def hand_over(self, url: str, room: int) -> bool:
        """Marks a link to another host as passed on; returns False if it was, or if all take more than `room`."""
        if url in self._seen or self.sent > room:
            return False
        self._seen.add(url)
        self.sent += _OVERHEAD + len(url)
        return True

    def peek(self) -> str:
        """Returns the URL to try next, which must wait."""
        return self._best().url

    def pop(self) -> Waiting | Candidate:
        """Removes and returns the next URL: a link, or a candidate of the fetch list."""
        if self._listed and self._best() is self._listed[-1][0]:
            return self._listed.pop()[1]
        one = heapq.heappop(self._found)
        self._bytes -= _OVERHEAD + len(one.url)
        return one

    def lower(self, cap: int) -> None:
        """Lowers the requests it may get in this cycle; a URL that is being tried keeps one."""
        if cap < self.cap:
            self.left = max(self.left - (self.cap - cap), 1 if self.flying else 0)
            self.cap = cap

    def close(self) -> None:
        """Drops what waits."""
        self._listed, self._found, self._bytes = [], [], 0

    def _best(self) -> Waiting:
        if not self._found:
            return self._listed[-1][0]
        return min(self._found[0], self._listed[-1][0]) if self._listed else self._found[0]

    def _prune(self, most: int, room: int) -> None:
        self._found.sort()
        kept = size = 0
        for one in self._found[:most]:
            size += _OVERHEAD + len(one.url)
            if size > room and kept >= _LEAST:
                break
            kept += 1
        for one in self._found[kept:]:
            self._seen.discard(one.url)
            self._bytes -= _OVERHEAD + len(one.url)
        self.let_go += len(self._found) - kept
        del self._found[kept:]  # a sorted list is a heap


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


class Domain:
    """The hosts of one registered domain.

    Args:
        owner: the hash of its name; `tasks.formats.web.domain.owner_of` its hosts.
        cap: requests that it may get in this cycle.

    Attributes:
        hosts: by name.
        found: links from one of them to another, by URL, which wait for the next round.
        left: requests that it may still get in this cycle.
        dealt: requests that it was dealt since `reset`.
        refused: links that were noted as traps.
    """

    __slots__ = ("_earlier", "_open", "_shares", "dealt", "found", "hosts", "left", "owner", "refused")

    def __init__(self, owner: int, cap: int) -> None:
        self.owner = owner
        self.left = cap
        self.refused = 0
        self.hosts: dict[str, HostQueue] = {}
        self.found: dict[str, Waiting] = {}
        self._open: set[str] = set()
        self.dealt = self._earlier = 0
        # What hosts are dealt in this round; a single one, as most domains have it, gets all.
        self._shares: Shares[str] | None = None

    @property
    def wanting(self) -> list[str]:
        """Its hosts with waiting URLs that may be requested."""
        return sorted(name for name, queue in self.hosts.items() if queue and queue.left) if self.left else []

    @property
    def used(self) -> int:
        """Requests made since `reset`."""
        return self._earlier + sum(queue.used for queue in self.hosts.values())

    @property
    def is_open(self) -> bool:
        """Whether any host has not finished this round."""
        return bool(self._open)

    def reset(self) -> None:
        """Resets shares and use, and ends the round."""
        self.dealt = self._earlier = 0
        self._open, self._shares = set(), None
        for queue in self.hosts.values():
            queue.used = queue.sent = 0

    def begin(self) -> list[str]:
        """Begins a round with the waiting URLs; returns the hosts that may continue."""
        self._earlier = self.used
        for queue in self.hosts.values():
            queue.used = 0
        wanting = self.wanting
        self._open = set(wanting)
        self._shares = None
        if len(wanting) > 1:
            caps = {name: self.hosts[name].left for name in wanting}
            self._shares = Shares(ranked((name, self.hosts[name]) for name in wanting), caps)
            self._shares.deal(self.dealt - self._earlier)
        return self._able(wanting)

    def deal(self, count: int) -> list[str]:
        """Adds `count` requests to the budget; returns the hosts that may continue because of them."""
        self.dealt += count
        return self._able(self._open if self._shares is None else self._shares.deal(count))

    def finish(self, host: str) -> list[str]:
        """Records that a host has finished the round; returns the hosts that may continue because of it."""
        self._open.discard(host)
        return self._able(self._shares.finish(host, self.hosts[host].used)) if self._shares else []

    def holds_up(self, host: str) -> bool:
        """Returns whether a host has not finished this round."""
        return host in self._open

    def may_request(self, host: str) -> bool:
        """Returns whether a host has URLs in this round, and a request left for it."""
        queue = self.hosts.get(host)
        if queue is None or not queue or queue.flying or host not in self._open:
            return False
        return queue.used < (self.dealt - self._earlier if self._shares is None else self._shares.dealt[host])

    def _able(self, hosts: Iterable[str]) -> list[str]:
        return [host for host in hosts if self.may_request(host)]


def ranked(hosts: Iterable[tuple[str, HostQueue]]) -> list[str]:
    """Returns the host of every waiting URL: by front queue, with hosts in turn within a queue."""
    rows = [(one.front, turn, name) for name, queue in hosts for turn, one in enumerate(queue.ranked())]
    rows.sort()
    return [name for _, _, name in rows]
