"""Stage estimate: what a training run will take, before it begins.

Wiring of the stage `estimate`: pack plan -> what the training run will take.
"""

from tasks.core.stage_spec import Previous, StageSpec

STAGES = (
    StageSpec(
        "estimate",
        "tasks.stages.estimate.stage",
        "plan",
        "pretrain",
        "estimate",
        inputs={"plan": "plan"},
        # A plan that is made again, because of a takedown that met none of it, is the same plan.
        input_files={"plan": ("plan/",)},
        previous={"previous": Previous("checkpoint", completed_by="checkpoint")},
        conditional=True,
    ),
)
