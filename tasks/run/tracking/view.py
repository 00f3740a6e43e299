"""MLflow's server with another default: a browser without a stored choice of the view gets that of model training.

MLflow 3 shows every experiment, of whatever kind, in the view that the browser has stored, and starts with the one for
GenAI: usage, quality and tool calls, of which training has none. The choice is in the browser's local storage, so a
script in the page sets it where there is none; the switch in the UI works as before.

Run as `mlflow server --app-name sluice` (an entry point of MLflow's group `mlflow.app`).
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
def _choose(response: Response) -> Any:
    """Inserts the script into MLflow's one page, before its own."""
    if request.method == "GET" and request.path.endswith("/") and response.mimetype == "text/html":
        response.direct_passthrough = False
        response.set_data(response.get_data().replace(b"<head>", b"<head>" + _SCRIPT, 1))
        # The entity tag is that of the file; a page that the browser has cached under it has no script.
        response.headers.pop("ETag", None)
        response.headers.pop("Last-Modified", None)
    return response
