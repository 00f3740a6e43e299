"""The JobSet of a stage on several nodes: a gang of identical pods, started, restarted and stopped together.

Every pod is the pod of `operators.pods.spec` and runs the same command; torchrun's settings are in its environment
(`PET_*`). Rank 0's host name is known beforehand, `<jobset>-node-0-0.<jobset>`, because JobSet creates a headless
service for the pods.

Restarts of the gang:

| exit code of a pod | effect |
|---|---|
| 0 | the gang is done when all pods are |
| 2 | the gang fails: a restart cannot fix an invalid recipe |
| 143 after an eviction or a preemption | all pods are restarted; the restart does not count |
| any other | all pods are restarted, up to `max_restarts` times |

Written for `jobset.x-k8s.io/v1alpha2` (0.12); Kueue admits the gang as a whole by the label on the JobSet.
"""

from kubernetes.client import models as k8s

from operators.pods.failure import PERMANENT_EXIT, Object
from operators.pods.spec import CONTAINER, manifest
from tasks.run.place import KubernetesPlace

RANKS = "node"
"""Name of the only replicated job."""

PORT = 29500
"""Port of the rendezvous at rank 0."""

TTL_S = 24 * 3600
"""Seconds that a finished JobSet is kept, for tasks that have not read it yet and for inspection."""

QUEUE = "kueue.x-k8s.io/queue-name"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
RESTART = "jobset.sigs.k8s.io/restart-attempt"
INDEX = "batch.kubernetes.io/job-completion-index"

ZONE = "topology.kubernetes.io/zone"


def jobset(pod: k8s.V1Pod, name: str, place: KubernetesPlace, nproc: int) -> Object:
    """Returns the manifest of the JobSet `name`, all of whose pods are `pod`.

    Args:
        pod: the stage's pod, with its arguments; its labels are also set on the JobSet.
        name: at most 40 characters: a host name adds 23.
        place: nodes, restarts, queue.
        nproc: ranks per node.
    """
    body = manifest(pod)
    labels = dict(body["metadata"].get("labels") or {})
    # Kueue admits the gang, not each of its pods.
    pod_labels = {key: value for key, value in labels.items() if key != QUEUE}
    spec = body["spec"]
    container = spec["containers"][0]
    container["env"] = _environment(container.get("env") or [], name, place, nproc)
    metadata: Object = {"labels": pod_labels}
    # Ranks communicate in every step: nodes of the same zone are preferred.
    spec.setdefault("affinity", same_zone(name))
    if annotations := body["metadata"].get("annotations"):
        metadata["annotations"] = annotations
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": place.namespace, "labels": labels},
        "spec": {
            # Kueue resumes it when there is quota for the whole gang.
            **({"suspend": True} if place.queue else {}),
            "ttlSecondsAfterFinished": TTL_S,
            "network": {"enableDNSHostnames": True, "subdomain": name, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [RANKS]},
            "failurePolicy": _failure_policy(place),
            "replicatedJobs": [
                {"name": RANKS, "replicas": 1, "template": {"spec": _job(place, {"metadata": metadata, "spec": spec})}}
            ],
        },
    }


def same_zone(name: str) -> Object:
    """Returns the affinity by which the pods of the JobSet `name` prefer one zone."""
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
                # Not "Ignore": replacing a single pod does not revive its peers. The whole gang is restarted; by the
                # failure policy of the JobSet this restart does not count.
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": template,
    }


def _environment(pod_env: list[Object], name: str, place: KubernetesPlace, nproc: int) -> list[Object]:
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
    own: list[Object] = [
        {"name": "PET_NNODES", "value": str(place.nodes)},
        {"name": "PET_NPROC_PER_NODE", "value": str(nproc)},
        {"name": "PET_NODE_RANK", "valueFrom": index},
        {"name": "PET_MASTER_ADDR", "value": rank_zero(name)},
        {"name": "PET_MASTER_PORT", "value": str(PORT)},
    ]
    names = {variable["name"] for variable in own}
    return [*(variable for variable in pod_env if variable["name"] not in names), *own]
