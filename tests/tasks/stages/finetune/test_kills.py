"""A killed run resumes and writes the same bytes: examples, and every method of fine-tuning."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.stage import Inputs
from tasks.core.store import Store
from tasks.stages.finetune import ExamplesConfig, TunedConfig
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import TrainSpec
from tasks.trainer.loop import Trainer
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.spec import tuning_spec
from tasks.trainer.tuning.config import FinetuneConfig
from tests.conftest import run_stage_in
from tests.corpora import Made
from tests.kills import die_in, times_of
from tests.tasks.stages.chunks.made import chunked
from tests.tasks.stages.chunks.test_stage import pages
from tests.tasks.stages.finetune.conftest import INSTRUCTIONS, PREFERENCES, Make
from tests.tasks.stages.finetune.test_compare import SHORT, beside
from tests.tasks.stages.finetune.test_stage import config, contents, tune
from tests.tasks.trainer.faulty import ranks_of
from tests.tasks.trainer.forks import forked
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.small_run import digests
from tests.waiting import until

RUN = """
import sys
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.trainer.tuning.config import FinetuneConfig
from tests.conftest import run_stage_in
base, rows, folder, config = sys.argv[1:]
inputs = {
    "base": Artifact.open_at(Store(base), ArtifactId("test/checkpoint", "dev")),
    "examples": Artifact.open_at(Store(rows), ArtifactId("test/examples", "dev")),
}
settings = FinetuneConfig.model_validate_json(config)
run_stage_in(folder, "tasks.stages.finetune.stage", settings, inputs, kind="finetuned")
"""
COMPARE = "compare"
METHODS = {
    "all weights": ("sft", None),
    "adapters": ("sft", {"rank": 4}),
    "adapters on 4 bits": ("sft", {"rank": 4, "base": "nf4"}),
    "preferences": ("dpo", None),
    "preferences with adapters": ("dpo", {"rank": 4}),
}


def made_of(source: Path, folder: Path) -> Artifact:
    """Examples of two files and of chunks, in the store `folder`; their inputs are in `source`."""
    files = []
    for number in range(2):
        path = source / f"{number}.jsonl"
        path.write_text("".join(f"{json.dumps({**row, 'id': str(number)})}\n" for row in INSTRUCTIONS))
        files.append(str(path))
    store = Store(str(source))
    inputs = {kind: Artifact.open_at(store, ArtifactId(f"test/{kind}", "dev")) for kind in ("chunks", "tokenizer")}
    settings = {"files": files, "chunks": {}, "seq_len": 400, "heldout_share": 0.1}
    examples = ExamplesConfig.model_validate(settings)
    return run_stage_in(folder, "tasks.stages.finetune.examples", examples, inputs, kind="examples")


@pytest.mark.parametrize(
    "name", ["chunks-", *(pytest.param(name, marks=pytest.mark.soak) for name in ("part-", "summary"))]
)
def test_a_killed_examples_stage_ends_with_the_same_bytes(tmp_path: Path, name: str) -> None:
    chunked(tmp_path, pages(), parts=3)
    undisturbed = made_of(tmp_path, tmp_path / "whole")
    program = [sys.executable, "-m", __spec__.name, str(tmp_path), str(tmp_path / "killed"), name]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    artifact = tmp_path / "killed" / "test" / "examples" / "dev"
    before = times_of(artifact, undisturbed.files())
    assert before, "it died behind the first part"
    resumed = made_of(tmp_path, tmp_path / "killed")
    assert contents(resumed) == contents(undisturbed)
    assert resumed.record.metrics == undisturbed.record.metrics
    assert before.items() <= times_of(artifact, undisturbed.files()).items(), "what was committed is not made again"


def rows_and_settings(examples: Make, method: str, **settings: object) -> tuple[Artifact, FinetuneConfig]:
    loss, lora = METHODS[method]
    rows = examples(INSTRUCTIONS) if loss == "sft" else examples(PREFERENCES, kind="preferences")
    return rows, config(loss=loss, lora=lora, **settings)


def spec_of(base: Artifact, rows: Artifact, settings: FinetuneConfig, out: Path) -> TrainSpec:
    out.mkdir()
    return tuning_spec(settings, Inputs({"base": base, "examples": rows}), out)


def die_at(monkeypatch: pytest.MonkeyPatch, step: int, rank: int = 0) -> None:
    """Lets one rank of the processes that are forked from now on kill itself in a step, after the checkpoint before."""
    take, tests = Trainer._train_step, os.getpid()

    def killed(trainer: Trainer, *arguments: object) -> bool:
        if os.getpid() != tests and (trainer.step, trainer.ranks.rank) == (step, rank):
            until(lambda: checkpoint.steps_at(trainer.out / "checkpoints")[-1:] == [step - 1])
            os.kill(os.getpid(), signal.SIGKILL)
        return take(trainer, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "_train_step", killed)


@pytest.mark.parametrize("method", METHODS)
def test_killed_ranks_resume_on_as_many_and_on_other_numbers_of_ranks_with_the_same_bytes(
    base: Artifact, examples: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    rows, settings = rows_and_settings(examples, method, steps=7, checkpoint_every=2)
    whole, broken = (spec_of(base, rows, settings, tmp_path / name) for name in ("whole", "broken"))
    Trainer(whole, Ranks(0, 1, 0)).train()
    for killed in (3, 5):
        with monkeypatch.context() as patch:
            die_at(patch, killed, rank=1)
            assert -signal.SIGKILL in ranks_of(broken, 2)
    Trainer(broken, Ranks(0, 1, 0)).train()
    last = {name: value for name, value in digests(tmp_path / "whole").items() if checkpoint.name_of(7) in name}
    assert len(last) == 3
    assert last.items() <= digests(tmp_path / "broken").items()


@pytest.mark.parametrize("method", METHODS)
def test_a_stage_killed_with_its_ranks_ends_with_the_same_bytes(
    base: Artifact, examples: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    rows, settings = rows_and_settings(examples, method, steps=6, checkpoint_every=2)
    with training_in_process():
        whole = tune(tmp_path / "whole", base, rows, settings)
        with monkeypatch.context() as patch:
            die_at(patch, 5)
            assert forked(tune, [(tmp_path / "killed", base, rows, settings)]) == [-signal.SIGKILL]
        again = tune(tmp_path / "killed", base, rows, settings)
    assert contents(again) == contents(whole)


@pytest.mark.soak
@pytest.mark.parametrize("method", METHODS)
def test_a_killed_fine_tuning_ends_with_the_same_bytes(
    base: Artifact, examples: Make, tmp_path: Path, method: str
) -> None:
    rows, settings = rows_and_settings(examples, method, steps=120, checkpoint_every=10)
    whole = tune(tmp_path / "whole", base, rows, settings)
    command = [sys.executable, "-c", RUN, base.store.root, rows.store.root, str(tmp_path / "killed")]
    stage = subprocess.Popen([*command, settings.model_dump_json()])
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("**/checkpoints/step-00000020")):
        assert time.monotonic() < deadline
        assert stage.poll() is None, "the stage ended before it could be killed"
        time.sleep(0.01)
    stage.kill()
    stage.wait()
    again = tune(tmp_path / "killed", base, rows, settings)
    assert contents(again) == contents(whole)


@pytest.mark.soak
def test_a_killed_comparison_scores_only_missing_parts_and_ends_with_the_same_bytes(
    made: Made, base: Artifact, examples: Make, tmp_path: Path
) -> None:
    rows = examples(INSTRUCTIONS, heldout_share=0.3, template=SHORT)
    beside(base, rows, "killed", steps=2)
    arguments = [base.store.root, rows.store.root]
    undisturbed = scored(*arguments, str(tmp_path / "whole"))
    program = [sys.executable, "-m", __spec__.name, COMPARE, *arguments, str(tmp_path / "killed")]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    before = times_of(tmp_path / "killed" / "test" / "tuned_scores" / "dev", undisturbed.files())
    assert len(before) >= 2
    resumed = scored(*arguments, str(tmp_path / "killed"))
    assert contents(resumed) == contents(undisturbed)
    assert (
        before.items() <= times_of(tmp_path / "killed" / "test" / "tuned_scores" / "dev", undisturbed.files()).items()
    )


def scored(models: str, rows: str, folder: str) -> Artifact:
    """The comparison of the fine-tuning `killed` with its base, into the store `folder`."""
    inputs = {
        "finetuned": Artifact.open_at(Store(models), ArtifactId("test/finetuned", "killed")),
        "examples": Artifact.open_at(Store(rows), ArtifactId("test/examples", "dev")),
        "tokenizer": Artifact.open_at(Store(models), ArtifactId("test/tokenizer", "dev")),
    }
    settings = TunedConfig.model_validate({"evaluate": {"max_tokens": 2_000}})
    return run_stage_in(folder, "tasks.stages.finetune.compare", settings, inputs, kind="tuned_scores")


if __name__ == "__main__" and sys.argv[1] == COMPARE:
    die_in("tuned.", 1, folder="test/tuned_scores")
    scored(*sys.argv[2:])
elif __name__ == "__main__":
    die_in(sys.argv[3], 1 if sys.argv[3] == "summary" else 2, folder="test/examples")
    made_of(Path(sys.argv[1]), Path(sys.argv[2]))
