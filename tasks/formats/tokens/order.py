"""The order in which sequences are read: a function of (sequences, weights, batch sizes, seed), and its inverse.

Nothing is stored and there is no state between steps. Steps can be computed in any order, any number of ranks reads the
same batches, and a resumed run reads exactly the batches that the killed run would have read.

The order is composed of invertible maps:

    step, k  ->  slot n, the sequences of all earlier steps and k         (`batch_size` each, fewer in a warm-up)
    slot n   ->  the i-th draw from source s                              (schedule: periodic, Tijdeman 1980)
    i-th draw from source s          ->  epoch i // N, sequence perm(i % N)  (keyed, per source and epoch: `shuffle`)

The sequences of a step are then given to its slots so that the same slots read the same blocks of neighbors from step
to step, whatever the number of ranks (`_lanes`): each block is fetched by one rank, or by few.

The schedule has a period of at most 100,000 slots (weights are multiples of 1/100,000, see `mixture`), so it is
computed once, in 0.2 s at most, and every query is one table lookup or one binary search. The permutation needs
constant memory.

A run may have two stages, the second (anneal) with other weights. Each stage has its own schedule, so the shares are
exact within each. The draws of a source continue across the boundary, so that no sequence repeats before the source's
epoch ends. While the batch grows (`ramp`), steps have fewer slots; which sequence a slot has does not depend on it.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import InputError
from tasks.formats.tokens.mixture import GRID, Anneal, resolve
from tasks.formats.tokens.shuffle import Permutation, Permutations, Windows

VERSION = 2
"""Of the function: a run with another one reads other sequences."""
_BLOCK_SLOTS = 4096
"""Slots whose sequences are computed together: to permute 4,096 values takes about twice as long as 64."""
_BLOCKS = 4
"""Blocks that an order keeps: threads prepare batches some steps ahead of the step that is trained."""


@dataclass(frozen=True)
class _Stage:
    """Slots from `first` on with the same weights, and the draws of each source in all earlier slots."""

    first: int
    schedule: "_Schedule"
    before: NDArray[np.int64]

    def draws(self, slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns (source index, number of earlier draws of that source) for slots of this stage, shape (k,) each."""
        sources, draw = self.schedule.draws(slots - self.first)
        return sources, self.before[sources] + draw

    def count(self, index: int, slots: int) -> int:
        """Returns the draws of a source in the first `slots` slots of the run, as if this stage had no end."""
        return int(self.before[index]) + self.schedule.count(index, slots - self.first)

    def slot(self, index: int, draw: int) -> int:
        """Returns the slot of a source's draw number `draw`: the inverse of `draws`."""
        return self.first + self.schedule.slot(index, draw - int(self.before[index]))


@dataclass(frozen=True)
class _Span:
    """Steps from `step` on, and slots from `slot` on, with the same batch size."""

    step: int
    slot: int
    size: int
    """Sequences of a step."""

    @property
    def block_steps(self) -> int:
        """Steps whose sequences are computed together."""
        return max(1, _BLOCK_SLOTS // self.size)

    @cached_property
    def lanes(self) -> NDArray[np.int64]:
        """The slots of a step in the order of their reversed bits, shape (size,)."""
        return np.argsort(_reversed(np.arange(self.size)), kind="stable")


class Order:
    """The sequences of every step.

    Rank `rank` of a world of size w reads the slots `batch(step)[rank::w]`.

    Args:
        sequences: number of sequences of each source in the plan.
        weights: share of each source; sums to 1. A source of weight 0 may be missing from `sequences`.
        batch_size: sequences per step, over all ranks; with `ramp`, of the steps after it.
        seed: selects the permutations; it does not change the shares.
        anneal: other weights from one step on.
        windows: the sequences that are read in the same part of an epoch.
        ramp: (steps, sequences per step) of the stages of batch-size warm-up.

    Raises:
        ValueError: weights do not sum to 1, or the batch is empty.
        InputError: a source with a weight has no sequence.
    """

    def __init__(
        self,
        sequences: dict[str, int],
        weights: dict[str, float],
        batch_size: int,
        seed: int,
        anneal: Anneal | None,
        windows: Windows,
        ramp: Sequence[tuple[int, int]] = (),
    ) -> None:
        sizes = [size for _, size in ramp] + [batch_size]
        if min(sizes) < 1:
            raise ValueError(f"a batch holds at least 1 sequence, not {min(sizes)}")
        self._spans = [_Span(0, 0, sizes[0])]
        for (steps, size), following in zip(ramp, sizes[1:], strict=True):
            last = self._spans[-1]
            self._spans.append(_Span(last.step + steps, last.slot + steps * size, following))
        parts = [resolve(weights), *([resolve(anneal.weights)] if anneal else [])]
        self._sources = tuple(sorted({source for stage in parts for source, amount in stage.items() if amount}))
        for source in self._sources:
            if sequences.get(source, 0) < 1:
                raise InputError(
                    f'the source "{source}" has a weight but no sequence to read',
                    "set its weight to 0, give it more text, or pack shorter sequences",
                )
        self.batch_size = batch_size
        self.seed = seed
        self.anneal = anneal
        self.windows = windows
        self.sequences = {source: sequences[source] for source in self._sources}
        self.weights = {source: parts[0].get(source, 0) / GRID for source in self._sources}
        amounts = [tuple(stage.get(source, 0) for source in self._sources) for stage in parts]
        broad = _Stage(0, _Schedule.of(amounts[0]), np.zeros(len(self._sources), dtype=np.int64))
        self._stages = [broad]
        self._block = lru_cache(maxsize=_BLOCKS)(self._compute_block)
        self._permutation = lru_cache(maxsize=256)(Permutation)
        if anneal:
            first = self.slots_before(anneal.from_step)
            before = [broad.count(index, first) for index in range(len(self._sources))]
            self._stages.append(_Stage(first, _Schedule.of(amounts[1]), np.array(before, dtype=np.int64)))

    @classmethod
    def of_run(cls, run: Mapping[str, Any]) -> "Order":
        """Returns the order of a run from the content of its `run.json`; raises InputError if it had another one."""
        if run["order"] != VERSION:
            raise InputError(
                f"the run read its sequences in order {run['order']}, and this Sluice knows order {VERSION}",
                "trace it with the Sluice that trained it",
            )
        anneal = Anneal.model_validate(run["anneal"]) if "anneal" in run else None
        windows = Windows.of(run["seq_len"], run["batch_size"])
        ramp = run.get("ramp", ())
        return cls(run["sequences"], run["weights"], run["batch_size"], run["seed"], anneal, windows, ramp)

    @staticmethod
    def sequences_of(run: Mapping[str, Any]) -> int:
        """Returns the number of sequences that a run has drawn, from the content of its `run.json`."""
        fewer = sum(steps * (run["batch_size"] - size) for steps, size in run.get("ramp", ()))
        return int(run["steps"] * run["batch_size"] - fewer)

    def _span(self, step: int) -> _Span:
        return next(span for span in reversed(self._spans) if span.step <= step)

    def size_of(self, step: int) -> int:
        """Returns the number of sequences of a step."""
        return self._span(step).size

    def slots_before(self, step: int) -> int:
        """Returns the number of sequences in the steps before one."""
        span = self._span(step)
        return span.slot + (step - span.step) * span.size

    def _step_of(self, slot: int) -> int:
        """Returns the step of a slot: the inverse of `slots_before`."""
        span = next(span for span in reversed(self._spans) if span.slot <= slot)
        return span.step + (slot - span.slot) // span.size

    def batch(self, step: int) -> list[tuple[str, int, int]]:
        """Returns (source, sequence, epoch) for each slot of a step, in slot order; steps count from 0.

        Computes a block of steps at once, and keeps the newest blocks. Safe for use by several threads.
        """
        if step < 0:
            raise ValueError(f"steps count from 0; there is no step {step}")
        span = self._span(step)
        block, row = divmod(step - span.step, span.block_steps)
        sources, sequences, epochs = (column[row].tolist() for column in self._block(span, block))
        return list(zip((self._sources[index] for index in sources), sequences, epochs, strict=True))

    def count_drawn(self, source: str, steps: int) -> int:
        """Returns the number of sequences of a source in the first `steps` steps.

        Within a stage it differs from its weight x the sequences of these steps by less than 1 for any number of steps.
        """
        if source not in self.sequences:
            return 0
        slots = self.slots_before(steps)
        stage = next(stage for stage in reversed(self._stages) if stage.first <= slots)
        return stage.count(self._sources.index(source), slots)

    def steps_of(self, source: str, seq_id: int, until_step: int) -> list[int]:
        """Returns the steps below `until_step` that contain the sequence: each step once, ascending.

        A step that ends one epoch of the source and begins the next can contain a sequence twice; so can every step if
        the source is smaller than its share of a batch. The cost is one inverse permutation per epoch, without
        iterating over steps.

        Raises:
            ValueError: the source has no such sequence.
        """
        if source not in self.sequences:
            return []
        size = self.sequences[source]
        if not 0 <= seq_id < size:
            raise ValueError(f'"{source}" has the sequences 0 .. {size - 1}, not {seq_id}')
        index, total = self._sources.index(source), self.count_drawn(source, until_step)
        steps: list[int] = []
        for epoch in range(-(-total // size)):
            permutation = self._permutation(size, self._key(source, epoch), self.windows)
            position = int(permutation.invert(np.array([seq_id]))[0])
            draw = epoch * size + position
            if draw < total:
                stage = next(stage for stage in reversed(self._stages) if draw >= stage.before[index])
                step = self._step_of(stage.slot(index, draw))
                if step not in steps[-1:]:  # the draws ascend, so equal steps are neighbors
                    steps.append(step)
        return steps

    def _compute_block(self, span: _Span, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns source index, sequence and epoch of the slots of a block, int64 (steps, batch size) each.

        The last block of a span also has slots of the next one, of which `batch` reads none.
        """
        count = span.block_steps * span.size
        sources, draw = self._draws(span.slot + block * count, count)
        sizes = np.array(list(self.sequences.values()))[sources]
        epochs, position = np.divmod(draw, sizes)
        pairs, numbers = np.unique(epochs * len(self._sources) + sources, return_inverse=True)
        named = [(self._sources[pair % len(self._sources)], pair // len(self._sources)) for pair in pairs.tolist()]
        keys = [self._key(source, epoch) for source, epoch in named]
        sequences = Permutations([self.sequences[source] for source, _ in named], keys, self.windows).apply(
            numbers, position
        )
        places = self._lanes(position.reshape(span.block_steps, span.size), span)
        rows = [column.reshape(places.shape) for column in (sources, sequences, epochs)]
        sources, sequences, epochs = (np.take_along_axis(row, places, axis=1) for row in rows)
        return sources, sequences, epochs

    def _lanes(self, positions: NDArray[np.int64], span: _Span) -> NDArray[np.int64]:
        """Returns for each slot which draw of its step it reads, shape (steps, batch size) each.

        Draws are sorted by their position in the epoch with its bits reversed, that is by the column of their block
        (`shuffle`): of any number of successive positions, equally many are in each part of the columns (van der Corput
        1935). So a block has about the same place among the sorted draws of every step. Sorted draws are given to the
        slots in the order of the slots' reversed bits, in which those of a rank, `rank::world`, are neighbors if the
        world is a power of two; so are those of a microbatch.
        """
        places = np.empty_like(positions)
        places[:, span.lanes] = np.argsort(_reversed(positions), axis=1, kind="stable")
        return places

    def _draws(self, first: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns (source index, number of earlier draws of that source) for `count` slots from `first` on."""
        boundaries = [min(max(stage.first - first, 0), count) for stage in self._stages[1:]]
        of_stages = np.split(np.arange(first, first + count, dtype=np.int64), boundaries)
        drawn = [stage.draws(slots) for stage, slots in zip(self._stages, of_stages, strict=True)]
        sources, draw = (np.concatenate(column) for column in zip(*drawn, strict=True))
        return sources, draw

    def _key(self, source: str, epoch: int) -> str:
        return f"{self.seed}/{source}/{epoch}"


def _reversed(numbers: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Returns the lowest 32 bits of numbers in reverse order."""
    bits = numbers.astype(np.uint32)
    for width, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        bits = (bits >> np.uint32(width)) & np.uint32(mask) | (bits & np.uint32(mask)) << np.uint32(width)
    return bits


class _Schedule:
    """A periodic schedule of the source of each slot, with every prefix as close to the weights as possible.

    Tijdeman's solution of the chairman assignment problem ("The chairman assignment problem", Discrete Mathematics 32,
    1980): with k sources, after any number of slots each source differs from its exact share by at most
    1 - 1/(2k - 2) < 1 draws. The usual method, largest remainders per step, drifts, because rounding errors add up.
    """

    def __init__(self, parts: tuple[int, ...]) -> None:
        common = gcd(*parts)
        self._parts = [amount // common for amount in parts]
        self.period = sum(self._parts)
        drawn = np.flatnonzero(self._parts)  # a source may have a weight in the other stage only
        self._source_indices = drawn[_chairmen([amount for amount in self._parts if amount])]
        self._slots = [np.flatnonzero(self._source_indices == index) for index in range(len(parts))]
        self._draw = np.empty(self.period, dtype=np.int64)
        for slots in self._slots:
            self._draw[slots] = np.arange(len(slots))

    @staticmethod
    @lru_cache(maxsize=16)
    def of(parts: tuple[int, ...]) -> "_Schedule":
        return _Schedule(parts)

    def draws(self, slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns (source index, number of earlier draws of that source) for some slots, shape (k,) each."""
        cycle, slot = np.divmod(slots, self.period)
        sources = self._source_indices[slot]
        return sources, cycle * np.array(self._parts)[sources] + self._draw[slot]

    def count(self, index: int, slots: int) -> int:
        """Returns the draws of a source in the first `slots` slots."""
        cycle, slot = divmod(slots, self.period)
        return cycle * self._parts[index] + int(np.searchsorted(self._slots[index], slot))

    def slot(self, index: int, draw: int) -> int:
        """Returns the slot of a source's draw number `draw`: the inverse of `draws`."""
        cycle, position = divmod(draw, self._parts[index])
        return cycle * self.period + int(self._slots[index][position])


def _chairmen(parts: list[int]) -> list[int]:
    """Returns one period of Tijdeman's schedule, computed in integers.

    Draw i (from 0) of a source with share w is eligible for slot n (from 1) once w n - i >= d, d = 1/(2k - 2); of the
    eligible draws, the one with the smallest deadline (i + 1 - d) / w is taken.
    """
    period, sources = sum(parts), len(parts)
    if sources == 1:
        return [0]
    twice = 2 * (sources - 1)
    scale = 2**62  # distinct deadlines stay distinct and equal ones equal: they differ by at least 1/(share * share)

    def entry(index: int, draw: int) -> tuple[int, int, int, int]:
        opens = -(-(twice * draw + 1) * period // (twice * parts[index]))
        return opens, (twice * (draw + 1) - 1) * scale // parts[index], index, draw

    waiting = [entry(index, 0) for index in range(sources)]
    heapq.heapify(waiting)
    ready: list[tuple[int, int, int]] = []
    schedule = []
    for slot in range(1, period + 1):
        while waiting and waiting[0][0] <= slot:
            _, deadline, index, draw = heapq.heappop(waiting)
            heapq.heappush(ready, (deadline, index, draw))
        _, index, draw = heapq.heappop(ready)
        schedule.append(index)
        heapq.heappush(waiting, entry(index, draw + 1))
    return schedule
