"""Requirements on every pod of k8s/: pinned, locked down, sized, probed, movable, and without secrets."""

import re

import pytest
import yaml
from kubernetes.utils.quantity import parse_quantity

from tests.k8s.conftest import FOLDERS, K8S, TEMPLATES
from tests.k8s.definitions import KUBERNETES
from tests.k8s.network import selects
from tests.k8s.render import containers, pod_of

LONG_RUNNING = {"Deployment", "StatefulSet", "DaemonSet"}
# The operators fill in image and resources from the recipe. See test_rendered_pods.
FROM_RECIPE = {"trainer.yaml", "trainer-gp3.yaml", "trainer-efa.yaml", "dask.yaml"}


def pods(rendered, templates):
    """Yields (name, pod spec) of every object in k8s/ with a pod spec."""
    for folder in FOLDERS:
        for one in rendered(folder):
            if spec := pod_of(one):
                yield f"{folder} {one['kind']} {one['metadata']['name']}", spec
    for name, template in templates.items():
        yield name, template["spec"]


def test_every_container_is_locked_down(rendered, templates):
    for name, pod in pods(rendered, templates):
        whole = pod["securityContext"]
        assert whole["runAsNonRoot"] is True, name
        assert whole["runAsUser"] > 0, name
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in containers(pod):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name


@pytest.mark.parametrize("folder", FOLDERS)
def test_both_namespaces_refuse_and_report_pods_that_are_not_locked_down(folder, rendered):
    levels = [one["metadata"]["labels"] for one in rendered(folder) if one["kind"] == "Namespace"]
    assert len(levels) == 2
    for labels in levels:
        security = {name: labels[f"pod-security.kubernetes.io/{name}"] for name in ("enforce", "audit", "warn")}
        assert set(security.values()) == {"restricted"}
        versions = [labels[f"pod-security.kubernetes.io/{name}-version"] for name in ("enforce", "audit", "warn")]
        assert versions == [f"v{KUBERNETES}", "latest", "latest"]


def resources(namespace, kind, objects):
    [found] = [one["spec"] for one in objects if one["kind"] == kind and one["metadata"]["namespace"] == namespace]
    return found


def test_the_quota_of_airflows_namespace_allows_its_maximum_of_tasks(rendered, templates, values):
    quota = resources("sluice", "ResourceQuota", rendered("base"))["hard"]
    tasks = values("airflow.yaml")["config"]["core"]["parallelism"]
    asked = templates["executor.yaml"]["spec"]["containers"][0]["resources"]
    sizes = {
        "requests.cpu": asked["requests"]["cpu"],
        "requests.memory": asked["requests"]["memory"],
        "limits.memory": asked["limits"]["memory"],
    }
    for name, size in sizes.items():
        assert tasks * parse_quantity(size) * 5 / 4 < parse_quantity(quota[name]), name
    assert tasks * 2 < int(quota["pods"])
    # With a quota a pod without resources is refused, so the namespace has defaults.
    [limits] = resources("sluice", "LimitRange", rendered("base"))["limits"]
    assert {"cpu", "memory"} <= set(limits["defaultRequest"])
    assert "memory" in limits["default"]


def test_mlflow_can_fill_its_scratch_volume_without_eviction(rendered):
    [limits] = resources("sluice", "LimitRange", rendered("base"))["limits"]
    [mlflow] = [one for one in rendered("base") if one["kind"] == "Deployment"]
    volumes = [parse_quantity(one["emptyDir"]["sizeLimit"]) for one in pod_of(mlflow)["volumes"]]
    assert sum(volumes) < parse_quantity(limits["default"]["ephemeral-storage"])


def test_no_pod_uses_host_namespaces_or_paths(rendered, templates):
    for name, pod in pods(rendered, templates):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod), name
        assert not any("hostPath" in volume for volume in pod.get("volumes", [])), name


def test_every_container_has_requests_and_a_memory_limit(rendered, templates):
    for name, pod in pods(rendered, templates):
        if name in FROM_RECIPE:
            continue
        for container in containers(pod):
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
            assert "memory" in container["resources"]["limits"], name


def test_every_long_running_container_has_probes(rendered):
    for folder in FOLDERS:
        for one in rendered(folder):
            for container in pod_of(one)["containers"] if one["kind"] in LONG_RUNNING else []:
                assert {"readinessProbe", "livenessProbe"} <= set(container), one["metadata"]["name"]


def test_long_running_pods_have_a_disruption_budget_that_allows_a_drain(rendered):
    for folder in FOLDERS:
        budgets = [one["spec"] for one in rendered(folder) if one["kind"] == "PodDisruptionBudget"]
        for one in rendered(folder):
            if one["kind"] in LONG_RUNNING:
                labels = one["spec"]["template"]["metadata"]["labels"]
                [budget] = [spec for spec in budgets if selects(spec["selector"], labels)]
                assert budget.get("maxUnavailable") == 1, one["metadata"]["name"]


def test_a_pod_can_write_to_the_paths_it_needs(rendered, templates):
    for name, pod in pods(rendered, templates):
        if name == "dask.yaml":
            continue  # its operator mounts /tmp
        for container in containers(pod):
            assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]], name


def test_no_pod_is_given_a_token(rendered, templates):
    """Task pods that start work get theirs from the chart's airflowLocalSettings: see test_rendered_pods."""
    with_token = {
        name for name, pod in pods(rendered, templates) if pod.get("automountServiceAccountToken") is not False
    }
    assert with_token == set()


IMAGE = re.compile(r"^[a-z0-9./-]+((:v?\d+\.\d[\w.-]*)|(@sha256:[0-9a-f]{64}))$")


def test_every_image_is_pinned_to_a_version(rendered, templates):
    for name, pod in pods(rendered, templates):
        for container in containers(pod):
            if name in FROM_RECIPE:
                assert "image" not in container
            else:
                assert IMAGE.match(container["image"]), name


def test_on_eks_every_image_of_this_repository_has_one_digest(rendered, values):
    objects, chart = rendered("overlays/eks"), values("airflow-eks.yaml")
    said = {c["image"] for one in objects if (spec := pod_of(one)) for c in containers(spec) if "sluice/" in c["image"]}
    [settings] = [
        one["data"] for one in objects if one["metadata"]["name"] == "sluice-settings" and "AIRFLOW_CONN" in str(one)
    ]
    airflow = chart["images"]["airflow"]
    assert said == {f"{airflow['repository']}@{airflow['digest']}"}
    assert chart["defaultAirflowDigest"] == airflow["digest"]
    tag = chart["config"]["kubernetes_executor"]["worker_container_tag"]
    assert tag == f"{values('airflow.yaml')['defaultAirflowTag']}@{airflow['digest']}"
    for name in ("SLUICE_WORKER_IMAGE", "SLUICE_TRAINER_IMAGE"):
        assert "@sha256:" in settings[name]
        assert IMAGE.match(settings[name])


def test_no_image_uses_latest():
    said = [path for path in K8S.rglob("*") if path.is_file() and re.search(r":latest\b", path.read_text())]
    assert said == []


SECRET_KEY = re.compile(r"password|passwd|secret|token|credential|api_?key|access_?key", re.I)


def test_no_file_contains_a_secret(rendered):
    for folder in FOLDERS:
        for one in rendered(folder):
            assert one["kind"] != "Secret", one["metadata"]["name"]
            for container in containers(pod_of(one) or {"containers": []}):
                for entry in container.get("env", []):
                    assert "value" not in entry or not SECRET_KEY.search(entry["name"]), entry["name"]
            if one["kind"] == "ConfigMap":
                assert not [key for key in one["data"] if SECRET_KEY.search(key)]
                assert not re.search(r"://[^/\s:]+:[^@\s]+@", yaml.safe_dump(one["data"]))


def test_every_volume_claim_names_a_storage_class_of_the_overlay(rendered, templates):
    classes = {one["metadata"]["name"] for one in rendered("overlays/eks") if one["kind"] == "StorageClass"}
    asked = {
        volume["ephemeral"]["volumeClaimTemplate"]["spec"]["storageClassName"]
        for template in templates.values()
        for volume in template["spec"].get("volumes", [])
        if "ephemeral" in volume
    }
    assert asked == classes == {"gp3"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_account_and_priority_of_a_template_exists(name, templates, rendered):
    spec, base = templates[name]["spec"], rendered("base")
    there = {(one["kind"], one["metadata"]["name"]) for one in base}
    assert ("ServiceAccount", spec["serviceAccountName"]) in there
    assert ("PriorityClass", spec["priorityClassName"]) in there
