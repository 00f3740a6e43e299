"""The plugin's listeners: the note of a DAG run says its version, however it was started; imports for forks."""

import os
import re
import sys
from datetime import UTC, datetime

import pytest

from operators.runs import RunSettings

NOON = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
NO_ASSET = 987_654
MONTHLY = '[crawl]\nseeds = ["http://site.localhost:18799/"]\nallow_loopback = true\nrecrawl = true\n'


@pytest.fixture
def start(airflow_db, recipes):
    """Starts a run as the scheduler does; returns its note as it is in the database."""
    from airflow.listeners.listener import get_listener_manager
    from airflow.models.asset import AssetEvent
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType
    from sqlalchemy import delete

    assert get_listener_manager().has_listeners, "the plugin's listener is not installed"
    recipes("tiny")

    def start(dag="tiny.corpus", kind="manual", conf=None, event=None, note=None):
        with create_session() as session:
            run = DagRun(
                dag_id=dag, run_id=f"{kind}__{dag}", run_type=DagRunType(kind), logical_date=NOON, run_after=NOON,
                conf=conf, note=note, triggered_by=DagRunTriggeredByType.TEST, state=DagRunState.QUEUED
            )  # fmt: skip
            session.add(run)
            if event is not None:
                run.consumed_asset_events.append(AssetEvent(asset_id=NO_ASSET, extra=event, timestamp=NOON))
        with create_session() as session:
            (run,) = DagRun.find(dag_id=dag, session=session)
            run.state = DagRunState.RUNNING
            run.notify_dagrun_state_changed(msg="started")
        with create_session() as session:
            (run,) = DagRun.find(dag_id=dag, session=session)
            found = run.note
            session.execute(delete(DagRun).where(DagRun.dag_id == dag))
            session.execute(delete(AssetEvent).where(AssetEvent.asset_id == NO_ASSET))
        return found

    return start


def test_a_manual_run_has_the_version_and_overrides_of_its_form(start):
    assert start() == "version dev"
    conf = {"version": "v3", "source_version": "v2", "crawl.max_pages": 9, "overrides": {"dedup.jaccard": 0.7}}
    assert start(conf=conf) == "version v3, source version v2, overrides: crawl.max_pages = 9, dedup.jaccard = 0.7"


def test_a_scheduled_run_has_its_date_and_one_that_an_asset_started_the_version_of_the_event(start):
    assert start(kind="scheduled") == "version 2026.11.21-0300"
    event = RunSettings("v7", "v6").event_fields
    assert start(kind="asset_triggered", event=event) == "version v7, source version v6"


def test_a_run_of_the_cycle_has_its_month_by_the_clock_of_its_zone(start, recipes):
    recipes("tiny", text=f'name = "tiny"\n{MONTHLY}[cycle]\ntimezone = "Asia/Tokyo"\n')
    for kind in ("scheduled", "manual"):
        assert start("tiny.cycle", kind) == "version 2026-11"
    assert start("tiny.cycle", conf={"version": "2026-11b"}) == "version 2026-11b"


def test_a_takedown_has_the_version_of_its_request(start):
    assert start("tiny.takedown", conf={"takedown.urls": "https://a.example/"}) == "version 2026.11.21-030000"


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"vresion": "v3"}, r'Refused: the conf of the run has the unknown key "vresion" .* Did you mean "version"\?'),
        ({"version": "my version"}, r"Refused: 'my version' is not a version\. Use letters, digits"),
        ({"overrides": {"crawl.max_page": 9}}, r"Refused: override: unknown key crawl\.max_page\. Did you mean"),
        ({"overrides": {"place.store": "s3://x"}}, r'Refused: "place\.store" cannot be overridden'),
    ],
)
def test_the_note_of_a_run_with_an_invalid_form_says_why_it_is_refused(start, conf, said):
    assert re.match(said, start(conf=conf))


def test_a_note_of_a_person_and_a_run_of_another_dag_stay_as_they_are(start):
    assert start(note="for Ann") == "for Ann"
    assert start("others.corpus") is None
    assert start("tiny.retention") is None


def test_a_service_imports_once_what_its_forks_would_import(airflow_db, monkeypatch):
    from airflow.listeners.listener import get_listener_manager

    monkeypatch.setenv("SLUICE_IMPORTS", "no_such_package colorsys")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    get_listener_manager().hook.on_starting(component=None)
    assert "colorsys" in sys.modules
    assert "SLUICE_IMPORTS" not in os.environ, "a task would import them too"
