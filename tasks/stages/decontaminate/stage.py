"""Stage decontaminate: documents and evaluation sets -> evaluation items in each document.

Reads `extracted` (documents/) and the files of the sets. Writes

    index/                  items and n-grams of the sets (`index`)
    hits/ counts/           per part, occurrences of n-grams, and the texts with each (`passes`)
    common.parquet          numbers and hashes of the n-grams that are common in the corpus
    contamination/ matches/ per part, the verdicts (`tasks.formats.documents.document`)
    sets.parquet            per set: items, those too short, common and found, and documents (SETS)
    report.html             the same as a page, with the largest matches; also in MLflow, with `matches.csv`

Documents are neither dropped nor changed here; consolidate drops them.

    index    in this process          items -> n-grams
    scan     per part, on workers     the only pass over the texts
    common   in this process          n-grams to ignore
    judge    per part, on workers     shares and spans

Memory of this process: some 30 bytes per n-gram of the sets, and up to 16 x (`common` + 1) bytes per n-gram found.
"""

import io
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.engine import Engine
from tasks.core.pages import template
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report
from tasks.formats.documents.document import (
    CONTAMINATED,
    CONTAMINATION,
    ITEM_MATCH,
    MATCHES,
    SETS_FILE,
    parts_of,
)
from tasks.formats.hooks import Hooks, words_version
from tasks.stages.decontaminate import DecontaminateConfig
from tasks.stages.decontaminate.index import ITEMS_FILE, build_index, files_of, read_items, write_index
from tasks.stages.decontaminate.passes import (
    COMMON_FILE,
    COUNTS,
    Workspace,
    judge_part,
    scan_part,
    searched_ngrams,
    smallest_texts,
)

VERSION = 1
_COMMON = pa.schema([pa.field("ngram", pa.int64(), nullable=False), pa.field("hash", pa.uint64(), nullable=False)])
PAGE = "report.html"

SETS = pa.schema(
    [
        pa.field("set", pa.string(), nullable=False),
        pa.field("items", pa.int64(), nullable=False),
        pa.field("too_short", pa.int64(), nullable=False),  # items with too few words to search for
        pa.field("common", pa.int64(), nullable=False),  # items whose n-grams are all common
        pa.field("found", pa.int64(), nullable=False),  # items with an n-gram in a document
        pa.field("documents", pa.int64(), nullable=False),  # documents with an n-gram of an item
    ]
)

MOST_MATCHES = 20_000
"""Maximum number of matches in the table for MLflow."""

_SHOWN = 50
"""Maximum number of matches of each set on the page."""

_ORDER = [
    (name, "descending" if name in ("share", "ngrams") else "ascending")
    for name in ("share", "ngrams", "set", "item", "id")
]


def external(config: DecontaminateConfig) -> dict[str, list[str]]:
    """Returns the local paths of the sets' files, by role `evaluation:<set>`; the fingerprint includes their bytes."""
    return {f"evaluation:{settings.name}": [file.local() for file in files_of(settings)] for settings in config.sets}


HOOKS = Hooks(external=external, code=words_version)


def run(config: DecontaminateConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Searches all documents for the items.

    Raises:
        InputError: there is no document, or a set cannot be read (`index.read_items`).
    """
    extracted = inputs["extracted"]
    names = parts_of(extracted)
    work = Workspace(config.ngram, config.common, extracted.folder, output.folder)
    if "index" not in output.committed:
        tables = build_index(config, (item for settings in config.sets for item in read_items(settings)))
        with output.part("index", conserved=False) as part:
            write_index(part, *tables)
    scans = [PartSpec(f"scan-{name}", name) for name in names]
    output.map_parts(engine, partial(scan_part, work), scans, conserved=False)
    if "common" not in output.committed:
        _write_common(work, names, output)
    output.map_parts(engine, partial(judge_part, work), [PartSpec(name, name) for name in names])
    index, items = work.index(), work.own.table(ITEMS_FILE)
    result = collect(items, searched_ngrams(index, work.is_common(index)), work.own, names)
    if "report" not in output.committed:
        with output.part("report", conserved=False) as part:
            write_report(part, config, items, result)
    output.log_file("report.html", work.own.read(PAGE))
    output.log_file("matches.csv", as_csv(result.largest))
    return Report(metrics=_metrics(result), note=_note(result))


def _write_common(work: Workspace, names: Iterable[str], output: Output) -> None:
    """Writes the n-grams that occur in more than `common` texts, over all parts."""
    counts = COUNTS.empty_table()
    for name in names:
        counts = smallest_texts([counts, work.own.table(f"counts/{name}.parquet")], work.most + 1)
    numbers, texts = np.unique(counts.column("ngram").to_numpy(), return_counts=True)
    common = numbers[texts > work.most]
    table = pa.table([common, work.index().hashes[common]], schema=_COMMON)
    with output.part("common", conserved=False) as part:
        part.write_table(COMMON_FILE, table)


class DecontaminationResult(NamedTuple):
    """Results over all parts.

    Attributes:
        documents: number of documents.
        contaminated: number of documents with an n-gram of an item.
        sets: table of SETS, in the order of the recipe.
        largest: table of ITEM_MATCH: the largest matches, by descending share.
        by_set: the largest matches of each set, for the page.
    """

    documents: int
    contaminated: int
    sets: pa.Table
    largest: pa.Table
    by_set: dict[str, pa.Table]


def collect(
    items: pa.Table, sizes: NDArray[np.int64], own: ArtifactFolder, names: Iterable[str]
) -> DecontaminationResult:
    """Aggregates the parts; memory is bounded by the items, MOST_MATCHES and one part.

    Args:
        items: table of `index.ITEMS`.
        sizes: number of n-grams of each item that are not common, shape (n_items,).
        own: folder of the stage's artifact.
        names: names of the parts.
    """
    documents = contaminated = 0
    matched: set[tuple[str, str]] = set()
    by_document: Counter[str] = Counter()
    largest, by_set = ITEM_MATCH.empty_table(), dict[str, pa.Table]()
    for name in names:
        column = own.table(f"{CONTAMINATION}/{name}.parquet").column(CONTAMINATED)
        documents, contaminated = documents + len(column), contaminated + len(column) - column.null_count
        matches = own.table(f"{MATCHES}/{name}.parquet")
        matched.update(zip(matches.column("set").to_pylist(), matches.column("item").to_pylist(), strict=True))
        by_document.update(matches.group_by(["set", "id"]).aggregate([]).column("set").to_pylist())
        largest = _largest([largest, matches], MOST_MATCHES)
        for group in matches.column("set").unique().to_pylist():
            of_group = matches.filter(pc.equal(matches.column("set"), group))
            by_set[group] = _largest([by_set.get(group, ITEM_MATCH.empty_table()), of_group], _SHOWN)
    matched_items = Counter(group for group, _ in matched)
    rows = []
    of_set = items.column("set").to_numpy(zero_copy_only=False)
    is_short = items.column("ngrams").to_numpy() == 0
    for group in dict.fromkeys(of_set.tolist()):
        is_of_group = of_set == group
        counts = is_of_group.sum(), (is_of_group & is_short).sum(), (is_of_group & ~is_short & (sizes == 0)).sum()
        rows.append((group, *map(int, counts), matched_items[group], by_document[group]))
    table = pa.Table.from_pylist([dict(zip(SETS.names, row, strict=True)) for row in rows], schema=SETS)
    return DecontaminationResult(documents, contaminated, table, largest, by_set)


def _largest(tables: list[pa.Table], most: int) -> pa.Table:
    return pa.concat_tables(tables).sort_by(_ORDER).slice(0, most).combine_chunks()


def write_report(part: Part, config: DecontaminateConfig, items: pa.Table, result: DecontaminationResult) -> None:
    """Writes the table and the page."""
    part.write_table(SETS_FILE, result.sets)
    part.write(PAGE, page(config, items, result))


def page(config: DecontaminateConfig, items: pa.Table, result: DecontaminationResult) -> bytes:
    """Returns the page as HTML in UTF-8, without scripts and external resources."""
    beginnings = _beginnings(items, result.by_set.values())
    context: dict[str, Any] = {
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
    return template(__package__, "report.html").render(context).encode("utf-8", "replace")


def _beginnings(items: pa.Table, tables: Iterable[pa.Table]) -> dict[tuple[str, str], str]:
    """Returns the beginnings of the items in these tables, by set and id; of equal ids, that of the first."""
    matched = {(row["set"], row["item"]) for table in tables for row in table.select(["set", "item"]).to_pylist()}
    listed = items.filter(pc.is_in(items.column("id"), pa.array(sorted({item for _, item in matched}), pa.string())))
    beginnings: dict[tuple[str, str], str] = {}
    for row in listed.to_pylist():
        beginnings.setdefault((row["set"], row["id"]), row["beginning"])
    return beginnings


def as_csv(table: pa.Table) -> bytes:
    """Returns a table as CSV, which MLflow shows as a table."""
    file = io.BytesIO()
    pa_csv.write_csv(table, file)
    return file.getvalue()


def _metrics(result: DecontaminationResult) -> dict[str, float]:
    """Returns the metrics for the record and MLflow."""
    by_set = {
        f"{name}/{row['set']}": float(row[name]) for row in result.sets.to_pylist() for name in ("found", "documents")
    }
    return {"documents": float(result.documents), "contaminated": float(result.contaminated), **by_set}


def _note(result: DecontaminationResult) -> str:
    """Returns the note of the record."""
    rows = result.sets.to_pylist()
    per_set = ", ".join(f"{row['found']:,} of {row['items']:,} items of {row['set']}" for row in rows if row["found"])
    line = f"{result.contaminated:,} of {result.documents:,} documents contain {per_set or 'no item'}"
    short = sum(row["too_short"] for row in rows)
    return f"{line}; {short:,} items are too short to look for" if short else line
