"""The stage `train_classifiers`: labels and extracted text in, fastText models out."""

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
