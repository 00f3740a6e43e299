"""Operators that run a stage in Kubernetes: in one pod, or on several nodes as one gang of pods.

A pod runs `python -m tasks <stage> --recipe '<json>' --version ...` and writes the artifact into the store (of a gang:
rank 0 does), and the operator reads the artifact's record from there: no XCom sidecar, no `pods/exec` right, no size
limit. Kinds differ in manifest and trigger. Their life cycle is another one than that of the provider's
KubernetesPodOperator:

| | provider | here |
|---|---|---|
| a broken log stream or a dead kubelet | fails the task after 15 s, deletes the pod | leaves a gap in the log |
| API server unavailable | the same | waits for 15 minutes, does not touch the pod |
| a second process of the task | searches by labels, else starts another pod | same name: one pod |
| a missing pod | error | succeeds if the artifact exists |
| retried failures | all | transient ones |
| a pod that was evicted, preempted or lost | uses up a retry | is restarted, up to `max_restarts` times |
| log while deferred | at the end | live, read by the triggerer |

JobSet itself restarts a gang after a failure (`operators.jobsets.manifest` defines which); the operator restarts a gang
that lost a node. Gangs require JobSet in the cluster, Kueue where the place names a queue, and Kubeflow Trainer for
`TrainJobOperator`.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from airflow import __version__ as airflow_version
from airflow import settings
from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.exceptions import AirflowException
from kubernetes.client import models as k8s

from operators.alerts import check_notifier
from operators.jobsets.manifest import jobset
from operators.jobsets.trainjob import NODE, trainjob
from operators.jobsets.trigger import JobSetTrigger, TrainJobTrigger
from operators.lineage import StageLineage
from operators.links import ArtifactLink, MlflowLink
from operators.pods.api import Api
from operators.pods.failure import Object
from operators.pods.owner import Claim, Owner
from operators.pods.rights import uses_kubernetes
from operators.pods.spec import CONTAINER, manifest, place_of, stage_pod
from operators.pods.stage import (
    START_OUTAGE_S,
    command_of,
    deadline_of,
    delete_object,
    finish_task,
    has_artifact,
    take_object,
)
from operators.pods.trigger import PodTrigger, StageTrigger
from operators.runs import fails_at_once, run_of
from tasks.run.recipe import find_recipe

STARTS_WORK = uses_kubernetes()
"""Default of `executor_config`; in the signature, because a mapped task takes its defaults from there."""


class KubernetesStageOperator(StageLineage, BaseOperator):  # type: ignore[misc]
    """Runs `stage` of `recipe` in the recipe's `[place.kubernetes]`; the base class of one operator per kind of object.

    Args:
        recipe: name of the recipe.
        stage: name of the stage in `tasks.run.catalogue`.
        member: which member of a mapped stage; map it with `expand(member=[...])`.
    """

    template_fields: ClassVar[Sequence[str]] = ("recipe", "stage", "member")
    operator_extra_links: ClassVar[Sequence[BaseOperatorLink]] = (MlflowLink(), ArtifactLink())
    trigger: ClassVar[type[StageTrigger]]
    container: ClassVar[str] = CONTAINER

    def __init__(
        self, *, recipe: str, stage: str, member: str = "", executor_config: Any = STARTS_WORK, **kwargs: Any
    ) -> None:
        super().__init__(executor_config=executor_config, **kwargs)
        self.recipe = recipe
        self.stage = stage
        self.member = member
        self.result: dict[str, Any] = {}
        self._started: tuple[Claim, str] | None = None
        self._killed = False

    def manifest(self, name: str, context: Any) -> Object:
        """Returns the object of the task as the JSON object for the API."""
        raise NotImplementedError

    def execute(self, context: Any) -> Any:
        """Starts the object, or adopts the one that an earlier process of the task started, and defers."""
        return self._start(context, restarts=0)

    def _start(self, context: Any, restarts: int) -> Any:
        with fails_at_once():
            recipe = find_recipe(self.recipe)
            place = place_of(recipe)
            kind = self.trigger.kind.singular
            check_notifier(recipe.place.alerts)
            task = f"{self.stage} {self.member}".strip()
            self.log.info("%s of %s, %s", task, recipe.name, run_of(recipe, context))
            claim = self.claim(context, place.namespace)
            name = str(take_object(claim, self._api)["metadata"]["name"])
            self._started = claim, name
            if self._killed:
                self.on_kill()
                raise AirflowException(f"the task was ended while its {kind} was being started")
            context["ti"].xcom_push(key=f"{kind}_name", value=name)
            context["ti"].xcom_push(key=f"{kind}_namespace", value=place.namespace)
            trigger = self.trigger(
                name=name,
                namespace=place.namespace,
                conn_id=place.conn_id,
                queue=place.queue,
                queue_s=place.queue_s,
                scale_up_s=place.scale_up_s,
                grace_s=place.grace_s,
                deadline=deadline_of(self, context),
                restarts=restarts,
                container=self.container,
                alerts=recipe.place.alerts.model_dump(mode="json"),
            )
            self.defer(trigger=trigger, method_name="resume")

    def resume(self, context: Any, event: dict[str, Any]) -> Any:
        """Resumes after the trigger's event with the outcome of the object."""
        with fails_at_once():
            may_restart = event["restarts"] < place_of(find_recipe(self.recipe)).max_restarts
            restart = (lambda: self._start(context, event["restarts"] + 1)) if may_restart else None
            return finish_task(self, self.claim(context, event["namespace"]), self._api, context, event, restart)

    def on_kill(self) -> None:
        """Stops the object of a task that is killed in a worker; its trainers have their grace period to save."""
        self._killed = True
        if self._started is not None:
            claim, name = self._started
            self.log.info("stopping %s %s", claim.kind.singular, name)
            delete_object(claim, Api(self._api.conn_id, 5.0, self._api.extras), name)

    def claim(self, context: Any, namespace: str) -> Claim:
        """Returns the claim on the task's object: how it is created and found."""
        return Claim(
            kind=self.trigger.kind,
            namespace=namespace,
            owner=Owner.of(context),
            prefix=f"{self.recipe}-{self.stage}",
            build=lambda name: self.manifest(name, context),
            success_of=lambda found: self.trigger.success_of(found, self.container),
            has_artifact=lambda: has_artifact(self, context),
            grace_s=place_of(find_recipe(self.recipe)).grace_s,
        )

    def pod(self, context: Any) -> k8s.V1Pod:
        """Returns the place's pod with the command of the stage."""
        recipe = find_recipe(self.recipe)
        pod = stage_pod(recipe, self.stage)
        pod.spec.containers[0].args = command_of(recipe, self.stage, self.member, context)
        return pod

    @cached_property
    def _api(self) -> Api:
        conn_id = place_of(find_recipe(self.recipe)).conn_id
        return Api(conn_id, START_OUTAGE_S, KubernetesHook(conn_id=conn_id).conn_extras)


class GpuPodOperator(KubernetesStageOperator):
    """Runs a stage in one pod."""

    ui_color = "#dfe7f5"
    trigger = PodTrigger

    def manifest(self, name: str, context: Any) -> Object:
        """Returns the pod, with the labels of the provider's pods and after Airflow's `pod_mutation_hook`."""
        pod = self.pod(context)
        pod.metadata.name = name
        pod.metadata.labels.update(_task_labels(context))
        settings.pod_mutation_hook(pod)
        return manifest(pod)


class JobSetOperator(KubernetesStageOperator):
    """Runs a stage on several nodes, as a JobSet."""

    ui_color = "#d5dff0"
    trigger = JobSetTrigger
    write = staticmethod(jobset)

    def manifest(self, name: str, context: Any) -> Object:
        """Returns the JobSet or TrainJob."""
        recipe = find_recipe(self.recipe)
        body = self.write(self.pod(context), name, place_of(recipe), recipe.place.train.nproc)
        # On the JobSet alone: pods with labels that change with each try would not match on adoption.
        body["metadata"]["labels"].update(_task_labels(context))
        return body


class TrainJobOperator(JobSetOperator):
    """As `JobSetOperator`, by a TrainJob of Kubeflow Trainer (`[place.kubernetes] gang = "trainjob"`)."""

    trigger = TrainJobTrigger
    container = NODE
    write = staticmethod(trainjob)


def _task_labels(context: Any) -> dict[str, str]:
    """Returns the labels by which Airflow's own commands find the objects of a task."""
    labels = KubernetesPodOperator._get_ti_pod_labels(context)
    return {**labels, "airflow_version": airflow_version.replace("+", "-")}
