"""Spread checkpoints: a copy or a milestone exists only with the files of all nodes."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.copies import FOLDER, NodeCopies, OtherNodesLate, handed_over
from tasks.trainer.checkpoints.disks import Disk
from tasks.trainer.checkpoints.fence import take_folder
from tasks.trainer.checkpoints.locations import CopySource
from tasks.trainer.checkpoints.recovery import Recovery
from tasks.trainer.checkpoints.saving import Saver
from tasks.trainer.config import CopySpec
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.place import CheckpointLocations
from tests.tasks.trainer.checkpoints.test_recovery import ADDRESS, grown, output_in

RESUME = f"{ADDRESS.path}/{FOLDER}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store in which no scratch folder is."""
    return Store(f"memory://{tmp_path.name}")


def spread(runs: list[Path], step: int) -> None:
    """Puts the runs of two nodes into the state after `step` steps; each has the files of its rank."""
    together = grown(runs[0], step)
    shutil.rmtree(together)
    folder = checkpoint.unfinished(together.parent, step)
    checkpoint.begin(folder)
    for rank in range(2):
        for number, name in enumerate(("w", "first.w"), start=1):
            info = {checkpoint.SHARDING: json.dumps({name: {"saved_offsets": [2 * rank]}})}
            values = torch.arange(2.0) + 10 * rank + step
            file = f"{checkpoint.file_prefix(rank)}model-{number:05d}-of-00002.safetensors"
            save_file({name: values}, folder / file, info)
    sums = {path.name: sha256_of_file(path) for path in folder.iterdir()}
    final = checkpoint.commit(folder, step, {"run": {}, checkpoint.LAYOUT: {"shard": 2}}, sums)
    other = runs[1] / "checkpoints" / final.name
    shutil.copytree(final, other)
    for rank, here in enumerate((final, other)):
        for path in here.glob(f"{checkpoint.file_prefix(1 - rank)}*"):
            path.unlink()


def nodes_of(store: Store, tmp_path: Path, *milestones: int) -> tuple[Recovery, NodeCopies]:
    """The checkpoints of node 0 and of node 1 of a run."""
    output = output_in(store)
    first = Recovery(output, tmp_path / "0", milestones, nodes=2)
    there: Any = SimpleNamespace(
        **{**vars(output_in(store)), "scratch": str(tmp_path / "1"), "check_fence": lambda: None}
    )
    return first, NodeCopies(there, take_folder(there, 1), 2, milestones, CheckpointLocations())


def copied(store: Store) -> list[int]:
    return CopySource(store, RESUME, required=True).steps()


def test_a_copy_is_committed_only_when_the_files_of_all_nodes_are_there(store: Store, tmp_path: Path) -> None:
    first, second = nodes_of(store, tmp_path)
    spread([first.run, second.run], 4)
    for copier in first.copiers:
        copier.location.patience_s = 0
    first.push()
    assert copied(store) == []
    second._push()
    assert copied(store) == []
    first.push()
    assert copied(store) == [4]
    fetched = Recovery(output_in(store), tmp_path / "alone", ())
    fetched.restore()
    assert not checkpoint.missing(fetched.run / "checkpoints" / checkpoint.name_of(4))


def test_a_milestone_is_written_whole_from_the_files_of_all_nodes(store: Store, tmp_path: Path) -> None:
    first, second = nodes_of(store, tmp_path, 4)
    spread([first.run, second.run], 4)
    with pytest.raises(OtherNodesLate):
        first.publish(4)
    second._push()
    first.publish(4)
    part = f"{ADDRESS.path}/checkpoints/{checkpoint.name_of(4)}"
    (tmp_path / "model").write_bytes(store.read(f"{part}/{checkpoint.MODEL}"))
    assert load_file(tmp_path / "model")["w"].tolist() == [4, 5, 14, 15]
    assert checkpoint.LAYOUT not in json.loads(store.read(f"{part}/{checkpoint.STATE}"))


def test_a_damaged_file_of_another_node_is_not_part_of_a_milestone(store: Store, tmp_path: Path) -> None:
    first, second = nodes_of(store, tmp_path, 4)
    spread([first.run, second.run], 4)
    second._push()
    (path,) = [path for path in store.list(RESUME) if "shard-00002-model-00001" in path]
    with store.write(path) as file:
        file.write(b"bad")
    with pytest.raises(InputError, match="does not have the sha256"):
        first.publish(4)
    assert not first.output.committed


def test_a_restarted_node_hands_over_the_milestones_that_are_not_in_the_store(store: Store, tmp_path: Path) -> None:
    first, second = nodes_of(store, tmp_path, 4)
    spread([first.run, second.run], 4)
    first, second = nodes_of(store, tmp_path, 4)
    second._finish()
    first.publish(4)
    assert checkpoint.name_of(4) in first.output.committed


def test_ranks_hand_over_what_is_due_unless_a_node_is_busy_and_milestones_and_best_ones_always(tmp_path: Path) -> None:
    copies = [CopySpec(store="s3://b", folder="a/.resume", every=4, required=required) for required in (False, True)]
    replica, disk = SimpleNamespace(ranks=Ranks(0, 1, 0)), Disk(tmp_path / "checkpoints", 0, 0, 1)
    saver = Saver(disk, replica, 2, (6,), copies=copies)
    for step, busy in (
        (2, [False, False]),
        (4, [False, False]),
        (6, [False, True]),
        (7, [True, True]),
        (8, [True, True]),
    ):
        folder = disk.root / checkpoint.name_of(step)
        folder.mkdir(parents=True)
        saver._hand_over(folder, step, busy, step == 8)
    assert handed_over(tmp_path, 0) == [2, 6, 8]
    assert handed_over(tmp_path, 1) == [2, 6, 8]
