"""Gates: operators for the approval of a decision in the UI, and for the publication of the canaries' decision.

A decision is an artifact with a report. For canaries it is `mixture`; only the gate emits its asset event, so training
waits for the approval. For a new model it is `comparison`; the stage `promote` applies it.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator, BaseOperatorLink

from operators.connections import use_store
from operators.links import ArtifactLink, MlflowLink
from operators.results import announce
from operators.runs import RunSettings, fails_at_once, run_of
from tasks.core.stage_spec import variant_version
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.result import StageResult
from tasks.stages.canary.decision import Decision, listed

if TYPE_CHECKING:
    from tasks.core.artifact import Artifact


class ReportApproval(ApprovalOperator):  # type: ignore[misc]
    """Shows the report of a decision to a person and waits; "Reject", or no answer in time, skips the downstream tasks.

    Args:
        subject: the question.
        recipe: name of the recipe.
        decided: the XCom of the stage that decided.
        promoted_only: require approval only for a promotion.
        rejects: record a rejection of the mixture, so that no later cycle starts from it (`tasks.run.rejection`).
        within_h: hours without an answer that are a rejection; 0 to wait without end.
    """

    template_fields: ClassVar[Sequence[str]] = (*ApprovalOperator.template_fields, "recipe", "decided")

    def __init__(
        self,
        *,
        recipe: str,
        decided: Any,
        promoted_only: bool = False,
        rejects: bool = False,
        within_h: float = 0.0,
        **kwargs: Any,
    ) -> None:
        if within_h:
            kwargs |= {"response_timeout": timedelta(hours=within_h), "defaults": self.REJECT}
        super().__init__(**kwargs)
        self.recipe = recipe
        self.decided = decided
        self.promoted_only = promoted_only
        self.rejects = rejects

    def execute(self, context: Any) -> Any:
        """Puts the report into the question and defers until it is answered."""
        if self.promoted_only and not self.decided["metrics"]["promoted"]:
            self.log.info("%s: no promotion: no approval needed", self.decided["address"])
            return None
        with fails_at_once():
            recipe = find_recipe(self.recipe)
            run = run_of(recipe, context)
            self.log.info("approval for %s, %s", recipe.name, run)
            self.body = opened(run.recipe(recipe), self.decided["address"]).read("report.md").decode()
        return super().execute(context)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """Records a rejection, or ends that of an earlier answer, before the downstream tasks run or are skipped."""
        if self.rejects and "error" not in event:
            with fails_at_once():
                self._record(event)
        return super().execute_complete(context, event)

    def _record(self, event: dict[str, Any]) -> None:
        # Imported here, because DAG files import this module.
        from tasks.core.artifact import ArtifactId
        from tasks.run.rejection import reject, withdraw
        from tasks.run.runner import open_store

        recipe = find_recipe(self.recipe)
        use_store(recipe)
        store, version = open_store(recipe), ArtifactId.parse(self.decided["address"]).version
        if self.REJECT in event["chosen_options"]:
            user = event["responded_by_user"] or {}
            self.log.info("%s", reject(store, recipe.name, version, user.get("name", "")).record.note)
        else:
            withdraw(store, recipe.name, version)


class CanaryGate(BaseOperator):  # type: ignore[misc]
    """Logs the decision with its reasons, and publishes mixture and settings.

    With accepted settings, the event names the version of their variant, whose tokens exist, and has the settings as
    overrides, so that the training reads both.

    Args:
        recipe: name of the recipe.
        decided: the XCom of the stage `decide`.
    """

    template_fields: ClassVar[Sequence[str]] = ("recipe", "decided")
    operator_extra_links: ClassVar[Sequence[BaseOperatorLink]] = (MlflowLink(), ArtifactLink())
    ui_color = "#f6e3e3"

    def __init__(self, *, recipe: str, decided: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.recipe = recipe
        self.decided = decided
        self.result: dict[str, Any] = {}

    def execute(self, context: Any) -> dict[str, Any]:
        """Returns {address, weights, promoted, reason}."""
        with fails_at_once():
            recipe = find_recipe(self.recipe)
            run = run_of(recipe, context)
            self.log.info("decision of %s, %s", recipe.name, run)
            decision = Decision.read(opened(run.recipe(recipe), self.decided["address"]))
        self.result = self.decided
        self.log.info("%s", decision.reason)
        self.log.info("weights: %s", listed(decision.weights))
        if (settings := decision.settings) and decision.variant:
            self.log.info("settings: %s", ", ".join(f"{path} = {value}" for path, value in sorted(settings.items())))
            version = variant_version(run.version, decision.variant)
            run = RunSettings(version, run.version, {**run.overrides, **settings})
        announce(context, self.outlets, StageResult.from_json(self.decided), run)
        return {
            "address": self.decided["address"],
            **decision.model_dump(include={"weights", "promoted", "reason"}),
        }


def opened(recipe: Recipe, address: str) -> "Artifact":
    """Returns the artifact at `address`; raises InputError if it is missing."""
    # Imported here, because DAG files import this module and must not import pyarrow.
    from tasks.core.artifact import Artifact, ArtifactId
    from tasks.run.runner import open_store

    use_store(recipe)
    return Artifact.open_at(open_store(recipe), ArtifactId.parse(address))
