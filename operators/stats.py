"""Results of a stage as gauges of Airflow's metrics (StatsD or OpenTelemetry, by airflow.cfg).

Two names: `sluice.rows`, labelled with the outcome (in, out, or the reason of a rejection), and `sluice.metric`,
labelled with the metric's name (crawl: pages, errors by reason, known and unfetched URLs; elsewhere what the stage
reports). Labels besides: recipe, artifact, member. `sluice.alert`, set while a training runs, is the time of its newest
alert of a kind in seconds since 1970, labelled with the kind.
"""

import time
from functools import cache

from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

from tasks.run.result import StageResult


@cache
def ready() -> None:
    """Connects the client by airflow.cfg where Airflow has not: in a triggerer, which connects another copy of it."""
    stats.initialize(factory=get_stats_factory(), export_legacy_names=False)


def tell(result: StageResult) -> None:
    """Sends the gauges of a stage run; an artifact that was there already sends none."""
    if result.skipped:
        return
    tags = _labels(result.address)
    for outcome, rows in result.rows.items():
        stats.gauge("sluice.rows", rows, tags={**tags, "outcome": outcome})
    for name, value in result.metrics.items():
        stats.gauge("sluice.metric", value, tags={**tags, "metric": name})


def alert(artifact: str, kind: str) -> None:
    """Sets the gauge of an alert to now.

    Args:
        artifact: id of the one that the training makes ("demo/checkpoint@dev").
        kind: of `tasks.stages.train.monitor`.
    """
    stats.gauge("sluice.alert", int(time.time()), tags={**_labels(artifact), "kind": kind})


def _labels(artifact: str) -> dict[str, str]:
    recipe, kind, member = [*artifact.partition("@")[0].split("/", 2), "", ""][:3]
    return {"recipe": recipe, "artifact": kind, "member": member or "all"}
