"""The output of the demo during a run, and after a failure."""

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from rich.console import Console

from tasks.demo import drive
from tasks.demo.drive import Airflow, ApiError, DagRunStatus, cause_in
from tasks.demo.run import Screen, row

LOG = [
    {"event": "::group::Pre Execute", "level": "info"},
    {"event": "something was slow", "level": "error", "error_detail": []},
    {
        "event": "Task failed with exception",
        "level": "error",
        "error_detail": [
            {"exc_type": "AirflowFailException", "exc_value": "smoke.toml: unknown key crawl.pages. Remove it."},
            {"exc_type": "RecipeError", "exc_value": "the one it came from"},
        ],
    },
    {"event": "Task instance in failure state", "level": "info"},
]


def test_the_cause_is_the_exception_that_ended_the_task() -> None:
    assert cause_in(LOG) == "smoke.toml: unknown key crawl.pages. Remove it."


def test_without_an_exception_the_last_error_line_is_the_cause() -> None:
    assert cause_in(LOG[:2]) == "something was slow"
    assert cause_in(LOG[:1]) == "no cause in its log"


def test_a_dag_whose_stages_all_skipped_is_shown_as_unchanged() -> None:
    dag_run = DagRunStatus("demo.crawl", "r", "success", done=5, total=5, seconds=66.2, unchanged=True)
    assert row(dag_run) == ("demo.crawl", "5/5", "unchanged", "1 min 6 s", "")


def test_without_a_terminal_each_change_of_state_is_printed_once() -> None:
    out = io.StringIO()
    dag_runs = [DagRunStatus("demo.crawl", "r", "queued"), DagRunStatus("demo.corpus")]
    with Screen(Console(file=out, width=80)) as screen:
        screen.show(dag_runs)
        screen.show(dag_runs)
        dag_runs[0].state, dag_runs[0].done, dag_runs[0].total = "running", 0, 5
        dag_runs[0].note = "[p0 dev] " + "x" * 200
        screen.show(dag_runs)
        dag_runs[0].note = "[p0 dev] later, but within ten seconds"
        screen.show(dag_runs)
        dag_runs[0].state, dag_runs[0].done, dag_runs[0].note = "success", 5, ""
        screen.show(dag_runs)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert [line.split("[")[0].strip() for line in lines] == [
        "demo.crawl  queued",
        "demo.crawl 0/5 running",
        "demo.crawl 5/5 done",
    ]
    assert lines[1].endswith("x" * 200)


@contextmanager
def answering(*answers: tuple[int, object]) -> Iterator[tuple[Airflow, list[str]]]:
    """Yields a client of a server that gives these answers, and the requests that it has received."""
    received: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            login = self.path == "/auth/token"
            status, body = (201, {"access_token": "t"}) if login else answers[len(received)]
            received.extend([] if login else [f"{self.command} {self.path}"])
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        do_PATCH = do_POST

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Airflow(f"http://127.0.0.1:{server.server_port}", "secret") as client:
            yield client, received
        server.shutdown()


LOCKED = (500, {"detail": {"reason": "Database error", "message": "look for ID x"}})


def test_a_request_that_was_rolled_back_in_airflows_database_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "POLL_S", 0.01)
    with answering(LOCKED, LOCKED, (200, {"state": "failed"})) as (client, received):
        assert client.call("PATCH", "/dags/d/dagRuns/r", json={"state": "failed"}) == {"state": "failed"}
    assert received == ["PATCH /api/v2/dags/d/dagRuns/r"] * 3


@pytest.mark.parametrize(("answer", "sent"), [(LOCKED, 5), ((500, {"detail": "another"}), 1), ((409, {}), 1)])
def test_other_errors_and_lasting_ones_are_raised(
    answer: tuple[int, object], sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive, "POLL_S", 0.01)
    with answering(*[answer] * 9) as (client, received), pytest.raises(ApiError) as raised:
        client.call("POST", "/pools", json={})
    assert (len(received), raised.value.status) == (sent, answer[0])
