"""Airflow plugin of the Sluice page. The only file here that Airflow's plugin loader reads (see .airflowignore).

Every Airflow process imports it, including each task, so it imports no code of Sluice at its top: the page is imported
on its first request, in the API server.
"""

from typing import Any

from airflow.plugins_manager import AirflowPlugin


async def page(scope: Any, receive: Any, send: Any) -> None:
    """The page as an ASGI application."""
    from sluice_ui.app import app

    await app(scope, receive, send)


class SluicePlugin(AirflowPlugin):  # type: ignore[misc]
    """Adds "Sluice" to the navigation."""

    name = "sluice"
    fastapi_apps = [{"app": page, "url_prefix": "/sluice", "name": "Sluice"}]
    external_views = [{"name": "Sluice", "href": "/sluice/", "destination": "nav", "url_route": "sluice"}]
