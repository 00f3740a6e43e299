"""Order in which a fetch task tries URLs: a function of the fetch list and of the responses, never of time.

A host's URLs are tried one after another, the best first, and links within the host are queued at once. So each host
proceeds independently, at its own pace. No running host waits for another:

- Links to another host of the same registered domain are tried when all hosts of the domain have processed their URLs:
  a round of the domain (`queues.Domain`).
- Links to other domains of the partition are tried when all domains have: a round of the partition.
- The partition's requests are divided among its domains, and those of a domain among its hosts
  (`queues.Shares`): first by waiting URLs, then in turns. Unneeded requests are given to others as soon as that is
  known.

Therefore an interrupted and resumed crawl, or one with more requests at a time, captures the same pages of an
unchanged site. The price: a slow host delays others where they depend on it: pages that no page of their own domain
links to, and requests beyond their share.
"""

import contextlib
from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from tasks.formats.warc.record import PAGE_STATUSES
from tasks.formats.web.domain import Link, link, owner_of
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import authority, bare
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.frontier.queues import Domain, HostPlan, HostQueue, Plans, Shares, QueuedUrl, front_of, ranked
from tasks.stages.crawl.frontier.traps import Traps
from tasks.stages.crawl.policy import Policy
from tasks.stages.crawl.storage.fetchlist import Candidate, EarlierCapture
from tasks.stages.crawl.storage.fetchlog import CAPTURED, NOT_MODIFIED, PAGE, SITEMAP, SUCCESS, Outcome

MAX_REDIRECTS = 5
# Bytes of memory for links that wait, divided among the domains; as much again for those on their way to other hosts.
_ROOM = 32 << 20
# Links of one domain that are logged as traps, so that no later cycle takes them for news. More are not remembered.
_MAX_REFUSED = 20_000
_NOTHING: frozenset[bytes] = frozenset()


class UrlOrder:
    """Chooses the URLs of one partition.

    `take` gives the next URL of a host that is `available`, and its outcome goes to `note`; until then that host gives no
    other.

    Args:
        config: caps of the crawl.
        number: which partition this is.
        budget: requests this partition may make.
        scope: scope of the crawl.
        start: the fetch list.
        plans: by host, what generate decided (`Plans`).
        known: keys of URLs that earlier cycles know; links to them wait until they are due.
        policy: caps and pauses that operators have set for single hosts.

    Attributes:
        budget: requests this partition may make.
        spent: requests made.
        traps: trap detection.
        refused: links that are traps, with the reason, for the caller to log and clear: they must not come back from
            the crawl DB as news.
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
        self._policy = policy or Policy()
        self._plans = Plans(config, plans or {}, self._policy)
        self._known = known
        self.traps = Traps(config)
        self.budget = budget
        self.spent = 0
        self.refused: list[tuple[Candidate, str]] = []
        self._domains: dict[int, Domain] = {}
        self._found: dict[str, QueuedUrl] = {}
        self._shares: Shares[int] = Shares((), {})
        self._room = _ROOM
        # Hosts for which `take` gives a URL, and those of them that `ready` has not returned yet.
        self._available: set[str] = set()
        self._newly_available: list[str] = []
        self._flying = 0
        self._unseen_hosts = _by_owner(scope.named_hosts, config.partitions, number)
        self._list(start)
        self._begin()

    @property
    def waiting(self) -> tuple[int, int]:
        """URLs that are known to this task and not tried yet, and the hosts that they are of."""
        lengths = [len(queue) for domain in self._domains.values() for queue in domain.hosts.values() if queue]
        aside = len(self._found) + sum(len(domain.found) for domain in self._domains.values())
        return sum(lengths) + aside, len(lengths)

    @property
    def dropped(self) -> int:
        """Links that were dropped for lack of room; the next cycle knows them."""
        return sum(queue.dropped for domain in self._domains.values() for queue in domain.hosts.values())

    @property
    def available(self) -> list[str]:
        """Hosts for which `take` gives a URL."""
        return sorted(self._available)

    def ready(self) -> list[str]:
        """Returns the hosts that have become `available` since the last call."""
        news, self._newly_available = [host for host in self._newly_available if host in self._available], []
        return news

    def peek(self, host: str) -> str:
        """Returns the URL that `take` would give, or ""."""
        return self._domains[owner_of(host)].hosts[host].peek() if host in self._available else ""

    def take(self, host: str) -> Candidate | None:
        """Returns the next URL of a host, or None if it has none that may be tried now."""
        if host not in self._available:
            return None
        self._available.discard(host)
        self._flying += 1
        queue = self._domains[owner_of(host)].hosts[host]
        queue.in_flight = True
        one = queue.pop()
        if isinstance(one, Candidate):
            return one
        return Candidate(one.url, one.depth, queue.score / (1 + one.depth), one.hops, one.via)

    def note(self, candidate: Candidate, outcome: Outcome) -> None:
        """Records the outcome of a URL that was taken: the request it cost, its links, and the capture behind it."""
        host = authority(candidate.url)
        domain = self._domains[owner_of(host)]
        queue = domain.hosts[host]
        queue.in_flight = False
        self._flying -= 1
        if outcome.requested:
            self.spent += 1
            domain.left -= 1
            queue.left -= 1
            queue.used += 1
        self._take_in(domain, host, candidate, outcome)
        if not (queue and queue.left and domain.left):
            self._finish(domain, host)
        elif domain.may_request(host):
            self._enable([host])
        if not (self._flying or self._available):
            self._begin()
        if outcome.status in (SUCCESS, NOT_MODIFIED) and outcome.kind == PAGE and not outcome.render:
            # The page's own capture, or the earlier one that it found unchanged.
            unchanged = candidate.earlier if outcome.status == NOT_MODIFIED else None
            at = outcome.fetched_at or datetime.now(UTC)
            self.traps.keep(unchanged or EarlierCapture(outcome.url, at, outcome.record_id, outcome.payload_digest))

    def lower_caps(self) -> None:
        """Takes over caps of hosts that operators have lowered; what waits beyond them is left for the next cycle."""
        for domain in list(self._domains.values()):
            for host, queue in list(domain.hosts.items()):
                queue.lower(self._policy.max_pages(host, queue.cap))
                if not (queue.left or queue.in_flight):
                    self._available.discard(host)
                    queue.close()
                    if domain.is_pending(host):
                        self._finish(domain, host)
        if not (self._flying or self._available):
            self._begin()

    def queues(self) -> Iterator[tuple[str, HostQueue]]:
        """Yields the hosts with URLs that wait, were tried or may come, and their queues."""
        for domain in self._domains.values():
            yield from domain.hosts.items()

    # --- links

    def _take_in(self, domain: Domain, host: str, candidate: Candidate, outcome: Outcome) -> None:
        read = not (outcome.render or outcome.unread)
        if read and outcome.status in CAPTURED and outcome.http_status in PAGE_STATUSES:
            self.traps.learn(candidate.url, outcome.title, outcome.outlinks)
        if outcome.redirect and candidate.hops < MAX_REDIRECTS:
            self._add(domain, host, link(outcome.redirect), candidate.depth, candidate.hops + 1, candidate.url)
        # A URL in a sitemap has the depth of the sitemap.
        depth = candidate.depth + (outcome.kind != SITEMAP)
        if depth <= self._config.max_depth:
            # Sorted: trap detection depends on the order of links, and the log has no order. Most links of a page are
            # those of its site's menu, which the host has.
            queue = domain.hosts[host]
            for found in sorted([one for one in outcome.outlinks if one.url not in queue]):
                self._add(domain, host, found, depth, 0, candidate.url)

    def _add(self, domain: Domain, host: str, found: Link, depth: int, hops: int, via: str) -> None:
        """Puts a link where it belongs: to the URLs of its host, or aside for a round of the domain or partition."""
        queue = domain.hosts[host]
        if found.url in queue or found.owner % self._config.partitions != self._number:
            return
        if found.key in self._known or not self._scope.covers(found.url, found.host):
            return
        one = QueuedUrl(self._plans.front(found.host, depth), depth, hops, found.url, via)
        if found.host == host:
            self._enqueue(domain, found, one)
        elif queue.forward(found.url, self._room // len(domain.hosts)):
            aside = domain.found if owner_of(host) == found.owner else self._found
            other = aside.get(found.url)
            # The same page found by two hosts: the shortest way counts, then the smallest address, never the first.
            if other is None or (depth, hops, via) < (other.depth, other.hops, other.via):
                aside[found.url] = one

    def _enqueue(self, domain: Domain, found: Link, one: QueuedUrl) -> None:
        """Queues a link at its host, unless it is a trap."""
        queue = domain.hosts[found.host]
        if not queue.left or one.url in queue:
            return
        reason = self.traps.refuses(found)
        if not reason:
            queue.push(one, self._room // len(domain.hosts))
        elif domain.refused < _MAX_REFUSED:
            domain.refused += 1
            queue.exclude(one.url)
            self.refused.append((Candidate(one.url, one.depth, hops=one.hops, via=one.via), reason))

    def _hand_over(self, found: dict[str, QueuedUrl]) -> None:
        """Queues links that were found on other hosts at their own host."""
        for one in sorted(found.values(), key=lambda one: one[1:]):
            target = link(one.url)
            self._enqueue(self._domain_with(target.host), target, one)
        found.clear()

    def _list(self, start: Iterable[Candidate]) -> None:
        """Takes in the fetch list."""
        listed: dict[str, list[tuple[QueuedUrl, Candidate]]] = {}
        ways = [(QueuedUrl(front_of(one.score), one.depth, one.hops, one.url), one) for one in start]
        for one, candidate in sorted(ways, key=lambda way: way[0][1:]):
            target = link(candidate.url)
            reason = self.traps.refuses(target)
            # Seeds and known pages are tried anyway.
            if reason and not candidate.seed and candidate.earlier is None:
                self._domain_with(target.host).hosts[target.host].exclude(target.url)
                self.refused.append((candidate, reason))
            else:
                listed.setdefault(target.host, []).append((one, candidate))
        for host, rows in listed.items():
            self._domain_with(host).hosts[host].list(rows)

    # --- rounds

    def _domain_with(self, host: str) -> Domain:
        """Returns the domain of a host, both of them new on first sight."""
        owner = owner_of(host)
        domain = self._domains.get(owner)
        if domain is None:
            domain = self._domains[owner] = Domain(owner, self._config.max_pages_per_domain)
        if host not in domain.hosts:
            self._meet(owner, host)
            plan = self._plans.of(host)
            domain.hosts[host] = HostQueue(plan.score, plan.cap)
        return domain

    def _meet(self, owner: int, host: str) -> None:
        unmet = self._unseen_hosts.get(owner)
        if unmet is not None:
            unmet.discard(bare(host))
            if not unmet:
                del self._unseen_hosts[owner]

    def _begin(self) -> None:
        """Begins a round of the partition, unless nothing waits or no request is left."""
        self._hand_over(self._found)
        for domain in self._domains.values():
            self._hand_over(domain.found)
            domain.reset()
        active_hosts = [domain for domain in self._domains.values() if domain.active_hosts]
        self._room = _ROOM // max(1, len(active_hosts))
        hosts = ranked((name, domain.hosts[name]) for domain in active_hosts for name in domain.active_hosts)
        self._shares = Shares(map(owner_of, hosts), {one.owner: self._cap(one) for one in active_hosts})
        self._shares.allocate(self._round_of(len(hosts)))
        for domain in active_hosts:
            domain.allocate(self._shares.allocated[domain.owner])
            self._enable(domain.begin())

    def _round_of(self, waiting: int) -> int:
        """Returns the requests of a round that begins with so many URLs.

        Where hosts may be found that are not known yet, half of what is beyond those URLs is kept for them: else the
        first hosts of a crawl would leave them nothing.
        """
        left = self.budget - self.spent
        return left - max(0, left - waiting) // 2 if self._scope.is_open or self._unseen_hosts else left

    def _cap(self, domain: Domain) -> int:
        """Returns the requests that a domain can make use of in a round at most."""
        if self._scope.is_open or domain.owner in self._unseen_hosts:
            return domain.left
        return min(domain.left, sum(queue.left for queue in domain.hosts.values()))

    def _finish(self, domain: Domain, host: str) -> None:
        """Records that a host has finished the round, and begins the domain's next one if it was the last."""
        queue = domain.hosts[host]
        if not (queue.left and domain.left):
            queue.close()
        self._enable(domain.finish(host))
        if domain.is_open:
            return
        self._hand_over(domain.found)
        if domain.active_hosts:
            self._enable(domain.begin())
            return
        for owner in self._shares.finish(domain.owner, domain.used):
            richer = self._domains[owner]
            self._enable(richer.allocate(self._shares.allocated[owner] - richer.allocated))

    def _enable(self, hosts: Iterable[str]) -> None:
        for host in hosts:
            if host not in self._available:
                self._available.add(host)
                self._newly_available.append(host)


def _by_owner(hosts: Iterable[str], partitions: int, number: int) -> dict[int, set[str]]:
    """Returns the hosts that belong to a partition, by the owner of their domain."""
    found: dict[int, set[str]] = {}
    for host in hosts:
        with contextlib.suppress(ValueError):  # an invalid host name never occurs
            if owner_of(host) % partitions == number:
                found.setdefault(owner_of(host), set()).add(host)
    return found
