"""Monitors the workers of a cluster: what joins, leaves, pauses or spills is written to the log."""

import logging
import time
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("sluice.engine")

Workers = Mapping[str, Mapping[str, Any]]
"""Workers by address, as Dask's scheduler describes them."""


class WorkerMonitor:
    """Monitors the workers of one cluster and logs changes.

    Args:
        name: name of the cluster in the log.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost = 0
        self.pauses = 0
        self.spilled = 0
        self.peak = 0
        self._names: dict[str, str] = {}
        self._expected: set[str] = set()
        self._spilling: set[str] = set()
        self._paused: set[str] = set()
        self._empty_since: float | None = None

    def begin(self, workers: Workers) -> None:
        """Logs the workers at the start. Processes on this machine join a little later."""
        if workers:
            log.info("%s: %s", self.name, workers_text(workers))
        self._names = {address: str(worker["name"]) for address, worker in workers.items()}

    def idle(self) -> None:
        """Nothing runs: workers that leave before the next update are not lost; time without them starts anew."""
        self._expected.update(self._names)
        self._empty_since = None

    def expect_removal(self, address: str) -> None:
        """Notes that the cluster retires a worker: it is not lost."""
        self._expected.add(address)

    def update(self, workers: Workers) -> None:
        """Compares the current workers with those of the last update and logs the differences."""
        names = {address: str(worker["name"]) for address, worker in workers.items()}
        if lost := self._names.keys() - names.keys() - self._expected:
            self.lost += len(lost)
            lost_names = ", ".join(sorted(self._names[address] for address in lost))
            log.warning("%s: worker %s is gone; its parts run again elsewhere", self.name, lost_names)
        if names.keys() != self._names.keys():
            log.info("%s: %s", self.name, workers_text(workers))
        self._names = names
        self._expected.clear()
        self._empty_since = None if names else self._empty_since or time.monotonic()
        for address, worker in workers.items():
            self._update_memory(address, worker)

    def seconds_without_workers(self) -> float:
        """Returns the seconds since the update that first found no worker; 0.0 if the last update found some."""
        return time.monotonic() - self._empty_since if self._empty_since is not None else 0.0

    def end(self) -> None:
        """Logs a summary if workers were lost, paused or spilled to disk."""
        if self.lost or self.pauses or self.spilled:
            log.info(
                "%s: at most %s in one worker, %s spilled to disk, %d pauses for memory, %d workers gone",
                self.name,
                memory_text(self.peak),
                memory_text(self.spilled),
                self.pauses,
                self.lost,
            )

    def _update_memory(self, address: str, worker: Mapping[str, Any]) -> None:
        metrics = worker.get("metrics") or {}
        memory = int(metrics.get("memory") or 0)
        disk = int((metrics.get("spilled_bytes") or {}).get("disk") or 0)
        self.peak, self.spilled = max(self.peak, memory), max(self.spilled, disk)
        if worker.get("status") != "paused":
            self._paused.discard(address)
        elif address not in self._paused:
            self._paused.add(address)
            self.pauses += 1
            log.warning(
                "%s: worker %s has paused at %s of %s; give workers more memory or make parts smaller",
                self.name,
                worker["name"],
                memory_text(memory),
                memory_text(int(worker.get("memory_limit") or 0)),
            )
        if not disk:
            self._spilling.discard(address)
        elif address not in self._spilling:
            self._spilling.add(address)
            log.info("%s: worker %s spills to disk (%s so far)", self.name, worker["name"], memory_text(disk))


def workers_text(workers: Workers) -> str:
    """Formats workers as "2 workers, 2 threads, 8.0 GiB of memory (4.0 GiB each)"."""
    if not workers:
        return "no worker"
    limits = [int(worker.get("memory_limit") or 0) for worker in workers.values()]
    threads = sum(int(worker["nthreads"]) for worker in workers.values())
    low, high = min(limits), max(limits)
    each = memory_text(low) if low == high else f"{memory_text(low)} to {memory_text(high)}"
    memory = f"{memory_text(sum(limits))} of memory ({each} each)" if low else "no memory limit"
    return f"{len(workers)} worker{'s' * (len(workers) > 1)}, {threads} thread{'s' * (threads > 1)}, {memory}"


def memory_text(size: int) -> str:
    """Formats a number of bytes.

    >>> memory_text(0), memory_text(3 << 20), memory_text(5 << 29)
    ('0 MiB', '3 MiB', '2.5 GiB')
    """
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:.0f} MiB"
