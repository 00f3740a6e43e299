"""Tombstones: the URLs, domains and documents of a recipe that were taken down, and what they cover.

Writes and reads `tombstones.parquet` (SCHEMA) and, where any was ever lifted, `lifted.parquet` (LIFTED), sorted by
kind and value. A takedown contains those before it, so the newest one says all that is in force; of two that were made
at the same time neither contains the other, and both are. A lift names a tombstone by the takedown that it was first
part of: it holds against any takedown that still contains this one, and not against a later request for the same value.

A tombstone of a URL covers the page at it: http and https, with and without "www.". One of a domain covers its name and
all below it, on all ports. One of a document covers that id: a URL with the bytes it had. Copies of the same text at
other addresses are not covered.
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
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.url import authority, bare, split_port

TAKEDOWN = "takedown"
"""Kind of the artifacts with tombstones, and the reason of rows that they cover."""
PREVIOUS = "previous"
"""Role in which a takedown reads those before it."""
FILE = "tombstones.parquet"
LIFTED_FILE = "lifted.parquet"
FILES = (FILE, LIFTED_FILE)
"""What says what is in force: all that counts of a takedown among the inputs of a stage."""
URL, DOMAIN, DOCUMENT = "url", "domain", "document"
KINDS = (URL, DOMAIN, DOCUMENT)

SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),  # one of KINDS
        pa.field("value", pa.string(), nullable=False),  # canonical URL, host name, or id (32 hex digits)
        pa.field("reason", pa.string(), nullable=False),
        pa.field("requested_by", pa.string(), nullable=False),
        pa.field("date", pa.string(), nullable=False),  # of the request, ISO 8601
        pa.field("origin", pa.string(), nullable=False),  # "form", or "crawl" for what a site has withdrawn
        pa.field("takedown", pa.string(), nullable=False),  # id of the artifact that it was first part of
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


class Lifted(NamedTuple):
    """One row of LIFTED."""

    kind: str
    value: str
    takedown: str
    reason: str
    requested_by: str
    date: str
    lifted_by: str


def write(file: BinaryIO, stones: Iterable[Tombstone]) -> None:
    """Writes tombstones, sorted; equal ones give equal bytes."""
    rows = [stone._asdict() for stone in sorted(stones)]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), file, compression="zstd", compression_level=3)


def write_lifted(file: BinaryIO, lifted: Iterable[Lifted]) -> None:
    """Writes what was lifted, sorted; equal ones give equal bytes."""
    rows = [one._asdict() for one in sorted(lifted)]
    pq.write_table(pa.Table.from_pylist(rows, schema=LIFTED), file, compression="zstd", compression_level=3)


def read(folders: Sequence[ArtifactFolder]) -> list[Tombstone]:
    """Returns the tombstones of takedowns that none of them has lifted, sorted by kind and value.

    Of several with the same kind and value that of the oldest date.
    """
    found: dict[tuple[str, str], Tombstone] = {}
    for stone in read_all(folders):
        other = found.setdefault((stone.kind, stone.value), stone)
        if (stone.date, stone.takedown) < (other.date, other.takedown):
            found[stone.kind, stone.value] = stone
    return sorted(found.values())


def read_all(folders: Sequence[ArtifactFolder]) -> list[Tombstone]:
    """Returns all that `read` chooses from: of the same kind and value one for each takedown that made it, sorted."""
    gone = {(one.kind, one.value, one.takedown) for one in read_lifted(folders)}
    stones = {Tombstone(**row) for folder in folders for row in folder.table(FILE).to_pylist()}
    return sorted(one for one in stones if (one.kind, one.value, one.takedown) not in gone)


def read_lifted(folders: Sequence[ArtifactFolder]) -> list[Lifted]:
    """Returns all that takedowns have lifted, sorted."""
    having = (folder for folder in folders if folder.store.exists(f"{folder.path}/{LIFTED_FILE}"))
    return sorted({Lifted(**row) for folder in having for row in folder.table(LIFTED_FILE).to_pylist()})


def in_force(store: Store, recipe: str) -> list[Artifact]:
    """Returns the takedowns of a recipe that no other one contains, by id: usually one, the newest; [] for none.

    Raises:
        InputError: the record of a takedown cannot be read.
    """
    made = versions_of(store, f"{recipe}/{TAKEDOWN}")
    contained = {ref.address for one in made for ref in one.record.inputs if ref.role == PREVIOUS}
    return [one for one in made if str(one.address) not in contained]


@dataclass(frozen=True)
class Tombstones:
    """What is taken down. Picklable; empty by default, and then it covers nothing.

    Args:
        urls: canonical URLs.
        domains: host names in canonical form.
        documents: document ids, 32 hex digits.
    """

    urls: frozenset[str] = field(default_factory=frozenset)
    domains: frozenset[str] = field(default_factory=frozenset)
    documents: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, stones: Iterable[Tombstone]) -> "Tombstones":
        """Returns what some tombstones cover."""
        values: dict[str, set[str]] = {kind: set() for kind in KINDS}
        for stone in stones:
            values[stone.kind].add(stone.value)
        return cls(*(frozenset(values[kind]) for kind in KINDS))

    @classmethod
    def read(cls, folders: Sequence[ArtifactFolder]) -> "Tombstones":
        """Returns what some takedowns cover together."""
        return cls.of(read(folders))

    def __bool__(self) -> bool:
        return bool(self.urls or self.domains or self.documents)

    @property
    def hosts(self) -> frozenset[str]:
        """The names of the hosts whose pages the tombstones of URLs cover, with and without "www."."""
        return frozenset(name for host in self._hosts for name in (host, f"www.{host}"))

    def covers_host(self, host: str) -> bool:
        """Returns whether every URL of a host (its `authority`, or its name) is taken down."""
        return bool(self.domains) and any(self._domains_of(split_port(host)[0]))

    def covers_url(self, url: str) -> bool:
        """Returns whether a canonical URL is taken down."""
        return _page(url) in self._pages or self.covers_host(authority(url))

    def causes(self, url: str) -> list[str]:
        """Returns the values of the tombstones of URLs and domains that cover a canonical URL, the closest first."""
        page = self._pages.get(_page(url))
        return [*([page] if page else []), *self._domains_of(split_port(authority(url))[0])]

    @property
    def spellings(self) -> list[str]:
        """The canonical URLs that the tombstones of URLs cover, sorted."""
        pages = sorted(self._pages)
        return [f"{scheme}://{www}{page}" for scheme in ("http", "https") for www in ("", "www.") for page in pages]

    def covers_written(self, url: str) -> bool:
        """Returns whether a URL, as anyone wrote it, is taken down."""
        plain = canonical(url)
        return plain is not None and self.covers_url(plain)

    def mask(self, documents: pa.Table) -> NDArray[np.bool_]:
        """Returns which documents are taken down, shape (rows,).

        Args:
            documents: url (string), and id (hex) or doc_uid (16 bytes); other columns are not read.
        """
        found = np.zeros(documents.num_rows, np.bool_)
        if self.documents:
            found |= self._by_id(documents)
        if self.urls or self.domains:
            found |= self._by_url(documents.column("url"))
        return found

    def _by_id(self, documents: pa.Table) -> NDArray[np.bool_]:
        if "id" in documents.column_names:
            wanted, column = pa.array(sorted(self.documents), pa.string()), documents.column("id")
        else:
            raw = [bytes.fromhex(one) for one in sorted(self.documents)]
            wanted, column = pa.array(raw, pa.binary(16)), documents.column("doc_uid")
        return _flags(pc.is_in(column, value_set=wanted))

    def _by_url(self, urls: pa.ChunkedArray) -> NDArray[np.bool_]:
        """Returns which of some URLs, as anyone wrote them, are covered."""
        hosts: dict[str, bool] = {}
        found = []
        for url in urls.to_pylist():
            plain = _PLAIN.match(url)
            if plain is None:
                found.append(self.covers_written(url))
                continue
            host = plain[1]
            if host not in hosts:
                hosts[host] = self.covers_host(host)
            found.append(hosts[host] or (bare(host) in self._hosts and self.covers_written(url)))
        return np.array(found, np.bool_)

    def _domains_of(self, name: str) -> Iterator[str]:
        labels = name.split(".")
        names = (".".join(labels[at:]) for at in range(len(labels)))
        return (one for one in names if one in self.domains)

    @cached_property
    def _pages(self) -> dict[str, str]:
        return {_page(url): url for url in self.urls}

    @cached_property
    def _hosts(self) -> frozenset[str]:
        return frozenset(bare(split_port(authority(url))[0]) for url in self.urls)


def tombstones_of(inputs: Inputs, role: str = "takedowns") -> Tombstones:
    """Returns what the takedowns among a stage's inputs cover together; nothing where there is none."""
    return Tombstones.read(inputs.many(role)) if role in inputs else NOTHING


NOTHING = Tombstones()


def _page(url: str) -> str:
    """Returns the key of a page: its canonical URL without scheme and "www."."""
    return bare(url.partition("://")[2])


def _flags(values: pa.ChunkedArray) -> NDArray[np.bool_]:
    flags: NDArray[np.bool_] = values.to_numpy().astype(np.bool_)
    return flags
