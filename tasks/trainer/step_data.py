"""What the loop needs of the data of a run: the batch of a step, and what is in it."""

from collections.abc import Sequence
from typing import Any, Protocol

from tasks.formats.tokens.plan import Slices
from tasks.trainer.config import TrainSpec
from tasks.trainer.data.batches import Batch, Batches


class Named(Protocol):
    """Names of the files whose numbers are in slices."""

    @property
    def shards(self) -> Sequence[str]:
        """The names, by number."""


class StepData(Protocol):
    """Batches as a function of the step, of a pretraining (`batches`) or a fine-tuning (`tuning.examples`)."""

    vocab_size: int
    eos_id: int
    seq_len: int
    batch_size: int
    microbatch: int
    identity: str
    """Sha256 of all that determines the batches, beside the settings of the loop."""

    @property
    def plan(self) -> Named:
        """Names the files."""

    def close(self) -> None:
        """Ends the threads that fetch."""

    def microbatches(self, step: int, numbers: Sequence[int]) -> dict[int, Batch]:
        """Returns some microbatches of a step by number: of m microbatches, number n has the sequences n, n + m, .."""

    def slices_of(self, step: int, number: int) -> list[Slices]:
        """Returns the slices of each sequence of a microbatch."""

    def documents(self, step: int) -> set[tuple[str, int]]:
        """Returns (file, row) of what a step's batch has tokens of."""

    def slices(self, step: int) -> list[dict[str, Any]]:
        """Returns what a step's batch is made of, for a log."""


def open_data(spec: TrainSpec) -> StepData:
    """Opens the data of a run; raises InputError where it is missing, empty or damaged."""
    if spec.tuning is None:
        return Batches(spec)
    from tasks.trainer.tuning.examples import ExampleBatches  # imports pyarrow.ipc, which a pretraining does without

    return ExampleBatches(spec)
