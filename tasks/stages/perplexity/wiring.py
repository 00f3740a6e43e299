"""Wiring of the stage `train_perplexity`: reference text -> n-gram models."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "train_perplexity",
        "tasks.stages.perplexity.stage",
        "perplexity",
        "corpus",
        "perplexity",
        inputs={"extracted": "extracted"},
        conditional=True,
    ),
)
