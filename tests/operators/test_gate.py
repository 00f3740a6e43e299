"""The canary DAG: arms become mapped tasks, and the gate publishes the decision."""

import json
from datetime import UTC, datetime

import pytest

from operators.gate import ReportApproval
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.ledger import is_marked
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.run.recipe import find_recipe
from tasks.run.result import StageResult
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext
from tasks.stages.canary.registration import parse_member
from tests.decisions import commit_decision, decision
from tests.operators.test_stage_operator import events_of, returned, states

DECISION = decision({"web": 0.7, "code": 0.3}, promoted=True, reason="arm-2 is better, 95% sure")
DAG_FILE = """
import pendulum
from airflow.sdk import DAG
from operators.recipes import asset
from operators.gate import CanaryGate
from tasks.run.result import StageResult

PARAMS = {{"version": None, "overrides": {{}}}}
with DAG("{dag}", schedule=None, start_date=pendulum.datetime(2026, 1, 1), params=PARAMS):
    decided = StageResult("{dag}/mixture@v1", "f", "c", "v1", False, (), {{}}, {{}}, "").to_json()
    CanaryGate(task_id="gate", recipe="{dag}", decided=decided, outlets=[asset("{dag}", "mixture")])
"""


@pytest.fixture
def run_gate(tmp_path, monkeypatch, recipes, airflow_db):
    def run(name):
        from airflow import settings
        from airflow.dag_processing.dagbag import DagBag

        recipes(name)
        folder = tmp_path / "dags"
        folder.mkdir()
        (folder / "gate.py").write_text(DAG_FILE.format(dag=name))
        monkeypatch.setattr(settings, "DAGS_FOLDER", str(folder))
        return DagBag(str(folder), bundle_name="dags-folder").dags[name].test(run_conf={"version": "v1"})

    return run


def write_mixture(folder, recipe):
    return commit_decision(folder, f"{recipe}/mixture@v1", DECISION)


def test_the_gate_states_the_decision_and_publishes_the_mixture(run_gate, tmp_path, caplog, capsys):
    write_mixture(tmp_path / "store", "gated")
    run = run_gate("gated")
    assert returned(run, "gate") == {
        "address": "gated/mixture@v1",
        "weights": {"web": 0.7, "code": 0.3},
        "promoted": True,
        "reason": "arm-2 is better, 95% sure",
    }
    said = caplog.text + capsys.readouterr().out
    assert "decision of gated, version v1" in said
    assert "arm-2 is better, 95% sure" in said
    assert "code 0.300, web 0.700" in said
    [event] = events_of("gated/mixture")
    assert event == {
        "address": "gated/mixture@v1", "fingerprint": "f", "content": "c", "version": "v1", "source_version": None,
        "overrides": {}, "outcome": "made",
    }  # fmt: skip


def test_with_accepted_settings_the_event_names_their_version_and_has_them_as_overrides(run_gate, tmp_path):
    accepted = {"tokenizer.vocab_size": 300}
    settled = DECISION.model_copy(update={"settings": accepted, "variant": "coarse"})
    commit_decision(tmp_path / "store", "settled/mixture@v1", settled)
    run_gate("settled")
    [event] = events_of("settled/mixture")
    assert (event["version"], event["source_version"], event["overrides"]) == ("v1.coarse", "v1", accepted)


def test_no_approval_is_requested_if_nothing_changes():
    decided = StageResult("r/comparison@v1", "f", "c", "v1", False, (), {"promoted": 0.0}, {}, "").to_json()
    approval = ReportApproval(task_id="approve", subject="?", recipe="r", decided=decided, promoted_only=True)
    assert approval.execute({}) is None


def test_a_deleted_mixture_is_not_published(run_gate):
    run = run_gate("ungated")
    assert states(run) == {"gate": "failed"}
    assert events_of("ungated/mixture") == []


def test_every_arm_and_seed_is_a_mapped_task_also_if_they_are_more_than_airflow_maps(
    recipes, dag_bag, documents, monkeypatch
):
    few = "rounds = 1\nconfirmations = 3\nlr_check = false\nanchors = []\n"
    few += "model.tie_embeddings = false\nwidths = { dims = [64, 128], lr = [0.01, 0.02] }\n"
    recipes("mapped", f"arms = 0\n{few}steps = 2\nbatch_size = 2\nmicrobatch = 2\n")
    documents("mapped")
    assert str(dag_bag().dags["mapped.tokens"].test().state) == "success"
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "4")
    run = dag_bag().dags["mapped.canary"].test(mark_success_pattern=r"^(.*\.canary.*|finalist.*|decide|gate)$")
    batches = {number: returned(run, f"round_1.arms{number}") for number in ("", "_2", "_3", "_4")}
    members = [member for batch in batches.values() for member in batch]
    assert len(set(members)) == len(members) == (2 + 2 * 2) * 2
    assert "round-1-arm-0-dim-128-lr-2-seed-1" in members
    assert all(member.startswith("round-1-arm-") for member in members)
    for number, batch in batches.items():
        mapped = [ti for ti in run.get_task_instances() if ti.task_id == f"round_1.canary{number}"]
        expected = [(at, "success") for at in range(len(batch))] or [(-1, "skipped")]
        assert sorted((ti.map_index, str(ti.state)) for ti in mapped) == expected


SETTINGS = """
[extract]
parts = 1
min_chars = 1
[[extract.files]]
name = "texts"
kind = "text"
path = "{texts}/*.txt"
[annotate]
use = ["prose_score"]
[consolidate]
filters = []
mask_pii = false
[tokenizer]
vocab_size = 300
[encode]
heldout_share = 0.2
[pack]
seq_len = 16
[canary]
repetition_cap = 99
steps = 2
batch_size = 2
microbatch = 2
[[canary.settings]]
name = "coarse"
set = {{ "tokenizer.vocab_size" = 270 }}
"""


def test_the_tokens_of_every_arm_of_settings_are_made_in_a_mapped_group(recipes, dag_bag, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(30):
        (texts / f"{number}.txt").write_text(f"Text number {number} of a few words about the river and the stone.")
    recipes("arms", text='name = "arms"\n' + SETTINGS.format(texts=texts))
    recipe = find_recipe("arms")
    for stage in (*recipe.stages("corpus"), *recipe.stages("tokens")):
        run_stage(recipe, stage, version="v1", tracking=TrackingContext("", "arms"))
    dag = dag_bag().dags["arms.canary"]
    assert "round_2.arms" not in dag.task_dict
    run = dag.test(run_conf={"version": "v1"}, mark_success_pattern=r"^(.*\.canary|finalist|confirm|decide|gate)$")
    assert returned(run, "variants") == ["current", "coarse"]
    packed = [ti for ti in run.get_task_instances() if ti.task_id == "variant.pack"]
    assert sorted((ti.map_index, str(ti.state)) for ti in packed) == [(0, "success"), (1, "success")]
    store = Store(str(tmp_path / "store"))
    plans = [Artifact.open_at(store, ArtifactId("arms/plan", version)) for version in ("v1", "v1.current", "v1.coarse")]
    sizes = [json.loads(plan.read("plan/summary.json"))["vocab_size"] for plan in plans]
    assert sizes[0] == sizes[1] > sizes[2] == 270
    assert plans[1].record.adopted_from == "arms/plan@v1"
    assert [parse_member(member)[0] for member in returned(run, "round_1.arms")] == ["arm-0", "arm-0-again", "arm-1"]


def test_without_a_finalist_nothing_is_confirmed_and_the_decision_is_made(recipes, dag_bag, documents, tmp_path):
    recipes("kept", "arms = 0\nsteps = 2\nbatch_size = 2\nmicrobatch = 2\n")
    documents("kept")
    assert str(dag_bag().dags["kept.tokens"].test().state) == "success"
    tracking = TrackingContext("", "kept")
    recipe = find_recipe("kept")
    arms = run_stage(recipe, "arms", version="dev", source_version=None, member="round-1", tracking=tracking)
    store = Store(str(tmp_path / "store"))
    chosen = json.loads(Artifact.find(store, ArtifactId("kept/arms/round-1", "dev")).read("arms.json"))
    for member in arms.members:
        name, seed = parse_member(member)
        arm = next(arm for arm in chosen if arm["arm"] == name)
        bpb = 1.0 if name.startswith("arm-0") else 1.5
        output = Output(store, ArtifactId(f"kept/canary/{member}", "dev"), "0" * 64)
        with output.part("result", conserved=False) as part, part.file("result.json") as file:
            file.write(json.dumps({**arm, "seed": seed, "bpb": {"code": bpb, "web": bpb}}).encode())
        commit(output, "canary", 1, Config(), [], Report())
    run = dag_bag().dags["kept.canary"].test(mark_success_pattern=r"^round_1\.canary$")
    assert str(run.state) == "success"
    assert returned(run, "finalist") == returned(run, "round_3.arms") == []
    assert states(run)["round_2.canary"] == states(run)["round_3.canary"] == "skipped"
    assert states(run)["confirm"] == "skipped"
    assert returned(run, "gate")["reason"] == "arm-0 stays: no arm was better in the screening"


def test_the_answer_no_is_recorded_for_the_next_cycle_and_a_later_yes_ends_it(recipes, tmp_path, monkeypatch):
    recipes("vetoed")
    mixture = write_mixture(tmp_path / "store", "vetoed")
    decided = StageResult(str(mixture.address), "f", "c", "v1", False, (), {}, {}, "").to_json()
    approval = ReportApproval(task_id="approve", subject="?", recipe="vetoed", decided=decided, rejects=True)

    def answer(option, user):
        at = datetime(2026, 1, 1, tzinfo=UTC)
        event = {"chosen_options": [option], "params_input": {}, "responded_at": at, "responded_by_user": user}
        approval.execute_complete({}, event)
        return Artifact.find(mixture.store, ArtifactId("vetoed/rejected", "v1"))

    rejected = answer("Reject", {"id": "7", "name": "ann"})
    assert json.loads(rejected.read("rejected.json")) == {"by": "ann", "mixture": "vetoed/mixture@v1", "why": ""}
    assert is_marked(mixture, "rejected")
    assert answer("Approve", {"id": "7", "name": "ann"}) is None
    assert answer("Reject", None).record.note == "rejected by no answer in time"
