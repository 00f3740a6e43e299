"""The DAG bundle of Sluice: the DAG files of the installed wheel, in an Airflow that has DAGs of its own.

Named by class in `[dag_processor] dag_bundle_config_list`, so that the setting contains no path of a machine. The wheel
has `dags/` as `sluice_dags`; an editable install uses the folder of its checkout.
"""

from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle

_ROOT = Path(__file__).parents[1]


class SluiceDags(LocalDagBundle):  # type: ignore[misc]
    """All DAG files: one DAG per recipe and part. Not versioned, because the wheel is one version."""

    def __init__(self, **kwargs: Any) -> None:
        installed = _ROOT / "sluice_dags"
        super().__init__(**{**kwargs, "path": str(installed if installed.is_dir() else _ROOT / "dags")})
