"""Pretrain: trains, evaluates and registers a model on the chosen mixture.

| | |
|---|---|
| reads | the asset `mixture`, and the tokens it was decided on; of a recipe without canaries the asset `tokens` |
| makes | the asset `checkpoint`, `scores` on held-out text, and a version in MLflow's model registry |
| | and where `[plan]` is enabled `estimate` before the training and `reconciled` after it: planned against real |
| costs | `train.steps` training steps, in the pool `gpu`: on this machine, or in a GPU pod, depending on the place |

A killed training resumes from its newest good checkpoint, on the same batches.
"""

from airflow.sdk import DAG

from operators.assets import asset, outlets_of
from operators.forms import dag_settings
from operators.order import connect
from operators.places import training_operator
from operators.recipes import recipes_for
from operators.stage import StageOperator
from tasks.run.catalogue import STAGES

FORM = {"train.steps": "Training steps."}

for recipe in recipes_for("pretrain"):
    # Without canaries the mixture is in the recipe.
    decided = recipe.has(STAGES["decide"])
    settings = dag_settings(
        recipe,
        "pretrain",
        __doc__,
        schedule=[asset(recipe.name, "mixture" if decided else "tokens")],
        form=FORM,
    )
    with DAG(**settings):
        common = {"recipe": recipe.name}
        tasks = {
            "train": training_operator(recipe)(
                task_id="train", stage="train", pool="gpu", outlets=outlets_of(recipe.name, "train"), **common
            ),
            "evaluate": training_operator(recipe, gang=False)(
                task_id="evaluate", stage="evaluate", pool="gpu", **common
            ),
            "register": StageOperator(task_id="register", stage="register", **common),
        }
        # Only where the recipe has `[plan] enabled`.
        around = [stage for stage in ("estimate", "reconcile") if recipe.has(STAGES[stage])]
        tasks |= {stage: StageOperator(task_id=stage, stage=stage, **common) for stage in around}
        connect(tasks)
        if around:
            # The training does not read the estimate: with another price it is the same. It waits for it all the same.
            tasks["estimate"] >> tasks["train"]
