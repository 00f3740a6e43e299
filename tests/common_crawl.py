"""A small Common Crawl in a folder: crawls with WARC files and the columnar index, in the layout and with the columns
of the real one. Not a test module.

A WARC file has, as there, a gzip member per record: a warcinfo record, then request, response and metadata of each
page. The index is sorted by key over all its files, which have several row groups.
"""

import base64
import hashlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

CRAWL, LATER = "CC-MAIN-2026-43", "CC-MAIN-2026-47"
_SEGMENT = "1790000000000.21"
_TEXT = [
    "url_surtkey",
    "url",
    "url_host_name",
    "url_host_tld",
    "url_host_2nd_last_part",
    "url_host_3rd_last_part",
    "url_host_4th_last_part",
    "url_host_5th_last_part",
    "url_host_registry_suffix",
    "url_host_registered_domain",
    "url_host_private_suffix",
    "url_host_private_domain",
    "url_host_name_reversed",
    "url_protocol",
    "url_path",
    "url_query",
    "fetch_redirect",
    "content_digest",
    "content_mime_type",
    "content_mime_detected",
    "content_charset",
    "content_languages",
    "content_truncated",
    "warc_filename",
    "warc_segment",
]
_OTHERS = {
    "url_port": pa.int32(),
    "fetch_time": pa.timestamp("ms"),
    "fetch_status": pa.int16(),
    "warc_record_id": pa.binary(),
    "warc_record_offset": pa.int32(),
    "warc_record_length": pa.int32(),
}
SCHEMA = pa.schema([*((name, pa.string()) for name in _TEXT), *_OTHERS.items()])
"""The columns of the index; `crawl` and `subset` are in the path."""

Row = dict[str, Any]


@dataclass
class Page:
    """A page that a crawl has captured."""

    url: str
    body: bytes
    languages: str | None = "eng"
    mime: str = "text/html"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    changes: Row = field(default_factory=dict)
    """Columns of the index with other values than those of the capture."""


def surt_key(url: str) -> str:
    """Returns the key of a simple URL: its host reversed and without "www.", and its path in lower case."""
    parts = urlsplit(url)
    host = ",".join(reversed((parts.hostname or "").removeprefix("www.").split(".")))
    port = f":{parts.port}" if parts.port else ""
    path = parts.path.lower().rstrip("/") or "/"
    return f"{host}{port}){path}{f'?{parts.query}' if parts.query else ''}"


def write_crawl(
    folder: Path, crawl: str, pages: Iterable[Page], *, others: int = 0, group_rows: int = 100, files: int = 2
) -> None:
    """Writes a crawl: its pages in two WARC files, and an index of them and of `others` pages without records."""
    writers = [_WarcFile(f"crawl-data/{crawl}/segments/{_SEGMENT}/warc/{crawl}-{n:05d}.warc.gz") for n in range(2)]
    rows = [_row(page, writers[number % 2], number) for number, page in enumerate(pages)]
    rows += [_row_without_record(number) for number in range(others)]
    for writer in writers:
        path = folder / writer.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(writer.raw.getvalue())
    rows.sort(key=lambda row: (row["url_surtkey"], row["fetch_time"]))
    index = folder / "cc-index/table/cc-main/warc" / f"crawl={crawl}" / "subset=warc"
    index.mkdir(parents=True)
    share = -(-len(rows) // files)
    for number in range(files):
        table = pa.Table.from_pylist(rows[number * share : (number + 1) * share], SCHEMA)
        pq.write_table(table, index / f"part-{number:05d}.c000.gz.parquet", row_group_size=group_rows)


class _WarcFile:
    """A WARC file in memory; `add` returns offset and length of the response of a page."""

    def __init__(self, name: str) -> None:
        self.name, self.raw = name, io.BytesIO()
        self._writer = WARCWriter(self.raw, gzip=True)
        self._writer.write_record(self._writer.create_warcinfo_record(name, {"software": "stand-in"}))

    def add(self, page: Page, date: str) -> tuple[int, int]:
        http = StatusAndHeaders(f"{page.status} OK", [("Content-Type", page.mime), *page.headers], protocol="HTTP/1.1")
        dated = {"WARC-Date": date}
        asked = StatusAndHeaders("GET / HTTP/1.1", [("User-Agent", "stand-in")], is_http_request=True)
        create = self._writer.create_warc_record
        self._writer.write_record(create(page.url, "request", http_headers=asked, warc_headers_dict=dated))
        response = create(page.url, "response", io.BytesIO(page.body), http_headers=http, warc_headers_dict=dated)
        offset = self.raw.tell()
        self._writer.write_record(response)
        length = self.raw.tell() - offset
        note = io.BytesIO(b"fetchTimeMs: 5\r\n")
        self._writer.write_record(create(page.url, "metadata", note, warc_headers_dict=dated))
        return offset, length


def _row(page: Page, file: _WarcFile, number: int) -> Row:
    time = datetime(2026, 10, 20, 12, number // 60 % 60, number % 60, tzinfo=UTC)
    offset, length = file.add(page, f"{time:%Y-%m-%dT%H:%M:%SZ}")
    return {
        **_url_columns(page.url),
        "fetch_time": time.replace(tzinfo=None),
        "fetch_status": page.status,
        "content_digest": base64.b32encode(hashlib.sha1(page.body).digest()).decode(),
        "content_mime_type": page.mime,
        "content_mime_detected": page.mime,
        "content_languages": page.languages,
        "warc_filename": file.name,
        "warc_segment": _SEGMENT,
        "warc_record_offset": offset,
        "warc_record_length": length,
        **page.changes,
    }


def _row_without_record(number: int) -> Row:
    url = f"https://site-{number % 997:03d}.example/path/{hashlib.md5(str(number).encode()).hexdigest()}"
    digest = base64.b32encode(hashlib.sha1(url.encode()).digest()).decode()
    place = {"warc_filename": "none.warc.gz", "warc_record_offset": number, "warc_record_length": 20_000}
    time = datetime(2026, 10, 21)
    stated = {"fetch_time": time, "fetch_status": 200, "content_digest": digest, "content_mime_detected": "text/html"}
    return {**_url_columns(url), **stated, **place, "content_languages": "eng"}


def _url_columns(url: str) -> Row:
    parts = urlsplit(url)
    host = parts.hostname or ""
    return {
        "url_surtkey": surt_key(url),
        "url": url,
        "url_host_name": host,
        "url_host_tld": host.rpartition(".")[2],
        "url_host_registered_domain": ".".join(host.split(".")[-2:]),
        "url_host_name_reversed": ".".join(reversed(host.split("."))),
        "url_protocol": parts.scheme,
        "url_path": parts.path,
    }


def real_pages(folder: Path, most: int) -> Iterator[bytes]:
    """Yields pages of the web that lie in a folder as .html or .html.gz files, in the order of their names."""
    import gzip

    for path in sorted(folder.glob("*.html*"))[:most]:
        yield gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
