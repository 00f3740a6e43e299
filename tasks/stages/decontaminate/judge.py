"""Second pass over a part: which items each document contains, without the n-grams that are common.

Reads the hits of the first pass (`scan`) and ids, URLs and sources of the documents, no texts. Writes the two tables
of `tasks.formats.documents.document`.

The report reads `contamination/` and `matches/` of all parts, one at a time, and writes `sets.parquet` and
`report.html`; every match stays in `matches/`, only the largest are shown.
"""

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.artifact import ArtifactFolder
from tasks.core.pages import template
from tasks.core.stage import Part
from tasks.core.store import Store
from tasks.formats.documents.document import (
    CONTAMINATED,
    CONTAMINATION,
    ITEM_FOUND,
    ITEM_MATCH,
    MATCHES,
    SETS_FILE,
    marked,
)
from tasks.stages.decontaminate.config import DecontaminateConfig
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


PAGE = "report.html"
SETS = pa.schema(
    [
        pa.field("set", pa.string(), nullable=False),
        pa.field("items", pa.int64(), nullable=False),
        pa.field("too_short", pa.int64(), nullable=False),  # items with too few words to look for
        pa.field("common", pa.int64(), nullable=False),  # items all of whose n-grams are common
        pa.field("found", pa.int64(), nullable=False),  # items of which a document contains an n-gram
        pa.field("documents", pa.int64(), nullable=False),  # documents that contain an n-gram of an item
    ]
)
MOST_MATCHES = 20_000
"""Matches in the table that MLflow gets."""
_SHOWN = 50
"""Matches of each set on the page."""
_ORDER = [
    (name, "descending" if name in ("share", "ngrams") else "ascending")
    for name in ("share", "ngrams", "set", "item", "id")
]


class Result(NamedTuple):
    """What was found in all parts.

    Attributes:
        documents: number of documents looked at.
        contaminated: of those, how many contain an n-gram of an item.
        sets: table of SETS, in the order of the recipe.
        largest: table of ITEM_MATCH: the largest matches, by descending share.
        by_set: the same of each set, for the page.
    """

    documents: int
    contaminated: int
    sets: pa.Table
    largest: pa.Table
    by_set: dict[str, pa.Table]


def collect(items: pa.Table, sizes: NDArray[np.int64], store: Store, folder: str, names: Iterable[str]) -> Result:
    """Adds up the parts; memory is bounded by the items, MOST_MATCHES and one part.

    Args:
        items: table of `index.ITEMS`.
        sizes: n-grams of each item that are not common, shape (items,).
        store: store of the stage's artifact.
        folder: its folder.
        names: of the parts.
    """
    documents = contaminated = 0
    found: set[tuple[str, str]] = set()
    by_document: Counter[str] = Counter()
    largest, by_set = ITEM_MATCH.empty_table(), dict[str, pa.Table]()
    for name in names:
        column = parquet.read(store.local(f"{folder}/{CONTAMINATION}/{name}.parquet")).column(CONTAMINATED)
        documents, contaminated = documents + len(column), contaminated + len(column) - column.null_count
        matches = parquet.read(store.local(f"{folder}/{MATCHES}/{name}.parquet"))
        found.update(zip(matches.column("set").to_pylist(), matches.column("item").to_pylist(), strict=True))
        by_document.update(matches.group_by(["set", "id"]).aggregate([]).column("set").to_pylist())
        largest = _largest([largest, matches], MOST_MATCHES)
        for group in matches.column("set").unique().to_pylist():
            mine = matches.filter(pc.equal(matches.column("set"), group))
            by_set[group] = _largest([by_set.get(group, ITEM_MATCH.empty_table()), mine], _SHOWN)
    items_found = Counter(group for group, _ in found)
    rows = []
    of_set = items.column("set").to_numpy(zero_copy_only=False)
    short = items.column("ngrams").to_numpy() == 0
    for group in dict.fromkeys(of_set.tolist()):
        own = of_set == group
        counts = own.sum(), (own & short).sum(), (own & ~short & (sizes == 0)).sum()
        rows.append((group, *map(int, counts), items_found[group], by_document[group]))
    table = pa.Table.from_pylist([dict(zip(SETS.names, row, strict=True)) for row in rows], schema=SETS)
    return Result(documents, contaminated, table, largest, by_set)


def _largest(tables: list[pa.Table], most: int) -> pa.Table:
    return pa.concat_tables(tables).sort_by(_ORDER).slice(0, most).combine_chunks()


def write(part: Part, config: DecontaminateConfig, items: pa.Table, result: Result) -> None:
    """Writes the table and the page."""
    with part.file(SETS_FILE, rows=result.sets.num_rows) as file:
        pq.write_table(result.sets, file, compression="zstd", compression_level=3)
    with part.file(PAGE) as file:
        file.write(page(config, items, result))


def page(config: DecontaminateConfig, items: pa.Table, result: Result) -> bytes:
    """Returns the page as HTML in UTF-8, without scripts and external resources."""
    beginnings = _beginnings(items, result.by_set.values())
    described: dict[str, Any] = {
        "ngram": config.ngram,
        "shortest": config.shortest,
        "common": config.common,
        "documents": result.documents,
        "contaminated": result.contaminated,
        "sets": result.sets.to_pylist(),
        "matches": [
            (row["set"], [{**match, "beginning": beginnings[match["set"], match["item"]]} for match in by_row])
            for row in result.sets.to_pylist()
            if (by_row := result.by_set[row["set"]].to_pylist() if row["set"] in result.by_set else [])
        ],
    }
    return template(__package__, "report.html").render(described).encode("utf-8", "replace")


def _beginnings(items: pa.Table, shown: Iterable[pa.Table]) -> dict[tuple[str, str], str]:
    """Returns the beginnings of the items that are shown, by set and id; of equal ids that of the first."""
    wanted = {(row["set"], row["item"]) for table in shown for row in table.select(["set", "item"]).to_pylist()}
    listed = items.filter(pc.is_in(items.column("id"), pa.array(sorted({item for _, item in wanted}), pa.string())))
    found: dict[tuple[str, str], str] = {}
    for row in listed.to_pylist():
        found.setdefault((row["set"], row["id"]), row["beginning"])
    return found


def as_csv(table: pa.Table) -> bytes:
    """Returns a table as CSV, which MLflow shows as a table."""
    file = io.BytesIO()
    pa_csv.write_csv(table, file)
    return file.getvalue()


def metrics(result: Result) -> dict[str, float]:
    """Returns the numbers of the record and of MLflow."""
    found = {
        f"{name}/{row['set']}": float(row[name]) for row in result.sets.to_pylist() for name in ("found", "documents")
    }
    return {"documents": float(result.documents), "contaminated": float(result.contaminated), **found}


def note(result: Result) -> str:
    """Returns one line for people."""
    rows = result.sets.to_pylist()
    per_set = ", ".join(f"{row['found']:,} of {row['items']:,} items of {row['set']}" for row in rows if row["found"])
    line = f"{result.contaminated:,} of {result.documents:,} documents contain {per_set or 'no item'}"
    short = sum(row["too_short"] for row in rows)
    return f"{line}; {short:,} items are too short to look for" if short else line
