"""A replica of the model of a run, as one rank holds it: what loop, checkpoints, integrity and evaluation use.

`Replicated` holds the whole model, `Sharded` this rank's share of it in a layout.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.trainer.checkpoints.checkpoint import Box
from tasks.trainer.data.batches import Batch
from tasks.trainer.model.experts import Loads
from tasks.trainer.model.transformer import Transformer
from tasks.trainer.optim import Optimizer
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.place import Layout

BITS = 52
"""Bits of a hash, an integer that float64 represents exactly."""
GPU_TOLERANCE = 0.01
"""Allowed relative difference of two norms of the same gradient on a GPU, where the order of sums is not fixed."""


@dataclass(frozen=True)
class RankCopies:
    """State that several ranks have copies of."""

    name: str
    """The part of the state: "" for all of it, or "norms"."""
    holders: str
    """The ranks with copies, in words, plural."""
    groups: Sequence[Sequence[int]]
    """Groups of ranks with equal copies; each rank is in one group."""

    def of(self, what: str) -> str:
        """Returns a description of the weights or the state of these copies.

        >>> RankCopies("norms", "ranks", [[0, 1]]).of("state"), RankCopies("", "replicas", [[0, 1]]).of("state")
        ('state of norms', 'state')
        """
        return f"{what} of {self.name}" if self.name else what

    def differing(self, hashes: Sequence[float]) -> list[int]:
        """Returns the ranks whose hash differs from the majority of their group; all of a group without a majority.

        >>> RankCopies("", "replicas", [[0, 2], [1, 3]]).differing([5.0, 7.0, 5.0, 8.0])
        [1, 3]
        """
        return sorted(rank for group in self.groups for rank in minority({member: hashes[member] for member in group}))


class Replica(Protocol):
    """Model and optimizer of a run on one rank; all ranks call the methods that compute or load at the same time."""

    ranks: Ranks
    """The process group."""
    optimizer: Optimizer
    """Of this rank's parameters."""
    loads: Loads
    """Of the experts in the last gradient."""
    numbers: range
    """The numbers of the microbatches of a step that this rank computes."""
    stop_requested: bool
    """Whether this rank has received SIGTERM; the next gradient computation shares it with all ranks."""
    peers: list[int]
    """The ranks that compute the same as this rank for other microbatches, including itself."""
    copies: list[RankCopies]
    """The state that this rank has copies of."""
    hashes: list[list[float]]
    """For each of `copies`, the hash of every rank's weights at the start of the last gradient."""
    share: float | None
    """Fingerprint of this rank's contribution to the last gradient; None: not computed."""
    share_tolerance: float
    """Allowed relative difference of two fingerprints of the same contribution; 0: they are bit-identical."""
    z_loss: float
    """Mean z-loss of the last gradient, in nats per token; 0 without `run.z_loss`."""
    timed: str
    """What is timed on each rank, a key of `pace.LEAST_S`."""
    seconds: list[float]
    """Its duration on each rank with the last gradient, in seconds; [] if it was not timed."""

    @property
    def chunks(self) -> Sequence[Transformer]:
        """This rank's chunks of the model; one without a pipeline."""

    @property
    def layout(self) -> Layout | None:
        """How ranks share the work; None: every rank has the whole model."""

    def initialize(self) -> None:
        """Sets the random initial weights."""

    def load_weights(self, file: Path) -> None:
        """Loads weights from a safetensors file, which every rank must be able to read if the model is sharded."""

    def numbers_of(self, shift: int) -> range:
        """Returns the numbers of the microbatches of the rank `shift` positions later in `peers`."""

    def forward_backward(self, parts: Mapping[int, Batch], compared: bool = False) -> tuple[float, int, bool]:
        """Computes the gradient of the whole batch into the `.grad` of the parameters, for `clip` and the optimizer.

        Args:
            parts: microbatches by number; those of `numbers`, or those of another rank to check it.
            compared: whether `share` will be compared. If not, it is computed only where this costs one pass over a
                gradient that is there anyway.

        Returns:
            Mean loss in nats per token, number of tokens with a label, and whether any rank received SIGTERM. Also sets
            `hashes`, `seconds` and `share`.
        """

    def clip(self, limit: float) -> float:
        """Limits the Euclidean norm of the mean gradient over all ranks to `limit`; returns the norm before."""

    def probe(self, parts: Sequence[Batch]) -> NDArray[np.float64]:
        """Returns this rank's contribution to the summed loss of each part, shape (parts,), without gradients.

        All ranks call this with the same number of parts.
        """

    def terms(self, part: Batch) -> int:
        """Returns the number of terms in the loss of a whole part on the CPU: labels, or pairs of preferences."""

    def state_hashes(self) -> list[Tensor]:
        """Returns the hash of weights and optimizer state for each of `copies`, int64 scalars."""

    def stage(self) -> Any:
        """Returns a copy of the state in CPU memory; the next call overwrites it."""

    def write(self, staged: Any, folder: Path) -> dict[str, str]:
        """Writes the result of `stage`; returns the SHA-256 of this rank's files by name. Has no barrier at its end."""

    def boxes(self) -> Mapping[str, Box] | None:
        """Returns which part of each tensor this rank reads from files, by name; None: all files."""

    def read(self, folder: Path) -> None:
        """Loads a checkpoint, from which files that this rank does not need may be missing."""


def hash_of(tensors: Iterable[Tensor]) -> Tensor:
    """Returns the sum of the words of tensors modulo 2**BITS, int64 scalar; any single bit flip changes it.

    Words are 4 bytes, or single bytes for tensors with elements of another size.
    """
    sums = []
    for tensor in tensors:
        words = torch.int32 if tensor.element_size() == 4 else torch.uint8
        sums.append(tensor.detach().reshape(-1).view(words).sum(dtype=torch.int64))
    return torch.stack(sums).sum().bitwise_and(2**BITS - 1)


def minority(hashes: Mapping[int, float]) -> list[int]:
    """Returns the ranks whose hash differs from the majority; all ranks if no hash has a majority.

    >>> minority({0: 7.0, 1: 7.0, 2: 9.0}), minority({0: 1.0, 1: 2.0}), minority({0: 1.0, 1: 1.0})
    ([2], [0, 1], [])
    """
    most_common, count = Counter(hashes.values()).most_common(1)[0]
    if 2 * count <= len(hashes):
        return sorted(hashes)
    return sorted(rank for rank, value in hashes.items() if value != most_common)
