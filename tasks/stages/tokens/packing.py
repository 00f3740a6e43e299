"""Packing algorithms: lengths of documents -> the slices of each sequence. Pure functions of their arguments."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.formats.tokens.plan import SLICE, Slices


class Documents(NamedTuple):
    """Documents to pack, in order, as columns of shape (documents,); the fields are those of SLICE, as int64."""

    shard: NDArray[np.int64]
    row: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]


class Packed(NamedTuple):
    """The sequences of one part."""

    slices: Slices
    """Sorted by sequence and position."""
    lengths: NDArray[np.int64]
    """Slices of each sequence, shape (sequences,)."""


def concat(documents: Documents, seq_len: int) -> Packed:
    """Joins documents end to end and cuts every `seq_len` tokens; the tokens after the last whole sequence are left."""
    starts = np.cumsum(documents.length) - documents.length
    sequences = int(documents.length.sum()) // seq_len
    end = sequences * seq_len
    # A slice begins where a document or a sequence begins.
    cuts = np.unique(np.concatenate([starts[starts < end], np.arange(0, end, seq_len)]))
    document = np.searchsorted(starts, cuts, side="right") - 1
    slices = _slices(documents, document, cuts - starts[document], np.diff(np.append(cuts, end)))
    return Packed(slices, np.bincount(cuts // seq_len, minlength=sequences))


def best_fit(documents: Documents, seq_len: int) -> Packed:
    """Cuts only documents that are longer than a sequence; packs the rest where they fit best.

    Best-fit decreasing (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"): documents are cut every
    `seq_len` tokens from their beginning; the pieces, the longest first, are put into the sequence with the least room
    that is enough. Sequences are filled to 99.9 % of their room and more in usual text, the rest of each is padding.
    """
    pieces = -(-documents.length // seq_len)
    document = np.repeat(np.arange(len(pieces)), pieces)
    begin = (np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * seq_len
    length = np.minimum(documents.length[document] - begin, seq_len)
    sequence = _best_fit_decreasing(length, seq_len)
    order = np.argsort(sequence, kind="stable")
    return Packed(_slices(documents, document[order], begin[order], length[order]), np.bincount(sequence))


def _best_fit_decreasing(lengths: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """Returns the bin of each piece, shape (pieces,); bins count from 0 in the order in which they are opened."""
    with_room: list[list[int]] = [[] for _ in range(capacity + 1)]  # room -> bins with exactly that room
    rooms = 0  # bit r is set where a bin with room r exists: the least room that is enough is the lowest set bit
    bins = np.empty(len(lengths), dtype=np.int64)
    opened = 0
    order = np.argsort(-lengths, kind="stable")
    for piece, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        if enough := rooms >> length:
            room = length + (enough & -enough).bit_length() - 1
            number = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, number = capacity, opened
            opened += 1
        bins[piece] = number
        left = room - length
        if left:
            with_room[left].append(number)
            rooms |= 1 << left
    return bins


def _slices(
    documents: Documents, document: NDArray[np.int64], begin: NDArray[np.int64], length: NDArray[np.int64]
) -> Slices:
    """Returns slices of `length` tokens from token `begin` of some documents, by their numbers."""
    slices = np.empty(len(document), dtype=SLICE)
    slices["shard"] = documents.shard[document]
    slices["row"] = documents.row[document]
    slices["offset"] = documents.offset[document] + begin
    slices["length"] = length
    return slices
