"""The two passes over the parts: where documents contain evaluation n-grams, and which items each document contains.

`scan_part` reads one part of `extracted` and the index, and writes

    hits/<part>.parquet    every occurrence of an evaluation n-gram (HITS), by document and place
    counts/<part>.parquet  the texts that count for whether an n-gram is common (COUNTS)

`judge_part` reads these hits without the n-grams that are common, and ids, URLs and sources of the documents, no texts.
It writes the verdicts, `contamination/` and `matches/` (`tasks.formats.documents.document`).
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part
from tasks.core.store import Store
from tasks.formats.documents.document import (
    CONTAMINATED,
    CONTAMINATION,
    ITEM_MATCH,
    MATCHES,
    TOP_ITEM,
    with_ids_digest,
)
from tasks.formats.documents.text import hash64, hash_words, normalise
from tasks.formats.documents.text import ngrams as ngrams_of
from tasks.stages.decontaminate.index import ITEMS_FILE, NgramIndex

HITS = pa.schema(
    [
        pa.field("row", pa.int32(), nullable=False),  # of the document in its part
        pa.field("word", pa.int32(), nullable=False),  # the first word of the n-gram
        pa.field("width", pa.int32(), nullable=False),  # its words
        pa.field("begin", pa.int32(), nullable=False),  # its characters in the document's text, whole words
        pa.field("end", pa.int32(), nullable=False),
        pa.field("ngram", pa.int64(), nullable=False),  # its number (NgramIndex)
    ]
)

COUNTS = pa.schema(
    [
        pa.field("ngram", pa.int64(), nullable=False),
        pa.field("text", pa.uint64(), nullable=False),  # hash of a normalised text that contains it
    ]
)

COPY_SHARE = 0.5
"""Share of an item's n-grams from which a document is a copy of it, and does not count against its n-grams."""

_CHARACTERS = 2_000_000
_CHUNK = re.compile(r"\S+")

MOST_ITEMS = 1000
"""Items of one document that are listed, those of the largest share: a page may contain a whole evaluation set."""


def scan_part(index: NgramIndex, extracted: ArtifactFolder, common: int, copy: int, part: Part, name: str) -> None:
    """Writes hits and counts of one part; runs on a worker.

    Args:
        index: the evaluation n-grams.
        extracted: the documents.
        common: texts from which on an n-gram is common: of each n-gram no more than one text more is written.
        copy: n-grams that a copy of an item has at least.
        part: receives the files.
        name: of the part of `extracted`.
    """
    texts = extracted.table(f"documents/{name}.parquet", columns=["text"]).column("text")
    hits, counts = [HITS.empty_table()], [COUNTS.empty_table()]
    for first, batch in _batches(texts):
        for row, found, text in _hits(index, batch):
            hits.append(found.set_column(0, HITS.field(0), pa.array(np.full(found.num_rows, first + row, np.int32))))
            counts.append(counted(index, np.unique(found.column("ngram").to_numpy()), text, copy))
    for folder, table in (("hits", pa.concat_tables(hits)), ("counts", fewest(counts, common + 1))):
        with part.file(f"{folder}/{name}.parquet", rows=table.num_rows) as file:
            pq.write_table(table, file, compression="zstd", compression_level=3)


def _batches(texts: pa.ChunkedArray) -> Iterator[tuple[int, list[str]]]:
    """Yields the row of the first text and some texts of about `_CHARACTERS`; a longer one is a batch of its own."""
    batch: list[str] = []
    first = size = 0
    for row, text in enumerate(value.as_py() for value in texts):
        if batch and size + len(text) > _CHARACTERS:
            yield first, batch
            batch, first, size = [], row, 0
        batch.append(text)
        size += len(text)
    if batch:
        yield first, batch


def _hits(index: NgramIndex, texts: Sequence[str]) -> Iterator[tuple[int, pa.Table, int]]:
    """Yields, for each text with a hit, its place in `texts`, its HITS by word, and the hash of its normalised form."""
    if not index.widths:
        return  # every item is too short
    normal = [normalise(text) for text in texts]
    split = [one.split() for one in normal]
    ends = np.cumsum([len(one) for one in split])
    hashes = hash_words([word for one in split for word in one])
    columns: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
    for width, runs in ngrams_of(hashes, index.widths):
        places, numbers = index.find(runs)
        rows = np.searchsorted(ends, places, side="right")
        inside = places + width <= ends[rows]  # else it begins in one text and ends in another
        size = int(inside.sum())
        columns.append((rows[inside], places[inside], np.full(size, width), numbers[inside]))
    rows, places, widths, numbers = (np.concatenate(one) for one in zip(*columns, strict=True))
    order = np.lexsort((widths, places))
    rows, places, widths, numbers = rows[order], places[order], widths[order], numbers[order]
    cuts = [0, *(np.flatnonzero(np.diff(rows)) + 1).tolist(), len(rows)] if len(rows) else [0]
    for start, end in pairwise(cuts):
        row = int(rows[start])
        words, wide = places[start:end] - (ends[row] - len(split[row])), widths[start:end]
        begins, stops = word_places(texts[row], len(split[row]))
        hit = [np.zeros(end - start), words, wide, begins[words], stops[words + wide - 1], numbers[start:end]]
        table = pa.table([pa.array(one).cast(field.type) for one, field in zip(hit, HITS, strict=True)], schema=HITS)
        yield row, table, hash64(normal[row])


def word_places(text: str, words: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns where each word of a normalised text stands in the text itself.

    A word's place is that of the characters without white space around it: `don't` are two words at one place, and
    so is a sentence of Chinese. Normalising joins nothing over white space; a text for which the words do not add up
    all the same has all of them at its whole length.

    Args:
        text: a text.
        words: number of words of `normalise(text)`.

    Returns:
        first characters and ends, int64 arrays of shape (words,).
    """
    chunks = list(_CHUNK.finditer(text))
    counts = [len(normalise(chunk[0]).split()) for chunk in chunks]
    if sum(counts) != words:
        return np.zeros(words, np.int64), np.full(words, len(text), np.int64)
    begins, ends = ([place for chunk in chunks for place in [chunk.span()[side]]] for side in (0, 1))
    return np.repeat(np.array(begins, np.int64), counts), np.repeat(np.array(ends, np.int64), counts)


def counted(index: NgramIndex, numbers: NDArray[np.int64], text: int, copy: int) -> pa.Table:
    """Returns COUNTS of one text: its n-grams without those of items that it is a copy of.

    Args:
        index: the evaluation n-grams.
        numbers: of the n-grams in the text, distinct.
        text: hash of the normalised text.
        copy: see `scan_part`.
    """
    places, items = index.items_of(numbers)
    known, inverse, found = np.unique(items, return_inverse=True, return_counts=True)
    copied = (found >= copy) & (found >= COPY_SHARE * index.sizes[known])
    counts = np.ones(len(numbers), np.bool_)
    counts[places[copied[inverse]]] = False
    left = numbers[counts]
    return pa.table([left, np.full(len(left), text, np.uint64)], schema=COUNTS)


def fewest(tables: Sequence[pa.Table], most: int) -> pa.Table:
    """Returns the distinct rows of several COUNTS, of each n-gram the `most` smallest texts: enough to count to it."""
    numbers, texts = (
        np.concatenate([table.column(name).to_numpy() for table in tables]) if tables else np.empty(0, np.int64)
        for name in COUNTS.names
    )
    order = np.lexsort((texts, numbers))
    numbers, texts = numbers[order], texts[order]
    new = np.ones(len(numbers), np.bool_)
    new[1:] = (np.diff(numbers) != 0) | (texts[1:] != texts[:-1])
    numbers, texts = numbers[new], texts[new]
    _, first, sizes = np.unique(numbers, return_index=True, return_counts=True)
    kept = np.arange(len(numbers)) - np.repeat(first, sizes) < most
    return pa.table([numbers[kept], texts[kept]], schema=COUNTS)


class Found(NamedTuple):
    """An item in a document; see `tasks.formats.documents.document`. `item` is a row of ITEMS."""

    item: int
    share: float
    ngrams: int
    begin: int
    end: int
    words: int


def judge_part(
    index: NgramIndex, common: NDArray[np.bool_], extracted: ArtifactFolder, store: Store, folder: str, part: Part,
    name: str,
) -> None:  # fmt: skip
    """Writes one part; runs on a worker.

    Args:
        index: the evaluation n-grams.
        common: which of them are common, shape (n-grams,).
        extracted: the documents.
        store: store of the stage's own artifact.
        folder: its folder.
        part: receives the files.
        name: of the part of `extracted`.
    """
    documents = extracted.table(f"documents/{name}.parquet", columns=["id", "url", "source"])
    items = parquet.read(store.local(f"{folder}/{ITEMS_FILE}"), ["set", "id"])
    hits = parquet.read(store.local(f"{folder}/hits/{name}.parquet"))
    hits = hits.filter(pa.array(~common[hits.column("ngram").to_numpy()]))
    sizes = looked_for(index, common)
    rows: list[int] = []
    matches: list[Found] = []
    best: dict[int, tuple[Found, int]] = {}
    for row, mine in _by_document(hits):
        found, count = judged(index, sizes, mine)
        rows += [row] * len(found)
        matches += found
        best[row] = found[0], count
    part.count_in(documents.num_rows)
    _write_best(part, documents, items, best)
    _write_matches(part, documents, items, rows, matches)


def looked_for(index: NgramIndex, common: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Returns the number of n-grams of each item that are not common, shape (items,)."""
    owners = np.repeat(common, np.diff(index.starts))
    gone: NDArray[np.int64] = np.bincount(index.items[owners], minlength=len(index.sizes))
    return index.sizes - gone


def _by_document(hits: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    rows, first, sizes = np.unique(hits.column("row").to_numpy(), return_index=True, return_counts=True)
    for row, start, size in zip(rows.tolist(), first.tolist(), sizes.tolist(), strict=True):
        yield row, hits.slice(start, size)


def judged(index: NgramIndex, sizes: NDArray[np.int64], hits: pa.Table) -> tuple[list[Found], int]:
    """Returns the items of one document, by descending share and n-grams, at most MOST_ITEMS; and the number of all.

    Args:
        index: the evaluation n-grams.
        sizes: n-grams of each item, shape (items,).
        hits: of the document (`scan.HITS`), in the order of its words, at least one.
    """
    word, width, begin, end, ngram = (hits.column(name).to_numpy() for name in hits.column_names[1:])
    distinct = np.unique(ngram)
    known, counts = np.unique(index.items_of(distinct)[1], return_counts=True)
    order = np.lexsort((known, -counts, -counts / sizes[known]))[:MOST_ITEMS]
    places, items = index.items_of(ngram)
    listed = np.isin(items, known[order])
    places, items = places[listed], items[listed]
    by_item = np.lexsort((places, items))
    places, items = places[by_item], items[by_item]
    # A run ends where the next n-gram of the same item does not begin at the next word.
    new = np.ones(len(places), np.bool_)
    new[1:] = (np.diff(items) != 0) | (np.diff(word[places]) != 1)
    firsts = np.flatnonzero(new)
    lasts = np.append(firsts[1:], len(places)) - 1
    lengths = word[places[lasts]] + width[places[lasts]] - word[places[firsts]]
    longest = np.lexsort((firsts, -lengths, items[firsts]))
    _, at = np.unique(items[firsts][longest], return_index=True)
    run_of = dict(zip(items[firsts][longest][at].tolist(), longest[at].tolist(), strict=True))
    found = []
    for place in order.tolist():
        item, count = int(known[place]), int(counts[place])
        run = run_of[item]
        ends = int(begin[places[firsts[run]]]), int(end[places[lasts[run]]])
        found.append(Found(item, count / int(sizes[item]), count, *ends, int(lengths[run])))
    return found, len(known)


def _write_best(part: Part, documents: pa.Table, items: pa.Table, best: dict[int, tuple[Found, int]]) -> None:
    named = items.take(pa.array([found.item for found, _ in best.values()], pa.int32())).to_pylist()
    values: list[dict[str, object] | None] = [None] * documents.num_rows
    for (row, (found, count)), item in zip(best.items(), named, strict=True):
        values[row] = {**found._asdict(), "set": item["set"], "item": item["id"], "items": count}
    table = pa.table({CONTAMINATED: pa.array(values, TOP_ITEM)})
    part.table(CONTAMINATION, with_ids_digest(table, documents.column("id")))


def _write_matches(part: Part, documents: pa.Table, items: pa.Table, rows: list[int], matches: list[Found]) -> None:
    whose = documents.take(pa.array(rows, pa.int32()))
    item = items.take(pa.array([one.item for one in matches], pa.int32()))
    columns = {
        "set": item.column("set"),
        "item": item.column("id"),
        **{name: whose.column(name) for name in ("id", "url", "source")},
        **{name: pa.array([getattr(one, name) for one in matches]) for name in Found._fields[1:]},
    }
    table = pa.table([columns[field.name].cast(field.type) for field in ITEM_MATCH], schema=ITEM_MATCH)
    part.table(MATCHES, table.combine_chunks(), out=False)
