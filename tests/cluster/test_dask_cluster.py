"""A Dask cluster through its operator, on the bed or an external cluster: its life cycle, with disturbances."""

import pytest

from tasks.core.engine import open_engine
from tasks.core.errors import RecipeError
from tasks.run.recipe import find_recipe
from tests.cluster.dask_clusters import make, remove

pytestmark = pytest.mark.real_time

DASK = "dask.org/cluster-name"


@pytest.fixture
def recipe(cluster, recipes):
    """Writes and returns a recipe with Dask on this cluster; keywords change the section."""

    def write(name: str, **changes):
        recipes(name, cluster.dask_place(**changes))
        return find_recipe(name)

    return write


def of(cluster, name: str, component: str) -> list:
    return cluster.pods(f"{DASK}={name},dask.org/component={component}")


def test_a_cluster_is_created_adopted_used_and_removed(cluster, recipe) -> None:
    one = recipe("uses")
    made = make(one)
    assert make(one) == made
    assert len(of(cluster, made["name"], "scheduler")) == 1
    with open_engine(made["address"]) as engine:
        assert dict(engine.map(abs, range(-20, 0))) == {at: 20 - at for at in range(20)}
    assert remove(one, made["name"]) == "REMOVED"
    assert cluster.dask_clusters() == []
    cluster.until(lambda: cluster.dask_clusters() == [] and not cluster.pods(f"{DASK}={made['name']}"), 60)
    assert remove(one, made["name"]) == "ABSENT"


def test_a_killed_worker_is_replaced(cluster, recipe) -> None:
    one = recipe("loses")
    made = make(one)
    [worker] = of(cluster, made["name"], "worker")
    cluster.kill_pod(worker.metadata.name)

    def another() -> bool:
        names = [pod.metadata.name for pod in of(cluster, made["name"], "worker")]
        return bool(names) and worker.metadata.name not in names

    cluster.until(another, 60)
    with open_engine(made["address"]) as engine:
        assert dict(engine.map(abs, [-1, -2])) == {0: 1, 1: 2}
    assert remove(one, made["name"]) == "REMOVED"


def test_a_cluster_with_a_missing_image_is_reported_and_removed(cluster, recipe) -> None:
    one = recipe("lacks", image="registry.invalid/nothing:1")
    with pytest.raises(RecipeError, match=r"registry.invalid/nothing:1 cannot be pulled"):
        make(one)
    [found] = cluster.dask_clusters()
    assert remove(one, found["metadata"]["name"]) == "REMOVED"
    cluster.until(lambda: not cluster.pods(f"{DASK}={found['metadata']['name']}"), 60)
