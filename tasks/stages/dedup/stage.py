"""Stage dedup: documents -> for each document the one that it is a duplicate of, if any.

Reads `extracted` (text, url, source, host, fetched_at), the group `prose_score` (tasks.core.groups) and, if it exists,
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
    candidates   per bucket    pairs of texts that share a band
    shingle      per part      shingle sets of the texts of these pairs
    verify       per bucket    exact Jaccard similarity of each pair
    large small  per bucket    connected components of the verified pairs, round by round
    clusters     per bucket    pairs and equal texts by cluster
    pairs        per bucket    the keeper of each cluster (`verdicts`)
    recaptured   per bucket    documents whose page has several captures
    <part>       per part      the verdicts on its documents
    audit        once          samples and counts of the passes

Documents of the index are compared with those of this version but not with one another, and their texts are read only
to verify a pair. So the cost of a version is that of its own documents plus a pass over the keys of the index.

A bucket is a range of hashes (of band keys, pairs, texts or clusters) with about `records_per_bucket` records: this and
the largest part bound the memory of a worker. The process of the stage holds only counts. Intermediate files are
deleted at the end.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tasks.core.artifact import Artifact, PartRecord
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.groups import KIND
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report, total
from tasks.formats.dedup.dedup_index import DedupIndex, index_of, signatures_of
from tasks.formats.dedup.duplicates import AUDIT_FILE, DuplicateAudit
from tasks.formats.dedup.sorted_runs import Buckets, bucket_count
from tasks.formats.documents.document import parts_of
from tasks.formats.documents.tombstones import tombstones_of
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup.audit import alarm, audit_part, draw
from tasks.stages.dedup.pairs import EDGES, WANTED, candidates_part, equal_part, shingle_part, verify_part
from tasks.stages.dedup.preference import recaptured_part
from tasks.stages.dedup.signatures import sign_part
from tasks.stages.dedup.verdicts import (
    OF_CYCLE,
    VERDICTS,
    clusters_part,
    duplicates_part,
    earlier_part,
    forgotten_part,
    keepers_part,
    large_part,
    small_part,
)
from tasks.stages.dedup.workspace import PARTS_FILE, Workspace, earlier_name

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
    links = [passes.equal()] if config.exact else []
    if config.near:
        links += passes.near()
    verdicts = passes.keepers([run for run in links if run])
    passes.verdicts(verdicts, passes.recaptured())
    audit = passes.audit(verdicts)
    output.log_file(AUDIT_FILE, output.folder.read(AUDIT_FILE))
    output.log_file("duplicates.png", partial(draw, audit, str(output.address)))
    report = Report(metrics=passes.metrics(audit))
    output.leave_out(passes.intermediate)
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
        self._stars: Buckets | None = None
        self._verified: Buckets | None = None
        self._texts = self._captures = self._index.documents
        self._counts = dict.fromkeys((*_COUNTED, "recaptured", "links"), 0)
        self._of_cycle = Counter[str]()
        self.intermediate: list[str] = []
        """Names of the parts that neither a later stage nor a later cycle reads."""

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
        records = self._map(sign_part, [PartSpec(f"sign-{name}", (number, name)) for number, name in self._numbered])
        self._texts += int(total(records, "texts"))
        self._captures += int(total(records, "captures"))

    def equal(self) -> Buckets | None:
        """Finds equal texts; returns their links, if any."""
        buckets = Buckets("equal", bucket_count(self._texts, self._per_bucket))
        return buckets if self._count("links", self._run_pass(buckets, equal_part)) else None

    def near(self) -> list[Buckets]:
        """Finds and verifies pairs, and finds the components of their graph; returns the links, if any."""
        candidates = Buckets(
            "candidates", bucket_count(self._texts * self._work.config.minhash.bands, self._per_bucket)
        )
        records = self._run_pass(candidates, candidates_part)
        self._count("large_buckets", records)
        pairs = int(total(records, "found_pairs"))
        if not pairs:
            return []
        specs = [PartSpec(f"shingle-{name}", (number, name)) for number, name in enumerate(self._work.part_names())]
        self._map(shingle_part, specs, candidates.sibling(WANTED), intermediate=True)
        buckets = Buckets("verified", bucket_count(pairs, self._work.config.pairs_per_part))
        records = self._run_pass(buckets, verify_part, candidates)
        self._verified = buckets
        for name in _COUNTED[1:]:
            self._count(name, records)
        verified = self._counts["verified_pairs"]
        if not verified:
            return []
        self._stars = self._components(buckets.sibling(EDGES), verified)
        self._counts["links"] += verified
        return [buckets]

    def _components(self, edges: Buckets, pairs: int) -> Buckets:
        """Repeats large-star and small-star until neither changes an edge; returns the final edges."""
        count, number, moved = bucket_count(2 * pairs, self._per_bucket), 0, True
        while moved:
            large = Buckets(f"large-{number:02d}", count)
            moved = total(self._run_pass(large, large_part, edges), "moved_edges") > 0
            edges = Buckets(f"small-{number:02d}", count)
            moved = total(self._run_pass(edges, small_part, large), "moved_edges") > 0 or moved
            number += 1
        return edges

    def keepers(self, links: Sequence[Buckets]) -> Buckets:
        """Divides the links into clusters and chooses keepers; returns the runs of pairs, next to those of verdicts."""
        if not links:
            return Buckets("pairs", 0)
        clusters = Buckets("clusters", bucket_count(self._counts["links"], self._per_bucket))
        self._run_pass(clusters, clusters_part, tuple(links), self._stars)
        buckets = Buckets("pairs", bucket_count(_LINKS * self._counts["links"], self._per_bucket))
        for record in self._run_pass(buckets, keepers_part, clusters, intermediate=False):
            self._of_cycle.update({name: int(count) for name, count in record.metrics.items()})
        return buckets

    def recaptured(self) -> Buckets:
        """Finds the documents whose page has several captures; returns their runs."""
        if self._work.config.pages == "all":
            return Buckets("recaptured", 0)
        buckets = Buckets("recaptured", bucket_count(self._captures, self._per_bucket))
        self._count("recaptured", self._run_pass(buckets, recaptured_part))
        return buckets

    def verdicts(self, pairs: Buckets, recaptured: Buckets) -> None:
        """Writes the verdicts on the documents of each part, and on those of the index."""
        runs = pairs.sibling(VERDICTS), recaptured
        specs = [PartSpec(name, number) for number, name in self._numbered]
        self._output.map_parts(self._engine, partial(duplicates_part, self._work, *runs), specs)
        self._map(earlier_part, [PartSpec(earlier_name(number), number) for number in range(self._index.count)], *runs)

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

    def _run_pass(
        self, buckets: Buckets, fn: Callable[..., None], *read: Any, intermediate: bool = True
    ) -> list[PartRecord]:
        """Runs a pass: writes all its buckets from the runs `read`."""
        specs = [PartSpec(buckets.name(number), number) for number in range(buckets.count)]
        return self._map(fn, specs, *read, buckets, intermediate=intermediate)

    def _map(
        self, fn: Callable[..., None], specs: Sequence[PartSpec], *arguments: Any, intermediate: bool = False
    ) -> list[PartRecord]:
        self.intermediate += [spec.name for spec in specs] if intermediate else []
        work: Callable[[Part, Any], None] = partial(fn, self._work, *arguments)
        return self._output.map_parts(self._engine, work, specs, conserved=False)

    def _count(self, name: str, records: Sequence[PartRecord]) -> int:
        count = int(total(records, name))
        self._counts[name] += count
        return count
