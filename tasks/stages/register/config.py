"""Settings of the model registry."""

from tasks.core.config import Config


class RegisterConfig(Config):
    """Which checkpoint becomes a registered model."""

    model: str = ""
    """Name in the registry; empty: the recipe's name."""
