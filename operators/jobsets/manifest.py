"""The JobSet of a stage on several nodes: one gang of equal pods, started, restarted and stopped together.

Every pod is the pod of `operators.pods.spec` and runs the same command; torchrun's settings are in its environment
(`PET_*`). Rank 0's host name is known beforehand, `<jobset>-node-0-0.<jobset>`, because JobSet gives the pods a
headless service.

Restarts of the gang:

| a pod ends with | then |
|---|---|
| 0 | the gang is done when all pods are |
| 2 | the gang fails: a restart cannot fix an invalid recipe |
| 143 after an eviction or a preemption | all are restarted, without counting |
| anything else | all are restarted, `max_restarts` times |

Written for `jobset.x-k8s.io/v1alpha2` (0.12); Kueue admits it as a whole by the label on the JobSet.
"""

from typing import Any

from kubernetes.client import models as k8s

from operators.pods.failure import PERMANENT_EXIT
from operators.pods.spec import CONTAINER, manifest
from tasks.run.place import KubernetesPlace

Object = dict[str, Any]

RANKS = "node"
"""Name of the one group of pods."""

PORT = 29500
"""Where rank 0 gathers the others."""

KEPT_S = 24 * 3600
"""Seconds that a finished JobSet is kept, for tasks that have not read it yet and for inspection."""

QUEUE = "kueue.x-k8s.io/queue-name"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
RESTART = "jobset.sigs.k8s.io/restart-attempt"
INDEX = "batch.kubernetes.io/job-completion-index"

ZONE = "topology.kubernetes.io/zone"

DISTURBED = "PodDisrupted"


def jobset(pod: k8s.V1Pod, name: str, place: KubernetesPlace, nproc: int) -> Object:
    """Returns the JobSet called `name` whose every pod is `pod`.

    Args:
        pod: of the stage, with its arguments; its labels become those of the JobSet too.
        name: at most 40 characters: a host name adds 23.
        place: nodes, restarts, queue.
        nproc: ranks per node.
    """
    body = manifest(pod)
    labels = dict(body["metadata"].get("labels") or {})
    # The queue takes the gang, not each of its pods.
    pod_labels = {key: value for key, value in labels.items() if key != QUEUE}
    spec = body["spec"]
    container = spec["containers"][0]
    container["env"] = _environment(container.get("env") or [], name, place, nproc)
    metadata: Object = {"labels": pod_labels}
    # Ranks speak to one another in every step: nodes of one zone, where the scheduler has the choice.
    spec.setdefault("affinity", _near(name))
    if annotations := body["metadata"].get("annotations"):
        metadata["annotations"] = annotations
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": place.namespace, "labels": labels},
        "spec": {
            # Kueue takes it out of suspension when there is room for all of it.
            **({"suspend": True} if place.queue else {}),
            "ttlSecondsAfterFinished": KEPT_S,
            "network": {"enableDNSHostnames": True, "subdomain": name, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [RANKS]},
            "failurePolicy": _failure_policy(place),
            "replicatedJobs": [
                {"name": RANKS, "replicas": 1, "template": {"spec": _job(place, {"metadata": metadata, "spec": spec})}}
            ],
        },
    }


def _near(name: str) -> Object:
    gang = {"labelSelector": {"matchLabels": {JOBSET_NAME: name}}, "topologyKey": ZONE}
    return {
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": gang}]}
    }


def rank_zero(name: str) -> str:
    """Returns the host name of a gang's first pod."""
    return f"{name}-{RANKS}-0-0.{name}"


def _failure_policy(place: KubernetesPlace) -> Object:
    return {
        "maxRestarts": place.max_restarts,
        # All pods of the old gang end before the new ones start: they use the same GPUs and the same checkpoint.
        "restartStrategy": "BlockingRecreate",
        "rules": [
            {
                "name": "permanent",
                "action": "FailJobSet",
                "onJobFailureReasons": ["PodFailurePolicy"],
                "onJobFailureMessagePatterns": [f".*exit code {PERMANENT_EXIT} .*"],
                "targetReplicatedJobs": [RANKS],
            },
            {
                "name": "disrupted",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["PodFailurePolicy"],
                "targetReplicatedJobs": [RANKS],
            },
        ],
    }


def _job(place: KubernetesPlace, template: Object) -> Object:
    return {
        "completionMode": "Indexed",
        "completions": place.nodes,
        "parallelism": place.nodes,
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [PERMANENT_EXIT]},
                },
                # Not "Ignore": a single pod that is replaced does not revive its peers. The gang as a whole is started
                # again, and by the rule above it does not count.
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": template,
    }


def _environment(given: list[Object], name: str, place: KubernetesPlace, nproc: int) -> list[Object]:
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
    own: list[Object] = [
        {"name": "PET_NNODES", "value": str(place.nodes)},
        {"name": "PET_NPROC_PER_NODE", "value": str(nproc)},
        {"name": "PET_NODE_RANK", "valueFrom": index},
        {"name": "PET_MASTER_ADDR", "value": rank_zero(name)},
        {"name": "PET_MASTER_PORT", "value": str(PORT)},
    ]
    names = {one["name"] for one in own}
    return [*(one for one in given if one["name"] not in names), *own]
