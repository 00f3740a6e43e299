"""MLflow's server with the view for model training as default.

MLflow 3 shows experiments of any kind in the view that the browser has stored, and its default is the view for GenAI:
usage, quality and tool calls, which training does not have. The choice is in the browser's local storage, so a script
in the page sets it if it is not set. The switch in the UI works as before.

Run as `mlflow server --app-name sluice` (an entry point in MLflow's group `mlflow.app`).
"""

from typing import Any

from flask import Response, request
from mlflow.server import app as pages
from mlflow.server.fastapi_app import app

__all__ = ["app"]

_SCRIPT = b"""<script>(function () {
  var key = "mlflow.workflowType_v1";
  if (localStorage.getItem(key) === null) localStorage.setItem(key, JSON.stringify("machine_learning"));
})();</script>"""


@pages.after_request  # type: ignore[untyped-decorator]
def _insert_script(response: Response) -> Any:
    """Inserts the script into MLflow's single page, before MLflow's own scripts."""
    if request.method == "GET" and request.path.endswith("/") and response.mimetype == "text/html":
        response.direct_passthrough = False
        response.set_data(response.get_data().replace(b"<head>", b"<head>" + _SCRIPT, 1))
        # The entity tag is that of the original file, so the browser may have cached the page without the script.
        response.headers.pop("ETag", None)
        response.headers.pop("Last-Modified", None)
    return response
