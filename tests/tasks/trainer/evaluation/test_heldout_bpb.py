"""Held-out text and tasks in a run: as measured by evaluation, equal after resuming, without effect on the weights.

Ranks in all layouts: `test_parallel`.
"""

import json
import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tasks.core.artifact import Artifact
from tasks.core.config import parse
from tasks.core.errors import InputError
from tasks.core.stage import Inputs
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.shard import ShardSet
from tasks.stages.tokens import EncodeConfig
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.checkpoint import MODEL
from tasks.trainer.config import TrainConfig, TrainSpec
from tasks.trainer.data.heldout import heldout_documents, read
from tasks.trainer.evaluation.bpb import document_bits
from tasks.trainer.evaluation.items import EncodedAnswer, EncodedItem, ScoringRequest, write_encoded
from tasks.trainer.logs import METRICS, read_metrics
from tasks.trainer.loop import Trainer, TrainingStopped
from tasks.trainer.model.model_file import describe, load_model
from tasks.trainer.place import Layout, TrainPlace
from tasks.trainer.spec import make_spec
from tests.conftest import run_stage_in
from tests.corpora import Made, corpus, tokens_in
from tests.tasks.trainer.faulty import ranks_of
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.small_run import WEIGHTS, digests, small_config, small_spec
from tests.tasks.trainer.test_loop import ALONE, poison, stop_after, train

MEASURED = {"heldout": {"every": 4, "max_tokens": 10**6}}
QUIZ = [
    EncodedItem(
        (EncodedAnswer(ScoringRequest([0, 9, 8, 7], [5, 6]), 3), EncodedAnswer(ScoringRequest([0], [3]), 1)), 1
    ),
    EncodedItem((EncodedAnswer(ScoringRequest([0, 9], [4]), 2), EncodedAnswer(ScoringRequest([0] * 40, [7]), 5)), 0),
]
"""The second prompt is longer than the context."""


def with_quiz(spec: TrainSpec) -> TrainSpec:
    """The run also scores a task of three answers and a long one."""
    file = Path(spec.out) / "tasks.json"
    write_encoded(file, {"quiz": QUIZ})
    return spec.model_copy(update={"tasks": str(file)})


def lines(spec: TrainSpec) -> dict[int, dict[str, float]]:
    """The fields of held-out text by the number of steps before them."""
    found = read_metrics(Path(spec.out) / METRICS)
    return {
        line["step"] + 1: {name: value for name, value in line.items() if name.startswith("bpb")}
        for line in found
        if "bpb" in line
    }


def test_held_out_bpb_equals_the_evaluation_and_does_not_change_the_weights(made: Made, tmp_path: Path) -> None:
    plain, spec = small_spec(made, tmp_path / "plain"), small_spec(made, tmp_path / "measured", **MEASURED)
    train(plain)
    trainer = train(spec)
    found = lines(spec)
    assert list(found) == [4, 8, 12]
    assert found[4] != found[8]
    weights = "checkpoints/*/model.safetensors"
    assert digests(tmp_path / "plain", weights) == digests(tmp_path / "measured", weights) != {}
    (tmp_path / "measured" / "model.json").write_text(json.dumps(described(made, trainer)))
    last = tmp_path / "measured" / "checkpoints" / "step-00000012" / "model.safetensors"
    last.rename(tmp_path / "measured" / "model.safetensors")
    documents = {source: heldout_documents(ShardSet.open(made.shards), source, 10**6) for source in WEIGHTS}
    model, description = load_model(tmp_path / "measured" / "model.json", tmp_path / "measured" / MODEL)
    expected = {
        source: math.fsum(document_bits(model, some, description["eos_id"], trainer.batches.seq_len))
        / sum(document.n_bytes for document in some)
        for source, some in documents.items()
    }
    assert {name: found[12][f"bpb/{name}"] for name in WEIGHTS} == pytest.approx(expected, rel=1e-6)
    assert found[12]["bpb"] == pytest.approx(sum(expected.values()) / 3, rel=1e-6)
    assert any(len(one.tokens) > trainer.batches.seq_len for some in read(Path(spec.heldout)).values() for one in some)


def described(made: Made, trainer: Trainer) -> dict:
    return describe(trainer.run.model, Plan.open(made.plan).format, trainer.batches.seq_len)


def test_a_resumed_run_and_any_number_of_ranks_write_the_same_lines(made: Made, tmp_path: Path) -> None:
    names = ("whole", "broken", "both")
    whole, broken, both = (with_quiz(small_spec(made, tmp_path / name, **MEASURED)) for name in names)
    train(whole)
    trainer = Trainer(broken, ALONE)
    stop_after(trainer, 8)
    with pytest.raises(TrainingStopped):
        trainer.train()
    assert list(lines(broken)) == [4, 8]
    train(broken)
    assert lines(broken) == lines(whole)
    assert lines(whole)[12].keys() - lines(whole)[8].keys() == {"bpb/quiz/answer", "bpb/quiz/choice"}
    assert ranks_of(both, 2) == [0, 0]
    assert lines(both) == lines(whole), "to the bit"
    assert digests(tmp_path / "both") == digests(tmp_path / "whole")


@pytest.mark.parametrize("layout", [{"shard": 2}, pytest.param({"context": 2}, marks=pytest.mark.soak)])
def test_held_out_evaluation_does_not_change_a_sharded_run(made: Made, tmp_path: Path, layout: dict[str, int]) -> None:
    shared = {"place": TrainPlace(layout=Layout.model_validate(layout))}
    settings = {"steps": 6, "checkpoint_every": 6, "milestones": 1}
    plain, spec = (
        small_spec(made, tmp_path / name, **settings, **more).model_copy(update=shared)
        for name, more in (("plain", {}), ("measured", MEASURED))
    )
    spec = with_quiz(spec) if "shard" in layout else spec
    assert ranks_of(plain, 2) == ranks_of(spec, 2) == [0, 0]
    whole = [
        load_file(checkpoint.merge(tmp_path / name / "checkpoints" / "step-00000006", tmp_path / f"{name}-6") / MODEL)
        for name in ("plain", "measured")
    ]
    assert all(tensor.equal(whole[1][name]) for name, tensor in whole[0].items())
    alone = with_quiz(small_spec(made, tmp_path / "alone", **settings, **MEASURED))
    train(alone)
    assert list(lines(spec)) == [4, 6], "after the fourth step and at the end"
    for step, found in lines(spec).items():
        assert found == pytest.approx({name: lines(alone)[step][name] for name in found}, abs=1e-5)
    assert ("bpb/quiz/choice" in lines(spec)[6]) == ("shard" in layout)


def test_a_non_finite_value_is_null_and_the_run_continues(made: Made, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path, **MEASURED)
    trainer = Trainer(spec, ALONE)
    poison(trainer, range(4, 5))  # the measurement after the fourth step is made at step 4
    trainer.train()
    assert set(lines(spec)[4].values()) == {None}
    assert all(math.isfinite(value) for value in lines(spec)[12].values())


def test_milestones_have_held_out_lines(made: Made, tmp_path: Path) -> None:
    config = small_config(mixture=WEIGHTS, **MEASURED)
    inputs: dict[str, Artifact | list[Artifact]] = {"shards": made.shards, "plan": made.plan}
    with training_in_process():
        trained = run_stage_in(tmp_path, "tasks.stages.train.stage", config, inputs, kind="checkpoint")
    rows = [json.loads(line) for path in trained.files("steps/") for line in trained.read(path).splitlines()]
    assert [row["step"] for row in rows if "bpb" in row] == [3, 7, 11]
    assert "heldout_s" not in rows[3]


def test_without_held_out_text_the_setting_is_refused(tmp_path: Path) -> None:
    made = tokens_in(tmp_path, corpus(30), encode=EncodeConfig(heldout_share=0.0, heldout_min=0))
    with pytest.raises(InputError, match="the shards have no held-out document"):
        make_spec(small_config(**MEASURED), Inputs({"shards": made.shards, "plan": made.plan}), tmp_path)


def test_recipes_without_held_out_evaluation_keep_their_fingerprints() -> None:
    assert "heldout" not in small_config().model_dump()
    assert parse(TrainConfig, {"heldout": {"every": 5}}, "here").heldout is not None
