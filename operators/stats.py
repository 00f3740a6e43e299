"""Results of a stage as gauges of Airflow's metrics (StatsD or OpenTelemetry, by airflow.cfg).

Two names: `sluice.rows`, labelled with the outcome (in, out, or the reason of a rejection), and `sluice.metric`,
labelled with the metric's name (crawl: pages, errors by reason, known and unfetched URLs; other stages: their metrics).
Both also have the labels recipe, artifact and member. `sluice.alert`, set during training, is the Unix time in seconds
of the newest alert of each kind, labelled with the kind.
"""

import time
from functools import cache

from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

from tasks.run.result import StageResult


@cache
def connect() -> None:
    """Connects the metrics client as airflow.cfg says; needed in a triggerer, where Airflow connects another module."""
    stats.initialize(factory=get_stats_factory(), export_legacy_names=False)


def send_gauges(result: StageResult) -> None:
    """Sends the gauges of a stage run; sends none where the stage was skipped."""
    if result.skipped:
        return
    tags = _labels(result.address)
    for outcome, rows in result.rows.items():
        stats.gauge("sluice.rows", rows, tags={**tags, "outcome": outcome})
    for name, value in result.metrics.items():
        stats.gauge("sluice.metric", value, tags={**tags, "metric": name})


def set_alert(artifact: str, kind: str) -> None:
    """Sets the gauge of an alert to the current time.

    Args:
        artifact: id of the checkpoint artifact of the training ("demo/checkpoint@dev").
        kind: kind of alert, see `tasks.trainer.monitoring.monitor`.
    """
    stats.gauge("sluice.alert", int(time.time()), tags={**_labels(artifact), "kind": kind})


def _labels(artifact: str) -> dict[str, str]:
    recipe, kind, member = [*artifact.partition("@")[0].split("/", 2), "", ""][:3]
    return {"recipe": recipe, "artifact": kind, "member": member or "all"}
