"""Fine-tune: trains an existing model on instructions or preferences.

| | |
|---|---|
| reads | the form, a base model, the version's tokenizer, and JSON lines or the chunks of documents |
| writes | `examples`: the rows as tokens; `finetuned`: the model and its checkpoints, or adapters and a merged model |
| | and `tuned_scores`: base and model on the same text, tasks and held-out examples; a version in MLflow's registry |
| costs | `finetune.steps` training steps, in the pool `gpu`: on this machine, or in a GPU pod, depending on the place |
| | and with `[promote_tuned]` the champion among the recipe's fine-tuned models |
| next | nothing; another fine-tuning can begin from this model |

Press **Trigger** to set base, method and steps in the form, and other settings as overrides.
A killed run resumes from its newest good checkpoint, on the same batches.
With `[place] ask_human`, a person approves a new champion in the Airflow UI.
"""

from airflow.sdk import DAG, Param

from operators.alerts import training_failed
from operators.dags import for_each_recipe
from operators.forms import dag_settings
from operators.gate import ReportApproval
from operators.places import training_operator
from operators.recipes import connect
from operators.stage import StageOperator

FORM = {
    "finetune.base": Param(
        None,
        type=["null", "string"],
        maxLength=300,
        title="Base",
        description='Model to begin from: "demo/checkpoint@2026.10", "demo/finetuned@sft", "hf://owner/name@revision".',
    ),
    "finetune.loss": Param(
        None, type=["null", "string"], enum=[None, "sft", "dpo"], title="Method", description="sft: instructions; dpo."
    ),
    "finetune.steps": "Training steps.",
}

GPU = ("finetune", "evaluate_tuned", "compare_tuned")
"""Stages that run the model; the others run on the worker."""


@for_each_recipe("finetune", form=FORM)
def _build(recipe):
    with DAG(**dag_settings(recipe, "finetune", __doc__, schedule=None)) as dag:
        tasks = {}
        for stage in recipe.stages("finetune"):
            operator = training_operator(recipe, gang=stage == "finetune") if stage in GPU else StageOperator
            more = {"pool": "gpu"} if stage in GPU else {}
            more |= {"on_failure_callback": training_failed} if stage == "finetune" else {}
            tasks[stage] = operator(task_id=stage, recipe=recipe.name, stage=stage, **more)
        connect(tasks)
        if "promote_tuned" in tasks and recipe.place.ask_human:
            subject = f"{recipe.name}: may this fine-tuned model become champion?"
            decided = {"decided": tasks["compare_tuned"].output, "promoted_only": True}
            approve = ReportApproval(task_id="approve", subject=subject, recipe=recipe.name, **decided)
            tasks["compare_tuned"] >> approve >> tasks["promote_tuned"]
    return dag
