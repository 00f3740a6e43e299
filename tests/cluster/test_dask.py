"""A Dask cluster per DAG run: created, used, adopted, deleted; with real scheduler and worker processes."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.engine import open_engine
from tasks.core.errors import RecipeError
from tasks.core.store import Store
from tasks.run.recipe import find_recipe
from tasks.run.runner import run_stage
from tests.cluster.bed import Bed
from tests.cluster.bed.dask import AUTOSCALERS, CLUSTERS, DaskClusters
from tests.cluster.bed.resources import PODS
from tests.cluster.dask_clusters import (
    FILES,
    MODELS,
    SECRET,
    bed,
    captures,
    dask,
    kill,
    make,
    place,
    remove,
    states,
)
from tests.tasks.core.engine_work import Counted, noted
from tests.waiting import later, until

pytestmark = pytest.mark.real_time

__all__ = ["bed", "dask"]


@pytest.mark.smoke
@pytest.mark.timeout(240)
def test_a_dag_run_creates_uses_and_deletes_its_cluster(
    bed: Bed, dask: DaskClusters, recipes, dag_bag, tmp_path: Path, monkeypatch, caplog
) -> None:
    caplog.set_level(logging.INFO, "sluice")
    monkeypatch.setenv("SLUICE_MODELS", str(MODELS))
    recipes("ship", place(low=1, high=1, more=FILES))
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
    assert content(tmp_path, "ship") == content_here(tmp_path), "the place bears on no byte"


@pytest.mark.timeout(240)
def test_a_dag_run_that_loses_scheduler_and_worker_writes_the_same_bytes(
    bed: Bed, dask: DaskClusters, recipes, dag_bag, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("SLUICE_MODELS", str(MODELS))
    recipes("storm", place(more=FILES))
    recipes("here", FILES)
    for recipe in ("storm", "here"):
        captures(tmp_path / "store", recipe)

    def strike() -> None:
        [name] = dask.made
        kill(bed, dask.pods(name, "scheduler")[0])
        kill(bed, dask.pods(name, "worker")[0])

    struck = later(strike, lambda: (tmp_path / "store" / "storm" / "extracted" / "dev" / ".artifact.json").exists())
    run = dag_bag().dags["storm.corpus"].test()
    struck.join()
    assert set(states(run).values()) == {"success"}
    assert sum(container == "scheduler" for _, container in bed.kubelet.starts) == 2, "it was killed and came back"
    assert content(tmp_path, "storm") == content_here(tmp_path)


def content(tmp_path: Path, recipe: str) -> str:
    documents = Artifact.open_at(Store(str(tmp_path / "store")), ArtifactId(f"{recipe}/documents", "dev"))
    return documents.record.content


def content_here(tmp_path: Path) -> str:
    """The result of the same work in this process."""
    for stage in ("extract", "annotate", "dedup", "consolidate"):
        run_stage(find_recipe("here"), stage)
    return content(tmp_path, "here")


@pytest.mark.timeout(120)
def test_the_cluster_is_deleted_when_a_stage_fails(
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


def test_without_dask_in_the_place_the_dag_has_only_its_stages(recipes, dag_bag) -> None:
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
    with pytest.raises(RecipeError, match="belongs to other"):
        make(recipe)
    assert remove(recipe, first["name"]) == "REMOVED"
    assert remove(recipe, first["name"]) == "ABSENT"


@pytest.mark.timeout(180)
def test_workers_scale_with_queued_work_and_a_killed_one_loses_nothing(
    bed: Bed, dask: DaskClusters, recipes, tmp_path: Path
) -> None:
    recipes("grow", place(low=1, high=2))
    cluster = make(find_recipe("grow"))
    assert len(bed.store.select(AUTOSCALERS)) == 1
    with open_engine(cluster["address"]) as engine:
        assert sum(engine._client.nthreads().values()) == 1
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
def test_a_killed_scheduler_restarts_and_the_stage_continues(
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
def test_an_idle_cluster_shuts_down_and_a_stage_recreates_it(bed: Bed, dask: DaskClusters, recipes) -> None:
    recipes("idle", place(low=1, high=1, idle_s=3))
    recipe = find_recipe("idle")
    first = make(recipe)
    until(lambda: bed.store.select(CLUSTERS) == [])
    assert make(recipe)["name"] == first["name"]
    assert dask.made == [first["name"]] * 2
