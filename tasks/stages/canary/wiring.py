"""Wiring of the stages of a canary cycle: plan -> the mixture of the next training run."""

from tasks.core.stage_spec import Previous, StageSpec

PLAN = ("plan/",)
"""Files of the plan: one that is made again, because of a takedown that met none of it, is the same plan."""

STAGES = (
    StageSpec(
        "arms",
        "tasks.stages.canary.arms",
        "canary",
        "canary",
        "arms",
        inputs={"plan": "plan"},
        input_files={"plan": PLAN},
        previous={"previous": Previous("mixture", completed_by="mixture")},
    ),
    StageSpec(
        "canary",
        "tasks.stages.canary.run",
        "canary",
        "canary",
        "canary",
        inputs={"arms": "arms", "shards": "shards", "plan": "plan"},
        input_files={"plan": PLAN},
        mapped=True,
    ),
    StageSpec(
        "decide",
        "tasks.stages.canary.decide",
        "canary",
        "canary",
        "mixture",
        asset="mixture",
        inputs={"arms": "arms"},
        fan_in={"canaries": ("canary", "arms")},
    ),
)
