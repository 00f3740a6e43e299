"""Monitors a running training or fine-tuning: alerts, percentiles of the step time, and the report page of the run.

Reads the step log, `starts.jsonl`, `skipped.jsonl`, `layers.jsonl`, `faults.jsonl` and the traces of profiled steps in
the run's folder. Figures of layers and of profiled steps are sent to the tracker as they come, the traces at the end.
Each alert is logged as a warning, sent to the tracker as the metric `alert/<kind>` (1 from its step on, 0 after its
end), and written to `.alerts/<step>-<kind>.json` ({kind, step, what, do, at, fingerprint}) in the artifact's folder,
where it can be read during the run; the commit of the artifact removes it. Sends `report.html` to the tracker at the
end of the run, also after a failure.

Alerts are derived from the values of the steps and the clock (`AlertDetector`):

    stall      no new step for `STALL_S`, or ten times the median step if that is longer; before the first step and
               after the last one (of an early end, too), when checkpoints are read and written, for `FIRST_S`
    spike      a step was skipped: its loss or gradient was not finite, or its loss far above recent ones
    data_wait  steps wait for data a tenth of the time
    slow       MFU (or tokens per second, if MFU is unknown) has dropped by a fifth compared with earlier steps of the
               same data (`TrainSpec.data_changes`)
    plateau    the loss no longer falls as its history predicts (`plateau`)
    communication   a profiled step waits for communication alone for too long (`profiled_steps`)

and from the faults that the processes of the run report (`tasks.trainer.logs`):

    poison     documents have spoiled a step and are blank from then on
    rollback   the run has loaded an earlier checkpoint and passes over some steps
    corruption silent data corruption on a rank
    slow_rank  a rank computes a step for longer than the others
    checkpoint a checkpoint is damaged, or a location cannot be written
    preemption the machine will be preempted

An alert is raised once, and again only after it has ended. `data_wait` and `slow` use medians over `RECENT` steps that
took at least `RECENT_S` together, because delays of a few seconds are common, for example on laptops.
"""

import json
import logging
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from tasks.core.errors import SluiceError
from tasks.core.stage import Output
from tasks.trainer.best import Best
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import TrainSpec
from tasks.trainer.logs import (
    BPB,
    FAULT_KINDS,
    FAULTS,
    LAYERS,
    METRICS,
    SKIPPED,
    MetricsTail,
    proven_steps,
    read_metrics,
    read_starts,
)
from tasks.trainer.monitoring import report
from tasks.trainer.monitoring.plateau import PlateauWatch
from tasks.trainer.monitoring.profiled_steps import FAMILY, ProfiledSteps

log = logging.getLogger("sluice.train")

alerts_log = logging.getLogger("sluice.alerts")
"""An Airflow notifier sends the lines of this logger."""

FOLDER = ".alerts"
STALL_S = 60.0
STALL_STEPS = 10.0

FIRST_S = 600.0
"""Limit before the first step after a start, when ranks import, connect, read their checkpoint and compile."""

RECENT = 50
RECENT_S = 60.0

BEFORE = 1000
"""Maximum number of earlier steps that the recent steps are compared with."""

WAITING, FLOWING = 0.1, 0.05
"""Share of a step above which `data_wait` is raised, and below which it ends."""

SLOWED, RECOVERED = 0.8, 0.9
"""Share of the earlier speed below which `slow` is raised, and above which it ends."""

CALM = 50
"""Steps without another spike or fault of its kind after which its alert ends."""

KINDS = ("stall", "spike", "data_wait", "slow", "plateau", "communication", *FAULT_KINDS)


@dataclass(frozen=True)
class Alert:
    """One episode: observation, step, and recommended action. `what` and `do` have no final period."""

    kind: str
    step: int
    what: str
    do: str

    def __str__(self) -> str:
        return f"{self.kind} at step {self.step}: {self.what}. {self.do[0].upper()}{self.do[1:]}."


class AlertDetector:
    """Derives alerts from the steps of one start of a run.

    Args:
        first_step: first step of this start; values of earlier steps are ignored.
        steps: number of steps of the run; it may be set to fewer when the run ends early.
        now: seconds of a monotonic clock.
        step_prefix: with which `trace` finds a step of the run.
        data_changes: steps from which the speed does not compare with that of earlier steps.
        losses: the losses so far, to look for a plateau; None: it is not looked for.
        exposed: share of a profiled step for which it may wait for communication alone.
    """

    def __init__(
        self,
        first_step: int,
        steps: int,
        now: float,
        step_prefix: str = "step",
        data_changes: Collection[int] = (),
        losses: PlateauWatch | None = None,
        exposed: float = 0.1,
    ) -> None:
        self._losses, self._exposed = losses, exposed
        self.first_step, self.steps, self._step_prefix = first_step, steps, step_prefix
        self._data_changes = data_changes
        self.open: dict[str, Alert] = {}
        self._step, self._at = first_step - 1, now
        self._recent: deque[tuple[float, float, float]] = deque()
        self._recent_s = 0.0
        self._incomparable = 0  # of the recent steps, from the oldest on: those of earlier data
        self._before: deque[float] = deque(maxlen=BEFORE)
        self._last_skip = first_step
        self._last_fault: dict[str, int] = {}

    def step(self, step: int, values: Mapping[str, float], now: float, reason: str = "") -> Iterator[Alert]:
        """Processes the values of a step; yields the alerts that it raises.

        Args:
            step: 0-based; ascending.
            values: step_s, data_wait, tokens_per_s, lr, and loss and mfu if they are known; without "loss", the step
                was skipped.
            now: as in the constructor.
            reason: why the step was skipped.
        """
        if step < self.first_step:
            return
        self._step, self._at = step, now
        if step in self._data_changes:
            self._before.clear()
            self._incomparable = len(self._recent)
            self.open.pop("slow", None)
        self.open.pop("stall", None)
        yield from self._spike(step, "loss" not in values, reason)
        yield from self._plateau(step, values)
        for kind in [kind for kind, last in self._last_fault.items() if step - last > CALM]:
            self.open.pop(kind, None)
        if "step_s" in values:
            speed = values.get("mfu", values["tokens_per_s"])
            self._push(values["step_s"], values["data_wait"], speed)
            yield from self._data_wait(step)
            yield from self._slow(step, "MFU" if "mfu" in values else "tokens per second")

    def fault(self, kind: str, step: int, what: str, do: str) -> Iterator[Alert]:
        """Processes a reported fault (`tasks.trainer.logs`); yields an alert, once per episode of a kind."""
        self._last_fault[kind] = step
        yield from self._raise_alert(kind, step, what, do)

    def profiled(self, step: int, exposed: float) -> Iterator[Alert]:
        """Processes the share of a profiled step that waited for communication alone; yields the alert it raises."""
        if step < self.first_step:  # of an earlier start, which has raised it
            return
        if exposed <= self._exposed:
            self.open.pop("communication", None)
            return
        yield from self._raise_alert(
            "communication",
            step,
            f"{exposed:.0%} of the profiled step waits for communication that nothing hides, where {self._exposed:.0%} "
            "are the most",
            "open its trace (profiles/ of the run) in Perfetto: which collective is not beside computation, and do "
            "ranks begin it together? Fewer ranks per matrix (tensor), more tokens per rank and step, or more "
            "replicas instead of shards lower the share",
        )

    def tick(self, now: float) -> Iterator[Alert]:
        """Yields an alert if the run makes no more steps, or does not end after its last step."""
        silent, limit = now - self._at, self._limit()
        if silent < limit:
            return
        after = f"since step {self._step}" if self._step >= self.first_step else "since the start"
        missing = "no step" if self._step + 1 < self.steps else "no end"
        yield from self._raise_alert(
            "stall",
            self._step + 1,
            f"{missing} for {silent:.0f} s {after}, where {limit:.0f} s are the most",
            "look at the last lines of its log: ranks may wait for a lost one, for the store, or repeat steps after a "
            "crash. Ended with SIGTERM, the run resumes from its newest checkpoint",
        )

    @property
    def last_step(self) -> int:
        """The newest step; `first_step - 1` if there is none yet."""
        return self._step

    def speeds(self) -> dict[str, float]:
        """Returns the percentiles of the recent steps: step_s/p50, /p90, /p99 and /max, in seconds."""
        return report.percentiles([seconds for seconds, _, _ in self._recent])

    def _limit(self) -> float:
        if not self.first_step <= self._step < self.steps - 1:
            return FIRST_S
        steps = [seconds for seconds, _, _ in self._recent]
        return max(STALL_S, STALL_STEPS * median(steps)) if steps else STALL_S

    def _push(self, seconds: float, waited: float, speed: float) -> None:
        self._recent.append((seconds, waited, speed))
        self._recent_s += seconds
        while len(self._recent) > RECENT and self._recent_s - self._recent[0][0] >= RECENT_S:
            oldest, _, old_speed = self._recent.popleft()
            self._recent_s -= oldest
            if self._incomparable:
                self._incomparable -= 1
            else:
                self._before.append(old_speed)

    @property
    def _full(self) -> bool:
        return len(self._recent) >= RECENT and self._recent_s >= RECENT_S

    def _spike(self, step: int, skipped: bool, reason: str) -> Iterator[Alert]:
        if skipped:
            self._last_skip = step
            yield from self._raise_alert(
                "spike",
                step,
                f"the step was skipped ({reason or 'no reason given'})",
                f"nothing if the next steps are trained; else see its pages with `trace {self._step_prefix}:{step}`",
            )
        elif step - self._last_skip > CALM:
            self.open.pop("spike", None)

    def _plateau(self, step: int, values: Mapping[str, float]) -> Iterator[Alert]:
        if self._losses is None or "lr" not in values:
            return
        found = self._losses.step(step, values.get("loss"), values["lr"])
        if found:
            yield from self._raise_alert(
                "plateau",
                step,
                str(found),
                "look at update / weight and the activations of the layers (a part that stands still or saturates), at "
                "the gradient norm (mostly clipped?), at how often each source was read, and at the held-out text of "
                "each source. If all is well, the peak learning rate is too high for this phase or the data is "
                "learned: a fork that decays from here shows how much is left",
            )
        elif "plateau" in self.open and self._losses.falls:
            self.open.pop("plateau", None)

    def _data_wait(self, step: int) -> Iterator[Alert]:
        share = median(waited for _, waited, _ in self._recent)
        if share > WAITING and self._full:
            yield from self._raise_alert(
                "data_wait",
                step,
                f"the median step waits {share:.0%} of its time for data",
                "compare the store's latency and the processor's load with those of the beginning; the local cache "
                "should be on a fast disk",
            )
        elif share < FLOWING:
            self.open.pop("data_wait", None)

    def _slow(self, step: int, name: str) -> Iterator[Alert]:
        if not self._full or len(self._before) < RECENT:
            return
        before, now = median(self._before), median(speed for _, _, speed in self._recent)
        if now < SLOWED * before:
            yield from self._raise_alert(
                "slow",
                step,
                f"the median {name} of the last {len(self._recent)} steps is {now:,.4g}, before {before:,.4g}",
                "look for another process on the machine, for gpu/slowed and gpu/clock_mhz, and for data_wait",
            )
        elif now > RECOVERED * before:
            self.open.pop("slow", None)

    def _raise_alert(self, kind: str, step: int, what: str, do: str) -> Iterator[Alert]:
        if kind not in self.open:
            self.open[kind] = Alert(kind, step, what, do)
            yield self.open[kind]


class Monitor:
    """Monitors one attempt at a run, from its construction on.

    Args:
        output: the artifact that the run writes.
        spec: the run; the steps in its existing log are skipped.
        known_faults: number of faults, from the start of the log, whose alerts earlier attempts have raised; None: all.
    """

    def __init__(self, output: Output, spec: TrainSpec, known_faults: int | None = None) -> None:
        self.output, self.spec, self.run = output, spec, Path(spec.out)
        first_step, prefix = proven_steps(self.run / METRICS), report.step_prefix(spec)
        self.detector = AlertDetector(
            first_step,
            spec.run.steps,
            time.monotonic(),
            prefix,
            spec.data_changes,
            self._losses_before(first_step) if spec.place.watch.plateau and not spec.tuning else None,
            spec.place.watch.exposed_communication,
        )
        self._layers, self._profiled = MetricsTail(self.run / LAYERS), ProfiledSteps(self.run)
        self._best, self._measured = Best(spec.run.best, spec.run.steps), -2
        self._open_kinds: set[str] = set()
        self._faults = len(self._reported()) if known_faults is None else known_faults

    def _losses_before(self, first_step: int) -> PlateauWatch:
        """Returns the losses of the steps that the log has already."""
        optim = self.spec.run.optim
        decay_from = self.spec.run.stable_step if optim.schedule == "wsd" else None
        changes = {*self.spec.data_changes, self.spec.run.first_step}  # the first step of a fork
        losses = PlateauWatch(optim.warmup_steps, decay_from, changes)
        for line in read_metrics(self.run / METRICS)[:first_step]:
            losses.add(line["step"], line["loss"], line["lr"])
        return losses

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Processes the values of a step (see `AlertDetector.step`)."""
        reason = "" if "loss" in values else self._reason(step)
        if self._ends_early(step, values):
            self.detector.steps = step + 1
        self._report(self.detector.step(step, values, time.monotonic(), reason), step)
        if (step + 1) % RECENT == 0 or step + 1 == self.detector.steps:
            self.output.log_metrics(step, self.detector.speeds())

    def tick(self) -> None:
        """Checks the clock and the faults; to be called between steps, several times a second."""
        self._report(self.detector.tick(time.monotonic()), self.detector.last_step)
        reported = self._reported()
        for line in reported[self._faults :]:
            self._report(self.detector.fault(**line), line["step"])
        self._faults = len(reported)
        for step, figures in self._profiled.new():
            self.output.log_metrics(step, {f"{FAMILY}{name}": value for name, value in figures.shares().items()})
            self._report(self.detector.profiled(step, figures.exposed), step)
        for line in self._layers.new_lines():
            self.output.log_metrics(line["step"], _layer_metrics(line["layers"]))

    def _reported(self) -> list[dict[str, Any]]:
        return read_metrics(self.run / FAULTS)

    def alerts(self) -> list[dict[str, Any]]:
        """Returns the alerts of all attempts at the artifact, by step; raises SluiceError."""
        store, folder = self.output.store, f"{self.output.address.path}/{FOLDER}"
        alerts = [json.loads(store.read(path)) for path in store.list(folder)]
        of_run = [alert for alert in alerts if alert["fingerprint"] == self.output.fingerprint]
        return sorted(of_run, key=lambda alert: (alert["step"], alert["kind"]))

    def send_page(self, failure: BaseException | None = None) -> None:
        """Sends `report.html` and the traces to the tracker; logs errors instead of failing the run."""
        try:
            self.tick()
            self.output.log_file("report.html", lambda: report.page(self._content(failure)))
            self._profiled.send(self.output)
        except Exception as error:  # the page must not fail the run
            log.warning("[%s] no report: %s: %s", self.output.address, type(error).__name__, error)

    def counts(self) -> dict[str, float]:
        """Returns the numbers of alerts and faults by kind, and the figures of profiled steps.

        Returns:
            "alerts/<kind>": alerts of all attempts at the artifact, without them if the store does not answer.
            "faults/<kind>": faults in the log of this machine. "profile/…", "operation/…": see `ProfiledSteps`.
        """
        self.tick()
        faults = Counter(line["kind"] for line in self._reported())
        counts = {f"faults/{kind}": float(count) for kind, count in sorted(faults.items())} | self._profiled.metrics()
        try:
            kinds = Counter(alert["kind"] for alert in self.alerts())
        except SluiceError as error:
            log.warning("[%s] alerts are not counted: %s", self.output.address, error)
            return counts
        return counts | {f"alerts/{kind}": float(count) for kind, count in sorted(kinds.items())}

    def _content(self, failure: BaseException | None) -> dict[str, Any]:
        root = self.run / "checkpoints"
        return report.content(
            str(self.output.address),
            self.spec,
            report.RunData.open(self.spec),
            read_metrics(self.run / METRICS),
            skipped=read_metrics(self.run / SKIPPED),
            starts=read_starts(self.run),
            alerts=self.alerts(),
            faults=self._reported(),
            layers=read_metrics(self.run / LAYERS),
            profiles=self._profiled.figures,
            checkpoints=checkpoint.steps_at(root),
            failure=_error_text(failure) if failure else "",
        )

    def _ends_early(self, step: int, values: Mapping[str, float]) -> bool:
        """Returns whether a step is the last one because held-out text becomes no better, as the ranks decide it."""
        run = self.spec.run
        if run.best is None or not run.best.patience:
            return False
        if step != self._measured + 1:  # the first step that is seen, or one after a rollback
            self._best = Best(run.best, run.steps)
            for line in read_metrics(self.run / METRICS):
                if run.first_step <= line["step"] < step and line["loss"] is not None:
                    self._best.measure(line["step"] + 1, line.get(BPB))
        if "loss" in values:
            self._best.measure(step + 1, values.get(BPB))
        self._measured = step
        return self._best.ended

    def _reason(self, step: int) -> str:
        """Returns why a step was skipped, and what was found about the cause."""
        lines = [line for line in read_metrics(self.run / SKIPPED) if line["step"] == step]
        return ": ".join(lines[-1][name] for name in ("reason", "cause") if name in lines[-1]) if lines else ""

    def _report(self, raised: Iterable[Alert], step: int) -> None:
        for alert in raised:
            alerts_log.warning("[%s] alert: %s", self.output.address, alert)
            self._store(alert)
        for kind in self._open_kinds ^ self.detector.open.keys():
            self.output.log_metrics(max(step, 0), {f"alert/{kind}": float(kind in self.detector.open)})
        self._open_kinds = set(self.detector.open)

    def _store(self, alert: Alert) -> None:
        at = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
        line = {**asdict(alert), "at": at, "fingerprint": self.output.fingerprint}
        path = f"{self.output.address.path}/{FOLDER}/{alert.step:08d}-{alert.kind}.json"
        try:
            with self.output.store.write(path) as file:
                file.write(json.dumps(line).encode())
        except SluiceError as error:  # the alert is in the log; the run goes on
            log.warning("[%s] the alert is not in the store: %s", self.output.address, error)


def _layer_metrics(layers: Mapping[str, Mapping[str, float | None]]) -> dict[str, float]:
    """Returns the figures of the layers as metrics.

    >>> _layer_metrics({"0": {"grad": 0.5, "ratio": None}, "head": {"grad": 2.0}})
    {'layer/grad.000': 0.5, 'layer/grad.head': 2.0}
    """
    return {
        f"layer/{figure}.{layer.zfill(3) if layer.isdecimal() else layer}": value
        for layer, figures in layers.items()
        for figure, value in figures.items()
        if value is not None
    }


def _error_text(failure: BaseException) -> str:
    text = " ".join(str(failure).split())
    return text if isinstance(failure, SluiceError) else f"{type(failure).__name__} {text}".strip()
