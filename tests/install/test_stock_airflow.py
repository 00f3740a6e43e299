"""A stranger's Airflow with the wheel: what its commands list, what each role may do, and `smoke` from end to end."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.install.stranger import CHAIN, ROOT, RUN, Stranger, install, run, until_run
from tests.k8s.test_images import FILES, stages
from tests.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.system, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module", params=["3.11", "3.12", "3.13"])
def stranger(request, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    folder = tmp_path_factory.mktemp("stranger")
    python = install(request.param, folder / "env", f"sluice[airflow,train] @ {wheel.as_uri()}")
    made = Stranger(python, folder / "home")
    made.airflow("db", "migrate")
    made.airflow("pools", "import", str(made.dags / "pools.json"))
    return made


@pytest.fixture(scope="module")
def running(stranger: Stranger) -> Iterator[Stranger]:
    with stranger.running():
        until(lambda: {"smoke.crawl", "smoke.pretrain"} <= set(paused(stranger)), 1800, every_s=1)
        yield stranger


def paused(stranger: Stranger) -> dict[str, bool]:
    """Returns {DAG of the server: whether it is paused}."""
    with stranger.client("viewer") as viewer:
        return {dag["dag_id"]: dag["is_paused"] for dag in viewer.get("/api/v2/dags").json()["dags"]}


def test_the_commands_of_airflow_list_plugin_provider_and_dags(stranger: Stranger) -> None:
    [plugin] = [one for one in stranger.listed("plugins") if one["name"] == "sluice"]
    assert plugin["source"].startswith("sluice==")
    [provider] = [one for one in stranger.listed("providers", "list") if one["package_name"] == "sluice"]
    assert provider["version"] == "0.1.0"
    stranger.airflow("dags", "reserialize")
    listed = stranger.listed("dags", "list")
    assert {f"smoke.{part}" for part in CHAIN} <= {one["dag_id"] for one in listed}
    assert {one["bundle_name"] for one in listed} == {"sluice"}
    assert "No data found" in stranger.airflow("dags", "list-import-errors", "--output", "plain")


def test_dags_are_paused_until_somebody_switches_them_on(running: Stranger) -> None:
    assert set(paused(running).values()) == {True}


def test_a_viewer_sees_the_pages_and_can_neither_start_nor_take_down_nor_switch_on(running: Stranger) -> None:
    with running.client("viewer") as viewer:
        assert "smoke" in viewer.get("/sluice/").text
        assert viewer.get("/sluice/recipe/smoke").status_code == 200
        for part in ("crawl", "takedown"):
            assert viewer.post(f"/api/v2/dags/smoke.{part}/dagRuns", json=RUN).status_code == 403
            assert viewer.patch(f"/api/v2/dags/smoke.{part}", json={"is_paused": False}).status_code == 403
    assert httpx.get(f"{running.url}/sluice/", trust_env=False, timeout=600).status_code == 401


def test_a_user_without_the_rights_of_an_administrator_runs_smoke_to_its_model(running: Stranger) -> None:
    with running.client("user") as user:
        assert user.post("/api/v2/pools", json={"name": "mine", "slots": 1}).status_code == 403
        for part in CHAIN:
            assert user.patch(f"/api/v2/dags/smoke.{part}", json={"is_paused": False}).status_code == 200
        assert user.post("/api/v2/dags/smoke.crawl/dagRuns", json=RUN).status_code == 200
        until_run(user, "smoke.pretrain")
        page = user.get("/sluice/recipe/smoke?version=dev").text
    assert "smoke/checkpoint" in page
    assert list((running.home / "store/smoke/checkpoint/dev").glob(".artifact.json"))


def test_the_commands_of_the_image_change_no_package_of_its_airflow(wheel: Path, tmp_path: Path) -> None:
    python = install("3.11", tmp_path / "env", "apache-airflow==3.3.2")
    given = packages(python)
    shutil.copy(ROOT / "requirements.txt", tmp_path)
    (tmp_path / "wanted.txt").write_text(run(sys.executable, ROOT / "k8s/images/wanted.py", "airflow", cwd=ROOT).stdout)
    *_, (_, last) = stages(FILES["existing"])
    commands = [re.sub(r"--mount=\S+", "", text) for word, text in last if word == "RUN"]
    script = "\n".join(commands).replace("/tmp/sluice", str(tmp_path)).replace("/wheels", str(wheel.parent))
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    done = run("bash", "-ec", script, env={**os.environ, "PATH": path}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert given.items() <= packages(python).items()
    assert {"sluice", "apache-airflow-providers-amazon"} <= packages(python).keys() - given.keys()


def packages(python: Path) -> dict[str, str]:
    """Returns {package: version} of an environment."""
    listed = json.loads(run(python, "-m", "pip", "list", "--format", "json").stdout)
    return {one["name"]: one["version"] for one in listed}
