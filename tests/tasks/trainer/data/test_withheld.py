"""Withheld documents: none of their tokens reach the model, the rest is unchanged, also after resuming.

Poisoned ones are found, reported and blank from then on; the rest of the batch is trained.
"""

import json
import math
from pathlib import Path

import pytest
import torch

from tasks.formats.tokens import marks
from tasks.formats.tokens.marks import Mark
from tasks.formats.tokens.plan import Slices
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import ModelConfig, TrainSpec
from tasks.trainer.data.batches import Batches
from tasks.trainer.data.notice import REQUEST
from tasks.trainer.data.withheld import REPEATED, SliceLoss, Withheld, find_poisoned, shards_to_withhold
from tasks.trainer.integrity.guard import WINDOW
from tasks.trainer.logs import FAULTS, METRICS, SKIPPED, read_metrics
from tasks.trainer.loop import Trainer, TrainingStopped
from tasks.trainer.model.loss import IGNORED
from tasks.trainer.place import Layout
from tests.corpora import Made, corpus, tokens_in
from tests.tasks.trainer.faulty import poison, ranks_of
from tests.tasks.trainer.small_run import digests, small_spec
from tests.tasks.trainer.test_loop import ALONE, stop_after


def slices_of(batches: Batches, step: int) -> list[Slices]:
    """The slices of each sequence of a step."""
    return [batches.plan.slices(source, sequence) for source, sequence, _ in batches.order.batch(step)]


def places(batches: Batches, step: int) -> list[list[tuple[str, int, int]]]:
    """(shard, row, tokens) of each slice of each sequence of a step."""
    return [
        [(batches.plan.shards[shard], row, length) for shard, row, _, length in several.tolist()]
        for several in slices_of(batches, step)
    ]


def withhold(folder: Path, batches: Batches, steps: range, every: int = 3) -> dict[str, list[int]]:
    """Requests every third document of some steps to be withheld; returns their rows by shard."""
    pieces = {place[:2] for step in steps for several in places(batches, step) for place in several}
    rows: dict[str, list[int]] = {}
    for shard, row in sorted(pieces)[::every]:
        rows.setdefault(shard, []).append(row)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REQUEST).write_text(json.dumps({"takedowns": ["test/takedown@t1"], "rows": rows}))
    return rows


def test_a_withheld_document_does_not_reach_the_model_and_nothing_else_changes(made: Made, tmp_path: Path) -> None:
    trainer = Trainer(small_spec(made, tmp_path), ALONE)
    batches = trainer.batches
    rows = withhold(tmp_path, batches, range(6))
    withheld = Withheld(tmp_path, ALONE, batches, trainer.run.steps)
    withheld.before_checkpoint(0)
    met = 0
    for step in range(6):
        batch = batches.batch(step)
        blank = withheld.blank(batch, slices_of(batches, step))
        assert torch.equal(blank.documents, batch.documents)
        gone = torch.tensor(
            [
                [row in rows.get(shard, ()) for shard, row, length in several for _ in range(length)]
                for several in places(batches, step)
            ]
        )
        assert torch.all(blank.tokens[gone] == batches.eos_id)
        assert torch.equal(blank.tokens[~gone], batch.tokens[~gone])
        of_gone = torch.cat([gone[:, 1:], gone[:, -1:]], 1)  # the document of a label
        assert torch.all(blank.labels[of_gone] == IGNORED)
        assert torch.equal(blank.labels[~of_gone], batch.labels[~of_gone])
        # For each remaining document, the model sees the same as with the whole batch.
        with torch.no_grad():
            before, after = (trainer.replica.model.hidden(one.tokens, one.documents) for one in (batch, blank))
        read = ~of_gone & (batch.labels != IGNORED)
        assert torch.equal(before[read], after[read])
        met += int(gone.sum())
    assert met


def test_a_takedown_during_a_run_applies_from_the_next_checkpoint_and_resumes_exactly(
    made: Made, tmp_path: Path
) -> None:
    def run(name: str, stop: int | None) -> TrainSpec:
        spec = small_spec(made, tmp_path / name, keep_checkpoints=9)
        trainer = Trainer(spec, ALONE)
        watch(trainer, 4)
        if stop is None:
            trainer.train()
            return spec
        stop_after(trainer, stop)
        with pytest.raises(TrainingStopped):
            trainer.train()
        Trainer(spec, ALONE).train()
        return spec

    def watch(trainer: Trainer, step: int) -> None:
        def ask(module: object, inputs: object) -> None:
            if trainer.step == step:
                withhold(trainer.out, trainer.batches, range(12))

        trainer.replica.model.layers["0"].register_forward_pre_hook(ask)

    whole, broken = run("whole", None), run("broken", 7)
    found = marks.from_json((tmp_path / "whole" / marks.FILE).read_bytes())
    assert [(mark.step, mark.takedowns) for mark in found] == [(6, ("test/takedown@t1",))]
    assert (tmp_path / "broken" / marks.FILE).read_bytes() == (tmp_path / "whole" / marks.FILE).read_bytes()
    assert digests(Path(whole.out)).items() <= digests(Path(broken.out)).items()
    free = small_spec(made, tmp_path / "free", keep_checkpoints=9)
    Trainer(free, ALONE).train()
    plain, blank = digests(tmp_path / "free"), digests(tmp_path / "whole")
    same = {path for path in plain if plain[path] == blank[path]}
    model = f"checkpoints/{checkpoint.name_of(6)}/{checkpoint.MODEL}"
    assert model in same
    assert "withheld" not in json.loads(
        (tmp_path / "free" / "checkpoints" / checkpoint.name_of(6) / "state.json").read_text()
    )
    assert model.replace("00000006", "00000009") not in same


def test_one_rank_and_two_withhold_the_same_documents(made: Made, tmp_path: Path) -> None:
    one, two = (small_spec(made, tmp_path / ranks, steps=6) for ranks in ("1", "2"))
    for spec in (one, two):
        withhold(Path(spec.out), Batches(spec), range(6))
    Trainer(one, ALONE).train()
    assert ranks_of(two, 2) == [0, 0]
    assert digests(tmp_path / "1") == digests(tmp_path / "2")
    (mark,) = marks.from_json((tmp_path / "2" / marks.FILE).read_bytes())
    assert mark.step == 0


def test_a_step_without_any_other_document_is_skipped(made: Made, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path, steps=3)
    trainer = Trainer(spec, ALONE)
    withhold(tmp_path, trainer.batches, range(3), every=1)
    before = {name: value.clone() for name, value in trainer.replica.model.state_dict().items()}
    trainer.train()
    assert [line["loss"] for line in read_metrics(tmp_path / METRICS)] == [None] * 3
    assert {line["reason"] for line in read_metrics(tmp_path / SKIPPED)} == {"withheld"}
    assert all(torch.equal(value, before[name]) for name, value in trainer.replica.model.state_dict().items())


SOAK = pytest.mark.soak

BELL = "\a"


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """As `made`, where all documents of the source my-books have a character that no other document has."""
    rows = [{**row, "text": row["text"][: 5 + index * 7 % 130]} for index, row in enumerate(corpus(360))]
    for row in rows:
        if row["source"] == "my-books":
            row["text"] = f"{row['text'][:3]}{BELL}{row['text'][3:]}"
    return tokens_in(tmp_path_factory.mktemp("spoilt"), rows)


def tokens_by_document(trainer: Trainer) -> dict[tuple[str, int], set[int]]:
    """The tokens of each (shard, row) that the run reads."""
    found: dict[tuple[str, int], set[int]] = {}
    for step in range(trainer.run.steps):
        batch = trainer.batches.batch(step)
        for row, several in enumerate(places(trainer.batches, step)):
            at = 0
            for shard, number, length in several:
                found.setdefault((shard, number), set()).update(batch.tokens[row, at : at + length].tolist())
                at += length
    return found


def tokens_of_books(trainer: Trainer) -> list[int]:
    """The tokens that only documents of my-books have."""
    books, others = set(), set()
    for (shard, _), tokens in tokens_by_document(trainer).items():
        (books if shard.startswith("my-books") else others).update(tokens)
    return sorted(books - others)


def test_a_poisoned_shard_is_blanked_its_documents_are_named_and_the_run_finishes(spoilt: Made, tmp_path: Path) -> None:
    trainer = Trainer(small_spec(spoilt, tmp_path / "whole", keep_checkpoints=9), ALONE)
    tokens = tokens_of_books(trainer)
    poison(trainer, tokens)
    trainer.train()
    lines = read_metrics(tmp_path / "whole" / METRICS)
    assert [line["step"] for line in lines] == list(range(12))
    assert all(line["loss"] is not None for line in lines), "what is left of every batch is trained"
    read = [place for place, has in tokens_by_document(trainer).items() if has.intersection(tokens)]
    assert len(read) > 10
    found = marks.from_json((tmp_path / "whole" / marks.FILE).read_bytes())
    named = [(shard, row) for mark in found for shard, rows in mark.rows.items() for row in rows]
    whole = {shard for mark in found for shard in mark.shards}
    assert len(set(named)) == len(named) >= len(whole) * REPEATED
    assert set(named) <= set(read), "and no other"
    assert {shard for shard, _ in set(read) - set(named)} <= whole, "shards that spoil steps again and again"
    assert whole
    assert {mark.reason for mark in found} == {"loss_not_finite"}
    assert all(mark.takedowns == () for mark in found)
    reported = read_metrics(tmp_path / "whole" / FAULTS)
    assert [(line["kind"], line["step"]) for line in reported] == [("poison", mark.step) for mark in found]
    assert "blank from here on: my-books-train-0000" in reported[0]["what"]
    said = " ".join(line["what"] for line in reported)
    assert all(f"and all of {shard}" in said or f", {shard}" in said for shard in whole)

    broken = small_spec(spoilt, tmp_path / "broken", keep_checkpoints=9)
    resumed = Trainer(broken, ALONE)
    poison(resumed, tokens)
    stop_after(resumed, 6)
    with pytest.raises(TrainingStopped):
        resumed.train()
    assert ranks_of(broken, 2, poison={"poisonous": tokens}) == [0, 0]
    assert digests(tmp_path / "whole").items() <= digests(tmp_path / "broken").items()
    assert (tmp_path / "broken" / marks.FILE).read_bytes() == (tmp_path / "whole" / marks.FILE).read_bytes()
    assert read_metrics(tmp_path / "broken" / FAULTS) == reported


@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        (2, {"pipeline": 2}),
        pytest.param(2, {"pipeline": 2, "schedule": "interleaved"}, marks=SOAK),
        pytest.param(2, {"shard": 2}, marks=SOAK),
        pytest.param(4, {"pipeline": 2, "shard": 2}, marks=SOAK),
        pytest.param(4, {"pipeline": 2, "tensor": 2}, marks=SOAK),
        pytest.param(4, {"pipeline": 2, "context": 2}, marks=SOAK),
    ],
)
def test_a_sharded_layout_finds_the_same_documents_as_one_rank(
    spoilt: Made, tmp_path: Path, ranks: int, layout: dict[str, int]
) -> None:
    model = ModelConfig(layers=4, dim=32, heads=4, kv_heads=2, tie_embeddings=False)
    alone, shared = (
        small_spec(spoilt, tmp_path / name, model=model, steps=4, batch_size=8, checkpoint_every=4, milestones=1)
        for name in ("alone", "shared")
    )
    trainer = Trainer(alone, ALONE)
    tokens = tokens_of_books(trainer)
    poison(trainer, tokens)
    trainer.train()
    shared = shared.model_copy(update={"layout": Layout.model_validate(layout)})
    assert ranks_of(shared, ranks, poison={"poisonous": tokens}) == [0] * ranks
    found = read_metrics(tmp_path / "shared" / FAULTS)
    assert len(found) > 1
    assert found == read_metrics(tmp_path / "alone" / FAULTS)
    assert all(line["loss"] is not None for line in read_metrics(tmp_path / "shared" / METRICS))


class Read:
    """Batches in which step n has the documents n and n + 1 of every shard."""

    def documents(self, step: int) -> set[tuple[str, int]]:
        return {(shard, row) for shard in ("web", "code") for row in (step, step + 1)}


def test_a_shard_is_bad_if_most_of_its_recent_documents_spoiled_steps() -> None:
    spoiling = [Mark(step=step, reason="loss_not_finite", rows={"web": (step, step + 1)}) for step in (2, 3)]
    assert shards_to_withhold(spoiling, {"web": [4]}, 4, Read()) == ("web",)  # type: ignore[arg-type]
    assert shards_to_withhold(spoiling[:1], {"web": [3, 4]}, 3, Read()) == (), "twice is not repeatedly"  # type: ignore[arg-type]
    assert shards_to_withhold(spoiling, {"web": [40]}, 40, Read()) == (), "four of 42 documents"  # type: ignore[arg-type]
    taken_down = [Mark(step=step, takedowns=("t",), rows={"web": (step, step + 1)}) for step in (2, 3)]
    assert shards_to_withhold(taken_down, {"web": [4]}, 4, Read()) == ()  # type: ignore[arg-type]


def test_the_fewest_documents_that_explain_a_spike_are_blamed() -> None:
    usual = [SliceLoss("web", row, 20, 20 * 3.0 + row) for row in range(8)]
    wild = [SliceLoss("web", 20, 12, 12 * 11.0), SliceLoss("code", 3, 5, 5 * 10.0)]
    assert find_poisoned(usual + wild, 3.0, 3.3) == {"code": [3], "web": [20]}
    assert find_poisoned(usual + wild, 3.0, 3.5) == {"web": [20]}, "one is enough"
    assert find_poisoned(usual, 3.0, 3.3) == {}


def test_no_document_is_blamed_if_most_of_the_batch_is_bad() -> None:
    bad = [SliceLoss("web", row, 20, math.nan if row < 5 else 60.0) for row in range(8)]
    assert find_poisoned(bad, 0.0, math.inf) == {}
    assert find_poisoned([SliceLoss("web", row, 20, 20 * 9.0) for row in range(8)], 3.0, 3.3) == {}


def test_the_document_behind_a_spike_is_found_in_a_run(made: Made, tmp_path: Path) -> None:
    step = WINDOW + 4
    trainer = Trainer(small_spec(made, tmp_path, steps=step + 2, checkpoint_every=step + 2, milestones=1), ALONE)
    shard, row, length = places(trainer.batches, step)[2][0]
    document = trainer.batches.batch(step).tokens[2, :length]

    def shake(module: object, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        reads = (inputs[0][:, :length] == document).all(dim=1)
        wild = reads[:, None] & (torch.arange(output.shape[1]) < length) & (trainer.step == step)
        return torch.where(wild[..., None], -50 * output, output)

    # The norm of the first layer removes the scale of its input; the output of the last layer keeps its scale.
    trainer.replica.model.norm.register_forward_hook(lambda module, inputs, output: shake(module, (seen[-1],), output))
    seen: list[torch.Tensor] = []
    trainer.replica.model.embedding.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    trainer.train()
    (mark,) = marks.from_json((tmp_path / marks.FILE).read_bytes())
    assert (mark.step, mark.reason, mark.rows) == (step, "loss_spike", {shard: (row,)})
    assert read_metrics(tmp_path / METRICS)[step]["loss"] is not None
