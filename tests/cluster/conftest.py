"""Fixtures: a cluster (the loopback bed, or KUBECONFIG's), a small corpus in a store, and runs of stages in pods.

Run its soak tests after a change of operators/ (pods, jobsets, dask), of tasks/trainer or of the bed.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.run.recipe import find_recipe
from tasks.run.runner import run_stage
from tests.airflow_home import airflow_db, dag_bag, recipes
from tests.cluster.clusters import Cluster, Loopback, Real
from tests.cluster.runs import DAG_FILE, Ended
from tests.cluster.settings import Settings
from tests.cluster.training import corpus_without_tokenizer, recipe_text
from tests.tasks.trainer.in_process import training_in_process

__all__ = ["airflow_db", "dag_bag", "recipes"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks cases without `smoke` as soak on loopback; the time-out is 5 minutes there and 15 on other clusters."""
    real = bool(Settings().kube_config)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(900 if real else 300))
            if not real and not item.get_closest_marker("smoke"):
                item.add_marker(pytest.mark.soak)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster, with its Airflow connection."""
    settings = Settings()
    one = Real(settings, tmp_path / "cluster") if settings.kube_config else Loopback(tmp_path / "cluster")
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", one.connection())
    yield one
    one.close()


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens patience on loopback: causes are accepted, and nodes abandoned, after seconds."""
    if not Settings().kube_config:
        monkeypatch.setattr("operators.pods.pending.SURE_S", 1.0)
        monkeypatch.setattr("operators.pods.pending.UNLIKELY_S", 2.0)
        monkeypatch.setattr("operators.pods.pending.CHECK_S", 0.2)
        monkeypatch.setattr("operators.jobsets.trigger.SURE_S", 2.0)
        monkeypatch.setattr("operators.pods.api.TICK_S", 0.5)
        monkeypatch.setattr("operators.pods.api.STARTING_S", 0.5)
        monkeypatch.setattr("operators.pods.api.FORBIDDEN_S", 4.0)
        monkeypatch.setattr("operators.pods.trigger.LOST_S", 3.0)
        monkeypatch.setattr("operators.pods.trigger.DRAIN_S", 3.0)
        monkeypatch.setattr("operators.jobsets.trigger.DRAIN_S", 3.0)
        monkeypatch.setattr("operators.pods.owner.LOST_S", 3.0)
        monkeypatch.setattr("operators.dask.api.SURE_S", 1.0)
        monkeypatch.setattr("operators.dask.api.UNLIKELY_S", 2.0)


@pytest.fixture(scope="session")
def corpus_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the inputs of training, created once."""
    return corpus_without_tokenizer(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def store(cluster: Cluster, corpus_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The store of one test, with a small corpus; the recipe is called `test`, like its artifacts."""
    folder = cluster.store(tmp_path)
    shutil.copytree(corpus_store, folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def recipe(cluster: Cluster, store: Path, recipes: Callable[..., Path]) -> Callable[..., None]:
    """Writes the recipe `test`: `steps` of training, keywords for `[place.kubernetes]`."""

    def write(steps: int = 60, **place: Any) -> None:
        recipes("test", text=recipe_text(steps, store, cluster.place(**place)))

    return write


_contents: dict[int, str] = {}


@pytest.fixture
def undisturbed(run: Callable[..., Ended], recipe: Callable[..., None], store: Path) -> Callable[[int], str]:
    """The content of the checkpoint after `steps` steps without faults: in a pod, or on loopback in this process."""

    def in_pod(steps: int) -> str:
        ended = run("train", steps=steps, conf={"version": "whole", "source_version": "dev"})
        assert ended.state == "success", ended.said
        return ended.artifact("checkpoint", "whole").record.content

    def here(steps: int) -> str:
        recipe(steps)
        with training_in_process():
            made = run_stage(find_recipe("test"), "train", version="whole", source_version="dev")
        return Artifact.open_at(Store(str(store)), ArtifactId.parse(made.address)).record.content

    def content(steps: int) -> str:
        if steps not in _contents:
            made, aside = store / "test" / "checkpoint", store / "aside"
            made.rename(aside)  # otherwise the result of the test would be adopted
            _contents[steps] = in_pod(steps) if Settings().kube_config else here(steps)
            shutil.rmtree(made)
            aside.rename(made)
        return _contents[steps]

    return content


@pytest.fixture
def run(
    recipe: Callable[..., None],
    store: Path,
    tmp_path: Path,
    airflow_db: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> Callable[..., Ended]:
    """Runs a stage in pods inside a DAG run, to its end; `cmds` are of `CommandedPod`, keywords those of `recipe`."""

    def start(
        stage: str = "train",
        more: str = "",
        cmds: list[str] | None = None,
        retries: int = 2,
        operator: str = "GpuPodOperator",
        conf: dict[str, Any] | None = None,
        **place: Any,
    ) -> Ended:
        from airflow import settings
        from airflow.dag_processing.dagbag import DagBag

        recipe(**place)
        if cmds:
            operator, more = "CommandedPod", f"cmds={cmds!r}, {more}"
        folder = tmp_path / "dags"
        folder.mkdir(exist_ok=True)
        dag = "".join(one if one.isalnum() else "_" for one in request.node.name)[:60]
        named = {"dag": dag, "stage": stage, "recipe": "test", "retries": retries, "more": more, "operator": operator}
        (folder / "pod.py").write_text(DAG_FILE.format(**named))
        monkeypatch.setattr(settings, "DAGS_FOLDER", str(folder))
        bag = DagBag(str(folder), bundle_name="dags-folder")
        assert not bag.import_errors, bag.import_errors
        ended = bag.dags[dag].test(run_conf=conf or {})
        printed = capfd.readouterr()
        return Ended(ended, printed.out + printed.err, store, "test")

    return start
