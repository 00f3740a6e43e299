"""Mirrors stage runs into MLflow: one experiment per recipe, one run per stage run, under one parent run per DAG run.

Only this package imports mlflow (1.5 CPU-seconds, so inside functions). MLflow is a mirror, never a condition: a stage
goes on when the server is down, and what could not be sent is kept in the store (`outbox`) and sent by the next stage
that finds the server up, or by `python -m tasks sync`.
"""

from tasks.run.tracking.message import TrackingContext

__all__ = ["TrackingContext"]
