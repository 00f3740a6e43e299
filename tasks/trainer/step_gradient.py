"""The gradient of a step: checked for silent corruption, and without the documents that spoil it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.trainer.data.batches import Batch, StepData
from tasks.trainer.data.withheld import Withheld, described, guilty, slices_with_losses, spoilt_shards
from tasks.trainer.integrity.corruption import Gradient, Integrity
from tasks.trainer.integrity.guard import Guard
from tasks.trainer.logs import POISON, Faults
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replicated import Replicated

if TYPE_CHECKING:
    from tasks.trainer.parallel.sharded import Sharded  # imports torch._dynamo: 1.5 CPU-seconds


@dataclass(frozen=True)
class StepGradient:
    """Computes the gradients of a run, on one rank; every rank calls this at the same time."""

    replica: "Replicated | Sharded"
    batches: StepData
    ranks: Ranks
    integrity: Integrity
    withheld: Withheld
    faults: Faults
    stop: Callable[[], bool]
    """Whether this rank has got a SIGTERM."""

    def of(self, step: int, parts: Mapping[int, Batch], guard: Guard) -> Gradient:
        """Computes the clipped gradient of a step, withholding the documents that spoil it.

        Args:
            step: 0-based.
            parts: this rank's microbatches of it, without withheld documents.
            guard: decides whether the gradient is refused; it is left as it is.

        Raises:
            TransientError: a rank computes or keeps something else than it should.
        """
        found = self._checked(step, parts, guard)
        loss, norm, count, stop = found
        reason = guard.reason(loss, norm) if count else None
        if not reason:
            return found
        slices = slices_with_losses(self.replica, self.batches, self.ranks, step, parts)
        rows = guilty(slices, guard.mean, guard.bound)
        if not rows:
            return found
        shards = spoilt_shards(self.withheld.marks, rows, step, self.batches)
        self.withheld.poisoned(step, reason, rows, shards)
        rest = self._checked(step, self.blanked(step, parts), guard)
        if guard.reason(*rest[:2]):
            self.withheld.withdraw()
            return found
        self.faults.report(POISON, step, *described(step, reason, rows, shards))
        return (*rest[:3], stop or rest[3])

    def blanked(self, step: int, parts: Mapping[int, Batch]) -> Mapping[int, Batch]:
        """Returns microbatches of a step without what is withheld."""
        if not self.withheld:
            return parts
        plan, eos_id = self.batches.plan, self.batches.eos_id
        return {
            number: self.withheld.blank(part, self.batches.slices_of(step, number), plan, eos_id)
            for number, part in parts.items()
        }

    def _checked(self, step: int, parts: Mapping[int, Batch], guard: Guard) -> Gradient:
        def compute(shift: int) -> Gradient:
            mine = self._parts_of(step, shift) if shift else parts
            loss, count, stop = self.replica.gradient(mine, self.stop)
            norm = self.replica.clip(self.replica.run.optim.clip)
            self.integrity.check_weights(step)
            return loss, norm, count, stop

        def refused(found: Gradient) -> bool:
            return bool(found[2] and guard.reason(found[0], found[1]))

        return self.integrity.gradient(step, compute, refused)

    def _parts_of(self, step: int, shift: int) -> Mapping[int, Batch]:
        """Returns the microbatches of another rank, without withheld documents."""
        return self.blanked(step, self.batches.microbatches(step, self.replica.numbers_of(shift)))
