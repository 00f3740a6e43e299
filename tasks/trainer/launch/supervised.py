"""A training that writes an artifact, as the stages `train`, `finetune` and `canary` run it around their ranks.

Takes the next epoch of the artifact (`fence`), fetches the newest valid checkpoint (`recovery`) and starts the ranks
(`launcher`). During the run it sends the values of every step to the tracker and raises alerts (`monitor`); at
checkpoints it passes takedowns on to the ranks (`notice`), commits milestones and starts copies. At the end it checks
that no step and no milestone is missing; after a failure it copies the newest checkpoint, and sends the report page.

On several nodes (`gang`), every node starts the stage: node 0 has the `SupervisedRun`, and the others `join` it.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tasks.core.errors import SupersededError
from tasks.core.stage import Output, Report
from tasks.trainer.best import End
from tasks.trainer.checkpoints.copies import NodeCopies
from tasks.trainer.checkpoints.fence import Fence, take_folder
from tasks.trainer.checkpoints.locations import check_milestones, check_rows
from tasks.trainer.checkpoints.recovery import Recovery
from tasks.trainer.config import TrainSpec
from tasks.trainer.data.notice import RowLookup, TakedownNotice
from tasks.trainer.launch import flight_recorder
from tasks.trainer.launch.gang import Gang
from tasks.trainer.launch.launcher import train_local
from tasks.trainer.logs import FAULTS, METRICS, read_metrics, read_starts
from tasks.trainer.monitoring.monitor import Monitor
from tasks.trainer.monitoring.report import loss_curve
from tasks.trainer.place import TrainPlace
from tasks.trainer.planning.estimate import speed_metrics

SpecOf = Callable[[Path], TrainSpec]
"""Returns the spec of a run in a folder; `place` and `copies` are added to it."""


class SupervisedRun:
    """One attempt at a training; its folder has the newest checkpoint when it is constructed.

    Args:
        output: the artifact; only this attempt, until a later one starts, may write it from now on.
        spec_of: returns the spec of the run.
        rows: returns the rows of taken-down documents in the files that the run reads.
        recipes: other recipes whose documents the run reads.
        canary: whether it is a canary. These are compared with one another, so takedowns during one do not change its
            data. It trains on one node, commits no milestones, and has neither alerts nor a page.

    Attributes:
        folder: of the run, on this machine.
        spec: the run.
        notice: the takedowns that it applies.
        end: how it ended, after `train`.

    Raises:
        SluiceError, OSError: the store cannot be read, the folder cannot be written, or there is no spec.
    """

    def __init__(
        self, output: Output, spec_of: SpecOf, rows: RowLookup, recipes: Iterable[str] = (), *, canary: bool = False
    ) -> None:
        place = TrainPlace.of(output.place)
        self.output, self._canary = output, canary
        place, self._gang = (place.of_canary(), None) if canary else (place, Gang.from_environment())
        self._fence = Fence(output)
        self._fence.inherit()
        self.folder = self._fence.run
        spec = spec_of(self.folder)
        self._milestone_steps = () if canary else spec.run.milestone_steps
        nodes = self._gang.nodes if self._gang else 1
        self._recovery = Recovery(output, self.folder, self._milestone_steps, place.checkpoints, nodes, spec.fork)
        self.spec = spec.model_copy(update={"place": place, "copies": self._recovery.copy_specs()})
        known_faults = len(read_metrics(self.folder / FAULTS))
        self._go_back()
        self._recovery.restore()
        self.notice = TakedownNotice(output, rows, self.folder, recipes)
        self._monitor = None if canary else Monitor(output, self.spec, known_faults)
        self._lines: list[dict[str, Any]] = []

    def _go_back(self) -> None:
        """Goes back to an earlier checkpoint, if that is requested and has not been done."""
        request = self.spec.run.resume_from
        if not request or self._fence.has_returned(request):
            return
        step = int(request.partition("#")[0])
        self._recovery.go_back(step)
        self._fence.record_return(request, step)

    def train(self) -> list[dict[str, Any]]:
        """Trains to the last step, or to an early end; returns the lines of the step log.

        Raises:
            SupersededError: a later attempt has taken over the run.
            SluiceError: the run failed; a TransientError if a retry may succeed.
        """
        self.notice.update()
        try:
            with self._recovery.guarding():
                train_local(self.spec, self._follow, self._gang, self._check)
        except SupersededError:
            raise
        except BaseException as error:
            if self._monitor:
                self._monitor.send_page(error)
            for name, record in flight_recorder.contents(self.folder).items():
                self.output.log_file(name, record)
            raise
        run, log = self.spec.run, self.folder / METRICS
        self.end = End.of(self.folder / "checkpoints", run.best, run.steps)
        self._recovery.publish_end(self.end)
        lines = read_metrics(log)
        check_rows([line["step"] for line in lines], 0, self.end.steps, str(log))
        check_milestones(self.output, self._recovery.milestone_steps)
        self._recovery.clear()
        self._lines = lines
        return lines

    def finish(self, report: Report) -> Report:
        """Sends the loss curve and the report page; returns the report with speed, alerts and takedowns of the run.

        To be called after `train`.
        """
        self.output.log_file("loss.png", partial(loss_curve, self._lines))
        metrics = {**report.metrics, **speed_metrics(self._lines, (read_starts(self.folder) or [{}])[-1])}
        if self._monitor:
            self._monitor.send_page()
            metrics |= self._monitor.counts()
        return replace(report, metrics=metrics, inputs=self.notice.refs())

    def _follow(self, step: int, values: dict[str, float]) -> None:
        self.output.log_metrics(step, values)
        if self._monitor:
            self._monitor.step(step, values)
        self.output.progress(step + 1, self.spec.run.steps, _progress_note(values))
        # The line of step n is written after the checkpoints up to n.
        if step % self.spec.run.checkpoint_every == 0 or step in self._milestone_steps:
            if not self._canary:
                self.notice.update()
            self._recovery.keep_up(step)

    def _check(self) -> None:
        self._fence.check_now_and_then()
        self._recovery.tick()
        if self._monitor:
            self._monitor.tick()


def join(output: Output, spec_of: SpecOf) -> None:
    """Runs the ranks of a node other than 0 of a gang, and copies their files; writes nothing of the artifact.

    Args:
        output: the artifact that node 0 writes.
        spec_of: as on node 0.

    Raises:
        SluiceError: as on node 0.
    """
    place, gang = TrainPlace.of(output.place), Gang.from_environment()
    assert gang is not None
    folder = take_folder(output, gang.node)
    spec = spec_of(folder)
    copies = NodeCopies(output, folder, gang.nodes, spec.run.milestone_steps, place.checkpoints)
    spec = spec.model_copy(update={"place": place, "copies": copies.specs})
    with copies.guarding():
        train_local(spec, lambda step, values: None, gang, copies.keep_up)


def _progress_note(values: dict[str, float]) -> str:
    loss = f"loss {values['loss']:.3f}" if "loss" in values else "step skipped"
    return f"{loss}, {values['tokens_per_s'] / 1000:.1f} k tok/s" if "tokens_per_s" in values else loss
