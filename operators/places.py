"""Choice of the operator for training stages by place: a GPU pod, a gang of pods, or the worker itself.

The stage, its arguments and its artifact are the same with each.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from operators.recipes import assets_of
from operators.stage import MembersOperator, StageOperator, numbered
from tasks.run.recipe import Recipe

if TYPE_CHECKING:
    from operators.kubernetes_stage import KubernetesStageOperator


def training_operator(recipe: Recipe, *, gang: bool = True) -> "type[StageOperator | KubernetesStageOperator]":
    """Returns the operator class for `train` and `canary` stages of a recipe.

    Args:
        recipe: the recipe with the place.
        gang: the stage may use several nodes; a canary always uses one.

    Raises:
        RecipeError: the place of its pods is missing or incomplete.
    """
    if recipe.place.train.where == "local":
        return StageOperator
    # Imported here: recipes without a cluster need not import the Kubernetes client (0.6 to 0.8 CPU-seconds).
    from operators.kubernetes_stage import GpuPodOperator, JobSetOperator, TrainJobOperator
    from operators.pods.spec import place_of

    place = place_of(recipe)
    if not gang or place.nodes <= 1:
        return GpuPodOperator
    return TrainJobOperator if place.gang == "trainjob" else JobSetOperator


def small_runs(recipe: Recipe, stage: str, lists: Sequence[MembersOperator]) -> list[Any]:
    """Returns the tasks of a stage of small trainings, one for each of `lists`, mapped over its members."""
    operator = training_operator(recipe, gang=False)
    settings = {"recipe": recipe.name, "stage": stage, "pool": "gpu", **assets_of(recipe, stage)}
    settings["map_index_template"] = "{{ task.member }}"
    return [
        operator.partial(task_id=numbered(stage, batch), **settings).expand(member=listed.output)
        for batch, listed in enumerate(lists)
    ]
