"""Follows one run through its chain of DAGs: crawl, corpus, tokens, canary, pretrain.

Triggers the first one through the REST API and reads from the asset events which runs follow from it, so other runs of
the same DAGs are never mixed in. One look at the chain is about four requests and 30 ms of the API server; logs of
running tasks are read every 3 s.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from tasks.core.errors import SluiceError, TransientError
from tasks.demo.airflow_api import Airflow, ApiError, Json
from tasks.run.catalogue import PARTS

CHAIN = tuple(PARTS)

LOOK_S = 1.0
LOGS_S = 3.0
FOLLOW_S = 60.0
PATIENCE_S = 90.0

_DONE = ("success", "failed", "upstream_failed", "skipped", "removed")
T = TypeVar("T")


@dataclass
class DagRunStatus:
    """One DAG of the chain in this run."""

    dag_id: str
    run_id: str = ""
    state: str = "waiting"
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    note: str = ""
    unchanged: bool = False
    results: list[Json] = field(default_factory=list)
    """What the stages of a finished leg returned: address, skipped, rows, metrics, ..."""


class RunFailed(SluiceError):
    """A task of the chain failed; the cause is the task's own one line."""


class Chain:
    """One run of the chain.

    Args:
        airflow: logged-in client.
        recipe: whose DAGs.
        last: the DAG after which the run is complete.
        dags: the DAGs that the recipe has.
    """

    def __init__(self, airflow: Airflow, recipe: str, last: str = "", dags: Sequence[str] = CHAIN) -> None:
        self.airflow = airflow
        self.legs = [DagRunStatus(f"{recipe}.{dag}") for dag in dags[: dags.index(last or dags[-1]) + 1]]
        self._waiting_since = time.monotonic()
        self._logs_read = 0.0

    def wait_for_dags(self, limit_s: float = FOLLOW_S) -> None:
        """Waits until Airflow has read all DAGs of the chain; raises TransientError with what keeps it from that."""
        wanted = {leg.dag_id for leg in self.legs}
        deadline = time.monotonic() + limit_s
        while missing := wanted - self.airflow.dag_ids():
            if errors := self.airflow.import_errors():
                last = errors[0]["stack_trace"].strip().splitlines()[-1]
                raise TransientError(f"Airflow cannot read {errors[0]['filename']}: {last}")
            if time.monotonic() > deadline:
                raise TransientError(
                    f"Airflow has no DAG {', '.join(sorted(missing))}", "see the log of the dag-processor"
                )
            time.sleep(LOOK_S)

    def start(self, conf: Json) -> None:
        """Triggers the first DAG."""
        self.legs[0].run_id = self.airflow.trigger(self.legs[0].dag_id, conf)
        self.legs[0].state = "queued"

    def follow(self) -> Iterator[list[DagRunStatus]]:
        """Yields the legs about once a second until the last has succeeded.

        Raises:
            RunFailed: a task failed.
            TransientError: Airflow is away for more than 90 s, or nothing follows a finished DAG.
        """
        while True:
            self._patiently(self._look)
            yield self.legs
            if self.legs[-1].state == "success":
                return
            time.sleep(LOOK_S)

    def _look(self) -> None:
        for at, leg in enumerate(self.legs):
            if leg.run_id and leg.state != "success":
                self._update(leg)
            if leg.state == "success" and at + 1 < len(self.legs) and not self.legs[at + 1].run_id:
                self._hand_over(leg, self.legs[at + 1])

    def _update(self, leg: DagRunStatus) -> None:
        run = self.airflow.run(leg.dag_id, leg.run_id)
        tasks = self.airflow.tasks(leg.dag_id, leg.run_id)
        leg.done, leg.total = sum(task["state"] in _DONE for task in tasks), len(tasks)
        leg.seconds = _seconds(run)
        if run["state"] == "failed":
            leg.state = "failed"
            raise self._failure(leg, tasks)
        if run["state"] == "success":
            # A mapped task's XComs are read once, here; they say whether there was anything to do.
            leg.results = [result for task in tasks if (result := self._result(task))]
            leg.unchanged = bool(leg.results) and all(result["skipped"] for result in leg.results)
            leg.note = ""
            self._waiting_since = time.monotonic()
        elif time.monotonic() - self._logs_read > LOGS_S:
            self._logs_read = time.monotonic()
            leg.note = self._progress(tasks) or leg.note
        leg.state = run["state"]

    def _result(self, task: Json) -> Json | None:
        for key in ("return_value", "result"):
            value = self.airflow.xcom(task, key)
            if isinstance(value, dict) and "skipped" in value:
                return value
        return None

    def _hand_over(self, leg: DagRunStatus, following: DagRunStatus) -> None:
        for dag_id, run_id in self.airflow.runs_caused_by(leg.dag_id, leg.run_id):
            if dag_id == following.dag_id:
                following.run_id, following.state = run_id, "queued"
                return
        if time.monotonic() - self._waiting_since > FOLLOW_S:
            raise TransientError(f"nothing follows {leg.dag_id}", f"is {following.dag_id} paused in the Airflow UI?")

    def _progress(self, tasks: list[Json]) -> str:
        """Returns the newest progress line of the tasks that run now; it begins with the artifact in brackets."""
        notes = []
        for task in tasks:
            if task["state"] == "running":
                lines = [str(line.get("event", "")) for line in self.airflow.log(task)]
                notes += [line for line in lines if line.startswith("[")][-1:]
        return "; ".join(notes[:2])

    def _failure(self, leg: DagRunStatus, tasks: list[Json]) -> RunFailed:
        failed = next((task for task in tasks if task["state"] == "failed"), None)
        if failed is None:
            return RunFailed(f"{leg.dag_id} failed", f"see {self.airflow.url}/dags/{leg.dag_id}/runs/{leg.run_id}")
        index = f" [{failed['map_index']}]" if failed["map_index"] >= 0 else ""
        where = f"{self.airflow.url}/dags/{leg.dag_id}/runs/{leg.run_id}/tasks/{failed['task_id']}"
        cause = cause_in(self.airflow.log(failed))
        return RunFailed(f"{leg.dag_id}, task {failed['task_id']}{index}: {cause}", f"see {where}")

    def _patiently(self, look: Callable[[], T]) -> T:
        # The API server is started again when it dies, which takes some 15 s; the run goes on meanwhile.
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return look()
            except TransientError as error:
                refused = isinstance(error, ApiError) and error.status < 500
                if refused or not str(error).startswith("Airflow") or time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_S)


def cause_in(log: list[Json]) -> str:
    """Returns why a task failed, from its log: the exception that ended it, else the last error line."""
    errors = [line for line in log if line.get("level") in ("error", "critical")]
    for line in reversed(errors):
        if details := line.get("error_detail"):
            return str(details[0].get("exc_value") or details[0].get("exc_type"))
    return str(errors[-1]["event"]) if errors else "no cause in its log"


def _seconds(run: dict[str, Any]) -> float:
    if not run["start_date"]:
        return 0.0
    end = datetime.fromisoformat(run["end_date"]) if run["end_date"] else datetime.now(UTC)
    return (end - datetime.fromisoformat(run["start_date"])).total_seconds()
