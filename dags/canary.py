"""Canary: trains small models, one per mixture and seed, to choose the mixture for the large model.

| | |
|---|---|
| reads | the asset `tokens` |
| writes | by round `arms` and a `canary` per arm and seed; the `finalist`, its `confirmation`s; the asset `mixture` |
| | and, with `[priorities]` enabled, `priorities`: proposed factors of the scores of hosts in later crawls |
| costs | `canary.steps` training steps per arm and seed, and of the confirmation, in the pool `gpu` |
| next | `pretrain` starts automatically |

A round is skipped if an earlier one was sure enough, or the budget is spent. The best mixture is trained again with
fresh seeds, beside the current one, and promoted only if the interval of these paired differences excludes 0.
With `[[canary.settings]]` the group `variant` makes the tokens of each arm; the event of `mixture` then has settings.
With `[place] ask_human` a person approves the decision in the UI; `approve_within_h` hours without an answer reject it.
"""

from airflow.sdk import DAG, TaskGroup

from operators.dags import for_each_recipe
from operators.dask_stage import made_variants
from operators.forms import dag_settings
from operators.gate import CanaryGate, ReportApproval
from operators.places import training_operator
from operators.recipes import asset, assets_of
from operators.stage import MembersOperator, StageOperator

FORM = {"canary.steps": "Training steps of each small run."}


def small_runs(recipe, stage: str):
    """Returns the operator of a mapped stage of small trainings, to expand over its members."""
    settings = {"task_id": stage, "recipe": recipe.name, "stage": stage, "pool": "gpu", **assets_of(recipe, stage)}
    return training_operator(recipe, gang=False).partial(**settings, map_index_template="{{ task.member }}")


@for_each_recipe("canary", form=FORM)
def _build(recipe):
    with DAG(**dag_settings(recipe, "canary", __doc__, schedule=[asset(recipe.name, "tokens")])) as dag:
        # Skipped runs of a round, after the cycle has stopped, do not skip the tasks after them.
        always = {"recipe": recipe.name, "trigger_rule": "none_failed"}
        read = assets_of(recipe, "arms")
        finalist = MembersOperator(task_id="finalist", stage="finalist", **assets_of(recipe, "finalist"), **always)
        after = [made_variants(recipe)] if recipe.canary.settings else []
        for number in range(1, recipe.canary.screenings + 1):
            with TaskGroup(f"round_{number}"):
                arms = MembersOperator(task_id="arms", stage="arms", member=f"round-{number}", **read, **always)
                after >> arms
                after = [small_runs(recipe, "canary").expand(member=arms.output)]
        ends = assets_of(recipe, "decide")
        decide = StageOperator(task_id="decide", stage="decide", inlets=ends["inlets"], **always)
        decision = {"recipe": recipe.name, "decided": decide.output}
        gate = CanaryGate(task_id="gate", outlets=ends["outlets"], **decision)
        if "prioritize" in recipe.stages("canary"):
            gate >> StageOperator(task_id="prioritize", stage="prioritize", recipe=recipe.name)
        after >> finalist
        small_runs(recipe, "confirm").expand(member=finalist.output) >> decide >> gate
        if recipe.place.ask_human:
            decision |= {"subject": f"{recipe.name}: may the large model be trained on this mixture?", "rejects": True}
            decide >> ReportApproval(task_id="approve", within_h=recipe.place.approve_within_h, **decision) >> gate
    return dag
