"""The hosts of one registered domain, and their shared request budget.

A round of the domain ends when all its hosts have processed their URLs. Links from one of them to another wait for the
next round, so that its start does not depend on which host was faster.
"""

from collections.abc import Iterable

from tasks.stages.crawl.frontier.queues import HostQueue, Shares, Waiting


class Domain:
    """The hosts of one registered domain.

    Args:
        owner: tells it from other domains; `tasks.formats.web.domain.owner_of` its hosts.
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

    def may_ask(self, host: str) -> bool:
        """Returns whether a host has URLs in this round, and a request left for it."""
        queue = self.hosts.get(host)
        if queue is None or not queue or queue.flying or host not in self._open:
            return False
        return queue.used < (self.dealt - self._earlier if self._shares is None else self._shares.dealt[host])

    def _able(self, hosts: Iterable[str]) -> list[str]:
        return [host for host in hosts if self.may_ask(host)]


def ranked(hosts: Iterable[tuple[str, HostQueue]]) -> list[str]:
    """Returns the host of every waiting URL: by front queue, with hosts in turn within a queue."""
    rows = [(one.front, turn, name) for name, queue in hosts for turn, one in enumerate(queue.ranked())]
    rows.sort()
    return [name for _, _, name in rows]
