"""Checkpoints: the same bytes for the same state; broken ones are never accepted."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tasks.core.errors import InputError, TransientError
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.disks import Disk, Readable
from tasks.trainer.logs import FAULTS, Faults, read_metrics
from tasks.trainer.parallel.ranks import Ranks
from tests.tasks.trainer.small_run import digests, save_whole


def save(root: Path, step: int) -> Path:
    model = {"b": torch.full((3,), float(step)), "a": torch.eye(2)}
    return save_whole(root, step, model, {"first.a": torch.zeros(2, 2)}, {"tokens": step * 10})


def readable(root: Path) -> Readable:
    """Finds checkpoints for one rank; faults are recorded beside them."""
    return Readable(Disk(root, 0, 0, 1), Ranks(0, 1, 0), None, lambda: None, (), Faults(root))


def test_a_loaded_checkpoint_equals_the_saved_state(tmp_path: Path) -> None:
    folder = save(tmp_path, 7)
    state = checkpoint.verify(folder)
    assert (state["step"], state["tokens"]) == (7, 70)
    assert torch.equal(load_file(folder / checkpoint.MODEL)["b"], torch.full((3,), 7.0))
    assert torch.equal(load_file(folder / checkpoint.OPTIMIZER)["first.a"], torch.zeros(2, 2))


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    save(tmp_path / "one", 3)
    save(tmp_path / "two", 3)
    assert digests(tmp_path / "one", "*/*") == digests(tmp_path / "two", "*/*")
    assert len(digests(tmp_path / "one", "*/*")) == 3


@pytest.mark.parametrize("file", [checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.STATE])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path: Path, file: str, damage: str) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 2) / file
    data = bytearray(path.read_bytes())
    place = data.index(b"20") if file == checkpoint.STATE else len(data) - 2
    data[place] ^= 1
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    found = readable(tmp_path).newest()
    assert found
    assert found["step"] == 1
    assert {line["step"] for line in read_metrics(tmp_path / FAULTS)} == {2}
    with pytest.raises(InputError):
        checkpoint.verify(tmp_path / checkpoint.name_of(2))


def test_a_run_with_only_damaged_checkpoints_does_not_restart_from_scratch(tmp_path: Path) -> None:
    """Other locations may have good ones: the next start of the stage searches there."""
    assert readable(tmp_path).newest() is None
    for step in (1, 2):
        (save(tmp_path, step) / checkpoint.MODEL).unlink()
    with pytest.raises(TransientError, match=r"no checkpoint in .* verifies"):
        readable(tmp_path).newest()


def test_an_incomplete_checkpoint_does_not_count(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2).rename(tmp_path / f".{checkpoint.name_of(2)}")
    assert checkpoint.steps_at(tmp_path) == [1]
    save(tmp_path, 2)
    assert checkpoint.steps_at(tmp_path) == [1, 2]


def test_pruning_keeps_the_newest_and_the_milestones(tmp_path: Path) -> None:
    for step in range(1, 8):
        save(tmp_path, step)
    checkpoint.prune(tmp_path, 2, 0, {3, 7})
    assert checkpoint.steps_at(tmp_path) == [3, 5, 6, 7]
