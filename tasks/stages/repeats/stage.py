"""Stage repeats: token shards and their suffix arrays -> long runs of tokens that occur more than once.

Reads `shards` (the split `train`, and its index), `spans` and `tokenizer`. Writes

    repeats/                      per training shard, the repeats in each document (`tasks.formats.tokens.repeats`)
    longest.parquet               the longest repeats, with numbers of documents and domains
    frequent.parquet              the most frequent ones
    report.html                   both lists as a page; all three files are also in MLflow
    occurrences/ candidates/      per range of the suffixes, the occurrences of repeated runs, and the candidates for
                                  the lists; intermediate files, not in the artifact

    find     per range of the suffixes, on workers   runs of `min_tokens` tokens with more than one occurrence
    mark     per shard, on workers                   shares and spans
    report   in the stage's process                  documents and domains of 200 repeats

A run that occurs more than once is in adjacent suffixes. A range of the common order of all suffix arrays is read in
pieces that end at changes of the first `min_tokens` tokens, so that no run is in two pieces (`maximal.Suffixes`).
Memory of a worker: about 400 bytes per suffix of a piece (`_PIECE`), and 60 bytes per occurrence of a larger run.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.core.artifact import Artifact, ArtifactFolder, PartRecord
from tasks.core.engine import Engine
from tasks.core.open_files import load_array
from tasks.core.pages import template
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report, total
from tasks.filters.recognisers.scan import without_personal_data
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.tokens.index import DocumentIndex, IndexEntry
from tasks.formats.tokens.repeats import DOCUMENT, FREQUENT, KIND, LONGEST, REPEAT, RUN, SPAN
from tasks.formats.tokens.shard import ShardSet, parse_shard_name
from tasks.formats.tokens.spans import SpanIndex, group_names
from tasks.formats.web.domain import domain_of, host_name
from tasks.stages.repeats import RepeatsConfig
from tasks.stages.repeats.maximal import MAXIMAL, OCCURRENCE, Key, Suffixes, maximal, occurrences, outstanding, repeated

VERSION = 2
_PIECE = 1 << 18
"""Approximate number of suffixes of a piece."""

_BLOCK_TOKENS = 1 << 22
"""Approximate number of tokens that are marked together."""

Range = tuple[int, Key | None, Key | None]
"""A range of the suffixes: its number, its first key, and the key that it ends before; None: no bound."""

PAGE = "report.html"

LIST_LENGTH = 100
"""Maximum number of repeats in each list."""

LISTS = {LONGEST: ("tokens", "occurrences"), FREQUENT: ("occurrences", "tokens")}
"""The files of the lists, each with the fields by which its repeats are selected."""

_MAX_LOOKUPS = 1000
_EXAMPLE_TOKENS, _EXAMPLE = 120, 500


def run(config: RepeatsConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Finds, marks and reports repeats; raises InputError if the suffix arrays are from other shards."""
    spans, shards, groups = inputs["spans"], ShardSet.open(inputs["shards"]), len(group_names(inputs["spans"]))
    suffixes = Suffixes(spans.folder, groups, shards)
    keys = suffixes.bounds(sorted_runs.bucket_count(len(suffixes), config.range_tokens), config.min_tokens)
    ranges = Buckets("occurrences", len(keys) + 1)
    bounds = zip(range(ranges.count), [None, *keys], [*keys, None], strict=True)
    specs = [PartSpec(ranges.name(bound[0]), bound) for bound in bounds]
    finding = partial(find_range, config.min_tokens, spans.folder, groups, shards, ranges)
    range_records = output.map_parts(engine, finding, specs, conserved=False)
    own = output.folder
    shard_specs = [PartSpec(shard, ShardJob(shard, begin)) for shard, begin in suffixes.text.begins().items()]
    shard_records = output.map_parts(engine, partial(mark_shard, config.min_tokens, shards, own, ranges), shard_specs)
    metrics = _metrics(range_records, shard_records)
    if "report" not in output.committed:
        candidates = np.concatenate([load_array(own.local(path)) for path in ranges.sibling("candidates").paths("npy")])
        with output.part("report", conserved=False) as part:
            write_report(part, config, candidates, RepeatDetails(inputs, suffixes), metrics)
    for path in (PAGE, LONGEST, FREQUENT):
        output.log_file(path, own.read(path))
    output.leave_out(record.name for record in range_records)
    return Report(metrics=metrics, note=_note(metrics))


def find_range(
    width: int, spans: ArtifactFolder, groups: int, shards: ShardSet, ranges: Buckets, part: Part, bounds: Range
) -> None:
    """Writes one range of the suffixes; runs on a worker.

    Args:
        width: length of the shortest repeat, in tokens.
        spans: folder of the suffix arrays.
        groups: number of suffix arrays.
        shards: the shards of the suffix arrays.
        ranges: names of the files.
        part: receives the files.
        bounds: the range.
    """
    number, first, end = bounds
    suffixes = Suffixes(spans, groups, shards)
    candidates = [np.empty(0, MAXIMAL)]

    def blocks() -> Iterator[NDArray[np.void]]:
        for slab, same in suffixes.pieces(suffixes.slab(first, end), _PIECE, width):
            runs = repeated(suffixes, slab, width, same=same)
            candidates.append(_outstanding(maximal(suffixes, runs, width, _PIECE)))
            part.metric("runs", len(runs.starts))
            yield occurrences(runs)

    sorted_runs.write(part, ranges.path(number), blocks())
    with part.file(ranges.sibling("candidates").path(number, "npy")) as file:
        np.lib.format.write_array(file, _outstanding(np.concatenate(candidates)), allow_pickle=False)


def _outstanding(repeats: NDArray[np.void]) -> NDArray[np.void]:
    """Returns the distinct repeats that may be in a list of the report, by position."""
    return np.unique(np.concatenate([outstanding(repeats, by, LIST_LENGTH) for by in LISTS.values()]))


class ShardJob(NamedTuple):
    """One shard: its name, and the offset of its tokens in those of all shards."""

    shard: str
    begin: int


class _RepeatMasks(NamedTuple):
    """Masks of the tokens of some documents: `inside` repeats, and `again` without first occurrences."""

    inside: NDArray[np.bool_]
    again: NDArray[np.bool_]
    starts: NDArray[np.int64]
    """Starts of repeated runs of `width` tokens, ascending; `counts` has their numbers of occurrences."""
    counts: NDArray[np.int64]


def mark_shard(width: int, shards: ShardSet, own: ArtifactFolder, ranges: Buckets, part: Part, job: ShardJob) -> None:
    """Writes the tokens of the documents of one shard that are in repeats; runs on a worker.

    Args:
        width: length of the shortest repeat, in tokens.
        shards: the shards.
        own: folder of the stage's artifact.
        ranges: names of its files with occurrences.
        part: receives the file.
        job: the shard.
    """
    shard = shards.shard(job.shard)
    part.count_in(shard.rows)
    begin, tables = job.begin, [DOCUMENT.empty_table()]
    uids = shard.uids
    for rows, lengths in _blocks(shard.lengths):
        size = int(lengths.sum())
        records = sorted_runs.read_range(own, ranges.paths(), OCCURRENCE, 2 * begin, 2 * (begin + size))
        masks = _masks(records, begin, size, width)
        tables.append(_table(masks, lengths, uids[rows]))
        part.metric("tokens", size - len(lengths))
        part.metric("repeated_tokens", int(masks.inside.sum()))
        part.metric("again_tokens", int(masks.again.sum()))
        begin += size
    table = pa.concat_tables(tables).combine_chunks()
    part.metric("documents_with_repeats", int(np.count_nonzero(table.column("share").to_numpy())))
    part.table(KIND, table)


def _blocks(lengths: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Yields runs of documents of about `_BLOCK_TOKENS` tokens: their rows, and the tokens of each."""
    cuts = np.flatnonzero(np.diff(np.cumsum(lengths) // _BLOCK_TOKENS)) + 1
    edges = [0, *cuts.tolist(), len(lengths)]
    for first, end in pairwise(edges):
        if end > first:
            yield slice(first, end), lengths[first:end]


def _masks(records: NDArray[np.void], begin: int, size: int, width: int) -> _RepeatMasks:
    order = np.argsort(records["key"], kind="stable")
    starts = (records["key"][order] >> np.uint64(1)).astype(np.int64) - begin
    earlier = (records["key"][order] & np.uint64(1)).astype(np.bool_)
    inside = _covered(starts, size, width)
    again = _covered(starts[earlier], size, width) & ~_covered(starts[~earlier], size, width)
    return _RepeatMasks(inside, again, starts, records["count"][order].astype(np.int64))


def _covered(starts: NDArray[np.int64], size: int, width: int) -> NDArray[np.bool_]:
    """Returns a mask of the tokens covered by runs of `width` tokens at `starts`, shape (size,)."""
    change = np.zeros(size + 1, np.int32)
    np.add.at(change, starts, 1)
    np.add.at(change, starts + width, -1)
    covered: NDArray[np.bool_] = np.cumsum(change[:-1]) > 0
    return covered


def _table(masks: _RepeatMasks, lengths: NDArray[np.int64], uids: NDArray[np.uint8]) -> pa.Table:
    ends = np.cumsum(lengths)
    begins = ends - lengths
    first, end = _runs(masks.inside)
    max_counts = np.empty(0, np.int64)
    if len(first):
        max_counts = np.maximum.reduceat(masks.counts, np.searchsorted(masks.starts, first))
    tokens = lengths - 1
    columns = [
        pa.array([uid.tobytes() for uid in uids], pa.binary(16)),
        pa.array(tokens, pa.uint32()),
        *(_share(mask, begins, ends, tokens) for mask in (masks.inside, masks.again)),
        _lists(first, end, begins, SPAN, max_counts),
        _lists(*_runs(masks.again), begins, RUN),
    ]
    return pa.table(columns, schema=DOCUMENT)


def _runs(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns starts and ends of runs of true values; none crosses documents, whose last token is never true."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return edges[::2], edges[1::2]


def _share(
    mask: NDArray[np.bool_], begins: NDArray[np.int64], ends: NDArray[np.int64], tokens: NDArray[np.int64]
) -> pa.Array:
    total = np.append(0, np.cumsum(mask))
    return pa.array((total[ends] - total[begins]) / np.maximum(tokens, 1), pa.float32())


def _lists(
    first: NDArray[np.int64],
    end: NDArray[np.int64],
    begins: NDArray[np.int64],
    kind: pa.StructType,
    *more: NDArray[Any],
) -> pa.Array:
    """Returns runs as a list per document, with positions relative to the document."""
    document = np.searchsorted(begins, first, side="right") - 1
    values = [first - begins[document], end - begins[document], *more]
    arrays = [pa.array(value, field.type) for value, field in zip(values, kind, strict=True)]
    offsets = np.searchsorted(document, np.arange(len(begins) + 1)).astype(np.int32)
    structs = pa.StructArray.from_arrays(arrays, fields=list(kind))
    return pa.ListArray.from_arrays(pa.array(offsets), structs)


def _metrics(range_records: Iterable[PartRecord], shard_records: Iterable[PartRecord]) -> dict[str, float]:
    shard_records = list(shard_records)
    tokens = total(shard_records, "tokens")
    return {
        "documents": float(sum(record.rows_in for record in shard_records)),
        "documents_with_repeats": total(shard_records, "documents_with_repeats"),
        "tokens": tokens,
        "runs": total(range_records, "runs"),
        "repeated_share": total(shard_records, "repeated_tokens") / tokens if tokens else 0.0,
        "again_share": total(shard_records, "again_tokens") / tokens if tokens else 0.0,
    }


def _note(metrics: dict[str, float]) -> str:
    return (
        f"{metrics['repeated_share']:.1%} of {metrics['tokens']:,.0f} tokens stand in repeats, in "
        f"{metrics['documents_with_repeats']:,.0f} of {metrics['documents']:,.0f} documents; "
        f"{metrics['again_share']:.1%} again"
    )


class RepeatDetails:
    """Looks up documents and text of repeats for the report."""

    def __init__(self, inputs: Inputs, suffixes: Suffixes) -> None:
        shards = inputs["shards"]
        self._suffixes = suffixes
        self._spans = SpanIndex(inputs["spans"], ShardSet.open(shards))
        self._documents = DocumentIndex(shards)
        self._tokenizer = _tokenizer(inputs["tokenizer"])

    def row(self, repeat: NDArray[np.void]) -> dict[str, Any]:
        """Returns the REPEAT row of a repeat."""
        position, tokens = int(repeat["position"]), int(repeat["tokens"])
        run = self._suffixes.text.read(position, tokens)
        first = self._suffixes.text.place(position)
        places = {(place.shard, place.row) for place in self._spans.places(run, _MAX_LOOKUPS)}
        entries = self._documents.at(sorted({(first.shard, first.row), *places}))
        (own,) = (entry for entry in entries if (entry.shard, entry.row) == (first.shard, first.row))
        # Reads more text than the report shows, so that personal data at its end is recognized.
        example = without_personal_data(self._tokenizer.decode(run[:_EXAMPLE_TOKENS], skip_special_tokens=False))
        return {
            "tokens": tokens,
            "occurrences": int(repeat["occurrences"]),
            "documents": len(entries),
            "domains": len({_domain(entry) for entry in entries}),
            "url": own.url,
            "begin": first.start,
            "example": example[:_EXAMPLE],
        }


def _domain(entry: IndexEntry) -> str:
    host = host_name(entry.url)
    return domain_of(host) if host else parse_shard_name(entry.shard)[0]


def _tokenizer(artifact: Artifact) -> Tokenizer:
    return Tokenizer.from_str(artifact.read("tokenizer.json").decode())


def write_report(
    part: Part, config: RepeatsConfig, candidates: NDArray[np.void], details: RepeatDetails, metrics: dict[str, float]
) -> None:
    """Writes the tables and the page.

    Args:
        part: receives the files.
        config: settings of the stage.
        candidates: maximal repeats (`maximal.MAXIMAL`), including all that can be in a list.
        details: looks up documents and texts.
        metrics: metrics of the stage.
    """
    tables = {}
    for path, by in LISTS.items():
        rows = [details.row(repeat) for repeat in outstanding(candidates, by, LIST_LENGTH)]
        tables[path] = pa.Table.from_pylist(rows, schema=REPEAT)
        part.write_table(path, tables[path])
    lists = {path: table.to_pylist() for path, table in tables.items()}
    page = template(__package__, "report.html").render(
        config=config, longest=lists[LONGEST], frequent=lists[FREQUENT], metrics=metrics, looked_up=_MAX_LOOKUPS
    )
    part.write(PAGE, page.encode("utf-8", "replace"))
