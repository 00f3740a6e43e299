"""Values of a request that match no record of a recipe, and the nearest addresses of its records.

A misspelled URL takes nothing down, and the audit then finds nothing: the requester must see the right spelling. The
records are those of the newest artifacts: kept and rejected documents, captures without a document, and known URLs of
the crawl. Of a URL, the nearest ones are on its host or, if there are none, similar host names; of a domain, similar
host names. Addresses are compared without escapes: the 50 with the longest common beginning and end, then by difflib's
ratio. Ten million URLs of one host take about a minute.
"""

import heapq
import logging
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import newest
from tasks.core.store import Store
from tasks.formats.documents.tombstones import DOCUMENT, URL, Tombstone, Tombstones, document_identity, page_term
from tasks.formats.web.domain import host_name
from tasks.formats.web.url import bare

MOST_NEAREST = 3
"""Maximum number of addresses for a value."""
MOST_SOUGHT = 20
"""Maximum number of values whose nearest addresses are looked for."""

CRAWL_DB = "urls.parquet"
_SHORT_LIST = 50
_SIMILAR = 0.6
"""Least ratio of similar host names, that of difflib's `get_close_matches`."""
_FILE_SOURCE = re.compile(r"file://[^/]*/")
_HOST = r"^[Hh][Tt][Tt][Pp][Ss]?://(?:[^/@]*@)?(?P<host>[^/:?#]+)"

log = logging.getLogger("sluice.takedown")


class Unmatched(NamedTuple):
    """A value that matches no record, and the nearest addresses, the nearest first."""

    kind: str
    value: str
    nearest: list[str]


def unmatched(store: Store, recipe: str, requested: Sequence[Tombstone], found: Container[str]) -> list[Unmatched]:
    """Returns the values of a request that match no record of the recipe, sorted; nothing is read if all were found.

    Args:
        store: the store.
        recipe: name of the recipe.
        requested: tombstones of the request.
        found: their values that match a document of any artifact.
    """
    sought = sorted(stone for stone in requested if stone.value not in found)
    recorded = _recorded(store, recipe, sought) if sought else set()
    missing = [stone for stone in sought if stone.value not in recorded]
    near = _nearest_of(store, recipe, [stone for stone in missing if stone.kind != DOCUMENT][:MOST_SOUGHT])
    return [Unmatched(stone.kind, stone.value, near.get(stone.value, [])) for stone in missing]


def _recorded(store: Store, recipe: str, stones: Sequence[Tombstone]) -> set[str]:
    """Returns the values of tombstones that match a record."""
    tombstones, recorded = Tombstones.of(stones), set[str]()
    for rows in _records(store, recipe):
        covered = rows.filter(pa.array(tombstones.mask(rows), pa.bool_()))
        recorded.update(covered.column("id").to_pylist())
        for url in filter(None, map(document_identity, covered.column("url").to_pylist())):
            recorded.update(tombstones.causes(url))
    return recorded


def _nearest_of(store: Store, recipe: str, stones: Sequence[Tombstone]) -> dict[str, list[str]]:
    """Returns the nearest addresses of the records to the values of tombstones, by value."""
    places = {stone.value: _place(stone.value) if stone.kind == URL else "" for stone in stones}
    pattern = "|".join(sorted({re.escape(place) for place in places.values() if place}))
    best, hosts = {value: _ShortList(value) for value in places}, set[str]()
    for rows in _records(store, recipe) if stones else ():
        urls = rows.column("url").unique()
        hosts.update(pc.struct_field(pc.extract_regex(urls, _HOST), "host").unique().drop_null().to_pylist())
        here = urls.filter(pc.match_substring_regex(urls, f"(?i){pattern}")).to_pylist() if pattern else []
        located = [(_place(url), _plain(url), url) for url in here]
        for value, place in places.items():
            best[value].add((plain, url) for where, plain, url in located if where == place)
    names = [(_plain(host), host) for host in hosts]
    for stone in stones:
        if not best[stone.value]:
            best[stone.value] = similar = _ShortList(places[stone.value] or stone.value, _SIMILAR)
            similar.add(names)
    return {value: addresses.nearest() for value, addresses in best.items()}


class _ShortList:
    """The addresses with the longest common beginning and end with a value, at most _SHORT_LIST.

    Args:
        value: the value.
        least: least ratio of the addresses that `nearest` returns.
    """

    def __init__(self, value: str, least: float = 0.0) -> None:
        self._wanted = _plain(value)
        self._reversed = self._wanted[::-1]
        self._least = least
        self._best: list[tuple[int, str, str]] = []

    def __bool__(self) -> bool:
        return bool(self._best)

    def add(self, addresses: Iterable[tuple[str, str]]) -> None:
        """Adds pairs of an address without escapes and the address itself."""
        rows = {(self._common(plain), plain, address) for plain, address in addresses}
        self._best = heapq.nlargest(_SHORT_LIST, rows.union(self._best))

    def nearest(self) -> list[str]:
        """Returns the addresses that are most like the value, the nearest first, at most MOST_NEAREST."""
        matcher = SequenceMatcher(None, "", self._wanted, autojunk=False)
        ranked = []
        for _, plain, address in self._best:
            matcher.set_seq1(plain)
            ranked.append((-matcher.ratio(), address))
        return [address for ratio, address in sorted(ranked) if -ratio >= self._least][:MOST_NEAREST]

    def _common(self, plain: str) -> int:
        return _prefix(self._wanted, plain) + _prefix(self._reversed, plain[::-1])


def nearest(value: str, addresses: Iterable[str]) -> list[str]:
    """Returns the addresses that are most like a value, the nearest first, at most MOST_NEAREST.

    >>> nearest("http://a.example/%C3%A9t%C3%A9", ["http://a.example/Été/", "http://a.example/tea", "http://a.example/"])
    ['http://a.example/Été/', 'http://a.example/', 'http://a.example/tea']
    """
    near = _ShortList(value)
    near.add((_plain(address), address) for address in addresses)
    return near.nearest()


def _prefix(one: str, other: str) -> int:
    """Returns the length of the common beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _plain(address: str) -> str:
    return unquote(page_term(address)).casefold()


def _place(url: str) -> str:
    """Returns the host of a URL without "www.", or the source of a file:// URL."""
    source = _FILE_SOURCE.match(url)
    return source[0] if source else bare(host_name(url) or "")


def _records(store: Store, recipe: str) -> Iterator[pa.Table]:
    """Yields tables with `url` and `id` ("" for a URL without a document) of the newest records of a recipe.

    Artifacts whose files are gone are left out: they do not prevent a takedown.
    """
    ids, urls = ["url", "id"], ["url"]
    documents, extracted, warc = (newest(store, f"{recipe}/{kind}") for kind in ("documents", "extracted", "warc"))
    databases = [ref for ref in warc.record.inputs if ref.address.startswith(f"{recipe}/crawldb/")] if warc else []
    sources: list[tuple[Artifact, str, list[str]]] = []
    if documents:
        sources += [(documents, "kept/", ids), (documents, "rejected/", ids)]
    if extracted:
        sources += [(extracted, "documents/", ids), (extracted, "rejected/", urls)]
    for ref in databases:
        if database := Artifact.find(store, ArtifactId.parse(ref.address)):
            sources.append((database, CRAWL_DB, urls))
    for artifact, folder, columns in sources:
        try:
            for path in artifact.files(folder):
                rows = artifact.table(path, columns)
                yield rows if "id" in columns else rows.append_column("id", pa.array([""] * len(rows), pa.string()))
        except (InputError, FileNotFoundError) as error:
            log.warning("%s is not searched for the values of the request: %s", artifact.address, error)
