"""Counts of the kept documents: by source, language, domain and stated licence; and the terms of use of their sites.

Reads `documents` (kept/) and the crawl DBs that the `warc` refers to. All counts are of kept documents; bytes are those
of their texts in UTF-8.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core import parquet
from tasks.core.artifact import Artifact, ArtifactId
from tasks.formats.web.domain import domain_of, host_name
from tasks.stages.crawl.storage.crawldb import URLS_FILE

WEB = "web"
"""The source of crawled documents."""
UNKNOWN = "unknown"
_COLUMNS = ("source", "host", "language", "licence", "fetched_at", "text")
_KEYS = ["source", "host", "language", "licence"]


@dataclass
class Count:
    """Documents, bytes of their texts, and the times of the first and the last fetch (None: not fetched)."""

    documents: int = 0
    bytes: int = 0
    first: datetime | None = None
    last: datetime | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a group of documents."""
        self.documents += row["documents"]
        self.bytes += row["bytes"]
        if row["first"] is not None:
            self.first = min(self.first or row["first"], row["first"])
            self.last = max(self.last or row["last"], row["last"])


@dataclass
class Corpus:
    """Counts of the kept documents.

    Attributes:
        sources: by source.
        languages: by language of the text.
        domains: crawled documents by registered domain.
        licences: crawled documents by registered domain and licence as the page states it; "" without one.
    """

    sources: dict[str, Count] = field(default_factory=lambda: defaultdict(Count))
    languages: dict[str, Count] = field(default_factory=lambda: defaultdict(Count))
    domains: dict[str, Count] = field(default_factory=lambda: defaultdict(Count))
    licences: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @classmethod
    def of(cls, documents: Artifact) -> "Corpus":
        """Counts the kept documents of an artifact."""
        corpus = cls()
        for path in documents.files("kept/"):
            for row in _groups(documents, path):
                corpus.sources[row["source"]].add(row)
                corpus.languages[row["language"] or UNKNOWN].add(row)
                if row["source"] == WEB:
                    domain = domain_of(row["host"] or UNKNOWN)
                    corpus.domains[domain].add(row)
                    corpus.licences[domain][row["licence"] or ""] += row["documents"]
        return corpus

    @property
    def total(self) -> Count:
        """All kept documents."""
        total = Count()
        for count in self.sources.values():
            total.add({"documents": count.documents, "bytes": count.bytes, "first": count.first, "last": count.last})
        return total

    def largest_domains(self, most: int) -> list[tuple[str, Count]]:
        """Returns the domains with the most bytes, largest first; of equal ones the first by name."""
        ordered = sorted(self.domains.items(), key=lambda item: (-item[1].bytes, item[0]))
        return ordered[:most]


def _groups(documents: Artifact, path: str) -> Iterator[dict[str, Any]]:
    """Yields documents, bytes, first and last fetch of each group of equal `_KEYS` of a file."""
    with parquet.open_file(documents.local(path)) as file:
        columns = [name for name in _COLUMNS if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=4096, columns=columns):
            table = pa.Table.from_batches([batch])
            for name in _KEYS:
                if name not in columns:
                    table = table.append_column(name, pa.nulls(table.num_rows, pa.string()))
            if "fetched_at" not in columns:
                table = table.append_column("fetched_at", pa.nulls(table.num_rows, pa.timestamp("ms", tz="UTC")))
            table = table.append_column("bytes", pc.binary_length(table["text"].cast(pa.binary())))
            wanted = [("bytes", "count"), ("bytes", "sum"), ("fetched_at", "min"), ("fetched_at", "max")]
            grouped = table.drop_columns("text").group_by(_KEYS).aggregate(wanted)
            names = {"bytes_count": "documents", "bytes_sum": "bytes", "fetched_at_min": "first",
                     "fetched_at_max": "last"}  # fmt: skip
            yield from grouped.rename_columns(names | {name: name for name in _KEYS}).to_pylist()


def terms_of_use(warc: Artifact) -> dict[str, Counter[str]]:
    """Returns the terms of use that sites stated, as "name: value", by registered domain, with numbers of captures."""
    terms: dict[str, Counter[str]] = defaultdict(Counter)
    for ref in warc.record.inputs:
        if "/crawldb/" not in ref.address:
            continue
        database = Artifact.open_at(warc.store, ArtifactId.parse(ref.address))
        rows = database.table(
            URLS_FILE, ["url", "terms"], (pc.field("terms") != "") & pc.field("captured_at").is_valid()
        )
        for row in rows.to_pylist():
            host = host_name(row["url"])
            for name, value in json.loads(row["terms"]).items():
                terms[domain_of(host or UNKNOWN)][f"{name}: {value}"] += 1
    return terms
