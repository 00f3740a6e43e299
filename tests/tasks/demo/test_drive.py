"""The output of the demo during a run, and after a failure."""

import io

from rich.console import Console

from tasks.demo.drive import DagRunStatus, cause_in
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
