"""CanaryGate: says in the log what the canaries decided, and lets training begin by publishing the mixture.

Used at the end of the `canary` DAG. The decision itself is an artifact (`mixture`), made by the stage `decide`: the
gate decides nothing, it is the one place where a decision leaves the DAG. Where the recipe asks for a human, an
approval task stands before it.
"""

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from airflow.sdk import BaseOperator, BaseOperatorLink

from operators.links import ArtifactLink, MlflowLink
from operators.results import announce
from operators.runs import fails_at_once, run_of
from tasks.recipe import find_recipe


class CanaryGate(BaseOperator):  # type: ignore[misc]
    """Publishes the decided mixture.

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
        """Logs the decision and tells the outlets; returns what was decided."""
        with fails_at_once():
            recipe = find_recipe(self.recipe)
            run = run_of(recipe, context)
            decision = read_decision(run.recipe(recipe), self.decided["address"])
        self.log.info("%s", in_words(decision))
        self.result = self.decided
        announce(context, self.outlets, self.decided, run)
        return {"address": self.decided["address"], **decision}


def read_decision(recipe: Any, address: str) -> dict[str, Any]:
    """Returns `mixture.json` of the artifact at `address`; raises InputError when it is gone."""
    from tasks.artifact import Address, Artifact
    from tasks.runner import open_store

    artifact = Artifact.open_at(open_store(recipe), Address.parse(address))
    decision: dict[str, Any] = json.loads(artifact.read("mixture.json"))
    return decision


def in_words(decision: dict[str, Any]) -> str:
    """Says a decision in one line: which arm trains on, and why.

    >>> in_words({"promoted": True, "winner": "arm-2", "current": "arm-0", "interval": [0.01, 0.03],
    ...           "weights": {"web": 0.7, "docs": 0.3}})
    'Promoted arm-2 over arm-0: bits per byte lower by 0.0100 to 0.0300. Weights: docs 0.300, web 0.700.'
    >>> in_words({"promoted": False, "winner": "arm-2", "current": "arm-0", "interval": [-0.01, 0.03],
    ...           "weights": {"web": 1.0}})
    'Kept arm-0: arm-2 is not surely better, the paired difference is -0.0100 to 0.0300. Weights: web 1.000.'
    """
    low, high = decision["interval"]
    weights = ", ".join(f"{source} {share:.3f}" for source, share in sorted(decision["weights"].items()))
    winner, current = decision["winner"], decision["current"]
    if decision["promoted"]:
        said = f"Promoted {winner} over {current}: bits per byte lower by {low:.4f} to {high:.4f}"
    else:
        said = f"Kept {current}: {winner} is not surely better, the paired difference is {low:.4f} to {high:.4f}"
    return f"{said}. Weights: {weights}."
