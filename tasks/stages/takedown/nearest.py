"""Values of a request that match no record of a recipe, and the nearest addresses of its records.

A misspelled URL takes nothing down, and the audit then finds nothing: the requester must see the right spelling. The
records are those of the newest artifacts: kept and rejected documents, captures without a document, and known URLs of
the crawl. Of a URL, the nearest ones are on its host or, if there are none, the nearest host names; of a domain, host
names. Nearness is the length of the common beginning and end, then difflib's ratio, of addresses without escapes.
"""

import heapq
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.ledger import newest
from tasks.core.store import Store
from tasks.formats.documents.tombstones import DOCUMENT, URL, Tombstone, Tombstones, document_identity, page_term
from tasks.formats.web.domain import host_name
from tasks.formats.web.url import bare

MOST_NEAREST = 3
"""Maximum number of addresses for a value."""
MOST_SOUGHT = 100
"""Maximum number of values whose nearest addresses are looked for."""

_SHORT_LIST = 50
CRAWL_DB = "urls.parquet"
_FILE_SOURCE = re.compile(r"file://[^/]*/")
_HOST = r"^[Hh][Tt][Tt][Pp][Ss]?://(?:[^/@]*@)?(?P<host>[^/:?#]+)"


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
    if not sought:
        return []
    tombstones, recorded = Tombstones.of(sought), set[str]()
    places = "|".join(sorted({re.escape(_place(stone.value)) for stone in sought if stone.kind == URL}))
    urls, hosts = defaultdict[str, set[str]](set), set[str]()
    for rows in _records(store, recipe):
        column = rows.column("url")
        covered = rows.filter(pa.array(tombstones.mask(rows), pa.bool_()))
        recorded.update(covered.column("id").to_pylist())
        for url in filter(None, map(document_identity, covered.column("url").to_pylist())):
            recorded.update(tombstones.causes(url))
        hosts.update(pc.struct_field(pc.extract_regex(column, _HOST), "host").unique().to_pylist())
        for url in column.filter(pc.match_substring_regex(column, f"(?i){places}")).to_pylist() if places else ():
            urls[_place(url)].add(url)
    missing = [stone for stone in sought if stone.value not in recorded]
    names = hosts - {None}
    return [
        Unmatched(stone.kind, stone.value, _nearest_of(stone, urls, names) if number < MOST_SOUGHT else [])
        for number, stone in enumerate(missing)
    ]


def _nearest_of(stone: Tombstone, urls: Mapping[str, set[str]], hosts: set[str]) -> list[str]:
    if stone.kind == DOCUMENT:
        return []
    place = _place(stone.value) if stone.kind == URL else stone.value
    return nearest(stone.value, urls[place]) if stone.kind == URL and place in urls else nearest(place, hosts)


def nearest(value: str, addresses: Iterable[str]) -> list[str]:
    """Returns the addresses that are most like a value, the nearest first, at most MOST_NEAREST.

    >>> nearest("http://a.example/caf%C3%A9", ["http://a.example/Café/", "http://a.example/tea", "http://a.example/"])
    ['http://a.example/Café/', 'http://a.example/', 'http://a.example/tea']
    """
    wanted = _plain(value)

    def ends(address: str) -> tuple[int, str]:
        plain = _plain(address)
        return _common(wanted, plain) + _common(reversed(wanted), reversed(plain)), address

    matcher = SequenceMatcher(None, "", wanted, autojunk=False)

    def ratio(address: str) -> tuple[float, str]:
        matcher.set_seq1(_plain(address))
        return -matcher.ratio(), address

    return sorted(heapq.nlargest(_SHORT_LIST, set(addresses), key=ends), key=ratio)[:MOST_NEAREST]


def _common(one: Iterable[str], other: Iterable[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _plain(address: str) -> str:
    return unquote(page_term(address)).casefold()


def _place(url: str) -> str:
    """Returns the host of a URL without "www.", or the source of a file:// URL."""
    source = _FILE_SOURCE.match(url)
    return source[0] if source else bare(host_name(url) or "")


def _records(store: Store, recipe: str) -> Iterator[pa.Table]:
    """Yields tables with `url` and `id` ("" for a URL without a document) of the newest records of a recipe."""
    documents, extracted, warc = (newest(store, f"{recipe}/{kind}") for kind in ("documents", "extracted", "warc"))
    refs = [ref for ref in warc.record.inputs if ref.address.startswith(f"{recipe}/crawldb/")] if warc else []
    databases = (Artifact.open_at(store, ArtifactId.parse(ref.address)) for ref in refs)
    for artifact, folder, columns in (
        (documents, "kept/", ["url", "id"]),
        (documents, "rejected/", ["url", "id"]),
        (extracted, "documents/", ["url", "id"]),
        (extracted, "rejected/", ["url"]),
        *((database, CRAWL_DB, ["url"]) for database in databases),
    ):
        for path in artifact.files(folder) if artifact is not None else ():
            rows = artifact.table(path, columns)
            yield rows if "id" in columns else rows.append_column("id", pa.array([""] * len(rows), pa.string()))
