"""DaskStageOperator: runs the parts of a stage on the Dask cluster of the recipe's place.

The cluster is an existing one (`[place.dask] address`) or the one of this DAG run (`[place.dask.kubernetes]`). Without
either, the parts run in processes of the worker, so one DAG file works on laptop and cluster.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from airflow.sdk import BaseOperatorLink, TaskGroup, chain

from operators.dask_cluster import dashboard, ensure_cluster, on_cluster
from operators.links import DaskLink
from operators.pods.rights import uses_kubernetes
from operators.recipes import assets_of
from operators.stage import StageOperator, member_lists, numbered
from tasks.core.errors import SluiceError
from tasks.run.place import expand_env
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.variants import stages_of_variants

ADDRESS = "SLUICE_DASK"
"""Environment variable that `[place.dask] address` takes its value from, unless the recipe sets another one."""


class DaskStageOperator(StageOperator):
    """Runs a stage in the worker and maps its parts over a Dask cluster."""

    operator_extra_links: ClassVar[Sequence[BaseOperatorLink]] = (*StageOperator.operator_extra_links, DaskLink())
    ui_color = "#f3e7d3"
    on_dask = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dashboard = ""

    def run(self, context: Any) -> dict[str, Any]:
        """Runs the stage on the cluster; pushes the link to the status page first, for use during the run."""
        recipe = find_recipe(self.recipe)
        if recipe.place.dask.kubernetes is None:
            self._show(context, _status_page(recipe))
            return super().run(context)
        cluster = ensure_cluster(recipe, context)
        self._show(context, dashboard(recipe, cluster))
        with _environment(ADDRESS, cluster["address"]):
            return super().run(context)

    def _show(self, context: Any, page: str) -> None:
        self.dashboard = page
        if page:
            context["ti"].xcom_push(key=DaskLink().xcom_key, value=page)


def _status_page(recipe: Recipe) -> str:
    from tasks.core.engine import dashboard_of

    address, dashboard = expand_env(recipe.place.dask.address), expand_env(recipe.place.dask.dashboard)
    if dashboard or not address:
        return dashboard if address else ""
    try:
        return dashboard_of(address)
    except SluiceError:
        return ""  # the stage reports an unreachable scheduler itself, unless it is skipped


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _common(recipe: Recipe) -> dict[str, Any]:
    """Returns the arguments that all tasks of a recipe on Dask have."""
    common = {"recipe": recipe.name, "pool": "dask"}
    if recipe.place.dask.kubernetes is None:
        return common
    # A task creates the cluster of its run again if that is gone. Without one the parts run in the task's pod.
    return {**common, "executor_config": uses_kubernetes()}


def dask_stages(recipe: Recipe, dag: str) -> list[DaskStageOperator]:
    """Returns the tasks of a DAG whose stages all map their parts over Dask, in the order in which they run."""
    common = _common(recipe)
    return [
        DaskStageOperator(task_id=stage, stage=stage, **common, **assets_of(recipe, stage))
        for stage in recipe.stages(dag)
    ]


def made_variants(recipe: Recipe) -> list[TaskGroup]:
    """Returns the tasks that make the tokens of every arm of `[[canary.settings]]`, after the tasks that list these.

    They are a group for each list, which is mapped over its variants, with a task for every stage.
    """
    # Imported here: it imports operators that no recipe needs (0.03 CPU-seconds).
    from airflow.sdk import task_group

    most = 1 + len(recipe.field("canary.settings"))
    lists = member_lists(most, task_id="variants", recipe=recipe.name, stage="variants")
    every = {**_common(recipe), "map_index_template": "{{ task.variant }}"}

    def made(variant: str) -> None:
        stages = stages_of_variants(recipe)
        chain(*(DaskStageOperator(task_id=stage, stage=stage, variant=variant, **every) for stage in stages))

    groups = [
        task_group(group_id=numbered("variant", batch))(made).expand(variant=listed.output)
        for batch, listed in enumerate(lists)
    ]
    on_cluster(recipe, groups)
    return groups
