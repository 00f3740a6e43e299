"""Unigram model of the training text: the baseline of a language model, without context.

Reads the training shards.
"""

import numpy as np
from numpy.typing import NDArray

from tasks.formats.tokens.shard import TRAIN
from tasks.formats.tokens.shard_set import ShardSet


def unigram_bits(shards: ShardSet) -> NDArray[np.float64]:
    """Returns -log2 p of each token, float64 [vocab_size], with counts of all training shards plus one (Laplace)."""
    size = shards.format.vocab_size
    counts = np.ones(size, dtype=np.int64)
    for source in shards.sources:
        for name in shards.names(source, TRAIN):
            shard = shards.shard(name)
            for row, length in enumerate(shard.lengths.tolist()):
                counts += np.bincount(shard.slice(row, 0, length), minlength=size)
    bits: NDArray[np.float64] = np.log2(counts.sum()) - np.log2(counts)
    return bits
