"""StageOperator: runs one stage of a recipe in the worker's own process; TakedownOperator: the same for a request.

Reads the recipe by name when the task runs, so that the metadata database holds only names. Returns {address,
fingerprint, content, version, members, rows, metrics, ...} as its XCom, and adds the same identity to the event of its
outlet.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

import psutil
from airflow.configuration import conf
from airflow.sdk import BaseOperator, BaseOperatorLink, chain
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from operators.alerts import forward_alerts
from operators.connections import use_store, use_stream
from operators.lineage import StageLineage
from operators.links import ArtifactLink, MlflowLink
from operators.results import announce, mirror
from operators.runs import RunSettings, fails_at_once, parent_key, request_of, run_of
from tasks.run.recipe import Recipe, find_recipe

STOP_S = 3.0
"""Seconds that child processes have to exit after SIGTERM; Airflow kills the task process 5 s after its SIGTERM."""


class StageOperator(StageLineage, BaseOperator):  # type: ignore[misc]
    """Runs `stage` of `recipe` in the worker's process.

    Args:
        recipe: name of the recipe.
        stage: name of the stage in `tasks.run.catalogue`.
        member: which member of a mapped stage; map it with `expand(member=[...])`.
        variant: makes the artifact of this variant (`tasks.run.variants`), of which there is one per canary arm.
        skip_when_empty: mark the task as skipped, without outlet events, if the artifact has no rows.
    """

    template_fields: ClassVar[Sequence[str]] = ("recipe", "stage", "member", "variant")
    operator_extra_links: ClassVar[Sequence[BaseOperatorLink]] = (MlflowLink(), ArtifactLink())
    ui_color = "#e8f0ea"
    on_dask = False

    def __init__(
        self,
        *,
        recipe: str,
        stage: str,
        member: str = "",
        variant: str = "",
        skip_when_empty: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.recipe = recipe
        self.stage = stage
        self.member = member
        self.variant = variant
        self.skip_when_empty = skip_when_empty
        self.result: dict[str, Any] = {}

    def execute(self, context: Any) -> Any:
        """Runs the stage; fails at once on permanent errors."""
        with fails_at_once():
            self.result = self.run(context)
        return self.result

    def run(self, context: Any) -> dict[str, Any]:
        """Runs the stage and emits outlet events; raises SluiceError.

        Raises:
            AirflowSkipException: the artifact has no rows, for example in a crawl cycle with no URL due, or the version
                has nothing new.
        """
        # Imported here, because DAG files import this module and must not import pyarrow.
        from operators.stats import send_gauges
        from tasks.core.errors import NothingNewError
        from tasks.run.runner import open_store, run_stage
        from tasks.run.variants import variant_of

        recipe = find_recipe(self.recipe)
        run = self.run_of(recipe, context)
        recipe = run.recipe(recipe)
        use_store(recipe)
        if self.stage == "stream":
            use_stream(recipe)
        version, source_version = run.version, run.source_version
        if self.variant:
            source_version = run.version
            recipe, version = variant_of(recipe, open_store(recipe), run.version, self.variant)
        with forward_alerts(recipe.place.alerts, context["ti"]):
            try:
                result = run_stage(
                    recipe,
                    self.stage,
                    version=version,
                    source_version=source_version,
                    member=self.member,
                    on_dask=self.on_dask,
                    tracking=tracking_of(recipe, context),
                )
            except NothingNewError as error:
                raise AirflowSkipException(f"{error} Downstream tasks are skipped") from None
        send_gauges(result)
        if self.skip_when_empty and not result.rows["out"]:
            raise AirflowSkipException(f"{result.address} has no rows: downstream tasks are skipped")
        announce(context, self.outlets, result, run)
        mirror(context, recipe, self.stage)
        return result.to_json()

    def run_of(self, recipe: Recipe, context: Any) -> RunSettings:
        """Returns version, source version and overrides of the DAG run; raises RecipeError."""
        return run_of(recipe, context)

    def on_kill(self) -> None:
        """Ends the processes that the stage started: torchrun, the workers of a local cluster."""
        children = psutil.Process().children(recursive=True)
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.terminate()
        for child in psutil.wait_procs(children, timeout=STOP_S)[1]:
            with suppress(psutil.NoSuchProcess):
                child.kill()


class MembersOperator(StageOperator):
    """Runs a stage whose report lists the members of the mapped stage that follows; its XCom is a batch of that list.

    Args:
        batch: number of the batch, from 0 on, of the size that Airflow maps (`[core] max_map_length`).
        batches: how many tasks share the list; the first makes the artifact, which the others find.
    """

    def __init__(self, *, batch: int = 0, batches: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch
        self.batches = batches

    def execute(self, context: Any) -> list[str]:
        """Runs the stage; returns the members to `expand` over.

        Raises:
            AirflowFailException: they are more than all batches together hold.
        """
        super().execute(context)
        context["ti"].xcom_push(key="result", value=self.result)
        members, size = list(self.result["members"]), conf.getint("core", "max_map_length")
        if len(members) > self.batches * size:
            raise AirflowFailException(
                f"{self.result['address']} has {len(members):,} members, and this DAG maps at most "
                f"{self.batches * size:,} tasks: raise [core] max_map_length, or change the recipe and run another "
                "version"
            )
        return members[self.batch * size : (self.batch + 1) * size]


def member_lists(most: int, *, task_id: str, **settings: Any) -> list[MembersOperator]:
    """Returns the tasks that list the members of a stage, one for each batch that Airflow maps, one after the other.

    Args:
        most: the most members that the stage can have.
        task_id: of the first one; see `numbered`.
        settings: further arguments of each.
    """
    batches = max(1, math.ceil(most / conf.getint("core", "max_map_length")))
    lists = [
        MembersOperator(task_id=numbered(task_id, batch), batch=batch, batches=batches, **settings)
        for batch in range(batches)
    ]
    chain(*lists)
    return lists


def numbered(name: str, batch: int) -> str:
    """Returns the name of the task or group of a batch.

    >>> numbered("arms", 0), numbered("arms", 1)
    ('arms', 'arms_2')
    """
    return f"{name}_{batch + 1}" if batch else name


class TakedownOperator(StageOperator):
    """Runs the stage `takedown` for one request, whose date and version are those of its DAG run; see `StageOperator`.

    Unless the form gives a version, it is the date of the run: every request is a separate artifact, and a task that is
    cleared and run again finds it. The date of the request is the date of the run too.
    """

    ui_color = "#f2dede"

    def run_of(self, recipe: Recipe, context: Any) -> RunSettings:
        """Returns the run of the request; raises RecipeError."""
        return request_of(recipe, context)


def tracking_of(recipe: Recipe, context: Any) -> Any:
    """Returns where MLflow records this task's run: under one parent run per DAG run."""
    from tasks.run.tracking import TrackingContext, server_of

    instance = context["ti"]
    tags = {
        "airflow.dag_id": instance.dag_id,
        "airflow.run_id": context["run_id"],
        "airflow.task_id": instance.task_id,
        "airflow.try_number": str(instance.try_number),
    }
    return TrackingContext(server_of(recipe.place), recipe.name, parent_key(context), tags)
