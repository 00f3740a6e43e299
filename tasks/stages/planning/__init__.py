"""Stages estimate and reconcile: what a training run will take, before it begins, and what it took."""

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
        # A plan that is made again, because of a takedown that met none of it, is the same plan.
        inputs={"plan": Input("plan", files=("plan/",))},
        previous={"previous": PreviousInput("checkpoint", completed_by="checkpoint")},
        # The training does not read the estimate: with another price it is the same. It waits for it all the same.
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
