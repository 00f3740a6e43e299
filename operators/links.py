"""Operator links on a task's page: its MLflow run, its artifact, the status page of its Dask cluster.

Airflow computes a link in the task's process after `execute` and stores it as an XCom for the UI, so the links are read
from attributes that the operator sets in `execute`.
"""

from typing import Any

from airflow.sdk import BaseOperatorLink


class MlflowLink(BaseOperatorLink):  # type: ignore[misc]
    """The MLflow run of the stage."""

    name = "MLflow run"
    xcom_key = "link_mlflow"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Returns the run's page, or "" where the stage was not tracked."""
        return str((getattr(operator, "result", None) or {}).get("mlflow_run_url", ""))


class ArtifactLink(BaseOperatorLink):  # type: ignore[misc]
    """The page of the artifact in the Sluice UI."""

    name = "Artifact"
    xcom_key = "link_artifact"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Returns the path of the artifact's page on this Airflow server, or "" while there is no artifact."""
        address = (getattr(operator, "result", None) or {}).get("address", "")
        return f"/sluice/artifact/{address}" if address else ""


class DaskLink(BaseOperatorLink):  # type: ignore[misc]
    """The status page of the Dask cluster. The operator also pushes it when it starts, for use during the run."""

    name = "Dask"
    xcom_key = "link_dask"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Returns the URL of the page, or "" where the stage ran without a cluster."""
        return str(getattr(operator, "dashboard", ""))
