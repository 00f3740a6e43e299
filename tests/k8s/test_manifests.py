"""Every object in k8s/ is valid in strict mode, and the strict check finds what it should."""

import copy

import pytest
import yaml

from tests.k8s.conftest import FOLDERS, TEMPLATES
from tests.k8s.custom import errors


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_object_is_valid_in_strict_mode(folder, rendered):
    wrong = [(one["kind"], one["metadata"], errors(one)) for one in rendered(folder)]
    assert [one for one in wrong if one[2]] == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_pod_template_is_valid_in_strict_mode(name, templates):
    assert errors({**templates[name], "metadata": {"name": "x", **templates[name]["metadata"]}}) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_name_that_an_object_refers_to_exists(folder, rendered):
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
    (("spec",), "suspended", True, "unknown field suspended"),
    (("spec", "network"), "enableDnsHostnames", True, "unknown field enableDnsHostnames"),
    (("spec", "failurePolicy", "rules", 0), "action", "Restart", "none of"),
    (("spec", "failurePolicy"), "maxRestarts", "3", "wrong type"),
    (JOB, "name", None, "name is missing"),
    ((*JOB, "template", "spec"), "completion", 2, "completion"),
    ((*JOB, "template", "spec", "template", "spec", "containers", 0), "imagePullpolicy", "Always", "imagePullpolicy"),
]


def test_a_good_gang_passes_the_strict_check():
    assert errors(JOBSET) == []


@pytest.mark.parametrize(("path", "key", "value", "said"), BREAKS, ids=[one[1] for one in BREAKS])
def test_a_mistake_at_any_depth_of_a_gang_is_found(path, key, value, said):
    broken = copy.deepcopy(JOBSET)
    at = broken
    for step in path:
        at = at[step]
    at.pop(key) if value is None else at.update({key: value})
    [error, *_] = errors(broken)
    assert said in error


def test_a_mistake_in_a_queue_is_found(rendered):
    [queue] = [copy.deepcopy(one) for one in rendered("base") if one["kind"] == "ClusterQueue"]
    queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalquota"] = 3
    assert errors(queue) == ["ClusterQueue.spec.resourceGroups[0].flavors[0].resources[0]: unknown field nominalquota"]
