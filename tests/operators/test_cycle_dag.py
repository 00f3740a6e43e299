"""The DAG of a month: its steps are runs of the other DAGs at one version; scheduled as Airflow users expect."""

import threading
import time
import types
from datetime import UTC, datetime, timedelta

import pendulum
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from operators.cycle import run_id
from operators.runs import RunSettings, month_of, run_of
from tasks.run.recipe import Recipe

RECIPE = """
name = "monthly"
[crawl]
seeds = ["http://site.localhost:18799/"]
allow_loopback = true
recrawl = true
[dedup_index]
enabled = true
[encode]
accumulate = true
[canary]
seeds = [0, 1]
[train]
[cycle]
min_new_tokens = 1000
"""


def monthly(recipes, schedule="@monthly"):
    """Writes the recipe `monthly`, which has all DAGs and `[cycle]`; returns it."""
    return Recipe.load(recipes("monthly", text=f'{RECIPE}schedule = "{schedule}"\n'))


@pytest.fixture
def dags(recipes, dag_bag):
    monthly(recipes)
    bag = dag_bag()
    assert not bag.import_errors
    return bag.dags


def context(date=datetime(2026, 12, 1, tzinfo=UTC), states=None, paused=False, **params):
    """The context of a task of a scheduled run."""
    pushed = {}
    ti = types.SimpleNamespace(
        dag_id="monthly.cycle",
        get_dag=lambda _: types.SimpleNamespace(is_paused=paused),
        get_task_states=lambda dag_id, run_ids: {run_ids[0]: states or {}},
        xcom_push=lambda key, value: pushed.update({key: value}),
    )
    return {
        "params": {"version": None, "source_version": None, "overrides": {}, **params},
        "triggering_asset_events": {},
        "logical_date": date,
        "dag_run": types.SimpleNamespace(run_type="scheduled", run_after=date),
        "ti": ti,
        "pushed": pushed,
    }


def test_only_a_recipe_with_a_cycle_has_it_and_it_starts_all_its_other_dags(recipes, dag_bag, dags):
    recipes("plain")
    assert "plain.cycle" not in dag_bag().dags
    steps = ["crawl", "corpus", "tokens", "enough_tokens", "canary", "pretrain", "report"]
    cycle = dags["monthly.cycle"]
    assert [task.task_id for task in cycle.topological_sort()] == steps
    assert all(
        task.upstream_task_ids == {before} for before, task in zip(steps, cycle.topological_sort()[1:], strict=False)
    )
    assert cycle.schedule == "@monthly"
    for step in ("crawl", "corpus", "tokens", "canary", "pretrain"):
        assert cycle.task_dict[step].trigger_dag_id == f"monthly.{step}"
        assert dags[f"monthly.{step}"].schedule is None, "no asset starts it as well"


def test_the_month_of_its_date_is_the_version_of_all_steps(recipes):
    recipe = monthly(recipes)
    assert month_of(recipe, context()).version == "2026-12"
    assert month_of(recipe, context(version="2026-12b")).version == "2026-12b"
    weekly = monthly(recipes, "0 3 * * 0")
    assert month_of(weekly, context(datetime(2026, 12, 6, 3, tzinfo=UTC))).version == "2026.12.06-0300"
    assert month_of(monthly(recipes, ""), context()).version == "2026-12"


def test_a_step_starts_a_run_that_clearing_starts_again_and_waits_without_a_worker(dags):
    from airflow.sdk.exceptions import DagRunTriggerException

    step = dags["monthly.cycle"].task_dict["corpus"]
    overrides = {"dedup.jaccard": 0.7}
    for params, conf in (({}, {}), ({"overrides": overrides}, {"overrides": overrides})):
        with pytest.raises(DagRunTriggerException) as caught:
            step.execute(context(**params))
        asked = caught.value
        assert (asked.trigger_dag_id, asked.conf) == ("monthly.corpus", {"version": "2026-12", **conf})
        assert (asked.reset_dag_run, asked.wait_for_completion, asked.deferrable) == (True, True, True)
        assert asked.dag_run_id.startswith("cycle-2026-12")
        assert asked.note.startswith("version 2026-12, ")
    assert run_id(RunSettings("2026-12")) == "cycle-2026-12"
    assert asked.dag_run_id == run_id(RunSettings("2026-12", None, overrides)) != "cycle-2026-12"


def test_the_run_of_a_step_accepts_its_conf(recipes):
    recipe = monthly(recipes)
    settings = RunSettings("2026-12", "2026-11", {"dedup.jaccard": 0.7})
    triggered = context(None, **{name: value for name, value in settings.event_fields.items() if value})
    triggered["dag_run"].run_type = "operator_triggered"
    assert run_of(recipe, triggered) == settings


def ended(step, state, states, **more):
    """Ends the wait of a step; `states` are those of the tasks of its run."""
    event = ("DagStateTrigger", {"run_ids": ["cycle-2026-12"], "cycle-2026-12": state})
    return step.execute_complete(context(states=states, **more), event)


def test_a_failed_run_fails_its_step_once(dags):
    with pytest.raises(AirflowFailException, match="cycle-2026-12: correct the cause, then clear this task"):
        ended(dags["monthly.cycle"].task_dict["tokens"], "failed", {"encode": "failed"})


@pytest.mark.parametrize(
    ("step", "task"),
    [("crawl", "publish"), ("corpus", "consolidate"), ("tokens", "pack"), ("canary", "gate"), ("pretrain", "train")],
)
def test_a_step_that_made_nothing_skips_the_later_ones(dags, step, task):
    made = dags["monthly.cycle"].task_dict[step]
    assert task in dags[f"monthly.{step}"].task_dict
    assert ended(made, "success", {task: "success", "other": "skipped"}) is None
    with pytest.raises(AirflowSkipException, match=f"{task} was skipped"):
        ended(made, "success", {task: "skipped"})


def test_a_paused_dag_is_named_instead_of_waited_for(dags):
    with pytest.raises(AirflowFailException, match=r"monthly\.crawl is paused"):
        dags["monthly.cycle"].task_dict["crawl"].execute(context(paused=True))


def test_too_few_new_tokens_skip_the_training_with_the_reason(dags, monkeypatch):
    gate = dags["monthly.cycle"].task_dict["enough_tokens"]
    asked = []

    def too_few(store, recipe, version):
        asked.append(version)
        return "12 new training tokens"

    monkeypatch.setattr("tasks.run.monthly.cycle.too_few", too_few)
    of_month = context()
    with pytest.raises(AirflowSkipException, match="12 new training tokens"):
        gate.execute(of_month)
    assert asked == ["2026-12"]
    assert of_month["pushed"] == {"reason": "12 new training tokens"}
    monkeypatch.setattr("tasks.run.monthly.cycle.too_few", lambda *_: "")
    assert gate.execute(context()) is None


def test_a_month_that_ended_early_has_a_report_and_a_failed_one_none(dags):
    assert dags["monthly.cycle"].task_dict["report"].trigger_rule == "none_failed"


def serialized(dag):
    """The DAG as the scheduler has it."""
    from airflow.serialization.serialized_objects import DagSerialization

    return DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))


def test_missed_months_are_one_run_and_the_next_is_due_a_month_later(dags):
    from airflow.timetables.base import DataInterval, TimeRestriction

    timetable = serialized(dags["monthly.cycle"]).timetable
    now = pendulum.now("UTC")
    long_ago = pendulum.datetime(2026, 1, 1, tz="UTC")
    interval = DataInterval.exact(long_ago)
    caught_up = dags["monthly.cycle"].catchup
    info = timetable.next_dagrun_info(
        last_automated_data_interval=interval,
        restriction=TimeRestriction(earliest=long_ago, latest=None, catchup=caught_up),
    )
    assert not caught_up
    assert info.logical_date.day == 1
    assert abs(info.logical_date - now) < timedelta(days=32)
    following = timetable.next_dagrun_info(
        last_automated_data_interval=info.data_interval,
        restriction=TimeRestriction(earliest=long_ago, latest=None, catchup=caught_up),
    )
    assert following.logical_date == info.logical_date.add(months=1)


def test_two_months_at_once_run_one_after_the_other_the_earlier_first(dags, dag_bag):
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import sync_bag_to_db
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunTriggeredByType, DagRunType
    from sqlalchemy import select

    dag = serialized(dags["monthly.cycle"])
    with create_session() as session:
        DagBundlesManager().sync_bundles_to_db(session=session)
    sync_bag_to_db(dag_bag(), "dags-folder", None)
    months = [pendulum.datetime(2026, month, 1, tz="UTC") for month in (10, 9)]
    for date in months:
        dag.create_dagrun(
            run_id=f"scheduled__{date:%Y-%m}", logical_date=date, data_interval=(date, date), run_after=date,
            run_type=DagRunType.SCHEDULED, triggered_by=DagRunTriggeredByType.TIMETABLE, state="queued",
        )  # fmt: skip

    def running():
        with create_session() as session:
            SchedulerJobRunner(Job())._start_queued_dagruns(session)
        with create_session() as session:
            runs = select(DagRun).where(DagRun.dag_id == "monthly.cycle", DagRun.state == "running")
            return [run.run_id for run in session.scalars(runs)]

    assert running() == ["scheduled__2026-09"]
    assert running() == ["scheduled__2026-09"], "the later one waits"
    with create_session() as session:
        session.scalar(select(DagRun).where(DagRun.run_id == "scheduled__2026-09")).state = "success"
    assert running() == ["scheduled__2026-10"]


def test_alerts_of_a_report_ring_where_alerts_of_a_training_do(dags, documents, monkeypatch):
    from operators import alerts
    from operators.cycle import ReportOperator

    rang = []
    monkeypatch.setattr(alerts.stats, "set_alert", lambda artifact, kind: rang.append((artifact, kind)))
    made = documents("monthly", "2026-12")

    def content(store, recipe, version, settings, artifacts, previous):
        alert = {"kind": "vanished", "what": "a.example", "text": "no page of a.example was there any more"}
        entry = {"ended": "", "documents": {"new": 1}, "tokens": {"new": 0}, "version": version}
        return {"alerts": [alert], "needs": [alert["text"]], "history": [entry], "version": version}

    monkeypatch.setattr("tasks.run.monthly.report._content", content)
    monkeypatch.setattr("tasks.run.monthly.report.page", lambda _: "<html>")
    task = dags["monthly.cycle"].task_dict["report"]
    assert isinstance(task, ReportOperator)
    of_month = context()
    of_month |= {"run_id": "scheduled__2026-12"}
    of_month["ti"].task_id, of_month["ti"].try_number = "report", 1
    result = task.execute(of_month)
    assert made.address.version == "2026-12"
    assert result["address"] == "monthly/month@2026-12"
    assert result["needs"] == ["no page of a.example was there any more"]
    assert rang == [("monthly/month@2026-12", "vanished")]
    assert task.execute(of_month)["alerts"] == result["alerts"]
    assert len(rang) == 1, "a cleared task does not ring again"


BOOKS = """
name = "monthly"
[[extract.files]]
name = "books"
kind = "text"
path = "/nowhere/*.txt"
[dedup_index]
enabled = true
[cycle]
schedule = ""
"""


def finish(dag_id, run_id, skipped):
    """Ends a triggered DAG run like the scheduler, as soon as there is one; one of its tasks may be skipped."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    while True:
        with create_session() as session:
            run = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
            if run is not None:
                for task in run.get_task_instances(session=session):
                    task.state = "skipped" if task.task_id == skipped else "success"
                run.state = "success"
                return
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("skipped", "states"),
    [("", {"corpus": "success", "report": "success"}), ("consolidate", {"corpus": "skipped", "report": "success"})],
)
def test_a_month_waits_for_the_runs_of_its_steps(recipes, dag_bag, monkeypatch, skipped, states):
    from operators.cycle import ReportOperator
    from tests.airflow_home import states as states_of

    version = f"2026-12{skipped}"
    recipes("monthly", text=BOOKS)
    monkeypatch.setattr(ReportOperator, "execute", lambda self, context: {})
    monkeypatch.setattr("operators.cycle.POLL_S", 1)
    ending = threading.Thread(target=finish, args=("monthly.corpus", f"cycle-{version}", skipped), daemon=True)
    ending.start()
    run = dag_bag().dags["monthly.cycle"].test(run_conf={"version": version})
    ending.join(60)
    assert states_of(run) == states
