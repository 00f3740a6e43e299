"""Airflow plugin: the Sluice page, the notes of DAG runs, and imports that forked processes inherit.

Loaded by the entry point of the installed package, not by Airflow's loader of this folder (see .airflowignore).
Every Airflow process imports it, including each task, so it imports no code of Sluice at its top: the page is imported
on its first request, in the API server, and the code of notes when the scheduler starts a run.
"""

import importlib
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow import settings
from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

log = logging.getLogger(__name__)

PACKAGES = ("tasks", "operators")
"""Packages of Sluice whose names a folder of DAGs or plugins may have, too."""

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


class RunNotes:
    """Listener that writes the version of a run into its note when it starts, unless somebody wrote one."""

    @hookimpl  # type: ignore[untyped-decorator]
    def on_dag_run_running(self, dag_run: Any, msg: str) -> None:
        """Called by the scheduler, which saves the run afterwards and logs an error of a listener."""
        from operators.run_notes import note_of

        if not dag_run.note and (note := note_of(dag_run)):
            dag_run.note = note


class Imports:
    """Listener that imports the modules of $SLUICE_IMPORTS into the scheduler or the dag-processor when it starts.

    These fork a process for each task and each parse of a DAG file, which would import them again and again. With
    `operators.recipes` among them, recipes are read once, too.
    """

    @hookimpl  # type: ignore[untyped-decorator]
    def on_starting(self, component: Any) -> None:
        """Called before the first fork; imports nothing in a task, because the variable is not passed on."""
        for name in os.environ.pop("SLUICE_IMPORTS", "").split():
            with suppress(ImportError):  # who needs it reports it
                module = importlib.import_module(name)
                if name == "operators.recipes":
                    module.remember_recipes()


class SluicePlugin(AirflowPlugin):  # type: ignore[misc]
    """Adds "Sluice" to the navigation, and as a tab to the pages of DAGs, runs and tasks; adds notes to runs."""

    name = "sluice"
    listeners = [RunNotes(), Imports()]
    fastapi_apps = [{"app": page, "url_prefix": "/sluice", "name": "Sluice"}]
    external_views = [
        {"name": "Sluice", "href": "/sluice/", "destination": "nav", "url_route": "sluice"},
        *(
            {"name": "Sluice", "href": f"/sluice/airflow?{query}", "destination": where, "url_route": f"sluice-{where}"}
            for where, query in TABS.items()
        ),
    ]

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Warns of a package in Airflow's folders that Sluice's hides: Python finds installed packages first."""
        for folder in (settings.DAGS_FOLDER, settings.PLUGINS_FOLDER):
            for path in (Path(folder) / name for name in PACKAGES):
                if path.is_dir():
                    log.warning("%s is hidden by the package %s of Sluice: rename the folder", path, path.name)
