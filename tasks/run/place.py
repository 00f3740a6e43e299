"""The place of a recipe: folders, servers, pods. It is not part of fingerprints and does not affect results.

Any text may contain environment variables, `${NAME}` or `${NAME:-default}`. They are expanded where the work runs, so
one recipe works on several machines and contains no secrets. Reads the environment.
"""

import os
import re
from typing import Any, Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from tasks.core.config import Config, nearest
from tasks.core.errors import RecipeError
from tasks.run.catalogue import STAGES
from tasks.run.schedule import UTC, Schedule, Timezone
from tasks.trainer.place import TrainPlace

P = TypeVar("P", bound=Config)

LakeTableName = Literal["documents", "chunks", "scores", "funnel"]
TABLES: tuple[LakeTableName, ...] = ("documents", "chunks", "scores", "funnel")
"""Tables of a lake (`tasks.run.lake_tables`)."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class Toleration(Config):
    """A Kubernetes toleration."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class PodPlace(Config):
    """Settings of pods that trainers and Dask workers have in common."""

    namespace: str = "default"
    image: str = ""
    """Image with this wheel, including tag or digest."""

    template: str = ""
    """Pod template file (YAML) over which the other settings are merged: volumes, security context, sidecars."""

    conn_id: str = "kubernetes_default"
    """Airflow connection of the cluster."""

    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    cpu: str = "4"
    memory: str = "16Gi"
    priority_class: str = ""
    service_account: str = ""
    """Service account with workload identity. Its API token is not mounted."""

    env: dict[str, str] = {}
    """Environment variables without secrets. Secrets come from `secrets` or workload identity."""

    secrets: tuple[str, ...] = ()
    """Kubernetes secrets whose entries become environment variables of the container."""


class KubernetesPlace(PodPlace):
    """Pods of the GPU stages."""

    gpus: int = 1
    """Per pod."""

    nodes: int = 1
    """Pods of one training run; above 1 they run as one gang."""

    gang: Literal["jobset", "trainjob"] = "jobset"
    """Object that starts a gang: a JobSet, or a TrainJob of Kubeflow Trainer, which makes one."""

    training_runtime: str = "sluice"
    """TrainingRuntime in `namespace` that a TrainJob refers to; `python -m operators.jobsets.trainjob` writes it."""

    runtime_class: str = ""
    queue: str = ""
    """Kueue LocalQueue; "" for none."""

    queue_priority: dict[str, str] = {}
    """Kueue's WorkloadPriorityClass by stage, such as { canary = "canary", train = "pretrain" }."""

    queue_s: int = 24 * 3600
    """Seconds that a pod may wait for its GPUs before the task fails."""

    scale_up_s: int = 900
    """Seconds that a pod may wait for a node that does not exist yet and that no autoscaler has announced: the time a
    node pool takes to scale up from zero."""

    max_restarts: int = 3
    """Restarts of a failed gang, or of a pod that was evicted, preempted or lost with its node, before the task itself
    is retried."""

    grace_s: int = 120
    """Seconds for a pod to save a checkpoint after SIGTERM."""

    node_silent_s: int = 300
    """Seconds without a report from a node before its pods count as lost and are started elsewhere. A restart of the
    kubelet takes less."""

    @field_validator("queue_priority")
    @classmethod
    def _stages_exist(cls, priorities: dict[str, str]) -> dict[str, str]:
        for stage in priorities:
            if stage not in STAGES:
                raise ValueError(f'no stage "{stage}": {nearest(stage, STAGES)}')
        return priorities


class DaskPods(PodPlace):
    """A separate Dask cluster for each DAG run, created by the Dask operator."""

    cpu: str = "1"
    memory: str = "4Gi"
    """Memory of one worker. It spills to disk at 60 %, pauses at 80 % and is restarted at 95 %."""

    nthreads: int = 1
    min_workers: int = 1
    max_workers: int = 4
    scheduler_cpu: str = "500m"
    scheduler_memory: str = "2Gi"

    service_type: Literal["ClusterIP", "LoadBalancer"] = "ClusterIP"
    """Service type of the scheduler; "LoadBalancer" if Airflow runs outside the cluster."""

    idle_s: int = 3600
    """Idle seconds after which the operator deletes a cluster, in case the teardown task never runs."""


class DaskPlace(Config):
    """A Dask cluster: an existing one (`address`), or one per DAG run (`kubernetes`)."""

    address: str = "${SLUICE_DASK:-}"
    """Address of the scheduler, such as tcp://host:8786; "" for no cluster."""

    dashboard: str = ""
    """URL of the dashboard, such as http://host:8787; "" for the URL that the scheduler reports. `{name}` and
    `{namespace}` are replaced by those of a cluster created per DAG run."""

    kubernetes: DaskPods | None = None


class AlertsPlace(Config):
    """The Airflow notifier that sends the alerts of a training run."""

    notifier: str = ""
    """Class of the notifier, such as airflow.providers.smtp.notifications.smtp.SmtpNotifier; "" for none: alerts are
    only in the task's log, the store and MLflow."""

    arguments: dict[str, Any] = {}
    """Arguments of the notifier, by name, without secrets, which belong in Airflow connections. Templates may use
    `alert`, `artifact`, `dag_id`, `task_id` and `run_id`."""


class Retention(Config):
    """Removal of the files of old versions (`tasks.run.retention`)."""

    versions: int = Field(default=3, ge=1)
    """Newest versions whose files are all kept, including those that are not complete."""

    warc_months: int | None = Field(default=None, ge=0)
    """Months of 30 days for which captures are kept; None: always. Those of registered models are always kept."""

    grace_days: float = Field(default=7, ge=0)
    """Days between the listing of unneeded files and their removal."""

    schedule: Schedule | None = None
    """Cron expression of the DAG `<recipe>.retention`; None: only on request."""

    timezone: Timezone = UTC
    """Time zone of the schedule."""

    remove: bool = False
    """Whether the DAG removes files; false: it only lists them."""

    runs: Literal["keep", "delete"] = "keep"
    """MLflow runs of artifacts whose files were removed: kept, or marked as deleted, which `mlflow gc` completes."""

    log_days: float | None = Field(default=None, ge=1)
    """Days for which Airflow's task logs of this recipe are kept in its log folder; None: always. Only the DAG
    `<recipe>.retention` removes them."""


class LakePlace(Config):
    """Tables of a data lake that have the corpus (`tasks.run.lake`)."""

    format: Literal["delta", "iceberg"]

    root: str
    """Folder or URL of the tables, each in `<root>/<recipe>/<table>`. A bucket is used with the credentials of the
    store."""

    catalog: str = ""
    """Iceberg: name of a catalog, whose settings are in the environment of pyiceberg (PYICEBERG_CATALOG__<NAME>__URI);
    "": an SQLite file in the folder `root`."""

    tables: tuple[LakeTableName, ...] = TABLES
    """The tables; `chunks` only has rows where the recipe makes chunks."""

    @model_validator(mode="after")
    def _agrees(self) -> "LakePlace":
        if self.catalog and self.format != "iceberg":
            raise ValueError("catalog: a Delta table has none: remove it")
        return self


class Place(Config):
    """Store, servers and executors of a recipe's runs."""

    store: str = "${SLUICE_STORE:-.sluice/store}"
    """Folder or fsspec URL of the artifacts."""

    store_conn_id: str = ""
    """Airflow connection with the credentials for a store on S3, GCS or ADLS, of the type of that store; "" to use the
    environment of the process."""

    stream_conn_id: str = ""
    """Airflow connection of the type "kafka", with the settings of the client; "" to use SLUICE_KAFKA."""

    mlflow: str = "${MLFLOW_TRACKING_URI:-}"
    """URL of the MLflow server; "" for no tracking."""

    workers: int = 0
    """Processes for stages with parts if there is no Dask cluster; below 2, parts run in the stage's own process."""

    watch_s: float = Field(default=0.0, ge=0)
    """Seconds between two looks of Airflow's triggerer at the files of `[[extract.files]]`; a change starts the DAG
    `<recipe>.corpus`. 0: they are not watched."""

    ask_human: bool = False
    """Whether a person must approve, in the Airflow UI, the mixture before training begins and each new champion."""

    approve_within_h: float = Field(default=0.0, ge=0, le=87_600)
    """Hours after which a mixture that nobody approved is rejected, so that no training begins with it; 0: never."""

    dask: DaskPlace = DaskPlace()
    train: TrainPlace = TrainPlace()
    alerts: AlertsPlace = AlertsPlace()
    retention: Retention | None = None
    """None: the recipe has no DAG `retention`; `sluice gc` has the defaults."""

    lake: LakePlace | None = None
    """None: the recipe has no DAG `lake`."""

    kubernetes: KubernetesPlace | None = None


def expand_env(text: str) -> str:
    """Expands the environment variables in `text`.

    Raises:
        RecipeError: a variable without default is not set.
    """

    def replace(match: re.Match[str]) -> str:
        name, default = match.groups()
        value = os.environ.get(name) or default
        if value is None:
            raise RecipeError(f"[place] uses ${{{name}}}, which is not set", f"set it or write ${{{name}:-default}}")
        return value

    return _VARIABLE.sub(replace, text)


def expand_all(place: P) -> P:
    """Expands environment variables in every text of a section of `[place]` (see `expand_env`); raises RecipeError."""

    def expand(value: Any) -> Any:
        if isinstance(value, str):
            return expand_env(value)
        if isinstance(value, dict):
            return {expand(name): expand(item) for name, item in value.items()}
        if isinstance(value, list):
            return [expand(item) for item in value]
        return value

    return type(place).model_validate(expand(place.model_dump(mode="json")))
