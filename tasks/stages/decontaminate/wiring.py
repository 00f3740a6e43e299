"""Wiring of the stage `decontaminate`: documents and evaluation sets -> contamination."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "decontaminate",
        "tasks.stages.decontaminate.stage",
        "decontaminate",
        "corpus",
        "contamination",
        inputs={"extracted": "extracted"},
        input_files={"extracted": ("documents/",)},
        conditional=True,
    ),
)
