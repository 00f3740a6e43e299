"""Which URLs one fetch task tries, in which order: a pure function of the fetch list and of what came back.

Used by fetch. The crawl goes in waves: all URLs of one wave are finished before links found in it are chosen from.
Nothing here depends on time, so that an interrupted and resumed crawl, or one with more requests at a time, captures
the same pages of a site that stands still. The price: a slow host holds up the next wave of the others.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tasks.crawl.config import CrawlConfig
from tasks.crawl.fetchlog import Outcome
from tasks.crawl.url import Link, Scope, authority, key, link
from tasks.crawl.warc import Earlier

MAX_REDIRECTS = 5


@dataclass(frozen=True)
class Candidate:
    """One URL to try.

    Attributes:
        url: canonical.
        depth: links from a seed.
        hops: redirects followed to get here.
        via: the page that led here, or "".
        etag: validators of the earlier capture, or "".
        last_modified: the same.
        earlier: that capture, for the revisit record, or None.
        seed: whether the recipe names it.
    """

    url: str
    depth: int
    hops: int = 0
    via: str = ""
    etag: str = ""
    last_modified: str = ""
    earlier: Earlier | None = None
    seed: bool = False


class Waves:
    """Chooses the URLs of one partition.

    Args:
        config: caps of the crawl.
        number: which partition this is.
        budget: requests this partition may make.
        scope: hosts the crawl covers.
        start: the fetch list.
    """

    def __init__(self, config: CrawlConfig, number: int, budget: int, scope: Scope, start: Iterable[Candidate]) -> None:
        self._config = config
        self._number = number
        self._scope = scope
        self.budget = budget
        self.spent = 0
        self._spent_on: dict[str, int] = defaultdict(int)
        self._per_host = min(config.max_pages_per_host, _fits_in_box(config))
        self._waiting = _interleaved(start)
        self._seen = {key(candidate.url) for candidate in self._waiting}
        self._found: dict[str, Candidate] = {}

    def next_round(self) -> list[Candidate]:
        """Returns the URLs to try next, all of them before the round after; empty when the crawl is over.

        Requests that were not needed (robots.txt said no) go back into the budget, so that a wave may take more than
        one round.
        """
        while self.spent < self.budget:
            if not self._waiting:
                self._waiting, self._found = _interleaved(self._found.values()), {}
                if not self._waiting:
                    return []
            chosen = self._take()
            if chosen:
                return chosen
        return []

    def note(self, candidate: Candidate, outcome: Outcome) -> None:
        """Takes in what came of a URL: the request it cost, and the links it gave."""
        if outcome.requested:
            self.spent += 1
            self._spent_on[authority(candidate.url)] += 1
        if outcome.redirect and candidate.hops < MAX_REDIRECTS:
            self._add(link(outcome.redirect), candidate.depth, candidate.hops + 1, candidate.url)
        if candidate.depth < self._config.max_depth:
            for found in outcome.outlinks:
                self._add(found, candidate.depth + 1, 0, candidate.url)

    def _take(self) -> list[Candidate]:
        chosen: list[Candidate] = []
        left: list[Candidate] = []
        room = self.budget - self.spent
        on_host: dict[str, int] = dict(self._spent_on)
        for candidate in self._waiting:
            host = authority(candidate.url)
            if on_host.get(host, 0) >= self._per_host:
                if self._spent_on[host] < self._per_host:
                    left.append(candidate)
                continue
            if len(chosen) >= room:
                left.append(candidate)
                continue
            on_host[host] = on_host.get(host, 0) + 1
            chosen.append(candidate)
        self._waiting = left
        return chosen

    def _add(self, found: Link, depth: int, hops: int, via: str) -> None:
        held = self._found.get(found.key)
        if held is not None:
            # The same page found twice: the shortest way counts, then the smallest address, never the first answer.
            if (depth, hops, via) < (held.depth, held.hops, held.via):
                self._found[found.key] = Candidate(found.url, depth, hops, via)
            return
        if found.key in self._seen or found.owner % self._config.partitions != self._number:
            return
        if self._scope.covers(found.url):
            self._seen.add(found.key)
            self._found[found.key] = Candidate(found.url, depth, hops, via)


def _fits_in_box(config: CrawlConfig) -> int:
    """Returns how many pages of one host can politely be fetched in the time box."""
    return max(1, int(config.time_box_s / config.delay_s)) if config.delay_s > 0 else config.max_pages_per_host


def _interleaved(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Orders candidates by depth, then round robin over hosts, then by URL."""
    ranked: list[tuple[int, int, str, Candidate]] = []
    rank: dict[str, int] = defaultdict(int)
    for candidate in sorted(candidates, key=lambda one: (one.depth, one.url)):
        host = authority(candidate.url)
        ranked.append((candidate.depth, rank[host], host, candidate))
        rank[host] += 1
    return [candidate for *_, candidate in sorted(ranked, key=lambda row: row[:3])]
