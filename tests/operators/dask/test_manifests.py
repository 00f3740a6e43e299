"""The manifests of a run's Dask cluster: valid in strict mode, without a secret, one name per run."""

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from operators.dask.manifests import autoscaler_manifest, cluster_manifest, name_of, place_of
from tasks.core.errors import RecipeError
from tasks.run.recipe import Recipe, find_recipe

KUBERNETES = "1.36"

PLACE: dict[str, Any] = {
    "namespace": "dask",
    "image": "registry.example.org/sluice/worker:1.4.2",
    "memory": "4Gi",
    "node_selector": {"pool": "cpu"},
    "tolerations": [{"key": "spot"}],
    "priority_class": "batch",
    "service_account": "sluice-worker",
    "secrets": ["store"],
    "env": {"AWS_REGION": "eu-west-1"},
    "min_workers": 2,
    "max_workers": 6,
    "idle_s": 900,
}


def recipe(dask: dict[str, Any] | None = None, **more: Any) -> Recipe:
    return find_recipe("demo").override({"place.dask": {"kubernetes": {**PLACE, **(dask or {})}, **more}})


def rendered(dask: dict[str, Any] | None = None) -> dict[str, Any]:
    made = recipe(dask)
    pods = place_of(made)
    assert pods is not None
    return cluster_manifest(made, pods, "tiny-corpus-1", "tiny.corpus manual__1")


def check_pod(spec: dict[str, Any]) -> None:
    """The Deployment that the operator creates from a pod spec."""
    template = {"metadata": {"labels": {"a": "b"}}, "spec": spec}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "one"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template},
    }
    kubernetes_validate.validate(deployment, KUBERNETES, strict=True)


@pytest.fixture
def template(tmp_path: Path) -> str:
    path = tmp_path / "pod.yaml"
    path.write_text(
        """
        kind: Pod
        spec:
          hostNetwork: true
          containers:
          - name: base
            env: [{name: AWS_REGION, value: nowhere}, {name: PROXY, value: http://proxy}]
            volumeMounts: [{name: models, mountPath: /models, readOnly: true}]
          - {name: side, image: "side:1"}
          volumes: [{name: models, persistentVolumeClaim: {claimName: models}}]
        """
    )
    return str(path)


def test_pods_and_service_validate_in_strict_mode(template: str) -> None:
    for place in ({}, {"template": template}):
        spec = rendered(place)["spec"]
        check_pod(spec["scheduler"]["spec"])
        check_pod(spec["worker"]["spec"])
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "s"},
            "spec": spec["scheduler"]["service"],
        }
        kubernetes_validate.validate(service, KUBERNETES, strict=True)


def test_the_check_finds_a_field_that_does_not_exist() -> None:
    spec = rendered()["spec"]["worker"]["spec"]
    spec["containers"][0]["memory"] = "4Gi"
    with pytest.raises(kubernetes_validate.ValidationError):
        check_pod(spec)


def test_scheduler_and_workers_run_one_image_and_are_not_root() -> None:
    spec = rendered()["spec"]
    for component in ("scheduler", "worker"):
        pod = spec[component]["spec"]
        [container] = pod["containers"]
        assert container["image"] == PLACE["image"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod["automountServiceAccountToken"] is False
        assert pod["nodeSelector"] == {"pool": "cpu"}
        assert pod["tolerations"][0]["key"] == "spot"
        assert {"name": "AWS_REGION", "value": "eu-west-1"} in container["env"]
        assert container["readinessProbe"]["httpGet"]["path"] == "/health"


def test_a_worker_knows_the_memory_limit_of_its_pod() -> None:
    [worker] = rendered()["spec"]["worker"]["spec"]["containers"]
    assert worker["resources"]["limits"]["memory"] == "4Gi"
    assert worker["command"][worker["command"].index("--memory-limit") + 1] == str(4 << 30)


def test_only_workers_get_secrets_and_the_identity_of_the_store() -> None:
    spec = rendered()["spec"]
    worker, scheduler = spec["worker"]["spec"], spec["scheduler"]["spec"]
    assert worker["containers"][0]["envFrom"] == [{"secretRef": {"name": "store"}}]
    assert worker["serviceAccountName"] == "sluice-worker"
    assert "envFrom" not in scheduler["containers"][0]
    assert "serviceAccountName" not in scheduler


def test_the_cluster_scales_between_its_bounds_and_shuts_down_when_idle() -> None:
    spec = rendered()["spec"]
    assert spec["idleTimeout"] == 900
    assert spec["worker"]["replicas"] == 2
    pods = place_of(recipe())
    assert pods is not None
    scaler = autoscaler_manifest(pods, "tiny-corpus-1")
    assert scaler is not None
    assert scaler["spec"] == {"cluster": "tiny-corpus-1", "minimum": 2, "maximum": 6}
    assert autoscaler_manifest(pods.model_copy(update={"max_workers": 2}), "x") is None


def test_a_template_adds_fields_and_the_recipe_overrides_it(template: str) -> None:
    pod = rendered({"template": template})["spec"]["worker"]["spec"]
    assert pod["hostNetwork"] is True
    assert [one["name"] for one in pod["containers"]] == ["worker", "side"]
    assert [one["name"] for one in pod["volumes"]] == ["models", "tmp"]
    env = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
    assert env["PROXY"] == "http://proxy"
    assert env["AWS_REGION"] == "eu-west-1"


def test_a_run_has_one_valid_name() -> None:
    one = name_of("tiny.corpus", "scheduled__2026-11-21T00:00:00+00:00")
    assert one == name_of("tiny.corpus", "scheduled__2026-11-21T00:00:00+00:00")
    assert one != name_of("tiny.corpus", "scheduled__2026-11-22T00:00:00+00:00")
    for dag in ("tiny.corpus", "a_very_long_recipe_name_that_somebody_has_thought_of_in_summer.corpus", "7b.corpus"):
        name = name_of(dag, "manual__1")
        assert len(name) <= 53
        assert name.replace("-", "").isalnum()
        assert name == name.lower()
        assert name[0].isalpha()
        assert "--" not in name


@pytest.mark.parametrize(
    ("dask", "more", "told"),
    [
        ({"image": ""}, {}, "names no image"),
        ({"min_workers": 0}, {}, "at least one worker"),
        ({"min_workers": 9}, {}, "max_workers = 6"),
        ({}, {"address": "tcp://elsewhere:8786"}, "names another"),
        ({"template": "nowhere.yaml"}, {}, "No such file"),
        ({"memory": "much"}, {}, "is not a quantity"),
    ],
)
def test_an_invalid_place_is_reported_with_its_field(dask: dict[str, Any], more: dict[str, Any], told: str) -> None:
    made = recipe(dask, **more)
    with pytest.raises(RecipeError, match=told):
        cluster_manifest(made, place_of(made) or pytest.fail("no place"), "n", "o")


def test_manifests_are_plain_json() -> None:
    assert json.loads(json.dumps(rendered())) == rendered()
