"""Pretrain: trains, evaluates and registers a model on the chosen mixture.

| | |
|---|---|
| reads | the asset `mixture` and the tokens of its canaries; for a recipe without canaries the asset `tokens` |
| writes | the asset `checkpoint`, `scores` on held-out text, and a version in MLflow's model registry |
| | and, with `[plan]` enabled, `estimate` before the training and `reconciled` after it: planned against actual |
| | and, with `[promote]` enabled, `comparison` with the champion, and `champion`: the current champion |
| costs | `train.steps` training steps, in the pool `gpu`: on this machine, or in a GPU pod, depending on the place |

A killed training resumes from its newest good checkpoint, on the same batches.
With `[place] ask_human`, a person approves a new champion in the Airflow UI.
"""

from airflow.sdk import DAG, Param

from operators.alerts import training_failed
from operators.dags import for_each_recipe
from operators.forms import dag_settings
from operators.gate import ReportApproval
from operators.places import training_operator
from operators.recipes import asset, assets_of, connect
from operators.stage import StageOperator
from tasks.run.catalogue import STAGES

FORM = {
    "train.steps": "Training steps.",
    "train.resume_from": Param(
        None,
        type=["null", "string"],
        title="train.resume_from",
        description="Step of an earlier checkpoint to which an incomplete training goes back; what came after it is "
        "abandoned. Retries go on from there. 400#2: back to 400 a second time. Empty: the newest checkpoint.",
    ),
}
GPU = ("train", "evaluate", "compare")
"""Stages that run the model; the others run on the worker."""


@for_each_recipe("pretrain", form=FORM)
def _build(recipe):
    # Without canaries the mixture is in the recipe.
    trigger_asset = asset(recipe.name, "mixture" if recipe.has(STAGES["decide"]) else "tokens")
    with DAG(**dag_settings(recipe, "pretrain", __doc__, schedule=[trigger_asset])) as dag:
        tasks = {}
        for stage in recipe.stages("pretrain"):
            operator = training_operator(recipe, gang=stage == "train") if stage in GPU else StageOperator
            more = {"pool": "gpu"} if stage in GPU else {}
            more |= {"on_failure_callback": training_failed} if stage == "train" else {}
            tasks[stage] = operator(task_id=stage, recipe=recipe.name, stage=stage, **assets_of(recipe, stage), **more)
        connect(tasks)
        if "promote" in tasks and recipe.place.ask_human:
            subject = f"{recipe.name}: may this model become champion?"
            decided = {"decided": tasks["compare"].output, "promoted_only": True}
            approve = ReportApproval(task_id="approve", subject=subject, recipe=recipe.name, **decided)
            tasks["compare"] >> approve >> tasks["promote"]
    return dag
