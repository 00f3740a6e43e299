"""Tombstones: the URLs, domains and documents of a recipe that were taken down, and the pages that they cover.

Writes and reads `tombstones.parquet` (SCHEMA) and, if any was ever lifted, `lifted.parquet` (LIFTED), sorted by kind
and value. A takedown contains all earlier ones, so the newest one has all tombstones in force. Two takedowns made
concurrently do not contain each other, and both are in force. A lift names a tombstone by the takedown that introduced
it. It applies to every takedown that still contains this tombstone, but not to a later request for the same value.

A tombstone of a URL covers the page at this URL in every spelling (`tasks.formats.web.url.identity`): http and https,
with and without "www.". One of a file:// URL, which a document from a folder has, covers exactly this URL. One of a
domain covers the domain and its subdomains, on all ports. One of a document covers its id: a URL with specific bytes.
Copies of the same text at other URLs are not covered.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.ledger import versions_of
from tasks.core.stage import Inputs
from tasks.core.store import Store
from tasks.formats.web.canonical_url import page_identity
from tasks.formats.web.url import authority, bare, identity, schemeless, split_port

TAKEDOWN = "takedown"
"""Kind of the artifacts with tombstones, and the reason of rows that they cover."""
PREVIOUS = "previous"
"""Role in which a takedown reads those before it."""
FILE = "tombstones.parquet"
LIFTED_FILE = "lifted.parquet"
FILES = (FILE, LIFTED_FILE)
"""The files that determine what is in force; a takedown among a stage's inputs is fingerprinted by these alone."""
URL, DOMAIN, DOCUMENT = "url", "domain", "document"
KINDS = (URL, DOMAIN, DOCUMENT)

SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),  # one of KINDS
        pa.field("value", pa.string(), nullable=False),  # `document_identity`, host name, or id (32 hex digits)
        pa.field("reason", pa.string(), nullable=False),
        pa.field("requested_by", pa.string(), nullable=False),
        pa.field("date", pa.string(), nullable=False),  # of the request, ISO 8601
        pa.field("origin", pa.string(), nullable=False),  # "form", or "crawl" for pages that their site withdrew
        pa.field("takedown", pa.string(), nullable=False),  # id of the takedown that introduced it
    ]
)

LIFTED = pa.schema(
    [
        *(SCHEMA.field(name) for name in ("kind", "value", "takedown")),  # the tombstone
        pa.field("reason", pa.string(), nullable=False),  # why it was lifted
        pa.field("requested_by", pa.string(), nullable=False),
        pa.field("date", pa.string(), nullable=False),  # of the request to lift it, ISO 8601
        pa.field("lifted_by", pa.string(), nullable=False),  # id of the takedown that lifted it
    ]
)

_BATCH = 1 << 14
_FILE_SCHEME = "file://"
_FILE_URL = re.compile(r"file://[^/]*/.+")
_PLAIN = re.compile(r"https?://([a-z0-9-]+(?:\.[a-z0-9-]+)*)(?::\d+)?[/?#]")


class Tombstone(NamedTuple):
    """One row of SCHEMA."""

    kind: str
    value: str
    reason: str
    requested_by: str
    date: str
    origin: str
    takedown: str


class Lift(NamedTuple):
    """One row of LIFTED."""

    kind: str
    value: str
    takedown: str
    reason: str
    requested_by: str
    date: str
    lifted_by: str


def write(file: BinaryIO, stones: Iterable[Tombstone | Lift], schema: pa.Schema = SCHEMA) -> None:
    """Writes tombstones, or with the schema LIFTED lifts, sorted; equal sets give equal bytes."""
    rows = [stone._asdict() for stone in sorted(stones)]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file, compression="zstd", compression_level=3)


def read(folders: Sequence[ArtifactFolder]) -> list[Tombstone]:
    """Returns the tombstones of takedowns that none of these takedowns lifts, sorted by kind and value.

    Of several with the same kind and value, the one with the oldest date is returned.
    """
    oldest: dict[tuple[str, str], Tombstone] = {}
    for stone in read_all(folders):
        other = oldest.setdefault((stone.kind, stone.value), stone)
        if (stone.date, stone.takedown) < (other.date, other.takedown):
            oldest[stone.kind, stone.value] = stone
    return sorted(oldest.values())


def read_all(folders: Sequence[ArtifactFolder]) -> list[Tombstone]:
    """Like `read`, with one tombstone per kind, value and takedown that introduced it."""
    lifted = {(lift.kind, lift.value, lift.takedown) for lift in read_lifted(folders)}
    stones = {Tombstone(**row) for folder in folders for row in folder.table(FILE).to_pylist()}
    return sorted(stone for stone in stones if (stone.kind, stone.value, stone.takedown) not in lifted)


def read_lifted(folders: Sequence[ArtifactFolder]) -> list[Lift]:
    """Returns all lifts of takedowns, sorted."""
    folders_with_lifts = (folder for folder in folders if folder.store.exists(folder.at(LIFTED_FILE)))
    rows = (row for folder in folders_with_lifts for row in folder.table(LIFTED_FILE).to_pylist())
    return sorted({Lift(**row) for row in rows})


def in_force(store: Store, recipe: str) -> list[Artifact]:
    """Returns the takedowns of a recipe that no other takedown contains, by id: usually the newest one alone.

    Raises:
        InputError: the record of a takedown cannot be read.
    """
    return heads(versions_of(store, f"{recipe}/{TAKEDOWN}"))


def heads(takedowns: Sequence[Artifact]) -> list[Artifact]:
    """Returns those of all takedowns of a recipe that no other one contains, in the same order."""
    contained = {ref.address for takedown in takedowns for ref in takedown.record.inputs if ref.role == PREVIOUS}
    return [takedown for takedown in takedowns if str(takedown.address) not in contained]


def document_identity(url: str) -> str | None:
    """Returns what identifies the page or file of a document's URL, or None if a tombstone cannot name it.

    That of a page is in `canonical_url`. A file:// URL stays as it is: extraction writes it in one spelling, and its
    fragment is the number of a row.

    >>> document_identity("HTTP://a.example:80/#top"), document_identity("file://dump/a.jsonl#7")
    ('http://a.example/', 'file://dump/a.jsonl#7')
    """
    return url if _FILE_URL.fullmatch(url) else page_identity(url)


def page_term(url: str) -> str:
    """Returns what the URLs of documents from one page have in common: the term of the page in an index.

    This is the `document_identity` without scheme and "www."; a text without one is returned unchanged. A tombstone
    covers all URLs with the term of its own.

    >>> page_term("http://www.a.example/%7eann/"), page_term("https://a.example/~ann/")
    ('a.example/~ann/', 'a.example/~ann/')
    """
    page = document_identity(url)
    return url if page is None or page.startswith(_FILE_SCHEME) else schemeless(page)


@dataclass(frozen=True)
class Tombstones:
    """A set of tombstones. Picklable; empty by default.

    Args:
        urls: identities of pages and file:// URLs (`document_identity`).
        domains: host names in canonical form.
        documents: document ids, 32 hex digits.
    """

    urls: frozenset[str] = field(default_factory=frozenset)
    domains: frozenset[str] = field(default_factory=frozenset)
    documents: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, stones: Iterable[Tombstone]) -> "Tombstones":
        """Returns the set of the given tombstones."""
        values: dict[str, set[str]] = {kind: set() for kind in KINDS}
        for stone in stones:
            values[stone.kind].add(stone.value)
        return cls(frozenset(values[URL]), frozenset(values[DOMAIN]), frozenset(values[DOCUMENT]))

    @classmethod
    def read(cls, folders: Sequence[ArtifactFolder]) -> "Tombstones":
        """Returns the set of all tombstones in force in some takedowns.

        Each worker reads it for each part, so rows are not made into objects: 1.2 microseconds and 150 bytes for each.
        """
        lifted = {(lift.kind, lift.value, lift.takedown) for lift in read_lifted(folders)}
        values: dict[str, set[str]] = {kind: set() for kind in KINDS}
        for folder in folders:
            for batch in folder.table(FILE, ["kind", "value", "takedown"]).to_batches(_BATCH):
                for stone in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    if stone not in lifted:
                        values[stone[0]].add(stone[1])
        return cls(frozenset(values[URL]), frozenset(values[DOMAIN]), frozenset(values[DOCUMENT]))

    def __bool__(self) -> bool:
        return bool(self.urls or self.domains or self.documents)

    @property
    def file_urls(self) -> frozenset[str]:
        """The file:// URLs."""
        return frozenset(url for url in self.urls if url.startswith(_FILE_SCHEME))

    @property
    def hosts(self) -> frozenset[str]:
        """Names of the hosts of the tombstones of URLs, with and without "www."."""
        return frozenset(name for host in self._hosts for name in (host, f"www.{host}"))

    def covers_host(self, host: str) -> bool:
        """Returns whether every URL of a host (its `authority`, or its name) is covered."""
        return bool(self.domains) and any(self._domains_of(split_port(host)[0]))

    def covers_url(self, url: str) -> bool:
        """Returns whether a canonical URL is covered."""
        if url.startswith(_FILE_SCHEME):
            return url in self.urls
        return _page(url) in self._pages or self.covers_host(authority(url))

    def causes(self, url: str) -> list[str]:
        """Returns the values of the tombstones of URLs and domains that cover a canonical URL, most specific first."""
        if url.startswith(_FILE_SCHEME):
            return [url] if url in self.urls else []
        page = self._pages.get(_page(url))
        return [*([page] if page else []), *self._domains_of(split_port(authority(url))[0])]

    @property
    def spellings(self) -> list[str]:
        """The identities of pages that the tombstones of URLs cover, sorted by page within scheme and "www."."""
        pages = sorted(self._pages)
        return [f"{scheme}://{www}{page}" for scheme in ("http", "https") for www in ("", "www.") for page in pages]

    def covers_raw_url(self, url: str) -> bool:
        """Returns whether a URL that need not be canonical is covered."""
        plain = document_identity(url)
        return plain is not None and self.covers_url(plain)

    def mask(self, documents: pa.Table) -> NDArray[np.bool_]:
        """Returns a mask of the covered documents, shape (rows,).

        Args:
            documents: url (string), and id (hex) or doc_uid (16 bytes); other columns are not read.
        """
        covered = np.zeros(documents.num_rows, np.bool_)
        if self.documents:
            covered |= self._by_id(documents)
        if self.urls or self.domains:
            covered |= self._by_url(documents.column("url"))
        return covered

    def _by_id(self, documents: pa.Table) -> NDArray[np.bool_]:
        if "id" in documents.column_names:
            wanted, column = pa.array(sorted(self.documents), pa.string()), documents.column("id")
        else:
            raw = [bytes.fromhex(document) for document in sorted(self.documents)]
            wanted, column = pa.array(raw, pa.binary(16)), documents.column("doc_uid")
        return _flags(pc.is_in(column, value_set=wanted))

    def _by_url(self, urls: pa.ChunkedArray) -> NDArray[np.bool_]:
        """Returns a mask of the covered URLs, which need not be canonical, shape (rows,)."""
        hosts: dict[str, bool] = {}
        covered = []
        for url in urls.to_pylist():
            plain = _PLAIN.match(url)
            if plain is None:
                covered.append(self.covers_raw_url(url))
                continue
            host = plain[1]
            if host not in hosts:
                hosts[host] = self.covers_host(host)
            covered.append(hosts[host] or (bare(host) in self._hosts and self.covers_raw_url(url)))
        return np.array(covered, np.bool_)

    def _domains_of(self, name: str) -> Iterator[str]:
        """Returns the domains in this set that a host name belongs to, the longest first."""
        labels = name.split(".")
        suffixes = (".".join(labels[start:]) for start in range(len(labels)))
        return (suffix for suffix in suffixes if suffix in self.domains)

    @cached_property
    def _pages(self) -> dict[str, str]:
        return {_page(url): url for url in self.urls - self.file_urls}

    @cached_property
    def _hosts(self) -> frozenset[str]:
        return frozenset(bare(split_port(authority(url))[0]) for url in self.urls - self.file_urls)


def tombstones_of(inputs: Inputs) -> Tombstones:
    """Returns the tombstones of all takedowns among a stage's inputs; an empty set if there are none."""
    return Tombstones.read(inputs.many("takedowns")) if "takedowns" in inputs else NO_TOMBSTONES


NO_TOMBSTONES = Tombstones()


def _page(url: str) -> str:
    """Returns the identity of the page at a canonical URL, without scheme and "www."."""
    return schemeless(identity(url))


def _flags(values: pa.ChunkedArray) -> NDArray[np.bool_]:
    flags: NDArray[np.bool_] = values.to_numpy().astype(np.bool_)
    return flags
