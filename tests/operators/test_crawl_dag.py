"""The crawl's DAG in real DAG runs: two cycles over a real site."""

from tests.airflow_home import events_of, state_of, states
from tests.tasks.stages.crawl.site import Site

RECIPE = """
name = "{name}"
[crawl]
seeds = ["{seed}"]
allow_loopback = true
delay_s = 0.0
latency_factor = 0.0
partitions = 2
recrawl = true
[canary]
seeds = [0, 1]
"""


def test_a_cycle_with_nothing_due_is_skipped_and_triggers_nothing(recipes, dag_bag, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "1")  # of lists of other tasks, not of the recipe's partitions
    with Site({"/": "<a href=/b>b</a>", "/b": "b"}) as site:
        recipes("twice", text=RECIPE.format(name="twice", seed=site.url()))
        dag = dag_bag().dags["twice.crawl"]
        first = states(dag.test(run_conf={"version": "v1"}))
        assert first["publish"] == "success"
        assert [event["version"] for event in events_of("twice/warc")] == ["v1"]
        site.requests.clear()
        second = states(dag.test(run_conf={"version": "v2"}))
        assert site.requests == []
    assert state_of("twice/warc")["watermark"]["version"] == "v1"
    assert second.pop("publish") == "skipped"
    assert set(second.values()) == {"success"}
    assert [event["version"] for event in events_of("twice/warc")] == ["v1"]
