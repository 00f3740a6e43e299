"""Checkpoints at three locations: the search is by location, then step; no fault ends a run."""

import errno
import io
import itertools
import json
import shutil
import tempfile
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import psutil
import pytest
from safetensors.torch import load_file

from tasks.core.errors import SupersededError, TransientError
from tasks.core.store import Store
from tasks.trainer.checkpoints import checkpoint, copies
from tasks.trainer.checkpoints import locations as locations_module
from tasks.trainer.checkpoints import recovery as recovery_module
from tasks.trainer.checkpoints.locations import RunLines
from tasks.trainer.checkpoints.recovery import Recovery
from tasks.trainer.config import TrainConfig
from tasks.trainer.logs import DETERMINISTIC, FAULTS, METRICS, StepLog, read_metrics
from tasks.trainer.monitoring import monitor
from tasks.trainer.place import CheckpointLocations, CopyFolder, CopyPolicy, TrainPlace
from tests.corpora import Made
from tests.tasks.trainer.checkpoints.test_recovery import RESUME, Fate, Lost, copy_due, grown, output_in, pushed, train
from tests.tasks.trainer.gangs import contents
from tests.tasks.trainer.small_run import small_config

PLACES = ("scratch", "folder", "store")
SOME = [some for count in (1, 2, 3) for some in itertools.combinations(PLACES, count)]
COPY = checkpoint.name_of(6)


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that is not a local folder; scratch folders are in the folder of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Store(f"memory://{tmp_path.name}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The second location."""
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def locations(folder: Path, **more: int) -> CheckpointLocations:
    return CheckpointLocations(folder=CopyFolder(path=str(folder), **more), store=CopyPolicy(**more))


def recovery_of(remote: Store, run: Path, folder: Path, milestones: Sequence[int] = (), **more: int) -> Recovery:
    return Recovery(output_in(remote), run, milestones, locations(folder, **more))


def kept_in(folder: Path) -> list[int]:
    """The steps whose copies are committed in the folder, ascending."""
    return sorted(int(path.stem[-8:]) for path in folder.rglob("step-*.json"))


def faults_of(run: Path) -> list[str]:
    lines = read_metrics(run / FAULTS)
    assert all(line["kind"] == "checkpoint" for line in lines)
    return [line["what"] for line in lines]


def spoil(data: bytes, damage: str) -> bytes:
    return data[: len(data) // 2] if damage == "torn" else data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]


def damage_at(place: str, damage: str, run: Path, folder: Path, remote: Store) -> None:
    """Damages the weights, or removes the commit marker, of the checkpoint of step 6."""
    if place == "store":
        marker = f"{RESUME}/{COPY}.json"
        (weights,) = [path for path in remote.list(RESUME) if COPY in path and path.endswith(checkpoint.MODEL)]
        if damage == "unmarked":
            remote.remove(marker)
            return
        data = spoil(remote.read(weights), damage)
        with remote.write(weights) as file:
            file.write(data)
        return
    root = run / "checkpoints" if place == "scratch" else folder
    unmarked = checkpoint.STATE if place == "scratch" else f"{COPY}.json"
    if damage == "unmarked":
        (path,) = [path for path in root.rglob(unmarked) if COPY in str(path)]
        path.unlink()
        return
    (path,) = [path for path in root.rglob(checkpoint.MODEL) if COPY in str(path)]
    path.write_bytes(spoil(path.read_bytes(), damage))


@pytest.mark.parametrize("damage", ["torn", "flipped", "unmarked"])
@pytest.mark.parametrize("places", SOME, ids="-".join)
def test_a_damaged_copy_falls_back_to_the_same_step_elsewhere_before_an_older_one(
    remote: Store, tmp_path: Path, folder: Path, places: tuple[str, ...], damage: str
) -> None:
    run = tmp_path / "run"
    recovery = recovery_of(remote, run, folder)
    for step in (4, 6):
        grown(run, step)
        copy_due(recovery)
    assert kept_in(folder) == pushed(remote) == [4, 6]
    for place in places:
        damage_at(place, damage, run, folder, remote)
    recovery_of(remote, run, folder).restore()
    expected = 4 if len(places) == 3 else 6
    restored = run / "checkpoints" / checkpoint.name_of(expected)
    assert checkpoint.verify(restored)["step"] == expected
    assert load_file(restored / checkpoint.MODEL)["w"].tolist() == [expected] * 3
    assert max(checkpoint.steps_at(run / "checkpoints")) == expected, "the damaged one is gone"
    assert [line["step"] for line in read_metrics(run / METRICS)][:expected] == list(range(expected))
    # Locations are searched until a good copy is found; a copy without its marker does not exist.
    looked_at = list(itertools.takewhile(lambda place: place in places, PLACES))
    named = {"scratch": "in scratch", "folder": str(folder), "store": "in the store"}
    seen = [named[place] for place in looked_at if damage != "unmarked" or place == "scratch"]
    assert len(faults_of(run)) == len(seen)
    assert all(name in what for name, what in zip(seen, faults_of(run), strict=True))


def test_a_damaged_copy_is_rewritten_when_the_run_reaches_its_step(remote: Store, tmp_path: Path, folder: Path) -> None:
    run = tmp_path / "run"
    recovery = recovery_of(remote, run, folder)
    grown(run, 6)
    copy_due(recovery)
    for place in PLACES:
        damage_at(place, "flipped", run, folder, remote)
    again = recovery_of(remote, run, folder)
    again.restore()
    assert (kept_in(folder), pushed(remote), checkpoint.steps_at(run / "checkpoints")) == ([], [], [])
    grown(run, 6)
    copy_due(again)
    shutil.rmtree(run)
    there = recovery_of(remote, tmp_path / "there", folder)
    there.restore()
    assert checkpoint.steps_at(tmp_path / "there" / "checkpoints") == [6]
    assert faults_of(tmp_path / "there") == []


@pytest.mark.parametrize("damage", ["not JSON", '{"fingerprint": "a run"}'])
def test_an_unreadable_marker_is_a_damaged_copy(remote: Store, tmp_path: Path, folder: Path, damage: str) -> None:
    run = tmp_path / "run"
    grown(run, 6)
    copy_due(recovery_of(remote, run, folder))
    (marker,) = folder.rglob(f"{COPY}.json")
    marker.write_text(damage)
    recovery_of(remote, tmp_path / "there", folder).restore()
    assert checkpoint.steps_at(tmp_path / "there" / "checkpoints") == [6]
    assert "is not the marker of a copy" in faults_of(tmp_path / "there")[0]


@pytest.mark.parametrize("file", [METRICS, f"steps/{checkpoint.name_of(4)}.jsonl"])
def test_the_step_log_is_verified_too(remote: Store, tmp_path: Path, folder: Path, file: str) -> None:
    run = tmp_path / "run"
    recovery = recovery_of(remote, run, folder, milestones=(4,))
    grown(run, 4)
    grown(run, 6)
    copy_due(recovery)
    (path,) = [path for path in remote.list("") if path.endswith(file)]
    flipped = remote.read(path).replace(b"1.5", b"1.6", 1)
    with remote.write(path) as changed:
        changed.write(flipped)
    shutil.rmtree(folder)
    folder.mkdir()
    recovery_of(remote, tmp_path / "there", folder, milestones=(4,)).restore()
    left = [4] if file == METRICS else []
    assert checkpoint.steps_at(tmp_path / "there" / "checkpoints") == left
    assert "sha256" in faults_of(tmp_path / "there")[0]


def test_an_outage_of_the_folder_is_one_fault_and_the_store_gets_its_copies(
    remote: Store, tmp_path: Path, folder: Path
) -> None:
    run = tmp_path / "run"
    recovery = recovery_of(remote, run, folder)
    away = folder.rename(tmp_path / "unmounted")
    for step in (2, 4):
        grown(run, step)
        copy_due(recovery)
    assert not folder.exists(), "the disk below a missing mount is not written"
    assert pushed(remote) == [2, 4]
    away.rename(folder)
    grown(run, 6)
    copy_due(recovery)
    assert kept_in(folder) == [6]
    (fault,) = faults_of(run)
    assert f"step 2 is not in the folder {folder}: the folder {folder} does not exist" in fault
    folder.rename(away)
    there = recovery_of(remote, tmp_path / "there", folder)
    there.restore()
    assert checkpoint.steps_at(tmp_path / "there" / "checkpoints") == [4, 6]
    assert f"checkpoints in the folder {folder} cannot be read" in faults_of(tmp_path / "there")[0]


def test_a_full_folder_is_a_fault_and_leaves_no_partial_copy(
    remote: Store, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.core import store as core

    flush = core._flush

    def full(file: io.BufferedWriter) -> None:
        if checkpoint.OPTIMIZER in str(file.name) and str(folder) in str(file.name):
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(file)

    run = tmp_path / "run"
    grown(run, 6)
    recovery = recovery_of(remote, run, folder)
    with monkeypatch.context() as disk:
        disk.setattr(core, "_flush", full)
        copy_due(recovery)
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert pushed(remote) == [6]
    (fault,) = faults_of(run)
    assert "full while writing" in fault
    copy_due(recovery)
    assert kept_in(folder) == [6]


def test_with_a_silent_store_the_folder_gets_copies_up_to_the_next_milestone(
    remote: Store, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that resumed after an uncommitted milestone would never commit it."""

    def away(path: str) -> None:
        raise TransientError("the store does not answer")

    run = tmp_path / "run"
    recovery = recovery_of(remote, run, folder, milestones=(5,))
    with monkeypatch.context() as outage:
        outage.setattr(recovery.output.store, "write", away)
        for step in (2, 4, 5, 6):
            grown(run, step)
            recovery.keep_up(step)
            recovery.wait()
        assert kept_in(folder) == [2, 4]
    recovery.keep_up(7)
    recovery.wait()
    assert (kept_in(folder), pushed(remote)) == ([4, 6], [6])
    assert list(recovery.output.committed) == [checkpoint.name_of(5)]


def test_every_location_keeps_the_newest_and_every_sixth_step(remote: Store, tmp_path: Path, folder: Path) -> None:
    run = tmp_path / "run"
    recovery = recovery_of(remote, run, folder, keep=2, keep_every=6)
    for step in range(1, 17):
        grown(run, step)
        copy_due(recovery)
        checkpoint.prune(run / "checkpoints", 2, 6, ())
    assert kept_in(folder) == pushed(remote) == checkpoint.steps_at(run / "checkpoints") == [6, 12, 15, 16]
    assert len({path.parent for path in folder.rglob(checkpoint.MODEL)}) == 4, "nor are files left of others"


def test_a_location_is_due_at_its_own_interval_and_at_the_end(remote: Store, tmp_path: Path, folder: Path) -> None:
    run = tmp_path / "run"
    settings = CheckpointLocations(folder=CopyFolder(path=str(folder), keep=9), store=CopyPolicy(every=5, keep=9))
    recovery = Recovery(output_in(remote), run, (), settings)
    for step in range(2, 13, 2):
        grown(run, step)
        copy_due(recovery)
    recovery.push()
    assert kept_in(folder) == [2, 4, 6, 8, 10, 12]
    assert pushed(remote) == [2, 8, 12]


def test_a_replaced_attempt_commits_no_copy(remote: Store, tmp_path: Path, folder: Path) -> None:
    run = tmp_path / "run"
    grown(run, 4)
    recovery = recovery_of(remote, run, folder)

    def replaced() -> None:
        raise SupersededError("another attempt has taken over", "leave it to that one")

    recovery.output.fence = replaced
    with pytest.raises(SupersededError):
        copy_due(recovery)
    assert kept_in(folder) == pushed(remote) == []


def test_a_blocking_folder_is_a_fault_and_delays_neither_run_nor_store(
    remote: Store, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    run = tmp_path / "run"
    recovery = recovery_of(remote, run, folder)
    blocked = recovery.copiers[0].location.store
    write = blocked.write

    def block(path: str) -> AbstractContextManager[BinaryIO]:
        answers.wait(60)
        return write(path)

    monkeypatch.setattr(blocked, "write", block)
    monkeypatch.setattr(copies, "STUCK_S", 0.0)
    monkeypatch.setattr(recovery_module, "WAIT_S", 0.1)
    for step in (4, 6, 8):
        grown(run, step)
        checkpoint.prune(run / "checkpoints", 1, 0, ())
        copy_due(recovery)
    assert (kept_in(folder), pushed(remote)) == ([], [6, 8])
    (fault,) = faults_of(run)
    assert "step 4 is not in the folder" in fault
    assert "the copy has not ended after" in fault
    answers.set()
    recovery.copiers[0].wait(None)
    assert kept_in(folder) == [4], "the ranks have removed it from scratch meanwhile"
    copy_due(recovery)
    assert kept_in(folder) == [4, 8]


@pytest.mark.soak
def test_a_run_that_loses_its_machine_resumes_from_the_folder_with_the_same_bytes(
    made: Made, remote: Store, tmp_path: Path, folder: Path
) -> None:
    """The folder is temporarily unavailable during the run."""
    config: TrainConfig = small_config(steps=240, checkpoint_every=5)
    scratch, away = Path(output_in(remote).scratch), tmp_path / "unmounted"
    settings = CheckpointLocations(folder=CopyFolder(path=str(folder)), store=CopyPolicy(every=10_000), keep_every=15)
    place = TrainPlace(checkpoints=settings)
    reached: list[int] = []

    class Story(Fate):
        def metrics(self, step: int, values: object) -> None:
            if step == 12:
                folder.rename(away)
            if away.exists() and read_metrics(scratch / "epoch-000001" / FAULTS):  # meanwhile a copy was attempted
                away.rename(folder)
            alerted = remote.list(f"{output_in(remote).address.path}/{monitor.FOLDER}")
            if step >= 42 and alerted and folder.exists() and max(kept_in(folder), default=0) > 20:
                for process in psutil.Process().children(recursive=True):
                    process.kill()
                reached.extend(checkpoint.steps_at(scratch / "epoch-000001" / "checkpoints"))
                shutil.rmtree(scratch)
                raise Lost

    with pytest.raises(Lost):
        train(made, remote, config, Story(0, lambda: None), place)
    assert 15 in reached, "keep_every holds in scratch, too"
    assert max(kept_in(folder)) > 20 > max(pushed(remote), default=0)
    moved = train(made, remote, config, place=place)
    assert moved.record.metrics["alerts/checkpoint"] == 1
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert contents(moved) == contents(train(made, Store(str(tmp_path / "stayed")), config))
    assert json.loads(moved.read("run.json"))["steps"] == 240


def test_every_copy_parses_only_the_lines_since_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def loads(line: str) -> object:
        parsed.append(line)
        return json.loads(line)

    def log(first: int, end: int, seconds: float) -> None:
        steps = StepLog(tmp_path / METRICS, first)
        for step in range(first, end):
            steps.write({**dict.fromkeys(DETERMINISTIC, 0.5), "step": step, "step_s": seconds + step / 7})

    monkeypatch.setattr(locations_module, "json", SimpleNamespace(loads=loads, dumps=json.dumps))
    lines = RunLines(tmp_path)
    log(0, 100, 0.1)
    copied = lines.between(METRICS, 0, 90)
    log(100, 150, 0.2)
    parsed.clear()
    assert lines.between(METRICS, 0, 150).startswith(copied)
    assert len(parsed) == 50
    # A start repeats steps, and its times differ.
    log(120, 160, 0.3)
    for first, until in ((0, 160), (130, 155), (130, 160), (110, 160), (160, 160)):
        assert lines.between(METRICS, first, until) == RunLines(tmp_path).between(METRICS, first, until)
        assert lines.between(METRICS, first, until).count(b"\n") == until - first
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 160')
    with pytest.raises(TransientError, match="0 rows with 0 of the 1 steps from 160 on"):
        lines.between(METRICS, 160, 161)
    with (tmp_path / METRICS).open("a") as file:
        file.write(', "loss": null, "lr": 1, "grad_norm": null, "tokens": 9, "step_s": 1.0}\n')
    assert lines.between(METRICS, 160, 161) == b'{"step": 160, "loss": null, "lr": 1, "grad_norm": null, "tokens": 9}\n'
