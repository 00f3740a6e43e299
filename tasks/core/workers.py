"""Log of the workers of a cluster: number, memory, and which of them spill, pause or are lost.

Writes to the log only, never to artifacts: it differs from run to run.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("sluice.engine")

Workers = Mapping[str, Mapping[str, Any]]


class Watch:
    """Monitor of the workers of one cluster; logs changes.

    Args:
        name: the cluster, as named in the log.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost = 0
        self.pauses = 0
        self.spilled = 0
        self.peak = 0
        self._known: dict[str, str] = {}
        self._spilling: set[str] = set()
        self._paused: set[str] = set()
        self._empty_since: float | None = None

    def begin(self, workers: Workers) -> None:
        """Logs the workers at the start; processes of this machine join a little later."""
        if workers:
            log.info("%s: %s", self.name, workers_text(workers))
        self._known = {address: str(one["name"]) for address, one in workers.items()}

    def update(self, workers: Workers) -> None:
        """Compares the current list of workers with the last one and logs the differences."""
        now = {address: str(one["name"]) for address, one in workers.items()}
        if gone := self._known.keys() - now.keys():
            self.lost += len(gone)
            names = ", ".join(sorted(self._known[address] for address in gone))
            log.warning("%s: worker %s is gone; its parts run again elsewhere", self.name, names)
        if now.keys() != self._known.keys():
            log.info("%s: %s", self.name, workers_text(workers))
        self._known = now
        self._empty_since = None if now else self._empty_since or time.monotonic()
        for address, one in workers.items():
            self._update_memory(address, one)

    def seconds_without_workers(self) -> float:
        """Returns for how many seconds the cluster has had no worker at all."""
        return time.monotonic() - self._empty_since if self._empty_since is not None else 0.0

    def end(self) -> None:
        """Logs a summary where workers were lost, paused or spilled."""
        if self.lost or self.pauses or self.spilled:
            log.info(
                "%s: at most %s in one worker, %s spilled to disk, %d pauses for memory, %d workers gone",
                *(self.name, memory_text(self.peak), memory_text(self.spilled), self.pauses, self.lost),
            )

    def _update_memory(self, address: str, one: Mapping[str, Any]) -> None:
        metrics = one.get("metrics") or {}
        memory = int(metrics.get("memory") or 0)
        disk = int((metrics.get("spilled_bytes") or {}).get("disk") or 0)
        self.peak, self.spilled = max(self.peak, memory), max(self.spilled, disk)
        if one.get("status") != "paused":
            self._paused.discard(address)
        elif address not in self._paused:
            self._paused.add(address)
            self.pauses += 1
            log.warning(
                "%s: worker %s has paused at %s of %s; give workers more memory or make parts smaller",
                *(self.name, one["name"], memory_text(memory), memory_text(int(one.get("memory_limit") or 0))),
            )
        if not disk:
            self._spilling.discard(address)
        elif address not in self._spilling:
            self._spilling.add(address)
            log.info("%s: worker %s spills to disk (%s so far)", self.name, one["name"], memory_text(disk))


def workers_text(workers: Workers) -> str:
    """Returns "2 workers, 2 threads, 8.0 GiB (each 4.0 GiB; ...)"."""
    if not workers:
        return "no worker"
    limits = [int(worker.get("memory_limit") or 0) for worker in workers.values()]
    threads = sum(int(worker["nthreads"]) for worker in workers.values())
    low, high = min(limits), max(limits)
    each = memory_text(low) if low == high else f"{memory_text(low)} to {memory_text(high)}"
    kept = f"{memory_text(sum(limits))} of memory ({each} each)" if low else "no limit of memory"
    return f"{len(workers)} worker{'s' * (len(workers) > 1)}, {threads} thread{'s' * (threads > 1)}, {kept}"


def memory_text(count: int) -> str:
    """Returns bytes as a person reads them.

    >>> memory_text(0), memory_text(3 << 20), memory_text(5 << 29)
    ('0 MiB', '3 MiB', '2.5 GiB')
    """
    return f"{count / 2**30:.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:.0f} MiB"
