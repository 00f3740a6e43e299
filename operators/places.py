"""Which operator runs the training stages: one GPU pod, a gang of them, or the worker itself, as the place says.

The stage, its arguments and its artifact are the same in both.
"""

from operators.stage import StageOperator
from tasks.run.recipe import Recipe


def training_operator(recipe: Recipe, *, gang: bool = True) -> type[StageOperator]:
    """Returns the operator class for `train` and `canary` stages of a recipe.

    Args:
        recipe: whose place is asked.
        gang: the stage may take several nodes; a canary takes one, whatever the place says.
    """
    if recipe.place.train.where == "local":
        return StageOperator
    # Imported here: they bring the Kubernetes client (0.6 to 0.8 CPU-seconds), which a recipe without a cluster spares.
    if gang and recipe.place.kubernetes is not None and recipe.place.kubernetes.nodes > 1:
        from operators.jobset import JobSetOperator

        return JobSetOperator
    from operators.gpu_pod import GpuPodOperator

    return GpuPodOperator
