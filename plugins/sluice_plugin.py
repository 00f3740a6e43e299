"""Airflow plugin of the Sluice page. The only file here that Airflow's plugin loader reads (see .airflowignore).

Every Airflow process imports it, including each task, so it imports no code of Sluice at its top: the page is imported
on its first request, in the API server.
"""

from typing import Any

from airflow.plugins_manager import AirflowPlugin

TABS = {
    "dag": "dag={DAG_ID}",
    "dag_run": "dag={DAG_ID}&run={RUN_ID}",
    "task_instance": "dag={DAG_ID}&run={RUN_ID}&task={TASK_ID}&map_index={MAP_INDEX}",
}
"""Query of the page of a DAG, a run or a task; Airflow fills in the fields."""


async def page(scope: Any, receive: Any, send: Any) -> None:
    """The page as an ASGI application."""
    from sluice_ui.app import app

    scope["airflow"] = scope.get("app")  # whose public API triggers runs; the page's own application replaces "app"
    await app(scope, receive, send)


class SluicePlugin(AirflowPlugin):  # type: ignore[misc]
    """Adds "Sluice" to the navigation, and as a tab to the pages of DAGs, runs and tasks."""

    name = "sluice"
    fastapi_apps = [{"app": page, "url_prefix": "/sluice", "name": "Sluice"}]
    external_views = [
        {"name": "Sluice", "href": "/sluice/", "destination": "nav", "url_route": "sluice"},
        *(
            {"name": "Sluice", "href": f"/sluice/airflow?{query}", "destination": where, "url_route": f"sluice-{where}"}
            for where, query in TABS.items()
        ),
    ]
