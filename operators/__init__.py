"""Airflow operators that run the stages of `tasks`. A DAG file imports from here and from Airflow only."""

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Returns what `airflow providers` lists, by the schema of `airflow/provider_info.schema.json`.

    Airflow calls it in every process, by the entry point `apache_airflow_provider`: it imports nothing.
    """
    name = "Sluice"
    return {
        "package-name": "sluice",
        "name": name,
        "description": "From seed URLs to a trained language model, with a trace from every training step to its page.",
        "integrations": [{"integration-name": name, "tags": ["software"]}],
        "operators": [
            {
                "integration-name": name,
                "python-modules": [
                    "operators.recipes",
                    "operators.stage",
                    "operators.dask_cluster",
                    "operators.dask_stage",
                    "operators.kubernetes_stage",
                    "operators.gate",
                    "operators.cycle",
                    "operators.retention",
                    "operators.lake",
                ],
            }
        ],
        "triggers": [
            {
                "integration-name": name,
                "python-modules": ["operators.pods.trigger", "operators.jobsets.trigger", "operators.watch"],
            }
        ],
    }
