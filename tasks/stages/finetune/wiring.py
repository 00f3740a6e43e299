"""Wiring of the stages of fine-tuning: rows of JSON or chunks, and a base -> a model, compared and registered."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "examples",
        "tasks.stages.finetune.examples",
        "examples",
        "finetune",
        "examples",
        inputs={"tokenizer": "tokenizer"},
        tokenizer_of_base=True,
        optional_inputs={"chunks": "chunks"},
        optional_if={"chunks": "examples.own_chunks"},
        named={"other_chunks": "chunks.of"},
        takedowns="takedowns",
        takedowns_if="examples.reads_chunks",
        conditional=True,
    ),
    StageSpec(
        "finetune",
        "tasks.stages.finetune.stage",
        "finetune",
        "finetune",
        "finetuned",
        inputs={"examples": "examples"},
        input_files={"examples": ("examples/", "examples.json")},
        named={"base": "base"},
        conditional=True,
    ),
    StageSpec(
        "evaluate_tuned",
        "tasks.stages.finetune.compare",
        "tuned",
        "finetune",
        "tuned_scores",
        inputs={"finetuned": "finetuned", "examples": "examples", "tokenizer": "tokenizer"},
        tokenizer_of_base=True,
        conditional=True,
    ),
    StageSpec(
        "register_tuned",
        "tasks.stages.finetune.register",
        "tuned",
        "finetune",
        "tuned_model",
        inputs={
            "finetuned": "finetuned",
            "examples": "examples",
            "tokenizer": "tokenizer",
            "tuned_scores": "tuned_scores",
        },
        tokenizer_of_base=True,
        conditional=True,
    ),
)
