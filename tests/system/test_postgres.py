"""A stack with tables on Postgres and files on S3: the same DAGs, with all data in the right place."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.demo.drive import CHAIN, Airflow, DagChain, DagRunStatus
from tasks.demo.home import CHECKOUT, LARGE_XCOM, Home, Ports
from tasks.demo.stack import stack_processes
from tests.postgres import PASSWORD, PostgresServer
from tests.s3_server import SECRET, environment
from tests.system.conftest import MODELS, SMOKE, Stack, demo, free_ports, write_recipes
from tests.waiting import until

ROOT = "s3://sluice/elsewhere"

# The recipe `smoke` without a crawl, whose tasks would only add minutes (tests/system/test_s3.py has one on S3).
FILES = SMOKE.replace("[crawl]", "[crawl]\nenabled = false").replace(
    "[canary]", "[canary]\ncurrent = { code = 0.7, packages = 0.3 }"
)
PARTS = CHAIN[1:]
NOWHERE = "http://127.0.0.1:9"
VARIABLES = ("SLUICE_DATABASE", "SLUICE_STORE", "SLUICE_RECIPES", "SLUICE_MODELS")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


@pytest.fixture(scope="module")
def remote(server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A second stack: tables on Postgres, files on S3."""
    home = Home(tmp_path_factory.mktemp("remote"), free_ports())
    recipes = tmp_path_factory.mktemp("remote-recipes")
    write_recipes(recipes, home.ports)
    (recipes / "smoke.toml").write_text(FILES)
    port = home.ports.site + 5
    with ExitStack() as ending, pytest.MonkeyPatch.context() as patch:
        s3 = subprocess.Popen(
            [sys.executable, "-m", "tests.s3_server", "--port", str(port)],
            env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        )
        ending.callback(s3.wait)
        ending.callback(s3.kill)
        settings = dict(zip(VARIABLES, (server.url(), ROOT, str(recipes), str(MODELS)), strict=True))
        for name, value in {**settings, **environment(f"http://127.0.0.1:{port}")}.items():
            patch.setenv(name, value)
        until(lambda: listens(port), 60)
        ending.callback(demo, home, "down")
        # Credentials come from the Airflow connection; those of the environment are invalid.
        patch.setenv("AIRFLOW_CONN_AWS_DEFAULT", connection(f"http://127.0.0.1:{port}"))
        started = demo(home, "up", AWS_ENDPOINT_URL_S3=NOWHERE)
        assert started.returncode == 0, started.stderr
        assert PASSWORD not in started.stdout + started.stderr
        airflow = ending.enter_context(Airflow(home.airflow_url, home.password()))
        DagChain(airflow, "smoke", PARTS).wait_for_dags()
        yield Stack(home, airflow)


@pytest.fixture(scope="module")
def made(remote: Stack) -> list[DagRunStatus]:
    """The recipe `smoke` from files to tokens on this stack; later stages would only add minutes."""
    remote.pause("smoke.canary", True)
    chain = DagChain(remote.airflow, "smoke", PARTS[: PARTS.index("tokens") + 1])
    chain.start({})
    for _ in chain.follow():
        pass
    return chain.dag_runs


def connection(url: str) -> str:
    extra = {"region_name": "us-east-1", "endpoint_url": url}
    return json.dumps({"conn_type": "aws", "login": "sluice", "password": SECRET, "extra": extra})


def listens(port: int) -> bool:
    return any(one.laddr.port == port for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN)


def objects(suffix: str) -> list[str]:
    return Store(f"{ROOT}{suffix}").list("")


@pytest.mark.timeout(600)
def test_the_dags_run_and_airflow_keeps_them_in_postgres(server, remote, made) -> None:
    assert [dag_run.state for dag_run in made] == ["success"] * 2
    runs = server.query("airflow", "SELECT dag_id FROM dag_run WHERE state = 'success'")
    assert {f"smoke.{dag}" for dag in ("corpus", "tokens")} <= {dag for (dag,) in runs}
    assert not list(Path(remote.home.root).rglob("*.db"))


def test_mlflow_keeps_its_runs_in_postgres_and_its_files_on_s3(server, made) -> None:
    found = server.query("mlflow", "SELECT name, status FROM runs")
    finished = {name for name, status in found if status == "FINISHED"}
    assert {"encode @dev", "extract @dev", "consolidate @dev"} <= finished
    assert any(path.endswith(".png") for path in objects("-mlflow"))


def test_the_artifacts_are_on_s3_and_none_on_this_machine(remote, made) -> None:
    documents = Artifact.open_at(Store(ROOT), ArtifactId("smoke/documents", "dev"))
    assert not documents.verify()
    assert not list((remote.home.root / "store").iterdir())


def test_the_log_of_a_task_is_read_back_from_s3(remote, made) -> None:
    dag_run = next(dag_run for dag_run in made if dag_run.dag_id == "smoke.corpus")
    [extract] = [task for task in remote.airflow.tasks(dag_run.dag_id, dag_run.run_id) if task["task_id"] == "extract"]
    assert any("smoke.corpus" in path and "extract" in path for path in objects("-logs"))
    here = [
        path for path in (remote.home.logs / "airflow").rglob("*") if "task_id=extract" in str(path) and path.is_file()
    ]
    assert all(path.stat().st_size == 0 for path in here)
    assert any("[smoke/extracted@dev] done" in str(line.get("event")) for line in remote.airflow.log(extract))


# The serialization of an XCom value in one task process, and its deserialization in the next.
HAND_ON = """
import json, sys, types
from airflow.sdk.execution_time.xcom import XCom
value = ["x" * 100] * int(sys.argv[1])
kept = XCom.serialize_value(value, key="k", task_id="generate", dag_id="d", run_id="r", map_index=-1)
read = XCom.deserialize_value(types.SimpleNamespace(value=kept))
print(json.dumps({"kept": kept, "same": read == value}))
"""


def test_a_large_xcom_is_on_s3_and_a_small_one_in_the_database(remote, made) -> None:
    assert objects("-xcom") == []
    small, large = (json.loads(in_stack(remote, "-c", HAND_ON, str(lines)).splitlines()[-1]) for lines in (3, 100))
    assert LARGE_XCOM < 100 * 100
    assert small == {"kept": ["x" * 100] * 3, "same": True}
    assert large["same"]
    [path] = objects("-xcom")
    assert large["kept"] == f"{ROOT.replace('//', '//aws_default@')}-xcom/{path}"


def in_stack(stack: Stack, *arguments: str) -> str:
    """Runs Python with the environment of the stack's tasks."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"SLUICE_HOME": stack.home.root, **variables_of(stack.home.ports)}.items():
            patch.setenv(name, str(value))
        environment = Home.here().environment()
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True, timeout=120
    ).stdout


def variables_of(ports: Ports) -> dict[str, int]:
    return {f"SLUICE_{name.upper()}_PORT": getattr(ports, name) for name in ("airflow", "mlflow", "dask", "site")}


def test_a_stage_on_dask_links_to_the_status_page(remote, made) -> None:
    dag_run = next(dag_run for dag_run in made if dag_run.dag_id == "smoke.corpus")
    links = remote.airflow.call("GET", f"/dags/{dag_run.dag_id}/dagRuns/{dag_run.run_id}/taskInstances/dedup/links")
    assert links["extra_links"]["Dask"].startswith(f"http://127.0.0.1:{remote.home.ports.dask + 1}/")


def test_no_password_is_in_a_log_a_command_line_or_a_file_for_others(remote, made) -> None:
    hidden = [word.encode() for word in (PASSWORD, SECRET)]
    for path in Path(remote.home.root).rglob("*"):
        if path.is_file() and "secrets" not in path.parts:
            assert not [word for word in hidden if word in path.read_bytes()], path
    for suffix in ("", "-logs", "-mlflow", "-xcom"):
        store = Store(f"{ROOT}{suffix}")
        for path in store.list(""):
            assert not [word for word in hidden if word in store.read(path)], path
    lines = [" ".join(process.cmdline()) for process in stack_processes(remote.home.root)]
    assert len(lines) > 5
    assert not [line for line in lines if PASSWORD in line or SECRET in line]
    shown = remote.demo("status").stdout
    assert "Postgres at 127.0.0.1:" in shown
    assert PASSWORD not in shown


@pytest.mark.soak
def test_a_restarted_stack_reuses_its_tables(server, remote, made) -> None:
    before = server.query("airflow", "SELECT count(*) FROM dag_run")
    assert remote.demo("down").returncode == 0
    started = remote.demo("up", AWS_ENDPOINT_URL_S3=NOWHERE)
    assert started.returncode == 0, started.stderr
    assert server.query("airflow", "SELECT count(*) FROM dag_run") >= before
