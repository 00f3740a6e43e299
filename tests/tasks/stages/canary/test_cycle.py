"""A whole cycle: arms, real small runs, a decision; also after kills, and with arms that anneal or replay."""

import json
import math
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest
from tokenizers import Tokenizer

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.removal import remove_files
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.formats.tokens import marks
from tasks.stages.canary import CanaryConfig
from tasks.stages.canary.registration import external
from tasks.trainer.config import OptimConfig
from tasks.trainer.evaluation import items
from tasks.trainer.evaluation.config import TaskConfig
from tasks.trainer.evaluation.scoring import score_task
from tasks.trainer.inference import Scorer
from tasks.trainer.integrity.guard import LossGuard
from tasks.trainer.loop import Trainer
from tasks.trainer.model.config import ModelConfig
from tests.conftest import run_stage_in
from tests.corpora import Made, tokens_in
from tests.taken_down import take_down
from tests.tasks.trainer.forks import forked
from tests.tasks.trainer.in_process import training_in_process


def config() -> CanaryConfig:
    model = ModelConfig(layers=1, dim=16, heads=2, kv_heads=1)
    return CanaryConfig(
        current={"my-books": 1.0},
        arms=0,
        anchors=("uniform",),
        rounds=2,
        lr_check=False,
        seeds=(3,),  # with which the other arm is better by chance
        guard_share=1.0,
        confirmations=3,
        steps=4,
        optim=OptimConfig(lr=3e-2, warmup_steps=1),
        batch_size=4,
        microbatch=4,
        model=model,
    )


class Finished(NamedTuple):
    made: Made
    runs: list[Artifact]
    fresh: list[Artifact]
    mixture: Artifact


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A cycle with real runs."""
    folder = tmp_path_factory.mktemp("cycle")
    made = tokens_in(folder)
    with training_in_process():
        return Finished(made, *cycle(folder, made))


def cycle(folder: Path, made: Made) -> tuple[list[Artifact], list[Artifact], Artifact]:
    arms = run_stage_in(
        folder, "tasks.stages.canary.arms", config(), {"plan": made.plan}, member="round-1", kind="arms"
    )
    inputs = {"arms": arms, "shards": made.shards, "plan": made.plan}
    runs = [
        run_stage_in(folder, "tasks.stages.canary.run", config(), inputs, member=member, kind="canary")
        for member in arms.record.members
    ]
    before = {"plan": made.plan, "before": arms, "canaries": runs}
    skipped = run_stage_in(folder, "tasks.stages.canary.arms", config(), before, member="round-2", kind="arms2")
    assert skipped.record.members == ()
    screened = {"plan": made.plan, "arms": skipped, "canaries": []}
    finalist = run_stage_in(folder, "tasks.stages.canary.finalist", config(), screened, kind="finalist")
    fresh = [
        run_stage_in(
            folder, "tasks.stages.canary.run", config(), inputs | {"arms": finalist}, member=member, kind="confirmation"
        )
        for member in finalist.record.members
    ]
    both = {"plan": made.plan, "finalist": finalist, "confirmations": fresh}
    mixture = run_stage_in(folder, "tasks.stages.canary.decide", config(), both, kind="mixture")
    return runs, fresh, mixture


def test_a_cycle_trains_every_arm_and_decides(finished: Finished) -> None:
    _, runs, fresh, mixture = finished
    results = [json.loads(run.read("result.json")) for run in runs]
    assert [(one["arm"], one["seed"]) for one in results] == [("arm-0", 3), ("arm-0-again", 3), ("arm-1", 3)]
    for one in results:
        assert set(one["bpb"]) == {"web", "code", "my-books"}
        assert all(0.5 < value < 12 for value in one["bpb"].values())
        assert one["tokens"] == 4 * 4 * 32
        assert one["loss_curve"][-1][0] == 3
    assert results[0]["bpb"] != results[2]["bpb"]
    # The A/A arm has the same mixture and initial weights, and other data.
    assert results[0]["weights"] == results[1]["weights"]
    assert results[0]["loss_curve"] != results[1]["loss_curve"]
    # Common random numbers: all arms start from the same weights, so their first losses are close.
    assert abs(results[0]["loss_curve"][0][1] - results[2]["loss_curve"][0][1]) < 0.2
    decision = json.loads(mixture.read("mixture.json"))
    assert set(decision["weights"]) == {"web", "code", "my-books"}
    assert decision["current"] == "arm-0"
    confirmed = [json.loads(run.read("result.json")) for run in fresh]
    assert [(one["arm"], one["seed"]) for one in confirmed] == [
        (arm, seed) for arm in ("arm-0", "arm-1", "arm-0-again") for seed in (4, 5, 6)
    ]
    assert decision["confirmation"]["seeds"] == [4, 5, 6]
    assert "| arm-1 | uniform |" in mixture.read("report.md").decode()


def test_a_run_measures_tasks_by_the_likelihoods_of_the_evaluation(tmp_path: Path, finished: Finished) -> None:
    made, rows = finished.made, tmp_path / "quiz.jsonl"
    asked = [("the river", ["stone", "light valley", "über"], 1), ("return", ["of", "import the"], 0)]
    rows.write_text("".join(json.dumps({"q": q, "all": texts, "right": n}) + "\n" for q, texts, n in asked))
    quiz = {"name": "quiz", "kind": "multiple_choice", "path": str(rows), "prompt": "{{q}}", "choices": "all"}
    words = {"name": "words", "kind": "cloze", "path": str(rows), "prompt": "{{q}}", "answer": "q"}
    tasks = (TaskConfig(**quiz, answer="right", shots=1), TaskConfig(**words))
    scored = config().model_copy(update={"tasks": ("quiz", "words"), "scored": tasks})
    read = {"plan": made.plan, "shards": made.shards, "tokenizer": made.tokenizer}
    arms = run_stage_in(tmp_path, "tasks.stages.canary.arms", scored, read, member="round-1", kind="arms")
    assert "The tasks quiz, words are measured by" in arms.read("cycle.json").decode()
    assert external(scored) == {"task:quiz": [str(rows)], "task:words": [str(rows)]}
    trainers: list[Trainer] = []
    with training_in_process(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "train", lambda self, train=Trainer.train: (train(self), trainers.append(self)))
        member, inputs = "round-1-arm-0-seed-3", {**read, "arms": arms}
        run = run_stage_in(tmp_path, "tasks.stages.canary.run", scored, inputs, member=member, kind="canary")
    [trainer] = trainers
    tokenizer = Tokenizer.from_str(made.tokenizer.read("tokenizer.json").decode())
    scorer = Scorer(trainer.replica.model, tokenizer, trainer.batches.eos_id, trainer.batches.seq_len, 512)
    output = Output(Store(str(tmp_path)), ArtifactId("test/scores", "dev"), "f" * 64)
    answers = {task.name: fmean(score_task(task, "last", lambda: scorer, output)["bpb"]) for task in tasks}
    probabilities = []
    for item in items.read(tasks[0]):
        log_p = [one.log_p for one in scorer.likelihoods([scorer.request(item.prompt, f" {a}") for a in item.answers])]
        by_byte = [math.exp(one / len(text.encode())) for one, text in zip(log_p, item.answers, strict=True)]
        probabilities.append(by_byte[item.gold] / sum(by_byte))
    bpb = json.loads(run.read("result.json"))["bpb"]
    undisturbed = json.loads(finished.runs[0].read("result.json"))["bpb"]
    assert {name: value for name, value in bpb.items() if "/" not in name} == undisturbed
    assert {name: value for name, value in bpb.items() if "/" in name} == pytest.approx(
        {
            "quiz/answer": answers["quiz"],
            "quiz/choice": -math.log2(fmean(probabilities)),
            "words/answer": answers["words"],
        },
        abs=2e-6,
    )


def killed(folder: Path, made: Made, run: str, step: int) -> None:
    """Runs the cycle, and kills this process before a step of one run."""
    train_step = Trainer._train_step

    def step_or_die(trainer: Trainer, *rest: object) -> bool:
        if run in trainer.spec.out and trainer.step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return train_step(trainer, *rest)

    Trainer._train_step = step_or_die  # type: ignore[method-assign]
    with training_in_process():
        cycle(folder, made)


def test_a_cycle_killed_while_it_screens_and_while_it_confirms_decides_the_same(
    tmp_path: Path, finished: Finished
) -> None:
    for run, step in (("canary/round-1-arm-0-again-seed-3", 2), ("confirmation/arm-1-seed-5", 3)):
        assert forked(killed, [(tmp_path, finished.made, run, step)]) == [-signal.SIGKILL]
    with training_in_process():
        runs, fresh, mixture = cycle(tmp_path, finished.made)
    undisturbed = [*finished.runs, *finished.fresh, finished.mixture]
    assert [one.record.content for one in (*runs, *fresh, mixture)] == [one.record.content for one in undisturbed]


def test_arms_that_anneal_or_replay_read_other_data_from_that_step_on(
    tmp_path: Path, finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts: list[LossGuard] = []
    monkeypatch.setattr(LossGuard, "restart", lambda guard: restarts.append(guard))
    late = {"train.anneal": {"share": 0.5, "mixture": {"web": 1.0}}}
    replayed = {"train.replay": {"share": 0.5, "old": ["code"]}}
    arms = (
        {"name": "late", "set": late},
        {"name": "replayed", "set": replayed},
        {"name": "both", "set": late | replayed},
    )
    made = finished.made
    settings = CanaryConfig.model_validate({**config().model_dump(), "current": {}, "settings": arms})
    tied = {"plan": made.plan, "shards": made.shards}
    listed = run_stage_in(tmp_path, "tasks.stages.canary.variants", settings, {"plan": made.plan}, kind="variants")
    of_variants = {
        role: [one] * 4 for role, one in (("plans", made.plan), ("encoded", made.shards), ("documents", made.documents))
    }
    begun = run_stage_in(
        tmp_path,
        "tasks.stages.canary.arms",
        settings,
        {**tied, **of_variants, "variants": listed},
        member="round-1",
        kind="arms",
    )
    read = {
        **tied,
        "arms": begun,
        "tokenizer": made.tokenizer,
        "heldout": made.shards,
        "heldout_tokenizer": made.tokenizer,
    }
    with training_in_process():
        runs = {
            member: json.loads(
                run_stage_in(tmp_path, "tasks.stages.canary.run", settings, read, member=member, kind="canary").read(
                    "result.json"
                )
            )
            for member in begun.record.members
            if "again" not in member
        }
    assert len(restarts) == 2, "the guards of the two runs that anneal"
    current, annealed, with_old, both = ([loss for _, loss in run["loss_curve"]] for run in runs.values())
    assert annealed[:2] == current[:2]
    assert annealed[2:] != current[2:]
    assert with_old != current
    assert both[:2] == with_old[:2]
    assert len({json.dumps(run["bpb"]) for run in runs.values()}) == 4


def test_the_next_cycle_by_the_stages_knows_the_runs_of_this_one_until_its_files_are_removed(
    tmp_path: Path, finished: Finished
) -> None:
    made, mixture = finished.made, finished.mixture
    later = config().model_copy(update={"rounds": 1, "arms": 2, "signal_floor": 0})
    known = {"plan": made.plan, "shards": made.shards, "previous": mixture, "earlier": mixture}
    with training_in_process():
        arms = run_stage_in(tmp_path, "tasks.stages.canary.arms", later, known, member="round-1", kind="later")
        inputs = {"arms": arms, "shards": made.shards, "plan": made.plan}
        runs = [
            run_stage_in(tmp_path, "tasks.stages.canary.run", later, inputs, member=member, kind="later-run")
            for member in arms.record.members
        ]
    begun = json.loads(arms.read("cycle.json"))
    [earlier] = begun["evidence"]["cycles"]
    assert (earlier["artifact"], earlier["age"], earlier["size"]) == ("test/mixture@dev", 1, 1.0)
    assert begun["evidence"]["note"] in begun["registered"]["rules"]
    assert begun["evidence"]["content"]["web"]["tier=silver"] == 1.0
    screened = {"plan": made.plan, "arms": arms, "canaries": runs}
    finalist = run_stage_in(tmp_path, "tasks.stages.canary.finalist", later, screened, kind="later-finalist")
    screening = json.loads(finalist.read("screening.json"))
    assert {"alone", "names"} <= set(screening["earlier"]["tried"])
    assert screening["earlier"]["backtest"] is None  # two mixtures determine no response
    assert [len(one["runs"]) for one in screening["evidence"]] == [3, len(begun["arms"])]
    remove_files(mixture, "test", datetime.now(UTC))
    gone = {"plan": made.plan, "shards": made.shards, "earlier": mixture}
    arms = run_stage_in(tmp_path, "tasks.stages.canary.arms", later, gone, member="round-1", kind="without")
    begun = json.loads(arms.read("cycle.json"))
    assert begun["evidence"]["cycles"] == []
    assert "enters the fit: the files of test/mixture@dev were removed on" in begun["registered"]["rules"][-1]
    assert "test/mixture@dev was rejected. The current mixture is that of the recipe." in begun["registered"]["rules"]


def test_the_record_of_a_canary_names_its_takedown(tmp_path: Path) -> None:
    made = tokens_in(tmp_path)
    taken = take_down(tmp_path, domains="h1.org")
    arms = run_stage_in(
        tmp_path, "tasks.stages.canary.arms", config(), {"plan": made.plan}, member="round-1", kind="arms"
    )
    inputs = {"arms": arms, "shards": made.shards, "plan": made.plan}
    member = "round-1-arm-0-seed-3"
    with training_in_process():
        run = run_stage_in(tmp_path, "tasks.stages.canary.run", config(), inputs, member=member, kind="canary")
    (mark,) = marks.of_run(run)
    assert (mark.step, mark.takedowns) == (0, (str(taken.address),))
    assert str(taken.address) in {ref.address for ref in run.record.inputs}


def test_the_process_of_a_small_run_imports_neither_torch_nor_scipy() -> None:
    program = "import sys, tasks.stages.canary.run; print({'torch', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
