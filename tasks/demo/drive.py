"""A small client of Airflow's REST API (v2), and a run of the DAG chain crawl, corpus, tokens, canary, pretrain.

Triggers the first DAG and finds the subsequent runs through the asset events, so that other runs of the same DAGs are
not included. One poll of the chain takes about four requests and 30 ms of the API server; logs of running tasks are
read every 3 s. Each client logs in once. Every failed request is a one-line TransientError with Airflow's detail.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from tasks.core.errors import SluiceError, TransientError
from tasks.demo.home import USER
from tasks.run.catalogue import PARTS

Json = dict[str, Any]

_TIMEOUT_S = 30.0
_PAGE = 100
_DATABASE_TRIES = 5

CHAIN = tuple(PARTS)

POLL_S = 1.0
LOGS_S = 3.0
"""Seconds between two reads of the logs of running tasks."""
FOLLOW_S = 60.0
"""Seconds to wait for the DAG files, and for the run of the next DAG."""
OUTAGE_S = 90.0
"""Seconds for which polls are retried while Airflow does not answer."""

_DONE = ("success", "failed", "upstream_failed", "skipped", "removed")


@dataclass
class DagRunStatus:
    """Status of the run of one DAG of the chain."""

    dag_id: str
    run_id: str = ""
    state: str = "waiting"
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    note: str = ""
    unchanged: bool = False
    results: list[Json] = field(default_factory=list)
    """Results of the stages of a finished run: address, skipped, rows, metrics, ..."""


class RunFailed(SluiceError):
    """A task of the chain failed; the cause is the task's error line."""


class Airflow:
    """A client of Airflow's REST API, logged in as `admin`.

    Args:
        url: address of the API server.
        password: password of the user `admin`.
    """

    def __init__(self, url: str, password: str) -> None:
        self.url = url
        self._password = password
        # trust_env=False: requests to loopback must not use a proxy from the environment.
        self._http = httpx.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._http.close()

    def call(self, method: str, path: str, **options: Any) -> Any:
        """Sends one request below /api/v2 and returns the decoded response.

        A request that fails in Airflow's database, which was rolled back, is sent again: in SQLite the scheduler's
        writes can exclude those of the API server.

        Raises:
            TransientError: Airflow cannot be reached or responds with an error.
        """
        if "Authorization" not in self._http.headers:
            response = self._send("POST", "/auth/token", json={"username": USER, "password": self._password})
            self._http.headers["Authorization"] = f"Bearer {response['access_token']}"
        for _ in range(_DATABASE_TRIES - 1):
            try:
                return self._send(method, f"/api/v2{path}", **options)
            except ApiError as error:
                if not error.rolled_back:
                    raise
                time.sleep(POLL_S)
        return self._send(method, f"/api/v2{path}", **options)

    def _send(self, method: str, path: str, **options: Any) -> Any:
        try:
            response = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise TransientError(
                f"Airflow at {self.url} does not respond ({error})", "see `make demo` or its logs"
            ) from None
        if response.is_error:
            raise ApiError(method, path, response)
        return response.json() if response.content else {}

    def pages(self, path: str, key: str, **params: Any) -> list[Json]:
        """Returns all entries of a paginated listing."""
        entries: list[Json] = []
        while True:
            response = self.call("GET", path, params={"limit": _PAGE, "offset": len(entries), **params})
            entries += response[key]
            if not response[key] or len(entries) >= response["total_entries"]:
                return entries

    def dag_ids(self) -> set[str]:
        """Returns the ids of the DAGs that Airflow has parsed without an import error."""
        return {dag["dag_id"] for dag in self.pages("/dags", "dags", exclude_stale=True)}

    def trigger(self, dag_id: str, conf: Json) -> str:
        """Starts a DAG run and returns its id."""
        response = self.call("POST", f"/dags/{quote(dag_id)}/dagRuns", json={"logical_date": None, "conf": conf})
        return str(response["dag_run_id"])

    def run(self, dag_id: str, run_id: str) -> Json:
        """Returns one DAG run: state, start_date, end_date, conf, ..."""
        return dict(self.call("GET", _run(dag_id, run_id)))

    def tasks(self, dag_id: str, run_id: str) -> list[Json]:
        """Returns the task instances of a run; a mapped task has one per index."""
        return self.pages(f"{_run(dag_id, run_id)}/taskInstances", "task_instances")

    def xcom(self, task: Json, key: str = "return_value") -> Any:
        """Returns the XCom of a task instance under `key`, or None."""
        path = f"{_task(task)}/xcomEntries/{key}"
        try:
            return self.call("GET", path, params={"map_index": task["map_index"], "deserialize": True})["value"]
        except ApiError as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise

    def log(self, task: Json) -> list[Json]:
        """Returns the log of a task's last try, one record per line: event, level, timestamp, ..."""
        path = f"{_task(task)}/logs/{task['try_number']}"
        response = self.call("GET", path, params={"map_index": task["map_index"], "full_content": True})
        return [line if isinstance(line, dict) else {"event": str(line)} for line in response["content"]]

    def runs_caused_by(self, dag_id: str, run_id: str) -> list[tuple[str, str]]:
        """Returns (dag id, run id) of the runs triggered by the asset events of one run."""
        events = self.pages("/assets/events", "asset_events", source_dag_id=dag_id, source_run_id=run_id)
        caused = {(run["dag_id"], run["run_id"]) for event in events for run in event["created_dagruns"]}
        return sorted(caused)

    def set_pools(self, path: Path) -> None:
        """Creates or updates the pools in a file of the format of `airflow pools import`."""
        existing = {pool["name"]: pool for pool in self.pages("/pools", "pools")}
        for name, settings in json.loads(path.read_text()).items():
            if name not in existing:
                self.call("POST", "/pools", json={"name": name, **settings})
            elif any(existing[name][field] != value for field, value in settings.items()):
                self.call("PATCH", f"/pools/{quote(name)}", json={"pool": name, **settings})


class DagChain:
    """One run of the DAGs of a recipe, which trigger one another.

    Args:
        airflow: client with a login.
        recipe: name of the recipe of the DAGs.
        dags: the DAGs of the run.
    """

    def __init__(self, airflow: Airflow, recipe: str, dags: Sequence[str] = CHAIN) -> None:
        self.airflow = airflow
        self.dag_runs = [DagRunStatus(f"{recipe}.{dag}") for dag in dags]
        self._waiting_since = time.monotonic()
        self._logs_read = 0.0

    def wait_for_dags(self, limit_s: float = FOLLOW_S) -> None:
        """Waits until Airflow has parsed all DAGs of the chain; raises TransientError on import errors or timeout."""
        expected = {dag_run.dag_id for dag_run in self.dag_runs}
        deadline = time.monotonic() + limit_s
        while missing := expected - self.airflow.dag_ids():
            if errors := self.airflow.pages("/importErrors", "import_errors"):
                last = errors[0]["stack_trace"].strip().splitlines()[-1]
                raise TransientError(f"Airflow cannot read {errors[0]['filename']}: {last}")
            if time.monotonic() > deadline:
                raise TransientError(
                    f"Airflow has no DAG {', '.join(sorted(missing))}", "see the log of the dag-processor"
                )
            time.sleep(POLL_S)

    def start(self, conf: Json) -> None:
        """Triggers the first DAG."""
        self.dag_runs[0].run_id = self.airflow.trigger(self.dag_runs[0].dag_id, conf)
        self.dag_runs[0].state = "queued"

    def follow(self) -> Iterator[list[DagRunStatus]]:
        """Yields the DAG runs about once a second until the last has succeeded.

        Raises:
            RunFailed: a task failed.
            TransientError: Airflow does not answer for more than 90 s, or a finished DAG triggers no other DAG.
        """
        while True:
            self._poll_with_retries()
            yield self.dag_runs
            if self.dag_runs[-1].state == "success":
                return
            time.sleep(POLL_S)

    def _poll(self) -> None:
        for index, dag_run in enumerate(self.dag_runs):
            if dag_run.run_id and dag_run.state != "success":
                self._update(dag_run)
            if dag_run.state == "success" and index + 1 < len(self.dag_runs) and not self.dag_runs[index + 1].run_id:
                self._find_next(dag_run, self.dag_runs[index + 1])

    def _update(self, dag_run: DagRunStatus) -> None:
        run = self.airflow.run(dag_run.dag_id, dag_run.run_id)
        tasks = self.airflow.tasks(dag_run.dag_id, dag_run.run_id)
        dag_run.done, dag_run.total = sum(task["state"] in _DONE for task in tasks), len(tasks)
        dag_run.seconds = _seconds(run)
        if run["state"] == "failed":
            dag_run.state = "failed"
            raise self._failure(dag_run, tasks)
        if run["state"] == "success":
            # XComs are read only once, when the run has finished: a mapped task has many.
            dag_run.results = [result for task in tasks if (result := self._result(task))]
            dag_run.unchanged = bool(dag_run.results) and all(result["skipped"] for result in dag_run.results)
            dag_run.note = ""
            self._waiting_since = time.monotonic()
        elif time.monotonic() - self._logs_read > LOGS_S:
            self._logs_read = time.monotonic()
            dag_run.note = self._progress(tasks) or dag_run.note
        dag_run.state = run["state"]

    def _result(self, task: Json) -> Json | None:
        for key in ("return_value", "result"):
            value = self.airflow.xcom(task, key)
            if isinstance(value, dict) and "skipped" in value:
                return value
        return None

    def _find_next(self, dag_run: DagRunStatus, following: DagRunStatus) -> None:
        for dag_id, run_id in self.airflow.runs_caused_by(dag_run.dag_id, dag_run.run_id):
            if dag_id == following.dag_id:
                following.run_id, following.state = run_id, "queued"
                return
        if time.monotonic() - self._waiting_since > FOLLOW_S:
            raise TransientError(
                f"nothing follows {dag_run.dag_id}", f"is {following.dag_id} paused in the Airflow UI?"
            )

    def _progress(self, tasks: list[Json]) -> str:
        """Returns the newest progress lines of running tasks; these begin with the artifact in brackets."""
        notes = []
        for task in tasks:
            if task["state"] == "running":
                lines = [str(line.get("event", "")) for line in self.airflow.log(task)]
                notes += [line for line in lines if line.startswith("[")][-1:]
        return "; ".join(notes[:2])

    def _failure(self, dag_run: DagRunStatus, tasks: list[Json]) -> RunFailed:
        failed = next((task for task in tasks if task["state"] == "failed"), None)
        if failed is None:
            return RunFailed(
                f"{dag_run.dag_id} failed", f"see {self.airflow.url}/dags/{dag_run.dag_id}/runs/{dag_run.run_id}"
            )
        index = f" [{failed['map_index']}]" if failed["map_index"] >= 0 else ""
        where = f"{self.airflow.url}/dags/{dag_run.dag_id}/runs/{dag_run.run_id}/tasks/{failed['task_id']}"
        cause = cause_in(self.airflow.log(failed))
        return RunFailed(f"{dag_run.dag_id}, task {failed['task_id']}{index}: {cause}", f"see {where}")

    def _poll_with_retries(self) -> None:
        # The supervisor restarts a dead API server within about 15 s; the run continues meanwhile.
        deadline = time.monotonic() + OUTAGE_S
        while True:
            try:
                return self._poll()
            except TransientError as error:
                refused = isinstance(error, ApiError) and error.status < 500
                if refused or not str(error).startswith("Airflow") or time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)


def cause_in(log: list[Json]) -> str:
    """Returns the cause of a failed task from its log: its exception, or else the last error line."""
    errors = [line for line in log if line.get("level") in ("error", "critical")]
    for line in reversed(errors):
        if details := line.get("error_detail"):
            return str(details[0].get("exc_value") or details[0].get("exc_type"))
    return str(errors[-1]["event"]) if errors else "no cause in its log"


class ApiError(TransientError):
    """Airflow rejected a request.

    Attributes:
        status: HTTP status.
        rolled_back: whether the request failed in Airflow's database.
    """

    def __init__(self, method: str, path: str, response: httpx.Response) -> None:
        try:
            detail = response.json()["detail"]
        except (ValueError, KeyError, TypeError):
            detail = response.text[:300]
        fields = detail if isinstance(detail, dict) else {}
        message = str(fields.get("message", detail))[:500]
        super().__init__(f"Airflow answered {response.status_code} to {method} {path}: {message}")
        self.status = response.status_code
        self.rolled_back = fields.get("reason") == "Database error"


def _run(dag_id: str, run_id: str) -> str:
    return f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _task(task: Json) -> str:
    return f"{_run(task['dag_id'], task['dag_run_id'])}/taskInstances/{quote(task['task_id'])}"


def _seconds(run: dict[str, Any]) -> float:
    if not run["start_date"]:
        return 0.0
    end = datetime.fromisoformat(run["end_date"]) if run["end_date"] else datetime.now(UTC)
    return (end - datetime.fromisoformat(run["start_date"])).total_seconds()
