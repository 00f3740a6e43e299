"""Order in which a fetch task tries URLs: a function of the fetch list and the responses, independent of time.

The URLs of a host are tried one after another, the best first, and links within the host are queued at once. So each
host proceeds independently, at its own pace:

- Links to another host of the same registered domain are tried when all hosts of the domain have processed their URLs:
  a round of the domain (`queues.Domain`).
- Links to other domains of the partition are tried when all domains have processed theirs: a round of the partition.
- The requests of the partition are divided among its domains, and those of a domain among its hosts
  (`queues.Shares`): first by queued URLs, then in turns. Unneeded requests are reallocated as soon as they are known.

Therefore an interrupted and resumed crawl, or one with more concurrent requests, captures the same pages of an
unchanged site. The price: a slow host delays others where they depend on it, that is pages to which no page of their
own domain links, and requests beyond their share.
"""

import contextlib
from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from tasks.formats.warc.record import PAGE_STATUSES
from tasks.formats.web.domain import Link, link, owner_of
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import bare
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.frontier.queues import Domain, HostPlan, HostQueue, QueuedUrl, Shares, front_of, ranked
from tasks.stages.crawl.frontier.traps import Traps
from tasks.stages.crawl.policy import Policy
from tasks.stages.crawl.storage.fetchlist import Candidate, EarlierCapture
from tasks.stages.crawl.storage.fetchlog import CAPTURED, NOT_MODIFIED, PAGE, SITEMAP, SUCCESS, Outcome

MAX_REDIRECTS = 5
_MEAN_SCORE = 1.0
# Bytes of memory for queued links, divided among the domains; as much again for links to other hosts.
_LINK_MEMORY = 32 << 20
# Links of one domain that are logged as traps, so that later cycles do not treat them as new. Others are not recorded.
_MAX_REFUSED = 20_000
_NO_KEYS: frozenset[bytes] = frozenset()


class UrlOrder:
    """Chooses the URLs of one partition.

    `take` returns the next URL of a host in `available`. The caller then reports its outcome to `note`; until then the
    host is not available.

    Args:
        config: caps of the crawl.
        number: number of the partition.
        budget: maximum number of requests.
        scope: scope of the crawl.
        start: the fetch list.
        plans: scores and caps from the fetch list, by host.
        known: keys of URLs that earlier cycles know; links to them are not tried before they are due.
        policy: caps and pauses that operators have set for single hosts.

    Attributes:
        budget: maximum number of requests.
        spent: requests made.
        traps: trap detection.
        refused: links that are traps, with the reason. The caller logs and clears them, so that later cycles do not
            treat them as new.
    """

    def __init__(
        self,
        config: CrawlConfig,
        number: int,
        budget: int,
        scope: Scope,
        start: Iterable[Candidate],
        plans: Mapping[str, HostPlan] | None = None,
        known: Container[bytes] = _NO_KEYS,
        policy: Policy | None = None,
    ) -> None:
        self._config = config
        self._number = number
        self._scope = scope
        self._policy = policy or Policy()
        self._plans = plans or {}
        self._known = known
        self.traps = Traps(config)
        self.budget = budget
        self.spent = 0
        self.refused: list[tuple[Candidate, str]] = []
        self._domains: dict[int, Domain] = {}
        # Links to other domains, by key, which wait for the next round.
        self._links: dict[bytes, QueuedUrl] = {}
        self._shares: Shares[int] = Shares((), {})
        self._domain_memory = _LINK_MEMORY
        # Hosts for which `take` returns a URL, and those of them that `newly_available` has not returned yet.
        self._available: set[str] = set()
        self._newly_available: list[str] = []
        self._in_flight = 0
        # Hosts that the scope names and that have no queue yet, by the owner of their domain.
        self._unseen_hosts = _by_owner(scope.named_hosts, config.partitions, number)
        self._load(start)
        self._begin_round()

    @property
    def waiting(self) -> tuple[int, int]:
        """Number of URLs that wait, and of hosts with queued URLs."""
        lengths = [len(queue) for domain in self._domains.values() for queue in domain.hosts.values() if queue]
        links = len(self._links) + sum(len(domain.links) for domain in self._domains.values())
        return sum(lengths) + links, len(lengths)

    @property
    def dropped(self) -> int:
        """Number of links dropped because of the memory limit; the next cycle knows them."""
        return sum(queue.dropped for domain in self._domains.values() for queue in domain.hosts.values())

    @property
    def available(self) -> list[str]:
        """Hosts for which `take` returns a URL."""
        return sorted(self._available)

    def newly_available(self) -> list[str]:
        """Returns the hosts that have become available since the last call."""
        hosts, self._newly_available = [host for host in self._newly_available if host in self._available], []
        return hosts

    def peek(self, host: str) -> str:
        """Returns the URL that `take` would return, or ""."""
        return self._domains[owner_of(host)].hosts[host].peek() if host in self._available else ""

    def take(self, host: str) -> Candidate | None:
        """Returns the next URL of a host, or None if the host is not available."""
        if host not in self._available:
            return None
        self._available.discard(host)
        self._in_flight += 1
        queue = self._domains[owner_of(host)].hosts[host]
        queue.in_flight = True
        return queue.pop()

    def note(self, candidate: Candidate, outcome: Outcome) -> None:
        """Records the outcome of a URL that `take` returned: its request, links and capture."""
        host = candidate.link.host
        domain = self._domains[candidate.link.owner]
        queue = domain.hosts[host]
        queue.in_flight = False
        self._in_flight -= 1
        if outcome.requested:
            self.spent += 1
            domain.remaining -= 1
            queue.remaining -= 1
            queue.used += 1
        self._add_links(domain, host, candidate, outcome)
        if not (queue and queue.remaining and domain.remaining):
            self._finish_host(domain, host)
        elif domain.may_request(host):
            self._enable([host])
        if not (self._in_flight or self._available):
            self._begin_round()
        if outcome.status in (SUCCESS, NOT_MODIFIED) and outcome.kind == PAGE and not outcome.render:
            # The new capture of the page, or the earlier one if the page is unchanged.
            unchanged = candidate.earlier if outcome.status == NOT_MODIFIED else None
            at = outcome.fetched_at or datetime.now(UTC)
            self.traps.keep(unchanged or EarlierCapture(outcome.url, at, outcome.record_id, outcome.payload_digest))

    def lower_caps(self) -> None:
        """Applies caps that operators have lowered; URLs beyond them are left for the next cycle."""
        for domain in list(self._domains.values()):
            for host, queue in list(domain.hosts.items()):
                queue.lower(self._policy.max_pages(host, queue.cap))
                if not (queue.remaining or queue.in_flight):
                    self._available.discard(host)
                    queue.close()
                    if domain.is_pending(host):
                        self._finish_host(domain, host)
        if not (self._in_flight or self._available):
            self._begin_round()

    def queues(self) -> Iterator[tuple[str, HostQueue]]:
        """Yields all hosts and their queues."""
        for domain in self._domains.values():
            yield from domain.hosts.items()

    # --- links

    def _add_links(self, domain: Domain, host: str, candidate: Candidate, outcome: Outcome) -> None:
        was_read = not (outcome.render or outcome.unread)
        if was_read and outcome.status in CAPTURED and outcome.http_status in PAGE_STATUSES:
            self.traps.learn(candidate.url, outcome.title, outcome.outlinks)
        if outcome.redirect and candidate.hops < MAX_REDIRECTS:
            self._add_link(domain, host, link(outcome.redirect), candidate.depth, candidate.hops + 1, candidate.url)
        # A URL in a sitemap has the depth of the sitemap.
        depth = candidate.depth + (outcome.kind != SITEMAP)
        if depth <= self._config.max_depth:
            # Sorted, because trap detection depends on the order of links, and a resumed fetch reads them from the log,
            # in any order. Most links of a page are those of the site's menu, which the queue already contains.
            queue = domain.hosts[host]
            for outlink in sorted([outlink for outlink in outcome.outlinks if outlink.key not in queue]):
                self._add_link(domain, host, outlink, depth, 0, candidate.url)

    def _add_link(self, domain: Domain, host: str, target: Link, depth: int, hops: int, via: str) -> None:
        """Queues a link found on `host`: at once within the host, otherwise for a round of the domain or partition."""
        queue = domain.hosts[host]
        if target.key in queue or target.owner % self._config.partitions != self._number:
            return
        if target.key in self._known or not self._scope.covers(target.url, target.host):
            return
        plan = self._plans.get(target.host)
        front = front_of((_MEAN_SCORE if plan is None else plan.score) / (1 + depth))
        queued = QueuedUrl(front, depth, hops, target.url, via)
        if target.host == host:
            self._enqueue(domain, target, queued)
        elif queue.forward(target, self._domain_memory // len(domain.hosts)):
            links = domain.links if domain.owner == target.owner else self._links
            other = links.get(target.key)
            # Of two hosts that link to a page, the shorter path counts, then the smaller URL, whichever came first.
            if other is None or (depth, hops, via) < (other.depth, other.hops, other.via):
                links[target.key] = queued

    def _enqueue(self, domain: Domain, target: Link, queued: QueuedUrl) -> None:
        """Queues a link at its host, unless it is a trap."""
        queue = domain.hosts[target.host]
        if not queue.remaining or target.key in queue:
            return
        reason = self.traps.refuses(target)
        if not reason:
            queue.push(queued, target.key, self._domain_memory // len(domain.hosts))
        elif domain.refused < _MAX_REFUSED:
            domain.refused += 1
            queue.exclude(target.key)
            self.refused.append((Candidate(target, queued.depth, hops=queued.hops, via=queued.via), reason))

    def _enqueue_all(self, links: dict[bytes, QueuedUrl]) -> None:
        """Queues links from other hosts at their hosts, and clears `links`."""
        for queued in sorted(links.values(), key=lambda queued: queued[1:]):
            target = link(queued.url)
            self._enqueue(self._domain_with(target.host), target, queued)
        links.clear()

    def _load(self, start: Iterable[Candidate]) -> None:
        """Queues the fetch list."""
        listed: dict[str, list[tuple[QueuedUrl, Candidate]]] = {}
        rows = [
            (QueuedUrl(front_of(candidate.score), candidate.depth, candidate.hops, candidate.url), candidate)
            for candidate in start
        ]
        for queued, candidate in sorted(rows, key=lambda row: row[0][1:]):
            target = candidate.link
            reason = self.traps.refuses(target)
            # Seeds and known pages are tried regardless.
            if reason and not candidate.seed and candidate.earlier is None:
                self._domain_with(target.host).hosts[target.host].exclude(target.key)
                self.refused.append((candidate, reason))
            else:
                listed.setdefault(target.host, []).append((queued, candidate))
        for host, urls in listed.items():
            self._domain_with(host).hosts[host].load(urls)

    # --- rounds

    def _domain_with(self, host: str) -> Domain:
        """Returns the domain of a host; creates the domain and the queue of the host if needed."""
        owner = owner_of(host)
        domain = self._domains.get(owner)
        if domain is None:
            domain = self._domains[owner] = Domain(owner, self._config.max_pages_per_domain)
        if host not in domain.hosts:
            self._mark_seen(owner, host)
            plan = self._plan_of(host)
            domain.hosts[host] = HostQueue(plan.score, plan.cap)
        return domain

    def _plan_of(self, host: str) -> HostPlan:
        """Returns the plan of a host; one that is found during the fetch gets the mean score."""
        if host in self._plans:
            return self._plans[host]
        cap = self._policy.max_pages(host, self._config.max_pages_per_host)
        delay_s = self._policy.delay_s(host, self._config.delay_s)
        return HostPlan(_MEAN_SCORE, min(cap, max(1, int(self._config.time_box_s / delay_s))) if delay_s > 0 else cap)

    def _mark_seen(self, owner: int, host: str) -> None:
        unseen = self._unseen_hosts.get(owner)
        if unseen is not None:
            unseen.discard(bare(host))
            if not unseen:
                del self._unseen_hosts[owner]

    def _begin_round(self) -> None:
        """Begins a round of the partition; without effect if no URLs are queued or no requests remain."""
        self._enqueue_all(self._links)
        for domain in self._domains.values():
            self._enqueue_all(domain.links)
            domain.reset()
        active = [domain for domain in self._domains.values() if domain.active_hosts]
        self._domain_memory = _LINK_MEMORY // max(1, len(active))
        hosts = ranked((name, domain.hosts[name]) for domain in active for name in domain.active_hosts)
        self._shares = Shares(map(owner_of, hosts), {domain.owner: self._cap(domain) for domain in active})
        self._shares.allocate(self._round_budget(len(hosts)))
        for domain in active:
            domain.allocate(self._shares.allocated[domain.owner])
            self._enable(domain.begin())

    def _round_budget(self, urls: int) -> int:
        """Returns the number of requests of a round that begins with this number of queued URLs.

        If new hosts may be found, half of the requests beyond those URLs are reserved for them. Otherwise the first
        hosts of a crawl would use up all requests.
        """
        remaining = self.budget - self.spent
        may_grow = self._scope.is_open or self._unseen_hosts
        return remaining - max(0, remaining - urls) // 2 if may_grow else remaining

    def _cap(self, domain: Domain) -> int:
        """Returns the maximum number of requests that a domain can use in a round."""
        if self._scope.is_open or domain.owner in self._unseen_hosts:
            return domain.remaining
        return min(domain.remaining, sum(queue.remaining for queue in domain.hosts.values()))

    def _finish_host(self, domain: Domain, host: str) -> None:
        """Records that a host has finished the round; after the last host, begins the next round of the domain."""
        queue = domain.hosts[host]
        if not (queue.remaining and domain.remaining):
            queue.close()
        self._enable(domain.finish(host))
        if domain.is_open:
            return
        self._enqueue_all(domain.links)
        if domain.active_hosts:
            self._enable(domain.begin())
            return
        for owner in self._shares.finish(domain.owner, domain.used):
            recipient = self._domains[owner]
            self._enable(recipient.allocate(self._shares.allocated[owner] - recipient.allocated))

    def _enable(self, hosts: Iterable[str]) -> None:
        for host in hosts:
            if host not in self._available:
                self._available.add(host)
                self._newly_available.append(host)


def _by_owner(hosts: Iterable[str], partitions: int, number: int) -> dict[int, set[str]]:
    """Returns the hosts that belong to a partition, by the owner of their domain."""
    by_owner: dict[int, set[str]] = {}
    for host in hosts:
        with contextlib.suppress(ValueError):  # no URL has an invalid host name
            if owner_of(host) % partitions == number:
                by_owner.setdefault(owner_of(host), set()).add(host)
    return by_owner
