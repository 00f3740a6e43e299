"""A Dask cluster per DAG run: made, used, adopted, ended; with real scheduler and worker processes behind the API."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.archive import MANIFEST, MANIFEST_SCHEMA
from tasks.artifact import Address, Artifact
from tasks.commit import commit
from tasks.config import Config
from tasks.demo.home import CHECKOUT
from tasks.engine import open_engine
from tasks.errors import RecipeError, TransientError
from tasks.recipe import Recipe, find_recipe
from tasks.runner import run_stage
from tasks.stage import Output, Report
from tasks.store import Store
from tests.cluster.bed import Bed, Object
from tests.cluster.bed.dask import AUTOSCALERS, CLUSTERS, DaskAutoscalers, DaskClusters
from tests.cluster.bed.resources import PODS, QUOTAS, SECRETS
from tests.tasks.engine_work import Counted, noted
from tests.tasks.extract.conftest import page, record

MODELS = Path(os.environ.get("SLUICE_MODELS", CHECKOUT / ".sluice" / "models"))
SECRET = "planted-secret-7f3a"

PLACE = """
[place.dask.kubernetes]
namespace = "training"
image = "sluice/worker:test"
service_type = "LoadBalancer"
memory = "1Gi"
cpu = "100m"
scheduler_cpu = "100m"
min_workers = {low}
max_workers = {high}
idle_s = {idle_s}
secrets = ["store"]
"""

FILES = """
[[extract.files]]
name = "code"
kind = "text"
path = "{stdlib}/json/*.py"
"""

WORDS = "the ship went to sea with a crew of nine and none of them had seen the ice before that winter so they sang"


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    """A cluster with the Dask operator."""
    made = Bed(tmp_path / "bed")
    (tmp_path / "bed" / "spill").mkdir(parents=True)
    made.store.create(SECRETS, {"metadata": {"name": "store", "namespace": "training"}, "stringData": {"KEY": SECRET}})
    extra = {"kube_config_path": str(made.kube_config()), "namespace": "training"}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    yield made
    made.close()


@pytest.fixture
def dask(bed: Bed) -> DaskClusters:
    """The Dask operator of the cluster."""
    operator = DaskClusters(bed)
    bed.install(operator)
    bed.install(DaskAutoscalers(bed))
    return operator


def place(low: int = 2, high: int = 2, idle_s: int = 600, more: str = "") -> str:
    return PLACE.format(low=low, high=high, idle_s=idle_s) + more


def make(recipe: Recipe, run: str = "manual__1") -> Any:
    """Makes the cluster of a run as the setup task does."""
    from operators.dask_cluster import ensure

    class Instance:
        dag_id = f"{recipe.name}.corpus"

    return ensure(recipe, {"ti": Instance, "run_id": run})


def remove(recipe: Recipe, name: str) -> bool:
    from operators.dask_api import remove as removed
    from operators.dask_pods import place_of

    pods = place_of(recipe)
    assert pods is not None
    return removed(pods, name)


def captures(store: Path, recipe: str, pages: int = 12, lost: int = 0) -> None:
    """Writes `warc` of a recipe: pages in three files, of which each lacks `lost` that it should have."""
    output = Output(Store(str(store)), Address(f"{recipe}/warc", "dev"), "0" * 64)
    words = WORDS.split()
    rows = []
    with output.part("warc", conserved=False) as part:
        for number in range(3):
            name, records = f"{number:05d}.warc.gz", []
            for at in range(number, pages, 3):
                text = " ".join(words[(at * 7 + k * (at % 5 + 1)) % len(words)] for k in range(90)) + ". "
                ident = f"00000000-0000-4000-8000-{at:012d}"
                records.append(record(f"http://a.example/{at}", page(text * 2), ident=ident))
            with part.file(name) as file:
                file.write(b"".join(records))
            size = sum(map(len, records))
            rows.append({"segment": f"{recipe}/warc@dev", "path": f"{recipe}/warc/dev/{name}", "sha256": "0" * 64})
            rows[-1] |= {"bytes": size, "records": len(records) + lost}
        with part.file(MANIFEST) as file:
            pq.write_table(pa.Table.from_pylist(rows, MANIFEST_SCHEMA), file)
    commit(output, "publish", 1, Config(), [], Report())


def states(run: Any) -> dict[str, str]:
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def until(true: Callable[[], Any], limit_s: float = 60) -> Any:
    deadline = time.monotonic() + limit_s
    while not (value := true()):
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.05)
    return value


def later(do: Callable[[], object], when: Callable[[], object]) -> threading.Thread:
    def wait() -> None:
        until(when)
        do()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def kill(bed: Bed, pod: Object) -> None:
    """Kills the container of a pod, as a fault of its node or a lack of memory would."""
    run = bed.kubelet.run_of(pod)
    assert run is not None
    run.kill_container("Error")


@pytest.mark.timeout(240)
def test_a_dag_run_makes_its_cluster_works_on_it_and_ends_it(
    bed: Bed, dask: DaskClusters, recipes, dag_bag, tmp_path: Path, monkeypatch, caplog
) -> None:
    caplog.set_level(logging.INFO, "sluice")
    monkeypatch.setenv("SLUICE_MODELS", str(MODELS))
    recipes("ship", place(more=FILES))
    recipes("here", FILES)
    captures(tmp_path / "store", "ship")
    captures(tmp_path / "store", "here")
    run = dag_bag().dags["ship.corpus"].test()
    stages = ["extract", "annotate", "dedup", "consolidate"]
    assert states(run) == dict.fromkeys(["dask_up", *stages, "dask_down"], "success")
    assert len(dask.made) == 1, "every task found the cluster of its run"
    assert bed.store.select(CLUSTERS) == []
    assert bed.store.select(PODS) == []
    assert "rows on Dask at tcp://127.0.0.1:" in caplog.text
    assert SECRET not in caplog.text
    up = next(ti for ti in run.get_task_instances() if ti.task_id == "dask_up")
    assert up.xcom_pull(task_ids="annotate", key="link_dask").startswith("http://127.0.0.1:")
    assert SECRET not in json.dumps([up.xcom_pull(task_ids=task) for task in stages])
    for stage in stages:
        run_stage(find_recipe("here"), stage)
    made = {name: document(tmp_path, name) for name in ("ship", "here")}
    assert made["ship"].record.content == made["here"].record.content, "the place bears on no byte"


def document(tmp_path: Path, recipe: str) -> Artifact:
    return Artifact.open_at(Store(str(tmp_path / "store")), Address(f"{recipe}/documents", "dev"))


@pytest.mark.timeout(120)
def test_the_cluster_is_ended_when_a_stage_fails(
    bed: Bed, dask: DaskClusters, recipes, dag_bag, tmp_path: Path
) -> None:
    recipes("wreck", place())
    captures(tmp_path / "store", "wreck", lost=1)
    run = dag_bag().dags["wreck.corpus"].test()
    found = states(run)
    assert found["extract"] == "failed"
    assert found["annotate"] == "upstream_failed"
    assert found["dask_down"] == "success"
    assert str(run.state) == "failed"
    assert bed.store.select(CLUSTERS) == []
    until(lambda: bed.store.select(PODS) == [])


def test_without_a_place_for_dask_the_dag_has_its_stages_only(recipes, dag_bag) -> None:
    recipes("plain")
    assert sorted(dag_bag().dags["plain.corpus"].task_ids) == ["annotate", "consolidate", "dedup", "extract"]


@pytest.mark.timeout(120)
def test_a_cluster_of_the_same_run_is_adopted_and_of_another_is_not(bed: Bed, dask: DaskClusters, recipes) -> None:
    recipes("again", place(low=1, high=1))
    recipe = find_recipe("again")
    first = make(recipe)
    assert make(recipe) == first
    assert len(dask.made) == 1
    bed.store.change(
        CLUSTERS, "training", first["name"], lambda now: now["metadata"].update(annotations={"sluice/run": "other"})
    )
    with pytest.raises(RecipeError, match="is of other"):
        make(recipe)
    assert remove(recipe, first["name"])
    assert not remove(recipe, first["name"])


@pytest.mark.timeout(180)
def test_workers_come_as_work_waits_and_a_killed_one_costs_nothing(
    bed: Bed, dask: DaskClusters, recipes, tmp_path: Path
) -> None:
    recipes("grow", place(low=1, high=2))
    cluster = make(find_recipe("grow"))
    assert len(bed.store.select(AUTOSCALERS)) == 1
    with open_engine(cluster["address"]) as engine:
        assert engine.workers == 1
        [first] = dask.pods(cluster["name"], "worker")
        grown = later(
            lambda: kill(bed, first),
            lambda: len(dask.pods(cluster["name"], "worker")) == 2 and engine_has_two(noted, tmp_path),
        )
        assert dict(engine.map(Counted(tmp_path, seconds=0.2), range(60))) == {n: 2 * n for n in range(60)}
        grown.join()
    assert len(set(noted(tmp_path / "unpickled"))) >= 2
    remove(find_recipe("grow"), cluster["name"])


def engine_has_two(noted: Callable[[Path], list[str]], folder: Path) -> bool:
    return len(set(noted(folder / "unpickled"))) == 2


@pytest.mark.timeout(180)
def test_a_killed_scheduler_comes_back_and_the_stage_goes_on(
    bed: Bed, dask: DaskClusters, recipes, tmp_path: Path
) -> None:
    recipes("head", place(low=1, high=1))
    cluster = make(find_recipe("head"))
    with open_engine(cluster["address"]) as engine:
        [scheduler] = dask.pods(cluster["name"], "scheduler")
        killed = later(lambda: kill(bed, scheduler), lambda: len(noted(tmp_path / "called")) > 10)
        assert dict(engine.map(Counted(tmp_path, seconds=0.05), range(40))) == {n: 2 * n for n in range(40)}
        killed.join()
    assert len(noted(tmp_path / "called")) < 60
    remove(find_recipe("head"), cluster["name"])


@pytest.mark.timeout(120)
def test_a_cluster_that_nobody_uses_ends_by_itself_and_a_stage_makes_it_anew(
    bed: Bed, dask: DaskClusters, recipes
) -> None:
    recipes("idle", place(low=1, high=1, idle_s=3))
    recipe = find_recipe("idle")
    first = make(recipe)
    until(lambda: bed.store.select(CLUSTERS) == [])
    assert make(recipe)["name"] == first["name"]
    assert dask.made == [first["name"]] * 2


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of seconds instead of half minutes."""
    from operators import dask_api

    for name, seconds in (("SURE_S", 1.0), ("OPERATOR_S", 1.0), ("OUTAGE_S", 2.0), ("LOOK_S", 0.2), ("START_S", 20.0)):
        monkeypatch.setattr(dask_api, name, seconds)


def told(recipes: Any, error: type[Exception], words: str, more: str = "", **bounds: int) -> None:
    recipes("bad", place(**{"low": 1, "high": 1, **bounds}) + more)
    with pytest.raises(error, match=words):
        make(find_recipe("bad"))


def test_a_kubernetes_without_dask_operator_is_told_with_how_to_install_it(bed: Bed, quick: None, recipes) -> None:
    told(recipes, RecipeError, r"knows no DaskCluster.*helm install")


def test_an_operator_that_does_nothing_is_told(bed: Bed, quick: None, recipes) -> None:
    bed.define(CLUSTERS)
    told(recipes, TransientError, r"no Dask operator has taken up.*[Ss]tart the operator")


def test_missing_rights_are_told_with_user_and_resource(
    bed: Bed, dask: DaskClusters, quick: None, recipes, monkeypatch
) -> None:
    bed.tokens["no-rights"] = "system:serviceaccount:training:airflow"
    extra = {"kube_config_path": str(bed.kube_config(token="no-rights"))}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    told(recipes, RecipeError, r"may not make Dask clusters in training.*airflow.*daskclusters.*role of k8s/")


def test_an_image_that_is_not_there_is_told_by_name(bed: Bed, dask: DaskClusters, quick: None, recipes) -> None:
    bed.missing_images.add("sluice/worker:test")
    told(recipes, RecipeError, r"sluice/worker:test cannot be had.*\[place\.dask\.kubernetes\] image")


def test_a_missing_secret_is_told_by_name(bed: Bed, dask: DaskClusters, quick: None, recipes) -> None:
    bed.store.delete(SECRETS, "training", "store")
    told(recipes, RecipeError, r'secret "store" not found')


def test_an_exhausted_quota_is_told(bed: Bed, dask: DaskClusters, quick: None, recipes) -> None:
    quota = {"metadata": {"name": "team", "namespace": "training"}, "spec": {"hard": {"pods": "1"}}}
    bed.store.create(QUOTAS, quota)
    told(recipes, RecipeError, r"exceeded quota: team")


def test_a_namespace_that_is_not_there_is_told(bed: Bed, dask: DaskClusters, quick: None, recipes) -> None:
    recipes("bad", place().replace('"training"', '"nowhere"'))
    with pytest.raises(RecipeError, match=r'namespaces "nowhere" not found.*namespace'):
        make(find_recipe("bad"))


def test_an_api_that_is_away_can_be_tried_again(bed: Bed, dask: DaskClusters, quick: None, recipes) -> None:
    bed.faults.answer(503, times=100)
    told(recipes, TransientError, r"did not answer.*kubernetes_default")


def test_a_setup_that_fails_leaves_no_cluster(bed: Bed, dask: DaskClusters, quick: None, recipes, dag_bag) -> None:
    bed.missing_images.add("sluice/worker:test")
    recipes("leak", place())
    run = dag_bag().dags["leak.corpus"].test()
    assert states(run)["dask_up"] == "failed"
    assert len(dask.made) == 1
    assert bed.store.select(CLUSTERS) == []
