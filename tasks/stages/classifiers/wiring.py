"""Wiring of the stage `train_classifiers`: labelled and extracted text -> classifiers."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "train_classifiers",
        "tasks.stages.classifiers.stage",
        "classifiers",
        "corpus",
        "classifiers",
        inputs={"extracted": "extracted"},
        conditional=True,
    ),
)
