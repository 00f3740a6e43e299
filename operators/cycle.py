"""Operators of the DAG `<recipe>.cycle`: a step, which is a run of another DAG, the gate before a training, the report.

All steps of a month have one version, and runs with equal ids in all DAGs, so clearing a step runs the same DAG run
again, in which everything that is finished is skipped.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperatorLink
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from operators.alerts import forward_alerts
from operators.connections import use_store
from operators.links import ArtifactLink, MlflowLink
from operators.recipes import RecipeOperator
from operators.runs import RunSettings, fails_at_once, month_of
from operators.stage import tracking_of
from tasks.core.config import sha256_of_json
from tasks.run.catalogue import STAGES
from tasks.run.recipe import find_recipe

POLL_S = 2
"""Seconds between two looks at the DAG run of a step."""

_COMPLETES = {**{stage.dag: stage.name for stage in STAGES.values() if stage.asset}, "canary": "gate"}
"""The task that completes the asset of a DAG. If it is skipped, there is nothing for the later steps."""


class CycleStep(TriggerDagRunOperator):  # type: ignore[misc]
    """Runs `<recipe>.<step>` at the version of the month and waits for its end without a worker.

    It is skipped, and the later steps with it, if the run of the DAG skipped the task that completes its asset.

    Args:
        recipe: name of the recipe.
        step: the DAG: "crawl", "corpus", ...
    """

    template_fields: ClassVar[Sequence[str]] = ("recipe", "step")

    def __init__(self, *, recipe: str, step: str, **kwargs: Any) -> None:
        super().__init__(
            trigger_dag_id=f"{recipe}.{step}",
            reset_dag_run=True,
            wait_for_completion=True,
            deferrable=True,
            poke_interval=POLL_S,
            # It would add a key to the conf, which is checked.
            openlineage_inject_parent_info=False,
            **kwargs,
        )
        self.recipe = recipe
        self.step = step

    def execute(self, context: Any) -> None:
        """Triggers the run, or the tasks of the existing one again; fails at once if the DAG is paused."""
        with fails_at_once():
            run = month_of(find_recipe(self.recipe), context)
        if context["ti"].get_dag(self.trigger_dag_id).is_paused:
            raise AirflowFailException(f"{self.trigger_dag_id} is paused: let it run, then clear this task")
        self.conf = {name: value for name, value in run.event_fields.items() if value}
        self.trigger_run_id = run_id(run)
        # As of every other run (`operators.run_notes`), so that the pages find the runs of a version by their notes.
        self.note = f"{run}, started by {context['ti'].dag_id}"
        super().execute(context)

    def execute_complete(self, context: Any, event: tuple[str, dict[str, Any]]) -> None:
        """Reads the outcome of the run.

        Raises:
            AirflowFailException: the run failed.
            AirflowSkipException: it has nothing for the later steps.
        """
        (name,) = event[1]["run_ids"]
        if event[1].get(name) in self.failed_states:
            where = f"{self.trigger_dag_id} failed in its run {name}"
            raise AirflowFailException(f"{where}: correct the cause, then clear this task")
        states = context["ti"].get_task_states(dag_id=self.trigger_dag_id, run_ids=[name]).get(name, {})
        if states.get(_COMPLETES[self.step]) == "skipped":
            cause = f"{self.trigger_dag_id} made nothing in its run {name}: {_COMPLETES[self.step]} was skipped"
            raise AirflowSkipException(f"{cause}, and so are the later steps")


class EnoughTokens(RecipeOperator):
    """Skips the training of a month with fewer new tokens than `[cycle] min_new_tokens`; the reason is in its XCom."""

    ui_color = "#eeeeee"

    def execute(self, context: Any) -> None:
        """Raises AirflowSkipException if there are too few."""
        with fails_at_once():
            # Imported here, because DAG files import this module and must not import pyarrow.
            from tasks.run.monthly.cycle import too_few
            from tasks.run.runner import open_store

            recipe = find_recipe(self.recipe)
            use_store(recipe)
            reason = too_few(open_store(recipe), recipe, month_of(recipe, context).version)
        if reason:
            context["ti"].xcom_push(key="reason", value=reason)
            raise AirflowSkipException(f"{reason}: no training this month")


class ReportOperator(RecipeOperator):
    """Writes the report of the month (`tasks.run.monthly.report`); its XCom has {address, alerts, needs}.

    Alerts of a new report are sent by the notifier of `[place.alerts]`, if there is one.
    """

    operator_extra_links: ClassVar[Sequence[BaseOperatorLink]] = (MlflowLink(), ArtifactLink())
    ui_color = "#eeeeee"
    result: dict[str, Any] | None = None

    def execute(self, context: Any) -> dict[str, Any]:
        """Writes the report, unless it exists."""
        with fails_at_once():
            # Imported here, because DAG files import this module and must not import pyarrow.
            from tasks.run.monthly.report import month_report
            from tasks.run.monthly.tables import read_month
            from tasks.run.runner import mlflow_url, open_store

            recipe = find_recipe(self.recipe)
            use_store(recipe)
            run = month_of(recipe, context)
            with forward_alerts(recipe.place.alerts, context["ti"]):
                tracking = tracking_of(recipe, context)
                artifact = month_report(open_store(recipe), run.recipe(recipe), run.version, tracking)
        content = read_month(artifact)
        self.log.info("%s", "\n".join(content["needs"]) or "nothing needs a person")
        self.result = {"address": str(artifact.address), "mlflow_run_url": mlflow_url(artifact)}
        return {**self.result, "alerts": content["alerts"], "needs": content["needs"]}


def run_id(run: RunSettings) -> str:
    """Returns the id of the DAG runs of a month; runs with other settings are others, as a run keeps its conf.

    >>> run_id(RunSettings("2026-12"))
    'cycle-2026-12'
    """
    more = {name: value for name, value in run.event_fields.items() if value and name != "version"}
    return f"cycle-{run.version}" + (f"-{sha256_of_json(more)[:8]}" if more else "")
