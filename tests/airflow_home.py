"""Airflow for tests: home, database, pools, and DAGs built from the recipes of a test.

Imported by the conftest of every folder whose tests need Airflow, before anything imports Airflow, which reads its home
at import time. One home per pytest process; `dag.test()` costs seconds the first time in a process and 0.3 s later.
`states`, `events_of` and `state_of` read the outcome of a DAG run from its database.
"""

import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DAGS = ROOT / "dags"
_KEY = "c2x1aWNlLXRlc3RzLXNsdWljZS10ZXN0cy1zbHVpY2U="

if "airflow" in sys.modules:
    raise ImportError("Airflow was imported before the tests gave it a home of their own")
_home = tempfile.mkdtemp(prefix="sluice-airflow-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
shutil.copy(ROOT / "airflow.cfg", _home)
os.environ.update(
    {
        "AIRFLOW_HOME": _home,
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__FERNET_KEY": _KEY,
        "AIRFLOW__API__SECRET_KEY": _KEY,
        "AIRFLOW__API_AUTH__JWT_SECRET": _KEY * 2,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_home}/airflow.db",
    }
)

RECIPE = """
name = "{name}"
[crawl]
seeds = ["http://site.localhost:18799/"]
allow_loopback = true
partitions = 2
[tokenizer]
vocab_size = 300
[encode]
heldout_share = 0.1
[pack]
seq_len = 64
[evaluate]
[canary]
seeds = [0, 1]
"""


@pytest.fixture(scope="session")
def airflow_db() -> str:
    """A migrated database with the pools of `dags/pools.json`; returns Airflow's home."""
    from airflow import settings
    from airflow.cli.commands.pool_command import pool_import_helper
    from airflow.utils.db import initdb

    settings.initialize()
    initdb()
    _, failed = pool_import_helper(str(DAGS / "pools.json"))
    assert not failed, failed
    return _home


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a recipe file into the folder of the DAG files; returns its path."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    monkeypatch.setenv("SLUICE_RECIPES", str(folder))
    monkeypatch.setenv("SLUICE_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("SLUICE_DASK", raising=False)

    def write(name: str = "tiny", more: str = "", text: str | None = None) -> Path:
        path = folder / f"{name}.toml"
        path.write_text(text if text is not None else RECIPE.format(name=name) + more, encoding="utf-8")
        return path

    return write


@pytest.fixture
def dag_bag(airflow_db: str) -> Callable[[], Any]:
    """Parses the DAG files with the recipes as they are now."""
    from airflow.dag_processing.dagbag import DagBag

    return lambda: DagBag(str(DAGS), bundle_name="dags-folder")


def states(run):
    """Returns the state of each task of a DAG run."""
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def events_of(name):
    """Returns the `extra` of the events of an asset, oldest first."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(AssetEvent).join(AssetModel, AssetModel.id == AssetEvent.asset_id).where(AssetModel.name == name)
        return [event.extra for event in session.scalars(query.order_by(AssetEvent.timestamp))]


def state_of(name):
    """Returns what Airflow's state of an asset has, by key."""
    from airflow.models.asset import AssetModel
    from airflow.models.asset_state_store import AssetStateStoreModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(AssetStateStoreModel.key, AssetStateStoreModel.value).join(
            AssetModel, AssetModel.id == AssetStateStoreModel.asset_id
        )
        return {key: json.loads(value) for key, value in session.execute(query.where(AssetModel.name == name))}
