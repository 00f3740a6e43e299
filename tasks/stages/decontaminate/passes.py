"""Second pass over a part: which items each document contains, without the n-grams that are common.

Reads the hits of the first pass (`scan`) and ids, URLs and sources of the documents, no texts. Writes the two tables
of `tasks.formats.documents.document`.

The report reads `contamination/` and `matches/` of all parts, one at a time, and writes `sets.parquet` and
`report.html`; every match stays in `matches/`, only the largest are shown.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part
from tasks.core.store import Store
from tasks.formats.documents.document import (
    CONTAMINATED,
    CONTAMINATION,
    ITEM_FOUND,
    ITEM_MATCH,
    MATCHES,
    marked,
)
from tasks.stages.decontaminate.index import ITEMS_FILE, NgramIndex

MOST_ITEMS = 1000
"""Items of one document that are listed, those of the largest share: a page may contain a whole evaluation set."""


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
    table = pa.table({CONTAMINATED: pa.array(values, ITEM_FOUND)})
    part.table(CONTAMINATION, marked(table, documents.column("id")))


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
