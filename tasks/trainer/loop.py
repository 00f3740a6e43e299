"""The training loop of one rank.

Reads the shards and the plan that the spec names; writes `checkpoints/`, and on rank 0 `metrics.jsonl` and
`skipped.jsonl`, under the spec's `out` folder. A restart resumes from the newest checkpoint that verifies and, on a CPU
with ranks that are data-parallel only, gives the same bytes as an uninterrupted run.
"""

import contextlib
import json
import logging
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tasks.core.errors import InputError
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.saving import Saver
from tasks.trainer.config import TrainSpec
from tasks.trainer.data.batches import Batch, Loader, open_data
from tasks.trainer.data.withheld import NOTHING_LEFT, PoisonSearch, Withheld
from tasks.trainer.hooks import Gradient, Hook
from tasks.trainer.integrity.corruption import Integrity, processor
from tasks.trainer.integrity.guard import (
    PASSED_OVER,
    ROLL_BACK_AFTER,
    LossGuard,
    Passed,
    drop_after,
    is_passed,
    rollback_target,
)
from tasks.trainer.integrity.pace import SlowRanks
from tasks.trainer.logs import ROLLBACK, Faults, Logs
from tasks.trainer.model.model_file import load_initial
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.optim import learning_rate
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replicated import Replicated
from tasks.trainer.place import Layout
from tasks.trainer.telemetry import Telemetry

if TYPE_CHECKING:
    from tasks.trainer.parallel.sharded import Sharded

log = logging.getLogger(__name__)


class TrainingStopped(Exception):
    """The run has saved a checkpoint after a SIGTERM."""


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
        self.replica = self._replica()
        self.step, self.tokens, self.guard = 0, 0, LossGuard()
        self.passed: Passed = []
        self.has_trained = True
        self.logs: Logs | None = None
        self.faults = Faults(self.out, ranks.rank == 0)
        self.telemetry = Telemetry(self.run, self.batches.vocab_size, self.batches.seq_len, ranks)
        device = f"{self.telemetry.device} {processor()}"
        self.integrity = Integrity(self.out, ranks, self.replica, self.faults, device, spec.check_every)
        self.withheld = Withheld(self.out, ranks, self.batches, self.run.steps, self._resume())
        self.hooks = self._hooks()
        if ranks.rank == 0:
            counts = ModelShape.of(self.run.model, self.batches.vocab_size).weights
            log.info("%s parameters, %d steps, %d ranks", f"{counts['total']:,}", self.run.steps, ranks.world)

    def _replica(self) -> "Replicated | Sharded":
        """Returns the model: sharded on GPUs and where the place has a layout, else whole on every rank.

        Without a layout the GPUs of a node share the state, and nodes have copies of it. A fine-tuning has copies.
        """
        if self.spec.tuning:
            from tasks.trainer.tuning.model import build_tuned

            return Replicated(self.run, self.batches.vocab_size, self.ranks, build_tuned(self.spec))
        layout = self.spec.layout
        if layout is None and self.ranks.device.type == "cuda":
            layout = Layout(replicate=self.ranks.world // self.ranks.local_world, shard=self.ranks.local_world)
        if layout is None:
            return Replicated(self.run, self.batches.vocab_size, self.ranks)
        from tasks.trainer.parallel.sharded import Sharded  # imports torch._dynamo: 1.5 CPU-seconds

        return Sharded(self.run, layout, self.batches.vocab_size, self.batches.seq_len, self.ranks)

    def _hooks(self) -> list[Hook]:
        """Returns the hooks in the order in which they are called."""
        slow = SlowRanks(self.replica, self.integrity.names, self.faults)
        hooks = [self.withheld, PoisonSearch(self, self.withheld), slow, self.telemetry]
        if self.run.heldout is None or not self.spec.heldout:
            return hooks
        from tasks.trainer.data.heldout import read
        from tasks.trainer.evaluation.bpb import HeldoutBpb

        data, documents = self.batches, read(Path(self.spec.heldout))
        shape = (data.microbatch, data.seq_len, data.eos_id)
        heldout = HeldoutBpb(documents, self.replica, self.ranks, *shape, self.run.heldout.every, self.run.steps)
        return [*hooks, heldout]

    def train(self) -> None:
        """Trains to the last step.

        Raises:
            TrainingStopped: SIGTERM came; a checkpoint was saved.
            InputError: too many steps in a row were refused.
            TransientError: a rank computes or keeps something else than it should.
        """
        signal.signal(signal.SIGTERM, self._request_stop)
        if self.ranks.rank == 0:
            self.logs = Logs.at(self.out, self.step)
            self.telemetry.started(self.out, self.step, self.replica.layout)
        if not self.step:
            self._before_checkpoint()
        with (
            contextlib.closing(self.batches),
            Loader(self.batches, self.replica.numbers, self.run.steps, self.ranks.device) as loader,
            self._saver() as saver,
        ):
            while self.step < self.run.steps:
                stop = self._train_step(loader, saver)
                if self.guard.refused == ROLL_BACK_AFTER:
                    self._roll_back(saver)
                if due := self._checkpoint_due():
                    self._before_checkpoint()
                if stop or due:
                    self._save(saver)
                if stop and self.step < self.run.steps:
                    saver.wait()
                    raise TrainingStopped(f"stopped on request after {self.step} of {self.run.steps} steps")

    def _train_step(self, loader: Loader, saver: Saver) -> bool:
        """Trains on the batch of `self.step` and logs it; returns whether any rank got a SIGTERM."""
        step, started = self.step, time.perf_counter()
        parts = self._before_step(loader.microbatches(step))
        waited = time.perf_counter() - started
        if is_passed(self.passed, step):
            found = self._nothing()
            refused: str | None = PASSED_OVER
        else:
            found = self.gradient(parts)
            for hook in self.hooks:
                found = hook.after_backward(step, parts, found)
            refused = self.guard.refusal(found.loss, found.norm) if found.labels else NOTHING_LEFT
        lr = learning_rate(self.run.optim, step, self.run.steps)
        if refused:
            self._skip(refused, found)
        else:
            saver.wait_for_copy()
            self.replica.optimizer.step(lr)
            self.tokens += found.labels
        self.has_trained = not refused
        self.step += 1
        seconds = time.perf_counter() - started
        line = {"step": step, "loss": None if refused else found.loss, "lr": lr}
        line |= {"grad_norm": None if refused else found.norm, "tokens": self.tokens}
        line |= {"tokens_per_s": round(found.labels / seconds, 1)}
        line |= {"step_s": round(seconds, 4), "data_wait": round(waited / seconds, 4)}
        for hook in self.hooks:
            hook.after_step(step, line)
        if self.logs:
            self.logs.metrics.write(line)
        return found.stop

    def gradient(self, parts: Mapping[int, Batch]) -> Gradient:
        """Computes the gradient of this step; again, and by other ranks, where it is in doubt that it is right.

        Args:
            parts: this rank's microbatches by number.
        """
        if self.integrity.due(self.step):
            return self.integrity.agreed(self.step, self, parts)
        found = self.forward_backward(parts)
        refused = found.labels > 0 and self.guard.reason(found.loss, found.norm) is not None
        if not self.integrity.doubts(found, refused):
            return found
        return self.integrity.agreed(self.step, self, parts, found)

    def forward_backward(self, parts: Mapping[int, Batch]) -> Gradient:
        """Runs microbatches forward and backward, sums over ranks and clips."""
        loss, labels, stop = self.replica.forward_backward(parts)
        norm = self.replica.clip(self.run.optim.clip)
        self.integrity.check_weights(self.step)
        return Gradient(loss, norm, labels, stop)

    def parts_of(self, shift: int) -> Mapping[int, Batch]:
        """Returns the microbatches of another rank, so many places further in `replica.peers`, as it trains on them."""
        return self._before_step(self.batches.microbatches(self.step, self.replica.numbers_of(shift)))

    def _before_step(self, parts: Mapping[int, Batch]) -> Mapping[int, Batch]:
        for hook in self.hooks:
            parts = hook.before_step(self.step, parts)
        return parts

    def _before_checkpoint(self) -> None:
        for hook in self.hooks:
            hook.before_checkpoint(self.step)

    def _request_stop(self, number: int, frame: object) -> None:
        self.replica.stop_requested = True

    def _nothing(self) -> Gradient:
        """Returns the gradient of a step that is passed over: none, and whether any rank got a SIGTERM."""
        stop = torch.tensor([float(self.replica.stop_requested)], device=self.ranks.device)
        self.ranks.sum([stop])
        return Gradient(0.0, 0.0, 0, bool(stop > 0))

    def _skip(self, reason: str, found: Gradient) -> None:
        """Logs a step that is not taken, with the documents of its batch; model and optimizer stay as they are."""
        if self.logs:
            values = {"loss": str(found.loss), "grad_norm": str(found.norm)}
            log.warning("step %d skipped (%s): loss %s, gradient norm %s", self.step, reason, *values.values())
            slices = self.batches.slices(self.step)
            self.logs.skipped.write({"step": self.step, "reason": reason, **values, "slices": slices})
        self.guard.check_refused(self.step)

    def _roll_back(self, saver: Saver) -> None:
        """Goes back to a checkpoint before the refused steps and passes over all since; without one goes on."""
        saver.wait()
        root, first, until = self.out / "checkpoints", self.step - ROLL_BACK_AFTER, self.step
        committed = max((step for step in self.run.milestone_steps if step <= until), default=0)
        found = rollback_target(root, first, committed, self.passed) if self.ranks.rank == 0 else None
        state = json.loads(self.ranks.broadcast_text(json.dumps(found)))
        if not state:
            return
        self._load(root, state)
        self.passed.append((self.step, until))
        if self.ranks.local_rank == 0:
            drop_after(root, self.step)
        self.ranks.barrier()
        if self.logs:
            self.logs = Logs.at(self.out, self.step)
        what = f"{ROLL_BACK_AFTER} steps refused in a row from step {first}; back to step {self.step}"
        do = "see the documents in skipped.jsonl; if it recurs lower optim.lr"
        self.faults.report(ROLLBACK, first, f"{what}, steps up to {until - 1} are passed over", do)

    def _checkpoint_due(self) -> bool:
        """Whether to save: at milestones, and now and then where the last step has changed the weights."""
        now_and_then = self.step % self.run.checkpoint_every == 0 and self.has_trained
        return now_and_then or self.step in self.run.milestone_steps

    def _saver(self) -> Saver:
        root, run = self.out / "checkpoints", self.run
        return Saver(root, self.replica, self.ranks, run.keep_checkpoints, run.milestone_steps, self.spec.keep_every)

    def _save(self, saver: Saver) -> None:
        self.integrity.check_state(self.step)
        if self.logs:
            self.logs.sync()
        saver.save(self.step, self._state())

    def _state(self) -> dict[str, Any]:
        withheld = self.withheld.state()
        return {
            **({"withheld": withheld} if withheld else {}),
            **({"passed": self.passed} if self.passed else {}),
            "steps_taken": self.replica.optimizer.steps_taken,
            "tokens": self.tokens,
            "guard": self.guard.state(),
            "samples": self.step * self.run.batch_size,
            "run": self._identity(),
        }

    def _identity(self) -> dict[str, Any]:
        """Everything that determines the result; must be equal for a run to resume from a checkpoint."""
        initial = {"initial": self.spec.initial.sha256} if self.spec.initial else {}
        mixture = {"weights": self.spec.weights, "plan": self.batches.identity}
        return {"config": self.run.model_dump(mode="json"), **mixture, **initial}

    def _resume(self) -> list[dict[str, Any]]:
        """Loads the newest checkpoint of rank 0 on all ranks; other nodes may have none on their disk, or another.

        Returns:
            the marks of withheld documents in its state.
        """
        root = self.out / "checkpoints"
        newest = checkpoint.newest_good(root, self.faults.damaged) if self.ranks.rank == 0 else None
        own = json.dumps([self._identity(), newest and newest[1]])
        identity, state = json.loads(self.ranks.broadcast_text(own))
        if identity != self._identity():
            raise InputError(
                f"rank {self.ranks.rank} has other settings or inputs than rank 0",
                "start all nodes with the same recipe and version",
            )
        if state and state["run"] != self._identity():
            raise InputError(
                f"{self.out} holds checkpoints of another run",
                "give this run an empty folder, or delete that one",
            )
        if state:
            self._load(root, state)
            self.passed = [(first, end) for first, end in state.get("passed", ())]
            log.info("resumed at step %d of %d", self.step, self.run.steps)
        elif self.spec.initial and not self.spec.tuning:
            load_initial(self.replica.load_weights, self.spec.initial)
        return list(state.get("withheld", ())) if state else []

    def _load(self, root: Path, state: Mapping[str, Any]) -> None:
        """Loads the checkpoint of a state on all ranks; what the run withholds and passes over stays."""
        here = root / checkpoint.name_of(state["step"])
        self.replica.read(here if here.exists() else None)
        self.replica.optimizer.steps_taken = state["steps_taken"]
        self.step, self.tokens, self.guard = state["step"], state["tokens"], LossGuard(**state["guard"])
