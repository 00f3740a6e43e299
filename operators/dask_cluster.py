"""Setup and teardown tasks of a Dask cluster per DAG run, on Kubernetes with the Dask operator.

Its name is derived from DAG and run, so a retried or cleared task finds the cluster of its run and never creates a
second. The teardown runs whether stages succeed or fail; if it never runs, the Dask operator deletes the cluster after
`idle_s` without work, and a stage that still needs it creates it again.
"""

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

from airflow.sdk import BaseOperator, BaseOperatorLink, TaskGroup, chain

from operators.dask.manifests import autoscaler_manifest, cluster_manifest, name_of, place_of
from operators.links import DaskLink
from operators.pods.rights import uses_kubernetes
from operators.recipes import RecipeOperator
from operators.runs import fails_at_once, run_of
from tasks.run.place import DaskPods, expand_env
from tasks.run.recipe import Recipe, find_recipe

log = logging.getLogger("sluice.dask")


class DaskSetupOperator(RecipeOperator):
    """Creates the Dask cluster of this DAG run and waits until it is ready; its XCom has the cluster's address."""

    operator_extra_links: ClassVar[Sequence[BaseOperatorLink]] = (DaskLink(),)
    ui_color = "#f3e7d3"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"executor_config": uses_kubernetes(), **kwargs})
        self.dashboard = ""
        self._unfinished: tuple[DaskPods, str] | None = None

    def execute(self, context: Any) -> Any:
        """Creates or adopts the cluster; deletes one that it created and that does not become ready."""
        with fails_at_once():
            recipe = find_recipe(self.recipe)
            run = run_of(recipe, context)
            log.info("Dask cluster of %s, %s", recipe.name, run)
            run.recipe(recipe)  # refuses an unusable conf before the cluster starts
            pods = place_of(recipe)
            assert pods is not None, "the DAG file creates this task only where the place has pods for Dask"
            self._unfinished = pods, run_name(context)
            try:
                cluster = ensure_cluster(recipe, context)
            except BaseException:
                self.on_kill()
                raise
            self._unfinished = None
            self.dashboard = dashboard(recipe, cluster)
            return cluster

    def on_kill(self) -> None:
        """Deletes a cluster that is not up yet: no teardown task follows a failed setup."""
        from operators.dask.api import delete_cluster

        if self._unfinished:
            pods, name = self._unfinished
            self._unfinished = None
            try:
                delete_cluster(pods, name)
            except Exception as error:
                log.warning(
                    "the Dask cluster %s could not be deleted (%s); the operator deletes it when it is idle",
                    name,
                    error,
                )


class DaskTeardownOperator(RecipeOperator):
    """Deletes the Dask cluster of this DAG run, if it exists."""

    ui_color = "#f3e7d3"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"executor_config": uses_kubernetes(), **kwargs})

    def execute(self, context: Any) -> None:
        """Deletes the cluster and waits for its deletion; logs the outcome."""
        from operators.dask.api import delete_cluster

        with fails_at_once():
            pods = place_of(find_recipe(self.recipe))
            if pods is None:
                return  # the recipe was changed during the run; the operator deletes the idle cluster
            name = run_name(context)
            log.info("Dask cluster %s: %s", name, delete_cluster(pods, name))


def on_cluster(recipe: Recipe, work: Sequence[BaseOperator | TaskGroup]) -> None:
    """Chains the stages `work`, between setup and teardown tasks where the place creates a Dask cluster per run.

    Call it inside a DAG. Without `[place.dask.kubernetes]` the stages are only chained.
    """
    chain(*work)
    if recipe.place.dask.kubernetes is None:
        return
    setup = DaskSetupOperator(task_id="dask_up", recipe=recipe.name).as_setup()
    teardown = DaskTeardownOperator(task_id="dask_down", recipe=recipe.name).as_teardown(setups=setup)
    chain(setup, work[0])
    chain(work[-1], teardown)


def ensure_cluster(recipe: Recipe, context: Any) -> dict[str, str]:
    """Returns the cluster of this DAG run (name, namespace, address, status_page); creates it if it is missing."""
    from operators.dask.api import create_cluster

    pods = place_of(recipe)
    assert pods is not None, "the place configures no cluster"
    name = run_name(context)
    owner = f"{context['ti'].dag_id} {context['run_id']}"
    return create_cluster(pods, cluster_manifest(recipe, pods, name, owner), autoscaler_manifest(pods, name))


def run_name(context: Any) -> str:
    """Returns the name of this DAG run's cluster."""
    return name_of(context["ti"].dag_id, context["run_id"])


def dashboard(recipe: Recipe, cluster: dict[str, str]) -> str:
    """Returns the URL of the status page of a run's cluster."""
    # Imported here: DAG files import this module, and the engine costs NumPy and pyarrow (0.14 CPU-seconds).
    from tasks.core.engine import status_path

    url = expand_env(recipe.place.dask.dashboard)
    for word in ("name", "namespace"):
        url = url.replace(f"{{{word}}}", cluster[word])
    # Scheduler and Airflow have the same libraries, so Bokeh is in both or in neither.
    return url or cluster["status_page"] + status_path(find_spec("bokeh") is not None)
