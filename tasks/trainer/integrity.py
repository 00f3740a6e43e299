"""Silent corruption: ranks that compute or keep something else than the others, found by hashes and named.

Ranks with copies of the same weights exchange a hash of theirs at every step, in the sum that the step takes anyway,
and of all their state before a checkpoint. Where they differ the run cannot know who is right: it ends, so that all
ranks begin again with the newest checkpoint, and names the rank when it has repeated the step (`suspects`). A rank's
share of a gradient has no copy: where loss or norm look wrong, and for some steps without a reason, it is computed
again and must have equal bits. Both need the bits of a step to be equal when it is repeated.

Silent errors of this kind are a matter of fact in large fleets: Dixit et al. 2021, arXiv 2102.11245.
"""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Protocol

import torch
from torch import Tensor

from tasks.core.errors import TransientError
from tasks.trainer.faults import CORRUPTION, Faults
from tasks.trainer.ranks import Ranks
from tasks.trainer.self_test import failed_self_test, minority, named
from tasks.trainer.suspects import Suspects

FAR = 10.0
"""A norm that is so many times the median of the norms before is computed again."""
RECENT, SOME = 64, 8
"""Norms that are compared with, at most and at least."""
EVERY = 200
"""Every so many steps a gradient is computed twice without a reason."""
ATTEMPTS = 3
"""Computations after which a rank's share of a gradient must have been equal twice in a row."""
_DO = "take the node of this rank out of the pool and test its hardware if it is named again"


class Replica(Protocol):
    """A model with copies on several ranks."""

    hashes: list[float]
    """Of each rank's weights when it began the last gradient; [] where no rank has a copy of another's."""
    replica_size: int
    """Ranks r and r + replica_size have copies of the same."""
    share: int | None
    """Hash of what this rank added to the last gradient; None where its bits are not equal when it is repeated."""

    def state_hash(self) -> Tensor:
        """Returns the hash of weights and optimizer state, int64 scalar."""


Gradient = tuple[float, float, int, bool]
"""Loss, gradient norm, labels, and whether any rank got a SIGTERM."""


class Integrity:
    """Checks the ranks of a run; every rank does the same at the same time.

    Args:
        out: folder of the run.
        ranks: the process group.
        replica: the model.
        faults: where corrupt ranks are named.
        device: name of this rank's kind of device.

    Attributes:
        names: "rank 3 on node-7" for every rank, in their order.

    Raises:
        TransientError: a rank fails the self-test.
    """

    def __init__(self, out: Path, ranks: Ranks, replica: Replica, faults: Faults, device: str) -> None:
        self._ranks, self._replica, self._faults, self._device = ranks, replica, faults, device
        self.names = named(ranks)
        self._suspects = Suspects(out, ranks)
        self._norms: deque[float] = deque(maxlen=RECENT)
        if failed := failed_self_test(ranks, device):
            self._end(0, f"{self._listed(failed)} fails the self-test")

    def check_weights(self, step: int) -> None:
        """Compares the weights with which a step began, as its gradient has exchanged them.

        Raises:
            TransientError: they are not equal; names the rank if it can.
        """
        if self._replica.hashes:
            self._compare(step, "weights", self._replica.hashes)

    def check_state(self, step: int) -> None:
        """Compares all state, before it is saved as that after `step` steps; raises as `check_weights`."""
        if self._ranks.world <= self._replica.replica_size:
            return
        hashes = torch.zeros(self._ranks.world, dtype=torch.float64, device=self._ranks.device)
        hashes[self._ranks.rank] = self._replica.state_hash().double()
        self._ranks.sum([hashes])
        self._compare(step, "state", hashes.tolist())

    def gradient(self, step: int, compute: Callable[[], Gradient], refused: Callable[[Gradient], bool]) -> Gradient:
        """Returns the gradient of a step, computed until two results agree where there is a suspicion.

        Args:
            step: 0-based.
            compute: computes it on all ranks.
            refused: whether the guard would refuse it.

        Raises:
            TransientError: a rank does not compute the same twice.
        """
        found = compute()
        if self._replica.share is None or not self._suspicious(step, found[1], refused(found)):
            return found
        corrupt: list[int] = []
        for _ in range(ATTEMPTS):
            before, stop = self._replica.share, found[3]
            loss, norm, count, stopped = compute()
            found = (loss, norm, count, stop or stopped)
            differs = torch.zeros(self._ranks.world, dtype=torch.float64, device=self._ranks.device)
            differs[self._ranks.rank] = float(before != self._replica.share)
            self._ranks.sum([differs])
            if not differs.any():
                return found
            corrupt = differs.nonzero().flatten().tolist()
            self._report(step, f"{self._listed(corrupt)} computed two gradients from the same batch")
        return self._end(step, f"{self._listed(corrupt)} does not compute the same gradient twice")

    def _suspicious(self, step: int, norm: float, refused: bool) -> bool:
        far = len(self._norms) >= SOME and norm > FAR * median(self._norms)
        if not refused and not far:
            self._norms.append(norm)
        return refused or far or step % EVERY == EVERY - 1

    def _compare(self, step: int, what: str, hashes: Sequence[float]) -> None:
        size = self._replica.replica_size
        groups = [{rank: hashes[rank] for rank in range(first, len(hashes), size)} for first in range(size)]
        corrupt = sorted(rank for group in groups for rank in minority(group))
        if not corrupt:
            for name in self._suspects.of(step, what, hashes):
                self._report(step, f"{name} had other {what} than when the step was repeated")
            return
        self._suspects.keep(step, what, hashes, self.names)
        failed = failed_self_test(self._ranks, self._device)
        test = f"; {self._listed(failed)} fails the self-test" if failed else ""
        self._end(step, f"{self._listed(corrupt)}: {what} not equal to those of the other replicas{test}")

    def _end(self, step: int, what: str) -> Gradient:
        self._report(step, what)
        raise TransientError(
            f"silent corruption at step {step}: {what}", "all ranks begin again with the newest checkpoint"
        )

    def _report(self, step: int, what: str) -> None:
        self._faults.report(CORRUPTION, step, what, _DO)

    def _listed(self, corrupt: Sequence[int]) -> str:
        return " or ".join(self.names[rank] for rank in corrupt)
