"""Watches a running training: alerts, percentiles of the step time, and the page of the run.

Reads the step log, `starts.jsonl`, `skipped.jsonl` and `faults.jsonl` in the run's folder. Writes each alert as a
warning into the log, as the metric `alert/<kind>` (1 from its step on, 0 from its end on) to the tracker, and as
`.alerts/<step>-<kind>.json` ({kind, step, what, do, at, fingerprint}) into the artifact's folder, where it can be read
during the run and is removed when the artifact is committed. Sends `report.html` to the tracker at the end, however the
run ends.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks.core.errors import SluiceError
from tasks.core.stage import Output
from tasks.formats.tokens.plan import Plan
from tasks.stages.train import report
from tasks.stages.train.alerts import RECENT, Alert, Watch
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import TrainSpec
from tasks.trainer.logs import FAULTS, METRICS, SKIPPED, proven_steps, read_metrics, read_starts

log = logging.getLogger("sluice.train")
alerts_log = logging.getLogger("sluice.alerts")
"""Its lines are what an Airflow notifier sends."""

FOLDER = ".alerts"


class Monitor:
    """Watches one attempt at a run, from its construction on.

    Args:
        output: the artifact that the run writes.
        spec: the run; the steps in the log of its folder are not watched again.
        known_faults: faults that earlier attempts have raised alerts for, the first ones in the file; None: all in it.
    """

    def __init__(self, output: Output, spec: TrainSpec, known_faults: int | None = None) -> None:
        self.output, self.spec, self.run = output, spec, Path(spec.out)
        self.watch = Watch(proven_steps(self.run / METRICS), spec.run.steps, time.monotonic())
        self._shown: set[str] = set()
        self._faults = len(self._reported()) if known_faults is None else known_faults

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the values of a step (see `Watch.step`)."""
        reason = "" if "loss" in values else self._reason(step)
        self._report(self.watch.step(step, values, time.monotonic(), reason), step)
        if (step + 1) % RECENT == 0 or step + 1 == self.spec.run.steps:
            self.output.log_metrics(step, self.watch.speeds())

    def tick(self) -> None:
        """Looks at the clock; for calls between steps, several times a second."""
        self._report(self.watch.tick(time.monotonic()), self.watch.last_step)
        reported = self._reported()
        for line in reported[self._faults :]:
            self._report(self.watch.fault(**line), line["step"])
        self._faults = len(reported)

    def _reported(self) -> list[dict[str, Any]]:
        return read_metrics(self.run / FAULTS)

    def alerts(self) -> list[dict[str, Any]]:
        """Returns the alerts of all attempts at the artifact, by step; raises SluiceError."""
        store, folder = self.output.store, f"{self.output.address.path}/{FOLDER}"
        found = [json.loads(store.read(path)) for path in store.list(folder)]
        ours = [alert for alert in found if alert["fingerprint"] == self.output.fingerprint]
        return sorted(ours, key=lambda alert: (alert["step"], alert["kind"]))

    def send_page(self, failure: BaseException | None = None) -> None:
        """Sends `report.html` to the tracker; never fails the run, which has its result."""
        try:
            self.output.log_file("report.html", report.page(self._content(failure)))
        except Exception as error:  # a page is not worth a training run
            log.warning("[%s] no report: %s: %s", self.output.address, type(error).__name__, error)

    def counts(self) -> dict[str, float]:
        """Returns the numbers of alerts and faults by kind; without alerts where a store does not answer.

        Returns:
            "alerts/<kind>": of all attempts at the artifact. "faults/<kind>": in the log of this machine, each one.
        """
        self.tick()
        found = Counter(line["kind"] for line in self._reported())
        each = {f"faults/{kind}": float(count) for kind, count in sorted(found.items())}
        try:
            kinds = Counter(alert["kind"] for alert in self.alerts())
        except SluiceError as error:
            log.warning("[%s] alerts are not counted: %s", self.output.address, error)
            return each
        return each | {f"alerts/{kind}": float(count) for kind, count in sorted(kinds.items())}

    def _content(self, failure: BaseException | None) -> dict[str, Any]:
        root = self.run / "checkpoints"
        return report.content(
            str(self.output.address),
            self.spec,
            Plan.read(self.spec.plan),
            read_metrics(self.run / METRICS),
            skipped=read_metrics(self.run / SKIPPED),
            starts=read_starts(self.run),
            alerts=self.alerts(),
            faults=self._reported(),
            checkpoints=checkpoint.steps_at(root),
            failure=_words(failure) if failure else "",
        )

    def _reason(self, step: int) -> str:
        reasons = {line["step"]: line["reason"] for line in read_metrics(self.run / SKIPPED)}
        return str(reasons.get(step, ""))

    def _report(self, raised: Iterable[Alert], step: int) -> None:
        for alert in raised:
            alerts_log.warning("[%s] alert: %s", self.output.address, alert)
            self._keep(alert)
        for kind in self._shown ^ self.watch.open.keys():
            self.output.log_metrics(max(step, 0), {f"alert/{kind}": float(kind in self.watch.open)})
        self._shown = set(self.watch.open)

    def _keep(self, alert: Alert) -> None:
        at = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
        line = {**asdict(alert), "at": at, "fingerprint": self.output.fingerprint}
        path = f"{self.output.address.path}/{FOLDER}/{alert.step:08d}-{alert.kind}.json"
        try:
            with self.output.store.write(path) as file:
                file.write(json.dumps(line).encode())
        except SluiceError as error:  # the alert is in the log; the run goes on
            log.warning("[%s] the alert is not in the store: %s", self.output.address, error)


def _words(failure: BaseException) -> str:
    text = " ".join(str(failure).split())
    return text if isinstance(failure, SluiceError) else f"{type(failure).__name__} {text}".strip()
