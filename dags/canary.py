"""Canary: trains small models, one per mixture and seed, to choose the mixture for the large model.

| | |
|---|---|
| reads | the asset `tokens` |
| writes | `arms`, one `canary` per arm and seed, and the asset `mixture` (the decision, with its report) |
| costs | `canary.steps` training steps per arm and seed, in the pool `gpu` |
| next | `pretrain` starts automatically |

A mixture is promoted only if the paired interval against the current one excludes 0.
With `[place] ask_human`, a person approves the decision in the Airflow UI before it is published.
"""

from airflow.sdk import DAG

from operators.forms import dag_settings
from operators.gate import CanaryGate, ReportApproval
from operators.places import training_operator
from operators.recipes import asset, recipes_for
from operators.stage import MembersOperator, StageOperator

FORM = {"canary.steps": "Training steps of each small run."}

for recipe in recipes_for("canary"):
    settings = dag_settings(
        recipe,
        "canary",
        __doc__,
        schedule=[asset(recipe.name, "tokens")],
        form=FORM,
    )
    with DAG(**settings):
        arms = MembersOperator(task_id="arms", recipe=recipe.name, stage="arms")
        canary = (
            training_operator(recipe, gang=False)
            .partial(
                task_id="canary", recipe=recipe.name, stage="canary", pool="gpu", map_index_template="{{ task.member }}"
            )
            .expand(member=arms.output)
        )
        decide = StageOperator(task_id="decide", recipe=recipe.name, stage="decide")
        gate = CanaryGate(
            task_id="gate", recipe=recipe.name, decided=decide.output, outlets=[asset(recipe.name, "mixture")]
        )
        canary >> decide >> gate
        if recipe.place.ask_human:
            approve = ReportApproval(
                task_id="approve",
                subject=f"{recipe.name}: may the large model be trained on this mixture?",
                recipe=recipe.name,
                decided=decide.output,
            )
            decide >> approve >> gate
