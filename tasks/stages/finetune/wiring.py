"""Wiring of the stages `examples` and `finetune`: a model, and rows of JSON -> a fine-tuned model."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "examples",
        "tasks.stages.finetune.examples",
        "examples",
        "finetune",
        "examples",
        inputs={"tokenizer": "tokenizer"},
        conditional=True,
    ),
    StageSpec(
        "finetune",
        "tasks.stages.finetune.stage",
        "finetune",
        "finetune",
        "finetuned",
        inputs={"examples": "examples"},
        named={"base": "base"},
        conditional=True,
    ),
)
