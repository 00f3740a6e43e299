"""Where a recipe runs: folders, servers, pods. The half of a recipe that bears on nothing that is made.

Any text may name environment variables, `${NAME}` or `${NAME:-default}`; they are filled in where the work runs, so one
recipe serves several machines and holds no secret.
"""

import os
import re
from typing import Any, Literal, TypeVar

from pydantic import field_validator

from tasks.core.config import Config, nearest
from tasks.core.errors import RecipeError
from tasks.run.catalogue import STAGES

P = TypeVar("P", bound=Config)

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class Toleration(Config):
    """A Kubernetes toleration."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class PodPlace(Config):
    """Where pods of one kind run and what they get; the same words for trainers and Dask workers."""

    namespace: str = "default"
    image: str = ""
    """Image with this wheel, tag or digest included."""

    template: str = ""
    """Pod template file (YAML) that everything else here is laid over: volumes, security context, sidecars."""

    conn_id: str = "kubernetes_default"
    """Airflow connection of the cluster."""

    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    cpu: str = "4"
    memory: str = "16Gi"
    priority_class: str = ""
    service_account: str = ""
    """Service account with workload identity; its API token is not mounted."""

    env: dict[str, str] = {}
    """Plain settings only. Secrets come from `secrets` or workload identity."""

    secrets: tuple[str, ...] = ()
    """Kubernetes secrets whose entries become environment variables of the container."""


class KubernetesPlace(PodPlace):
    """The pods that GPU stages run in."""

    gpus: int = 1
    """Per pod."""

    nodes: int = 1
    """Pods of one training run; above 1 they run as one gang (JobSet)."""

    runtime_class: str = ""
    queue: str = ""
    """Kueue local queue; empty: none."""

    queue_priority: dict[str, str] = {}
    """Kueue's WorkloadPriorityClass by stage, such as { canary = "canary", train = "pretrain" }."""

    queue_s: int = 24 * 3600
    """How long a pod may wait for its GPUs before the task gives up."""

    scale_up_s: int = 900
    """How long a pod may wait for a node that the cluster does not have while no autoscaler says anything about it:
    what the first node of a pool takes that stands at zero."""

    max_restarts: int = 3
    """How often a gang that has failed, or a pod that was taken away (evicted, preempted, its node lost), is started
    again before the task's own retries take over."""

    grace_s: int = 120
    """How long a pod may take to save a checkpoint after SIGTERM."""

    node_silent_s: int = 300
    """How long a node may be silent (its kubelet restarts) before its pods are given up and started elsewhere."""

    @field_validator("queue_priority")
    @classmethod
    def _of_stages(cls, given: dict[str, str]) -> dict[str, str]:
        for stage in given:
            if stage not in STAGES:
                raise ValueError(f'no stage "{stage}": {nearest(stage, STAGES)}')
        return given


class DaskPods(PodPlace):
    """A Dask cluster of its own for each DAG run, made by the Dask operator."""

    cpu: str = "1"
    memory: str = "4Gi"
    """Of one worker: it spills to its disk at 60 %, pauses at 80 % and is restarted at 95 %."""

    nthreads: int = 1
    min_workers: int = 1
    max_workers: int = 4
    scheduler_cpu: str = "500m"
    scheduler_memory: str = "2Gi"

    service_type: Literal["ClusterIP", "LoadBalancer"] = "ClusterIP"
    """How the scheduler is reached; "LoadBalancer" where Airflow runs outside the cluster."""

    idle_s: int = 3600
    """The operator deletes a cluster that has been idle for so long: a guard, should the teardown never run."""


class DaskPlace(Config):
    """A Dask cluster: one that is there (`address`), or one per DAG run (`kubernetes`)."""

    address: str = "${SLUICE_DASK:-}"
    """Scheduler, such as tcp://host:8786; empty: no cluster."""

    dashboard: str = ""
    """Address of its status page for people, such as http://host:8787; empty: what the scheduler says. `{name}` and
    `{namespace}` stand for a cluster made per DAG run."""

    kubernetes: DaskPods | None = None


class TrainPlace(Config):
    """Where models train."""

    where: Literal["local", "kubernetes"] = "local"
    """"local": torchrun on the Airflow worker; "kubernetes": a GPU pod."""

    nproc: int = 1
    """Ranks per node."""


class Place(Config):
    """Where everything is."""

    store: str = "${SLUICE_STORE:-.sluice/store}"
    """Folder or fsspec URL of the artifacts."""

    aws_conn_id: str = ""
    """Airflow connection with the rights to an s3:// store; empty: what the AWS environment of the process gives."""

    mlflow: str = "${MLFLOW_TRACKING_URI:-}"
    """MLflow server; empty: nothing is tracked."""

    workers: int = 0
    """Processes for part-wise stages where no Dask cluster is used; below 2: the stage's own process."""

    ask_human: bool = False
    """A person must approve the decided mixture in the Airflow UI before training begins."""

    dask: DaskPlace = DaskPlace()
    train: TrainPlace = TrainPlace()
    kubernetes: KubernetesPlace | None = None


def filled(text: str) -> str:
    """Returns `text` with its environment variables filled in.

    Raises:
        RecipeError: a variable without default is not set.
    """

    def value(match: re.Match[str]) -> str:
        name, default = match.groups()
        found = os.environ.get(name) or default
        if found is None:
            raise RecipeError(f"[place] uses ${{{name}}}, which is not set", f"set it or write ${{{name}:-default}}")
        return found

    return _VARIABLE.sub(value, text)


def all_filled(place: P) -> P:
    """Returns a copy of a section of `[place]` in which every text is filled in (`filled`); raises RecipeError."""

    def value(held: Any) -> Any:
        if isinstance(held, str):
            return filled(held)
        if isinstance(held, dict):
            return {value(name): value(one) for name, one in held.items()}
        if isinstance(held, list):
            return [value(one) for one in held]
        return held

    return type(place).model_validate(value(place.model_dump(mode="json")))
