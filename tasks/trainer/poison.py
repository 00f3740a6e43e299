"""Poisoned documents: which documents of a refused batch have spoilt it.

A refused step has not changed the weights, so the loss of each document of its batch is computed again with them,
without any other document in its sequence, and without a gradient. Guilty is what is not finite, and then, from the
largest excess over the mean loss down, what must go for the rest of the batch to be within the bound. Where that is
more than half of the batch, or the step is bad without them too, it is not the documents: the weights are, or the
hardware.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.formats.tokens.plan import Slices
from tasks.trainer.data.batches import Batch, StepData
from tasks.trainer.data.withheld import hide
from tasks.trainer.parallel.ranks import Ranks

LARGEST_SHARE = 0.5
"""Share of the labels of a batch that may be found guilty."""


class Prober(Protocol):
    """A model that can compute the loss of some sequences on one rank of several that share a sequence, or alone."""

    numbers: range

    def probe(self, parts: Sequence[Batch]) -> NDArray[np.float64]:
        """Returns the summed loss of each part as far as it is this rank's to count, shape (parts,), without gradients.

        All ranks call this with equally many parts.
        """


@dataclass(frozen=True)
class Slice:
    """A slice of a document in a batch."""

    shard: str
    row: int
    labels: int
    loss: float


def slices_with_losses(
    prober: Prober, batches: StepData, ranks: Ranks, step: int, parts: Mapping[int, Batch]
) -> list[Slice]:
    """Returns the slices of a step's batch with their losses, equal on all ranks.

    Args:
        prober: the model.
        batches: the batches of the run.
        ranks: the process group.
        step: 0-based.
        parts: this rank's microbatches of the step, without withheld documents.
    """
    count = batches.batch_size // batches.microbatch
    slices = {number: batches.slices_of(step, number) for number in range(count)}
    sizes = {number: sum(map(len, several)) for number, several in slices.items()}
    mine = [part for number in prober.numbers for part in _alone(parts[number], slices[number], batches.eos_id)]
    shares = count // len(prober.numbers)
    most = max(sum(sizes[number] for number in range(first, count, shares)) for first in range(shares))
    losses = prober.probe([*mine, *[mine[0]] * (most - len(mine))])
    whole = torch.zeros((2, sum(sizes.values())), dtype=torch.float64, device=ranks.device)
    begins = {number: sum(sizes[before] for before in range(number)) for number in range(count)}
    at = [begins[number] + index for number in prober.numbers for index in range(sizes[number])]
    whole[0, at] = torch.from_numpy(losses[: len(mine)]).to(ranks.device)
    whole[1, at] = torch.tensor([float((part.labels >= 0).sum()) for part in mine], dtype=torch.float64).to(
        ranks.device
    )
    ranks.sum([whole])
    # Ranks that share a sequence count its labels once each.
    repeated = ranks.world // shares
    places = [(shard, row) for several in slices.values() for one in several for shard, row in _places(one)]
    return [
        Slice(batches.plan.shards[shard], row, int(labels) // repeated, loss)
        for (shard, row), loss, labels in zip(places, *whole.tolist(), strict=True)
    ]


def guilty(slices: Sequence[Slice], mean: float, bound: float) -> dict[str, list[int]]:
    """Returns the ascending rows of the guilty documents by shard; {} where it is not the documents.

    Args:
        slices: of the batch, with their losses.
        mean: loss of the steps before, nats per token; any number where the bound is infinite.
        bound: the largest mean loss of a batch that is not refused.

    >>> slices = [Slice("s", 1, 50, 100.0), Slice("s", 4, 10, 90.0), Slice("s", 2, 60, 120.0)]
    >>> guilty(slices, 2.0, 2.2)
    {'s': [4]}
    """
    left = [one for one in slices if np.isfinite(one.loss)]
    found = [one for one in slices if not np.isfinite(one.loss)]
    left.sort(key=lambda one: one.loss - mean * one.labels)
    loss, labels = sum(one.loss for one in left), sum(one.labels for one in left)
    while left and labels and loss / labels > bound:
        worst = left.pop()
        found.append(worst)
        loss, labels = loss - worst.loss, labels - worst.labels
    if sum(one.labels for one in found) > LARGEST_SHARE * sum(one.labels for one in slices):
        return {}
    rows: dict[str, set[int]] = {}
    for one in found:
        rows.setdefault(one.shard, set()).add(one.row)
    return {shard: sorted(rows[shard]) for shard in sorted(rows)}


def described(step: int, reason: str, rows: Mapping[str, Sequence[int]], shards: Sequence[str] = ()) -> tuple[str, str]:
    """Returns what was found, and what to do about it."""
    count = sum(map(len, rows.values()))
    places = ", ".join(f"{shard} row {', '.join(map(str, found))}" for shard, found in rows.items())
    whole = f"; and all of {', '.join(shards)}, whose documents have spoilt steps before" if shards else ""
    return (
        f"{reason}: {count} document{'s' * (count > 1)} blank from here on: {places}{whole}",
        f"see them with `trace step:{step}`; if they are of one shard or site, find out how they came in",
    )


def _places(slices: Slices) -> list[tuple[int, int]]:
    return [(shard, row) for shard, row in slices[["shard", "row"]].tolist()]


def _alone(part: Batch, slices: Sequence[Slices], eos_id: int) -> Iterator[Batch]:
    """Yields for each slice its sequence without all other slices."""
    for row, found in enumerate(slices):
        tensors = (part.tokens, part.labels, part.documents)
        tokens, labels, documents = (tensor[row : row + 1].numpy() for tensor in tensors)
        sequence = Batch.of(tokens, labels, documents)
        for index in range(len(found)):
            yield hide(sequence, [found], [np.arange(len(found)) != index], eos_id)
