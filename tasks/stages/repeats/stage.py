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
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.core.artifact import Artifact, ArtifactFolder, PartRecord
from tasks.core.engine import Engine
from tasks.core.open_files import load_array
from tasks.core.pages import template
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report
from tasks.filters.recognisers.scan import without_personal_data
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.tokens.index import DocumentIndex, IndexEntry
from tasks.formats.tokens.repeats import FREQUENT, LONGEST, REPEAT
from tasks.formats.tokens.shard import ShardSet, parse_shard_name
from tasks.formats.tokens.spans import SpanIndex, group_names
from tasks.formats.web.domain import domain_of, host_name
from tasks.stages.repeats import RepeatsConfig
from tasks.stages.repeats.mark import ShardJob, mark_shard
from tasks.stages.repeats.maximal import MAXIMAL, Key, Suffixes, maximal, occurrences, outstanding, repeated

VERSION = 1
_PIECE = 1 << 18
"""Approximate number of suffixes of a piece."""

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


def _metrics(range_records: Iterable[PartRecord], shard_records: Iterable[PartRecord]) -> dict[str, float]:
    shard_records = list(shard_records)
    tokens = _sum(shard_records, "tokens")
    return {
        "documents": float(sum(record.rows_in for record in shard_records)),
        "documents_with_repeats": _sum(shard_records, "documents_with_repeats"),
        "tokens": tokens,
        "runs": _sum(range_records, "runs"),
        "repeated_share": _sum(shard_records, "repeated_tokens") / tokens if tokens else 0.0,
        "again_share": _sum(shard_records, "again_tokens") / tokens if tokens else 0.0,
    }


def _sum(records: Iterable[PartRecord], name: str) -> float:
    return sum(record.metrics.get(name, 0.0) for record in records)


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
