"""Which URLs one fetch task tries, in which order: a pure function of the fetch list and of what came back.

Used by fetch. These are the front queues of the frontier. The crawl goes in waves: each takes the best few URLs of
every host, and all of them are finished before links found in them are chosen from. Nothing here depends on time, so
that an interrupted and resumed crawl, or one with more requests at a time, captures the same pages of a site that
stands still. The price: a slow host holds up the next wave of the others. It does so for as long as WAVE requests take
an ordinary host, or for one request, once an earlier cycle has learned its Crawl-delay; until then for WAVE of its own.
"""

import heapq
import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from tasks.crawl.candidate import Candidate
from tasks.crawl.config import CrawlConfig
from tasks.crawl.db.fetchlog import SITEMAP, Outcome
from tasks.crawl.frontier.traps import Traps
from tasks.crawl.policy import Policy
from tasks.crawl.url import Link, Scope, link, owner_of

MAX_REDIRECTS = 5
WAVE = 32


@dataclass(frozen=True)
class HostPlan:
    """What is known of a host beforehand.

    Attributes:
        score: its rank; 1 is the mean.
        cap: requests it may get in this cycle.
        wave: requests it may get in one wave. A host with a long Crawl-delay gets fewer: the others wait for it.
    """

    score: float
    cap: int
    wave: int = WAVE


# Ascending order is the order of trial: front queue, depth, redirects, URL.
_Rank = tuple[int, int, int, str]
_NOTHING: frozenset[bytes] = frozenset()


class Waves:
    """Chooses the URLs of one partition.

    Args:
        config: caps of the crawl.
        number: which partition this is.
        budget: requests this partition may make.
        scope: what the crawl covers.
        start: the fetch list.
        plans: by host, what generate decided; hosts found on the way get the middle rank.
        known: keys of URLs that earlier cycles know; links to them wait until they are due.
        policy: caps and pauses that operators have set for single hosts.
    """

    def __init__(
        self,
        config: CrawlConfig,
        number: int,
        budget: int,
        scope: Scope,
        start: Iterable[Candidate],
        plans: Mapping[str, HostPlan] | None = None,
        known: Container[bytes] = _NOTHING,
        policy: Policy | None = None,
    ) -> None:
        self._config = config
        self._number = number
        self._scope = scope
        self._plans = dict(plans or {})
        self._known = known
        self._policy = policy or Policy()
        self.traps = Traps(config)
        self.budget = budget
        self.spent = 0
        self._spent_on: Counter[str] = Counter()
        self._spent_on_domain: Counter[int] = Counter()
        self._queues: dict[str, list[tuple[_Rank, Candidate]]] = {}
        self._seen: set[bytes] = set()
        self._found = {link(candidate.url): candidate for candidate in start}
        self._seen.update(target.key for target in self._found)
        self.refused: list[tuple[Candidate, str]] = []

    @property
    def waiting(self) -> int:
        """URLs that are known to this task and not yet chosen."""
        return sum(map(len, self._queues.values())) + len(self._found)

    def next_round(self) -> list[Candidate]:
        """Returns the URLs to try next, all of them before the round after; empty when the crawl is over.

        Requests that were not needed (robots.txt said no) go back into the budget. Links that are traps are put to
        `refused`, for the caller to log: they must not come back from the crawl DB as news.
        """
        # In one order, whatever order the answers came in: what a trap is depends on what was seen before.
        for target, candidate in sorted(self._found.items(), key=lambda held: _order(held[1])):
            reason = self.traps.refuses(target)
            # What the recipe names and what was a page before is tried all the same.
            if reason and not candidate.seed and candidate.earlier is None:
                self.refused.append((candidate, reason))
            else:
                self._push(target.host, candidate)
        self._found = {}
        ranked: list[tuple[int, int, str, Candidate]] = []
        on_domain = Counter(self._spent_on_domain)
        for host in sorted(self._queues):
            for position, (rank, candidate) in enumerate(self._best_of(host, on_domain)):
                ranked.append((rank[0], position, host, candidate))
        ranked.sort(key=lambda row: row[:3])
        room = max(0, self.budget - self.spent)
        for *_, host, candidate in ranked[room:]:
            self._push(host, candidate)
        return [candidate for *_, candidate in ranked[:room]]

    def note(self, candidate: Candidate, outcome: Outcome) -> None:
        """Takes in what came of a URL: the request it cost, and the links it gave."""
        if outcome.requested:
            self.spent += 1
            self._spent_on[outcome.host] += 1
            self._spent_on_domain[owner_of(outcome.host)] += 1
        if outcome.redirect and candidate.hops < MAX_REDIRECTS:
            self._add(link(outcome.redirect), candidate.depth, candidate.hops + 1, candidate.url)
        # What a sitemap lists is no further from the seeds than the sitemap.
        depth = candidate.depth + (outcome.kind != SITEMAP)
        if depth <= self._config.max_depth:
            for found in outcome.outlinks:
                self._add(found, depth, 0, candidate.url)

    def _best_of(self, host: str, on_domain: Counter[int]) -> list[tuple[_Rank, Candidate]]:
        """Takes the best URLs of a host out of its queue, as many as a wave and the caps allow."""
        queue, owner = self._queues[host], owner_of(host)
        plan = self._plan(host)
        cap = plan.cap - self._spent_on[host]
        room = min(plan.wave, cap, self._config.max_pages_per_domain - on_domain[owner])
        taken = [heapq.heappop(queue) for _ in range(min(room, len(queue)))]
        on_domain[owner] += len(taken)
        # A host at its cap will never be asked again: the next cycle finds its links in the log.
        if not queue or cap <= 0:
            del self._queues[host]
        return taken

    def _add(self, found: Link, depth: int, hops: int, via: str) -> None:
        held = self._found.get(found)
        if held is not None:
            # The same page found twice: the shortest way counts, then the smallest address, never the first answer.
            if (depth, hops, via) < (held.depth, held.hops, held.via):
                self._found[found] = self._candidate(found, depth, hops, via)
            return
        if found.key in self._seen or found.owner % self._config.partitions != self._number:
            return
        if found.key not in self._known and self._scope.covers(found.url, found.host):
            self._seen.add(found.key)
            self._found[found] = self._candidate(found, depth, hops, via)

    def _candidate(self, found: Link, depth: int, hops: int, via: str) -> Candidate:
        score = self._plan(found.host).score / (1 + depth)
        return Candidate(found.url, depth, score, hops, via)

    def _plan(self, host: str) -> HostPlan:
        """Returns what was decided for a host; one that is found on the way gets the middle rank."""
        held = self._plans.get(host)
        if held is None:
            most = self._policy.max_pages(host, self._config.max_pages_per_host)
            delay_s = self._policy.delay_s(host, self._config.delay_s)
            in_box = max(1, int(self._config.time_box_s / delay_s)) if delay_s > 0 else most
            held = self._plans[host] = HostPlan(1.0, min(most, in_box))
        return held

    def _push(self, host: str, candidate: Candidate) -> None:
        queue = self._queues.setdefault(host, [])
        heapq.heappush(queue, ((-math.floor(math.log2(candidate.score)), *_order(candidate)), candidate))


def _order(candidate: Candidate) -> tuple[int, int, str]:
    return candidate.depth, candidate.hops, candidate.url
