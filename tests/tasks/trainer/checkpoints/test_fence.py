"""Two attempts of one run: the later one writes, the earlier one detects it and ends; no step is missing."""

import hashlib
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import torch

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import open_engine
from tasks.core.errors import InputError, SupersededError, TransientError
from tasks.core.stage import Inputs, Listener, Output, Report
from tasks.core.store import Store
from tasks.stages.train import stage
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.fence import FOLDER, Fence
from tasks.trainer.checkpoints.locations import check_milestones, publish_milestone
from tasks.trainer.checkpoints.recovery import Recovery
from tasks.trainer.config import TrainConfig
from tasks.trainer.logs import METRICS, SKIPPED
from tests.corpora import Made
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.small_run import save_whole, small_config
from tests.waiting import until

ADDRESS = ArtifactId("test/checkpoint", "dev")
EARLIER = """
import sys
from tasks.core.artifact import ArtifactId, Artifact
from tasks.core.engine import open_engine
from tasks.core.stage import Inputs, Output
from tasks.core.store import Store
from tasks.stages.train import stage
from tasks.trainer.checkpoints import fence
from tasks.trainer.config import TrainConfig
fence.CHECK_S = 0.1
source, folder, config = sys.argv[1:]
inputs = {role: Artifact.open_at(Store(source), ArtifactId(f"test/{role}", "dev")) for role in ("shards", "plan")}
with open_engine() as engine:
    output = Output(Store(folder), ArtifactId("test/checkpoint", "dev"), "a run")
    stage.run(TrainConfig.model_validate_json(config), Inputs(inputs), output, engine)
"""


def output_in(folder: Path, fingerprint: str = "a run") -> Output:
    return Output(Store(str(folder)), ADDRESS, fingerprint)


def lines(run: Path, steps: list[int]) -> None:
    run.mkdir(parents=True, exist_ok=True)
    rows = [{"step": n, "loss": 1.5, "lr": 0.1, "grad_norm": 1.0, "tokens": n} for n in steps]
    (run / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / SKIPPED).touch()


def saved(run: Path, step: int, logged: int | None = None) -> None:
    """Puts a run's folder into the state after `step` steps, with only the first `logged` of them in the log."""
    lines(run, list(range(step if logged is None else logged)))
    save_whole(run / "checkpoints", step, {"w": torch.full((3,), step)}, {"m": torch.zeros(3)}, {"run": {}})


def test_only_the_latest_attempt_may_write_and_the_error_of_others_names_it(tmp_path: Path) -> None:
    earlier = Fence(output_in(tmp_path))
    earlier.check()
    later = Fence(output_in(tmp_path, "another recipe"))
    later.check()
    assert (earlier.epoch, later.epoch) == (1, 2)
    with pytest.raises(SupersededError, match=r"attempt 2 on \S+, started .* has taken over from attempt 1"):
        earlier.check()
    with (
        pytest.raises(SupersededError),
        earlier.output.part("late", conserved=False) as part,
        part.file("late") as file,
    ):
        file.write(b"x")
    assert not Store(str(tmp_path)).exists(f"{ADDRESS.path}/.parts")


def test_the_commit_belongs_to_the_latest_attempt_and_ends_all_others(tmp_path: Path) -> None:
    earlier, later = output_in(tmp_path), output_in(tmp_path)
    for output in (earlier, later):
        with output.part("p", conserved=False) as part, part.file("p") as file:
            file.write(b"x")
    fences = Fence(earlier), Fence(later)
    with pytest.raises(SupersededError):
        commit(earlier, "train", 1, Config(), [], Report())
    commit(later, "train", 1, Config(), [], Report())
    assert later.store.list(f"{ADDRESS.path}/{FOLDER}") == []
    for fence in fences:
        with pytest.raises(SupersededError, match="another attempt has taken over"):
            fence.check()


def test_an_epoch_taken_by_another_attempt_is_detected(tmp_path: Path) -> None:
    """The artifact was committed and deleted meanwhile; its next attempt has number one again."""
    forgotten = Fence(output_in(tmp_path))
    forgotten.output.store.remove(ADDRESS.path)
    assert Fence(output_in(tmp_path)).epoch == forgotten.epoch
    with pytest.raises(SupersededError):
        forgotten.check()


def test_a_later_attempt_continues_in_the_most_advanced_folder(tmp_path: Path) -> None:
    fences = [Fence(output_in(tmp_path)) for _ in range(4)]
    saved(fences[0].run, 6)
    saved(fences[1].run, 9, logged=3)
    saved(fences[2].run, 4)
    fences[3].inherit()
    assert checkpoint.steps_at(fences[3].run / "checkpoints") == [6]
    assert [path.name for path in fences[3].run.parent.iterdir()] == ["epoch-000004"]


def test_a_checkpoint_with_missing_log_lines_is_not_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (4, 8, 12):
        saved(run, step)
    lines(run, [0, 1, 2, 3, 4, 5, 8, 9, 10, 11])
    recovery = Recovery(output_in(tmp_path / "store"), run, (4, 12))
    recovery.restore()
    assert checkpoint.steps_at(run / "checkpoints") == [4]


@pytest.mark.parametrize("held", [[0, 1, 3], [0, 1, 1, 2, 3], [0, 2, 1, 3], []])
def test_a_milestone_is_not_committed_without_all_its_steps(tmp_path: Path, held: list[int]) -> None:
    saved(tmp_path / "run", 4)
    lines(tmp_path / "run", held)
    output = output_in(tmp_path / "store")
    with pytest.raises(TransientError, match=rf"{len(held)} rows with \d of the 4 steps from 0 on"):
        publish_milestone(output, tmp_path / "run", 0, 4, tmp_path / "run" / "checkpoints" / checkpoint.name_of(4))
    assert not output.committed


def test_a_milestone_with_missing_steps_blocks_the_commit_of_the_run(tmp_path: Path) -> None:
    output = output_in(tmp_path)
    with output.part("step-00000004", conserved=False) as part, part.file("steps/step-00000004.jsonl", rows=3) as file:
        file.write(b"")
    with pytest.raises(InputError, match="step-00000004 was committed with 3 rows for 4 steps"):
        check_milestones(output, (4,))


class Fate(Listener):
    """Calls a function once, at a step."""

    def __init__(self, step: int, happen: Callable[[], None]) -> None:
        self.step, self.happen = step, happen

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if step == self.step:
            self.happen()


def train(made: Made, folder: Path, config: TrainConfig, fate: Fate | None = None) -> Artifact:
    output = output_in(folder)
    if fate:
        output.listen(fate)
    with open_engine() as engine:
        report = stage.run(config, Inputs({"shards": made.shards, "plan": made.plan}), output, engine)
    return commit(output, "train", 1, config, [], report)


def contents(artifact: Artifact) -> dict[str, str]:
    return {path: hashlib.sha256(artifact.read(path)).hexdigest() for path in artifact.files()}


def test_a_stale_attempt_beside_its_successor_damages_nothing(made: Made, tmp_path: Path) -> None:
    config = small_config(steps=60, checkpoint_every=10)
    shared = tmp_path / "shared"
    command = [sys.executable, "-c", EARLIER, made.shards.store.root, str(shared), config.model_dump_json()]
    earlier = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until(lambda: list(shared.glob("**/epoch-000001/checkpoints/step-00000020/state.json")), 90)
    asleep = [psutil.Process(earlier.pid), *psutil.Process(earlier.pid).children(recursive=True)]
    for process in asleep:
        process.send_signal(signal.SIGSTOP)
    ended: list[tuple[int, str]] = []

    def wake() -> None:
        for process in asleep:
            with suppress(psutil.NoSuchProcess):  # a child that ended before it could be stopped
                process.send_signal(signal.SIGCONT)
        said = earlier.communicate(timeout=90)[1]
        ended.append((earlier.returncode, said))

    artifact = train(made, shared, config, Fate(40, wake))
    [(code, said)] = ended
    assert code != 0
    assert "attempt 2 on" in said
    assert "has taken over from attempt 1, which must not write any more" in said
    with training_in_process():
        assert contents(artifact) == contents(train(made, tmp_path / "alone", config))
    assert pq.read_table(io.BytesIO(artifact.read("loss.parquet")))["step"].to_pylist() == list(range(60))
    below = {str(path.relative_to(shared / ADDRESS.path)) for path in (shared / ADDRESS.path).rglob("*")}
    assert not [path for path in below if path.startswith((".scratch", ".epochs", ".parts"))]
