"""The profiled steps of a run, as its stage sees them: reads new traces, and has their figures for tracker and record.

Reads `profiles/` in the run's folder, where rank 0 writes a trace in so many steps (`profiling`).
"""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from tasks.core.stage import Output
from tasks.trainer.monitoring.step_trace import StepFigures, figures_of, read_trace, traces

log = logging.getLogger("sluice.train")

FAMILY, OPERATION = "profile/", "operation/"
"""Prefixes of metrics: the figures of a step, and of the record the share of an operation."""
MOST_BYTES = 64 * 2**20
"""Size of a compressed trace above which it is neither read nor sent."""


class ProfiledSteps:
    """The profiled steps of a run.

    Args:
        run: its folder.
    """

    def __init__(self, run: Path) -> None:
        self._run, self._seen = run, dict[int, int]()
        self.figures: dict[int, StepFigures] = {}
        """Figures by step, of the traces that were there since the stage began."""

    def new(self) -> Iterator[tuple[int, StepFigures]]:
        """Yields the figures of the traces since the last call; one that cannot be read is a warning."""
        for step, path in traces(self._run).items():
            try:
                stat = path.stat()
                if self._seen.get(step) == stat.st_mtime_ns:  # a run that went back writes another one
                    continue
                self._seen[step] = stat.st_mtime_ns
                if stat.st_size > MOST_BYTES:
                    log.warning("%s has more than %d MiB and is not read", path, MOST_BYTES >> 20)
                    continue
                self.figures[step] = figures_of(read_trace(path))
            except (OSError, ValueError, KeyError) as error:
                log.warning("%s cannot be read: %s", path, error)
                continue
            yield step, self.figures[step]

    def metrics(self) -> dict[str, float]:
        """Returns the means of the figures, "profile/<figure>", and the shares of the newest step's operations."""
        if not self.figures:
            return {}
        shares = [one.shares() for one in self.figures.values()]
        means = {f"{FAMILY}{name}": fmean(share[name] for share in shares) for name in shares[0]}
        newest = self.figures[max(self.figures)].operations
        return means | {f"{OPERATION}{re.sub(r'[^ -.0-:A-Z_a-z]', '', one.name)}": one.share for one in newest}

    def send(self, output: Output) -> None:
        """Sends the traces that the run's folder keeps to the tracker."""
        for path in traces(self._run).values():
            if path.stat().st_size <= MOST_BYTES:
                output.log_file(f"profiles/{path.name}", path.read_bytes)
