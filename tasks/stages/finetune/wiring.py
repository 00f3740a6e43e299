"""Wiring of the stages `examples` and `finetune`: a model, and rows of JSON or chunks -> a fine-tuned model."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "examples",
        "tasks.stages.finetune.examples",
        "examples",
        "finetune",
        "examples",
        inputs={"tokenizer": "tokenizer"},
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
)
