"""Contract of tasks.extract.captures and records: captures are rows, refusals have reasons, damage is passed."""

import gzip
import io
import json
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import brotli
import pytest

from tasks.extract.captures import mime_reason, payload_digest, read_warc
from tasks.extract.config import ExtractConfig
from tasks.extract.row import Rejected, Row

CONFIG = ExtractConfig()
Make = Callable[..., bytes]


def rows(data: bytes, config: ExtractConfig = CONFIG) -> list[Row]:
    return list(read_warc(io.BytesIO(data), "x.warc.gz", "web", config))


def outcome(row: Row) -> str:
    if row.refused:
        return row.refused
    try:
        return "document" if row.content().text else "empty"
    except Rejected as refused:
        return refused.reason


def test_a_capture_keeps_its_provenance(warc: Make) -> None:
    first, second = rows(warc(ident="aa") + warc("http://b.example/x", ident="bb", kind="response"))
    assert (first.url, second.url) == ("http://a.example/", "http://b.example/x")
    assert (first.record_id, second.record_id) == ("urn:uuid:aa", "urn:uuid:bb")
    assert first.fetched_at is not None
    assert first.fetched_at.isoformat() == "2026-11-20T10:00:00.250000+00:00"
    assert second.warc_offset == len(warc(ident="aa"))
    assert first.content().title == "A page"
    assert first.content().language_hint == "en"


def test_the_digest_is_computed_from_the_payload_as_it_came(warc: Make) -> None:
    body = gzip.compress(b"<html>hello", mtime=0)
    (row,) = rows(warc(body=body, http="Content-Type: text/html\r\nContent-Encoding: gzip\r\n"))
    assert row.payload_digest == payload_digest(body)
    # The value of the WARC specification's own examples: SHA-1 of nothing, in Base32.
    assert payload_digest(b"") == "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "document"),
        ({"kind": "revisit"}, "revisit"),
        ({"status": "404 Not Found"}, "http_404"),
        ({"status": "301 Moved"}, "http_301"),
        ({"status": "999 Denied"}, "http_status_invalid"),
        ({"url": "ftp://a.example/"}, "url_invalid"),
        ({"url": "http://[::1/"}, "url_invalid"),
        ({"url": "http:///path"}, "url_invalid"),
        ({"url": "https://a.example/robots.txt", "http": "Content-Type: text/plain\r\n"}, "robots_txt"),
        ({"http": "Content-Type: text/plain\r\n", "body": b"plain words"}, "document"),
        ({"http": "Content-Type: application/xhtml+xml; charset=utf-8\r\n"}, "document"),
        ({"http": "Content-Type: application/pdf\r\n"}, "mime_application_pdf"),
        ({"http": "Content-Type: image/x-odd\r\n"}, "mime_image_other"),
        ({"http": "Content-Type: nonsense\r\n"}, "mime_other"),
        ({"http": ""}, "document"),
        ({"http": "", "body": b"who knows"}, "mime_missing"),
        ({"body": b"%PDF-1.7 ..."}, "mime_mismatch"),
        ({"http": "Content-Type: text/html\r\nX-Robots-Tag: noindex\r\n"}, "noindex"),
        ({"http": "Content-Type: text/html\r\nContent-Encoding: snappy\r\n"}, "content_coding"),
        (
            {"http": "Content-Type: text/html\r\nContent-Encoding: br\r\n", "body": b"\xff\xff\xff\xff"},
            "content_coding",
        ),
        ({"body": b""}, "empty"),
    ],
)
def test_every_capture_has_an_outcome(warc: Make, options: dict[str, object], expected: str) -> None:
    assert [outcome(row) for row in rows(warc(**options))] == [expected]


@pytest.mark.parametrize(
    "options",
    [
        {"http": "", "body": b"<!-- -->" * 300 + b"no page"},
        {"http": f"Content-Type: text/html; charset={' ' * 200_000}!\r\n"},
        {"http": f"Content-Type: text/html;{'charset' * 30_000}\r\n"},
    ],
)
def test_hostile_headers_and_beginnings_take_no_time(warc: Make, options: dict[str, object]) -> None:
    begun = time.process_time()
    for row in rows(warc(**options)):
        outcome(row)
    assert time.process_time() - begun < 2


def test_a_page_without_media_type_is_known_by_its_beginning(warc: Make, html: Make) -> None:
    (row,) = rows(warc(http="", body=b" \n<!-- one --> <!-- two -->\n" + html()))
    assert outcome(row) == "document"


def test_noindex_in_the_page_is_honoured_unless_switched_off(warc: Make, html: Make) -> None:
    data = warc(body=html(head='<meta name="robots" content="noindex">'))
    assert outcome(rows(data)[0]) == "noindex"
    assert outcome(rows(data, ExtractConfig(honour_noindex=False))[0]) == "document"


@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("br", brotli.compress),
        ("gzip, br", lambda data: brotli.compress(gzip.compress(data))),
        ("gzip", bytes),  # stored decoded under the old header
        ("gzip", lambda data: gzip.compress(data)[:-6]),  # cut off at the very end
    ],
)
def test_content_codings_are_undone(warc: Make, html: Make, coding: str, encode: Callable[[bytes], bytes]) -> None:
    (row,) = rows(warc(body=encode(html()), http=f"Content-Type: text/html\r\nContent-Encoding: {coding}\r\n"))
    assert row.content().text.startswith("The ship went to sea")


@pytest.mark.parametrize(
    ("coding", "encode"), [("gzip", gzip.compress), ("br", brotli.compress), ("deflate", zlib.compress)]
)
def test_a_decompression_bomb_is_refused(warc: Make, coding: str, encode: Callable[[bytes], bytes]) -> None:
    bomb = encode(b"<p>" + b"a" * 20_000_000)
    (row,) = rows(warc(body=bomb, http=f"Content-Type: text/html\r\nContent-Encoding: {coding}\r\n"))
    assert outcome(row) == "too_large"


def test_chunked_bodies_are_joined(warc: Make) -> None:
    body = b"5\r\n<p>ab\r\n3\r\ncde\r\n0\r\n\r\n"
    (row,) = rows(warc(body=body, http="Content-Type: text/html\r\nTransfer-Encoding: chunked\r\n"))
    assert row.content().text == "abcde"


def test_the_number_of_media_type_reasons_is_bounded() -> None:
    assert (
        len({mime_reason(f"application/x-{i}") for i in range(100)} | {mime_reason(f"t{i}/x") for i in range(100)}) == 2
    )


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(
    "bad", [b"garbage that is no record\r\n\r\n", b"\x1f\x8b\x08 not gzip at all\r\n", b"WARC/1.0 no header\r\n"]
)
def test_reading_goes_on_behind_damage(warc: Make, compressed: bool, bad: bytes) -> None:
    good = [warc(f"http://a.example/{i}", compressed=compressed) for i in range(4)]
    found = rows(b"".join([*good[:2], bad, *good[2:]]))
    assert [row.url for row in found if not row.refused] == [f"http://a.example/{i}" for i in range(4)]
    assert [row.refused for row in found if row.refused] == ["warc_damaged"]
    # What is known for sure is the last good capture before it.
    assert next(row for row in found if row.refused).warc_offset == len(good[0])


def test_a_file_cut_off_inside_a_record_says_so(warc: Make) -> None:
    whole = warc("http://a.example/1") + warc("http://a.example/2", body=bytes(range(256)) * 40)
    found = [outcome(row) for row in rows(whole[:-40])]
    assert found[0] == "document"
    assert found[1:] in (["warc_truncated"], ["warc_damaged"])


# File, captures that reading must still find, damaged places it reports. Counts of intact captures are the manifest's.
REAL = [
    ("dolma__sample-0000.warc.gz", 22, 0),
    ("derived-a.warc.zst", 22, 0),
    ("derived-a-dict.warc.zst", 22, 0),
    ("derived-a-plain.warc", 22, 0),
    ("derived-a-v1.1.warc.gz", 22, 0),
    ("derived-a-mal-single-member.warc.gz", 22, 0),
    ("derived-a-mal-wrong-digest.warc.gz", 22, 0),
    ("derived-a-mal-garbage-between.warc.gz", 22, 1),
    ("derived-a-mal-bitflip.warc.gz", 21, 1),
    ("derived-a-mal-short-content-length.warc.gz", 21, 1),
    ("derived-a-mal-no-content-length.warc.gz", 21, 1),
    ("derived-a-mal-truncated.warc.gz", 15, 0),
    ("derived-a-mal-empty.warc.gz", 0, 0),
    ("warcio__example.warc.gz", 1, 0),
    ("warcio__example-bad-non-chunked.warc.gz", 1, 0),
    ("warcio__example-trunc.warc", 1, 1),
    ("warcio__bad.arc", 0, 1),
    ("aut__badexample.arc.gz", 0, 1),
]


@pytest.mark.parametrize(("name", "captures", "damaged"), REAL)
def test_real_files_good_and_broken_give_documents_or_reasons(
    shared_data: Path, name: str, captures: int, damaged: int
) -> None:
    with (shared_data / "warc" / name).open("rb") as file:
        found = Counter(outcome(row) for row in read_warc(file, name, "web", CONFIG))
    assert found.pop("warc_damaged", 0) == damaged
    assert sum(found[reason] for reason in ("document", "empty", "noindex")) == captures


def test_rows_agree_with_an_independent_reader(shared_data: Path) -> None:
    name = "dolma__sample-0000.warc.gz"
    lines = (shared_data / "warc" / "records" / f"{name}.records.jsonl").read_text().splitlines()
    expected = [held for held in map(json.loads, lines) if held["type"] == "response"]
    with (shared_data / "warc" / name).open("rb") as file:
        found = list(read_warc(file, name, "web", CONFIG))
    assert [row.url for row in found] == [held["uri"].strip("<>") for held in expected]
