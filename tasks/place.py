"""Where a recipe runs: folders, servers, pods. The half of a recipe that bears on nothing that is made.

Used by the runner and the operators. Any text may name environment variables, `${NAME}` or `${NAME:-default}`; they are
filled in where the work runs, so one recipe serves several machines and holds no secret.
"""

import os
import re
from typing import Literal

from tasks.config import Config
from tasks.errors import RecipeError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class DaskPlace(Config):
    """A Dask cluster."""

    address: str = "${SLUICE_DASK:-}"
    """Scheduler, such as tcp://host:8786; empty: no cluster."""


class TrainPlace(Config):
    """Where models train."""

    where: Literal["local", "kubernetes"] = "local"
    """"local": torchrun on the Airflow worker; "kubernetes": a GPU pod."""

    nproc: int = 1
    """Ranks per node."""


class Toleration(Config):
    """A Kubernetes toleration."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class KubernetesPlace(Config):
    """The pods that GPU stages run in."""

    namespace: str = "default"
    image: str = ""
    """Trainer image with this wheel, tag or digest included."""

    conn_id: str = "kubernetes_default"
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    gpus: int = 1
    cpu: str = "4"
    memory: str = "16Gi"
    priority_class: str = ""
    runtime_class: str = ""
    queue: str = ""
    """Kueue local queue; empty: none."""

    service_account: str = ""
    env: dict[str, str] = {}
    """Plain settings only. Secrets come from Kubernetes secrets or workload identity."""


class Place(Config):
    """Where everything is."""

    store: str = "${SLUICE_STORE:-.sluice/store}"
    """Folder or fsspec URL of the artifacts."""

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
