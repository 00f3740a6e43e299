"""The Sluice page that belongs to a DAG, a DAG run or a task of Airflow.

Reads the XComs that operators store for the link to their artifact (`operators.links.ArtifactLink`).
"""

from typing import Annotated

from fastapi import Query
from fastapi.responses import RedirectResponse

from sluice_ui.access import User, readable, router
from sluice_ui.frame import HEADERS, ROOT, Address

LINK = "link_artifact"
"""XCom key of the path of a task's artifact on this server."""


def page_of(dag: str, run: str, task: str, map_index: str) -> str:
    """Returns the address of a page: the artifact of a task, the version of a run, or the versions of a recipe.

    A run without an artifact yet has the page of its recipe.

    Args:
        dag: DAG id, `<recipe>.<dag>`.
        run: run id, or "".
        task: task id, or "".
        map_index: index of a mapped task; anything but a number for others.
    """
    recipe = dag.partition(".")[0]
    if run and (artifact := _artifact(dag, run, task, int(map_index) if map_index.isdecimal() else -1)):
        if task:
            return artifact
        return Address(f"/recipe/{recipe}", {"version": artifact.rpartition("@")[2]}).href()
    return Address(f"/recipe/{recipe}", {}).href()


def _artifact(dag: str, run: str, task: str, map_index: int) -> str:
    """Returns the path of the artifact of a task, or of any task of the run; "" if there is none yet."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    of_task = {"task_ids": task, "map_indexes": map_index} if task else {}
    with create_session() as session:
        rows = session.scalars(XComModel.get_many(run_id=run, key=LINK, dag_ids=dag, **of_task))
        paths = (XComModel.deserialize_value(row) for row in rows)
        return next((path for path in paths if isinstance(path, str) and path.startswith(f"{ROOT}/artifact/")), "")


routes = router()


@routes.get("/airflow")
def of_airflow(
    user: User,
    dag: Annotated[str, Query(max_length=250)],
    run: Annotated[str, Query(max_length=250)] = "",
    task: Annotated[str, Query(max_length=250)] = "",
    map_index: Annotated[str, Query(max_length=20)] = "",
) -> RedirectResponse:
    """The page of a DAG, a run or a task, for the tabs in Airflow."""
    readable(dag.partition(".")[0], user)
    return RedirectResponse(page_of(dag, run, task, map_index), headers=HEADERS)
