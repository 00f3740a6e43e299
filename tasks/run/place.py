"""The place of a recipe: folders, servers, pods. It counts in no fingerprint and affects no result.

Any text may name environment variables, `${NAME}` or `${NAME:-default}`; they are substituted where the work runs, so
that one recipe works on several machines and contains no secret. Reads the environment.
"""

import os
import re
from typing import Any, Literal, TypeVar

from pydantic import Field, field_validator

from tasks.core.config import Config, nearest
from tasks.core.errors import RecipeError
from tasks.run.catalogue import STAGES
from tasks.trainer.place import CHECK_EVERY, CheckpointLocations, Layout, PreemptionNotice

P = TypeVar("P", bound=Config)

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class Toleration(Config):
    """A Kubernetes toleration."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class PodPlace(Config):
    """Settings of pods, common to trainers and Dask workers."""

    namespace: str = "default"
    image: str = ""
    """Image with this wheel, tag or digest included."""

    template: str = ""
    """Pod template file (YAML) that the other settings are applied to: volumes, security context, sidecars."""

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
    """Pods of the GPU stages."""

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
    """Longest wait of a pod for its GPUs before the task fails."""

    scale_up_s: int = 900
    """Longest wait of a pod for a node that the cluster does not have while no autoscaler reports on it: the time
    that a pool needs to scale up from zero."""

    max_restarts: int = 3
    """Restarts of a gang that has failed, or of a pod that was evicted, preempted or lost with its node, before the
    task's own retries."""

    grace_s: int = 120
    """Time for a pod to save a checkpoint after SIGTERM."""

    node_silent_s: int = 300
    """Time without reports of a node (its kubelet restarts) before its pods count as lost and are started elsewhere."""

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
    """Service type of the scheduler; "LoadBalancer" where Airflow runs outside the cluster."""

    idle_s: int = 3600
    """The operator deletes a cluster after this idle time, in case the teardown never runs."""


class DaskPlace(Config):
    """A Dask cluster: an existing one (`address`), or one per DAG run (`kubernetes`)."""

    address: str = "${SLUICE_DASK:-}"
    """Scheduler, such as tcp://host:8786; empty: no cluster."""

    dashboard: str = ""
    """URL of its status page for people, such as http://host:8787; empty: that of the scheduler. `{name}` and
    `{namespace}` are those of a cluster made per DAG run."""

    kubernetes: DaskPods | None = None


class TrainPlace(Config):
    """Place of training."""

    where: Literal["local", "kubernetes"] = "local"
    """"local": torchrun on the Airflow worker; "kubernetes": a GPU pod."""

    nproc: int = 1
    """Ranks per node."""

    layout: Layout | None = None
    """How the ranks of a training run share model and batch; None: each has all of the model. Canaries have none."""

    check_every: int = Field(default=CHECK_EVERY, ge=0)
    """Steps between two checks in which ranks compute one another's share of the gradient, for which a step takes about
    twice as long; 0: on suspicion only."""

    checkpoints: CheckpointLocations = CheckpointLocations()
    """Where checkpoints are kept. Those of canaries are in scratch and in the store."""

    preemption: PreemptionNotice | None = None
    """Who announces that this machine will be taken away; None: SIGTERM does, as for pods."""


class AlertsPlace(Config):
    """The notifier of Airflow that sends the alerts of a training run."""

    notifier: str = ""
    """Class of the notifier, such as airflow.providers.smtp.notifications.smtp.SmtpNotifier; empty: alerts are in the
    task's log, the store and MLflow alone."""

    arguments: dict[str, Any] = {}
    """Its arguments, by name; no secrets, which belong into Airflow connections. Its templates may use `alert`,
    `artifact`, `dag_id`, `task_id` and `run_id`."""


class Place(Config):
    """Store, servers and executors of a recipe's runs."""

    store: str = "${SLUICE_STORE:-.sluice/store}"
    """Folder or fsspec URL of the artifacts."""

    aws_conn_id: str = ""
    """Airflow connection with the rights to an s3:// store; empty: those of the AWS environment of the process."""

    mlflow: str = "${MLFLOW_TRACKING_URI:-}"
    """MLflow server; empty: no tracking."""

    workers: int = 0
    """Processes for part-wise stages where no Dask cluster is used; below 2: the stage's own process."""

    ask_human: bool = False
    """A person must approve in the Airflow UI the decided mixture before training begins, and each new champion."""

    dask: DaskPlace = DaskPlace()
    train: TrainPlace = TrainPlace()
    alerts: AlertsPlace = AlertsPlace()
    kubernetes: KubernetesPlace | None = None


def filled(text: str) -> str:
    """Substitutes the environment variables in `text`.

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
    """Substitutes environment variables in every text of a section of `[place]` (see `filled`); raises RecipeError."""

    def substituted(value: Any) -> Any:
        if isinstance(value, str):
            return filled(value)
        if isinstance(value, dict):
            return {substituted(name): substituted(item) for name, item in value.items()}
        if isinstance(value, list):
            return [substituted(item) for item in value]
        return value

    return type(place).model_validate(substituted(place.model_dump(mode="json")))
