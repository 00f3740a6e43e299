"""Pretrain: trains, evaluates and registers a model on the chosen mixture.

| | |
|---|---|
| reads | the asset `mixture`, and the tokens it was decided on; of a recipe without canaries the asset `tokens` |
| makes | the asset `checkpoint`, `scores` on held-out text, and a version in MLflow's model registry |
| costs | `train.steps` training steps, in the pool `gpu`: on this machine, or in a GPU pod, depending on the place |

A killed training resumes from its newest good checkpoint, on the same batches.
"""

from airflow.sdk import DAG, chain

from operators.assets import asset
from operators.forms import dag_settings
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
        stages=["train", "evaluate", "register"],
        schedule=[asset(recipe.name, "mixture" if decided else "tokens")],
        form=FORM,
    )
    with DAG(**settings):
        train = training_operator(recipe)(
            task_id="train",
            recipe=recipe.name,
            stage="train",
            pool="gpu",
            outlets=[asset(recipe.name, "checkpoint")],
        )
        evaluate = training_operator(recipe, gang=False)(
            task_id="evaluate", recipe=recipe.name, stage="evaluate", pool="gpu"
        )
        register = StageOperator(task_id="register", recipe=recipe.name, stage="register")
        chain(train, evaluate, register)
