"""The page of a version: what needs a person, intervals of scores, and time and cost of each stage."""

import json
import re
import shutil
from datetime import UTC, datetime
from html import unescape

import pyarrow as pa
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tests.plugins.test_compare import section, write

PAGE = "/sluice/recipe/test?version=v2"


@pytest.fixture
def warnings(get, versions):
    """Returns the warnings of the page, without markup."""

    def warnings():
        found = re.findall(r'<p class="warning">(.*?)</p>', get(PAGE).text, re.DOTALL)
        return [unescape(re.sub(r"<[^>]+>", "", text)) for text in found]

    return warnings


def test_documents_that_were_taken_down_later_need_a_person(warnings):
    assert warnings() == [
        "takedowns: up to 1 documents were taken down after this version was made: documents, plan, shards"
    ]


def test_faults_and_an_open_decision_and_a_dear_training_need_a_person(warnings, versions):
    write(versions, "checkpoint", "v2", {"a": b"1"}, metrics={"alerts/loss_spike": 2.0, "faults/killed": 0.0})
    write(versions, "comparison", "v2", {"a": b"1"}, metrics={"promoted": 1.0})
    write(versions, "reconciled", "v2", {"reconciled.json": b"[]"}, metrics={"ratio/price": 1.6})
    assert warnings()[:3] == [
        "test/checkpoint@v2: alerts: loss_spike 2",
        "test/comparison@v2: the model is to become champion, but the decision is open. ",
        "test/reconciled@v2: the training cost 1.60 times its planned price",
    ]
    write(versions, "champion", "v2", {"a": b"1"})
    assert not any("decision is open" in text for text in warnings())


def test_lost_sources_bad_seeds_and_a_full_disk_need_a_person(warnings, versions, monkeypatch):
    from sluice_ui import attention

    write(versions, "seeds", "v2", {"a": b"1"}, metrics={"bad_seeds": 3.0})
    assert "test/seeds@v2: 3 invalid lines of seed files are left out. " in warnings()
    assert not any("free" in text for text in warnings())
    monkeypatch.setattr(attention, "disk_free", lambda store: 10)
    [full] = [text for text in warnings() if "free" in text]
    assert re.fullmatch(
        r"cost and disk: the disk of the store has 10 B free, and this version took .*B: another may .*", full
    )


@pytest.fixture
def put_run(airflow_db):
    """Puts a run of a DAG with one task into Airflow's database, as it is while it waits or after it failed."""
    from airflow.models.dagrun import DagRun
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk import DAG
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType
    from sqlalchemy import delete

    made = []

    def put(number, dag, task, state, note, ask="", answer=None):
        at = datetime(2026, 11, 21, 3, number, tzinfo=UTC)
        with create_session() as session:
            run = DagRun(
                dag_id=dag, run_id=f"manual__{number}", run_type=DagRunType.MANUAL, logical_date=at, run_after=at,
                note=note, triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState.FAILED if state == "failed" else DagRunState.RUNNING,
            )  # fmt: skip
            session.add(run)
            session.flush()
            made.append(run.id)
            operator = EmptyOperator(task_id=task, dag=DAG(dag, schedule=None))
            instance = TaskInstance(operator, run_id=run.run_id, state=state, dag_version_id=None)
            session.add(instance)
            session.flush()
            if ask:
                told = {"responded_at": at, "chosen_options": [answer]} if answer else {}
                options = ["Approve", "Reject"]
                session.add(HITLDetail(ti_id=instance.id, options=options, subject=ask, params={}, **told))

    yield put
    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.id.in_(made)))


def test_runs_of_the_version_that_wait_for_an_answer_or_failed_need_a_person(get, warnings, put_run):
    put_run(1, "test.canary", "approve", "deferred", "version v2", ask="test: may it be trained?")
    put_run(2, "test.corpus", "dedup", "failed", "version v2, source version v1")
    put_run(3, "test.tokens", "pack", "failed", "version v22")
    put_run(4, "other.tokens", "pack", "failed", "version v2")
    assert warnings()[:2] == [
        "approve of test.canary: waits for an answer: test: may it be trained?",
        "dedup of test.corpus: failed",
    ]
    assert not any("pack" in text for text in warnings())
    assert "/dags/test.canary/runs/manual__1/tasks/approve/required_actions" in get(PAGE).text
    put_run(5, "test.corpus", "dedup", "success", "version v2")
    put_run(6, "test.pretrain", "approve", "success", "version v2", ask="champion?", answer="Reject")
    put_run(7, "test.finetune", "approve", "success", "version v2", ask="tuned?", answer="Approve")
    assert not any("dedup" in text or "tuned" in text for text in warnings())
    assert "approve of test.pretrain: was answered with Reject: champion?" in warnings()


def test_an_estimate_that_does_not_fit_needs_a_person_until_the_model_is_trained(warnings, versions):
    memory = {"fits": False, "needed_gib": 90.0, "usable_gib": 67.0}
    estimate = {"memory": memory, "warnings": ["only 2 of 8 ranks start"]}
    write(versions, "estimate", "v2", {"estimate.json": json.dumps(estimate).encode()})
    assert "test/estimate@v2: the training needs 90.0 GiB on a rank that has 67.0" in warnings()
    assert "test/estimate@v2: only 2 of 8 ranks start" in warnings()
    write(versions, "checkpoint", "v2", {"a": b"1"})
    assert len(warnings()) == 1


def test_an_input_that_is_gone_needs_a_person(warnings, versions):
    shutil.rmtree(versions / "test" / "tokenizer" / "v2")
    assert "test/shards@v2: tokenizer: test/tokenizer@v2 is gone" in warnings()


def test_an_input_that_cannot_be_read_is_gone(warnings, versions):
    (versions / "test" / "tokenizer" / "v2" / ".artifact.json").unlink()
    (versions / "test" / "tokenizer" / "v2" / ".artifact.json").write_text("{")
    assert "test/shards@v2: tokenizer: test/tokenizer@v2 is gone" in warnings()


def test_scores_have_an_interval_over_documents_and_tasks_their_standard_error(get, versions):
    bits = pa.table({"id": list("abcd"), "bytes": [100] * 4, "bits": [90.0, 110.0, 90.0, 110.0]})
    task = {"task": "quiz", "step": 10, "items": 50, "metrics": {"acc": {"value": 0.5, "stderr": 0.0714}}}
    content = {"sources": {"web": {"bpb": 1.0, "unigram_bpb": 2.0}}, "tasks": [task]}
    write(versions, "scores", "v2", {"documents/web.parquet": bits, "scores.json": json.dumps(content).encode()})
    text = section(get(PAGE).text, "Scores")
    assert re.search(r"web\|\|4\|\|1\|\|0.816 .. 1.184\|\|2\|", text), text
    assert re.search(r"quiz\|\|10\|\|50\|\|acc\|\|0.5\|\|± 0.0714", text)


def test_each_stage_has_its_time_and_disk(get, versions):
    shards = Artifact.open_at(Store(str(versions)), ArtifactId("test/shards", "v2"))
    text = section(get(PAGE).text, "Time and cost")
    minutes = round((shards.record.finished - shards.record.started).total_seconds() / 60, 2)
    stage = re.escape(shards.record.stage)
    assert re.search(rf"{stage}\|\|1\|\|0\|\|{minutes:.4g}\|\|", text), text
