"""Which operator runs the training stages: a GPU pod where the recipe's place has a cluster, else the worker itself.

Used by the `canary` and `pretrain` DAG files. The stage, its arguments and its artifact are the same in both.
"""

from operators.stage import StageOperator
from tasks.recipe import Recipe


def training_operator(recipe: Recipe) -> type[StageOperator]:
    """Returns the operator class for `train` and `canary` stages of a recipe."""
    if recipe.place.train.where == "local":
        return StageOperator
    # Imported here: it brings the Kubernetes client (0.6 to 0.8 CPU-seconds), which a recipe without a cluster spares.
    from operators.gpu_pod import GpuPodOperator

    return GpuPodOperator
