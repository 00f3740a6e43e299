"""Strict schemas of the custom resources in use, and a check that finds unknown fields at any depth.

Written from the field lists of JobSet v1alpha2 (0.12), Kueue v1beta2 (0.19) and kubernetes.dask.org/v1: types, choices,
required fields. What only a webhook checks is not here. Pods and jobs inside them are checked as the built-in kinds
that they are.

A schema is a type, a tuple of types, a set of allowed values, a list of one schema, or a dict of field to schema, in
which "!" at the end marks a required field and the only key ANY any field. A function returns the errors it finds.
"""

from collections.abc import Callable, Iterator
from typing import Any

import kubernetes_validate

KUBERNETES = "1.36"
ANY = "*"
Schema = Any
Object = dict[str, Any]

METADATA: Schema = {"name!": str, "namespace": str, "labels": {ANY: str}, "annotations": {ANY: str}}
QUANTITY: Schema = (str, int)
TOLERATION: Schema = {
    "key": str,
    "operator": {"Exists", "Equal"},
    "value": str,
    "effect": {"NoSchedule", "PreferNoSchedule", "NoExecute"},
    "tolerationSeconds": int,
}
SELECTOR: Schema = {"matchLabels": {ANY: str}, "matchExpressions": [{"key!": str, "operator!": str, "values": [str]}]}


def built_in(found: Object) -> list[str]:
    """Returns what strict validation finds in an object of a built-in kind: unknown fields, wrong types."""
    try:
        kubernetes_validate.validate(found, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    return []


def job(spec: Any) -> list[str]:
    """Checks the template of a replicated job as the batch/v1 Job that it becomes."""
    return built_in({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "inner"}, **spec})


def pod(spec: Any) -> list[str]:
    """Checks a pod spec as the Pod that it becomes."""
    return built_in({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "inner"}, "spec": spec})


def service(spec: Any) -> list[str]:
    """Checks the spec of a Service."""
    return built_in({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "inner"}, "spec": spec})


ACTIONS = {
    *("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
    *("RestartJob", "RestartJobAndIgnoreMaxRestarts"),
}
JOBSET: Schema = {
    "suspend": bool,
    "ttlSecondsAfterFinished": int,
    "managedBy": str,
    "network": {"enableDNSHostnames": bool, "subdomain": str, "publishNotReadyAddresses": bool},
    "successPolicy": {"operator!": {"All", "Any"}, "targetReplicatedJobs": [str]},
    "failurePolicy": {
        "maxRestarts": int,
        "restartStrategy": {"Recreate", "BlockingRecreate", "InPlaceRestart"},
        "rules": [
            {
                "name!": str,
                "action!": ACTIONS,
                "onJobFailureReasons": [str],
                "onJobFailureMessagePatterns": [str],
                "targetReplicatedJobs": [str],
            }
        ],
    },
    "coordinator": {"replicatedJob!": str, "jobIndex": int, "podIndex": int},
    "startupPolicy": {"startupPolicyOrder!": {"AnyOrder", "InOrder"}},
    "replicatedJobs!": [
        {
            "name!": str,
            "replicas": int,
            "groupName": str,
            "dependsOn": [{"name!": str, "status!": {"Ready", "Complete"}}],
            "template!": job,
        }
    ],
}
QUEUE: Schema = {
    "namespaceSelector": SELECTOR,
    "queueingStrategy": {"BestEffortFIFO", "StrictFIFO"},
    "preemption": {
        "withinClusterQueue": {"Never", "LowerPriority", "LowerOrNewerEqualPriority"},
        "reclaimWithinCohort": {"Never", "LowerPriority", "Any"},
    },
    "resourceGroups!": [
        {
            "coveredResources!": [str],
            "flavors!": [
                {"name!": str, "resources!": [{"name!": str, "nominalQuota!": QUANTITY, "borrowingLimit": QUANTITY}]}
            ],
        }
    ],
}
FLAVOR: Schema = {
    "nodeLabels": {ANY: str},
    "nodeTaints": [{"key!": str, "value": str, "effect!": {"NoSchedule", "PreferNoSchedule", "NoExecute"}}],
    "tolerations": [TOLERATION],
    "topologyName": str,
}
DASK_CLUSTER: Schema = {
    "idleTimeout": int,
    "scheduler!": {"spec!": pod, "service!": service, "metadata": {"labels": {ANY: str}, "annotations": {ANY: str}}},
    "worker!": {"replicas!": int, "spec!": pod, "metadata": {"labels": {ANY: str}, "annotations": {ANY: str}}},
}

SCHEMAS: dict[tuple[str, str], Schema] = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {"spec!": JOBSET},
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"): {"spec!": QUEUE},
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"): {"spec": FLAVOR},
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): {"spec!": {"clusterQueue!": str}},
    ("kueue.x-k8s.io/v1beta2", "WorkloadPriorityClass"): {"value!": int, "description": str},
    ("kubernetes.dask.org/v1", "DaskCluster"): {"spec!": DASK_CLUSTER},
    ("kubernetes.dask.org/v1", "DaskAutoscaler"): {"spec!": {"cluster!": str, "minimum!": int, "maximum!": int}},
}


def errors(found: Object) -> list[str]:
    """Returns what is wrong with an object of any kind, each with its path; empty: nothing.

    Raises:
        KeyError: a custom resource without a schema here.
    """
    group = found["apiVersion"].split("/")[0]
    if "." not in group or (group.endswith(".k8s.io") and not group.startswith(("jobset", "kueue"))):
        return built_in(found)
    schema = SCHEMAS[found["apiVersion"], found["kind"]]
    return list(_check(found, {"apiVersion!": str, "kind!": str, "metadata!": METADATA, **schema}, found["kind"]))


def _check(found: Any, schema: Schema, at: str) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from _check_object(found, schema, at)
    elif isinstance(schema, list):
        if not isinstance(found, list):
            yield f"{at}: not a list"
            return
        for index, one in enumerate(found):
            yield from _check(one, schema[0], f"{at}[{index}]")
    elif isinstance(schema, set):
        if found not in schema:
            yield f"{at}: {found!r} is none of {', '.join(sorted(schema))}"
    elif isinstance(schema, type | tuple):
        # In JSON a boolean is no number; in Python it is.
        if not isinstance(found, schema) or (isinstance(found, bool) and schema is not bool):
            yield f"{at}: {found!r} has the wrong type"
    else:
        check: Callable[[Any], list[str]] = schema
        yield from (f"{at}.{error}" for error in check(found))


def _check_object(found: Any, schema: dict[str, Schema], at: str) -> Iterator[str]:
    if not isinstance(found, dict):
        yield f"{at}: not an object"
        return
    if set(schema) == {ANY}:
        for key, value in found.items():
            yield from _check(value, schema[ANY], f"{at}.{key}")
        return
    fields = {key.rstrip("!"): value for key, value in schema.items()}
    yield from (f"{at}: {key.rstrip('!')} is missing" for key in schema if key.endswith("!") and key[:-1] not in found)
    for key, value in found.items():
        if key in fields:
            yield from _check(value, fields[key], f"{at}.{key}")
        else:
            yield f"{at}: unknown field {key}"
