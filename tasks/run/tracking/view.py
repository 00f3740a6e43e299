"""MLflow's server with one thing changed: a browser that has not chosen a view yet gets that of model training.

MLflow 3 shows every experiment, of whatever kind, in the view that the browser remembers, and begins with the one for
GenAI: usage, quality and tool calls, of which training has none. The choice stands in the browser's own storage, so it
is made by a line of script in the page, for a browser in which nothing is chosen; the switch in the UI works as before.

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
    """Puts the script into MLflow's one page, before its own."""
    if request.method == "GET" and request.path.endswith("/") and response.mimetype == "text/html":
        response.direct_passthrough = False
        response.set_data(response.get_data().replace(b"<head>", b"<head>" + _SCRIPT, 1))
        # The entity tag is that of the file; a page kept by the browser under it would be the one without the script.
        response.headers.pop("ETag", None)
        response.headers.pop("Last-Modified", None)
    return response
