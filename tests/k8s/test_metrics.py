"""Dashboard and alerts query metrics that Airflow sends and the mapping keeps, according to its registry and client."""

import asyncio
import json
import re
import socket

import pytest
import yaml

from tasks.trainer.monitoring import monitor
from tests.k8s.conftest import K8S
from tests.k8s.statsd import mapped, sample

OBSERVED = K8S / "observability"
# Metrics of other exporters.
FOREIGN = {
    *("kube_pod_status_phase", "kube_pod_container_resource_requests"),  # kube-state-metrics
    *("kueue_pending_workloads", "kueue_admitted_active_workloads", "kueue_evicted_workloads_total"),  # Kueue
    "DCGM_FI_DEV_GPU_UTIL",  # NVIDIA DCGM exporter
}
WORDS = {
    *("sum", "max", "avg", "by", "rate", "increase", "histogram_quantile", "label_values", "absent", "or", "time"),
    *("le", "dag_id", "task_id", "state", "status", "pool_name", "phase", "reason", "pod", "recipe", "kind"),
}


@pytest.fixture(scope="module")
def mappings():
    return yaml.safe_load((OBSERVED / "statsd-mapping.yaml").read_text())["mappings"]


@pytest.fixture(scope="module")
def registry():
    from airflow._shared.observability.metrics.metrics_registry import YAML_REGISTRY_PATH, read_metrics_yaml

    return read_metrics_yaml(str(YAML_REGISTRY_PATH))


OURS = {"airflow_sluice_alert": ("gauge", {"recipe", "artifact", "member", "kind"})}
"""Series of `operators.stats`."""


@pytest.fixture(scope="module")
def known(registry, mappings):
    """Every series of Airflow and Sluice in Prometheus: name -> (kind, labels)."""
    series = dict(OURS)
    for metric in registry:
        stat = "airflow." + metric["name"].format(
            job_name="SchedulerJob", dag_file="x", **dict.fromkeys(VARIABLES, "x")
        )
        labels = dict.fromkeys(metric["name_variables"], "x") if "{" not in metric["name"] else {}
        if made := mapped(stat, metric["type"], labels, mappings):
            series |= {name: (made.kind, set(made.labels)) for name in made.series}
    return series


# Labels of a task that the registry does not name: stats_tags of the task instance.
TASK_TAGS = {"airflow_ti_failures": {"dag_id", "task_id"}}
VARIABLES = ("operator_name", "return_code", "state")


def expressions():
    board = json.loads((OBSERVED / "grafana-dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]
    for rule in yaml.safe_load((OBSERVED / "alerts.yaml").read_text())["groups"][0]["rules"]:
        yield rule["alert"], rule["expr"]


def names(expression):
    bare = re.sub(r'"[^"]*"|\[[^\]]*\]|\{[^}]*\}', "", expression)
    return set(re.findall(r"[A-Za-z_]\w*", bare)) - WORDS


def test_every_queried_metric_is_sent_by_airflow(known):
    unknown = {(where, name) for where, asked in expressions() for name in names(asked) - FOREIGN if name not in known}
    assert unknown == set()


def test_every_queried_label_exists_on_its_metric(known):
    for where, asked in expressions():
        for name in names(asked) - FOREIGN:
            for group in re.findall(r"by \(([^)]*)\)", asked):
                wanted = set(re.split(r",\s*", group)) - {"le"}
                # Tags of a task beyond those in the registry: every counter of a task carries its DAG.
                assert wanted <= known[name][1] | TASK_TAGS.get(name, set()), (where, name)


def test_rates_are_of_counters_and_levels_are_of_gauges(known):
    for where, asked in expressions():
        for name in names(asked) - FOREIGN:
            counted = re.search(rf"(rate|increase)\({name}\b", asked)
            kind = known[name][0]
            if "label_values" not in asked:
                assert bool(counted) == (kind in ("counter", "histogram")) or "absent" in asked, (where, name)


def test_the_chart_gets_the_same_mapping(mappings, values):
    assert values("airflow.yaml")["statsd"]["overrideMappings"] == mappings


def test_every_mapping_matches_a_metric_of_airflow(registry, mappings):
    stats = {"airflow." + metric["name"] for metric in registry}
    for one in mappings:
        if one.get("match_type") != "regex" and "*" not in one["match"]:
            assert one["match"] in stats


@pytest.fixture
def sent(airflow_db, monkeypatch):
    """A function that uses Airflow's metrics client with the settings of airflow.cfg; returns the lines it sends."""
    from airflow._shared.observability.metrics import stats
    from airflow.configuration import conf
    from airflow.observability.metrics.stats_utils import get_stats_factory

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(5)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(listener.getsockname()[1]))
        before = stats._factory
        legacy = conf.getboolean("metrics", "legacy_names_on")
        stats.initialize(factory=get_stats_factory(), export_legacy_names=legacy)

        def lines(call):
            call(stats)
            stats.incr("end.of.test")
            got = []
            while not got or "end.of.test" not in got[-1]:
                got.append(listener.recv(65536).decode())
            return got[:-1]

        yield lines
        stats.initialize(factory=before, export_legacy_names=legacy)


def test_metrics_sent_by_airflow_become_the_series_of_the_dashboard(sent, mappings, known):
    def work(stats):
        stats.timing("task.duration", 1234.0, tags={"dag_id": "demo.crawl", "task_id": "fetch"})
        stats.gauge("pool.open_slots", 3, tags={"pool_name": "gpu"})
        stats.incr("ti.finish", tags={"dag_id": "demo.crawl", "task_id": "fetch", "state": "success"})
        stats.incr("scheduler_heartbeat")
        stats.timing("dagrun.duration.failed", 10.0, tags={"dag_id": "demo.crawl"})
        stats.incr("SchedulerJob_start")

    made = [sample(line, mappings) for line in sent(work)]
    assert [(one.name, one.kind, one.labels) for one in made] == [
        ("airflow_task_duration_seconds", "histogram", {"dag_id": "demo.crawl", "task_id": "fetch"}),
        ("airflow_pool_open_slots", "gauge", {"pool_name": "gpu"}),
        ("airflow_ti_finish", "counter", {"dag_id": "demo.crawl", "task_id": "fetch", "state": "success"}),
        ("airflow_scheduler_heartbeat", "counter", {}),
        ("airflow_dagrun_duration_seconds", "histogram", {"dag_id": "demo.crawl", "state": "failed"}),
        ("airflow_job_start", "counter", {"job": "SchedulerJob"}),
    ]
    assert all(one.series <= set(known) for one in made)


def test_an_alert_in_a_pod_log_becomes_the_series_of_the_alerting_rules(sent, mappings):
    from operators import stats as ours
    from operators.alerts import AlertFinder
    from tasks.run.place import AlertsPlace

    async def read():
        finder = AlertFinder(lambda line: None, AlertsPlace(), None)
        finder("10:00:00 I [demo/checkpoint@dev] this is attempt 1")
        finder("10:00:01 W [demo/checkpoint@dev] alert: data_wait at step 7: it waits. Look.")
        await finder.settled()

    ours.connect.cache_clear()
    (line,) = sent(lambda stats: asyncio.run(read()))
    made = sample(line, mappings)
    assert {made.name: (made.kind, set(made.labels))} == OURS
    assert (made.labels["recipe"], made.labels["kind"]) == ("demo", "data_wait")
    asked = {name: expression for name, expression in expressions() if name.startswith("Training")}
    named = set(re.findall(r"[a-z_]+", " ".join(re.findall(r'kind=~?"([^"]*)"', " ".join(asked.values())))))
    assert named == set(monitor.KINDS)


def test_metrics_are_off_unless_the_environment_enables_them(airflow_db, monkeypatch):
    from airflow._shared.observability.metrics.base_stats_logger import NoStatsLogger
    from airflow.observability.metrics.stats_utils import get_stats_factory

    assert get_stats_factory() is NoStatsLogger
    monkeypatch.setenv("AIRFLOW__METRICS__OTEL_ON", "True")
    assert get_stats_factory().__name__ == "get_otel_logger"
