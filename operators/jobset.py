"""JobSetOperator: runs a stage on several nodes, as one gang of pods.

Starts a JobSet, or adopts the one that an earlier process of the same task started, and defers until the JobSet has
ended. Rank 0 writes the artifact; the operator reads its record from the store. JobSet restarts the gang
after a failure (`operators.jobsets.manifest` defines which). The operator restarts a gang that lost a node; the
task's retries come after that.

Requires JobSet in the cluster, Kueue where the place names a queue, and Kubeflow Trainer for `TrainJobOperator`.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import BaseOperator, BaseOperatorLink

from operators.alerts import check_notifier
from operators.jobsets.manifest import jobset
from operators.jobsets.trainjob import NODE, trainjob
from operators.jobsets.trigger import JobSetTrigger, TrainJobTrigger, terminal_state
from operators.lineage import StageLineage
from operators.links import ArtifactLink, MlflowLink
from operators.pods.api import JOBSETS, TRAINJOBS, Api, Kind
from operators.pods.owner import Claim, Owner
from operators.pods.rights import uses_kubernetes
from operators.pods.spec import CONTAINER, place_of, stage_pod
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
from operators.runs import fails_at_once
from tasks.run.recipe import find_recipe

STARTS_WORK = uses_kubernetes()
"""Default of `executor_config`; in the signature, because a mapped task takes its defaults from there."""


class JobSetOperator(StageLineage, BaseOperator):  # type: ignore[misc]
    """Runs `stage` of `recipe` on the nodes of the recipe's `[place.kubernetes]`.

    Args:
        recipe: name of the recipe.
        stage: name of the stage in `tasks.run.catalogue`.
        member: which member of a mapped stage; map it with `expand(member=[...])`.
    """

    template_fields: ClassVar[Sequence[str]] = ("recipe", "stage", "member")
    operator_extra_links: ClassVar[Sequence[BaseOperatorLink]] = (MlflowLink(), ArtifactLink())
    ui_color = "#d5dff0"
    kind: ClassVar[Kind] = JOBSETS
    trigger: ClassVar[type[JobSetTrigger]] = JobSetTrigger
    container: ClassVar[str] = CONTAINER
    write = staticmethod(jobset)

    def __init__(
        self, *, recipe: str, stage: str, member: str = "", executor_config: Any = STARTS_WORK, **kwargs: Any
    ) -> None:
        super().__init__(executor_config=executor_config, **kwargs)
        place_of(find_recipe(recipe))
        self.recipe = recipe
        self.stage = stage
        self.member = member
        self.result: dict[str, Any] = {}
        self._started: tuple[Claim, str] | None = None

    def execute(self, context: Any) -> Any:
        """Starts the gang, or adopts the running one, and defers."""
        return self._start(context, restarts=0)

    def _start(self, context: Any, restarts: int) -> Any:
        with fails_at_once():
            recipe = find_recipe(self.recipe)
            place = place_of(recipe)
            check_notifier(recipe.place.alerts)
            claim = self.claim(context)
            name = str(take_object(claim, self._api)["metadata"]["name"])
            self._started = (claim, name)
            context["ti"].xcom_push(key="jobset_name", value=name)
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
        """Resumes after the trigger's event with the outcome of the gang."""
        with fails_at_once():
            may_restart = event["restarts"] < place_of(find_recipe(self.recipe)).max_restarts
            restart = (lambda: self._start(context, event["restarts"] + 1)) if may_restart else None
            return finish_task(self, self.claim(context), self._api, context, event, restart)

    def claim(self, context: Any) -> Claim:
        """Returns the claim on the task's JobSet: how it is created and found."""
        place = place_of(find_recipe(self.recipe))
        return Claim(
            kind=self.kind,
            namespace=place.namespace,
            owner=Owner.of(context),
            prefix=f"{self.recipe}-{self.stage}",
            build=lambda name: self.manifest(name, context),
            success_of=lambda jobset: {"Completed": True, "Failed": False}.get(terminal_state(jobset)),
            has_artifact=lambda: has_artifact(self, context),
            grace_s=place.grace_s,
            propagation="Foreground",
        )

    def manifest(self, name: str, context: Any) -> Object:
        """Returns the JobSet or TrainJob as the JSON object for the API."""
        recipe = find_recipe(self.recipe)
        pod = stage_pod(recipe, self.stage)
        pod.spec.containers[0].args = command_of(recipe, self.stage, self.member, context)
        body = self.write(pod, name, place_of(recipe), recipe.place.train.nproc)
        # On the JobSet alone: pods with labels that change with each try would not match on adoption.
        body["metadata"]["labels"].update(KubernetesPodOperator._get_ti_pod_labels(context))
        return body

    def on_kill(self) -> None:
        """Stops the gang of a task that is killed in a worker; its trainers have their grace period to save."""
        if self._started is not None:
            claim, name = self._started
            self.log.info("stopping %s %s", self.trigger.noun, name)
            delete_object(claim, Api(self._api.conn_id, 5.0, self._api.extras), name)

    @cached_property
    def _api(self) -> Api:
        conn_id = place_of(find_recipe(self.recipe)).conn_id
        return Api(conn_id, START_OUTAGE_S, KubernetesHook(conn_id=conn_id).conn_extras)


class TrainJobOperator(JobSetOperator):
    """As `JobSetOperator`, by a TrainJob of Kubeflow Trainer (`[place.kubernetes] gang = "trainjob"`)."""

    kind = TRAINJOBS
    trigger = TrainJobTrigger
    container = NODE
    write = staticmethod(trainjob)
