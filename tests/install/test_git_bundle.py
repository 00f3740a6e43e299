"""A stranger's Airflow with the DAG files in a Git repository: a run keeps the files of the commit of its start."""

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import httpx
import pytest

from tests.install.stranger import CHAIN, RUN, Stranger, documented, install, run
from tests.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.system, pytest.mark.timeout(3600)]

PROVIDER = "apache-airflow-providers-git==1.0.1"
ADDRESS = "https://git.example.org/dags.git"
DAG = "/api/v2/dags/smoke.crawl"
TASKS = 'connect({stage: task_of(recipe, stage) for stage in stages_of("crawl")})'
OWN_TASKS = """\
from airflow.sdk import task

        @task
        def wait():
            import pathlib, time

            while not pathlib.Path("GATE").exists():
                time.sleep(0.5)

        @task
        def say():
            return "first"

        tasks = {stage: task_of(recipe, stage) for stage in stages_of("crawl")}
        connect(tasks)
        wait() >> tasks["inject"]
        tasks["publish"] >> say()
"""
"""Tasks of the stranger before and after those of Sluice."""


class Repository:
    """A bare Git repository with a copy of `dags/`, in which somebody changes the file of the crawl."""

    def __init__(self, folder: Path, dags: Path) -> None:
        self.url = str(folder / "dags.git")
        self._clone = folder / "clone"
        git("init", "--quiet", "--bare", "--initial-branch", "main", self.url)
        git("clone", "--quiet", self.url, self._clone)
        copytree(dags, self._clone / "dags", ignore=ignore_patterns("__pycache__", "recipes"))

    @property
    def head(self) -> str:
        """The newest commit."""
        return git("-C", self._clone, "rev-parse", "HEAD")

    def push(self, changes: dict[str, str]) -> str:
        """Replaces texts of the file, and pushes the change; returns its commit."""
        file = self._clone / "dags/crawl.py"
        for old, new in changes.items():
            assert old in file.read_text()
            file.write_text(file.read_text().replace(old, new))
        here = ("-C", self._clone)
        git(*here, "add", ".")
        git(*here, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "--message", "change")
        git(*here, "push", "--quiet", "origin", "HEAD")
        return self.head


def git(*words: object) -> str:
    """Runs git; returns its output."""
    done = run("git", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the file for which the first task waits."""
    return tmp_path_factory.mktemp("gate") / "open"


@pytest.fixture(scope="module")
def bundle(wheel: Path, gate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stranger, Repository]]:
    """Runs an Airflow with the documented setting, which looks for a new commit every few seconds."""
    folder = tmp_path_factory.mktemp("git")
    python = install("3.11", folder / "env", f"sluice[airflow] @ {wheel.as_uri()}", PROVIDER)
    made = Stranger(python, folder / "home")
    repository = Repository(folder, made.dags)
    repository.push({TASKS: OWN_TASKS.replace("GATE", str(gate))})
    setting = {name: text.replace(ADDRESS, repository.url) for name, text in documented(ADDRESS).items()}
    often = {"REFRESH_INTERVAL": "5", "MIN_FILE_PROCESS_INTERVAL": "5", "BUNDLE_REFRESH_CHECK_INTERVAL": "1"}
    made.settings = {**setting, **{f"AIRFLOW__DAG_PROCESSOR__{name}": text for name, text in often.items()}}
    made.airflow("db", "migrate")
    made.airflow("pools", "import", str(made.dags / "pools.json"))
    with made.running():
        yield made, repository


def test_the_dag_files_of_the_repository_are_parsed_at_its_commit(bundle: tuple[Stranger, Repository]) -> None:
    stranger, repository = bundle
    with stranger.client("viewer") as viewer:
        for part in CHAIN:
            until_version(viewer, f"smoke.{part}", repository.head)
        assert viewer.get("/api/v2/importErrors").json()["import_errors"] == []


def test_a_run_keeps_its_commit_when_the_file_changes_while_it_runs(bundle, gate: Path) -> None:
    stranger, repository = bundle
    first = repository.head
    with stranger.client("user") as user:
        until_version(user, "smoke.crawl", first)
        assert user.patch(DAG, json={"is_paused": False}).status_code == 200
        begun = start(user)
        until(lambda: states(user, begun)["wait"] == "running", 600, every_s=1)
        second = repository.push({'"first"': '"second"', ">> say()": '>> say() >> say.override(task_id="more")()'})
        until_version(user, "smoke.crawl", second)
        assert states(user, begun)["wait"] == "running"
        gate.touch()
        assert finished(user, begun) == (first, "first", False)
        assert finished(user, start(user)) == (second, "second", True)
        again = {"dag_run_id": begun, "task_ids": ["say"], "dry_run": False, "only_failed": False}
        assert user.post(f"{DAG}/clearTaskInstances", json=again).status_code == 200
        assert finished(user, begun) == (first, "first", False)


def until_version(client: httpx.Client, dag: str, commit: str) -> None:
    """Waits until a DAG was parsed at a commit."""
    until(lambda: client.get(f"/api/v2/dags/{dag}").json().get("bundle_version") == commit, 1800, every_s=1)


def start(client: httpx.Client) -> str:
    """Starts a run of the crawl; returns its id."""
    answer = client.post(f"{DAG}/dagRuns", json=RUN)
    assert answer.status_code == 200, answer.text
    run_id: str = answer.json()["dag_run_id"]
    return run_id


def states(client: httpx.Client, run_id: str) -> dict[str, Any]:
    """Returns {task: its state} of a run of the crawl."""
    tasks = client.get(f"{DAG}/dagRuns/{run_id}/taskInstances").json()["task_instances"]
    return {one["task_id"]: one["state"] for one in tasks}


def finished(client: httpx.Client, run_id: str) -> tuple[str, str, bool]:
    """Waits for a run; returns its commit, the word that its last task said, and whether it has the task `more`."""

    def over() -> Any:
        made = client.get(f"{DAG}/dagRuns/{run_id}").json()
        return made if made["state"] in ("success", "failed") else None

    made = until(over, 1800, every_s=1)
    assert made["state"] == "success", states(client, run_id)
    word = client.get(f"{DAG}/dagRuns/{run_id}/taskInstances/say/xcomEntries/return_value").json()["value"]
    return made["bundle_version"], word.strip('"'), "more" in states(client, run_id)
