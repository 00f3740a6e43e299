"""Results of a stage as gauges of Airflow's metrics (StatsD or OpenTelemetry, by airflow.cfg).

Two names: `sluice.rows`, labelled with the outcome (in, out, or the reason of a rejection), and `sluice.metric`,
labelled with the metric's name (crawl: pages, errors by reason, known and unfetched URLs; elsewhere what the stage
reports). Labels besides: recipe, artifact, member.
"""

from airflow.sdk.observability import stats

from tasks.run.result import StageResult


def tell(result: StageResult) -> None:
    """Sends the gauges of a stage run; an artifact that was there already sends none."""
    if result.skipped:
        return
    recipe, kind, member = [*result.address.partition("@")[0].split("/", 2), ""][:3]
    tags = {"recipe": recipe, "artifact": kind, "member": member or "all"}
    for outcome, rows in result.rows.items():
        stats.gauge("sluice.rows", rows, tags={**tags, "outcome": outcome})
    for name, value in result.metrics.items():
        stats.gauge("sluice.metric", value, tags={**tags, "metric": name})
