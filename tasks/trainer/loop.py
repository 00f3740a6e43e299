"""The training loop of one rank.

Reads the shards and the plan that the spec names; rank 0 writes `checkpoints/`, `metrics.jsonl` and `skipped.jsonl`
under the spec's `out` folder. A restart resumes from the newest checkpoint that verifies and, on a CPU, gives the same
bytes as an uninterrupted run.
"""

import contextlib
import json
import logging
import signal
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.core.errors import InputError
from tasks.trainer import checkpoint
from tasks.trainer.batches import Batch, Batches
from tasks.trainer.config import TrainSpec
from tasks.trainer.guard import Guard
from tasks.trainer.loader import Loader
from tasks.trainer.loss import IGNORED
from tasks.trainer.metrics import Logs
from tasks.trainer.model import Transformer, build, parameter_counts
from tasks.trainer.optim import AdamW, clip, learning_rate
from tasks.trainer.ranks import Ranks, tree_sum
from tasks.trainer.withheld import REASON, Withheld

log = logging.getLogger(__name__)


class Stopped(Exception):
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
        self.batches = Batches(spec)
        self.model: Transformer = build(self.run.model, self.batches.vocab_size, self.run.init_seed).to(ranks.device)
        self.optimizer = AdamW(dict(self.model.named_parameters()), self.run.optim)
        self.gradient = _flat_gradient(self.model)
        self.step, self.tokens, self.guard = 0, 0, Guard()
        self.stop_requested = False
        self.logs: Logs | None = None
        microbatches = self.run.batch_size // self.run.microbatch
        if ranks.world > microbatches:
            raise InputError(
                f"{ranks.world} ranks cannot share {microbatches} microbatches a step",
                "use fewer ranks, a smaller microbatch or a larger batch_size",
            )
        self.numbers = range(microbatches)[ranks.rank :: ranks.world]
        self.withheld = Withheld(self.out, ranks, self._resume())
        if ranks.rank == 0:
            counts = parameter_counts(self.run.model, self.batches.vocab_size)
            log.info("%s parameters, %d steps, %d ranks", f"{counts['total']:,}", self.run.steps, ranks.world)

    def train(self) -> None:
        """Trains to the last step.

        Raises:
            Stopped: SIGTERM came; a checkpoint was saved.
            InputError: too many steps in a row were refused.
        """
        signal.signal(signal.SIGTERM, self._request_stop)
        self.logs = Logs.at(self.out, self.step) if self.ranks.rank == 0 else None
        if not self.step:
            self.withheld.look(0)
        with (
            contextlib.closing(self.batches),
            Loader(self.batches, self.numbers, self.run.steps, self.ranks.device) as loader,
        ):
            while self.step < self.run.steps:
                values, stop = self._train_step(loader)
                if self.logs:
                    self.logs.metrics.write(values)
                # Before the checkpoint, whose state has the mark: a resumed run does not look again.
                if self._checkpoint_due() and self.step < self.run.steps:
                    self.withheld.look(self.step)
                if stop or self._checkpoint_due():
                    self._save()
                if stop and self.step < self.run.steps:
                    raise Stopped(f"stopped on request after {self.step} of {self.run.steps} steps")

    def _request_stop(self, number: int, frame: object) -> None:
        self.stop_requested = True

    def _train_step(self, loader: Loader) -> tuple[dict[str, Any], bool]:
        """Trains on the batch of `self.step`; returns its metrics and whether any rank got a SIGTERM."""
        started = time.perf_counter()
        lr = learning_rate(self.run.optim, self.step, self.run.steps)
        parts = loader.microbatches(self.step)
        if self.withheld:
            parts = {number: self._blanked(number, part) for number, part in parts.items()}
        waited = time.perf_counter() - started
        loss, count, stop = self._accumulate(parts)
        norm = clip(self.gradient, self.run.optim.clip)
        refused = self.guard.refusal(loss, norm) if count else REASON
        if refused:
            self._skip(refused, loss, norm)
        else:
            self.optimizer.step(lr)
            self.tokens += count
        seconds = time.perf_counter() - started
        values = {"step": self.step, "loss": None if refused else loss, "lr": lr}
        values |= {"grad_norm": None if refused else norm, "tokens": self.tokens}
        values |= {"tokens_per_s": round(count / seconds, 1)}
        self.step += 1
        return values | {"step_s": round(seconds, 4), "data_wait": round(waited / seconds, 4)}, stop

    def _blanked(self, number: int, part: Batch) -> Batch:
        """Returns a microbatch of this step without what is withheld."""
        slices = self.batches.slices_of(self.step, number)
        return self.withheld.blank(part, slices, self.batches.plan, self.batches.eos_id)

    def _accumulate(self, parts: dict[int, Batch]) -> tuple[float, int, bool]:
        """Computes the mean gradient of the whole batch, of which this rank has `parts`, into `self.gradient`.

        Returns:
            Mean loss in nats per token, tokens with a label, and whether any rank got a SIGTERM.
        """

        def compute(number: int) -> list[Tensor]:
            return self._backward(parts[number])

        gradient, sums = tree_sum(self.numbers, compute)
        sums[2] = float(self.stop_requested)
        self.ranks.sum([gradient, sums])
        loss_sum, count, stop = sums.tolist()
        # Without a label, where all documents of the batch are withheld, there is no mean.
        self.gradient.copy_(gradient.div_(max(count, 1)))
        return loss_sum / max(count, 1), int(count), stop > 0

    def _backward(self, part: Batch) -> list[Tensor]:
        """Returns [summed gradient, (summed loss, tokens with a label, 0)] of one microbatch."""
        device = self.ranks.device
        given = (part.tokens, part.labels, part.documents)
        tokens, labels, documents = (tensor.to(device, non_blocking=True) for tensor in given)
        self.gradient.zero_()
        with self._autocast():
            loss = self.model.loss(tokens, documents, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        count = (labels != IGNORED).sum()
        sums = torch.stack((loss.detach().double(), count.double(), torch.zeros_like(count, dtype=torch.float64)))
        return [self.gradient, sums]

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.run.precision == "bf16")

    def _skip(self, reason: str, loss: float, norm: float) -> None:
        """Logs a step that is not taken, with the documents of its batch; model and optimizer stay as they are."""
        if self.logs:
            log.warning("step %d skipped (%s): loss %s, gradient norm %s", self.step, reason, loss, norm)
            line = {"step": self.step, "reason": reason, "loss": str(loss), "grad_norm": str(norm)}
            self.logs.skipped.write(line | {"slices": self.batches.slices(self.step)})
        self.guard.check_refused(self.step)

    def _checkpoint_due(self) -> bool:
        return self.step % self.run.checkpoint_every == 0 or self.step in self.run.milestone_steps

    def _save(self) -> None:
        if self.logs:
            self.logs.sync()
            root = self.out / "checkpoints"
            checkpoint.save(root, self.step, self.model.state_dict(), self.optimizer.state(), self._state())
            checkpoint.prune(root, self.run.keep_checkpoints, self.run.milestone_steps)
        # The other ranks wait: a stop must not end them, and with them the agent, before the file is written.
        self.ranks.barrier()

    def _state(self) -> dict[str, Any]:
        withheld = self.withheld.state()
        return {
            **({"withheld": withheld} if withheld else {}),
            "steps_taken": self.optimizer.steps_taken,
            "tokens": self.tokens,
            "guard": self.guard.state(),
            "samples": self.step * self.run.batch_size,
            "run": self._identity(),
        }

    def _identity(self) -> dict[str, Any]:
        """Everything that determines the result; must be equal for a run to resume from a checkpoint."""
        return {"config": self.run.model_dump(mode="json"), "weights": self.spec.weights, "plan": self.batches.identity}

    def _resume(self) -> list[dict[str, Any]]:
        """Loads the newest checkpoint of rank 0 on all ranks; other nodes may have none on their disk, or another.

        Returns:
            the marks of withheld documents in its state.
        """
        newest = checkpoint.newest_good(self.out / "checkpoints") if self.ranks.rank == 0 else None
        identity, state = json.loads(self.ranks.broadcast_text(json.dumps([self._identity(), newest and newest.state])))
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
        if newest:
            self.model.load_state_dict(newest.model)
            self.optimizer.load(newest.optimizer, newest.state["steps_taken"])
        self.ranks.copy(self.model.state_dict().values())
        self.ranks.copy(self.optimizer.state().values())
        if state:
            self.optimizer.steps_taken = state["steps_taken"]
            self.step, self.tokens, self.guard = state["step"], state["tokens"], Guard(**state["guard"])
            log.info("resumed at step %d of %d", self.step, self.run.steps)
        return list(state.get("withheld", ())) if state else []


def _flat_gradient(model: Transformer) -> Tensor:
    """Returns one fp32 vector of which every parameter's `.grad` is a view: one tensor to sum over ranks."""
    params = list(model.parameters())
    flat = torch.zeros(sum(p.numel() for p in params), dtype=torch.float32, device=params[0].device)
    offset = 0
    for param in params:
        param.grad = flat[offset : offset + param.numel()].view_as(param)
        offset += param.numel()
    return flat
