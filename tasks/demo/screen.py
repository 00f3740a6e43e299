"""Shows a run while it goes on: a live table on a terminal, plain lines elsewhere.

Reads the legs of a chain; writes to standard output.
"""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tasks.core.progress import duration
from tasks.demo.drive import DagRunStatus

PLAIN_S = 10.0
"""Without a terminal: seconds between two lines about the same leg."""


class Screen:
    """Where the progress of one run is shown."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._live = Live(console=self.console, refresh_per_second=4) if self.console.is_terminal else None
        self._said: dict[str, tuple[str, str]] = {}
        self._when: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def show(self, legs: list[DagRunStatus]) -> None:
        """Shows the legs as they are now."""
        if self._live:
            self._live.update(table(legs))
            return
        for leg in legs:
            self._line(leg)

    def _line(self, leg: DagRunStatus) -> None:
        now = time.monotonic()
        state, note = self._said.get(leg.dag_id, ("waiting", ""))
        fresh = note != leg.note and now - self._when.get(leg.dag_id, 0.0) > PLAIN_S
        if leg.state != state or fresh:
            self._said[leg.dag_id], self._when[leg.dag_id] = (leg.state, leg.note), now
            self.console.print(" ".join(row(leg)).rstrip(), markup=False, soft_wrap=True)


def table(legs: list[DagRunStatus]) -> Table:
    """Returns the legs as a table."""
    grid = Table("DAG", "tasks", "state", "time", "", box=None, pad_edge=False, expand=True)
    grid.columns[-1].no_wrap = True
    for leg in legs:
        name, tasks, state, elapsed, note = row(leg)
        colour = {"success": "green", "failed": "red", "running": "cyan"}.get(leg.state, "dim")
        grid.add_row(name, tasks, f"[{colour}]{state}[/]", elapsed, note.replace("[", r"\["))
    return grid


def row(leg: DagRunStatus) -> tuple[str, str, str, str, str]:
    """Returns a leg in words: DAG, tasks done, state, time, note."""
    state = "unchanged" if leg.unchanged else {"success": "done"}.get(leg.state, leg.state)
    tasks = f"{leg.done}/{leg.total}" if leg.total else ""
    elapsed = duration(leg.seconds) if leg.seconds else ""
    return leg.dag_id, tasks, state, elapsed, leg.note
