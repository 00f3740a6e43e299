"""WARC files made byte by byte, and a committed `warc` artifact with them."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.warc.archive import MANIFEST, MANIFEST_SCHEMA
from tasks.stages.extract.config import ExtractConfig

PROSE = "The ship went to sea with a crew of nine, and none of them had seen the ice before that winter. "


def page(text: str = PROSE * 4, head: str = "") -> bytes:
    head = f"<head><title>A page</title>{head}</head>"
    return f"<!doctype html><html lang=en>{head}<body><p>{text}</p></body></html>".encode()


def record(
    url: str = "http://a.example/",
    body: bytes | None = None,
    *,
    status: str = "200 OK",
    http: str = "Content-Type: text/html\r\n",
    kind: str = "response",
    ident: str = "",
    compressed: bool = True,
) -> bytes:
    block = f"HTTP/1.1 {status}\r\n{http}\r\n".encode() + (page() if body is None else body)
    head = (
        f"WARC/1.1\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {url}\r\nWARC-Date: 2026-11-20T10:00:00.250Z\r\n"
        f"WARC-Record-ID: <urn:uuid:{ident or '00000000-0000-4000-8000-000000000001'}>\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    whole = head.encode() + block + b"\r\n\r\n"
    return gzip.compress(whole, mtime=0) if compressed else whole


def conversion(
    body: bytes, mime: str = "text/html", extra: str = "", url: str = "http://a.example/", ident: str = "c"
) -> bytes:
    """The bytes of a WARC conversion record."""
    head = (
        f"WARC/1.1\r\nWARC-Type: conversion\r\nWARC-Target-URI: {url}\r\nWARC-Date: 2026-11-20T10:00:00Z\r\n"
        f"WARC-Record-ID: <urn:uuid:{ident}>\r\nWARC-Refers-To: <urn:uuid:r>\r\nContent-Type: {mime}\r\n{extra}"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return gzip.compress(head.encode() + body + b"\r\n\r\n", mtime=0)


@pytest.fixture
def warc() -> Callable[..., bytes]:
    """`record`: the bytes of one WARC record."""
    return record


@pytest.fixture
def html() -> Callable[..., bytes]:
    """`page`: the bytes of one page."""
    return page


@pytest.fixture
def warc_artifact(tmp_path: Path) -> Callable[..., Artifact]:
    """Commits WARC files, given as lists of records, as the artifact `test/warc@dev`."""

    def make(*files: list[bytes], published: int | None = None) -> Artifact:
        output = Output(Store(str(tmp_path)), ArtifactId("test/warc", "dev"), "fingerprint")
        rows = []
        with output.part("warc", conserved=False) as part:
            for number, records in enumerate(files):
                name = f"{number:05d}.warc.gz"
                with part.file(name) as file:
                    file.write(b"".join(records))
                rows.append(
                    {
                        "segment": "test/warc@dev",
                        "path": f"test/warc/dev/{name}",
                        "sha256": "0" * 64,
                        "bytes": sum(map(len, records)),
                        "records": len(records) if published is None else published,
                    }
                )
            with part.file(MANIFEST) as file:
                pa.parquet.write_table(pa.Table.from_pylist(rows, MANIFEST_SCHEMA), file)
        return commit(output, "tasks.stages.crawl.publish", 1, ExtractConfig(), [], Report())

    return make
