"""Priority queue of one host's URLs: the best first, without duplicates, in bounded memory.

URLs of the fetch list stay until they are tried. Links found during the fetch have a memory limit; the worst of them
are dropped when they exceed it, or when there are many times more of them than requests left for the host in this
cycle. They are lost for this cycle only: they are in the log's links, so the next cycle knows them. Found again while
there is room, they are queued again.
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from tasks.stages.crawl.storage.fetchlist import Candidate

# URLs kept for each request that the host may still get: robots.txt may forbid most of them, which costs no request.
_PER_REQUEST = 8
# URLs kept however little room there is.
_LEAST = 4
# Bytes of a waiting URL besides its text: its tuple, its places in the heap and in the set of those seen.
_OVERHEAD = 260


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
