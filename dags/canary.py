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
More runs than Airflow maps at one time (`[core] max_map_length`) are in several tasks: `canary`, `canary_2`.
With `[place] ask_human` a person approves the decision in the UI; `approve_within_h` hours without an answer reject it.
"""

from airflow.sdk import DAG, TaskGroup

from operators.dags import for_each_recipe
from operators.dask_stage import made_variants
from operators.forms import dag_settings
from operators.gate import CanaryGate, ReportApproval
from operators.places import small_runs
from operators.recipes import asset, assets_of
from operators.stage import StageOperator, member_lists

FORM = {"canary.steps": "Training steps of each small run."}


@for_each_recipe("canary", form=FORM)
def _build(recipe):
    with DAG(**dag_settings(recipe, "canary", __doc__, schedule=[asset(recipe.name, "tokens")])) as dag:
        # Skipped runs of a round, after the cycle has stopped, do not skip the tasks after them.
        always = {"recipe": recipe.name, "trigger_rule": "none_failed"}
        read = assets_of(recipe, "arms")
        most = recipe.canary.confirming_runs
        finalist = member_lists(most, task_id="finalist", stage="finalist", **assets_of(recipe, "finalist"), **always)
        after = made_variants(recipe) if recipe.canary.settings else []
        for number in range(1, recipe.canary.screenings + 1):
            with TaskGroup(f"round_{number}"):
                own = {"task_id": "arms", "stage": "arms", "member": f"round-{number}", **read, **always}
                arms = member_lists(recipe.canary.runs_at_once, **own)
                after >> arms[0]
                after = small_runs(recipe, "canary", arms)
        ends = assets_of(recipe, "decide")
        decide = StageOperator(task_id="decide", stage="decide", inlets=ends["inlets"], **always)
        decision = {"recipe": recipe.name, "decided": decide.output}
        gate = CanaryGate(task_id="gate", outlets=ends["outlets"], **decision)
        if "prioritize" in recipe.stages("canary"):
            gate >> StageOperator(task_id="prioritize", stage="prioritize", recipe=recipe.name)
        after >> finalist[0]
        small_runs(recipe, "confirm", finalist) >> decide >> gate
        if recipe.place.ask_human:
            decision |= {"subject": f"{recipe.name}: may the large model be trained on this mixture?", "rejects": True}
            decide >> ReportApproval(task_id="approve", within_h=recipe.place.approve_within_h, **decision) >> gate
    return dag
