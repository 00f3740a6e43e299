"""The training loop of one rank.

Reads the shards and the plan that the spec names; writes `checkpoints/`, and on rank 0 the logs (`logs`) and the
profiles of some steps (`monitoring.profiling`), in the spec's `out` folder. A restart resumes from the newest
checkpoint that verifies. On a CPU, with data parallelism only, the result is bit-identical to that of an uninterrupted
run.
"""

import contextlib
import logging
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tasks.core.config import canonical_json, identity_of
from tasks.core.errors import InputError, TransientError
from tasks.trainer.best import Best
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.disks import Disk, Readable, sources_of
from tasks.trainer.checkpoints.fork import differences
from tasks.trainer.checkpoints.saving import Saver
from tasks.trainer.config import TrainSpec
from tasks.trainer.data.batches import Loader, open_data
from tasks.trainer.data.withheld import NOTHING_LEFT, Withheld
from tasks.trainer.defaults import doubts
from tasks.trainer.gradient import Gradient, GradientComputer
from tasks.trainer.integrity.corruption import Integrity, processor
from tasks.trainer.integrity.guard import (
    PASSED_OVER,
    ROLL_BACK_AFTER,
    LossGuard,
    StepRanges,
    in_ranges,
    may_roll_back_to,
)
from tasks.trainer.integrity.pace import SlowRanks
from tasks.trainer.integrity.poison import PoisonSearch
from tasks.trainer.logs import BPB, ROLLBACK, Z_LOSS, Faults, Logs
from tasks.trainer.model.model_file import load_initial
from tasks.trainer.monitoring.layer_figures import LayerFigures
from tasks.trainer.monitoring.profiling import StepProfile
from tasks.trainer.optim import learning_rate
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replica import Replica
from tasks.trainer.parallel.replicated import Replicated, check_ranks
from tasks.trainer.parallel.start import default_layout
from tasks.trainer.process import GarbageCollection
from tasks.trainer.telemetry import Telemetry

log = logging.getLogger(__name__)


class TrainingStopped(Exception):
    """Raised after a SIGTERM, once the run has saved a checkpoint."""


class StepObserver(Protocol):
    """Measures the steps of a run."""

    def after_step(self, step: int, line: dict[str, Any]) -> None:
        """Called on all ranks after every step, applied or skipped; may add fields to its line of the step log."""


class Trainer:
    """One rank of a run.

    Args:
        spec: the run.
        ranks: the process group, already connected.
    """

    def __init__(self, spec: TrainSpec, ranks: Ranks) -> None:
        self.spec, self.run, self.ranks = spec, spec.run, ranks
        self.out = Path(spec.out)
        self.batches = open_data(spec)
        self.faults = Faults(self.out, ranks.rank == 0)
        if spec.place.layout is None:
            check_ranks(self.run, ranks.world)
        on_gpu = ranks.device.type == "cuda"
        self.layout = default_layout(
            spec.place.layout, ranks.nodes, ranks.local_world, gpu=on_gpu, tunes=spec.tuning is not None
        )
        self.disk = Disk.find(self.out, ranks)
        self._check_ranks_agree()
        self.replica = self._replica()
        boxes, sources = self.replica.boxes, sources_of(spec)
        self.checkpoints = Readable(self.disk, ranks, self.layout, boxes, sources, self.faults)
        newest = self._newest()
        if newest is None and spec.initial is None:
            self.replica.initialize()
        self.step, self.tokens, self.guard = 0, 0, LossGuard()
        self.best = Best(self.run.best, self.run.steps)
        self.passed: StepRanges = []
        self.has_trained = self._is_first_step = True
        self.logs: Logs | None = None
        self.telemetry = Telemetry(self.run, self.batches.vocab_size, self.batches.seq_len, ranks, spec.tuning)
        self.withheld = Withheld(self.out, ranks, self.batches, self.run.steps, self._resume(newest))
        self.computer = GradientComputer(self.replica, self.run.optim.clip, self.batches, self.withheld)
        device = f"{self.telemetry.device} {processor()}"
        self.integrity = Integrity(self.out, self.computer, self.guard, self.faults, device, spec.place.check_every)
        self.search = PoisonSearch(self.integrity, self.guard, self.computer, self.run.steps, self.faults)
        watch = spec.place.watch
        self.profile = StepProfile(self.out, watch, ranks.device, ranks.rank == 0)
        self.layers = LayerFigures(self.replica, self.run.model.layers, self.run.optim.clip, watch.layers_every)
        self.observers = self._observers()
        if self._is_spread and not any(copy.required for copy in spec.copies):
            log.warning("nodes share no location of checkpoints: if the disk of one is lost, so are the checkpoints")
        if ranks.rank == 0:
            parameters = f"{self.telemetry.parameters:,}"
            log.info("%s parameters, %d steps, %d ranks", parameters, self.run.steps, ranks.world)
            for doubt in () if spec.tuning else doubts(self.run, ranks.device.type == "cuda"):
                log.warning("%s", doubt)

    def _replica(self) -> Replica:
        """Returns the model, sharded in a layout, else replicated; only that of a fine-tuning has its weights."""
        vocab_size, seq_len, tuning = self.batches.vocab_size, self.batches.seq_len, self.spec.tuning
        if self.layout is None and tuning:
            from tasks.trainer.tuning.model import build_tuned

            return Replicated(self.run, vocab_size, self.ranks, build_tuned(self.spec))
        if self.layout is None:
            return Replicated(self.run, vocab_size, self.ranks)
        from tasks.trainer.parallel.sharded import Sharded  # imports torch._dynamo: 1.5 CPU-seconds

        sharded = Sharded(self.run, self.layout, vocab_size, seq_len, self.ranks, tuning)
        if tuning:
            from tasks.trainer.tuning.model import load_base

            load_base(sharded.chunks[0], self.spec)
        return sharded

    @property
    def _is_spread(self) -> bool:
        """Whether the files of a checkpoint are on several disks."""
        return self.layout is not None and self.layout.ranks // self.layout.replicate > self.disk.ranks

    def _observers(self) -> list[StepObserver]:
        """Returns the observers of a step in the order in which they are called."""
        slow_ranks = SlowRanks(self.replica, self.integrity.names, self.faults)
        observers: list[StepObserver] = [self.profile, slow_ranks, self.telemetry, self.replica.loads]
        if self.run.heldout is None or not self.spec.heldout:
            return observers
        from tasks.trainer.data.heldout import read
        from tasks.trainer.evaluation.bpb import HeldoutBpb

        data, documents = self.batches, read(Path(self.spec.heldout))
        shape = (data.microbatch, data.seq_len, data.eos_id)
        every = (self.run.heldout.every, *((self.run.best.every,) if self.run.best else ()))
        heldout = HeldoutBpb(documents, self.replica, *shape, every, self.run.steps)
        if not self.spec.tasks:
            return [*observers, heldout]
        from tasks.trainer.evaluation.bpb import TaskMetrics
        from tasks.trainer.evaluation.items import read_encoded

        tasks = read_encoded(Path(self.spec.tasks))
        scored = TaskMetrics(tasks, self.replica, data.seq_len, data.eos_id, self.run.steps)
        return [*observers, heldout, scored]

    def train(self) -> None:
        """Trains to the last step, or until the run becomes no better (`Best`).

        Raises:
            TrainingStopped: after SIGTERM, once a checkpoint is saved.
            InputError: too many steps in a row were refused.
            TransientError: silent corruption was detected on a rank.
        """
        signal.signal(signal.SIGTERM, self._request_stop)
        if self.ranks.rank == 0:
            self.logs = Logs.at(self.out, self.step)
            self.telemetry.started(self.out, self.step, self.replica.layout)
            self.profile.started(self.step)
        if self.step == self.run.first_step:
            self.withheld.read_request(self.step)
        with (
            contextlib.closing(self.batches),
            Loader(self.batches, self.replica.numbers, self.run.steps, self.ranks.device) as loader,
            self._saver() as saver,
            GarbageCollection() as garbage,
        ):
            while not self._ended:
                gradient = self._train_step(loader, saver)
                stop = gradient.stop
                if self.guard.refused == ROLL_BACK_AFTER and not (gradient.cause and gradient.cause.of_data):
                    self._roll_back(saver)
                due = self._checkpoint_due()
                if due and not self._ended:
                    self.withheld.read_request(self.step)
                if stop or due:
                    self._save(saver)
                garbage.after_step(self.step, due)
                if stop and not self._ended:
                    saver.wait()
                    raise TrainingStopped(f"stopped on request after {self.step} of {self.run.steps} steps")

    def _train_step(self, loader: Loader, saver: Saver) -> Gradient:
        """Trains on the batch of `self.step` and logs it; returns its gradient."""
        self.profile.begin(self.step)
        step, started = self.step, time.perf_counter()
        if step in self.spec.data_changes:
            self.guard.restart()
        with self.profile.waiting():
            parts = self.withheld.without(step, loader.microbatches(step))
        waited = time.perf_counter() - started
        if in_ranges(self.passed, step):
            gradient = self.computer.empty()
            self.replica.loads.table = None  # those of another step
            refused: str | None = PASSED_OVER
        else:
            gradient = self.search.gradient(step, parts)
            refused = self.guard.refusal(step, gradient) if gradient.labels else NOTHING_LEFT
        lr = learning_rate(self.run.optim, step, self.run.steps)
        if refused:
            self._skip(refused, gradient)
        else:
            saver.wait_for_copy()
            with self.layers.around_update(step, gradient.norm, parts) as figures:
                self.replica.optimizer.step(lr)
            self.replica.loads.update()
            if self.logs and figures:
                self.logs.layers.write({"step": step, "layers": figures})
            self.tokens += gradient.labels
        self.has_trained = not refused
        self.step += 1
        if self._is_first_step:
            self.ranks.end_start()
            self._is_first_step = False
        seconds = time.perf_counter() - started
        line = {
            "step": step,
            "loss": None if refused else gradient.loss,
            "lr": lr,
            "grad_norm": None if refused else gradient.norm,
            "tokens": self.tokens,
            "tokens_per_s": round(gradient.labels / seconds, 1),
            "step_s": round(seconds, 4),
            "data_wait": round(waited / seconds, 4),
        }
        if self.run.z_loss:
            line[Z_LOSS] = None if refused else gradient.z_loss
        for observer in self.observers:
            observer.after_step(step, line)
        if not refused:
            self.best.measure(self.step, line.get(BPB))
        if self.logs:
            self.logs.metrics.write(line)
        return gradient

    def _request_stop(self, number: int, frame: object) -> None:
        self.replica.stop_requested = True

    def _skip(self, reason: str, gradient: Gradient) -> None:
        """Logs a skipped step with the documents of its batch; model and optimizer are unchanged."""
        if self.logs:
            values = {"loss": str(gradient.loss), "grad_norm": str(gradient.norm)}
            log.warning("step %d skipped (%s): loss %s, gradient norm %s", self.step, reason, *values.values())
            slices, found = self.batches.slices(self.step), {}
            if gradient.cause:
                log.warning("step %d: %s", self.step, gradient.cause.what)
                found = {"cause": gradient.cause.what, "suspected": gradient.cause.suspected}
            self.logs.skipped.write({"step": self.step, "reason": reason, **values, **found, "slices": slices})
        self.guard.check_refused(self.step, reason, gradient.cause)

    def _roll_back(self, saver: Saver) -> None:
        """Loads a checkpoint from before the refused steps, if there is one, and passes over the steps since."""
        saver.wait()
        first, until = self.step - ROLL_BACK_AFTER, self.step
        committed = max((step for step in self.run.milestone_steps if step <= until), default=0)
        passed = list(self.passed)
        try:
            state = self.checkpoints.newest(lambda step: may_roll_back_to(step, first, committed, passed))
        except TransientError:
            state = None
        if not state:
            return
        self._load(state)
        self.passed.append((self.step, until))
        if self.disk.rank == 0:
            checkpoint.drop_after(self.disk.root, self.step)
        self.ranks.barrier()
        if self.logs:
            self.logs = Logs.at(self.out, self.step)
        message = f"{ROLL_BACK_AFTER} steps refused in a row from step {first}; back to step {self.step}"
        remedy = "nothing, unless it recurs: then lower optim.lr"
        self.faults.report(ROLLBACK, first, f"{message}, steps up to {until - 1} are passed over", remedy)

    @property
    def _ended(self) -> bool:
        return self.step >= self.run.steps or self.best.ended

    def _checkpoint_due(self) -> bool:
        """Whether to save: at milestones, and if the last step changed the weights, periodically and for the best."""
        due = self.step % self.run.checkpoint_every == 0 or self.best.needs(self.step)
        return (due and self.has_trained) or self.step in self.run.milestone_steps

    def _saver(self) -> Saver:
        return Saver(
            self.disk,
            self.replica,
            self.run.keep_checkpoints,
            self.run.milestone_steps,
            keep_every=self.spec.place.checkpoints.keep_every,
            copies=self.spec.copies,
        )

    def _save(self, saver: Saver) -> None:
        self.integrity.check_state(self.step)
        if self.logs:
            self.logs.sync()
        saver.save(self.step, self._state(), needed=self.best.needs(self.step))

    def _state(self) -> dict[str, Any]:
        withheld = self.withheld.state()
        return {
            **({checkpoint.LAYOUT: self.layout.sharding} if self.layout and self._is_spread else {}),
            **({"withheld": withheld} if withheld else {}),
            **({"passed": self.passed} if self.passed else {}),
            **self.best.state(),
            "steps_taken": self.replica.optimizer.steps_taken,
            "tokens": self.tokens,
            "guard": self.guard.state(),
            "samples": self.run.samples(self.step),
            "run": self._identity(),
        }

    def _identity(self) -> dict[str, Any]:
        """Returns everything that determines the result; a checkpoint is resumed from if its run agrees."""
        initial = {"initial": self.spec.initial.sha256} if self.spec.initial else {}
        anneal = {"anneal": self.spec.anneal.model_dump(mode="json")} if self.spec.anneal else {}
        mixture = {"weights": self.spec.weights, **anneal, "plan": self.batches.identity}
        return {"config": identity_of(self.run.model_copy(update={"fork": None})), **mixture, **initial}

    def _check_ranks_agree(self) -> None:
        """Raises InputError if this rank belongs to another run than rank 0."""
        # With the operational settings and the fork, because ranks save, measure and fetch together.
        own = canonical_json([self._identity(), self.run.model_dump(mode="json")])
        if self.ranks.broadcast_text(own) != own:
            raise InputError(
                f"rank {self.ranks.rank} has other settings or inputs than rank 0",
                "start all nodes with the same recipe and version",
            )

    def _newest(self) -> dict[str, Any] | None:
        """Returns the state of the newest checkpoint that all ranks can read; None if there is no checkpoint.

        Raises:
            InputError: the checkpoints belong to another run.
            TransientError: there are checkpoints, but none can be read.
        """
        state = self.checkpoints.newest()
        if state and (found := next(differences(state["run"], self._identity(), state["step"]), "")):
            if self.spec.fork and state["step"] == self.spec.fork.step:
                raise InputError(
                    f"[train.fork]: the run would not be that of {self.spec.fork.run.artifact} up to step "
                    f"{state['step']:,}: {found}",
                    "set it back, name an earlier step, or begin a run of its own with [train] init_from",
                )
            raise InputError(
                f"{self.out} holds checkpoints of another run: {found}",
                "give this run an empty folder, or delete that one",
            )
        if self.disk.rank == 0:
            # Of two disks, one may have newer checkpoints, which would be kept instead of those that come now.
            checkpoint.drop_after(self.disk.root, state["step"] if state else 0)
        return state

    def _resume(self, state: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """Loads the checkpoint of a state on all ranks, or without one the weights of an earlier run, if given.

        Returns:
            The marks of withheld documents in the state.
        """
        if state:
            self._load(state)
            self.passed = [(first, end) for first, end in state.get("passed", ())]
            log.info("resumed at step %d of %d", self.step, self.run.steps)
        elif self.spec.initial and not self.spec.tuning:
            load_initial(self.replica.load_weights, self.spec.initial)
        return list(state.get("withheld", ())) if state else []

    def _load(self, state: Mapping[str, Any]) -> None:
        """Loads the checkpoint of a state on all ranks; keeps the withheld documents and skipped ranges."""
        self.replica.read(self.disk.root / checkpoint.name_of(state["step"]))
        self.replica.optimizer.steps_taken = state["steps_taken"]
        self.step, self.tokens = state["step"], state["tokens"]
        self.guard.restore(**state["guard"])
        # The best one up to a fork is another run's, which may not have kept it.
        self.best.restore(state.get(checkpoint.BEST) if self.step > self.run.first_step else None)
