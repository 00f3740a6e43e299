"""Monitoring of a run: alerts in the log, the tracker and the store; its page shows the outcome at the top."""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.engine import open_engine
from tasks.core.errors import TransientError
from tasks.core.stage import Inputs, Listener, Output
from tasks.core.store import Store
from tasks.stages.train import stage
from tasks.trainer.config import BestConfig, HeldoutConfig, InitialSpec, TrainSpec
from tasks.trainer.monitoring import monitor, report
from tasks.trainer.monitoring.monitor import FIRST_S, STALL_S, Monitor
from tasks.trainer.monitoring.report import BUCKETS, RunData, chart, thinned
from tasks.trainer.place import TrainPlace, Watch
from tests.corpora import Made
from tests.tasks.trainer.faulty import ranks_of
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.small_run import small_config, small_spec


class Tracker(Listener):
    """A tracker that records its calls."""

    def __init__(self) -> None:
        self.values: list[tuple[int, str, float]] = []
        self.files: dict[str, str] = {}

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.values += [(step, name, value) for name, value in values.items()]

    def file(self, name: str, data: bytes) -> None:
        self.files[name] = data.decode(errors="replace")

    def of(self, name: str) -> list[tuple[int, float]]:
        return [(step, value) for step, known, value in self.values if known == name]


def watched(made: Made, folder: Path, **settings: Any) -> tuple[Monitor, Tracker, TrainSpec]:
    spec = small_spec(made, folder / "run", steps=200, **settings)
    output, tracker = Output(Store(str(folder / "store")), ArtifactId("test/checkpoint", "dev"), "f" * 64), Tracker()
    output.listen(tracker)
    return Monitor(output, spec), tracker, spec


def lines(first: int, count: int, **values: Any) -> list[dict[str, Any]]:
    usual = {"loss": 2.0, "lr": 0.1, "grad_norm": 1.0, "tokens_per_s": 900.0, "step_s": 0.5, "data_wait": 0.02}
    return [{"step": step, "tokens": step * 100, **usual, **values} for step in range(first, first + count)]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_stage_run_reports_its_page_and_step_percentiles(made: Made, tmp_path: Path) -> None:
    output, tracker = Output(Store(str(tmp_path)), ArtifactId("test/checkpoint", "dev"), "f" * 64), Tracker()
    output.listen(tracker)
    config = small_config()
    with training_in_process(), open_engine() as engine:
        found = stage.run(config, Inputs({"shards": made.shards, "plan": made.plan}), output, engine)
    page = tracker.files["report.html"]
    assert "The run trained 12 of 12 steps" in page
    assert "Nothing needs attention: no alert, no skipped step, no restart." in page
    assert page.count("<svg") == 7, "loss, gradient norm, rate, tokens/s, step, data wait, memory; no MFU on a CPU"
    assert "http" not in page, "it loads nothing"
    for shown in (
        "<th>weights at the start<td>random, of init_seed 0",
        "<td>the whole model on each rank, bit for bit as on one",
        "<th>parameters<td>34,336",
        "<code>scores.json</code> of test/scores@dev",
        "sluice trace --recipe test --version dev step:N",
    ):
        assert shown in page, shown
    assert [step for step, _ in tracker.of("step_s/p90")] == [11]
    assert len(tracker.of("memory_gib")) == 12
    record = commit(output, "train", stage.VERSION, config, [made.shards.ref("shards")], found).record
    assert not [name for name in record.metrics if name.startswith("alerts/")]


def test_profiled_steps_and_layers_reach_the_tracker_and_the_page(made: Made, tmp_path: Path) -> None:
    output, tracker = Output(Store(str(tmp_path)), ArtifactId("test/checkpoint", "dev"), "f" * 64), Tracker()
    output.place = TrainPlace(watch=Watch(profile_every=8, profiles_kept=1, layers_every=4))
    output.listen(tracker)
    with training_in_process(), open_engine() as engine:
        found = stage.run(small_config(), Inputs({"shards": made.shards, "plan": made.plan}), output, engine)
    assert [step for step, _ in tracker.of("layer/grad.000")] == [3, 7, 11]
    assert [step for step, _ in tracker.of("profile/exposed")] == [11], "3 is not kept"
    assert found.metrics["profile/exposed"] == 0
    assert [name for name in tracker.files if "profiles" in name] == ["profiles/step-00000011.json.gz"]
    page = tracker.files["report.html"]
    assert "<h2>Profiled steps</h2>" in page
    assert "<td>aten::mm<td>" in page
    assert page.count('<figure class="heatmap">') == 6


class Stopper(Tracker):
    """Stops the rank at a step (like a hanging machine) until the alert arrives."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        super().metrics(step, values)
        if step == 5 and "loss" in values:
            below = psutil.Process().children(recursive=True)
            (self.rank,) = [one for one in below if one.cmdline()[1:3] == ["-m", "tasks.trainer"]]
            self.rank.suspend()
        if values.get("alert/stall"):
            self.rank.resume()


def test_a_hanging_rank_is_a_stall_that_ends_with_its_next_step(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "STALL_S", 1.5)
    output, tracker = Output(Store(str(tmp_path)), ArtifactId("test/checkpoint", "dev"), "f" * 64), Stopper()
    output.listen(tracker)
    config, inputs = small_config(steps=100, checkpoint_every=100), {"shards": made.shards, "plan": made.plan}
    with open_engine() as engine:
        found = stage.run(config, Inputs(inputs), output, engine)
    # A machine under load may add further stalls.
    shown = [value for _, value in tracker.of("alert/stall")]
    assert shown == [1.0, 0.0] * int(found.metrics["alerts/stall"])
    assert f"Look at: alerts: {len(shown) // 2} stall." in tracker.files["report.html"]
    assert Artifact.find(output.store, output.address) is None
    commit(output, "train", stage.VERSION, config, [made.shards.ref("shards")], found)
    assert not output.store.list(f"{output.address.path}/.alerts")


def test_the_last_checkpoint_may_take_long_also_after_an_early_end(made: Made, tmp_path: Path) -> None:
    settings = {"best": BestConfig(every=2, patience=2), "heldout": HeldoutConfig(every=2)}
    watch, tracker, spec = watched(made, tmp_path, **settings)
    rows = [row for at, bpb in enumerate((3.0, 2.5, 2.0, 2.5, 2.1)) for row in lines(2 * at, 2, bpb=bpb)]
    for row in rows:
        late = list(watch.detector.tick(time.monotonic() + STALL_S + 1)) if row is rows[-1] else []
        write(Path(spec.out) / "metrics.jsonl", rows[: row["step"] + 1])
        watch.step(row["step"], row)
    assert [alert.kind for alert in late] == ["stall"], "before it knows of the end"
    assert list(watch.detector.tick(time.monotonic() + STALL_S + 1)) == []
    (stuck,) = watch.detector.tick(time.monotonic() + FIRST_S + 1)
    assert "no end for 601 s since step 9" in str(stuck)
    assert [step for step, _ in tracker.of("step_s/p90")] == [9], "the speed of the end is sent"
    resumed = Monitor(watch.output, spec)  # which has seen no earlier measurement
    resumed.step(9, rows[-1])
    assert list(resumed.detector.tick(time.monotonic() + STALL_S + 1)) == []


def test_an_alert_is_written_to_log_tracker_store_and_page(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monitor, tracker, spec = watched(made, tmp_path)
    refused = {"step": 3, "reason": "loss_spike", "loss": "9.1", "grad_norm": "2.0", "slices": [{"shard": "<web>"}]}
    write(Path(spec.out) / "skipped.jsonl", [refused])
    write(Path(spec.out) / "metrics.jsonl", lines(0, 3) + lines(3, 1, loss=None, grad_norm=None) + lines(4, 96))
    with caplog.at_level(logging.WARNING):
        for line in lines(0, 3):
            monitor.step(line["step"], line)
        monitor.step(3, {name: value for name, value in lines(3, 1)[0].items() if name != "loss"})
        (kept,) = monitor.alerts()
        for line in lines(4, 96):
            monitor.step(line["step"], line)
    assert "alert: spike at step 3: the step was skipped (loss_spike)" in caplog.text
    assert (kept["kind"], kept["step"]) == ("spike", 3)
    assert tracker.of("alert/spike") == [(3, 1.0), (54, 0.0)]
    assert monitor.counts() == {"alerts/spike": 1.0}
    monitor.send_page(TransientError("the store is away"))
    page = tracker.files["report.html"]
    assert "The run ended after 100 of 200 steps" in page
    assert "the store is away" in page
    assert "Look at: alerts: 1 spike; skipped steps: 1 loss_spike." in page


def test_faults_reported_by_ranks_raise_one_alert_per_episode_and_are_all_on_the_page(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monitor, tracker, spec = watched(made, tmp_path)
    write(Path(spec.out) / "metrics.jsonl", lines(0, 100))
    found = [{"kind": "poison", "step": step, "what": f"blank <row {step}>", "do": "see it"} for step in (3, 5)]
    with caplog.at_level(logging.WARNING):
        for line in lines(0, 60):
            write(Path(spec.out) / "faults.jsonl", [one for one in found if one["step"] <= line["step"]])
            monitor.step(line["step"], line)
            monitor.tick()
    assert caplog.text.count("alert: poison at step") == 1
    assert "alert: poison at step 3: blank <row 3>. See it." in caplog.text
    assert tracker.of("alert/poison") == [(3, 1.0), (56, 0.0)]
    assert monitor.counts() == {"faults/poison": 2.0, "alerts/poison": 1.0}
    monitor.send_page()
    assert "blank &lt;row 5&gt;" in tracker.files["report.html"]
    assert Monitor(monitor.output, spec).counts() == monitor.counts(), "a second attempt raises none of them again"


def test_a_second_attempt_includes_alerts_of_the_first_but_not_of_other_runs(made: Made, tmp_path: Path) -> None:
    monitor, _, spec = watched(made, tmp_path)
    monitor.step(0, {"lr": 0.1})
    write(Path(spec.out) / "metrics.jsonl", lines(0, 10))
    again = Monitor(monitor.output, spec)
    again.step(4, {"lr": 0.1})
    assert again.counts() == {"alerts/spike": 1.0}
    again.step(10, {"lr": 0.1})
    assert again.counts() == {"alerts/spike": 2.0}
    other = Output(monitor.output.store, monitor.output.address, "0" * 64)
    assert Monitor(other, spec).counts() == {}


def test_the_page_of_a_gpu_run_states_mfu_by_both_conventions_and_the_peak(made: Made, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path)
    start = {"step": 0, "at": "2026-11-23 10:00:00", "host": "a", "ranks": 8, "device": "NVIDIA H200"}
    start |= {"peak_flops": 989e12, "flops_per_token": 1e9, "tokens_per_step": 128}
    start |= {"parameters": 8_030_261_248, "layout": {"shard": 4, "tensor": 2, "compile": True}}
    spec = spec.model_copy(update={"initial": InitialSpec(artifact="mine/checkpoint@1", file="/x", sha256="5e" * 32)})
    found = report.content(
        "test/checkpoint@dev",
        spec,
        RunData.open(spec),
        # The first step was fetched from the store, which has no clock.
        [
            {"step": 0, "loss": 3.0, "lr": 0.1, "grad_norm": 1.0, "tokens": 100},
            *lines(1, 11, mfu=0.412, tokens_per_s=1_234_567.0),
        ],
        starts=[start, {**start, "step": 6}],
    )
    page = report.page(found).decode()
    assert "1,234,567 tokens per second on 8 x NVIDIA H200, 41.2% of the peak (MFU)" in page
    assert "<th>tokens per second, median<td>1,234,567" in page
    assert "989 TFLOP/s, dense bf16" in page
    assert found["flops"]["mfu_needed"] < 0.412
    assert "restarts: 1, from step 6" in page
    assert "<td>41.2 % = FLOPs per token · tokens per second / (ranks ·" in page
    assert "<td>shard = 4, tensor = 2, compile = True" in page
    assert "<th>parameters<td>8,030,261,248" in page
    assert "the last ones of mine/checkpoint@1 (sha256 5e5e5e5e5e5e5e5e)" in page


def test_the_page_of_a_run_without_steps_states_it(made: Made, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path)
    page = report.page(report.content("x@1", spec, RunData.open(spec), [], failure="no <memory>")).decode()
    assert "No step was trained: no &lt;memory&gt;." in page


def test_a_chart_of_many_steps_keeps_every_spike() -> None:
    points = [(step, 100.0 if step == 77_777 else step % 7) for step in range(100_000)]
    assert len(thinned(points)) <= 2 * BUCKETS
    assert (77_777, 100.0) in thinned(points)
    assert chart("none", []) == ""


def test_a_corrupt_rank_is_an_alert_in_store_and_tracker(made: Made, tmp_path: Path) -> None:
    monitor, tracker, spec = watched(made, tmp_path)
    short = spec.model_copy(update={"run": small_config(steps=4), "place": TrainPlace(check_every=2)})
    assert ranks_of(short, 2, share={"rank": 1, "step": 3, "bit": 0}) == [0, 0]
    monitor.tick()
    (alert,) = monitor.alerts()
    assert (alert["kind"], alert["step"], alert["what"].startswith("rank 1 on ")) == ("corruption", 3, True)
    assert [value for _, value in tracker.of("alert/corruption")] == [1.0]
    assert monitor.counts() == {"faults/corruption": 1.0, "alerts/corruption": 1.0}
