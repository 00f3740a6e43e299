"""Places without a working Dask cluster: each fails soon with cause and remedy, and leaves no objects."""

import json
from typing import Any

import pytest

from tasks.core.errors import RecipeError, TransientError
from tasks.run.recipe import find_recipe
from tests.cluster.bed import Bed
from tests.cluster.bed.dask import AUTOSCALERS, CLUSTERS, FINALIZER, DaskClusters
from tests.cluster.bed.resources import PODS, QUOTAS, SECRETS
from tests.cluster.dask_clusters import bed, dask, make, place, remove, states
from tests.waiting import until

pytestmark = pytest.mark.real_time

__all__ = ["bed", "dask"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of seconds instead of half minutes."""
    from operators.dask import api as dask_api

    for name, seconds in (("SURE_S", 1.0), ("OPERATOR_S", 1.0), ("OUTAGE_S", 2.0), ("POLL_S", 0.2), ("START_S", 20.0)):
        monkeypatch.setattr(dask_api, name, seconds)


def told(recipes: Any, error: type[Exception], words: str, more: str = "", **bounds: int) -> None:
    recipes("bad", place(**{"low": 1, "high": 1, **bounds}) + more)
    with pytest.raises(error, match=words):
        make(find_recipe("bad"))


def test_a_missing_dask_operator_is_reported_with_installation_instructions(bed: Bed, quick: None, recipes) -> None:
    told(recipes, RecipeError, r"has no DaskCluster resource.*helm install")


def test_an_unresponsive_operator_is_reported(bed: Bed, quick: None, recipes) -> None:
    bed.define(CLUSTERS)
    told(recipes, TransientError, r"no Dask operator has processed.*[Ss]tart the operator")


@pytest.mark.smoke
def test_missing_rights_are_reported_with_user_and_resource(
    bed: Bed, dask: DaskClusters, quick: None, recipes, monkeypatch
) -> None:
    bed.tokens["no-rights"] = "system:serviceaccount:training:airflow"
    extra = {"kube_config_path": str(bed.kube_config(token="no-rights"))}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    told(recipes, RecipeError, r"may not create Dask clusters in training.*airflow.*daskclusters.*role of k8s/")


def test_a_missing_image_is_reported_by_name(bed: Bed, dask: DaskClusters, quick: None, recipes) -> None:
    bed.missing_images.add("sluice/worker:test")
    told(recipes, RecipeError, r"sluice/worker:test cannot be pulled.*\[place\.dask\.kubernetes\] image")


def test_a_missing_secret_is_reported_by_name(bed: Bed, dask: DaskClusters, quick: None, recipes) -> None:
    bed.store.delete(SECRETS, "training", "store")
    told(recipes, RecipeError, r'secret "store" not found')


def test_an_exhausted_quota_is_reported(bed: Bed, dask: DaskClusters, quick: None, recipes) -> None:
    quota = {"metadata": {"name": "team", "namespace": "training"}, "spec": {"hard": {"pods": "1"}}}
    bed.store.create(QUOTAS, quota)
    told(recipes, RecipeError, r"exceeded quota: team")


def test_a_missing_namespace_is_reported(bed: Bed, dask: DaskClusters, quick: None, recipes) -> None:
    recipes("bad", place().replace('"training"', '"nowhere"'))
    with pytest.raises(RecipeError, match=r'namespaces "nowhere" not found.*namespace'):
        make(find_recipe("bad"))


def test_an_unreachable_api_is_a_retryable_error(bed: Bed, dask: DaskClusters, quick: None, recipes) -> None:
    bed.faults.answer(503, times=100)
    told(recipes, TransientError, r"did not answer.*kubernetes_default")


def test_a_cluster_whose_scheduler_never_started_is_deleted_even_if_the_operator_acts_late(
    bed: Bed, dask: DaskClusters, quick: None, recipes, monkeypatch, caplog
) -> None:
    caplog.set_level("INFO", "sluice.dask")
    bed.missing_images.add("sluice/worker:test")
    dask.busy_s = 8.0
    told(recipes, RecipeError, "cannot be pulled")
    monkeypatch.setattr("operators.dask.api.REMOVE_S", 2.0)
    monkeypatch.setattr("operators.dask.api.LOG_S", 0.5)
    assert remove(find_recipe("bad"), dask.made[0]) == "STUCK"
    assert "waiting for its deletion; finalizers: " in caplog.text
    assert f"still listed after 2 s; finalizers: {FINALIZER}" in caplog.text
    assert bed.store.select(PODS) == []
    [left] = bed.store.select(CLUSTERS)
    assert "deletionTimestamp" in left["metadata"]
    until(lambda: bed.store.select(CLUSTERS) == [], 30)


def test_an_autoscaler_is_deleted_with_its_cluster(bed: Bed, dask: DaskClusters, quick: None, recipes) -> None:
    recipes("owned", place(low=1, high=2))
    name = make(find_recipe("owned"))["name"]
    [found] = bed.store.select(AUTOSCALERS)
    [owner] = found["metadata"]["ownerReferences"]
    [cluster] = bed.store.select(CLUSTERS)
    assert (owner["kind"], owner["name"], owner["uid"]) == ("DaskCluster", name, cluster["metadata"]["uid"])
    bed.store.delete(CLUSTERS, "training", name)
    until(lambda: bed.store.select(AUTOSCALERS) == [] == bed.store.select(CLUSTERS), 30)


def test_a_deleted_cluster_with_remaining_pods_is_reported(
    bed: Bed, dask: DaskClusters, quick: None, recipes, monkeypatch
) -> None:
    recipes("stays", place(low=1, high=1))
    name = make(find_recipe("stays"))["name"]
    monkeypatch.setattr("operators.dask.api.REMOVE_S", 1.0)
    for node in ("node-a", "node-b"):
        bed.kill_kubelet(node)
    with pytest.raises(TransientError, match="still being deleted"):
        remove(find_recipe("stays"), name)
    for node in ("node-a", "node-b"):
        bed.start_kubelet(node)


def test_a_failed_setup_leaves_no_cluster(bed: Bed, dask: DaskClusters, quick: None, recipes, dag_bag) -> None:
    bed.missing_images.add("sluice/worker:test")
    recipes("leak", place())
    run = dag_bag().dags["leak.corpus"].test()
    assert states(run)["dask_up"] == "failed"
    assert len(dask.made) == 1
    assert bed.store.select(CLUSTERS) == []
