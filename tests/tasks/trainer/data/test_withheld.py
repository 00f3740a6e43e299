"""Contract of withheld documents: nothing of them reaches the model, all else stays, and a resume sees the same."""

import json
from pathlib import Path

import pytest
import torch

from tasks.formats.tokens import marks
from tasks.formats.tokens.plan import Slices
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import TrainSpec
from tasks.trainer.data.batches import Batches
from tasks.trainer.data.notice import REQUEST
from tasks.trainer.data.withheld import Withheld
from tasks.trainer.launch.launcher import train_local
from tasks.trainer.logs import METRICS, SKIPPED, read_metrics
from tasks.trainer.loop import Stopped, Trainer
from tasks.trainer.model.loss import IGNORED
from tests.corpora import Made
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


def test_nothing_of_a_withheld_document_reaches_the_model_and_nothing_else_changes(made: Made, tmp_path: Path) -> None:
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
        of_gone = torch.cat([gone[:, 1:], gone[:, -1:]], 1)  # whose token a label is
        assert torch.all(blank.labels[of_gone] == IGNORED)
        assert torch.equal(blank.labels[~of_gone], batch.labels[~of_gone])
        # Where a document that stays is read, the model has seen the same as with the whole batch.
        with torch.no_grad():
            before, after = (trainer.replica.model.hidden(one.tokens, one.documents) for one in (batch, blank))
        read = ~of_gone & (batch.labels != IGNORED)
        assert torch.equal(before[read], after[read])
        met += int(gone.sum())
    assert met


def test_a_takedown_during_a_run_is_obeyed_from_the_next_checkpoint_on_and_a_resume_gives_the_same_bytes(
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
        with pytest.raises(Stopped):
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


def test_one_rank_and_two_withhold_the_same(made: Made, tmp_path: Path) -> None:
    one, two = (small_spec(made, tmp_path / ranks, steps=6) for ranks in ("1", "2"))
    for spec in (one, two):
        withhold(Path(spec.out), Batches(spec), range(6))
    Trainer(one, ALONE).train()
    train_local(two, lambda step, values: None, 2)
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
