"""Display of a run while it is in progress: a live table on a terminal, plain lines elsewhere.

Reads the DAG runs of a chain; writes to standard output.
"""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tasks.core.terminal import duration
from tasks.demo.drive import DagRunStatus

PLAIN_S = 10.0
"""Without a terminal: seconds between two lines about the same DAG run."""


class Screen:
    """Display of the progress of one run."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._live = Live(console=self.console, refresh_per_second=4) if self.console.is_terminal else None
        self._shown: dict[str, tuple[str, str]] = {}
        self._shown_at: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def show(self, dag_runs: list[DagRunStatus]) -> None:
        """Shows the current state of the DAG runs."""
        if self._live:
            self._live.update(table(dag_runs))
            return
        for dag_run in dag_runs:
            self._line(dag_run)

    def _line(self, dag_run: DagRunStatus) -> None:
        now = time.monotonic()
        state, note = self._shown.get(dag_run.dag_id, ("waiting", ""))
        fresh = note != dag_run.note and now - self._shown_at.get(dag_run.dag_id, 0.0) > PLAIN_S
        if dag_run.state != state or fresh:
            self._shown[dag_run.dag_id], self._shown_at[dag_run.dag_id] = (dag_run.state, dag_run.note), now
            self.console.print(" ".join(row(dag_run)).rstrip(), markup=False, soft_wrap=True)


def table(dag_runs: list[DagRunStatus]) -> Table:
    """Returns the DAG runs as a table."""
    grid = Table("DAG", "tasks", "state", "time", "", box=None, pad_edge=False, expand=True)
    grid.columns[-1].no_wrap = True
    for dag_run in dag_runs:
        name, tasks, state, elapsed, note = row(dag_run)
        colour = {"success": "green", "failed": "red", "running": "cyan"}.get(dag_run.state, "dim")
        grid.add_row(name, tasks, f"[{colour}]{state}[/]", elapsed, note.replace("[", r"\["))
    return grid


def row(dag_run: DagRunStatus) -> tuple[str, str, str, str, str]:
    """Returns the cells of a DAG run: DAG, tasks done, state, time, note."""
    state = "unchanged" if dag_run.unchanged else {"success": "done"}.get(dag_run.state, dag_run.state)
    tasks = f"{dag_run.done}/{dag_run.total}" if dag_run.total else ""
    elapsed = duration(dag_run.seconds) if dag_run.seconds else ""
    return dag_run.dag_id, tasks, state, elapsed, dag_run.note
