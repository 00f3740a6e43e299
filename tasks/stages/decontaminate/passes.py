"""The two passes over the parts: occurrences of evaluation n-grams in documents, and the items of each document.

`scan_part` reads one part of `extracted` and the index, and writes

    hits/<part>.parquet    every occurrence of an evaluation n-gram (HITS), by document and position
    counts/<part>.parquet  the texts that decide whether an n-gram is common (COUNTS)

`judge_part` reads the hits of n-grams that are not common, and the ids, URLs and sources of documents, but no texts. It
writes the verdicts, `contamination/` and `matches/` (`tasks.formats.documents.document`).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part, group_by_size
from tasks.formats.documents.document import (
    CONTAMINATED,
    CONTAMINATION,
    ITEM_MATCH,
    MATCHES,
    TOP_ITEM,
    with_ids_digest,
)
from tasks.formats.documents.text import hash64, hash_words, normal_words
from tasks.formats.documents.text import ngrams as ngrams_of
from tasks.formats.documents.words import spaced
from tasks.stages.decontaminate.index import ITEMS_FILE, NgramIndex

HITS = pa.schema(
    [
        pa.field("row", pa.int32(), nullable=False),  # of the document in its part
        pa.field("word", pa.int32(), nullable=False),  # index of the first word of the n-gram
        pa.field("width", pa.int32(), nullable=False),  # its number of words
        pa.field("begin", pa.int32(), nullable=False),  # its characters in the document's text, in whole words
        pa.field("end", pa.int32(), nullable=False),
        pa.field("ngram", pa.int64(), nullable=False),  # its number (NgramIndex)
    ]
)

COUNTS = pa.schema(
    [
        pa.field("ngram", pa.int64(), nullable=False),
        pa.field("text", pa.uint64(), nullable=False),  # hash of a normalized text that contains it
    ]
)

COMMON_FILE = "common.parquet"

COPY_SHARE = 0.5
"""Minimum share of an item's n-grams in a copy of the item; copies do not count for whether an n-gram is common."""

_CHARACTERS = 2_000_000
"""Approximate number of characters of the texts that are searched together."""

_CHUNK = re.compile(r"\S+")

MOST_ITEMS = 1000
"""Maximum number of items listed per document, those with the largest shares: a page may contain a whole set."""


@dataclass(frozen=True)
class Workspace:
    """What the passes read. Picklable; its size depends neither on the parts nor on the sets.

    Attributes:
        ngram: words per n-gram; also the minimum number of n-grams in a copy of an item.
        most: maximum number of texts with an n-gram that is not common.
        extracted: the documents.
        own: the stage's own artifact.
    """

    ngram: int
    most: int
    extracted: ArtifactFolder
    own: ArtifactFolder

    def index(self) -> NgramIndex:
        """Reads the index."""
        return NgramIndex.read(self.ngram, self.own)

    def is_common(self, index: NgramIndex) -> NDArray[np.bool_]:
        """Returns which n-grams are common, shape (n-grams,)."""
        common = np.zeros(len(index.hashes), np.bool_)
        common[self.own.table(COMMON_FILE).column("ngram").to_numpy()] = True
        return common


def scan_part(work: Workspace, part: Part, name: str) -> None:
    """Writes hits and counts of one part of the documents, given by its name; runs on a worker."""
    index = work.index()
    texts = work.extracted.table(f"documents/{name}.parquet", columns=["text"]).column("text")
    hits, counts = [HITS.empty_table()], [COUNTS.empty_table()]
    for first, end in group_by_size(pc.utf8_length(texts).to_pylist(), _CHARACTERS):
        for row, hits_of_text, text in _hits(index, texts.slice(first, end - first).to_pylist()):
            hits.append(
                hits_of_text.set_column(
                    0, HITS.field(0), pa.array(np.full(hits_of_text.num_rows, first + row, np.int32))
                )
            )
            numbers = np.unique(hits_of_text.column("ngram").to_numpy())
            counts.append(count_ngrams(index, numbers, text, work.ngram))
    for folder, table in (("hits", pa.concat_tables(hits)), ("counts", smallest_texts(counts, work.most + 1))):
        part.write_table(f"{folder}/{name}.parquet", table)


def _hits(index: NgramIndex, texts: Sequence[str]) -> Iterator[tuple[int, pa.Table, int]]:
    """Yields, for each text with a hit, its index, its HITS ordered by word, and the hash of its normalized form."""
    if not index.widths:
        return  # every item is too short
    words_by_text = [normal_words(text) for text in texts]
    ends = np.cumsum([len(words) for words in words_by_text])
    hashes = hash_words([word for words in words_by_text for word in words])
    columns: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
    for width, ngram_hashes in ngrams_of(hashes, index.widths):
        positions, numbers = index.find(ngram_hashes)
        rows = np.searchsorted(ends, positions, side="right")
        within_text = positions + width <= ends[rows]  # excludes n-grams that extend into the next text
        size = int(within_text.sum())
        columns.append((rows[within_text], positions[within_text], np.full(size, width), numbers[within_text]))
    rows, positions, widths, numbers = (np.concatenate(arrays) for arrays in zip(*columns, strict=True))
    order = np.lexsort((widths, positions))
    rows, positions, widths, numbers = rows[order], positions[order], widths[order], numbers[order]
    cuts = [0, *(np.flatnonzero(np.diff(rows)) + 1).tolist(), len(rows)] if len(rows) else [0]
    for start, end in pairwise(cuts):
        row = int(rows[start])
        words, wide = positions[start:end] - (ends[row] - len(words_by_text[row])), widths[start:end]
        begins, stops = word_positions(texts[row], len(words_by_text[row]))
        hit = [np.zeros(end - start), words, wide, begins[words], stops[words + wide - 1], numbers[start:end]]
        hits = [pa.array(column).cast(field.type) for column, field in zip(hit, HITS, strict=True)]
        table = pa.table(hits, schema=HITS)
        yield row, table, hash64(" ".join(words_by_text[row]))


def word_positions(text: str, words: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the position of each normalized word in the original text.

    The position of a word is that of the chunk that contains it. Chunks are separated by white space, and by the bounds
    of words in scripts without spaces: the two words of `don't` have the same position. If the words of the chunks do
    not add up to `words`, those between white space are taken, so all words of a Chinese sentence have the same
    position, and then the whole text.

    Args:
        text: a text.
        words: number of words of `normal_words(text)`.

    Returns:
        starts and ends, int64 arrays of shape (words,).
    """
    separate = spaced(text)
    for split in (separate, text) if separate is not text else (text,):
        chunks = list(_CHUNK.finditer(split))
        counts = [len(normal_words(chunk[0])) for chunk in chunks]
        if sum(counts) == words:
            begins = np.array([chunk.start() for chunk in chunks], np.int64)
            ends = np.array([chunk.end() for chunk in chunks], np.int64)
            if split is not text:  # the same characters, except for spaces
                places, of_split = _not_spaces(text), _not_spaces(split)
                begins, ends = (places[np.searchsorted(of_split, at)] for at in (begins, ends - 1))
                ends += 1
            return np.repeat(begins, counts), np.repeat(ends, counts)
    return np.zeros(words, np.int64), np.full(words, len(text), np.int64)


def _not_spaces(text: str) -> NDArray[np.int64]:
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.flatnonzero(codes != ord(" "))


def count_ngrams(index: NgramIndex, numbers: NDArray[np.int64], text: int, copy: int) -> pa.Table:
    """Returns COUNTS of one text: its n-grams except for those of items of which it is a copy.

    Args:
        index: the evaluation n-grams.
        numbers: distinct numbers of the n-grams in the text.
        text: hash of the normalized text.
        copy: minimum number of n-grams in a copy of an item.
    """
    positions, items = index.items_of(numbers)
    distinct_items, inverse, counts_by_item = np.unique(items, return_inverse=True, return_counts=True)
    is_copy = (counts_by_item >= copy) & (counts_by_item >= COPY_SHARE * index.sizes[distinct_items])
    is_counted = np.ones(len(numbers), np.bool_)
    is_counted[positions[is_copy[inverse]]] = False
    remaining = numbers[is_counted]
    return pa.table([remaining, np.full(len(remaining), text, np.uint64)], schema=COUNTS)


def smallest_texts(tables: Sequence[pa.Table], most: int) -> pa.Table:
    """Returns the distinct rows of several COUNTS, with at most `most` texts per n-gram, those of the lowest hashes."""
    numbers, texts = (
        np.concatenate([table.column(name).to_numpy() for table in tables]) if tables else np.empty(0, np.int64)
        for name in COUNTS.names
    )
    order = np.lexsort((texts, numbers))
    numbers, texts = numbers[order], texts[order]
    is_new = np.ones(len(numbers), np.bool_)
    is_new[1:] = (np.diff(numbers) != 0) | (texts[1:] != texts[:-1])
    numbers, texts = numbers[is_new], texts[is_new]
    _, first, sizes = np.unique(numbers, return_index=True, return_counts=True)
    selected = np.arange(len(numbers)) - np.repeat(first, sizes) < most
    return pa.table([numbers[selected], texts[selected]], schema=COUNTS)


class ItemMatch(NamedTuple):
    """An item in a document (`tasks.formats.documents.document`); `item` is a row of ITEMS."""

    item: int
    share: float
    ngrams: int
    begin: int
    end: int
    words: int


def judge_part(work: Workspace, part: Part, name: str) -> None:
    """Writes the verdicts on one part of the documents, given by its name; runs on a worker."""
    index = work.index()
    common = work.is_common(index)
    documents = work.extracted.table(f"documents/{name}.parquet", columns=["id", "url", "source"])
    items = work.own.table(ITEMS_FILE, columns=["set", "id"])
    hits = work.own.table(f"hits/{name}.parquet")
    hits = hits.filter(pa.array(~common[hits.column("ngram").to_numpy()]))
    sizes = searched_ngrams(index, common)
    rows: list[int] = []
    matches: list[ItemMatch] = []
    best: dict[int, tuple[ItemMatch, int]] = {}
    for row, document_hits in _by_document(hits):
        document_matches, count = match_items(index, sizes, document_hits)
        rows += [row] * len(document_matches)
        matches += document_matches
        best[row] = document_matches[0], count
    part.count_in(documents.num_rows)
    _write_best(part, documents, items, best)
    _write_matches(part, documents, items, rows, matches)


def searched_ngrams(index: NgramIndex, common: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Returns the number of n-grams of each item that are not common, shape (n_items,)."""
    owners = np.repeat(common, np.diff(index.starts))
    common_counts: NDArray[np.int64] = np.bincount(index.items[owners], minlength=len(index.sizes))
    return index.sizes - common_counts


def _by_document(hits: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    rows, first, sizes = np.unique(hits.column("row").to_numpy(), return_index=True, return_counts=True)
    for row, start, size in zip(rows.tolist(), first.tolist(), sizes.tolist(), strict=True):
        yield row, hits.slice(start, size)


def match_items(index: NgramIndex, sizes: NDArray[np.int64], hits: pa.Table) -> tuple[list[ItemMatch], int]:
    """Returns at most MOST_ITEMS items of one document, by descending share and n-grams; and the number of all items.

    Args:
        index: the evaluation n-grams.
        sizes: number of n-grams of each item that are not common, shape (n_items,).
        hits: HITS of the document in the order of its words, at least one.
    """
    word, width, begin, end, ngram = (hits.column(name).to_numpy() for name in hits.column_names[1:])
    distinct = np.unique(ngram)
    distinct_items, counts = np.unique(index.items_of(distinct)[1], return_counts=True)
    order = np.lexsort((distinct_items, -counts, -counts / sizes[distinct_items]))[:MOST_ITEMS]
    positions, items = index.items_of(ngram)
    listed = np.isin(items, distinct_items[order])
    positions, items = positions[listed], items[listed]
    by_item = np.lexsort((positions, items))
    positions, items = positions[by_item], items[by_item]
    # A run of n-grams ends if the next n-gram of the same item does not begin at the next word.
    is_start = np.ones(len(positions), np.bool_)
    is_start[1:] = (np.diff(items) != 0) | (np.diff(word[positions]) != 1)
    firsts = np.flatnonzero(is_start)
    lasts = np.append(firsts[1:], len(positions)) - 1
    lengths = word[positions[lasts]] + width[positions[lasts]] - word[positions[firsts]]
    longest = np.lexsort((firsts, -lengths, items[firsts]))
    _, first_run = np.unique(items[firsts][longest], return_index=True)
    run_of = dict(zip(items[firsts][longest][first_run].tolist(), longest[first_run].tolist(), strict=True))
    matches = []
    for row in order.tolist():
        item, count = int(distinct_items[row]), int(counts[row])
        run = run_of[item]
        ends = int(begin[positions[firsts[run]]]), int(end[positions[lasts[run]]])
        matches.append(ItemMatch(item, count / int(sizes[item]), count, *ends, int(lengths[run])))
    return matches, len(distinct_items)


def _write_best(part: Part, documents: pa.Table, items: pa.Table, best: dict[int, tuple[ItemMatch, int]]) -> None:
    best_items = items.take(pa.array([match.item for match, _ in best.values()], pa.int32())).to_pylist()
    values: list[dict[str, object] | None] = [None] * documents.num_rows
    for (row, (match, count)), item in zip(best.items(), best_items, strict=True):
        values[row] = {**match._asdict(), "set": item["set"], "item": item["id"], "items": count}
    table = pa.table({CONTAMINATED: pa.array(values, TOP_ITEM)})
    part.table(CONTAMINATION, with_ids_digest(table, documents.column("id")))


def _write_matches(part: Part, documents: pa.Table, items: pa.Table, rows: list[int], matches: list[ItemMatch]) -> None:
    matched_documents = documents.take(pa.array(rows, pa.int32()))
    item = items.take(pa.array([match.item for match in matches], pa.int32()))
    columns = {
        "set": item.column("set"),
        "item": item.column("id"),
        **{name: matched_documents.column(name) for name in ("id", "url", "source")},
        **{name: pa.array([getattr(match, name) for match in matches]) for name in ItemMatch._fields[1:]},
    }
    table = pa.table([columns[field.name].cast(field.type) for field in ITEM_MATCH], schema=ITEM_MATCH)
    part.table(MATCHES, table.combine_chunks(), out=False)
