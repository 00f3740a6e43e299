"""A small client of Airflow's REST API (v2).

Sends HTTP requests to the API server of the stack; the token lasts for one client. Every failure is a TransientError in
one line, with Airflow's own detail.
"""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from tasks.core.errors import TransientError
from tasks.demo.home import USER

Json = dict[str, Any]

_TIMEOUT_S = 30.0
_PAGE = 100


class Airflow:
    """A client with a login.

    Args:
        url: address of the API server.
        password: password of the user `admin`.
    """

    def __init__(self, url: str, password: str) -> None:
        self.url = url
        self._password = password
        # trust_env: loopback must not be reached through a proxy of the environment.
        self._http = httpx.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._http.close()

    def call(self, method: str, path: str, **options: Any) -> Any:
        """Sends one request below /api/v2 and returns the decoded response.

        Raises:
            TransientError: Airflow cannot be reached or responds with an error.
        """
        if "Authorization" not in self._http.headers:
            response = self._send("POST", "/auth/token", json={"username": USER, "password": self._password})
            self._http.headers["Authorization"] = f"Bearer {response['access_token']}"
        return self._send(method, f"/api/v2{path}", **options)

    def _send(self, method: str, path: str, **options: Any) -> Any:
        try:
            response = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise TransientError(
                f"Airflow at {self.url} does not respond ({error})", "see `make demo` or its logs"
            ) from None
        if response.is_error:
            raise ApiError(method, path, response.status_code, _detail(response))
        return response.json() if response.content else {}

    def pages(self, path: str, key: str, **params: Any) -> list[Json]:
        """Returns all entries of a listing, page by page."""
        entries: list[Json] = []
        while True:
            response = self.call("GET", path, params={"limit": _PAGE, "offset": len(entries), **params})
            entries += response[key]
            if not response[key] or len(entries) >= response["total_entries"]:
                return entries

    def dag_ids(self) -> set[str]:
        """Returns the DAGs that Airflow has read and that have no import error."""
        return {dag["dag_id"] for dag in self.pages("/dags", "dags", exclude_stale=True)}

    def import_errors(self) -> list[Json]:
        """Returns the import errors of DAG files."""
        return self.pages("/importErrors", "import_errors")

    def trigger(self, dag_id: str, conf: Json) -> str:
        """Starts a DAG run and returns its id."""
        response = self.call("POST", f"/dags/{quote(dag_id)}/dagRuns", json={"logical_date": None, "conf": conf})
        return str(response["dag_run_id"])

    def run(self, dag_id: str, run_id: str) -> Json:
        """Returns one DAG run: state, start_date, end_date, conf, ..."""
        return dict(self.call("GET", _run(dag_id, run_id)))

    def tasks(self, dag_id: str, run_id: str) -> list[Json]:
        """Returns the task instances of a run; a mapped task has one for each index."""
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
        """Returns (dag id, run id) of the runs that the asset events of one run have started."""
        events = self.pages("/assets/events", "asset_events", source_dag_id=dag_id, source_run_id=run_id)
        caused = {(run["dag_id"], run["run_id"]) for event in events for run in event["created_dagruns"]}
        return sorted(caused)

    def set_pools(self, path: Path) -> None:
        """Creates or changes the pools listed in a file in the format of `airflow pools import`."""
        existing = {pool["name"]: pool for pool in self.pages("/pools", "pools")}
        for name, settings in json.loads(path.read_text()).items():
            if name not in existing:
                self.call("POST", "/pools", json={"name": name, **settings})
            elif any(existing[name][field] != value for field, value in settings.items()):
                self.call("PATCH", f"/pools/{quote(name)}", json={"pool": name, **settings})


class ApiError(TransientError):
    """Airflow rejected a request; `status` is the HTTP status."""

    def __init__(self, method: str, path: str, status: int, detail: str) -> None:
        super().__init__(f"Airflow answered {status} to {method} {path}: {detail}")
        self.status = status


def _run(dag_id: str, run_id: str) -> str:
    return f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _task(task: Json) -> str:
    return f"{_run(task['dag_id'], task['dag_run_id'])}/taskInstances/{quote(task['task_id'])}"


def _detail(response: httpx.Response) -> str:
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return response.text[:300]
    return str(detail.get("message", detail) if isinstance(detail, dict) else detail)[:500]
