"""Common Crawl's files: the columnar index of a crawl, read by ranges, and the ranges of its WARC files.

    <root>/cc-index/table/cc-main/warc/crawl=CC-MAIN-2026-43/subset=warc/*.parquet     a row per capture
    <root>/crawl-data/CC-MAIN-2026-43/segments/*/warc/*.warc.gz                        a gzip member per record

The files of the index are sorted by `url_surtkey`, the URL with the names of its host reversed ("com,example)/path"),
so all captures of a domain are in a few row groups. A lookup reads the footer of each file, then this column of the row
groups whose least and greatest key admit a match, and the other columns where a key does match.

The root is a store (`s3://commoncrawl`, with credentials; a folder), or the web server `https://data.commoncrawl.org`.
The servers are shared: requests are few at a time, and one that is refused with 503 is repeated after doubling pauses.
"""

import gzip
import logging
import re
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core import parquet
from tasks.core.errors import InputError, StoreError, TransientError
from tasks.core.remote import translate
from tasks.core.store import Store
from tasks.formats.warc.archive import INDEXED
from tasks.formats.web.canonical_url import page_identity

log = logging.getLogger("sluice.formats")

CONNECTIONS = 4
"""Requests at a time."""

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Pauses before a request is repeated. The client of an object store has repeated it by itself before."""

KEY = "url_surtkey"
_COLUMNS = {
    "url": "url",
    "fetch_time": "fetched_at",
    "fetch_status": "status",
    "content_mime_detected": "mime",
    "content_languages": "languages",
    "content_digest": "digest",
    "warc_filename": "file",
    "warc_record_offset": "offset",
    "warc_record_length": "length",
}
"""The columns that are read besides KEY, and their names in FOUND."""

FOUND = pa.schema(
    [
        *(pa.field(name, kind) for name, kind in INDEXED.items()),
        pa.field("file", pa.string(), nullable=False),  # WARC file, below the root
        pa.field("offset", pa.int64(), nullable=False),  # of the record in the file
        pa.field("length", pa.int64(), nullable=False),
    ]
)
T = TypeVar("T")

_BATCH = 1 << 16
# As the index removes it, but not from www.com.
_WWW = re.compile(r"^www\d*\.(?=.+\.)")
_ADDRESS = re.compile(r"[\d.]+|\[.*\]")
# What has several spellings: an escape, and an unreserved character.
_SPELLED = re.compile(r"(%[0-9A-F]{2}|[0-9A-Za-z._~-])")
# Characters that a URI has only as an escape, and browsers send as they are.
_UNESCAPED = '"<>\\^`{|}'
# Of a longer path the index may have sorted, removed or escaped the rest.
_PLAIN_PATH = re.compile(r"[^?%;&=~]*")


class CrawlData:
    """The files below a root, for reading. Thread-safe.

    Args:
        root: a folder, the URL of a store, or that of a web server.
        contact: page or address in the user agent, by which the operators of a web server can reach the user.

    Attributes:
        requests: number of ranges read so far.
        bytes: number of their bytes.

    Every method raises StoreError if the server refuses, and TransientError if it does not answer.
    """

    def __init__(self, root: str, contact: str = "") -> None:
        self.root = root.rstrip("/")
        self.requests = self.bytes = 0
        self._lock = threading.Lock()
        self._is_web = root.startswith(("http://", "https://"))
        self._agent = f"sluice/{version('sluice')} (+{contact})"

    def index_files(self, crawl: str) -> list[tuple[str, int]]:
        """Returns path and size of the files of a crawl's index, sorted by path.

        Raises:
            InputError: there is no such crawl.
        """
        folder = f"cc-index/table/cc-main/warc/crawl={crawl}/subset=warc"
        try:
            sizes = self._listed(crawl, folder) if self._is_web else self._store.sizes(folder)
        except FileNotFoundError:
            sizes = {}
        if files := sorted((f"{folder}/{name}", size) for name, size in sizes.items() if name.endswith(".parquet")):
            return files
        raise InputError(
            f"{self.root} has no index of the crawl {crawl}",
            "correct crawls: https://index.commoncrawl.org lists the crawls",
        )

    def _listed(self, crawl: str, folder: str) -> dict[str, int]:
        """Returns names and sizes of the files in a folder of a web server, which names the files of each crawl."""
        paths = f"crawl-data/{crawl}/cc-index-table.paths.gz"
        listing = gzip.decompress(_repeated(lambda: self._answer(paths, lambda url: self._web.cat_file(url)))).decode()
        names = [path.removeprefix(f"{folder}/") for path in listing.split() if path.startswith(f"{folder}/")]
        return {name: _repeated(partial(self._answer, f"{folder}/{name}", self._web.size)) for name in names}

    def read(self, path: str, first: int, end: int) -> bytes:
        """Returns the bytes from `first` to `end` (exclusive) of a file; fewer if it ends before.

        Raises:
            FileNotFoundError: there is no such file.
        """
        data = _repeated(lambda: self._range(path, first, end))
        with self._lock:
            self.requests += 1
            self.bytes += len(data)
        return data

    def _range(self, path: str, first: int, end: int) -> bytes:
        if not self._is_web:
            return self._store.read_range(path, first, end)
        try:
            return bytes(self._answer(path, lambda url: self._web.cat_file(url, start=first, end=end)))
        except _BeyondEnd:
            return b""

    def _answer(self, path: str, request: Callable[[str], Any]) -> Any:
        """Returns the answer of a web server, and translates errors of the HTTP client."""
        url = f"{self.root}/{path}"
        try:
            return request(url)
        except Exception as error:
            cause = error.__cause__ or error
            status = getattr(cause, "status", 404 if isinstance(error, FileNotFoundError) else 0)
            if status == 404:
                raise FileNotFoundError(url) from None
            if status == 416:
                raise _BeyondEnd from None
            if status == 403:
                refused = f"{self.root} refuses to serve {path} (403), as it does after too many requests"
                raise StoreError(refused, "wait for a day, or read from s3://commoncrawl with credentials") from None
            raise translate(cause, url) or error from None

    @cached_property
    def _store(self) -> Store:
        return Store(self.root)

    @cached_property
    def _web(self) -> Any:
        import fsspec

        return fsspec.filesystem("https", client_kwargs={"headers": {"User-Agent": self._agent}})


class _BeyondEnd(Exception):
    """A range begins after the end of its file."""


def _repeated(request: Callable[[], T]) -> T:
    """Returns the result of a request, repeated after each of `PAUSES_S` if the server does not answer."""
    for pause in PAUSES_S:
        try:
            return request()
        except TransientError as error:
            log.warning("%s; the next attempt is in %.0f s", error.cause, pause)
            time.sleep(pause)
    return request()


class KeyPrefix(NamedTuple):
    """Captures whose key begins with `key`, and whose URL matches `url` ("" for all)."""

    key: str
    url: str = ""


@dataclass(frozen=True)
class Query:
    """What a lookup finds: captures of one of `prefixes` that meet all other conditions.

    Attributes:
        prefixes: see `of_domain` and `of_url`.
        mime: media types, as detected by Common Crawl; () for all.
        languages: main languages (ISO 639-3); () for all.
        status: HTTP status.
    """

    prefixes: tuple[KeyPrefix, ...]
    mime: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    status: int = 200


def of_domain(domain: str) -> list[KeyPrefix]:
    """Returns the prefixes of a host and all hosts below it; the index does not distinguish "www.".

    >>> [prefix.key for prefix in of_domain("www.example.org")]
    ['org,example)', 'org,example:', 'org,example,']
    >>> of_domain("www.com")[0].key, of_domain("awww.example.org")[0].key
    ('com,www)', 'org,example,awww)')
    """
    host = _surt_host(domain)
    return [KeyPrefix(f"{host}{end}") for end in "):,"]


def of_url(prefix: str) -> list[KeyPrefix]:
    """Returns the prefixes of all http and https URLs that begin like `prefix`, in any spelling (`url.identity`).

    >>> of_url("https://example.org/docs/")[0].key, of_url("https://example.org/%7eann/")[0].key
    ('org,example)/docs', 'org,example)')
    """
    parts = urlsplit(page_identity(prefix) or prefix)
    host, port = _WWW.sub("", parts.hostname or ""), "" if parts.port in (None, 80, 443) else f":{parts.port}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    plain = _PLAIN_PATH.match(parts.path)
    key = f"{_surt_host(host)}{port}){plain[0].lower().rstrip('/') if plain else ''}"
    return [KeyPrefix(key, rf"^https?://(www\d*\.)?{re.escape(host)}{port}{_any_spelling(path)}")]


def _any_spelling(path: str) -> str:
    """Returns a pattern of all spellings of a path and query that are an `identity`."""
    # The others are between those that match.
    pieces = [re.escape(piece) for piece in _SPELLED.split(path)]
    pieces[1::2] = map(_spellings, _SPELLED.findall(path))
    return "".join(pieces)


def _spellings(piece: str) -> str:
    """Returns a pattern of an unreserved character or an escape; many sites do not escape "|" and its like."""
    character = chr(int(piece[1:], 16)) if piece[0] == "%" else piece
    escape = f"(?i:%{ord(character):02x})"
    return f"(?:{re.escape(character)}|{escape})" if piece[0] != "%" or character in _UNESCAPED else escape


def _surt_host(host: str) -> str:
    name = _WWW.sub("", host)
    return name if _ADDRESS.fullmatch(name) else ",".join(reversed(name.split(".")))


class RowGroup(NamedTuple):
    """A row group of a file of the index, whose keys admit a match."""

    path: str
    size: int
    metadata: Any
    number: int


def matching_groups(data: CrawlData, files: Sequence[tuple[str, int]], query: Query) -> list[RowGroup]:
    """Returns the row groups that may have captures of a query, from the footers of files (`CrawlData.index_files`).

    Raises:
        InputError: the index lacks a column.
        StoreError, TransientError: see `CrawlData`.
    """
    with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="index") as pool:
        return [
            group for groups in pool.map(lambda file: _groups(data, file[0], file[1], query), files) for group in groups
        ]


def lookup(data: CrawlData, groups: Sequence[RowGroup], query: Query) -> Iterator[pa.Table]:
    """Yields the captures of a query in each of some row groups, as tables of FOUND, in the order of the index.

    Raises:
        StoreError, TransientError: see `CrawlData`.
    """
    with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="index") as pool:
        # Few at a time: a row group may have a million captures.
        reading: deque[Future[pa.Table]] = deque()
        for group in groups:
            reading.append(pool.submit(_found_in, data, group, query))
            if len(reading) == CONNECTIONS:
                yield reading.popleft().result()
        while reading:
            yield reading.popleft().result()


@contextmanager
def _copied(data: CrawlData, path: str, size: int, footer: Any = None) -> Iterator[parquet.SparseCopy]:
    """Yields a local file for parts of a file of the index, with its footer."""

    def read(first: int, end: int) -> bytes:
        part = data.read(path, first, end)
        if len(part) < end - first:
            raise TransientError(f"{data.root}/{path} became shorter while it was read")
        return part

    with tempfile.NamedTemporaryFile(prefix="sluice-", suffix=".parquet") as local:
        yield parquet.SparseCopy(read, size, local.name, footer=footer, in_flight=1)


def _groups(data: CrawlData, path: str, size: int, query: Query) -> list[RowGroup]:
    with _copied(data, path, size) as index:
        metadata = index.metadata
    names = set(metadata.schema.to_arrow_schema().names)
    if missing := {KEY, *_COLUMNS} - names - (set() if query.languages else {"content_languages"}):
        raise InputError(
            f"{data.root}/{path} has no column {', '.join(sorted(missing))}",
            "choose a later crawl, or leave languages out",
        )
    numbers = (number for number in range(metadata.num_row_groups) if _may_match(metadata.row_group(number), query))
    return [RowGroup(path, size, metadata, number) for number in numbers]


def _may_match(group: Any, query: Query) -> bool:
    """Returns whether the range of keys of a row group admits a match; True if the range is not stated."""
    columns = (group.column(number) for number in range(group.num_columns))
    stated = next(column.statistics for column in columns if column.path_in_schema == KEY)
    if stated is None or not stated.has_min_max:
        return True
    least, greatest = (value if isinstance(value, str) else value.decode() for value in (stated.min, stated.max))
    return any(least[: len(one.key)] <= one.key <= greatest for one in query.prefixes)


def _found_in(data: CrawlData, group: RowGroup, query: Query) -> pa.Table:
    with _copied(data, group.path, group.size, group.metadata) as copy:
        return pa.concat_tables([FOUND.empty_table(), *_in_group(copy, group.number, query)])


def _in_group(copy: parquet.SparseCopy, group: int, query: Query) -> Iterator[pa.Table]:
    copy.fetch([group], [KEY])
    with copy.open() as index:
        keys = [batch.column(0) for batch in _batches(index, group, [KEY])]
        masks = [_any(pc.starts_with(batch, one.key) for one in query.prefixes) for batch in keys]
        if not any(mask.any() for mask in masks):
            return
        names = [name for name in _COLUMNS if name in index.schema_arrow.names]
        copy.fetch([group], names)
        for batch, mask, key in zip(_batches(index, group, names), masks, keys, strict=True):
            if mask.any():
                table = pa.Table.from_batches([batch]).filter(pa.array(mask))
                yield _matching(_in_schema(table), key.filter(pa.array(mask)), query)


def _batches(index: Any, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields batches of the same lengths for any columns, so that masks of one apply to the others."""
    yield from index.iter_batches(batch_size=_BATCH, row_groups=[group], columns=list(columns))


def _in_schema(table: pa.Table) -> pa.Table:
    columns = {_COLUMNS[name]: table.column(name) for name in table.column_names}
    length = table.num_rows
    return pa.table(
        [
            columns[field.name].cast(field.type, safe=False) if field.name in columns else pa.nulls(length, field.type)
            for field in FOUND
        ],
        schema=FOUND,
    )


def _matching(table: pa.Table, keys: pa.Array, query: Query) -> pa.Table:
    """Returns the rows that meet all conditions of a query."""
    of_prefix = []
    for one in query.prefixes:
        begins = pc.starts_with(keys, one.key)
        of_prefix.append(pc.and_(begins, pc.match_substring_regex(table["url"], one.url)) if one.url else begins)
    mask = _any(of_prefix) & _mask(pc.equal(table["status"], query.status))
    if query.mime:
        mask &= _mask(pc.is_in(table["mime"], pa.array(query.mime)))
    if query.languages:
        main = pc.replace_substring_regex(table["languages"], ",.*", "")
        mask &= _mask(pc.is_in(main, pa.array(query.languages)))
    return table.filter(pa.array(mask))


def _any(conditions: Any) -> Any:
    return np.logical_or.reduce([_mask(condition) for condition in conditions])


def _mask(condition: pa.Array | pa.ChunkedArray) -> Any:
    whole = condition.combine_chunks() if isinstance(condition, pa.ChunkedArray) else condition
    return np.asarray(pc.fill_null(whole, False).to_numpy(zero_copy_only=False), dtype=bool)


class Span(NamedTuple):
    """A range of a file, and the numbers of the records in it."""

    file: str
    first: int
    end: int
    records: tuple[int, ...]


def spans(records: Sequence[tuple[str, int, int]], gap: int, most: int) -> list[Span]:
    """Returns the ranges to read for records: those of one file that are near each other are read together.

    Args:
        records: file, offset and length of each.
        gap: bytes between two records that are read rather than skipped: a request costs more than these.
        most: bytes of a range of several records.

    >>> spans([("a", 500, 10), ("a", 0, 10), ("a", 15, 10), ("b", 0, 10)], gap=5, most=100)
    [Span(file='a', first=0, end=25, records=(1, 2)), Span(file='a', first=500, end=510, records=(0,)), \
Span(file='b', first=0, end=10, records=(3,))]
    """
    joined: list[Span] = []
    for number in sorted(range(len(records)), key=lambda number: (records[number], number)):
        file, first, length = records[number]
        last = joined[-1] if joined else None
        if last and last.file == file and first - last.end <= gap and first + length - last.first <= most:
            end = max(last.end, first + length)
            joined[-1] = last._replace(end=end, records=(*last.records, number))
        else:
            joined.append(Span(file, first, first + length, (number,)))
    return joined
