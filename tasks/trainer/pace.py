"""Slow ranks: those that compute a step for longer than the others, which wait for them."""

from collections import deque
from collections.abc import Sequence
from statistics import median

RECENT = 50
"""Steps whose median is judged."""
SLOW, RECOVERED = 1.3, 1.15
"""Times the median of the other ranks that begin an episode, and below which it ends."""
LEAST_S = 0.02
"""Seconds per step that a rank must lose: of less nobody has to know."""


class Pace:
    """Watches the ranks of a run."""

    def __init__(self) -> None:
        self._recent: deque[Sequence[float]] = deque(maxlen=RECENT)
        self._slow: set[int] = set()

    def step(self, seconds: Sequence[float]) -> list[tuple[int, float, float]]:
        """Takes what each rank has computed for in a step; returns the ranks that have become slow.

        Args:
            seconds: of each rank before it exchanged anything with another; [] where that is not known.

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
            if mine > SLOW * others and mine > others + LEAST_S:
                found += [(rank, mine, others)] if rank not in self._slow else []
                self._slow.add(rank)
            elif mine < RECOVERED * others:
                self._slow.discard(rank)
        return found
