"""Wiring of the stage `annotate`: documents -> attributes."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "annotate",
        "tasks.stages.annotate.stage",
        "annotate",
        "corpus",
        "attributes",
        inputs={"extracted": "extracted"},
        optional_inputs={"classifiers": "classifiers", "perplexity": "perplexity"},
    ),
)
