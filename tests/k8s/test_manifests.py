"""Every object in k8s/ is valid in strict mode, and the strict check finds errors."""

import copy

import pytest
import yaml

from tests.k8s.conftest import FOLDERS, TEMPLATES
from tests.k8s.definitions import built_in, is_custom


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_object_is_valid_in_strict_mode(folder, rendered):
    wrong = [(one["kind"], one["metadata"], built_in(one)) for one in rendered(folder) if not is_custom(one)]
    assert [one for one in wrong if one[2]] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_custom_object_is_valid_by_its_crd(folder, rendered, definitions):
    custom = [one for one in rendered(folder) if is_custom(one)]
    assert {one["kind"] for one in custom} >= {"ClusterQueue", "LocalQueue", "ResourceFlavor", "WorkloadPriorityClass"}
    wrong = [(one["kind"], one["metadata"], definitions.errors(one)) for one in custom]
    assert [one for one in wrong if one[2]] == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_pod_template_is_valid_in_strict_mode(name, templates):
    assert built_in({**templates[name], "metadata": {"name": "x", **templates[name]["metadata"]}}) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_referenced_name_exists(folder, rendered):
    objects = rendered(folder)
    there = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects}
    for one in objects:
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            for subject in one["subjects"]:
                assert ("ServiceAccount", subject["namespace"], subject["name"]) in there
            role = one["roleRef"]
            assert (role["kind"], one["metadata"].get("namespace"), role["name"]) in there
        if one["kind"] == "LocalQueue":
            assert ("ClusterQueue", None, one["spec"]["clusterQueue"]) in there
        if one["kind"] == "ClusterQueue":
            for group in one["spec"]["resourceGroups"]:
                assert {("ResourceFlavor", None, flavor["name"]) for flavor in group["flavors"]} <= there


JOBSET = yaml.safe_load(
    """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: run-7, namespace: ml, labels: {kueue.x-k8s.io/queue-name: training}}
spec:
  suspend: true
  ttlSecondsAfterFinished: 86400
  network: {enableDNSHostnames: true, subdomain: run-7, publishNotReadyAddresses: true}
  successPolicy: {operator: All, targetReplicatedJobs: [node]}
  failurePolicy:
    maxRestarts: 3
    restartStrategy: Recreate
    rules: [{name: bad, action: FailJobSet, onJobFailureReasons: [PodFailurePolicy], targetReplicatedJobs: [node]}]
  replicatedJobs:
  - name: node
    replicas: 1
    template:
      spec:
        completionMode: Indexed
        completions: 2
        parallelism: 2
        backoffLimit: 0
        template:
          spec:
            restartPolicy: Never
            containers: [{name: train, image: "trainer:1.0", resources: {limits: {nvidia.com/gpu: "4"}}}]
"""
)

JOB = ("spec", "replicatedJobs", 0)
BREAKS = [
    (("spec",), "suspended", True, "'suspended' was unexpected"),
    (("spec", "network"), "enableDnsHostnames", True, "'enableDnsHostnames' was unexpected"),
    (("spec", "failurePolicy", "rules", 0), "action", "Restart", "'Restart' is not one of"),
    (("spec", "failurePolicy"), "maxRestarts", "3", "'3' is not of type 'integer'"),
    (("metadata",), "label", {"a": "b"}, "label"),
    (JOB, "name", None, "'name' is a required property"),
    ((*JOB, "template", "spec"), "completion", 2, "completion"),
    ((*JOB, "template", "spec", "template", "spec", "containers", 0), "imagePullpolicy", "Always", "imagePullpolicy"),
]


def test_a_good_gang_passes_the_strict_check(definitions):
    assert definitions.errors(JOBSET) == []


@pytest.mark.parametrize(("path", "key", "value", "said"), BREAKS, ids=[one[1] for one in BREAKS])
def test_a_mistake_at_any_depth_of_a_gang_is_found(path, key, value, said, definitions):
    broken = copy.deepcopy(JOBSET)
    at = broken
    for step in path:
        at = at[step]
    at.pop(key) if value is None else at.update({key: value})
    [error, *_] = definitions.errors(broken)
    assert said in error


def test_a_mistake_in_a_queue_is_found(rendered, definitions):
    [queue] = [copy.deepcopy(one) for one in rendered("base") if one["kind"] == "ClusterQueue"]
    queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalquota"] = 3
    [error] = definitions.errors(queue)
    assert error.startswith("spec.resourceGroups.0.flavors.0.resources.0: ")
    assert "'nominalquota' was unexpected" in error
