"""Marks the tasks whose pods may use the Kubernetes API: those that start pods, gangs or Dask clusters.

With the KubernetesExecutor every task is a pod, and most of them parse what strangers wrote. The mark is a label of the
task's pod, set by the task's `executor_config`; other executors ignore it. On the cluster of k8s/ the account without
rights is the default, and `airflowLocalSettings` in k8s/helm/airflow.yaml gives pods with the label the account and the
token to start work; network policies select by it, too. A task with an `executor_config` of its own sets the label
itself.
"""

from typing import Any

USES_KUBERNETES = "sluice/uses-kubernetes"
"""Label of a task's pod that starts work in Kubernetes; its value is "true"."""


def uses_kubernetes() -> dict[str, Any]:
    """Returns the `executor_config` of a task that starts work in Kubernetes."""
    # Imported here: DAG files import this module, and the client costs 0.6 CPU-seconds.
    from kubernetes.client import models as k8s

    return {"pod_override": k8s.V1Pod(metadata=k8s.V1ObjectMeta(labels={USES_KUBERNETES: "true"}))}
