"""Detection of slow ranks, which delay all others.

If ranks do not communicate while they compute a gradient, that computation is timed. If they do, all ranks take as long
as the slowest one, so a fixed problem is timed instead.
"""

import time
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from tasks.trainer.logs import SLOW_RANK, Faults
from tasks.trainer.parallel.replica import Replica

RECENT = 50
"""Number of steps whose median is evaluated."""
SLOW, RECOVERED = 1.3, 1.15
"""Ratio to the median of the other ranks above which an episode starts, and below which it ends."""
LEAST_S = {"step": 0.02, "fixed matrix product": 0.0005}
"""Minimum delay of a slow rank in seconds, by what is timed; smaller delays are ignored."""
EVERY = 5
"""Gradients between two timings of the fixed problem."""
PRODUCTS = 8


class SlowRanks:
    """Reports slow ranks as faults of a run.

    Args:
        replica: the model, which times the ranks.
        names: names of all ranks, in rank order.
        faults: of the run.
    """

    def __init__(self, replica: Replica, names: Sequence[str], faults: Faults) -> None:
        self._replica, self._names, self._faults = replica, names, faults
        self._pace = Pace(replica.timed)

    def after_step(self, step: int, line: dict[str, Any]) -> None:
        """Evaluates the durations of all ranks in the step."""
        for rank, mine, others in self._pace.step(self._replica.seconds):
            seconds = f"{mine:.4f} s per {self._replica.timed} in the median, the others {others:.4f} s"
            do = "compare the clock, temperature and load of its device with those of the others"
            self._faults.report(SLOW_RANK, step, f"{self._names[rank]} computes {seconds}", do)


class Pace:
    """Finds slow ranks from their recent durations.

    Args:
        timed: what is timed, a key of LEAST_S.
    """

    def __init__(self, timed: str) -> None:
        self._least = LEAST_S[timed]
        self._recent: deque[Sequence[float]] = deque(maxlen=RECENT)
        self._slow: set[int] = set()

    def step(self, seconds: Sequence[float]) -> list[tuple[int, float, float]]:
        """Adds the durations of a step; returns the ranks that have become slow.

        Args:
            seconds: duration on each rank; [] if it was not timed in this step.

        Returns:
            (rank, its median, the median of the other ranks' medians), in seconds, once per episode.
        """
        if len(seconds) < 2:
            return []
        self._recent.append(seconds)
        if len(self._recent) < RECENT:
            return []
        medians = [median(durations) for durations in zip(*self._recent, strict=True)]
        slow_ranks = []
        for rank, mine in enumerate(medians):
            others = median(medians[:rank] + medians[rank + 1 :])
            if mine > SLOW * others and mine > others + self._least:
                slow_ranks += [(rank, mine, others)] if rank not in self._slow else []
                self._slow.add(rank)
            elif mine < RECOVERED * others:
                self._slow.discard(rank)
        return slow_ranks


class Stopwatch:
    """Times a fixed problem on one rank between steps: a few milliseconds of matrix products.

    A GPU records the times itself, and they are read with the next timing, so that the CPU does not wait for it.

    Args:
        device: the device to time.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        size, dtype = (4096, torch.bfloat16) if self._cuda else (192, torch.float32)
        self._matrix = torch.ones(size, size, dtype=dtype, device=device)
        self._calls = 0
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        """Before and after the problem of the last timing, on a GPU."""

    def seconds(self) -> float:
        """Returns the duration of the problem in seconds; 0.0 for calls between two timings."""
        self._calls += 1
        if self._calls % EVERY:
            return 0.0
        if self._cuda:
            return self._seconds_of_last()
        started = time.perf_counter()
        self._problem()
        return time.perf_counter() - started

    def _seconds_of_last(self) -> float:
        """Queues the problem on a GPU; returns the duration of the one before, 0.0 for the first."""
        last = self._events
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        self._problem()
        after.record()
        self._events = before, after
        return last[0].elapsed_time(last[1]) / 1e3 if last else 0.0

    def _problem(self) -> None:
        for _ in range(PRODUCTS):
            torch.mm(self._matrix, self._matrix)
