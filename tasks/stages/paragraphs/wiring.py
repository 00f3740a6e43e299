"""Wiring of the stage `paragraphs`: documents -> repeated paragraphs."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "paragraphs",
        "tasks.stages.paragraphs.stage",
        "paragraphs",
        "corpus",
        "paragraphs",
        inputs={"extracted": "extracted"},
        input_files={"extracted": ("documents/",)},
        conditional=True,
    ),
)
