"""Slow ranks: those that compute for longer than the others, which wait for them.

Where ranks exchange nothing while they compute a gradient, that is what is timed. Where they do, all take as long as
the slowest, and a fixed problem is timed in its place.
"""

import time
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any, Protocol

import torch

from tasks.trainer.hooks import Hook
from tasks.trainer.logs import SLOW_RANK, Faults

RECENT = 50
"""Steps whose median is judged."""
SLOW, RECOVERED = 1.3, 1.15
"""Times the median of the other ranks that begin an episode, and below which it ends."""
LEAST_S = {"step": 0.02, "fixed matrix product": 0.0005}
"""Seconds that a rank must lose, by what is timed: of less nobody has to know."""
EVERY = 5
"""Gradients from one timing of the fixed problem to the next."""
PRODUCTS = 8


class Timed(Protocol):
    """A model whose ranks are timed."""

    timed: str
    """What is timed, a key of LEAST_S."""
    seconds: list[float]
    """Of each rank, for what is timed; [] where the last gradient has not timed it."""


class SlowRanks(Hook):
    """Names the ranks that have become slow among the faults of a run.

    Args:
        replica: has timed the ranks.
        names: of all ranks, in their order.
        faults: of the run.
    """

    def __init__(self, replica: Timed, names: Sequence[str], faults: Faults) -> None:
        self._replica, self._names, self._faults = replica, names, faults
        self._pace = Pace(replica.timed)

    def after_step(self, step: int, line: dict[str, Any]) -> None:
        """Reads what each rank has computed for in the step."""
        for rank, mine, others in self._pace.step(self._replica.seconds):
            seconds = f"{mine:.4f} s per {self._replica.timed} in the median, the others {others:.4f} s"
            do = "compare the clock, temperature and load of its device with those of the others"
            self._faults.report(SLOW_RANK, step, f"{self._names[rank]} computes {seconds}", do)


class Pace:
    """Watches the ranks of a run.

    Args:
        timed: what is timed, a key of LEAST_S.
    """

    def __init__(self, timed: str) -> None:
        self._least = LEAST_S[timed]
        self._recent: deque[Sequence[float]] = deque(maxlen=RECENT)
        self._slow: set[int] = set()

    def step(self, seconds: Sequence[float]) -> list[tuple[int, float, float]]:
        """Takes what each rank has computed for in a step; returns the ranks that have become slow.

        Args:
            seconds: of each rank, for what is timed; [] where this step has not timed it.

        Returns:
            (rank, its median, the median of the other ranks' medians), in seconds, once per episode.
        """
        if len(seconds) < 2:
            return []
        self._recent.append(seconds)
        if len(self._recent) < RECENT:
            return []
        medians = [median(several) for several in zip(*self._recent, strict=True)]
        found = []
        for rank, mine in enumerate(medians):
            others = median(medians[:rank] + medians[rank + 1 :])
            if mine > SLOW * others and mine > others + self._least:
                found += [(rank, mine, others)] if rank not in self._slow else []
                self._slow.add(rank)
            elif mine < RECOVERED * others:
                self._slow.discard(rank)
        return found


class Stopwatch:
    """Times a fixed problem on one rank: some milliseconds of matrix products, between two steps.

    Args:
        device: what is timed.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        size, dtype = (4096, torch.bfloat16) if self._cuda else (192, torch.float32)
        self._matrix = torch.ones(size, size, dtype=dtype, device=device)
        self._calls = 0

    def seconds(self) -> float:
        """Returns how long the problem takes; 0.0 for the calls between two timings."""
        self._calls += 1
        if self._calls % EVERY:
            return 0.0
        self._wait()
        begun = time.perf_counter()
        for _ in range(PRODUCTS):
            torch.mm(self._matrix, self._matrix)
        self._wait()
        return time.perf_counter() - begun

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()
