"""Resolution of duplicates among the documents that pass the filters.

Dedup chooses keepers among all documents; here the same rule (`tasks.formats.dedup.duplicates`) is applied to the
documents that pass, so that the copies of a keeper that is dropped for its quality or language are not lost. Before it,
of several captures of a page the newest that passes is chosen. Documents of the dedup index take part in both: an
earlier version has published them, and only a takedown can keep them from passing.

Reads `duplicates` (clusters, order of preference in each, verified pairs, pages) and small columns of `extracted` and
`attributes`, in passes that resume part by part and are no part of the artifact:

    captures/<part>.bin      per part     a run of CAPTURE; where a page has several captures
    newest/<bucket>.bin      per bucket   a run of DROPPED: the older captures
    survivors/<part>.bin     per part     a run of MEMBER: the documents with a copy that pass and are no older capture
    resolved/<bucket>.bin    per bucket   a run of DROPPED: those of them to drop

A bucket of the last pass is one of dedup's: some clusters, and the file of `pairs/` with all pairs of these. Memory is
bounded by the largest part and the largest bucket, about 500 bytes for each document of the bucket.

Writes `replaced/<part>.parquet` (schema REPLACED): documents of the dedup index that this version replaces, which the
next index leaves out.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.engine import Engine
from tasks.core.part import Part, PartSpec
from tasks.core.stage import Output
from tasks.formats.dedup import document_ids, sorted_runs
from tasks.formats.dedup.document_ids import HALVES, range_of, row_ids_of, row_of
from tasks.formats.dedup.duplicates import choose
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.stages.consolidate.aligned_inputs import AlignedInputs, AlignedParts, Numbered
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.rules import DUPLICATE, reasons

MEMBER = np.dtype(
    [("key", "<u8"), ("row_id", "<u8"), ("id", HALVES), ("cluster", HALVES), ("text", HALVES), ("rank", "<u4")]
)
"""A document of a cluster, by the number of its bucket. `rank` is its position in the order of preference there."""

CAPTURE = np.dtype(
    [("key", "<u8"), ("row_id", "<u8"), ("id", HALVES), ("text", HALVES), ("fetched", "<i8"), ("earlier", "u1")]
)
"""A document by the hash of its page. `text` as in `duplicates`, its own id where no other has its text; `fetched` in
milliseconds, the least integer where it is unknown; `earlier`: of the dedup index."""

_COPY = ["id", "cluster", "text", "rank", "bucket", "page"]

COPIES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("duplicate_of", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("jaccard", pa.float32(), nullable=False),  # 0 of an older capture: not compared
    ]
)

DROPPED = np.dtype([("key", "<u8"), ("id", HALVES), ("keeper", HALVES), ("kind", "u1"), ("jaccard", "<f4")])
"""A document to drop, by its row id."""

_KINDS = ("exact", "near", "page")

_PER_BUCKET = 1_000_000
"""Captures per bucket of pages, about."""

REPLACED_FOLDER = "replaced"

REPLACED = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),  # duplicate_page: its page was captured again
        pa.field("replaced_by", pa.string(), nullable=False),  # id of a document of this version
        pa.field("row", pa.int64(), nullable=False),  # its row in the part of the index
    ]
)


def resolve_parts(
    config: ConsolidateConfig, aligned: AlignedParts, inputs: AlignedInputs, output: Output, engine: Engine
) -> list[str]:
    """Runs the passes on the engine; returns the runs of DROPPED."""
    if not config.dedup:
        return []
    pairs, parts = inputs.pairs(), inputs.numbered()

    def over(fn: Callable[..., None], folder: str) -> list[str]:
        specs = [PartSpec(f"{folder}-{part.name}", part) for part in parts]
        output.map_parts(engine, fn, specs, conserved=False)
        return [f"{folder}/{part.name}.bin" for part in parts]

    newest = Buckets(
        "newest", sorted_runs.bucket_count(several, _PER_BUCKET) if (several := inputs.recaptured()) else 0
    )
    if newest.count:
        paths = over(partial(captures_part, config, aligned), "captures")
        specs = [PartSpec(newest.name(number), number) for number in range(newest.count)]
        output.map_parts(engine, partial(newest_part, aligned, paths, newest), specs, conserved=False)
    made = Buckets("resolved", len(pairs))
    if made.count:
        paths = over(partial(survivors_part, config, aligned, newest), "survivors")
        buckets = [PartSpec(made.name(number), (number, path)) for number, path in enumerate(pairs)]
        output.map_parts(engine, partial(resolved_part, aligned, paths, made), buckets, conserved=False)
    return [*newest.paths(), *made.paths()]


def leave_out(output: Output) -> None:
    """Leaves what the passes have written out of the artifact."""
    passes = ("captures-", "newest-", "survivors-", "resolved-")
    output.leave_out([name for name in output.committed if name.startswith(passes)])


def resolve(config: ConsolidateConfig, inputs: AlignedInputs) -> dict[str, pa.Table]:
    """Returns for every part the documents to drop (schema COPIES), in row order; writes nothing.

    In this process, with 100 bytes for each document that has a copy and passes.
    """
    pairs, parts = inputs.pairs(), inputs.numbered()
    if not config.dedup:
        return dict.fromkeys(inputs.names(), COPIES.empty_table())
    of_pages = [captures(config, inputs.parts, part) for part in parts] if inputs.recaptured() else []
    found = [np.empty(0, DROPPED), older_captures(np.concatenate([np.empty(0, CAPTURE), *of_pages]))]
    older = found[1]["key"]
    held = sorted_runs.by_key(np.concatenate([members(config, inputs.parts, part) for part in parts]))
    held = held[~np.isin(held["row_id"], older)]
    for number, path in enumerate(pairs):
        first, end = np.searchsorted(held["key"], [number, number + 1])
        found.append(dropped(held[first:end], inputs.parts.duplicates.table(path)))
    copies = sorted_runs.by_key(np.concatenate(found))
    bounds = np.searchsorted(copies["key"], [range_of(number)[0] for number in range(len(parts) + 1)])
    return {
        part.name: copies_of(copies[bounds[part.number] : bounds[part.number + 1]])
        for part in parts
        if not part.earlier
    }


def captures_part(config: ConsolidateConfig, aligned: AlignedParts, part: Part, numbered: Numbered) -> None:
    """Writes the captures of one part; runs on a worker."""
    sorted_runs.write(part, f"captures/{numbered.name}.bin", [captures(config, aligned, numbered)])


def newest_part(aligned: AlignedParts, paths: list[str], made: Buckets, part: Part, number: int) -> None:
    """Writes the older captures of one bucket of pages; runs on a worker."""
    found = older_captures(sorted_runs.read_bucket(aligned.own_folder, paths, CAPTURE, number, made.count))
    sorted_runs.write(part, made.path(number), [sorted_runs.by_key(found)])


def survivors_part(
    config: ConsolidateConfig, aligned: AlignedParts, newest: Buckets, part: Part, numbered: Numbered
) -> None:
    """Writes the survivors of one part; runs on a worker."""
    older = _of_part(aligned, newest.paths(), numbered.number)["key"]
    found = members(config, aligned, numbered)
    sorted_runs.write(part, f"survivors/{numbered.name}.bin", [found[~np.isin(found["row_id"], older)]])


def resolved_part(aligned: AlignedParts, paths: list[str], made: Buckets, part: Part, item: tuple[int, str]) -> None:
    """Writes what is dropped of one bucket, given by its number and its file of pairs; runs on a worker."""
    number, pairs = item
    found = sorted_runs.read_range(aligned.own_folder, paths, MEMBER, number, number + 1)
    dropped_ = dropped(found, aligned.duplicates.table(pairs))
    sorted_runs.write(part, made.path(number), [sorted_runs.by_key(dropped_)])


def resolved(aligned: AlignedParts, runs: list[str], number: int) -> pa.Table:
    """Returns what is dropped of the part with a number (schema COPIES), in row order."""
    return copies_of(_of_part(aligned, runs, number))


def rows_resolved(aligned: AlignedParts, runs: list[str], number: int) -> tuple[NDArray[np.int64], pa.Table]:
    """Returns the rows of what is dropped of the part with a number, and `resolved` of it."""
    found = _of_part(aligned, runs, number)
    return row_of(found["key"]), copies_of(found)


def _of_part(aligned: AlignedParts, runs: list[str], number: int) -> NDArray[np.void]:
    return sorted_runs.by_key(sorted_runs.read_range(aligned.own_folder, runs, DROPPED, *range_of(number)))


def older_captures(found: NDArray[np.void]) -> NDArray[np.void]:
    """Returns the captures to drop (dtype DROPPED): all but the newest of each page, of equal times the smallest id.

    A document that is captured again with the same bytes has the same id, and replaces nothing. Nor does one with the
    text that an earlier version has published of the page: that one stands for the page, and this is its exact copy.

    Args:
        found: dtype CAPTURE, all that pass of some pages, in any order.
    """
    ids = found["id"]
    found = found[np.lexsort((ids[:, 1], ids[:, 0], ~found["fetched"], found["key"]))]
    new_page = np.append(True, found["key"][1:] != found["key"][:-1])[: len(found)]
    newest = np.maximum.accumulate(np.where(new_page, np.arange(len(found)), 0))
    same_text = (found["text"] == found["text"][newest]).all(axis=1)
    published = np.flatnonzero(same_text & (found["earlier"] == 1))
    stands = np.arange(len(found))
    page, first = np.unique(newest[published], return_index=True)
    stands[page] = published[first]
    stands = stands[newest]
    # Of the captures with the text that stays, only the newest is left to the comparison of texts.
    spared = np.arange(len(found)) == newest
    goes = np.flatnonzero((found["id"] != found["id"][stands]).any(axis=1) & ~spared)
    gone = np.zeros(len(goes), DROPPED)
    gone["key"], gone["id"], gone["keeper"] = found["row_id"][goes], found["id"][goes], found["id"][stands[goes]]
    gone["kind"] = _KINDS.index("page")
    return gone


def dropped(found: NDArray[np.void], pairs: pa.Table) -> NDArray[np.void]:
    """Applies the rule to the survivors of some clusters; returns those to drop (dtype DROPPED).

    Args:
        found: dtype MEMBER, in any order.
        pairs: all verified pairs of these clusters: better, worse, jaccard.
    """
    cluster = found["cluster"]
    found = found[np.lexsort((found["rank"], cluster[:, 1], cluster[:, 0]))]
    texts, linked, jaccard = _numbered(document_ids.unpack(found["text"]), pairs)
    choice = choose(texts, linked, jaccard)
    # A document that an earlier version has published, too, is no duplicate of itself.
    goes = np.flatnonzero((found["id"] != found["id"][choice.keeper]).any(axis=1))
    keeper = choice.keeper[goes]
    gone = np.empty(len(goes), DROPPED)
    gone["key"], gone["id"], gone["keeper"] = found["row_id"][goes], found["id"][goes], found["id"][keeper]
    gone["kind"] = np.where(texts[keeper] == texts[goes], _KINDS.index("exact"), _KINDS.index("near"))
    gone["jaccard"] = choice.jaccard[goes]
    return gone


def _numbered(texts: pa.Array, pairs: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Returns the texts as numbers, and the pairs of these texts, shape (pairs, 2), with their similarities."""
    known = pc.unique(texts)
    sides = [pc.index_in(pairs.column(side), value_set=known) for side in ("better", "worse")]
    both = pc.and_(sides[0].is_valid(), sides[1].is_valid())
    linked = np.stack([side.filter(both).to_numpy().astype(np.int64) for side in sides], axis=1)
    numbers = pc.index_in(texts, value_set=known).to_numpy().astype(np.int64)
    return numbers, linked, pairs.column("jaccard").filter(both).to_numpy()


def copies_of(found: NDArray[np.void]) -> pa.Table:
    """Returns dropped documents (dtype DROPPED) as a table (schema COPIES)."""
    kinds = pa.array(_KINDS).take(pa.array(found["kind"]))
    columns = [
        document_ids.unpack(found["id"]),
        document_ids.unpack(found["keeper"]),
        kinds,
        pa.array(found["jaccard"]),
    ]
    return pa.table(columns, schema=COPIES)


def members(config: ConsolidateConfig, aligned: AlignedParts, part: Numbered) -> NDArray[np.void]:
    """Returns the documents of one part that have a copy and pass (dtype MEMBER), sorted by bucket."""
    rows, mine = _passing(config, aligned, part, "cluster")
    found = np.empty(len(rows), MEMBER)
    found["key"], found["rank"] = mine.column("bucket").to_numpy(), mine.column("rank").to_numpy()
    found["row_id"] = row_ids_of(part.number, rows)
    for column in ("id", "cluster", "text"):
        found[column] = document_ids.pack(mine.column(column))
    return sorted_runs.by_key(found)


def captures(config: ConsolidateConfig, aligned: AlignedParts, part: Numbered) -> NDArray[np.void]:
    """Returns the documents of one part whose page has other captures, and that pass (dtype CAPTURE), by page."""
    rows, mine = _passing(config, aligned, part, "page")
    found = np.empty(len(rows), CAPTURE)
    found["key"], found["row_id"] = mine.column("page").to_numpy(), row_ids_of(part.number, rows)
    for column, values in (("id", mine["id"]), ("text", pc.coalesce(mine["text"], mine["id"]))):
        found[column] = document_ids.pack(values)
    found["earlier"] = part.earlier
    found["fetched"] = pc.fill_null(mine.column("fetched_at").cast(pa.int64()), np.iinfo(np.int64).min).to_numpy()
    return sorted_runs.by_key(found)


def _passing(
    config: ConsolidateConfig, aligned: AlignedParts, part: Numbered, about: str
) -> tuple[NDArray[np.int64], pa.Table]:
    """Returns the rows of the documents that pass among those with a value of `about`, and what dedup says of them."""
    if part.earlier:
        held = aligned.earlier(part.name)
        stays = held.column(about).is_valid().to_numpy() & ~aligned.takedown_mask(held)
        mine = held.filter(pa.array(stays))
        return mine.column("row").to_numpy().astype(np.int64), mine
    documents, judged, copies = aligned.part(part.name, ["id", "source", "fetched_at"], config.filters, _COPY)
    concerned = copies.column(about).is_valid()
    gone = aligned.taken_down(part.name, documents.num_rows)[concerned.to_numpy()]
    why = reasons(config, documents.column("source").filter(concerned), judged.filter(concerned), gone)
    passes = pa.array([not row for row in why], pa.bool_())
    rows = np.flatnonzero(concerned.to_numpy())[passes.to_numpy(zero_copy_only=False)]
    mine = copies.append_column("fetched_at", documents.column("fetched_at"))
    return rows, mine.filter(concerned).filter(passes)


def write_replaced(
    aligned: AlignedParts, inputs: AlignedInputs, runs: list[str], output: Output, engine: Engine
) -> int:
    """Writes the documents that leave, part by part of the index; returns their number."""
    specs = [PartSpec(part.name, part) for part in inputs.numbered() if part.earlier]
    records = output.map_parts(engine, partial(replaced_part, aligned, runs), specs, conserved=False)
    return int(sum(record.metrics[REPLACED_FOLDER] for record in records))


def replaced_part(aligned: AlignedParts, runs: list[str], part: Part, numbered: Numbered) -> None:
    """Writes those of one part; runs on a worker."""
    rows, gone = rows_resolved(aligned, runs, numbered.number)
    reasons = pa.array([f"{DUPLICATE}{kind}" for kind in gone.column("kind").to_pylist()], pa.string())
    columns = [gone.column("id"), reasons, gone.column("duplicate_of"), pa.array(rows)]
    part.table(REPLACED_FOLDER, pa.table(columns, schema=REPLACED), out=False)
    part.metric(REPLACED_FOLDER, len(rows))
