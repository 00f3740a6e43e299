"""One running stack for all system tests: the real Airflow, MLflow and Dask, with a separate state folder and ports.

The recipes are copies of the checkout's `demo` and of a smaller `smoke` with seeds at the stack's ports.
Run its soak tests after a change of DAGs, operators, the runner, the store or the local stack: the whole
demo, the demo on S3, models made in the corpus, a takedown from its form to the next version, and every kill beyond
one of a stage and one of the triggerer.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.demo.drive import Airflow, DagChain, DagRunStatus, Json
from tasks.demo.home import CHECKOUT, Home, Ports
from tasks.demo.site import HOSTS, address
from tests.s3_server import environment
from tests.waiting import until

MODELS = Path(os.environ.get("SLUICE_MODELS", CHECKOUT / ".sluice" / "models"))

SMOKE = (CHECKOUT / "dags" / "recipes" / "smoke.toml").read_text()

# The same stages in the worker's process, without Dask.
HERE = (
    SMOKE.replace('name = "smoke"', 'name = "here"')
    + """
[place.dask]
address = ""
"""
)

# The same stages with the store on an S3 server that fails three requests in ten.
LAKE = (
    SMOKE.replace('name = "smoke"', 'name = "lake"')
    + """
[place]
store = "s3://sluice/lake"
"""
)
FAULTS = 0.3

# What small recipes of text files have in common: a corpus in one part, and a tiny model.
SMALL = """
[extract]
parts = 1
[annotate]
use = ["language", "gopher_quality", "prose_score", "pii"]
[consolidate]
filters = ["gopher_quality"]
[tokenizer]
vocab_size = 300
[pack]
seq_len = 16
[train.model]
layers = 1
dim = 16
heads = 2
kv_heads = 1
"""

# Months of a few files, whose DAGs the cycle starts; {texts} is their folder.
MONTHLY = (
    """
name = "monthly"
[[extract.files]]
name = "books"
kind = "text"
path = "{texts}/*.txt"
[dedup_index]
enabled = true
[encode]
accumulate = true
heldout_share = 0.25
[train]
steps = 4
batch_size = 4
milestones = 1
mixture = {{ books = 1.0 }}
[evaluate]
max_tokens = 5_000
[cycle]
schedule = ""
min_new_tokens = 1000
[place]
mlflow = "${{MLFLOW_TRACKING_URI:-}}"
"""
    + SMALL
)

# Messages of a broker that the Airflow connection names.
WIRE = """
name = "wire"
[[extract.streams]]
name = "news"
topic = "articles"
[annotate]
use = ["language", "prose_score", "pii"]
[consolidate]
filters = []
[place]
stream_conn_id = "wire_kafka"
"""

# The same stages for a takedown, which would be in force for other tests of the same recipe.
LEAVING = (
    SMOKE.replace('name = "smoke"', 'name = "leaving"').replace("[crawl]", "[crawl]\nrecrawl = true")
    + """
[place.dask]
address = ""
"""
)

# A corpus of text files beside the recipe, for a takedown that is asked for and honored on the pages.
NOTES = """
name = "notes"

[[extract.files]]
name = "notes"
kind = "text"
path = "{folder}/notes/*.txt"

[consolidate.limits.gopher_quality]
min_letters = 0.5

[place]
store = "${{SLUICE_STORE:-.sluice/store}}"
"""

# Two sources of text files and a canary that waits for a person; {folder} is that of the recipes. For the target the
# uniform arm is far better, so that few runs confirm it.
VETOED = (
    """
name = "vetoed"
[[extract.files]]
name = "verse"
kind = "text"
path = "{folder}/vetoed/verse/*.txt"
[[extract.files]]
name = "notes"
kind = "text"
path = "{folder}/vetoed/notes/*.txt"
[encode]
heldout_share = 0.25
[canary]
current = {{ verse = 0.9, notes = 0.1 }}
rounds = 1
arms = 0
anchors = ["uniform"]
target = {{ notes = 1.0 }}
guard_share = 9
confirmations = 3
lr_check = false
repetition_cap = 100
steps = 8
batch_size = 4
microbatch = 4
heldout_tokens = 1_000
[canary.model]
layers = 1
dim = 16
heads = 2
kv_heads = 1
[canary.optim]
lr = 3e-2
warmup_steps = 1
[train]
steps = 2
milestones = 1
batch_size = 4
[place]
store = "${{SLUICE_STORE:-.sluice/store}}"
ask_human = true
"""
    + SMALL
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all tests of this folder as `system`, with a time-out of half an hour."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.system)
            item.add_marker(pytest.mark.timeout(1800))


@dataclass
class Stack:
    """The running stack, with operations for tests."""

    home: Home
    airflow: Airflow

    def demo(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs `python -m tasks.demo` on this stack."""
        return demo(self.home, *arguments, **environment)

    def run(self, dag_id: str, conf: Json, limit_s: float = 600) -> Json:
        """Runs one DAG to its end and returns the run."""
        return self.finished(dag_id, self.airflow.trigger(dag_id, conf), limit_s)

    def finished(self, dag_id: str, run_id: str, limit_s: float = 600) -> Json:
        """Waits for the end of a run; a failure shows the cause from the task's log."""
        chain = DagChain(self.airflow, dag_id.partition(".")[0])
        chain.dag_runs = [DagRunStatus(dag_id, run_id, "queued")]
        deadline = time.monotonic() + limit_s
        for _ in chain.follow():
            assert time.monotonic() < deadline, f"{dag_id} is not done after {limit_s:.0f} s"
        return self.airflow.run(dag_id, run_id)

    def running(self, dag_id: str, run_id: str, task_id: str, limit_s: float = 120) -> Json:
        """Waits until a task runs and returns it."""
        return until(
            lambda: next(
                (
                    task
                    for task in self.airflow.tasks(dag_id, run_id)
                    if task["task_id"] == task_id and task["state"] == "running"
                ),
                None,
            ),
            limit_s,
        )

    def stop(self, dag_id: str, run_id: str) -> None:
        """Ends a run whose later tasks do not matter."""
        self.airflow.call("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}", json={"state": "failed"})

    def done(self, dag_id: str, run_id: str, task_id: str, limit_s: float = 300) -> list[Json]:
        """Waits until all instances of a task have succeeded, and returns them."""

        def succeeded() -> list[Json]:
            tasks = [task for task in self.airflow.tasks(dag_id, run_id) if task["task_id"] == task_id]
            assert not any(task["state"] in ("failed", "upstream_failed") for task in tasks), task_id
            return tasks if all(task["state"] == "success" for task in tasks) else []

        return until(succeeded, limit_s)

    def pause(self, dag_id: str, paused: bool) -> None:
        """Pauses a DAG, so that an asset event does not start it, or lets it run again."""
        self.airflow.call("PATCH", f"/dags/{dag_id}", json={"is_paused": paused})

    def copy(self, source: str, *targets: str) -> None:
        """Copies an artifact, "smoke/warc/dev", to other places of the store: the same input of runs of their own.

        A version that reads it at `source_version` would adopt the artifacts of that version.
        """
        store = self.home.root / "store"
        for target in targets:
            shutil.copytree(store / source, store / target, dirs_exist_ok=True)

    def artifact(self, name: str, version: str = "dev") -> Artifact:
        """Opens an artifact of the stack's store."""
        return Artifact.open_at(Store(str(self.home.root / "store")), ArtifactId(name, version))


def demo(home: Home, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m tasks.demo` like the Makefile, and returns its output."""
    ports = {
        "SLUICE_AIRFLOW_PORT": home.ports.airflow,
        "SLUICE_MLFLOW_PORT": home.ports.mlflow,
        "SLUICE_DASK_PORT": home.ports.dask,
        "SLUICE_SITE_PORT": home.ports.site,
    }
    ours = {"SLUICE_HOME": str(home.root), **{name: str(port) for name, port in ports.items()}, **environment}
    return subprocess.run(
        [sys.executable, "-m", "tasks.demo", *arguments],
        cwd=CHECKOUT,
        env=os.environ | ours,
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.fixture
def airflow_until() -> Callable[[Callable[[], Any], float], Any]:
    """`until`, for the tests."""
    return until


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The stack, started once and stopped at the end."""
    if not (MODELS / "lid.176.ftz").exists():
        pytest.fail(f"no language model in {MODELS}; run `make models`")
    home = Home(tmp_path_factory.mktemp("stack"), free_ports())
    recipes = tmp_path_factory.mktemp("recipes")
    write_recipes(recipes, home.ports)
    for name, value in (("SLUICE_RECIPES", str(recipes)), ("SLUICE_MODELS", str(MODELS))):
        os.environ[name] = value
    with ExitStack() as ending:
        os.environ.update(ending.enter_context(s3_server(home.ports)))
        ending.callback(demo, home, "down")
        started = demo(home, "up")
        assert started.returncode == 0, started.stderr
        airflow = ending.enter_context(Airflow(home.airflow_url, home.password()))
        DagChain(airflow, "smoke").wait_for_dags()
        yield Stack(home, airflow)


@contextmanager
def s3_server(ports: Ports) -> Iterator[dict[str, str]]:
    """Runs the faulty S3 server; yields the environment of its clients."""
    port = next(port for port in range(ports.site + len(HOSTS), 65_000) if _free(port))
    command = [sys.executable, "-m", "tests.s3_server", "--port", str(port), "--faults", str(FAULTS)]
    server = subprocess.Popen(command, cwd=CHECKOUT, env=os.environ | {"PYTHONPATH": str(CHECKOUT)})
    try:
        until(lambda: not _free(port), 60)
        yield environment(f"http://127.0.0.1:{port}")
    finally:
        server.kill()
        server.wait()


def write_recipes(folder: Path, ports: Ports) -> None:
    """Copies the recipes of the checkout, with the seeds at `ports`, and adds `smoke`."""
    for path in (CHECKOUT / "dags" / "recipes").glob("*.toml"):
        shutil.copy(path, folder)
    seeds = ", ".join(f'"{address(host, ports.site + at)}"' for at, host in enumerate(HOSTS))
    demo_recipe = folder / "demo.toml"
    text, changed = re.subn(r"(?m)^seeds = \[.http.*\]", f"seeds = [{seeds}]", demo_recipe.read_text())
    assert changed == 1
    demo_recipe.write_text(text)
    (folder / "here.toml").write_text(HERE)
    (folder / "lake.toml").write_text(LAKE)
    (folder / "leaving.toml").write_text(LEAVING)
    (folder / "monthly.toml").write_text(MONTHLY.format(texts=folder / "texts"))
    (folder / "notes.toml").write_text(NOTES.format(folder=folder))
    (folder / "wire.toml").write_text(WIRE)
    (folder / "vetoed.toml").write_text(VETOED.format(folder=folder))


def free_ports() -> Ports:
    """Returns free ports, whose successors for Dask and the site are also free."""
    # Below the ephemeral range (32768 and up), from which a client could take a port between check and use.
    base = 20_000 + os.getpid() % 12_000
    ports = Ports(airflow=0, mlflow=0, dask=0, site=0)
    for name, width in (("airflow", 1), ("mlflow", 1), ("dask", 2), ("site", len(HOSTS))):
        while not all(_free(base + at) for at in range(width)):
            base += 1
        ports = replace(ports, **{name: base})
        base += width
    return ports


def _free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return trial.connect_ex(("127.0.0.1", port)) != 0


@dataclass
class Ran:
    """The recipe `smoke` after its run.

    Attributes:
        printed: output of the command.
        dag_runs: the DAG runs in order, with the results of their tasks.
    """

    printed: str
    dag_runs: list[DagRunStatus]


@pytest.fixture(scope="session")
def smoke(stack: Stack) -> Ran:
    """The recipe `smoke`, run once by the command of `make demo` from seeds to a traced model, undisturbed."""
    done = stack.demo("run", "--recipe", "smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    chain = DagChain(stack.airflow, "smoke")
    runs = stack.airflow.pages("/dags/smoke.crawl/dagRuns", "dag_runs", order_by="run_after")
    chain.dag_runs[0].run_id = runs[-1]["dag_run_id"]
    for _ in chain.follow():
        pass
    return Ran(done.stdout, chain.dag_runs)


@pytest.fixture(scope="session")
def begun(stack: Stack, smoke: Ran) -> Artifact:
    """The model of the next version of `smoke`, which began from the weights of the first and was compared with it."""
    conf = {"version": "begun", "source_version": "dev", "overrides": {"train.init_from": "smoke/checkpoint@dev"}}
    assert stack.run("smoke.pretrain", conf)["state"] == "success"
    return stack.artifact("smoke/checkpoint", "begun")
