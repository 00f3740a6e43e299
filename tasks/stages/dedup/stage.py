"""Stage dedup: documents -> for each document the one that it is a duplicate of, if any.

Reads `extracted` (text, url, source, host, fetched_at), the group `prose_score` (documents.groups) and, if it exists,
the dedup index of the previous version (`tasks.formats.dedup.dedup_index`) without the documents that are taken down.
Writes

    duplicates/<part>.parquet   one row per document, in the order of `extracted` (`verdicts.DUPLICATES`)
    earlier/<part>.parquet      documents of the index with a copy, or a newer capture, here (`verdicts.EARLIER`)
    pairs/<bucket>.parquet      every verified pair of texts with its similarity (`verdicts.PAIRS`)
    sources/ sizes/             counts of duplicates by source, and of clusters by size
    largest/ domains/           the largest clusters of each bucket, counts of duplicates by domain
    audit.json domains.parquet  samples for inspection, and the counts of all domains (`audit`)
    preference/ texts/ bands/ captures/   keys of each part; parts.json: the names of the parts in order

This stage does not drop documents. Every pass runs as parts on the engine, and resumes at the first unfinished part:

    forgotten    per part      documents of the index that are taken down
    sign         per part      text -> hash, band keys, preference, as sorted runs
    equal        per bucket    equal hashes
    banded       per bucket    pairs of texts that share a band
    crowd        per part      the preference of documents in large groups, if there are any
    crowded      per bucket    pairs in these groups
    paired       per bucket    the distinct pairs
    shingled     per part      shingle sets of the texts of these pairs
    compared     per bucket    exact Jaccard similarity of each pair
    large small  per bucket    connected components of the verified pairs, round by round
    labeled      per bucket    pairs and equal texts by cluster
    ranked       per part      the preference of documents in clusters
    pairs        per bucket    the keeper of each cluster (`verdicts`)
    recaptured   per bucket    documents whose page has several captures
    <part>       per part      the verdicts on its documents
    audit        once          samples and counts of the passes

Documents of the index are compared with those of this version but not with one another, and their texts are read only
to verify a pair. So the cost of a version is that of its own documents plus a pass over the keys of the index.

A bucket is a range of hashes (of band keys, pairs, texts or clusters) with about `records_per_bucket` records: this and
the largest part bound the memory of a worker. Before each pass the runs of the one before are merged, unless they are
few (`tasks.formats.dedup.exchange`): parts named `to-<pass>`. So requests and bytes grow with the documents, times the
levels of the merges. The process of the stage holds the records of the parts of the artifact, and those of a pass until
the next one has its runs. Intermediate files are deleted at the end.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tasks.core.artifact import Artifact, PartRecord
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.merges.range_merge import Source
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report, total
from tasks.formats.dedup.dedup_index import BANDS, CAPTURES, RUNS, TEXTS, DedupIndex, index_of, signatures_of
from tasks.formats.dedup.duplicates import AUDIT_FILE, DuplicateAudit
from tasks.formats.dedup.exchange import Exchange, ReadRun, exchange, exchange_by_part, runs_of
from tasks.formats.dedup.sorted_runs import Buckets, bucket_count
from tasks.formats.documents.document import parts_of
from tasks.formats.documents.groups import KIND
from tasks.formats.documents.tombstones import tombstones_of
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup.audit import alarm, audit_part, draw
from tasks.stages.dedup.pairs import (
    CROWD,
    CROWDS,
    EDGES,
    SET_PIECES,
    SETS,
    WANTED_TEXTS,
    candidates_part,
    crowd_part,
    crowded_part,
    equal_part,
    paired_part,
    shingle_part,
    verify_part,
)
from tasks.stages.dedup.preference import recaptured_part
from tasks.stages.dedup.signatures import sign_part
from tasks.stages.dedup.verdicts import (
    MEMBERS,
    OF_CYCLE,
    RANKS,
    VERDICTS,
    clusters_part,
    duplicates_part,
    earlier_part,
    forgotten_part,
    keepers_part,
    large_part,
    ranked_part,
    small_part,
)
from tasks.stages.dedup.workspace import (
    CROWDED,
    EDGE,
    GROUPED,
    IN_CROWD,
    LABELED,
    LINK,
    MEMBER,
    PAIR,
    PARTS_FILE,
    RANKED,
    RECAPTURED,
    SHINGLES,
    VERDICT,
    WANTED,
    Workspace,
    earlier_name,
)

VERSION = 6

_COUNTED = ("large_buckets", "candidate_pairs", "verified_pairs", "pairs_just_below", "pairs_just_above")
_LINKS = 8
"""Memory of a link in the choice of keepers, in records of other passes: its two documents are Python objects."""


def run(config: DedupConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes duplicates, pairs, keys and the audit.

    Raises:
        InputError: the inputs have different parts, or the index has keys of other settings.
    """
    extracted, scores, index = inputs["extracted"], inputs["prose_score"], index_of(inputs)
    _check_index_settings(config, index)
    names = _common_parts(extracted, scores)
    own = output.folder
    passes = _Passes(
        Workspace(config, extracted.folder, scores.folder, own, index, tombstones_of(inputs)), names, output, engine
    )
    passes.forget()
    passes.sign()
    links = passes.equal() if config.exact else []
    if config.near:
        links += passes.near()
    pairs, verdicts = passes.keepers(links)
    passes.verdicts(verdicts, passes.recaptured())
    audit = passes.audit(pairs)
    output.log_file(AUDIT_FILE, output.folder.read(AUDIT_FILE))
    output.log_file("duplicates.png", partial(draw, audit, str(output.address)))
    report = Report(metrics=passes.metrics(audit))
    output.leave_out(output.committed.keys() - passes.kept)  # of passes that had other names when the stage was killed
    return report


def _check_index_settings(config: DedupConfig, index: DedupIndex) -> None:
    """Raises InputError if the keys of this version and of the index are not comparable."""
    indexed, current = index.manifest.signatures, signatures_of(config.model_dump(mode="json"))
    if not config.near or not indexed:
        return
    for name, value in current.items():
        if indexed[name] != value:
            setting = f"dedup.{name}" if name == "near" else f"dedup.minhash.{name}"
            raise InputError(
                f"{setting} is {json.dumps(value)}, and the dedup index of {index.manifest.cycles[-1]} was made with "
                f"{json.dumps(indexed[name])}: near copies of published documents would not be found",
                "set it back, or start a new index under another recipe name",
            )


def _common_parts(extracted: Artifact, scores: Artifact) -> list[str]:
    names = parts_of(extracted)
    if names != scores.names(f"{KIND}/"):
        raise InputError(
            f"{scores.address} and {extracted.address} have different parts", "run annotate on these documents again"
        )
    return names


class _Passes:
    """The passes of one run, in order.

    Args:
        work: settings and files.
        names: names of the parts of this version's documents.
        output: the artifact being written.
        engine: executor of the parts.
    """

    def __init__(self, work: Workspace, names: list[str], output: Output, engine: Engine) -> None:
        self._work = work
        self._names = names
        self._index = work.index
        self._numbered = list(enumerate(names, self._index.count))
        self._output = output
        self._engine = engine
        self._per_bucket = work.config.records_per_bucket
        self._signed: list[PartRecord] = []
        self._stars: list[Source] = []
        self._verified: Buckets | None = None
        self._texts = self._captures = self._index.documents
        self._counts = dict.fromkeys((*_COUNTED, "recaptured", "links"), 0)
        self._of_cycle = Counter[str]()
        self.kept = {"parts", *names}
        """Names of the parts that a later stage or a later cycle reads."""

    def forget(self) -> None:
        """Finds the documents of the index that are taken down."""
        if self._work.takedowns:
            specs = [PartSpec(f"forgotten-{number:05d}", number) for number in range(self._index.count)]
            self._map(forgotten_part, specs, intermediate=True)

    def sign(self) -> None:
        """Runs the pass over all texts."""
        if "parts" not in self._output.committed:
            with self._output.part("parts", conserved=False) as part, part.file(PARTS_FILE) as file:
                file.write(json.dumps(self._names, indent=0).encode())
        specs = [PartSpec(f"sign-{name}", (number, name)) for number, name in self._numbered]
        self._signed = self._map(sign_part, specs)
        self._texts += int(total(self._signed, "texts"))
        self._captures += int(total(self._signed, "captures"))

    def equal(self) -> list[Source]:
        """Finds equal texts; returns the runs of their links."""
        buckets = Buckets("equal", bucket_count(self._texts, self._per_bucket))
        records = self._run_pass(buckets, equal_part, self._keys(TEXTS, buckets))
        self._count("links", records)
        return runs_of(records, buckets.folder, LINK)

    def near(self) -> list[Source]:
        """Finds and verifies pairs, and finds the components of their graph; returns the runs of the links."""
        candidates = self._candidates()
        if not candidates:
            return []
        pairs = sum(run.records for run in candidates)
        paired = Buckets("paired", bucket_count(pairs, self._per_bucket))
        records = self._run_pass(paired, paired_part, self._exchange(paired, PAIR, candidates))
        found = self._count("candidate_pairs", records)
        wanted = self._by_part("shingled", WANTED, runs_of(records, WANTED_TEXTS, WANTED))
        shingled = self._over_parts("shingled", shingle_part, wanted)
        least = bucket_count(int(total(shingled, "pieces")), SET_PIECES)
        buckets = Buckets("compared", max(least, bucket_count(found, self._work.config.pairs_per_part)))
        grouped = self._exchange(buckets, GROUPED, runs_of(records, paired.folder, GROUPED))
        sets = self._exchange(Buckets("sets", buckets.count), SHINGLES, runs_of(shingled, SETS, SHINGLES), SET_PIECES)
        records = self._run_pass(buckets, verify_part, grouped, sets)
        self._verified = buckets
        for name in _COUNTED[2:]:
            self._count(name, records)
        if verified := self._counts["verified_pairs"]:
            self._stars = self._components(runs_of(records, EDGES, EDGE), verified)
            self._counts["links"] += verified
        return runs_of(records, buckets.folder, LINK)

    def _candidates(self) -> list[Source]:
        """Finds the pairs of texts that share a band; returns their runs."""
        bands = self._texts * self._work.config.minhash.bands
        buckets = Buckets("banded", bucket_count(bands, self._per_bucket))
        records = self._run_pass(buckets, candidates_part, self._keys(BANDS, buckets))
        self._count("large_buckets", records)
        runs = runs_of(records, buckets.folder, PAIR)
        if crowded := int(total(records, "crowded")):
            # The order of these documents is with their parts.
            crowds = self._by_part(CROWD, IN_CROWD, runs_of(records, CROWDS, IN_CROWD))
            crowd = runs_of(self._over_parts(CROWD, crowd_part, crowds), CROWD, CROWDED)
            buckets = Buckets("crowded", bucket_count(crowded, self._per_bucket))
            records = self._run_pass(buckets, crowded_part, self._exchange(buckets, CROWDED, crowd))
            runs += runs_of(records, buckets.folder, PAIR)
        return runs

    def _components(self, edges: list[Source], pairs: int) -> list[Source]:
        """Repeats large-star and small-star until neither changes an edge; returns the runs of the final edges."""
        count, number, moved = bucket_count(2 * pairs, self._per_bucket), 0, True
        while moved:
            moved = False
            for step, fn in (("large", large_part), ("small", small_part)):
                buckets = Buckets(f"{step}-{number:02d}", count)
                records = self._run_pass(buckets, fn, self._exchange(buckets, EDGE, edges))
                moved = total(records, "moved_edges") > 0 or moved
                edges = runs_of(records, buckets.folder, EDGE)
            number += 1
        return edges

    def keepers(self, links: list[Source]) -> tuple[Buckets, list[Source]]:
        """Divides the links into clusters and chooses keepers; returns the runs of pairs, and those of verdicts."""
        if not self._counts["links"]:
            return Buckets("pairs", 0), []
        clusters = Buckets("labeled", bucket_count(self._counts["links"], self._per_bucket))
        stars = self._exchange(Buckets("stars", clusters.count), EDGE, self._stars)
        records = self._run_pass(clusters, clusters_part, self._exchange(clusters, LINK, links), stars)
        members = self._by_part("ranked", MEMBER, runs_of(records, MEMBERS, MEMBER))
        ranked = runs_of(self._over_parts("ranked", ranked_part, members), RANKS, RANKED)
        buckets = Buckets("pairs", bucket_count(_LINKS * self._counts["links"], self._per_bucket))
        labeled = self._exchange(buckets, LABELED, runs_of(records, clusters.folder, LABELED))
        ranks = self._exchange(Buckets(RANKS, buckets.count), RANKED, ranked)
        records = self._run_pass(buckets, keepers_part, labeled, ranks, intermediate=False)
        for record in records:
            self._of_cycle.update({name: int(count) for name, count in record.metrics.items()})
        return buckets, runs_of(records, VERDICTS, VERDICT)

    def recaptured(self) -> list[Source]:
        """Finds the documents whose page has several captures; returns their runs."""
        if self._work.config.pages == "all":
            return []
        buckets = Buckets("recaptured", bucket_count(self._captures, self._per_bucket))
        records = self._run_pass(buckets, recaptured_part, self._keys(CAPTURES, buckets))
        self._count("recaptured", records)
        return runs_of(records, buckets.folder, RECAPTURED)

    def verdicts(self, verdicts: list[Source], recaptured: list[Source]) -> None:
        """Writes the verdicts on the documents of each part, and on those of the index."""
        read = (
            self._by_part("duplicates", VERDICT, verdicts),
            self._by_part("pages", RECAPTURED, recaptured),
        )
        specs = [PartSpec(name, number) for number, name in self._numbered]
        self._output.map_parts(self._engine, partial(duplicates_part, self._work, *read), specs)
        self._map(earlier_part, [PartSpec(earlier_name(number), number) for number in range(self._index.count)], *read)

    def audit(self, pairs: Buckets) -> DuplicateAudit:
        """Writes the audit of all passes, and returns it."""
        self._map(audit_part, [PartSpec("audit", self._counts)], pairs, self._verified)
        return DuplicateAudit.model_validate_json(self._work.own.read(AUDIT_FILE))

    def metrics(self, audit: DuplicateAudit) -> dict[str, float]:
        """Returns the metrics of the stage, from the counts of all passes."""
        counts = {name: float(count) for name, count in self._counts.items() if name != "links"}
        return {
            "documents": float(sum(self._output.committed[name].rows_in for name in self._names)),
            "indexed_documents": float(self._index.documents),
            "recaptured": counts.pop("recaptured"),
            **(counts if self._work.config.near else {}),
            "clusters": float(sum(size.clusters for size in audit.sizes)),
            **{f"clusters_of/{size.name}": float(size.clusters) for size in audit.sizes},
            "largest_cluster": float(max([0, *(cluster.documents for cluster in audit.largest)])),
            "sources_over_alarm_share": float(len(alarm(audit.sources, self._work.config.alarm_share))),
            **{f"loss_share/{source.name}": source.share for source in audit.sources},
            **{
                f"duplicates_of/{version}": float(self._of_cycle[f"{OF_CYCLE}{number}"])
                for number, version in enumerate(self._index.manifest.cycles)
            },
        }

    def _keys(self, folder: str, buckets: Buckets) -> Exchange:
        """Returns the keys of documents, of this version and of the index, for a pass over buckets of them."""
        rows = self._work.config.minhash.bands if folder == BANDS else 1
        earlier = [
            Source(self._index.path(folder, number), number, part.documents * rows)
            for number, part in enumerate(self._index.manifest.parts)
            if part.documents
        ]
        runs = earlier + runs_of(self._signed, folder, RUNS[folder], first=self._index.count)
        return self._exchange(buckets, RUNS[folder], runs, read=partial(self._work.read_keys, folder))

    def _exchange(
        self,
        buckets: Buckets,
        dtype: np.dtype[Any],
        runs: Sequence[Source],
        per_range: int = 0,
        read: ReadRun | None = None,
    ) -> Exchange:
        """Returns the records of some runs for the tasks of a pass over buckets of their keys."""
        return exchange(
            buckets.folder,
            dtype,
            self._output,
            self._engine,
            runs,
            per_range or self._per_bucket,
            buckets.count,
            read=read,
        )

    def _by_part(self, name: str, dtype: np.dtype[Any], runs: Sequence[Source]) -> Exchange:
        """Returns the records of runs sorted by row id for the tasks of a pass over all parts."""
        parts = self._index.count, len(self._names)
        return exchange_by_part(name, dtype, self._output, self._engine, runs, self._per_bucket, *parts)

    def _over_parts(self, name: str, fn: Callable[..., None], read: Exchange) -> list[PartRecord]:
        """Runs a pass over all parts, those of the index first."""
        parts = [*map(earlier_name, range(self._index.count)), *self._names]
        specs = [PartSpec(f"{name}-{part}", (number, part)) for number, part in enumerate(parts)]
        return self._map(fn, specs, read, intermediate=True)

    def _run_pass(
        self, buckets: Buckets, fn: Callable[..., None], *read: Exchange, intermediate: bool = True
    ) -> list[PartRecord]:
        """Runs a pass over buckets of the keys that `read` has."""
        specs = [PartSpec(buckets.name(number), number) for number in range(buckets.count)]
        return self._map(fn, specs, *read, buckets, intermediate=intermediate)

    def _map(
        self, fn: Callable[..., None], specs: Sequence[PartSpec], *arguments: Any, intermediate: bool = False
    ) -> list[PartRecord]:
        work: Callable[[Part, Any], None] = partial(fn, self._work, *arguments)
        records = self._output.map_parts(self._engine, work, specs, conserved=False)
        names = {spec.name for spec in specs}
        if intermediate:
            self._output.leave_out(names)
        else:
            self.kept |= names
        return records

    def _count(self, name: str, records: Sequence[PartRecord]) -> int:
        count = int(total(records, name))
        self._counts[name] += count
        return count
