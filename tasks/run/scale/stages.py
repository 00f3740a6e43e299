"""What each stage needs for a corpus: requests, bytes, CPU time, and memory of its own process and of its workers.

The numbers of parts, files and reads follow the code of the stages; what a unit of them costs is measured (`units`). A
figure without a measurement is None. Texts and tokens are counted without compression, and every page gives a document,
so bytes are upper bounds. The stages have their default settings, one source, and a store on S3.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from tasks.core.manifest import KEPT, PARTS_IN_MANIFEST
from tasks.core.merges.range_merge import plan_levels
from tasks.core.stage_spec import MOST_MEMBERS
from tasks.formats.dedup.dedup_index import BAND, CAPTURE, TEXT
from tasks.formats.documents.key_index import KEY, PART_KEY
from tasks.run.scale.units import unit
from tasks.stages.annotate import AnnotateConfig
from tasks.stages.consolidate.resolve import DROPPED
from tasks.stages.consolidate.resolve import MEMBER as MEMBER_TO_KEEP
from tasks.stages.consolidate.sums import FAN as SUMMED
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup.pairs import SET_PIECES
from tasks.stages.dedup.workspace import (
    EDGE,
    GROUPED,
    LABELED,
    LINK,
    MEMBER,
    PAIR,
    RANKED,
    SHINGLES,
    VERDICT,
    WANTED,
)
from tasks.stages.extract.first_pass.identity import IDENTITY
from tasks.stages.extract.sources import PACKED_WEIGHT
from tasks.stages.spans import SpansConfig
from tasks.stages.tokens import TokenizerConfig

KNOWN_PER_PAGE = 2
"""URLs known per page. Not measured: the assumption of `benchmarks.crawl_plan`."""
_URLS_PER_PARTITION = 10e6
_LISTED, _DELETED = 1000, 1000
"""Files of a page of a listing, and of one request that removes files."""
_PACKED_TOKENS = 2**28
_INDEXED = 40
"""Bytes of a document in the `index/` files of the shards that `pack` reads."""
_RANGE, _FAN = 1 << 22, 32
"""Records of a range, and runs that a task merges (`tasks.core.merges.range_merge`)."""
_GROUP_WEIGHT, _FILE_WEIGHT, _INDEXED_WEIGHT = 32e6, 1e6, 1e3
"""Of a task that reads identities, of an index, and of one of its entries (`tasks.stages.extract.first_pass`)."""
_EXCLUSION_BYTES = 9
_MEASURED_PER_PART = 10_000
"""Documents of a part in the benchmark of dedup."""
_WORD_BYTES = 6
"""Bytes of text per word, and so per shingle. Not measured."""
_QUERY_BYTES = 1.2e9
"""Most memory of a query (`tasks.core.queries`), such as that for the targets of links."""
_ROUNDS = 2
"""Rounds of large-star and small-star on real copies."""


def _default(config: type, name: str) -> float:
    return float(config.model_fields[name].default)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Corpus:
    """The corpus to plan.

    Attributes:
        pages: captures, in one cycle of the crawl.
        html_bytes: of a page, uncompressed.
        text_bytes: of the document of a page.
        part_bytes: `[extract] part_bytes`.
        workers: processes that make parts, one a machine.
        memory: bytes that a process may have.
    """

    pages: float
    html_bytes: float
    text_bytes: float
    part_bytes: float
    workers: float
    memory: float

    @property
    def warc_bytes(self) -> float:
        """Bytes of all WARC files."""
        return self.pages * self.html_bytes * unit("warc_share")

    @property
    def warc_files(self) -> float:
        """WARC files."""
        return math.ceil(self.pages / _default(CrawlConfig, "warc_pages_per_file"))

    @property
    def partitions(self) -> float:
        """Partitions of the crawl DB."""
        return min(math.ceil(self.known / _URLS_PER_PARTITION), MOST_MEMBERS)

    @property
    def known(self) -> float:
        """URLs in the crawl DB."""
        return self.pages * KNOWN_PER_PAGE

    @property
    def parts(self) -> float:
        """Parts of the documents, as `[extract] part_bytes` divides the WARC files; a file is never split."""
        return min(self.warc_files, math.ceil(PACKED_WEIGHT * self.warc_bytes / self.part_bytes))

    @property
    def text(self) -> float:
        """Bytes of all texts."""
        return self.pages * self.text_bytes

    @property
    def kept(self) -> float:
        """Documents that filters and deduplication keep."""
        return self.pages * unit("kept_share")

    @property
    def tokens(self) -> float:
        """Tokens of the kept documents."""
        return self.kept * self.text_bytes / unit("bytes_per_token")

    @property
    def token_bytes(self) -> float:
        """Bytes of the token shards, for a vocabulary of up to 65,536 entries."""
        return 2 * self.tokens


@dataclass(frozen=True)
class Work:
    """Parts, requests and bytes of some tasks; None is not measured, and a sum with None is None.

    Attributes:
        parts: tasks.
        put: PUT, and POST that removes files.
        get: GET.
        head: HEAD.
        listed: LIST.
        read: bytes read.
        written: bytes written.
    """

    parts: float = 0
    put: float | None = 0
    get: float | None = 0
    head: float | None = 0
    listed: float | None = 0
    read: float | None = 0
    written: float | None = 0

    def __add__(self, other: "Work") -> "Work":
        names = [one.name for one in fields(self) if one.name != "parts"]
        sums = {name: _sum(getattr(self, name), getattr(other, name)) for name in names}
        return Work(parts=self.parts + other.parts, **sums)


def _sum(one: float | None, two: float | None) -> float | None:
    return None if one is None or two is None else one + two


@dataclass(frozen=True)
class Need:
    """What a stage needs.

    Attributes:
        stage: its name.
        work: its tasks, with its own reads.
        cpu_s: CPU-seconds of all workers; None if not measured.
        own: bytes of memory of its process, by cause.
        worker: bytes of memory of a worker; None if not measured, 0 if its process does the work itself.
        worker_at_least: whether `worker` leaves out tasks whose memory is not measured.
        record: bytes of the record of its artifact, the largest one if it has several.
        alone: requests that one process makes one after another.
        through: bytes of the store that its process reads itself.
        at_least: whether `cpu_s` leaves out the merges of runs, which are not measured and grow with their levels.
    """

    stage: str
    work: Work
    cpu_s: float | None
    own: dict[str, float] = field(default_factory=dict)
    worker: float | None = None
    record: float = 0
    alone: float = 0
    through: float = 0
    at_least: bool = False
    worker_at_least: bool = False


RECORDS = "records of parts"
MERGED = "records of the largest merge"
LISTED = "WARC files of the input"
SAMPLE = "documents of the sample"


def _tasks(
    parts: float, reads: float, writes: float, read: float | None, written: float | None, records: int = 1
) -> Work:
    """Returns the work of `parts` that each read and write so many files, and publish so many records."""
    put = parts * (writes + records) * unit("put_written")
    return Work(parts, put, parts * reads * unit("get_read"), parts * reads * unit("head_read"), 0, read, written)


def _commit(parts: float, files: float) -> Work:
    """Returns the requests of a commit: a listing of files and records, their removal, manifests and the record."""
    return Work(put=parts / _DELETED + parts / PARTS_IN_MANIFEST + 1, listed=(files + 2 * parts) / _LISTED)


@dataclass(frozen=True)
class _Records:
    """Records that passes exchange: their number, the bytes of one, and about the most that a task merges."""

    count: float
    size: float
    per_range: float


def _exchange(records: _Records, runs: float, ranges: float) -> Work:
    """Returns the merge of runs, and its reads by tasks that each read one of some ranges of the keys.

    See `tasks.formats.dedup.exchange`: there is no merge for one range.
    """
    size = records.count * records.size
    if ranges == 1 or not records.count:
        return Work(get=runs if records.count else 0, read=size)
    grouped = max(1, records.per_range * runs // records.count)
    together = max(1, int(ranges) // max(1, math.ceil(records.count / records.per_range)))
    plan = plan_levels("", math.ceil(runs / grouped), int(ranges), 1 << 64, together)
    work = _merged(plan.groups[0], runs, size)
    for level in range(1, plan.last + 1):
        tasks = plan.groups[level] * plan.spans[level]
        pieces = 2 * tasks * plan.groups[level - 1] / plan.groups[level]
        work += _merged(tasks, pieces, size) if level < plan.last else Work(get=pieces, read=size)
    return work


def _merged(runs: float, get: float, size: float) -> Work:
    """Returns the work of a level that writes so many runs."""
    return Work(runs, 2 * runs, get, read=size, written=size)


def _merge(records: float, sources: float, source_bytes: float, record_bytes: float, files: int) -> tuple[Work, float]:
    """Returns the work of a merge of records (`tasks.core.merges.range_merge`), and its number of runs.

    What its ranges write, `files` each, is not in the bytes.
    """
    ranges = _ranges(records)
    read, merged = records * source_bytes, records * record_bytes
    if ranges == 1:
        return Work(1, files + 1, sources, read=read), 0
    levels = max(1, math.ceil(math.log(ranges, _FAN)))
    runs = ranges * levels
    pieces = 2 * min(ranges, _FAN) * runs
    put = 2 * runs + (files + 1) * ranges
    return Work(runs + ranges, put, sources + pieces, read=read + levels * merged, written=levels * merged), runs


def _merge_keys(keys: float, parts: float) -> tuple[Work, float]:
    """Returns the work of a merge of keys (`tasks.formats.documents.key_index`), and its number of runs."""
    work, runs = _merge(keys, parts, PART_KEY.itemsize, KEY.itemsize, 2)
    return work + Work(written=keys * KEY.itemsize), runs


def _ranges(records: float) -> float:
    return max(1, math.ceil(records / _RANGE))


def _committed(parts: float, files: float) -> float:
    """Returns the memory of the records of parts that a stage writes, at its commit."""
    return parts * (unit("committed_part") + files * unit("committed_file"))


def _opened(parts: float, files: float) -> float:
    """Returns the memory of the paths of a folder of an input, and of the manifests that a process keeps."""
    kept = min(KEPT, parts * (unit("group_part") + files * unit("group_file")))
    return parts * unit("listed_file") + kept


def _record(parts: float, files: float) -> float:
    """Returns the bytes of the record of an artifact, whose parts have a file in each of so many folders."""
    return parts * (unit("record_part") + files * unit("record_folder"))


def generate(corpus: Corpus) -> Need:
    """A fetch list for each partition."""
    work = Work(corpus.partitions, *[None] * 6)
    worker = corpus.known / corpus.partitions * unit("generate_memory")
    return Need("generate", work, corpus.known * unit("generate_cpu"), worker=worker)


def fetch(corpus: Corpus) -> Need:
    """WARC files, each with index, log and links; at the end each segment reads its links, and writes their targets."""
    files, partitions = corpus.warc_files, corpus.partitions
    work = (
        _tasks(files, 0, 4, None, corpus.warc_bytes)
        + Work(put=partitions * (partitions + 1), get=files, head=files)
        + _commit(files + partitions, 4 * files + partitions**2)
    )
    own = {RECORDS: _committed(files / partitions, 4) + _committed(1, partitions)}
    worker = unit("fetch_memory") + corpus.pages / partitions * unit("listed_memory") + _QUERY_BYTES
    record = _record(files / partitions, 4) + _record(1, partitions)
    return Need("fetch", work, corpus.pages / unit("fetch_pages"), own, worker, record)


def update(corpus: Corpus) -> Need:
    """A generation of the crawl DB; each partition reads logs and links of its segment, and its targets of all."""
    files, partitions = corpus.warc_files, corpus.partitions
    work = Work(partitions, None, 2 * files + partitions**2, None, None, None, None)
    own = {
        RECORDS: _opened(files, 4) + _opened(partitions, partitions),
        "URLs of a partition": corpus.known / corpus.partitions * unit("update_memory"),
    }
    return Need("update", work, corpus.known * unit("update_cpu"), own, worker=0)


def publish(corpus: Corpus) -> Need:
    """The index and the report of the cycle, for each partition by a worker; the stage's process joins the reports."""
    files, partitions = corpus.warc_files, corpus.partitions
    work = Work(1 + 2 * partitions, None, 2 * files + 5 * partitions, files + 5 * partitions, None, None, None)
    own = {RECORDS: _opened(files, 4) + _opened(partitions, partitions)}
    return Need("publish", work, None, own, worker=_QUERY_BYTES)


def extract(corpus: Corpus) -> Need:
    """Documents; a first pass finds copies among the identities of all pages, range by range of the hashes of URLs."""
    parts, files = corpus.parts, corpus.warc_files
    first = first_pass(corpus)
    work = (
        first
        + _tasks(parts, 0, 2, corpus.warc_bytes, corpus.text)
        + Work(get=2 * files, head=2 * files)  # the index in the first pass, the WARC file in the second
        + _commit(first.parts + parts, first.parts + 2 * parts)
    )
    own = {
        RECORDS: parts * unit("first_pass_part") + _committed(first.parts, 1) + _committed(parts, 2),
        LISTED: files * unit("manifest_file"),
    }
    cpu = corpus.pages * corpus.html_bytes / unit("extract_speed")
    worker = min(corpus.pages, _RANGE) * unit("identity_memory")
    return Need("extract", work, cpu, own, worker, _record(parts, 2), worker_at_least=True)


def first_pass(corpus: Corpus) -> Work:
    """Returns the work of the first pass of `extract` without the reading of its input.

    Bytes are those of a corpus all of whose pages are excluded.
    """
    rows, parts, ranges = corpus.pages, corpus.parts, _ranges(corpus.pages)
    weight = (corpus.warc_files * _FILE_WEIGHT + rows * _INDEXED_WEIGHT) / parts
    groups = math.ceil(parts / max(1, _GROUP_WEIGHT // weight))
    # Each part reads its bytes of the ranges; a bound between ranges can be inside of a part.
    reasons = Work(get=parts + ranges - 1, read=rows, written=rows)
    if groups == 1:
        return _tasks(1, 0, 1, 0, 0) + reasons
    work = _tasks(groups, 0, 1, 0, rows * IDENTITY.itemsize) + reasons
    work += _merge(rows, groups, IDENTITY.itemsize, IDENTITY.itemsize, 1)[0]
    if ranges > 1:
        work += _merge(rows, ranges, _EXCLUSION_BYTES, _EXCLUSION_BYTES, 1)[0]
        work += Work(written=rows * _EXCLUSION_BYTES)
    return work


def annotate(corpus: Corpus) -> Need:
    """A group for each annotator, with records of its own."""
    parts, groups = corpus.parts, len(AnnotateConfig().use)
    work = _tasks(parts, 1, groups, corpus.text, None, records=groups)
    for _ in range(groups):
        work += _commit(parts, parts)
    own = {RECORDS: _opened(parts, 2) + groups * _committed(parts, 1)}
    return Need("annotate", work, corpus.text / unit("annotate_speed"), own, record=_record(parts, 1))


def dedup(corpus: Corpus) -> Need:
    """Duplicates; passes exchange sorted runs. The two passes over groups above `max_bucket` are not counted."""
    parts, documents = corpus.parts, corpus.pages
    passes = _Passes(corpus)
    work = _tasks(parts, 2, 4, corpus.text, documents * unit("dedup_artifact"))  # sign
    for tasks, writes, read in passes.all():
        work += _tasks(tasks, 0, writes, 0, 0) + read
    # Documents in shingle and <part>, two tables for the audit, and preferences and samples, which are not looked up.
    sets = passes.pieces * SHINGLES.itemsize
    work += Work(get=5 * parts + 2 * passes.of_sets, head=4 * parts, read=corpus.text, written=sets)
    work += _commit(work.parts, work.parts + 8 * parts)
    tasks = work.parts - sum(passes.merged) - parts
    own = {
        RECORDS: _opened(parts, 2) + _opened(parts, 1) + _committed(parts, 9) + _committed(tasks, 1),
        MERGED: _committed(max(passes.held), 1),
    }
    cpu = documents * unit("dedup_cpu") * corpus.text_bytes / unit("dedup_text")
    worker = unit("dedup_memory") * max(1.0, documents / parts / _MEASURED_PER_PART)
    return Need("dedup", work, cpu, own, worker, _record(2 * parts, 3.5), alone=4 * parts, at_least=True)


class _Passes:
    """The passes of dedup after the signatures.

    Attributes:
        pieces: pieces of sets of shingles.
        of_sets: tasks of the pass that compares them.
        merged: tasks of each merge.
        held: records that the stage's process holds during each merge: those of two levels.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._config, self._parts, self._documents = DedupConfig(), corpus.parts, corpus.pages
        self._found, self._verified = (corpus.pages * unit(name) for name in ("candidate_pairs", "verified_pairs"))
        in_set = math.ceil(corpus.text_bytes / _WORD_BYTES / SHINGLES["shingles"].shape[0])
        self.pieces = 2 * self._found * in_set
        self.of_sets = max(
            self._buckets(self._found, self._config.pairs_per_part), self._buckets(self.pieces, SET_PIECES)
        )
        self.merged, self.held = list[float](), list[float]()

    def all(self) -> tuple[tuple[float, int, Work], ...]:
        """Returns tasks, files that each writes, and reads of the passes, in order; 0 tasks for what one reads more."""
        parts, documents, found, pieces, of_sets = (
            self._parts, self._documents, self._found, self.pieces, self.of_sets
        )  # fmt: skip
        bands, edges = self._config.minhash.bands * documents, 2 * self._verified
        links = self._verified + documents * unit("equal_pairs")
        members, exchanged = min(documents, 2 * links), self._exchanged
        of_texts, of_bands, of_pairs, of_edges, of_links, of_clusters = map(
            self._buckets, (documents, bands, found, edges, links, 8 * links)
        )
        stars = (of_edges, 1, exchanged(EDGE, edges, of_edges, of_edges))
        return (
            (of_texts, 1, exchanged(TEXT, documents, parts, of_texts)),  # equal
            (of_bands, 2, exchanged(BAND, bands, parts, of_bands)),  # banded
            (of_pairs, 2, exchanged(PAIR, found, of_bands, of_pairs)),  # paired
            (parts, 1, exchanged(WANTED, 2 * found, of_pairs, parts)),  # shingled
            (of_sets, 4, exchanged(GROUPED, found, of_pairs, of_sets)),  # compared
            (0, 0, exchanged(SHINGLES, pieces, max(parts, self._buckets(pieces, SET_PIECES)), of_sets)),
            (of_edges, 1, exchanged(EDGE, edges, of_sets, of_edges)),  # the first large-star
            *(stars,) * (2 * _ROUNDS - 1),  # large, small
            (of_links, 2, exchanged(LINK, links, of_texts + of_sets, of_links)),  # labeled
            (0, 0, exchanged(EDGE, edges, of_edges, of_links)),
            (parts, 1, exchanged(MEMBER, members, of_links, parts)),  # ranked
            (of_clusters, 4, exchanged(LABELED, links, of_links, of_clusters)),  # pairs
            (0, 0, exchanged(RANKED, members, parts, of_clusters)),
            (of_texts, 1, exchanged(CAPTURE, documents, parts, of_texts)),  # recaptured
            (parts, 3, exchanged(VERDICT, members, of_clusters, parts)),  # <part>
        )

    def _buckets(self, records: float, per_bucket: float = 0) -> float:
        return max(1, math.ceil(records / (per_bucket or self._config.records_per_bucket)))

    def _exchanged(self, dtype: "np.dtype[Any]", count: float, runs: float, ranges: float) -> Work:
        per_range = SET_PIECES if dtype is SHINGLES else self._config.records_per_bucket
        work = _exchange(_Records(count, dtype.itemsize, per_range), runs, ranges)
        self.held.append(min(work.parts, 2 * self._buckets(count, per_range)))
        self.merged.append(work.parts)
        return work


def consolidate(corpus: Corpus) -> Need:
    """Kept and rejected documents; workers add up six small tables of each part in levels (`sums`)."""
    parts, groups = corpus.parts, len(AnnotateConfig().use)
    links = corpus.pages * (unit("verified_pairs") + unit("equal_pairs"))
    per_bucket = DedupConfig().records_per_bucket
    buckets = max(1, math.ceil(8 * links / per_bucket))
    members, dropped = (
        _Records(corpus.pages * unit("verified_pairs"), dtype.itemsize, per_bucket)
        for dtype in (MEMBER_TO_KEEP, DROPPED)
    )
    to_buckets, to_parts = _exchange(members, parts, buckets), _exchange(dropped, buckets, parts)
    keys, runs = _merge_keys(2 * (corpus.pages - corpus.kept), parts)
    sums = _group_sums(parts)
    work = (
        _tasks(parts, groups + 2, 1, corpus.text, 0)  # survivors
        + _tasks(buckets, 1, 1, 0, 0)
        + to_buckets  # resolved
        + to_parts
        + _tasks(parts, groups + 3, 9, corpus.text, corpus.text)
        + keys
        + _tasks(sums, 0, 6, 0, 0)
        + Work(get=6 * (parts + sums), head=6 * (parts + sums))
    )
    work += _commit(work.parts, 10 * parts + 6 * sums)
    own = {
        RECORDS: _opened(parts, 2)
        + groups * _opened(parts, 1)
        + 2 * _opened(parts, 2.5)
        + _committed(parts, 9)
        + _committed(parts + buckets, 1)
        + _committed(sums, 6),
        MERGED: _committed(max(runs, to_buckets.parts, to_parts.parts), 1),
    }
    cpu = corpus.pages * unit("consolidate_cpu")
    return Need("consolidate", work, cpu, own, None, _record(parts, 9), at_least=True)


def _group_sums(parts: float) -> float:
    """Returns the number of sums of groups that consolidate makes of the tables of parts (`sums.add_groups`)."""
    made = 0.0
    while parts > SUMMED:
        parts = math.ceil(parts / SUMMED)
        made += parts
    return made


def tokenizer(corpus: Corpus) -> Need:
    """A tokenizer; its process holds the documents of the sample, whose parts are read a second time."""
    parts, text = corpus.parts, corpus.kept * corpus.text_bytes
    in_sample = min(corpus.kept, _default(TokenizerConfig, "sample_bytes") / corpus.text_bytes)
    again = min(parts, in_sample)
    work = _tasks(parts + again, 1, 0, text * (1 + again / parts), 0, records=0) + _commit(1, 3)
    own = {SAMPLE: in_sample * unit("sampled_memory"), RECORDS: _opened(parts, 9)}
    return Need("tokenizer", work, None, own)


def encode(corpus: Corpus) -> Need:
    """Token shards, two for each part and source, with their checksums, index and keys."""
    parts, text = corpus.parts, corpus.kept * corpus.text_bytes
    keys, runs = _merge_keys(3 * corpus.kept, parts)
    written = corpus.token_bytes + corpus.kept * unit("index_bytes")
    work = (
        _tasks(parts, 1, 0, text, 0, records=0)  # the held-out share
        + _tasks(parts, 1, 10, text, written)
        + keys
        + Work(get=2 * parts)  # the tokenizer, and the table of tokens per word
    )
    work += _commit(work.parts - parts, 10 * parts)
    own = {RECORDS: _opened(parts, 9) + _committed(parts, 10) + _committed(runs, 1)}
    return Need("encode", work, text / unit("encode_speed"), own, None, _record(parts, 10), parts)


def pack(corpus: Corpus) -> Need:
    """The plan. Shards are counted by the record; workers read the index of documents by ranges, and no tokens.

    Its own process writes the two tables of shards and parts, each with its checksums: 4 more files.
    """
    return _over_shards(corpus, "pack", _PACKED_TOKENS, 6, (corpus.kept * _INDEXED, None), None, None)


def spans(corpus: Corpus) -> Need:
    """Suffix arrays, if `[spans] enabled`. Each worker reads its own shards."""
    moved = (corpus.token_bytes, corpus.tokens * unit("spans_bytes"))
    group = _default(SpansConfig, "group_tokens")
    return _over_shards(corpus, "spans", group, 2, moved, corpus.tokens * unit("spans_cpu"), unit("spans_memory"))


def _over_shards(
    corpus: Corpus,
    stage: str,
    per_part: float,
    writes: float,
    moved: tuple[float | None, float | None],
    cpu_s: float | None,
    worker: float | None,
) -> Need:
    """Returns the need of tasks that each read the shards of so many tokens; `moved`: bytes read and written."""
    shards, tasks = 2 * corpus.parts, max(1, math.ceil(corpus.tokens / per_part))
    work = _tasks(tasks, 0, writes, *moved)
    work += Work(get=2 * shards) + _commit(tasks, writes * tasks)
    own = {RECORDS: _opened(corpus.parts, 10) + _committed(tasks, writes)}
    return Need(stage, work, cpu_s, own, worker, _record(tasks, writes))


STAGES: tuple[Callable[[Corpus], Need], ...] = (
    generate,
    fetch,
    update,
    publish,
    extract,
    annotate,
    dedup,
    consolidate,
    tokenizer,
    encode,
    pack,
    spans,
)
"""The stages in their order."""
