"""Metrics of a stage on the wire: Airflow's StatsD client, with the settings of airflow.cfg."""

import socket
import time
from dataclasses import replace

import pytest

from operators.stats import send_gauges, set_alert
from tasks.run.result import StageResult

RESULT = StageResult(
    address="demo/segment/p0@v1",
    fingerprint="f",
    content="c",
    version="v1",
    skipped=False,
    members=(),
    metrics={"urls_per_s": 4.5},
    rows={"in": 12, "out": 9, "http_404": 3},
    mlflow_run_url="",
)


@pytest.fixture
def sent(airflow_db, monkeypatch):
    """A function that runs a call in a task's context and returns the sent lines."""
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(5)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(listener.getsockname()[1]))
        stats.initialize(factory=get_stats_factory(), export_legacy_names=False)

        def lines(call):
            call()
            stats.incr("end.of.test")
            got = []
            while not got or "end.of.test" not in got[-1]:
                got.append(listener.recv(65536).decode())
            return got[:-1]

        yield lines
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "False")
        stats.initialize(factory=get_stats_factory(), export_legacy_names=False)


def test_rows_and_metrics_of_a_stage_are_gauges_with_labels(sent):
    lines = sent(lambda: send_gauges(RESULT))
    about = ("recipe=demo", "artifact=segment", "member=p0")
    assert all(all(label in line for label in about) for line in lines)
    rows = {line.split("outcome=")[1].split(":")[0].split(",")[0]: line for line in lines if ".sluice.rows" in line}
    assert {name: line.split(":")[1] for name, line in rows.items()} == {
        "in": "12|g",
        "out": "9|g",
        "http_404": "3|g",
    }
    (metric,) = [line for line in lines if ".sluice.metric" in line]
    assert "metric=urls_per_s" in metric
    assert metric.endswith(":4.5|g")


def test_an_artifact_that_was_there_already_sends_nothing(sent):
    assert sent(lambda: send_gauges(replace(RESULT, skipped=True))) == []


def test_the_gauge_of_an_alert_is_the_time_it_was_raised(sent):
    before = time.time()
    (line,) = sent(lambda: set_alert("demo/checkpoint@v1", "stall"))
    assert ".sluice.alert" in line
    assert all(label in line for label in ("recipe=demo", "artifact=checkpoint", "member=all", "kind=stall"))
    value, kind = line.split(":")[1].split("|")
    assert kind == "g"
    assert int(before) <= float(value) <= time.time()
