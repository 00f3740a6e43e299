"""Gates: a decision is approved in the UI where the place asks for it; the one of the canaries is published.

A decision is an artifact, with its report. Of the canaries it is `mixture`; only the gate emits its asset event, so
training also waits for the approval. Of a new model it is `comparison`, which the stage `promote` puts into effect.
"""

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator, BaseOperatorLink

from operators.aws import use_connection
from operators.links import ArtifactLink, MlflowLink
from operators.results import announce
from operators.runs import fails_at_once, run_of
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.result import StageResult


class ReportApproval(ApprovalOperator):  # type: ignore[misc]
    """Shows the report of a decision to a person and waits; "Reject" skips what follows.

    Args:
        subject: the question.
        recipe: name of the recipe.
        decided: the XCom of the stage that has decided.
        promoted_only: ask only where the decision would change something.
    """

    template_fields: ClassVar[Sequence[str]] = (*ApprovalOperator.template_fields, "recipe", "decided")

    def __init__(self, *, recipe: str, decided: Any, promoted_only: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.recipe = recipe
        self.decided = decided
        self.promoted_only = promoted_only

    def execute(self, context: Any) -> Any:
        """Puts the report into the question and gives the worker back until it is answered."""
        if self.promoted_only and not self.decided["metrics"]["promoted"]:
            self.log.info("nothing changes: nobody is asked")
            return None
        with fails_at_once():
            recipe = find_recipe(self.recipe)
            self.body = read(run_of(recipe, context).recipe(recipe), self.decided["address"], "report.md")
        return super().execute(context)


class CanaryGate(BaseOperator):  # type: ignore[misc]
    """Logs the decision with its reasons, and publishes the mixture.

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
            decision = json.loads(read(run.recipe(recipe), self.decided["address"], "mixture.json"))
        self.result = self.decided
        self.log.info("%s", decision["reason"])
        self.log.info(
            "weights: %s", ", ".join(f"{name} {share:.3f}" for name, share in sorted(decision["weights"].items()))
        )
        announce(context, self.outlets, StageResult.from_json(self.decided), run)
        kept = {name: decision[name] for name in ("weights", "promoted", "reason")}
        return {"address": self.decided["address"], **kept}


def read(recipe: Recipe, address: str, file: str) -> str:
    """Returns a text file of the artifact at `address`; raises InputError when the artifact is missing."""
    # Imported here, because artifacts bring pyarrow and the DAG file must not.
    from tasks.core.artifact import Artifact, ArtifactId
    from tasks.run.runner import open_store

    use_connection(recipe)
    return Artifact.open_at(open_store(recipe), ArtifactId.parse(address)).read(file).decode()
