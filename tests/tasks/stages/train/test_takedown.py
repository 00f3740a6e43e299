"""`train` with takedowns: read from the store before and during a run, applied, and shown by trace."""

import json
from pathlib import Path

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.engine import open_engine
from tasks.core.stage import Inputs, Listener, Output
from tasks.core.store import Store
from tasks.formats.documents.tombstones import Tombstones, in_force
from tasks.formats.tokens import marks
from tasks.run.trace.trace import trace
from tasks.stages.takedown.report import of_artifact
from tasks.stages.train import stage
from tests.corpora import Made, corpus, documents_in, tokens_in
from tests.taken_down import take_down
from tests.tasks.run.test_trace import reading
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.small_run import small_config

DOMAIN = "h1.org"
GONE = Tombstones(domains=frozenset([DOMAIN]))


def trained(folder: Path, made: Made, listener: Listener | None = None, **settings: object) -> Artifact:
    """Runs the stage like the runner, with a listener to its live metrics."""
    config, inputs = small_config(**settings), Inputs({"shards": made.shards, "plan": made.plan})
    output = Output(Store(str(folder)), ArtifactId("test/checkpoint", "dev"), "f" * 64)
    if listener:
        output.listen(listener)
    with open_engine() as engine:
        report = stage.run(config, inputs, output, engine)
    refs = [made.shards.ref("shards"), made.plan.ref("plan")]
    return commit(output, "train", stage.VERSION, config, refs, report)


def test_training_on_a_plan_from_before_a_takedown_withholds_its_documents(tmp_path: Path) -> None:
    rows = corpus(60)
    documents_in(tmp_path, rows, 3)
    made = tokens_in(tmp_path, rows)
    assert of_artifact(made.plan, GONE).rows
    taken = take_down(tmp_path, domains=DOMAIN)
    with training_in_process():
        checkpoint = trained(tmp_path, made, steps=20)
    (mark,) = marks.of_run(checkpoint)
    assert (mark.step, mark.takedowns) == (0, (str(taken.address),))
    assert of_artifact(checkpoint, GONE).rows == []
    assert str(taken.address) in {ref.address for ref in checkpoint.record.inputs}
    for row in rows:
        found = trace(Store(str(tmp_path)), "test", "dev", row["url"]).to_json()["documents"][0]
        if DOMAIN in row["url"] and found["split"] == "train":
            assert (found["steps"], found["withheld_from"]) == ([], 0)
        else:
            assert "withheld_from" not in found


def test_a_takedown_during_a_run_applies_at_a_checkpoint_and_earlier_reads_are_reported(tmp_path: Path) -> None:
    rows = corpus(60)
    documents_in(tmp_path, rows, 3)
    made = tokens_in(tmp_path, rows)

    class Asking(Listener):
        def metrics(self, step: int, values: object) -> None:
            if step == 0:
                take_down(tmp_path, domains=f"{DOMAIN}\nh2.org")
            # Lifted documents stay blank in this run, and its active takedown is now contained in another.
            if step == 200:
                take_down(tmp_path, "t2", *in_force(Store(str(tmp_path)), "test"), lift="h2.org")

    checkpoint = trained(tmp_path, made, Asking(), steps=300, checkpoint_every=10, milestones=2)
    (mark,) = marks.of_run(checkpoint)
    assert 0 < mark.step < 200
    assert "test/takedown@t1" in {ref.address for ref in checkpoint.record.inputs}
    assert mark.step % 10 == 0
    assert json.loads(checkpoint.read("checkpoints/step-00000300/state.json"))["withheld"][0]["step"] == mark.step
    steps, *_ = reading(made, checkpoint)
    read = {row["id"]: row["steps"] for row in of_artifact(checkpoint, GONE).rows}
    expected = {
        row["id"]: sorted(one for one in steps[row["id"]] if one < mark.step) for row in rows if DOMAIN in row["url"]
    }
    assert read == {uid: several for uid, several in expected.items() if several}
    uid = next(iter(read))
    later = next(step for step in sorted(steps[uid]) if step >= mark.step)
    found = trace(Store(str(tmp_path)), "test", "dev", f"step:{later}").to_json()
    slices = [piece for sequence in found["sequences"] for piece in sequence["slices"] if piece["id"] == uid]
    assert slices
    assert all(piece["withheld"] and not piece["text"] for piece in slices)
