"""Manifests of the Dask cluster of a DAG run, for the Dask operator: `DaskCluster` and `DaskAutoscaler`.

Scheduler and workers run the same image, so client, scheduler and workers have the same wheel. A worker has
a memory limit: it spills at 60 %, pauses at 80 % and is restarted by its nanny at 95 %, before the kernel kills the
pod. Only workers get secrets and the service account: the scheduler reads no data.

Pods do not run as root, write only to `/tmp` (an emptyDir, which is also where workers spill) and have no token
of the Kubernetes API. Settings that recipes do not have come from the pod template file of the place.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from operators.pods.failure import Object
from tasks.core.errors import RecipeError
from tasks.run.place import DaskPods, expand_all, expand_env
from tasks.run.recipe import Recipe

API = "kubernetes.dask.org/v1"
COMM, STATUS = "tcp-comm", "http-dashboard"
SCHEDULER_PORT, STATUS_PORT, WORKER_STATUS_PORT = 8786, 8787, 8788
LONGEST_NAME = 53
"""Limit of the Dask operator, which appends "-scheduler"."""

OWNER = "sluice/run"
"""Annotation with the owner of the cluster: DAG and run."""


def place_of(recipe: Recipe) -> DaskPods | None:
    """Returns the `[place.dask.kubernetes]` section of a recipe, or None if it has none.

    Raises:
        RecipeError: the place contradicts itself or is incomplete.
    """
    dask = recipe.place.dask
    pods = dask.kubernetes
    if pods is None:
        return None
    where = f"{recipe.name}: [place.dask.kubernetes]"
    if dask.address not in ("", type(dask)().address):
        raise RecipeError(f"{where} creates a cluster, and [place.dask] address names another", "remove one of the two")
    pods = expand_all(pods)
    if not pods.image:
        raise RecipeError(f"{where} names no image", "build one with k8s/images and name it")
    if not 1 <= pods.min_workers <= pods.max_workers:
        raise RecipeError(
            f"{where} min_workers = {pods.min_workers}, max_workers = {pods.max_workers}",
            "keep at least one worker, and no more than max_workers",
        )
    return pods


def name_of(dag_id: str, run_id: str) -> str:
    """Returns the name of a run's cluster: every try of every task of the run finds the same one."""
    digest = hashlib.blake2b(f"{dag_id}\0{run_id}".encode(), digest_size=5).hexdigest()
    readable = re.sub(r"[^a-z0-9]+", "-", dag_id.lower()).strip("-")[: LONGEST_NAME - len(digest) - 1].rstrip("-")
    return f"{readable}-{digest}" if readable[:1].isalpha() else f"dask-{digest}"


def cluster_manifest(recipe: Recipe, pods: DaskPods, name: str, owner: str) -> Object:
    """Returns the DaskCluster of a run.

    Args:
        recipe: for the labels.
        pods: configuration of the pods.
        name: see `name_of`.
        owner: DAG id and run id, as text.
    """
    labels = {"app.kubernetes.io/part-of": "sluice", "sluice/recipe": recipe.name}
    return {
        "apiVersion": API,
        "kind": "DaskCluster",
        "metadata": {"name": name, "namespace": pods.namespace, "labels": labels, "annotations": {OWNER: owner}},
        "spec": {
            # Where the teardown never runs (Airflow itself is gone), the operator deletes idle clusters.
            "idleTimeout": pods.idle_s,
            "scheduler": {"spec": _pod(pods, _scheduler(pods)), "service": _service(pods, name)},
            "worker": {"replicas": pods.min_workers, "spec": _pod(pods, _worker(pods), worker=True)},
        },
    }


def autoscaler_manifest(pods: DaskPods, name: str) -> Object | None:
    """Returns the DaskAutoscaler of a cluster, or None where its size is fixed."""
    if pods.min_workers == pods.max_workers:
        return None
    return {
        "apiVersion": API,
        "kind": "DaskAutoscaler",
        "metadata": {"name": name, "namespace": pods.namespace},
        "spec": {"cluster": name, "minimum": pods.min_workers, "maximum": pods.max_workers},
    }


def _scheduler(pods: DaskPods) -> Object:
    listen = ["--host", "0.0.0.0", "--port", str(SCHEDULER_PORT), "--dashboard-address", f":{STATUS_PORT}"]
    healthy = {"path": "/health", "port": STATUS}
    return {
        "name": "scheduler",
        "image": expand_env(pods.image),
        "command": ["python", "-m", "dask", "scheduler", *listen],
        "ports": [{"name": COMM, "containerPort": SCHEDULER_PORT}, {"name": STATUS, "containerPort": STATUS_PORT}],
        "env": _env(pods.env),
        "resources": _resources(pods.scheduler_cpu, pods.scheduler_memory),
        "readinessProbe": {"httpGet": healthy, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 15},
        # A scheduler that plans a large stage may be busy for many seconds; it must not be killed for that.
        "livenessProbe": {"httpGet": healthy, "periodSeconds": 20, "timeoutSeconds": 15, "failureThreshold": 9},
    }


def _worker(pods: DaskPods) -> Object:
    limit = str(_bytes(pods.memory))
    status = f":{WORKER_STATUS_PORT}"
    command = ["python", "-m", "dask", "worker", "--name", "$(DASK_WORKER_NAME)", "--nthreads", str(pods.nthreads)]
    command += ["--memory-limit", limit, "--local-directory", "/tmp/dask", "--dashboard-address", status]
    # Without a scheduler the worker exits and its container restarts; so it finds a scheduler that has moved.
    command += ["--death-timeout", "60"]
    return {
        "name": "worker",
        "image": expand_env(pods.image),
        "command": command,
        "ports": [{"name": STATUS, "containerPort": WORKER_STATUS_PORT}],
        "env": _env(pods.env),
        "envFrom": [{"secretRef": {"name": name}} for name in pods.secrets],
        "resources": _resources(pods.cpu, pods.memory),
        # No liveness probe: the nanny restarts a stuck worker, and Kubernetes must not kill a busy one.
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": STATUS},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 30,
        },
    }


def _env(env: Mapping[str, str]) -> list[Object]:
    # HOME: libraries write caches there, and the image's is read-only.
    return [{"name": name, "value": value} for name, value in {"PYTHONUNBUFFERED": "1", "HOME": "/tmp", **env}.items()]


def _resources(cpu: str, memory: str) -> Object:
    # No CPU limit: a throttled worker misses its heartbeats to the scheduler.
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}


def _service(pods: DaskPods, name: str) -> Object:
    return {
        "type": pods.service_type,
        "selector": {"dask.org/cluster-name": name, "dask.org/component": "scheduler"},
        "ports": [
            {"name": COMM, "protocol": "TCP", "port": SCHEDULER_PORT, "targetPort": COMM},
            {"name": STATUS, "protocol": "TCP", "port": STATUS_PORT, "targetPort": STATUS},
        ],
    }


def _pod(pods: DaskPods, container: Object, *, worker: bool = False) -> Object:
    """Returns the pod spec: our settings merged over the place's template, our container over its first one."""
    own: Object = {
        "automountServiceAccountToken": False,
        # A worker's tasks are computed again elsewhere; a grace period would only delay the deletion.
        "terminationGracePeriodSeconds": 10,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    if pods.node_selector:
        own["nodeSelector"] = dict(pods.node_selector)
    if pods.tolerations:
        own["tolerations"] = [toleration.model_dump(exclude_defaults=False) for toleration in pods.tolerations]
    if pods.priority_class:
        own["priorityClassName"] = pods.priority_class
    if pods.service_account and worker:
        own["serviceAccountName"] = pods.service_account
    container |= {
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    template = _template(pods)
    first, *others = template.get("containers") or [{}]
    return {**_merge(template, own), "containers": [_merge(first, container), *others]}


def _merge(base: Object, top: Object) -> Object:
    """Merges `top` into `base`: objects recursively, lists of named entries by name; other lists are concatenated."""
    merged = dict(base)
    for key, value in top.items():
        below = base.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = _merge(below, value)
        elif isinstance(below, list) and isinstance(value, list) and key != "command":
            names = {item.get("name") for item in value if isinstance(item, dict)} - {None}
            merged[key] = [item for item in below if not (isinstance(item, dict) and item.get("name") in names)] + value
        else:
            merged[key] = value
    return merged


def _template(pods: DaskPods) -> Object:
    if not pods.template:
        return {}
    import yaml

    path = Path(pods.template)
    try:
        spec = yaml.safe_load(path.read_text())["spec"]
        assert isinstance(spec["containers"][0], dict)
    except (OSError, yaml.YAMLError, KeyError, TypeError, IndexError, AssertionError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not a manifest of kind Pod with a container"
        raise RecipeError(
            f"[place.dask.kubernetes] template {path.absolute()}: {cause}",
            "give the path of a pod template from the Airflow home",
        ) from None
    return dict(spec)


def _bytes(quantity: str) -> int:
    # Imported here, because the DAG files import this module and the Kubernetes client costs 0.6 CPU-seconds.
    from kubernetes.utils.quantity import parse_quantity

    try:
        return int(parse_quantity(quantity))
    except ValueError:
        raise RecipeError(f'[place.dask.kubernetes] memory = "{quantity}" is not a quantity', 'write "4Gi"') from None
