"""Resolution of duplicates among the documents that pass the filters.

Dedup chooses a keeper among all documents of a cluster. Here the same rule (`tasks.formats.dedup.duplicates`) is
applied to the documents that pass, so that no text is lost because its keeper is dropped for its quality or language.
Before that, the newest capture that passes is chosen for each page. Documents of the dedup index are included in both
steps: an earlier version has published them, and they pass unless they are taken down.

Reads `duplicates` (clusters, their orders of preference, verified pairs, pages) and small columns of `extracted` and
`attributes`. Writes intermediate files, which are not in the artifact, in passes that resume by part:

    captures/<part>.bin      per part     a run of CAPTURE: documents of pages with several captures
    newest/<bucket>.bin      per bucket   a run of DROPPED: the older captures
    survivors/<part>.bin     per part     a run of MEMBER: documents that have a copy, pass, and are not older captures
    resolved/<bucket>.bin    per bucket   a run of DROPPED: the survivors to drop

A bucket of the last pass is a bucket of dedup: some clusters, and the file of `pairs/` with all pairs of these. Memory
is bounded by the largest part and the largest bucket, at about 500 bytes per document of the bucket.

Writes `replaced/<part>.parquet` (schema REPLACED): documents of the dedup index that this version replaces; the next
index omits them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.engine import Engine
from tasks.core.merges.range_merge import Source
from tasks.core.part import Part, PartSpec
from tasks.core.stage import Output
from tasks.formats.dedup import document_ids, sorted_runs
from tasks.formats.dedup.document_ids import HALVES, range_of, row_ids_of, row_of
from tasks.formats.dedup.duplicates import choose
from tasks.formats.dedup.exchange import Exchange, exchange, exchange_by_part, runs_of
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.stages.consolidate.aligned_inputs import AlignedInputs, AlignedParts, NumberedPart
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.rules import DUPLICATE, reasons

MEMBER = np.dtype(
    [("key", "<u8"), ("row_id", "<u8"), ("id", HALVES), ("cluster", HALVES), ("text", HALVES), ("rank", "<u4")]
)
"""A document of a cluster. `key` is the number of its bucket, `rank` its position in the cluster's preference order."""

CAPTURE = np.dtype(
    [("key", "<u8"), ("row_id", "<u8"), ("id", HALVES), ("text", HALVES), ("fetched", "<i8"), ("earlier", "u1")]
)
"""A document of a page. `key` is the hash of the page; `text` is as in `duplicates`, or the document's own id if no
other document has its text; `fetched` is in milliseconds, or the least integer if unknown; `earlier` is 1 for a
document of the dedup index."""

_COPY = ["id", "cluster", "text", "rank", "bucket", "page"]

COPIES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("duplicate_of", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("jaccard", pa.float32(), nullable=False),  # 0 for an older capture, whose text is not compared
    ]
)

DROPPED = np.dtype([("key", "<u8"), ("id", HALVES), ("keeper", HALVES), ("kind", "u1"), ("jaccard", "<f4")])
"""A document to drop. `key` is its row id."""

_KINDS = ("exact", "near", "page")

_PER_BUCKET = 1_000_000
"""Approximate number of captures per bucket of pages."""

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
) -> Exchange:
    """Runs the passes on the engine; returns the documents to drop (dtype DROPPED) by part."""
    pairs = pairs_by_bucket(inputs) if config.dedup else []
    parts, recaptured = inputs.numbered(), inputs.recaptured() if config.dedup else 0

    def run_over_parts(fn: Callable[..., None], folder: str, dtype: "np.dtype[Any]") -> list[Source]:
        specs = [PartSpec(f"{folder}-{part.name}", part) for part in parts]
        return runs_of(output.map_parts(engine, fn, specs, conserved=False), folder, dtype)

    def run_over_buckets(fn: Callable[..., None], folder: str, payloads: Sequence[Any]) -> list[Source]:
        buckets = Buckets(folder, len(payloads))
        specs = [PartSpec(buckets.name(number), payload) for number, payload in enumerate(payloads)]
        return runs_of(output.map_parts(engine, partial(fn, buckets), specs, conserved=False), folder, DROPPED)

    def by_part(name: str, runs: Sequence[Source]) -> Exchange:
        earlier = sum(part.earlier for part in parts)
        return exchange_by_part(name, DROPPED, output, engine, runs, _PER_BUCKET, earlier, len(parts) - earlier)

    older = list[Source]()
    if recaptured:
        count = sorted_runs.bucket_count(recaptured, _PER_BUCKET)
        runs = run_over_parts(partial(captures_part, config, aligned), "captures", CAPTURE)
        pages = exchange("newest", CAPTURE, output, engine, runs, _PER_BUCKET, count)
        older = run_over_buckets(partial(newest_part, aligned, pages), "newest", range(count))
    if not pairs:
        return by_part("parts", older)
    passing = partial(survivors_part, config, aligned, by_part("survivors", older))
    runs = run_over_parts(passing, "survivors", MEMBER)
    members = exchange("resolved", MEMBER, output, engine, runs, _PER_BUCKET, len(pairs), keys=len(pairs))
    resolved = run_over_buckets(partial(resolved_part, aligned, members), "resolved", list(enumerate(pairs)))
    return by_part("parts", older + resolved)


def pairs_by_bucket(inputs: AlignedInputs) -> list[str]:
    """Returns the files of the verified pairs by number; from 100,000 on this is not the order of their names."""
    return Buckets("pairs", len(inputs.duplicates.files("pairs/"))).paths("parquet")


def leave_out(output: Output) -> None:
    """Excludes the files of the passes from the artifact."""
    passes = ("captures-", "newest-", "survivors-", "resolved-")
    output.leave_out([name for name in output.committed if name.startswith(passes)])


def resolve(config: ConsolidateConfig, inputs: AlignedInputs) -> dict[str, pa.Table]:
    """Returns, for every part, the documents to drop (schema COPIES), in row order; writes nothing.

    Runs in this process and takes 100 bytes per document that has a copy and passes.
    """
    pairs, parts = pairs_by_bucket(inputs), inputs.numbered()
    if not config.dedup:
        return dict.fromkeys(inputs.names(), COPIES.empty_table())
    of_pages = [captures(config, inputs.parts, part) for part in parts] if inputs.recaptured() else []
    dropped = [np.empty(0, DROPPED), older_captures(np.concatenate([np.empty(0, CAPTURE), *of_pages]))]
    older = dropped[1]["key"]
    survivors = sorted_runs.by_key(np.concatenate([members(config, inputs.parts, part) for part in parts]))
    survivors = survivors[~np.isin(survivors["row_id"], older)]
    for number, path in enumerate(pairs):
        first, end = np.searchsorted(survivors["key"], [number, number + 1])
        dropped.append(resolve_clusters(survivors[first:end], inputs.parts.duplicates.table(path)))
    sorted_drops = sorted_runs.by_key(np.concatenate(dropped))
    bounds = np.searchsorted(sorted_drops["key"], [range_of(number)[0] for number in range(len(parts) + 1)])
    return {
        part.name: copies_of(sorted_drops[bounds[part.number] : bounds[part.number + 1]])
        for part in parts
        if not part.earlier
    }


def captures_part(config: ConsolidateConfig, aligned: AlignedParts, part: Part, part_of_input: NumberedPart) -> None:
    """Writes the captures of one part; runs on a worker."""
    sorted_runs.write(part, f"captures/{part_of_input.name}.bin", [captures(config, aligned, part_of_input)])


def newest_part(aligned: AlignedParts, pages: Exchange, buckets: Buckets, part: Part, number: int) -> None:
    """Writes the older captures of one bucket of pages; runs on a worker."""
    older = older_captures(pages.records(aligned.own_folder, number))
    sorted_runs.write(part, buckets.path(number), [sorted_runs.by_key(older)])


def survivors_part(
    config: ConsolidateConfig, aligned: AlignedParts, older: Exchange, part: Part, part_of_input: NumberedPart
) -> None:
    """Writes the survivors of one part; runs on a worker."""
    survivors = members(config, aligned, part_of_input)
    is_older = np.isin(survivors["row_id"], older.records(aligned.own_folder, part_of_input.number)["key"])
    sorted_runs.write(part, f"survivors/{part_of_input.name}.bin", [survivors[~is_older]])


def resolved_part(
    aligned: AlignedParts, members: Exchange, buckets: Buckets, part: Part, item: tuple[int, str]
) -> None:
    """Writes the documents to drop of one bucket, given its number and its file of pairs; runs on a worker."""
    number, pairs = item
    copies = resolve_clusters(members.records(aligned.own_folder, number), aligned.duplicates.table(pairs))
    sorted_runs.write(part, buckets.path(number), [sorted_runs.by_key(copies)])


def copies_in_part(aligned: AlignedParts, dropped: Exchange, number: int) -> pa.Table:
    """Returns the documents to drop of the part with this number (schema COPIES), in row order."""
    return copies_of(sorted_runs.by_key(dropped.records(aligned.own_folder, number)))


def older_captures(captures: NDArray[np.void]) -> NDArray[np.void]:
    """Returns the captures to drop (dtype DROPPED): all but the newest of each page; of equal times, the smallest id.

    A document that is captured again with the same bytes has the same id and replaces nothing. If an earlier version
    has published the text of the newest capture, the published document is the keeper of the page, and the new capture
    is its exact copy.

    Args:
        captures: dtype CAPTURE: all captures of some pages that pass, in any order.
    """
    ids = captures["id"]
    captures = captures[np.lexsort((ids[:, 1], ids[:, 0], ~captures["fetched"], captures["key"]))]
    new_page = np.append(True, captures["key"][1:] != captures["key"][:-1])[: len(captures)]
    newest = np.maximum.accumulate(np.where(new_page, np.arange(len(captures)), 0))
    same_text = (captures["text"] == captures["text"][newest]).all(axis=1)
    published = np.flatnonzero(same_text & (captures["earlier"] == 1))
    keeper = np.arange(len(captures))
    page, first = np.unique(newest[published], return_index=True)
    keeper[page] = published[first]
    keeper = keeper[newest]
    # The newest capture is not dropped here: the comparison of texts decides about it.
    is_newest = np.arange(len(captures)) == newest
    dropped_rows = np.flatnonzero((captures["id"] != captures["id"][keeper]).any(axis=1) & ~is_newest)
    dropped = np.zeros(len(dropped_rows), DROPPED)
    dropped["key"], dropped["id"], dropped["keeper"] = (
        captures["row_id"][dropped_rows],
        captures["id"][dropped_rows],
        captures["id"][keeper[dropped_rows]],
    )
    dropped["kind"] = _KINDS.index("page")
    return dropped


def resolve_clusters(members: NDArray[np.void], pairs: pa.Table) -> NDArray[np.void]:
    """Applies dedup's rule to the survivors of some clusters; returns those to drop (dtype DROPPED).

    Args:
        members: dtype MEMBER, in any order.
        pairs: all verified pairs of these clusters, with columns better, worse and jaccard.
    """
    cluster = members["cluster"]
    members = members[np.lexsort((members["rank"], cluster[:, 1], cluster[:, 0]))]
    texts, linked, jaccard = _number_texts(document_ids.unpack(members["text"]), pairs)
    choice = choose(texts, linked, jaccard)
    # A document that an earlier version has also published is not a duplicate of itself.
    dropped_rows = np.flatnonzero((members["id"] != members["id"][choice.keeper]).any(axis=1))
    keeper = choice.keeper[dropped_rows]
    dropped = np.empty(len(dropped_rows), DROPPED)
    dropped["key"], dropped["id"], dropped["keeper"] = (
        members["row_id"][dropped_rows],
        members["id"][dropped_rows],
        members["id"][keeper],
    )
    dropped["kind"] = np.where(texts[keeper] == texts[dropped_rows], _KINDS.index("exact"), _KINDS.index("near"))
    dropped["jaccard"] = choice.jaccard[dropped_rows]
    return dropped


def _number_texts(texts: pa.Array, pairs: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Returns the texts as numbers, and the pairs of these texts, shape (n_pairs, 2), with their similarities."""
    distinct = pc.unique(texts)
    sides = [pc.index_in(pairs.column(side), value_set=distinct) for side in ("better", "worse")]
    both = pc.and_(sides[0].is_valid(), sides[1].is_valid())
    linked = np.stack([side.filter(both).to_numpy().astype(np.int64) for side in sides], axis=1)
    numbers = pc.index_in(texts, value_set=distinct).to_numpy().astype(np.int64)
    return numbers, linked, pairs.column("jaccard").filter(both).to_numpy()


def copies_of(dropped: NDArray[np.void]) -> pa.Table:
    """Returns dropped documents (dtype DROPPED) as a table (schema COPIES)."""
    kinds = pa.array(_KINDS).take(pa.array(dropped["kind"]))
    columns = [
        document_ids.unpack(dropped["id"]),
        document_ids.unpack(dropped["keeper"]),
        kinds,
        pa.array(dropped["jaccard"]),
    ]
    return pa.table(columns, schema=COPIES)


def members(config: ConsolidateConfig, aligned: AlignedParts, part: NumberedPart) -> NDArray[np.void]:
    """Returns the documents of one part that have a copy and pass (dtype MEMBER), sorted by bucket."""
    rows, verdicts = _passing(config, aligned, part, "cluster")
    records = np.empty(len(rows), MEMBER)
    records["key"], records["rank"] = verdicts.column("bucket").to_numpy(), verdicts.column("rank").to_numpy()
    records["row_id"] = row_ids_of(part.number, rows)
    for column in ("id", "cluster", "text"):
        records[column] = document_ids.pack(verdicts.column(column))
    return sorted_runs.by_key(records)


def captures(config: ConsolidateConfig, aligned: AlignedParts, part: NumberedPart) -> NDArray[np.void]:
    """Returns the documents of one part that pass and whose page has other captures (dtype CAPTURE), sorted by page."""
    rows, verdicts = _passing(config, aligned, part, "page")
    records = np.empty(len(rows), CAPTURE)
    records["key"], records["row_id"] = verdicts.column("page").to_numpy(), row_ids_of(part.number, rows)
    for column, values in (("id", verdicts["id"]), ("text", pc.coalesce(verdicts["text"], verdicts["id"]))):
        records[column] = document_ids.pack(values)
    records["earlier"] = part.earlier
    records["fetched"] = pc.fill_null(verdicts.column("fetched_at").cast(pa.int64()), np.iinfo(np.int64).min).to_numpy()
    return sorted_runs.by_key(records)


def _passing(
    config: ConsolidateConfig, aligned: AlignedParts, part: NumberedPart, column: str
) -> tuple[NDArray[np.int64], pa.Table]:
    """Returns the rows of the documents that pass and have a value in `column`, and dedup's verdicts on them."""
    if part.earlier:
        indexed = aligned.earlier(part.name)
        is_passing = indexed.column(column).is_valid().to_numpy() & ~aligned.taken_down(indexed)
        verdicts = indexed.filter(pa.array(is_passing))
        return verdicts.column("row").to_numpy().astype(np.int64), verdicts
    documents, judged, copies = aligned.part(part.name, ["id", "url", "source", "fetched_at"], config.filters, _COPY)
    has_value = copies.column(column).is_valid()
    taken_down = aligned.taken_down(documents)[has_value.to_numpy()]
    reasons_by_row = reasons(config, documents.column("source").filter(has_value), judged.filter(has_value), taken_down)
    passes = pa.array([not row for row in reasons_by_row], pa.bool_())
    rows = np.flatnonzero(has_value.to_numpy())[passes.to_numpy(zero_copy_only=False)]
    verdicts = copies.append_column("fetched_at", documents.column("fetched_at"))
    return rows, verdicts.filter(has_value).filter(passes)


def write_replaced(
    aligned: AlignedParts, inputs: AlignedInputs, dropped: Exchange, output: Output, engine: Engine
) -> int:
    """Writes the documents of the dedup index that this version replaces, by part; returns their number."""
    specs = [PartSpec(part.name, part) for part in inputs.numbered() if part.earlier]
    records = output.map_parts(engine, partial(replaced_part, aligned, dropped), specs, conserved=False)
    return int(sum(record.metrics[REPLACED_FOLDER] for record in records))


def replaced_part(aligned: AlignedParts, dropped: Exchange, part: Part, part_of_input: NumberedPart) -> None:
    """Writes the replaced documents of one part of the index; runs on a worker."""
    of_part = sorted_runs.by_key(dropped.records(aligned.own_folder, part_of_input.number))
    rows, copies = row_of(of_part["key"]), copies_of(of_part)
    reason_column = pa.array([f"{DUPLICATE}{kind}" for kind in copies.column("kind").to_pylist()], pa.string())
    columns = [copies.column("id"), reason_column, copies.column("duplicate_of"), pa.array(rows)]
    part.table(REPLACED_FOLDER, pa.table(columns, schema=REPLACED), out=False)
    part.metric(REPLACED_FOLDER, len(rows))
