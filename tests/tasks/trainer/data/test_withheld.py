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
from tasks.trainer.config import TrainSpec
from tasks.trainer.data.batches import Batches
from tasks.trainer.data.notice import REQUEST
from tasks.trainer.data.withheld import SliceLoss, Withheld
from tasks.trainer.integrity.guard import WINDOW
from tasks.trainer.integrity.poison import (
    LARGEST_SHARE,
    doubt_about,
    doubt_about_sources,
    find_suspects,
    rows_of,
    shards_to_withhold,
)
from tasks.trainer.logs import FAULTS, METRICS, SKIPPED, read_metrics
from tasks.trainer.loop import Trainer, TrainingStopped
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.loss import IGNORED
from tasks.trainer.place import Layout, TrainPlace
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
    withheld.read_request(0)
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
    """As `made`, where each seventh document of the source my-books has a character that no other document has."""
    rows = [{**row, "text": row["text"][: 5 + index * 7 % 130]} for index, row in enumerate(corpus(360))]
    for row in [row for row in rows if row["source"] == "my-books"][::7]:
        row["text"] = f"{row['text'][:3]}{BELL}{row['text'][3:]}"
    return tokens_in(tmp_path_factory.mktemp("spoilt"), rows)


@pytest.fixture(scope="module")
def bad_source(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """As `made`, where all documents of the source my-books have a character that no other document has."""
    rows = [{**row, "text": row["text"][: 5 + index * 7 % 130]} for index, row in enumerate(corpus(360))]
    for row in rows:
        row["text"] = row["text"][:3] + (BELL if row["source"] == "my-books" else "") + row["text"][3:]
    return tokens_in(tmp_path_factory.mktemp("bad-source"), rows)


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


def test_poisoned_documents_are_blanked_and_named_and_the_run_finishes(spoilt: Made, tmp_path: Path) -> None:
    trainer = Trainer(small_spec(spoilt, tmp_path / "whole", keep_checkpoints=9), ALONE)
    tokens = tokens_of_books(trainer)
    poison(trainer, tokens)
    trainer.train()
    lines = read_metrics(tmp_path / "whole" / METRICS)
    assert [line["step"] for line in lines] == list(range(12))
    assert all(line["loss"] is not None for line in lines), "what is left of every batch is trained"
    read = {place for place, has in tokens_by_document(trainer).items() if has.intersection(tokens)}
    found = marks.from_json((tmp_path / "whole" / marks.FILE).read_bytes())
    named = [(shard, row) for mark in found for shard, rows in mark.rows.items() for row in rows]
    assert len(named) == len(read) > 2
    assert set(named) == read, "and no other"
    assert not any(mark.shards for mark in found)
    assert {mark.reason for mark in found} == {"loss_not_finite"}
    assert all(mark.takedowns == () for mark in found)
    reported = read_metrics(tmp_path / "whole" / FAULTS)
    assert [(line["kind"], line["step"]) for line in reported] == [("poison", mark.step) for mark in found]
    assert "blank from here on: my-books-train-0000" in reported[0]["what"]

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
    shared = shared.model_copy(update={"place": TrainPlace(layout=Layout.model_validate(layout))})
    assert ranks_of(shared, ranks, poison={"poisonous": tokens}) == [0] * ranks
    found = read_metrics(tmp_path / "shared" / FAULTS)
    assert len(found) > 1
    assert found == read_metrics(tmp_path / "alone" / FAULTS)
    assert all(line["loss"] is not None for line in read_metrics(tmp_path / "shared" / METRICS))


def test_a_source_whose_documents_are_all_bad_is_never_withheld_as_a_whole(bad_source: Made, tmp_path: Path) -> None:
    trainer = Trainer(small_spec(bad_source, tmp_path, steps=20, checkpoint_every=20, milestones=1), ALONE)
    poison(trainer, tokens_of_books(trainer))
    trainer.train()
    found = marks.from_json((tmp_path / marks.FILE).read_bytes())
    named = {(shard, row) for mark in found for shard, rows in mark.rows.items() for row in rows}
    read = {place for step in range(20) for place in trainer.batches.documents(step)}
    assert 0 < 2 * len(named) < len([place for place in read if place[0].startswith("my-books")])
    assert not any(mark.shards for mark in found)
    skipped = read_metrics(tmp_path / SKIPPED)
    assert all(shard.startswith("my-books") for line in skipped for shard in line["suspected"])
    assert all("of the batch: more than 10%; the batch of step" in line["cause"] for line in skipped)
    assert len(skipped) > 2


class Read:
    """Batches in which step n has the documents n and n + 1 of every shard: twelve of the web, and one of code."""

    shards = [*(f"web-{number}" for number in range(12)), "code"]

    def documents(self, step: int) -> dict[tuple[str, int], str]:
        return {(shard, row): shard.partition("-")[0] for shard in self.shards for row in (step, step + 1)}


def spoiling(shard: str, steps: tuple[int, ...] = (2, 3), **mark: object) -> list[Mark]:
    return [Mark(**{"step": step, "reason": "loss_spike", "rows": {shard: (step, step + 1)}, **mark}) for step in steps]


def test_a_shard_is_bad_if_most_of_its_recent_documents_spoiled_steps() -> None:
    batches, web = Read(), spoiling("web-3")
    assert shards_to_withhold(web, {"web-3": [4]}, 4, batches) == ("web-3",)  # type: ignore[arg-type]
    assert shards_to_withhold(web[:1], {"web-3": [3, 4]}, 3, batches) == (), "twice is not repeatedly"  # type: ignore[arg-type]
    assert shards_to_withhold(web, {"web-3": [40]}, 40, batches) == (), "four of 42 documents"  # type: ignore[arg-type]
    taken_down = spoiling("web-3", reason="", takedowns=("t",))
    assert shards_to_withhold(taken_down, {"web-3": [4]}, 4, batches) == ()  # type: ignore[arg-type]


def test_neither_most_of_a_source_nor_many_shards_are_withheld() -> None:
    batches = Read()
    assert shards_to_withhold(spoiling("code"), {"code": [4]}, 4, batches) == (), "all of a source"  # type: ignore[arg-type]
    marks = spoiling("web-3") + spoiling("web-4", shards=("web-4",))
    assert shards_to_withhold(marks, {"web-3": [4]}, 4, batches) == (), "two of 13 are more than a tenth"  # type: ignore[arg-type]
    said = doubt_about_sources(spoiling("code", (0, 1, 2)), {"code": [4]}, 4, batches)  # type: ignore[arg-type]
    assert '5 of 6 of the documents of "code" in the last' in said
    assert doubt_about_sources(spoiling("code", (1,)), {"code": []}, 4, batches) == ""  # type: ignore[arg-type]
    assert doubt_about_sources(spoiling("web-1", (0, 1, 2)), {"web-1": [4]}, 4, batches) == "", "6 of 72"  # type: ignore[arg-type]


def web(row: int, loss: float, labels: int = 20, source: str = "web") -> SliceLoss:
    return SliceLoss(source, source, row, labels, labels * loss)


USUAL = [web(row, 3.0 + row / 20) for row in range(8)]


def suspected(slices: list[SliceLoss], mean: float, bound: float) -> dict[str, list[int]]:
    return rows_of(find_suspects(slices, slices, mean, bound))


def test_the_fewest_documents_that_explain_a_spike_are_suspected() -> None:
    wild = [web(20, 11.0, 12), web(3, 10.0, 5, "code")]
    assert suspected(USUAL + wild, 3.0, 3.3) == {"code": [3], "web": [20]}
    assert suspected(USUAL + wild, 3.0, 3.5) == {"web": [20]}, "one is enough"
    assert suspected(USUAL, 3.0, 3.1) == {}


def test_a_source_that_is_harder_as_a_whole_has_no_suspects_but_poison_in_it() -> None:
    hard = [web(row, 5.0 + row / 20, source="hard") for row in range(6)]
    assert suspected(USUAL + hard, 3.0, 3.3) == {}
    assert suspected([*USUAL, *hard, web(9, 30.0, source="hard")], 3.0, 4.2) == {"hard": [9]}
    few = [*USUAL, *hard[:2]]
    assert suspected(few, 3.0, 3.2) == {"hard": [0, 1]}, "with only two of its documents, the batch is the measure"
    assert find_suspects(few, few + hard[2:], 3.0, 3.2) == []


def test_no_document_is_withheld_if_much_of_the_batch_is_suspected() -> None:
    bad = [web(row, math.nan if row < 2 else 3.0) for row in range(19)]
    suspects = find_suspects(bad, bad, 0.0, math.inf)
    assert rows_of(suspects) == {"web": [0, 1]}
    assert doubt_about(suspects, bad) == "2 documents are suspected, 10.5% of the batch: more than 10%"
    more = [*bad, *(web(row, 3.0) for row in range(19, 19 + int(1 / LARGEST_SHARE)))]
    assert doubt_about(suspects, more) == ""
    assert doubt_about(suspects[:1], bad[:3]) == "", "a single document is"
    assert suspected([web(row, 9.0) for row in range(8)], 3.0, 3.3) == {}


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
