"""Stages estimate and reconcile: the predicted resources of a training run, and a comparison with the actual ones."""

from tasks.core.stage_spec import Input, PreviousInput, StageSpec
from tasks.trainer.planning.config import PlanConfig

STAGES = (
    StageSpec(
        "estimate",
        dag="pretrain",
        output="estimate",
        config=PlanConfig,
        section="plan",
        module="estimate",
        # Only the content counts: a plan packed again after a takedown of other documents is the same plan.
        inputs={"plan": Input("plan", files=("plan/",))},
        previous={"previous": PreviousInput("checkpoint", completed_by="checkpoint")},
        # The training runs after the estimate but does not read it, so that a new price does not change the training.
        before=("train",),
    ),
    StageSpec(
        "reconcile",
        dag="pretrain",
        output="reconciled",
        config=PlanConfig,
        section="plan",
        module="reconcile",
        inputs={"estimate": Input("estimate"), "checkpoint": Input("checkpoint")},
    ),
)
