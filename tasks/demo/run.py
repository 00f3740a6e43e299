"""One run of the demo: starts the services, triggers and monitors the DAGs, prints the report.

The run crawls the loopback site, or seeds from a file. Its progress is a live table on a terminal, and plain lines
elsewhere.
"""

import hashlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.core.terminal import duration
from tasks.demo import stack
from tasks.demo.drive import Airflow, DagChain, DagRunStatus
from tasks.demo.home import Home
from tasks.demo.site import HOSTS, SITE_PORT, address
from tasks.run.recipe import find_recipe

PLAIN_S = 10.0
"""Minimum seconds between two lines about the same DAG run, without a terminal."""

_URL = re.compile(rb"^\s*https?://[^\s/]", re.I | re.M)


@dataclass(frozen=True)
class RunRequest:
    """A run to trigger: a recipe, a version ("" for the recipe's) and overrides by dotted path."""

    recipe: str
    version: str
    overrides: dict[str, Any]

    def conf(self) -> dict[str, Any]:
        """Returns the `conf` of the DAG run, in the format of the trigger form."""
        version = {"version": self.version} if self.version else {}
        return {**version, "overrides": self.overrides}


def run(home: Home, request: RunRequest) -> None:
    """Runs the chain of `request.recipe` through Airflow and prints the report.

    Raises:
        SluiceError: a service does not start, or a task of the chain failed; one line that names the log.
    """
    from tasks.demo.report import RunArtifacts, report  # imports pyarrow, which an invalid seeds file does not need

    recipe = find_recipe(request.recipe)
    stack.up(home)
    with Airflow(home.airflow_url, home.password()) as airflow, Screen() as screen:
        dag_runs = run_chain(DagChain(airflow, recipe.name, recipe.parts), request, screen)
    artifacts = RunArtifacts(Store(home.store), recipe.name, request.version or recipe.version)
    for line in report(artifacts, dag_runs, recipe.parts):
        print(line)
    print(f"\n{stack.addresses(home)}\nStop everything: make down")


def run_chain(chain: DagChain, request: RunRequest, screen: "Screen") -> list[DagRunStatus]:
    """Runs a chain to completion; returns its DAG runs."""
    chain.wait_for_dags()
    chain.start(request.conf())
    for dag_runs in chain.follow():
        screen.show(dag_runs)
    return chain.dag_runs


def run_request(home: Home, recipe: str, version: str, seeds: str, contact: str) -> RunRequest:
    """Returns the run for the options of the command `run`.

    Args:
        home: the stack with the ports of the site.
        recipe: recipe for the loopback site.
        version: version of the artifacts; "": the recipe's.
        seeds: path of a file with one URL per line, or "".
        contact: URL or e-mail address that the crawler sends to the sites it visits.

    Raises:
        InputError: the seeds file is unusable, or the contact is missing.
    """
    if not seeds:
        return RunRequest(recipe, version, _site_seeds(home, recipe))
    path = Path(seeds).absolute()
    content = read_seeds(path)
    if not contact:
        raise InputError(
            "a crawl of the public web requires a contact for the owners of sites",
            "add CONTACT=https://your.page/about-this-crawl",
        )
    # Different seeds are a different corpus with its own version; the same file gives the same version.
    name = hashlib.blake2b(os.fsencode(path) + content, digest_size=4).hexdigest()
    overrides = {"crawl.seed_files": [str(path)], "crawl.contact": contact}
    return RunRequest("web", version or f"seeds-{name}", overrides)


def read_seeds(path: Path) -> bytes:
    """Returns the content of a seeds file; the crawl itself rejects invalid lines.

    Raises:
        InputError: the file cannot be read, or has no http(s) URL.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"the seeds file {path} cannot be read ({error})", "give a text file, one URL per line"
        ) from None
    if not _URL.search(content):
        raise InputError(f"the seeds file {path} has no URL", "write one URL per line")
    return content


def _site_seeds(home: Home, recipe: str) -> dict[str, Any]:
    """Returns the override of the seeds if the recipe crawls and the site's ports differ from the recipe's."""
    if home.ports.site == SITE_PORT or "crawl" not in find_recipe(recipe).parts:
        return {}
    return {"crawl.seeds": [address(host, home.ports.site + index) for index, host in enumerate(HOSTS)]}


class Screen:
    """Displays the progress of one run."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._live = Live(console=self.console, refresh_per_second=4) if self.console.is_terminal else None
        self._printed: dict[str, tuple[str, str]] = {}
        self._printed_at: dict[str, float] = {}

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
        state, note = self._printed.get(dag_run.dag_id, ("waiting", ""))
        fresh = note != dag_run.note and now - self._printed_at.get(dag_run.dag_id, 0.0) > PLAIN_S
        if dag_run.state != state or fresh:
            self._printed[dag_run.dag_id], self._printed_at[dag_run.dag_id] = (dag_run.state, dag_run.note), now
            self.console.print(" ".join(row(dag_run)).rstrip(), markup=False, soft_wrap=True)


def table(dag_runs: list[DagRunStatus]) -> Table:
    """Returns the DAG runs as a table."""
    grid = Table("DAG", "tasks", "state", "time", "", box=None, pad_edge=False, expand=True)
    grid.columns[-1].no_wrap = True
    for dag_run in dag_runs:
        name, tasks, state, elapsed, note = row(dag_run)
        color = {"success": "green", "failed": "red", "running": "cyan"}.get(dag_run.state, "dim")
        grid.add_row(name, tasks, f"[{color}]{state}[/]", elapsed, note.replace("[", r"\["))
    return grid


def row(dag_run: DagRunStatus) -> tuple[str, str, str, str, str]:
    """Returns the cells of a DAG run: DAG, tasks done, state, time, note."""
    state = "unchanged" if dag_run.unchanged else {"success": "done"}.get(dag_run.state, dag_run.state)
    tasks = f"{dag_run.done}/{dag_run.total}" if dag_run.total else ""
    elapsed = duration(dag_run.seconds) if dag_run.seconds else ""
    return dag_run.dag_id, tasks, state, elapsed, dag_run.note
