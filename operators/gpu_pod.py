"""GpuPodOperator: runs a stage in a GPU pod.

The pod runs `python -m tasks <stage> --recipe '<json>' --version ...`, writes its artifact into the store, and the
operator reads the artifact's record from there: no XCom sidecar, no `pods/exec` right, no size limit.

A subclass of the provider's KubernetesPodOperator with the same pod settings but a different life cycle:

| | provider | here |
|---|---|---|
| a broken log stream or a dead kubelet | fails the task after 15 s, deletes the pod | leaves a gap in the log |
| API server unavailable | the same | waits for 15 minutes, does not touch the pod |
| a second process of the task | searches by labels, else starts another pod | same name: one pod |
| a missing pod | error | succeeds if the artifact exists |
| retried failures | all | transient ones |
| a pod that was evicted, preempted or lost | uses up a retry | is restarted, up to `max_restarts` times |
| log while deferred | at the end | live, read by the triggerer |
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from airflow.sdk import BaseOperatorLink
from airflow.sdk.exceptions import AirflowException
from kubernetes.client import models as k8s

from operators.alerts import check_notifier
from operators.lineage import StageLineage
from operators.links import ArtifactLink, MlflowLink
from operators.pods.api import PODS, Api
from operators.pods.failure import has_ended, has_succeeded, terminated
from operators.pods.owner import Claim, Owner
from operators.pods.rights import uses_kubernetes
from operators.pods.spec import CONTAINER, manifest, place_of, stage_labels, stage_pod
from operators.pods.stage import (
    START_OUTAGE_S,
    Object,
    command_of,
    deadline_of,
    delete_object,
    finish_task,
    has_artifact,
    take_object,
)
from operators.pods.trigger import PodTrigger
from operators.runs import fails_at_once
from tasks.run.recipe import find_recipe

_REFUSED_PARAMETERS = {
    "deferrable", "durable", "reattach_on_restart", "get_logs", "logging_interval", "poll_interval", "do_xcom_push",
    "on_finish_action", "on_kill_action", "is_delete_operator_pod", "name", "random_name_suffix", "callbacks",
    "startup_timeout_seconds", "schedule_timeout_seconds", "skip_on_exit_code", "progress_callback",
}  # fmt: skip
"""Parameters of the provider's operator that would have no effect here."""

STARTS_WORK = uses_kubernetes()
"""Default of `executor_config`; in the signature, because a mapped task takes its defaults from there."""


class GpuPodOperator(StageLineage, KubernetesPodOperator):  # type: ignore[misc]
    """Runs `stage` of `recipe` in a pod of the recipe's `[place.kubernetes]`.

    Args:
        recipe: name of the recipe.
        stage: name of the stage in `tasks.run.catalogue`.
        member: which member of a mapped stage; map it with `expand(member=[...])`.
        kwargs: of KubernetesPodOperator; pod settings override those of the place. Parameters of the life cycle
            (`_REFUSED_PARAMETERS`) raise TypeError.
    """

    template_fields: ClassVar[Sequence[str]] = (*KubernetesPodOperator.template_fields, "recipe", "stage", "member")
    operator_extra_links: ClassVar[Sequence[BaseOperatorLink]] = (MlflowLink(), ArtifactLink())
    ui_color = "#dfe7f5"

    def __init__(
        self, *, recipe: str, stage: str, member: str = "", executor_config: Any = STARTS_WORK, **kwargs: Any
    ) -> None:
        if refused := sorted(_REFUSED_PARAMETERS & kwargs.keys()):
            raise TypeError(f"GpuPodOperator does not take {refused[0]}: it has a life cycle of its own")
        parsed = find_recipe(recipe)
        place = place_of(parsed)
        settings = {
            "kubernetes_conn_id": place.conn_id,
            "namespace": place.namespace,
            "image": place.image,
            "labels": stage_labels(parsed, stage, place),
            "termination_grace_period": place.grace_s,
            # The place's pod template is read when the task runs, so that parsing the DAG files stays cheap.
            "full_pod_spec": None,
            "random_name_suffix": False,
            "base_container_name": CONTAINER,
            "termination_message_policy": "FallbackToLogsOnError",
            "deferrable": True,
            "do_xcom_push": False,
        }
        super().__init__(executor_config=executor_config, **{**settings, **kwargs})
        self.recipe = recipe
        self.stage = stage
        self.member = member
        self.result: dict[str, Any] = {}
        self._claim: Claim | None = None
        self._restarts = 0

    def execute(self, context: Any) -> Any:
        """Starts the pod, or adopts the one that an earlier process of the task started, and defers."""
        return self._start(context, restarts=0)

    def _start(self, context: Any, restarts: int) -> Any:
        with fails_at_once():
            self._restarts = restarts
            check_notifier(find_recipe(self.recipe).place.alerts)
            self.pod = self.get_or_create_pod(self.build_pod_request_obj(context), context)
            if self._killed:
                self.on_kill()
                raise AirflowException("the task was ended while its pod was being started")
            context["ti"].xcom_push(key="pod_name", value=self.pod.metadata.name)
            context["ti"].xcom_push(key="pod_namespace", value=self.pod.metadata.namespace)
            self.invoke_defer_method(context=context)

    def build_pod_request_obj(self, context: Any = None, *, dry_run: bool = False) -> k8s.V1Pod:
        """Returns the place's pod with the provider's parameters merged over it and the command of the stage."""
        recipe = find_recipe(self.recipe)
        self.full_pod_spec = stage_pod(recipe, self.stage)
        if context is not None:
            self.arguments: list[str] = command_of(recipe, self.stage, self.member, context)
            self.name = Owner.of(context).name(f"{recipe.name}-{self.stage}", 1)
        return super().build_pod_request_obj(context, dry_run=dry_run)

    def get_or_create_pod(self, pod_request_obj: k8s.V1Pod, context: Any) -> k8s.V1Pod:
        """Returns the pod of this task: a running one, or a new one."""
        self._claim = self.claim(context, pod_request_obj.metadata.namespace, manifest(pod_request_obj))
        return PodGenerator.deserialize_model_dict(take_object(self._claim, self._api))

    def claim(self, context: Any, namespace: str, body: Object) -> Claim:
        """Returns the claim on the task's pod: how it is created and found."""
        return Claim(
            kind=PODS,
            namespace=namespace,
            owner=Owner.of(context),
            prefix=f"{self.recipe}-{self.stage}",
            build=lambda _name: {**body, "metadata": dict(body["metadata"])},
            success_of=self._success_of,
            has_artifact=lambda: has_artifact(self, context),
            grace_s=self.termination_grace_period or 0,
        )

    def invoke_defer_method(self, last_log_time: Any = None, context: Any = None) -> None:
        """Defers until the pod has ended."""
        place = place_of(find_recipe(self.recipe))
        trigger = PodTrigger(
            name=self.pod.metadata.name,
            namespace=self.pod.metadata.namespace,
            conn_id=self.kubernetes_conn_id,
            queue=place.queue,
            queue_s=place.queue_s,
            scale_up_s=place.scale_up_s,
            grace_s=self.termination_grace_period or 0,
            deadline=deadline_of(self, context),
            restarts=self._restarts,
            container=self.base_container_name,
            alerts=find_recipe(self.recipe).place.alerts.model_dump(mode="json"),
        )
        self.defer(trigger=trigger, method_name="trigger_reentry")

    def trigger_reentry(self, context: Any, event: dict[str, Any]) -> Any:
        """Resumes after the trigger's event with the outcome of the pod."""
        with fails_at_once():
            may_restart = event["restarts"] < place_of(find_recipe(self.recipe)).max_restarts
            restart = (lambda: self._start(context, event["restarts"] + 1)) if may_restart else None
            claim = self.claim(context, event["namespace"], {})
            return finish_task(self, claim, self._api, context, event, restart)

    def on_kill(self) -> None:
        """Stops the pod of a task that is killed in a worker; the trainer has its grace period to save."""
        self._killed = True
        if self.pod is not None and self._claim is not None:
            self.log.info("stopping pod %s", self.pod.metadata.name)
            delete_object(self._claim, Api(self.kubernetes_conn_id, 5.0, self._api.extras), self.pod.metadata.name)

    def _success_of(self, pod: Object) -> bool | None:
        if has_succeeded(pod, self.base_container_name):
            return True
        return False if has_ended(pod) or terminated(pod, self.base_container_name) else None

    @cached_property
    def _api(self) -> Api:
        return Api(self.kubernetes_conn_id, START_OUTAGE_S, self.hook.conn_extras)
