"""Wiring of the stage `chunks`: kept documents and their layout, and the tokenizer -> chunks for fine-tuning."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "chunks",
        "tasks.stages.chunks.stage",
        "chunks",
        "tokens",
        "chunks",
        inputs={"documents": "documents", "extracted": "extracted", "tokenizer": "tokenizer"},
        input_files={"documents": ("kept/",), "extracted": ("documents/", "layout/")},
        takedowns="takedowns",
        conditional=True,
    ),
)
