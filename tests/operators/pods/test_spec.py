"""The pod of a stage: the settings of the place merged over the template file, without secrets."""

import json
from pathlib import Path

import kubernetes_validate
import pytest

from operators.pods.spec import manifest, stage_pod
from tasks.core.errors import RecipeError
from tasks.demo.home import CHECKOUT
from tasks.run.place import Place
from tasks.run.recipe import Recipe

PLACE = {
    "namespace": "training",
    "image": "registry.example/sluice-trainer:1.2",
    "gpus": 2,
    "cpu": "8",
    "memory": "64Gi",
    "node_selector": {"node.example/gpu": "h200"},
    "priority_class": "research",
    "runtime_class": "nvidia",
    "queue": "gpus",
    "service_account": "trainer",
    "env": {"SLUICE_STORE": "s3://bucket/store"},
    "secrets": ["s3-keys", "mlflow-login"],
    "tolerations": [{"key": "nvidia.com/gpu"}, {"key": "team", "operator": "Equal", "value": "nlp"}],
    "grace_s": 300,
    "node_silent_s": 90,
}
TEMPLATE = """
apiVersion: v1
kind: Pod
metadata:
  name: ignored
  labels: {team: nlp}
  annotations: {example.org/profile: trainer}
spec:
  hostNetwork: true
  securityContext: {runAsNonRoot: true, runAsUser: 1000}
  nodeSelector: {zone: a}
  tolerations:
  - {key: spot, operator: Exists, effect: NoSchedule}
  containers:
  - name: anything
    image: to-be-replaced:1
    securityContext: {readOnlyRootFilesystem: true}
    env:
    - {name: TZ, value: UTC}
    - {name: SLUICE_STORE, value: elsewhere}
    volumeMounts:
    - {name: cache, mountPath: /cache}
  - name: watcher
    image: watcher:3
  volumes:
  - name: cache
    emptyDir: {sizeLimit: 10Gi}
"""


def recipe_at(**place) -> Recipe:
    """A recipe whose place is PLACE with changes."""
    return Recipe.model_validate(
        {
            "name": "pods",
            "crawl": {"seeds": ["http://site.localhost/"], "allow_loopback": True},
            "canary": {"seeds": [0, 1]},
            "place": {"train": {"where": "kubernetes", "nproc": 2}, "kubernetes": {**PLACE, **place}},
        }
    )


def pod_of(stage: str = "train", **place) -> dict:
    """The pod as sent to the API, with its name."""
    body = manifest(stage_pod(recipe_at(**place), stage))
    return {**body, "metadata": {**body["metadata"], "name": "pods-train-1"}}


def env_of(pod: dict) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0]["env"]}


def test_the_pod_requests_the_resources_of_the_place():
    pod = pod_of()
    spec, [container] = pod["spec"], pod["spec"]["containers"]
    assert pod["metadata"]["namespace"] == "training"
    assert container["name"] == "base"
    assert container["image"] == "registry.example/sluice-trainer:1.2"
    assert container["resources"] == {
        "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "2"},
    }
    assert spec["nodeSelector"] == {"node.example/gpu": "h200"}
    assert spec["priorityClassName"] == "research"
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["terminationGracePeriodSeconds"] == 300
    assert spec["restartPolicy"] == "Never"
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"


def test_a_service_account_gives_an_identity_without_an_api_token():
    spec = pod_of()["spec"]
    assert spec["serviceAccountName"] == "trainer"
    assert spec["automountServiceAccountToken"] is False


def test_secrets_are_referenced_and_not_copied():
    [container] = pod_of()["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "s3-keys"}}, {"secretRef": {"name": "mlflow-login"}}]


def test_a_silent_node_is_tolerated_for_the_time_set_by_the_place():
    tolerations = {one["key"]: one for one in pod_of()["spec"]["tolerations"]}
    assert tolerations["node.kubernetes.io/unreachable"]["tolerationSeconds"] == 90
    assert tolerations["node.kubernetes.io/not-ready"]["tolerationSeconds"] == 90
    assert tolerations["team"] == {"key": "team", "operator": "Equal", "value": "nlp", "effect": "NoSchedule"}


def test_torchrun_stops_its_workers_before_the_pods_grace_period_ends():
    assert env_of(pod_of())["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "280"


def test_data_loaders_get_more_than_64_megabytes_of_shared_memory():
    spec = pod_of()["spec"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in spec["containers"][0]["volumeMounts"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in spec["volumes"]


def test_without_gpus_none_is_requested():
    resources = pod_of(gpus=0)["spec"]["containers"][0]["resources"]
    assert "nvidia.com/gpu" not in json.dumps(resources)


def test_the_place_overrides_the_template(tmp_path: Path):
    path = tmp_path / "trainer.yaml"
    path.write_text(TEMPLATE)
    pod = pod_of(template=str(path))
    spec, [container, sidecar] = pod["spec"], pod["spec"]["containers"]
    assert spec["hostNetwork"] is True
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["name"] == "base"
    assert container["image"] == "registry.example/sluice-trainer:1.2"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert sidecar["name"] == "watcher"
    assert {one["mountPath"] for one in container["volumeMounts"]} == {"/cache", "/dev/shm"}
    assert pod["metadata"]["labels"]["team"] == "nlp"
    assert pod["metadata"]["annotations"] == {"example.org/profile": "trainer"}


def test_a_variable_of_the_place_overrides_that_of_the_template(tmp_path: Path):
    path = tmp_path / "trainer.yaml"
    path.write_text(TEMPLATE)
    names = [one["name"] for one in pod_of(template=str(path))["spec"]["containers"][0]["env"]]
    assert len(names) == len(set(names))
    assert env_of(pod_of(template=str(path)))["SLUICE_STORE"] == "s3://bucket/store"
    assert env_of(pod_of(template=str(path)))["TZ"] == "UTC"


def test_placements_of_template_and_place_are_combined(tmp_path: Path):
    path = tmp_path / "trainer.yaml"
    path.write_text(TEMPLATE)
    spec = pod_of(template=str(path))["spec"]
    assert {"spot", "nvidia.com/gpu", "team"} <= {one["key"] for one in spec["tolerations"]}
    assert spec["nodeSelector"] == {"zone": "a", "node.example/gpu": "h200"}


@pytest.mark.parametrize("with_template", [False, True])
def test_kubernetes_defines_every_field(tmp_path: Path, with_template: bool):
    path = tmp_path / "trainer.yaml"
    path.write_text(TEMPLATE)
    kubernetes_validate.validate(pod_of(template=str(path) if with_template else ""), "1.36", strict=True)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ({"image": ""}, "names no image"),
        ({"template": "no/such.yaml"}, "template no/such.yaml does not exist"),
        ({"grace_s": 10}, "grace_s is 10"),
    ],
)
def test_an_invalid_place_is_reported_with_its_remedy(place: dict, says: str):
    with pytest.raises(RecipeError, match=says) as error:
        pod_of(**place)
    assert error.value.remedy


@pytest.mark.parametrize("text", ["kind: [", "just words", "apiVersion: v1\nkind: Pod\nspec: {containers: []}\n"])
def test_a_template_that_is_not_a_pod_is_reported(tmp_path: Path, text: str):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match="is not a pod"):
        pod_of(template=str(path))


def test_a_template_path_is_relative_to_the_airflow_home(tmp_path: Path, monkeypatch):
    (tmp_path / "home" / "pods").mkdir(parents=True)
    (tmp_path / "home" / "pods" / "trainer.yaml").write_text(TEMPLATE)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert pod_of(template="pods/trainer.yaml")["spec"]["hostNetwork"] is True


def test_a_recipe_without_a_cluster_has_no_pods():
    bare = recipe_at().model_copy(update={"place": Place()})
    with pytest.raises(RecipeError, match=r"no \[place.kubernetes\]"):
        stage_pod(bare, "train")


def test_the_shipped_cluster_recipe_takes_images_from_the_environment(monkeypatch):
    monkeypatch.chdir(CHECKOUT)  # the Airflow home with its template
    from operators.dask.manifests import place_of as dask_place_of
    from operators.pods.spec import place_of
    from tasks.run.recipe import Recipe

    cluster = Recipe.load(CHECKOUT / "dags" / "recipes" / "cluster" / "cluster.toml")
    assert place_of(cluster).image == "sluice/trainer:0.1.0"
    for stage, priority in (("canary", "canary"), ("train", "pretrain"), ("evaluate", None)):
        assert stage_pod(cluster, stage).metadata.labels.get("kueue.x-k8s.io/priority-class") == priority
    monkeypatch.setenv("SLUICE_TRAINER_IMAGE", "registry/trainer:2")
    monkeypatch.setenv("SLUICE_WORKER_IMAGE", "registry/worker:2")
    assert place_of(cluster).image == "registry/trainer:2"
    assert dask_place_of(cluster).image == "registry/worker:2"
