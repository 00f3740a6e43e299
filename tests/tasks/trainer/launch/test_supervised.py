"""A supervised run: the ranks read settings of the place, and takedowns at checkpoints; a failure has a page."""

from functools import partial
from pathlib import Path

import pytest

from tasks.core.artifact import ArtifactId
from tasks.core.errors import SluiceError, SupersededError, TransientError
from tasks.core.stage import Inputs, Output
from tasks.core.store import Store
from tasks.trainer.data.notice import TakedownNotice
from tasks.trainer.launch import supervised
from tasks.trainer.launch.supervised import SupervisedRun
from tasks.trainer.monitoring.monitor import FOLDER
from tasks.trainer.place import CheckpointLocations, Layout, PreemptionNotice, Timeouts, TrainPlace
from tasks.trainer.spec import make_spec
from tests.corpora import Made
from tests.tasks.trainer.in_process import train_here
from tests.tasks.trainer.monitoring.test_monitor import Tracker
from tests.tasks.trainer.small_run import small_config

ADDRESS = ArtifactId("test/checkpoint", "dev")


def run_in(
    made: Made, folder: Path, tracker: Tracker, place: TrainPlace | None = None, *, canary: bool = False
) -> SupervisedRun:
    output = Output(Store(str(folder)), ADDRESS, "f" * 64, place=place)
    output.listen(tracker)
    inputs = Inputs({"shards": made.shards, "plan": made.plan})
    return SupervisedRun(output, partial(make_spec, small_config(), inputs), lambda tombstones: {}, canary=canary)


def test_the_ranks_read_the_settings_of_the_place_and_those_of_a_canary_no_layout(made: Made, tmp_path: Path) -> None:
    of_both = TrainPlace(nproc=2, timeouts=Timeouts(step_s=7), preemption=PreemptionNotice(provider="aws"))
    of_run = {"layout": Layout(shard=2), "check_every": 9, "checkpoints": CheckpointLocations(keep_every=5)}
    place = of_both.model_copy(update=of_run)
    assert run_in(made, tmp_path / "run", Tracker(), place).spec.place == place
    assert run_in(made, tmp_path / "canary", Tracker(), place, canary=True).spec.place == of_both.of_canary()


@pytest.mark.parametrize(("canary", "steps"), [(False, [-1, 0, 3, 6, 9]), (True, [-1])])
def test_takedowns_reach_a_run_at_every_checkpoint_and_a_canary_only_before_its_start(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, canary: bool, steps: list[int]
) -> None:
    seen: list[int] = []
    tracker = Tracker()
    monkeypatch.setattr(supervised, "train_local", train_here)
    monkeypatch.setattr(TakedownNotice, "update", lambda notice: seen.append(len(tracker.of("lr")) - 1))
    run = run_in(made, tmp_path, tracker, canary=canary)
    assert [line["step"] for line in run.train()] == list(range(12))
    assert seen == steps
    assert sorted(run.output.committed) == ([] if canary else ["step-00000006", "step-00000012"])


@pytest.mark.parametrize(
    ("error", "canary", "files"),
    [
        (TransientError("a rank crashed"), False, ["report.html"]),
        (TransientError("a rank crashed"), True, []),
        (SupersededError("another attempt has taken over"), False, []),
    ],
)
def test_a_failed_run_has_a_page_unless_it_was_superseded_or_is_a_canary(
    made: Made,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: SluiceError,
    canary: bool,
    files: list[str],
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise error

    tracker = Tracker()
    monkeypatch.setattr(supervised, "train_local", fail)
    run = run_in(made, tmp_path, tracker, canary=canary)
    with pytest.raises(type(error)):
        run.train()
    assert sorted(tracker.files) == files
    assert "no report" not in caplog.text
    assert not run.output.store.list(f"{ADDRESS.path}/{FOLDER}")
