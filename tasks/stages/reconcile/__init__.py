"""Stage reconcile: the estimate of a training run against what it took.

Wiring of the stage `reconcile`: estimate and checkpoint -> comparison.
"""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "reconcile",
        "tasks.stages.reconcile.stage",
        "plan",
        "pretrain",
        "reconciled",
        inputs={"estimate": "estimate", "checkpoint": "checkpoint"},
        conditional=True,
    ),
)
