"""Stage register: the trained model, its tokenizer and its lineage as one folder for MLflow's model registry.

Settings of the stage register. Imports pydantic only, for the Airflow dag-processor.
"""

from tasks.core.config import Config


class RegisterConfig(Config):
    """Registration of the model."""

    model: str = ""
    """Name in the registry; empty: the recipe's name."""
