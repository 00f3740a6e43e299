"""Months by the real scheduler: what a changing web should give, a month that ends early, a step that is cleared.

A month is about thirty tasks, each in a process of its own, one after the other. `make test` has one month of files;
`make soak` three of them, and a year of the simulated web (months of it without Airflow: `tests/tasks/run/monthly`).
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tasks.demo.drive import DagChain
from tasks.run.monthly.cycle import run_month
from tasks.run.monthly.report import month_report
from tasks.run.monthly.tables import read_month
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store
from tests.tasks.run.monthly.simulated import PAIR, Calendar, Living, SimulatedWeb, recipe_text

LIMIT_S = 900
"""For one month."""
FIRST, SECOND, THIRD = MONTHS = ("2026-10", "2026-11", "2026-12")


def write(month: str, files: int) -> None:
    """Adds files to the folder that the recipe reads."""
    folder = Path(os.environ["SLUICE_RECIPES"]) / "texts"
    folder.mkdir(exist_ok=True)
    for number in range(files):
        words = " ".join(f"w{month[-2:]}x{number}x{place}" for place in range(90))
        (folder / f"{month}-{number}.txt").write_text(f"the and of {words}.\n")


def run_files(stack, month: str, files: int) -> dict[str, Any]:
    """Runs a month with this number of new files; returns its tasks by id."""
    write(month, files)
    run_id = stack.airflow.trigger("monthly.cycle", {"version": month})
    assert stack.finished("monthly.cycle", run_id, LIMIT_S)["state"] == "success"
    return {task["task_id"]: task for task in stack.airflow.tasks("monthly.cycle", run_id)}


@pytest.fixture(scope="module")
def first(stack):
    """Runs the first month."""
    return run_files(stack, FIRST, 12)


@pytest.fixture(scope="module")
def months(stack, first):
    """Runs two more months; the last one has one new file. Returns the tasks of each month."""
    return {FIRST: first, SECOND: run_files(stack, SECOND, 6), THIRD: run_files(stack, THIRD, 1)}


def check(stack, tasks: dict[str, Any], month: str) -> None:
    """Fails unless a month has run every DAG once, at its version."""
    steps = ("corpus", "tokens", "enough_tokens", "pretrain", "report")
    assert {name: task["state"] for name, task in tasks.items()} == dict.fromkeys(steps, "success")
    for dag in ("corpus", "tokens", "pretrain"):
        (found,) = [
            one
            for one in stack.airflow.pages(f"/dags/monthly.{dag}/dagRuns", "dag_runs")
            if one["dag_run_id"] == f"cycle-{month}"
        ]
        assert found["state"] == "success"
        assert found["note"].startswith(f"version {month}, ")
    assert stack.artifact("monthly/checkpoint", month).record.artifact == f"monthly/checkpoint@{month}"
    assert stack.artifact("monthly/month", month).record.artifact == f"monthly/month@{month}"


def test_a_month_runs_every_dag_once_at_its_version(stack, first) -> None:
    check(stack, first, FIRST)


@pytest.mark.soak
def test_the_next_month_does_the_same(stack, months) -> None:
    check(stack, months[SECOND], SECOND)
    for dag, expected in (("corpus", MONTHS), ("pretrain", MONTHS[:2])):
        runs = stack.airflow.pages(f"/dags/monthly.{dag}/dagRuns", "dag_runs")
        assert sorted(one["dag_run_id"] for one in runs) == [f"cycle-{month}" for month in expected]


@pytest.mark.soak
def test_a_month_with_too_few_new_tokens_skips_its_training_and_says_so(stack, months) -> None:
    third = months[THIRD]
    assert {name: third[name]["state"] for name in ("tokens", "enough_tokens", "pretrain", "report")} == {
        "tokens": "success",
        "enough_tokens": "skipped",
        "pretrain": "skipped",
        "report": "success",
    }
    reason = stack.airflow.xcom(third["enough_tokens"], "reason")
    report = read_month(stack.artifact("monthly/month", THIRD))
    assert report["history"][-1]["ended"] == reason
    assert f"since {SECOND}, of 1,000" in reason
    assert [entry["documents"]["new"] for entry in report["history"]] == [12, 6, 1]


@pytest.mark.soak
def test_a_cleared_step_runs_the_same_run_again_in_which_everything_is_unchanged(stack, months) -> None:
    step = months[SECOND]["tokens"]
    body = {"task_ids": ["tokens"], "dag_run_id": step["dag_run_id"], "dry_run": False, "only_failed": False,
            "include_downstream": True}  # fmt: skip
    before = stack.airflow.run("monthly.tokens", f"cycle-{SECOND}")["start_date"]
    stack.airflow.call("POST", "/dags/monthly.cycle/clearTaskInstances", json=body)
    assert stack.finished("monthly.cycle", step["dag_run_id"], LIMIT_S)["state"] == "success"
    again = stack.airflow.run("monthly.tokens", f"cycle-{SECOND}")
    assert again["start_date"] > before
    results = [stack.airflow.xcom(task) for task in stack.airflow.tasks("monthly.tokens", f"cycle-{SECOND}")]
    assert all(result["skipped"] for result in results)


@pytest.mark.soak
def test_the_report_is_in_mlflow_and_on_the_page_of_months(stack, months) -> None:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=stack.home.mlflow_url)
    experiment = client.get_experiment_by_name("monthly")
    (run,) = client.search_runs(
        [experiment.experiment_id], f"tags.`sluice.stage` = 'month' and tags.`sluice.version` = '{SECOND}'"
    )
    assert {"month.html", "month.json"} <= {file.path for file in client.list_artifacts(run.info.run_id)}
    assert stack.airflow.xcom(months[SECOND]["report"])["mlflow_run_url"]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("calendar", "count", "by_airflow"),
    [
        pytest.param(PAIR, 2, 1, id="the second", marks=pytest.mark.timeout(2 * LIMIT_S)),
        pytest.param(Calendar(), 12, 12, id="a year", marks=pytest.mark.timeout(13 * LIMIT_S)),
    ],
)
def test_unattended_months_publish_what_is_new_and_ring_for_what_has_changed(stack, calendar, count, by_airflow):
    world = SimulatedWeb(calendar)
    with world.serve() as site:
        path = Path(os.environ["SLUICE_RECIPES"]) / "living.toml"
        place = 'mlflow = "${MLFLOW_TRACKING_URI:-}"'
        path.write_text(recipe_text(site, str(stack.home.root / f"store-{count}"), place))
        recipe = Recipe.load(path)

        def run(version: str) -> None:
            if world.month <= count - by_airflow:
                assert not run_month(recipe, version)[1]
                month_report(open_store(recipe), recipe, version)
                return
            run_id = stack.airflow.trigger("living.cycle", {"version": version})
            assert stack.finished("living.cycle", run_id, LIMIT_S)["state"] == "success"

        months = Living(world, recipe, run)
        DagChain(stack.airflow, "living", (*recipe.parts, "cycle")).wait_for_dags(LIMIT_S)
        months.run(count)
    months.check()
    for dag in recipe.parts:
        runs = stack.airflow.pages(f"/dags/living.{dag}/dagRuns", "dag_runs")
        expected = [f"cycle-{version}" for version in months.versions[count - by_airflow :]]
        assert sorted(run["dag_run_id"] for run in runs) == expected
        assert {run["state"] for run in runs} == {"success"}
