"""Stage `spans`: token shards -> suffix arrays of the training tokens.

Reads `shards` (the split `train`); writes `spans/group-<number>-of-<count>.arrow`, one suffix array per group of shards
(`tasks.formats.tokens.spans`), each with its sample. A group is a part, which is sorted on one worker, in memory.
"""

from collections.abc import Iterable
from functools import partial

import numpy as np
from numpy.typing import NDArray
from pydivsufsort import divsufsort

from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report, group_by_size
from tasks.formats.tokens.shard import ShardSet
from tasks.formats.tokens.spans import (
    FOLDER,
    MOST_TOKENS,
    TokenText,
    group_name,
    sample_path,
    write_sample,
    write_suffixes,
)
from tasks.stages.spans import SpansConfig

VERSION = 1
_BLOCK = 1 << 24


def run(config: SpansConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Sorts the suffixes of every group; raises InputError if there are no training tokens."""
    shards = ShardSet.open(inputs["shards"])
    names = [name for source in shards.sources for name in shards.names(source)]
    if not names:
        raise InputError(f"{inputs['shards'].address} has no training tokens", "lower [encode] heldout_share")
    sizes = [shards.entry(name).tokens for name in names]
    groups = [names[first:end] for first, end in group_by_size(sizes, config.group_tokens)]
    count = len(groups)
    specs = [PartSpec(group_name(index, count), group) for index, group in enumerate(groups)]
    records = output.map_parts(engine, partial(_sort_group, shards), specs)
    tokens = sum(record.metrics["tokens"] for record in records)
    return Report(metrics={"tokens": tokens, "groups": count}, note=f"{tokens:,.0f} tokens in {count:,} suffix arrays")


def _sort_group(shards: ShardSet, part: Part, names: list[str]) -> None:
    text = TokenText.of(shards, names)
    if len(text) >= MOST_TOKENS:
        raise InputError(f"the shard {names[0]} has {len(text):,} tokens", "lower [encode] shard_tokens")
    documents = sum(shards.entry(name).rows for name in names)
    part.count_in(documents)
    part.count_out(documents)
    part.metric("tokens", len(text))
    suffixes = sorted_suffixes(text.runs(), len(text), shards.format.vocab_size)
    with part.file(f"{FOLDER}/{part.name}.arrow", rows=len(suffixes)) as file:
        write_suffixes(file, suffixes, names, len(text))
    with part.file(sample_path(f"{FOLDER}/{part.name}.arrow")) as file:
        write_sample(file, suffixes, text, shards.format.itemsize)


def sorted_suffixes(runs: Iterable[NDArray[np.integer]], size: int, vocab_size: int) -> NDArray[np.uint32]:
    """Returns the suffix array of tokens: the positions of all suffixes, in lexicographic order.

    A token becomes 2 bytes (3 for more than 65,536 entries), most significant first, so that bytes have the order of
    tokens. libdivsufsort sorts the suffixes of these bytes (Fischer and Kurpicz, "Dismantling DivSufSort", 2017), of
    which those that begin at a token are kept.

    Args:
        runs: the tokens, as consecutive arrays.
        size: number of tokens, less than 2**32.
        vocab_size: exclusive upper bound of the tokens.

    Returns:
        positions of tokens, shape (size,).
    """
    width = 2 if vocab_size <= 65_536 else 3
    flat = np.empty((size, width), np.uint8)
    begin = 0
    for tokens in runs:
        wide = tokens.astype(">u4").view(np.uint8).reshape(-1, 4)
        flat[begin : begin + len(tokens)] = wide[:, 4 - width :]
        begin += len(tokens)
    of_bytes = divsufsort(flat.reshape(-1))
    del flat
    # In blocks, because a mask and quotients of the whole array would determine the peak memory.
    suffixes = np.empty(size, np.uint32)
    count = 0
    for first in range(0, len(of_bytes), _BLOCK):
        at, inside = np.divmod(of_bytes[first : first + _BLOCK], width)
        positions = at[inside == 0]
        suffixes[count : count + len(positions)] = positions
        count += len(positions)
    return suffixes
