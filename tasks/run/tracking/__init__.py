"""Tracking of stage runs in MLflow: one experiment per recipe, one run per stage run, one parent run per DAG run.

Only this package imports mlflow (1.5 CPU-seconds, so inside functions). Tracking is optional: a stage continues when
the server is down; unsent messages are stored (`outbox`) and sent by the next stage that reaches the server, or by
`python -m tasks sync`.
"""

from tasks.run.tracking.message import TrackingContext

__all__ = ["TrackingContext"]
