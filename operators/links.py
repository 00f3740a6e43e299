"""Operator links on a task's page: its MLflow run, its artifact, the status page of its Dask cluster.

Airflow computes a link in the task's process after `execute`, and stores it as an XCom for the UI. So links are read
from attributes that the operator sets while it runs.
"""

from typing import Any

from airflow.sdk import BaseOperatorLink


class MlflowLink(BaseOperatorLink):  # type: ignore[misc]
    """The MLflow run of the stage."""

    @property
    def name(self) -> str:
        """Text of the button."""
        return "MLflow run"

    @property
    def xcom_key(self) -> str:
        """Where Airflow keeps the link."""
        return "link_mlflow"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Returns the run's page, or "" where the stage was not tracked."""
        return str((getattr(operator, "result", None) or {}).get("mlflow_run_url", ""))


class ArtifactLink(BaseOperatorLink):  # type: ignore[misc]
    """The artifact's page in the ledger."""

    @property
    def name(self) -> str:
        """Text of the button."""
        return "Artifact"

    @property
    def xcom_key(self) -> str:
        """Where Airflow keeps the link."""
        return "link_artifact"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Returns the artifact's page under this Airflow's own address, or "" before there is one."""
        address = (getattr(operator, "result", None) or {}).get("address", "")
        return f"/sluice/artifact/{address}" if address else ""


class DaskLink(BaseOperatorLink):  # type: ignore[misc]
    """The status page of the Dask cluster. The operator also pushes it at its start, for use during the run."""

    @property
    def name(self) -> str:
        """Text of the button."""
        return "Dask"

    @property
    def xcom_key(self) -> str:
        """Where Airflow keeps the link."""
        return "link_dask"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Returns the page, or "" where the stage ran without a cluster."""
        return str(getattr(operator, "dashboard", ""))
