"""What one month brought and cost, counted from the records and tables of its artifacts.

Reads the artifacts of a version: `documents` (funnel, hosts, replaced and kept documents), `dedup_index`, the crawl DBs
before and after, `warc`, `shards`, `attributes` and the records of all stages. A month that ended early has what it
made. Returns plain values, which the report of the month stores, because the tables may be removed later.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.core.version_index import VersionIndex
from tasks.formats.dedup.dedup_index import DedupIndex
from tasks.formats.documents.groups import group_of, group_refs, path_of
from tasks.formats.web.domain import registered_domain
from tasks.formats.web.url import identity
from tasks.run.monthly.cycle import new_tokens
from tasks.stages.consolidate.funnel import DEDUP, KEPT, UNCHANGED
from tasks.stages.crawl.storage.crawldb import GONE, URLS_FILE
from tasks.stages.crawl.storage.fetchlog import DOMAINS_FILE
from tasks.stages.registry.promote import CHAMPION, COMPARISON, DECISION

Counts = dict[str, int]
Artifacts = Mapping[str, Artifact]
"""The artifacts of a version by kind, without members (`lineage.chain`)."""

MOST = 1000
"""Categories of a distribution that are stored; the others are counted together as OTHER."""
OTHER = "other"

SAMPLED = 32
"""Files of kept documents and of measurements that distributions over single documents are counted in."""

FILTERED = "filtered_share/"
"""Prefix of the metrics of `documents` with the share that filters have dropped of a source."""

PAGE_CHANGED = "duplicate_page"
"""Reason in `replaced/` of a document whose page has changed."""


class Published(NamedTuple):
    """The documents that a version has published and no version before: their ids, and how many have a known URL."""

    ids: frozenset[str]
    known_urls: int


def published_by(index: Artifact) -> Published:
    """Returns what a version added to the index of published documents; reads the names of the whole index once."""
    opened = DedupIndex.open(index)
    version = opened.manifest.cycles[-1]
    # Parts without a content are of this version: its own documents, and earlier parts written again.
    own = {
        number
        for number, part in enumerate(opened.manifest.parts)
        if not part.content and not part.name.startswith(f"{version}-again-")
    }
    ids: set[str] = set()
    urls: set[str] = set()
    for number in own:
        names = opened.names(number)
        ids.update(names["id"].to_pylist())
        urls.update(names["url"].to_pylist())
    known = 0
    for number in set(range(opened.count)) - own:
        known += int(pc.sum(pc.is_in(opened.names(number)["url"], pa.array(urls, pa.string()))).as_py() or 0)
    return Published(frozenset(ids), known)


def documents_of(artifacts: Artifacts, published: Published | None) -> Counts:
    """Returns the documents of a month by what happened to them.

    `captured` pages and files read, without `unchanged` ones; `kept`, `duplicates`; of the kept ones those that no
    earlier month has published: `new`, and `changed` pages and files; pages that are `gone` from the web, or withdrawn
    by their site; documents of earlier months that were `replaced` by another page's or `forgotten` after a takedown;
    `known`, those that the next month is compared with.

    Args:
        artifacts: those of the version.
        published: what it has published (`published_by`); None without an index: all kept documents are new.
    """
    found: Counts = {}
    if documents := artifacts.get("documents"):
        steps, unchanged = _steps(documents)
        tables = (documents.table(path, ["reason"]) for path in documents.files("replaced/"))
        reasons = Counter(reason for table in tables for reason in table["reason"].to_pylist())
        replaced = sum(reasons.values())
        found |= {
            "captured": sum(steps.values()),
            "unchanged": unchanged,
            "kept": steps.get(KEPT, 0),
            "duplicates": steps.get(DEDUP, 0),
        }
        found |= {"new": found["kept"], "changed": 0, "replaced": replaced - reasons[PAGE_CHANGED]}
        if published and (index := artifacts.get("dedup_index")):
            changed = reasons[PAGE_CHANGED] + published.known_urls
            found |= {"new": len(published.ids) - changed, "changed": changed}
            found["forgotten"] = int(index.record.metrics["left"]) - replaced
            found["known"] = int(index.record.metrics["documents"])
    if warc := artifacts.get("warc"):
        found["gone"] = gone_pages(warc)
    return found


def filtered_of(artifacts: Artifacts) -> dict[str, float]:
    """Returns the share of the month's documents that filters have dropped, by source."""
    documents = artifacts.get("documents")
    metrics = documents.record.metrics if documents else {}
    return {name.removeprefix(FILTERED): value for name, value in metrics.items() if name.startswith(FILTERED)}


def gone_pages(warc: Artifact) -> int:
    """Returns the pages that were captured once and are gone since this crawl cycle."""
    gone = pc.field("status") == GONE
    pages = 0
    for ref in warc.record.inputs:
        if "/crawldb/" not in ref.address:
            continue
        database = Artifact.open_at(warc.store, ArtifactId.parse(ref.address))
        captured = database.table(URLS_FILE, ["url"], gone & pc.field("captured_at").is_valid())
        urls = set(map(identity, captured["url"].to_pylist()))
        for earlier in database.ids_of("previous"):
            if before := Artifact.find(warc.store, earlier):
                urls -= set(map(identity, before.table(URLS_FILE, ["url"], gone)["url"].to_pylist()))
        pages += len(urls)
    return pages


def tokens_of(store: Store, recipe: str, version: str) -> dict[str, Any]:
    """Returns the training tokens: `new` ones, `all`, and the version of the model `since` which they are new."""
    new, whole, since = new_tokens(store, recipe, version)
    return {"new": new, "all": whole, "since": since}


def costs_of(store: Store, recipe: str, version: str) -> dict[str, float]:
    """Returns the seconds that each stage took at a version, members added up; adopted artifacts took none."""
    seconds: dict[str, float] = defaultdict(float)
    for artifact in VersionIndex(store, recipe).artifacts(version):
        record = artifact.record
        if not record.adopted_from and artifact.address.name.split("/")[1] not in OPERATIONS:
            seconds[record.stage] += (record.finished - record.started).total_seconds()
    return dict(seconds)


OPERATIONS = ("month", "takedown")
"""Kinds that are no step of a month."""


def champion_of(artifacts: Artifacts) -> dict[str, Any] | None:
    """Returns the comparison with the champion: {promoted, reason, difference, interval, decided, champion}; or None.

    `decided` is whether the comparison was applied; it is not while a person has not approved it.
    """
    comparison = artifacts.get("comparison")
    if comparison is None:
        return None
    verdict = json.loads(comparison.read(COMPARISON))
    score = verdict["score"] or {"difference": None, "interval": [None, None], "unit": ""}
    decision = artifacts.get("champion")
    champion = json.loads(decision.read(DECISION))[CHAMPION]["artifact"] if decision else None
    return {
        **{name: verdict[name] for name in ("promoted", "reason")},
        **{name: score[name] for name in ("difference", "interval", "unit")},
        "decided": decision is not None,
        "champion": champion,
    }


def faults_of(store: Store, recipe: str, version: str) -> Counts:
    """Returns the alerts and faults of the month's trainings, by name; none if all went well."""
    found: Counter[str] = Counter()
    for artifact in VersionIndex(store, recipe).artifacts(version):
        metrics = artifact.record.metrics
        found.update(
            {name: int(value) for name, value in metrics.items() if value and name.startswith(("alerts/", "faults/"))}
        )
    return dict(found)


def crawled_domains(artifacts: Artifacts) -> dict[str, tuple[int, int]]:
    """Returns for each domain of a crawl cycle the pages that were there, changed or not, and the failed requests."""
    warc = artifacts.get("warc")
    if warc is None:
        return {}
    rows = warc.table(DOMAINS_FILE, ["domain", "pages", "unchanged", "errors"]).to_pylist()
    found = {row["domain"] or "": (row["pages"] + row["unchanged"], row["errors"]) for row in rows}
    return dict(sorted(found.items(), key=lambda item: (-sum(item[1]), item[0]))[:MOST])


def profile_of(artifacts: Artifacts, published: Published | None) -> dict[str, Counts]:
    """Returns the distributions of a month, counts by category.

    `steps` of the funnel at which captures and files ended, without unchanged ones; of the documents that it has
    published `languages`, `domains`, `lengths` (UTF-8 bytes, by powers of two) and `quality` (prose score in tenths);
    of all extracted ones `perplexity`, by half powers of two, if it is measured. Lengths, quality and perplexity are
    counted in a sample.
    """
    documents = artifacts.get("documents")
    if documents is None:
        return {}
    wanted = None if published is None else pa.array(published.ids, pa.string())
    found: dict[str, Counter[str]] = {name: Counter() for name in ("languages", "domains", "lengths", "quality")}
    files = documents.files("kept/")
    detailed = {*sampled(files)}
    for path in files:
        more = ["text", "prose_score"] if path in detailed else []
        rows = documents.table(path, ["id", "host", "language", *more])
        rows = rows if wanted is None else rows.filter(pc.is_in(rows["id"], wanted))
        found["languages"].update(rows["language"].to_pylist())
        found["domains"].update(map(registered_domain, rows["host"].to_pylist()))
        if more:
            found["lengths"].update(map(_power, pc.binary_length(rows["text"]).to_pylist()))
            found["quality"].update(map(_tenth, rows["prose_score"].to_pylist()))
    profile = {"steps": _steps(documents)[0], **found, "perplexity": _perplexity(artifacts)}
    return {name: largest(counts) for name, counts in profile.items() if counts}


def _power(size: int) -> str:
    return f"{1 << max(size, 1).bit_length() - 1}"


def _tenth(score: float | None) -> str:
    return "none" if score is None else f"{min(int(score * 10), 9) / 10}"


def _perplexity(artifacts: Artifacts) -> Counts:
    attributes = artifacts.get("attributes")
    if attributes is None or "perplexity" not in group_refs(attributes):
        return {}
    group = group_of(attributes, "perplexity")
    found: Counter[str] = Counter()
    for path in sampled(group.files(path_of("").partition("/")[0])):
        values = pc.struct_field(group.table(path, ["perplexity"])["perplexity"].combine_chunks(), "perplexity")
        numbers = np.array(values.drop_null().to_pylist(), float)
        halves = np.floor(2 * np.log2(numbers[np.isfinite(numbers) & (numbers > 0)])) / 2
        found.update(f"{2**half:.0f}" for half in halves.tolist())
    return dict(found)


def sampled(paths: list[str]) -> list[str]:
    """Returns at most SAMPLED paths, evenly spaced; rows are assigned to files by hash or by host."""
    step = max(1, -(-len(paths) // SAMPLED))
    return paths[::step]


def largest(counts: Counts) -> Counts:
    """Returns the MOST largest counts, by name among equals, and the sum of the others as OTHER."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(count for _, count in ordered[MOST:])
    return {**dict(ordered[:MOST]), **({OTHER: rest} if rest else {})}


def _steps(documents: Artifact) -> tuple[Counts, int]:
    """Returns the captures and files by the step at which they ended, and the unchanged ones, which are not in it."""
    sums: Counter[str] = Counter()
    unchanged = 0
    for row in documents.table("funnel.parquet", ["step", "reason", "documents"]).to_pylist():
        if row["reason"] == UNCHANGED:
            unchanged += row["documents"]
        else:
            sums[row["step"]] += row["documents"]
    return dict(sums), unchanged
