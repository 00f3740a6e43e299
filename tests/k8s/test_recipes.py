"""The recipes for a cluster name only objects of k8s/: namespaces, accounts, queues, templates, images, connections."""

import pytest
from kubernetes.utils.quantity import parse_quantity

from tests.k8s.conftest import K8S
from tests.k8s.definitions import built_in

ROOT = K8S.parent


@pytest.fixture
def placed(tmp_path, rendered, monkeypatch):
    """A function that returns the recipe of an overlay's settings, as read by a task pod."""
    from tasks.run.recipe import Recipe

    monkeypatch.chdir(ROOT)

    def load(overlay):
        settings = data(rendered(overlay), "sluice", "sluice-settings")
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        if settings["SLUICE_RECIPES"] == "/opt/airflow/recipes":
            # As in the pod: the mounted folder is next to dags/.
            (tmp_path / "recipes").mkdir()
            (tmp_path / "dags").symlink_to(ROOT / "dags")
            [(name, text)] = data(rendered(overlay), "sluice", "sluice-recipes").items()
            (tmp_path / "recipes" / name).write_text(text)
            return Recipe.load(tmp_path / "recipes" / name)
        folder = settings["SLUICE_RECIPES"].removeprefix("/opt/airflow/")
        return Recipe.load(ROOT / folder / "cluster.toml")

    return load


def data(objects, namespace, name):
    [found] = [one["data"] for one in objects if one["kind"] == "ConfigMap" and at(one) == (namespace, name)]
    return found


def at(one):
    return (one["metadata"].get("namespace"), one["metadata"]["name"])


OVERLAYS = ("overlays/kind", "overlays/eks")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_namespace_service_account_queue_and_priority_exist(overlay, placed, rendered):
    place, objects = placed(overlay).place, rendered(overlay)
    there = {(one["kind"], *at(one)) for one in objects}
    assert ("LocalQueue", place.kubernetes.namespace, place.kubernetes.queue) in there
    for pods in (place.kubernetes, place.dask.kubernetes):
        assert ("Namespace", None, pods.namespace) in there
        assert ("ServiceAccount", pods.namespace, pods.service_account) in there
        assert not pods.priority_class or ("PriorityClass", None, pods.priority_class) in there
        assert (ROOT / pods.template).is_file()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_use_images_that_are_built_and_have_no_unresolved_variable(overlay, placed):
    from operators.dask.manifests import cluster_manifest
    from operators.pods.spec import manifest, stage_pod

    recipe = placed(overlay)
    trainer = manifest(stage_pod(recipe, "train"))["spec"]["containers"][0]["image"]
    cluster = cluster_manifest(recipe, recipe.place.dask.kubernetes, "run-1", "dag/run")
    worker = cluster["spec"]["worker"]["spec"]["containers"][0]["image"]
    registry, version = "", ":0.1.0"
    if overlay.endswith("eks"):
        registry, version = "111122223333.dkr.ecr.eu-central-1.amazonaws.com/", f"@sha256:{'0' * 64}"
    assert (trainer, worker) == (f"{registry}sluice/trainer{version}", f"{registry}sluice/worker{version}")
    for component in ("scheduler", "worker"):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": cluster["spec"][component]["spec"]}
        assert built_in(pod) == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_store_connection_is_in_the_settings_and_has_no_key(overlay, placed, rendered):
    conn_id = placed(overlay).place.store_conn_id
    connection = data(rendered(overlay), "sluice", "sluice-settings")[f"AIRFLOW_CONN_{conn_id.upper()}"]
    assert "key" not in connection
    assert "password" not in connection


def test_on_kind_a_gang_and_a_dask_cluster_fit_into_quota_and_queue(placed, rendered):
    place, objects = placed("overlays/kind").place, rendered("overlays/kind")
    [queue] = [one["spec"]["resourceGroups"][0] for one in objects if one["kind"] == "ClusterQueue"]
    room = {one["name"]: parse_quantity(str(one["nominalQuota"])) for one in queue["flavors"][0]["resources"]}
    gang, dask = place.kubernetes, place.dask.kubernetes
    assert gang.gpus == 0
    assert parse_quantity(gang.cpu) * gang.nodes <= room["cpu"]
    assert parse_quantity(gang.memory) * gang.nodes <= room["memory"]
    [quota] = [
        one["spec"]["hard"] for one in objects if (one["kind"], *at(one)) == ("ResourceQuota", "sluice-work", "work")
    ]
    asked = parse_quantity(gang.memory) * gang.nodes + parse_quantity(dask.memory) * dask.max_workers
    assert asked + parse_quantity(dask.scheduler_memory) <= parse_quantity(quota["requests.memory"])
    assert set(gang.secrets) == set(dask.secrets) == {"sluice-store"}
