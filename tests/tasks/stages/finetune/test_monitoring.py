"""A fine-tuning is watched like a pretraining: alerts while it runs, and a report page whatever its outcome."""

from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.engine import open_engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.core.store import Store
from tasks.stages.finetune import stage
from tasks.trainer.integrity.guard import LossGuard
from tests.tasks.stages.finetune.conftest import INSTRUCTIONS, PREFERENCES, Make
from tests.tasks.stages.finetune.test_stage import config
from tests.tasks.trainer.in_process import in_process
from tests.tasks.trainer.monitoring.test_monitor import Tracker

__all__ = ["in_process"]


def watched(folder: Path, base: Artifact, examples: Artifact, **settings: Any) -> tuple[Report, Tracker]:
    """Runs the stage with a tracker."""
    output, tracker = Output(Store(str(folder)), ArtifactId("test/finetuned", "dev"), "f" * 64), Tracker()
    output.listen(tracker)
    with open_engine() as engine:
        report = stage.run(config(**settings), Inputs({"base": base, "examples": examples}), output, engine)
    return report, tracker


def test_the_page_of_a_fine_tuning_states_its_method_speed_and_trace_commands(
    base: Artifact, examples: Make, tmp_path: Path
) -> None:
    lora = {"rank": 4, "targets": ["wq", "wv"], "base": "nf4"}
    report, tracker = watched(tmp_path, base, examples(INSTRUCTIONS), lora=lora, steps=4)
    page = tracker.files["report.html"]
    for shown in (
        "<h1>Fine-tuning run test/finetuned@dev</h1>",
        "The run trained 4 of 4 steps",
        "nats per token",
        "Nothing needs attention: no alert, no skipped step, no restart.",
        "<th>trained<td>adapters of rank 4 on wq, wv of a base in nf4, on instructions (SFT)",
        "the last ones of test/checkpoint@dev (sha256 ",
        "<code>comparison.json</code> of test/tuned_scores@dev",
        "sluice trace --recipe test --version dev tuned:N",
    ):
        assert shown in page, shown
    assert "explain" not in page, "words of a fine-tuned model are not searched"
    assert page.count("<svg") == 7, "loss, gradient norm, rate, tokens/s, step, data wait, memory; no MFU on a CPU"
    assert "http" not in page, "it loads nothing"
    assert {"step_seconds", "timed_steps", "ranks", "memory_gib"} <= report.metrics.keys()
    assert [step for step, _ in tracker.of("step_s/p90")] == [3]


def test_the_page_of_a_preference_run_counts_pairs(base: Artifact, examples: Make, tmp_path: Path) -> None:
    rows = examples(PREFERENCES, kind="preferences")
    page = watched(tmp_path, base, rows, loss="dpo", steps=2)[1].files["report.html"]
    assert "nats per pair" in page
    assert "pairs per second" in page
    assert "<th>trained<td>all weights on preferences (DPO)" in page


def test_a_skipped_step_is_an_alert_and_is_on_the_page_of_a_run_that_fails(
    base: Artifact, examples: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusal, calls = LossGuard.refusal, []

    def refuse_fourth(self: LossGuard, step: int, *values: Any) -> str | None:
        calls.append(step)
        if len(calls) == 7:
            raise InputError("the disk is full", "free space")
        return "loss_spike" if len(calls) == 4 else refusal(self, step, *values)

    monkeypatch.setattr(LossGuard, "refusal", refuse_fourth)
    rows = examples(INSTRUCTIONS)
    monkeypatch.setattr(Output, "log_file", _keep(pages := {}))
    with pytest.raises(InputError, match="the disk is full"):
        watched(tmp_path, base, rows, lora={"rank": 2})
    assert "[test/finetuned@dev] alert: spike at step 3: the step was skipped (loss_spike)" in caplog.text
    assert "trace tuned:3" in caplog.text
    page = pages["report.html"]
    assert "The run ended after 6 of 16 steps" in page
    assert "the disk is full" in page
    assert "Look at: alerts: 1 spike; skipped steps: 1 loss_spike." in page


def _keep(pages: dict[str, str]) -> Any:
    """Returns a `log_file` that keeps pages instead of sending them."""
    return lambda _, name, data: pages.update({name: data().decode()})
