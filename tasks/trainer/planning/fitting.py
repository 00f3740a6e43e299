"""The layout that fits: the simplest one in which a step's tensors fit into the memory of a GPU."""

from collections.abc import Iterator
from typing import Literal

from tasks.core.errors import RecipeError
from tasks.trainer.config import TrainConfig
from tasks.trainer.model.shape import Shape
from tasks.trainer.parallel.fit import check_fit, memory_per_rank
from tasks.trainer.place import Layout

MOST_RANKS = 1 << 14
TENSOR = (1, 2, 4, 8)
"""Degrees of tensor parallelism: not more than the GPUs of one machine, since it communicates in every layer."""
PIPELINE = (1, 2, 4, 8, 16)
RECOMPUTE: tuple[Literal["none", "selective", "full"], ...] = ("none", "selective", "full")


def layout_that_fits(run: TrainConfig, shape: Shape, seq_len: int, memory: float, ranks: int) -> Layout | None:
    """Returns a layout of at least so many ranks, of as few as possible, in which a step fits; None: there is none.

    Of those with equally many ranks: the one with the least pipeline, then recomputation, then tensor parallelism,
    each of which costs speed.

    Args:
        run: settings of the run.
        shape: of its model.
        seq_len: positions of a training sequence.
        memory: bytes of a rank.
        ranks: fewest ranks; more are looked at by doubling.
    """
    while ranks <= MOST_RANKS:
        for layout in _candidates(ranks):
            if sum(memory_per_rank(layout, run, shape, seq_len).values()) <= memory and _possible(
                layout, run, shape, seq_len
            ):
                return layout
        ranks *= 2
    return None


def _candidates(ranks: int) -> Iterator[Layout]:
    for pipeline in PIPELINE:
        for recompute in RECOMPUTE:
            for tensor in TENSOR:
                if ranks % (pipeline * tensor) == 0:
                    shard = ranks // (pipeline * tensor)
                    yield Layout(shard=shard, tensor=tensor, pipeline=pipeline, recompute=recompute)


def _possible(layout: Layout, run: TrainConfig, shape: Shape, seq_len: int) -> bool:
    try:
        check_fit(layout, run, shape.vocab_size, seq_len, layout.ranks)
    except RecipeError:
        return False
    return True
