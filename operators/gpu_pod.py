"""GpuPodOperator: the same stage, in a GPU pod.

Used by `canary` and `pretrain` where `[place.train] where = "kubernetes"`. The pod runs the shell's command,
`python -m tasks <stage> --recipe '<json>' --version ...`, writes its artifact into the store, and the operator reads
the artifact's record from there: no XCom sidecar, no `pods/exec` right, no size limit.

The task gives its worker slot back while the pod runs (deferrable). Without that, a log stream that breaks makes the
provider fail the task and delete a healthy pod; deferred, a trigger polls the pod object only, and logs are read at the
end (`logging_interval=None`). The pod's name is kept in Airflow's task state store (durable): a restarted worker or
scheduler finds its pod again.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import BaseOperatorLink
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from kubernetes.client import models as k8s

from operators.links import ArtifactLink, MlflowLink
from operators.results import announce, committed
from operators.runs import fails_at_once, parent_key, run_of
from tasks.errors import RecipeError
from tasks.place import KubernetesPlace
from tasks.recipe import Recipe, find_recipe

PERMANENT = 2
"""Exit status of the shell for an error that no retry can mend."""

QUEUE_S = 24 * 3600
"""How long a pod may wait for its GPUs; a pod held back by Kueue counts as unscheduled."""

GRACE_S = 120
"""How long a pod may take to save a checkpoint after SIGTERM; torchrun's own limit stays below it."""


class GpuPodOperator(KubernetesPodOperator):  # type: ignore[misc]
    """Runs `stage` of `recipe` in a pod of the recipe's `[place.kubernetes]`.

    Args:
        recipe: name of the recipe.
        stage: name of the stage in `tasks.catalogue`.
        member: which member of a mapped stage; map it with `expand(member=[...])`.
    """

    template_fields: ClassVar[Sequence[str]] = (*KubernetesPodOperator.template_fields, "recipe", "stage", "member")
    operator_extra_links: ClassVar[Sequence[BaseOperatorLink]] = (MlflowLink(), ArtifactLink())
    ui_color = "#dfe7f5"

    def __init__(self, *, recipe: str, stage: str, member: str = "", **kwargs: Any) -> None:
        super().__init__(**{**_pod_settings(find_recipe(recipe), stage), **kwargs})
        self.recipe = recipe
        self.stage = stage
        self.member = member
        self.result: dict[str, Any] = {}

    def execute(self, context: Any) -> Any:
        """Starts the pod, or finds the one an earlier process has started, and waits without a worker."""
        with fails_at_once():
            self.arguments = self.command(context)
            super().execute(context)
            return self._finish(context)

    def trigger_reentry(self, context: Any, event: dict[str, Any]) -> Any:
        """Takes over when the trigger says that the pod has ended."""
        with fails_at_once():
            self.arguments = self.command(context)
            super().trigger_reentry(context, event)
            return self._finish(context)

    def command(self, context: Any) -> list[str]:
        """Returns the arguments of `python`: what a person would type in a shell."""
        recipe = find_recipe(self.recipe)
        run = run_of(recipe, context)
        command = ["-m", "tasks", self.stage, "--recipe", run.recipe(recipe).text, "--version", run.version]
        command += ["--parent-key", parent_key(context)]
        if run.source_version:
            command += ["--source-version", run.source_version]
        return [*command, "--member", self.member] if self.member else command

    def cleanup(self, pod: Any, remote_pod: Any, xcom_result: Any = None, context: Any = None) -> None:
        """Ends the task as the pod ended; an error that no retry can mend is not retried.

        Raises:
            AirflowFailException: the pod said so by its exit status.
            AirflowException: the pod failed otherwise.
        """
        try:
            super().cleanup(pod, remote_pod, xcom_result, context)
        except AirflowException as error:
            ended = _terminated(remote_pod, self.base_container_name)
            if ended is None or ended.exit_code != PERMANENT:
                raise
            lines = (ended.message or "").strip().splitlines() or [str(error)]
            raise AirflowFailException(lines[-1].removeprefix("sluice: ")) from None

    def _finish(self, context: Any) -> dict[str, Any]:
        recipe = find_recipe(self.recipe)
        run = run_of(recipe, context)
        self.result = committed(run.recipe(recipe), self.stage, run.version, self.member)
        announce(context, self.outlets, self.result, run)
        # By hand: `do_xcom_push` of the provider would mean its sidecar container.
        context["ti"].xcom_push(key="return_value", value=self.result)
        return self.result


def _pod_settings(recipe: Recipe, stage: str) -> dict[str, Any]:
    place = recipe.place.kubernetes
    if place is None:
        raise RecipeError(
            f'{recipe.name}: [place.train] where is "kubernetes" but there is no [place.kubernetes]',
            'add the section, or write where = "local"',
        )
    if not place.image:
        raise RecipeError(f"{recipe.name}: [place.kubernetes] names no image", "build one with k8s/images and name it")
    return {
        "kubernetes_conn_id": place.conn_id,
        "namespace": place.namespace,
        "image": place.image,
        "name": f"{recipe.name}-{stage}".replace("_", "-"),
        "random_name_suffix": True,
        "cmds": ["python", "-u"],
        "env_vars": {**_training_env(recipe), **place.env},
        "labels": _labels(recipe, stage, place),
        "container_resources": _resources(place),
        "node_selector": dict(place.node_selector),
        "tolerations": _tolerations(place),
        "priority_class_name": place.priority_class or None,
        "runtime_class_name": place.runtime_class or None,
        "service_account_name": place.service_account or None,
        "automount_service_account_token": bool(place.service_account),
        "schedule_timeout_seconds": QUEUE_S,
        "startup_timeout_seconds": 1800,
        "termination_grace_period": GRACE_S,
        # The last line of the log becomes the termination message: the one line that says what was wrong.
        "termination_message_policy": "FallbackToLogsOnError",
        "deferrable": True,
        "logging_interval": None,
        "poll_interval": 10,
        "durable": True,
        "log_pod_spec_on_failure": False,
        "do_xcom_push": False,
    }


def _training_env(recipe: Recipe) -> dict[str, str]:
    return {
        "SLUICE_NPROC": str(recipe.place.train.nproc),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(GRACE_S - 20),
        "PYTHONUNBUFFERED": "1",
    }


def _labels(recipe: Recipe, stage: str, place: KubernetesPlace) -> dict[str, str]:
    # No label may change between tries: the provider finds a running pod by all of them.
    labels = {"app.kubernetes.io/part-of": "sluice", "sluice/recipe": recipe.name, "sluice/stage": stage}
    return {**labels, "kueue.x-k8s.io/queue-name": place.queue} if place.queue else labels


def _resources(place: KubernetesPlace) -> k8s.V1ResourceRequirements:
    size = {"cpu": place.cpu, "memory": place.memory}
    gpus = {"nvidia.com/gpu": str(place.gpus)} if place.gpus else {}
    # No CPU limit: a throttled loader starves the GPU. GPUs must be equal in both.
    return k8s.V1ResourceRequirements(requests={**size, **gpus}, limits={"memory": place.memory, **gpus})


def _tolerations(place: KubernetesPlace) -> list[k8s.V1Toleration]:
    return [
        k8s.V1Toleration(key=one.key, operator=one.operator, value=one.value or None, effect=one.effect)
        for one in place.tolerations
    ]


def _terminated(pod: Any, container: str) -> Any:
    statuses = (pod.status.container_statuses if pod and pod.status else None) or []
    return next((one.state.terminated for one in statuses if one.name == container and one.state), None)
