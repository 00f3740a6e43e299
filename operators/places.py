"""Choice of the operator for training stages by place: a GPU pod, a gang of pods, or the worker itself.

The stage, its arguments and its artifact are the same with each.
"""

from operators.stage import StageOperator
from tasks.run.recipe import Recipe


def training_operator(recipe: Recipe, *, gang: bool = True) -> type[StageOperator]:
    """Returns the operator class for `train` and `canary` stages of a recipe.

    Args:
        recipe: the recipe with the place.
        gang: the stage may use several nodes; a canary always uses one.
    """
    if recipe.place.train.where == "local":
        return StageOperator
    # Imported here: recipes without a cluster need not import the Kubernetes client (0.6 to 0.8 CPU-seconds).
    if gang and recipe.place.kubernetes is not None and recipe.place.kubernetes.nodes > 1:
        from operators.jobset import JobSetOperator, TrainJobOperator

        return TrainJobOperator if recipe.place.kubernetes.gang == "trainjob" else JobSetOperator
    from operators.gpu_pod import GpuPodOperator

    return GpuPodOperator
