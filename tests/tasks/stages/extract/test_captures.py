"""tasks.stages.extract.captures and media: captures are rows, refusals have reasons, damaged records are skipped."""

import gzip
import io
import json
import time
import zlib
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import brotli
import pytest

from tasks.formats.warc.record import payload_digest
from tasks.stages.crawl.http.client import Response
from tasks.stages.crawl.storage.warc import Compression, WarcWriter, suffix
from tasks.stages.extract.captures import read_warc
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.content import mime_reason
from tasks.stages.extract.row import InputRow, Rejected
from tests.tasks.stages.extract.conftest import PROSE, conversion, page

CONFIG = ExtractConfig()
Make = Callable[..., bytes]


def rows(data: bytes, config: ExtractConfig = CONFIG) -> list[InputRow]:
    return list(read_warc(io.BytesIO(data), "x.warc.gz", "web", config))


def outcome(row: InputRow) -> str:
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


def test_the_digest_is_computed_from_the_received_payload(warc: Make) -> None:
    body = gzip.compress(b"<html>hello", mtime=0)
    (row,) = rows(warc(body=body, http="Content-Type: text/html\r\nContent-Encoding: gzip\r\n"))
    assert row.payload_digest == payload_digest(body)
    # From the examples of the WARC specification: SHA-1 of nothing, in Base32.
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
        ({"http": "Content-Type: text/html, text/html\r\n"}, "document"),
        ({"http": "Content-Type: text/html\r\nContent-Type: */*\r\n"}, "document"),
        ({"http": "Content-Type: image/png\r\nContent-Type: text/html\r\nContent-Type: odd\r\n"}, "document"),
        ({"http": 'Content-Type: Text/HTML ; charset="utf-8"\r\n'}, "document"),
        ({"http": ""}, "document"),
        ({"http": "", "body": b"who knows"}, "mime_missing"),
        ({"body": b"%PDF-1.7 ..."}, "mime_mismatch"),
        ({"http": "Content-Type: text/html\r\nX-Robots-Tag: noindex\r\n"}, "noindex"),
        ({"http": "Content-Type: text/html\r\nX-Robots-Tag: nofollow noindex\r\n"}, "noindex"),
        ({"http": "Content-Type: text/html\r\nX-Robots-Tag: *: none\r\n"}, "noindex"),
        ({"http": "Content-Type: text/html\r\nX-Robots-Tag: otherbot: nofollow; noindex\r\n"}, "document"),
        ({"http": "Content-Type: text/html\r\nX-Robots-Tag: unavailable_after: 2001-01-01\r\n"}, "noindex"),
        ({"http": "Content-Type: text/html\r\nX-Robots-Tag: unavailable_after: 2100-01-01\r\n"}, "document"),
        ({"http": "Content-Type: text/html\r\nContent-Encoding: utf-8\r\n"}, "document"),
        (
            {"http": "Content-Type: text/html\r\nContent-Encoding: zstd\r\n", "body": b"\x28\xb5\x2f\xfd<p>packed"},
            "content_coding",
        ),
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
        {"http": "", "body": b"<?" * 500_000},
        {"http": "", "body": b"<!-- -->" * 500 + b"<!DOCTYPE" * 50_000},
        {"http": "Content-Type: text/plain\r\n", "body": b"http://\n" * 100_000 + b"a b"},
        {"http": f"Content-Type: text/html; charset={' ' * 200_000}!\r\n"},
        {"http": f"Content-Type: text/html;{'charset' * 30_000}\r\n"},
    ],
)
def test_hostile_headers_and_prefixes_take_little_time(warc: Make, options: dict[str, object]) -> None:
    begun = time.process_time()
    for row in rows(warc(**options)):
        outcome(row)
    assert time.process_time() - begun < 2


def test_the_type_of_a_page_without_media_type_is_sniffed(warc: Make, html: Make) -> None:
    (row,) = rows(warc(http="", body=b" \n<!-- one --> <!-- two -->\n" + html()))
    assert outcome(row) == "document"


XHTML = "Content-Type: application/xhtml+xml\r\n"


def xhtml(body: str, head: str = "<title/>") -> bytes:
    space = "http://www.w3.org/1999/xhtml"
    return f'<?xml version="1.0"?><html xmlns="{space}"><head>{head}</head><body>{body}</body></html>'.encode()


def test_a_page_sent_as_xhtml_is_read_as_xml(warc: Make) -> None:
    paragraphs = [f"<p>{name} {PROSE * 3}</p>" for name in ("First", "Second")]
    cdata = f"<p><![CDATA[Third {PROSE * 3}]]></p>"
    head = '<title/><script src="a.js"/><style/><link rel="canonical" href="/c"/>'
    body = xhtml(f'{paragraphs[0]}<iframe src="/f"/>{paragraphs[1]}{cdata}', head)
    (row,) = rows(warc(body=body, http=XHTML))
    content = row.content()
    assert [word in content.text for word in ("First", "Second", "Third")] == [True] * 3
    assert content.canonical == "http://a.example/c"


def test_a_page_sent_as_xhtml_that_is_not_well_formed_is_read_as_html(warc: Make) -> None:
    body = xhtml(f"<p>First {PROSE * 3}<p>Second {PROSE * 3}", "<title>T</title>")
    entity = xhtml(f"<p>First {PROSE * 3}</p><p>Second &own; {PROSE * 3}</p>").replace(
        b"?><html", b'?><!DOCTYPE html [<!ENTITY own "x">]><html'
    )
    for data in (body, entity.replace(b"<title/>", b"")):
        text = rows(warc(body=data, http=XHTML))[0].content().text
        assert "First" in text
        assert "Second" in text


def test_noindex_of_a_page_sent_as_xhtml_is_respected(warc: Make) -> None:
    head = '<title/><script src="a.js"/><meta name="robots" content="noindex"/>'
    assert outcome(rows(warc(body=xhtml("<p>text</p>", head), http=XHTML))[0]) == "noindex"


@pytest.mark.parametrize("tag", ["<dl>", "<b>"])
def test_the_limits_of_pages_apply_to_xhtml(warc: Make, tag: str) -> None:
    body = tag * 100_000 + tag.replace("<", "</") * 100_000
    assert outcome(rows(warc(body=xhtml(body), http=XHTML))[0]) in ("nesting", "formatting")


def test_noindex_in_the_page_is_respected_unless_disabled(warc: Make, html: Make) -> None:
    data = warc(body=html(head='<meta name="robots" content="noindex">'))
    assert outcome(rows(data)[0]) == "noindex"
    assert outcome(rows(data, ExtractConfig(honour_noindex=False))[0]) == "document"


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ('<meta name="robots" content="noindex, follow">', "noindex"),
        ('<meta name="robots" content="nofollow noindex">', "noindex"),
        ('<meta name=" Robots " content="noarchive;noindex">', "noindex"),
        ("<META NAME=ROBOTS CONTENT='NONE'>", "noindex"),
        ('<meta name="robots" content="unavailable_after: 2001-01-01">', "noindex"),
        ('<meta name="robots" content="unavailable_after: 2100-01-01">', "document"),
        ('<meta name="robots" content="max-image-preview: none">', "document"),
        ('<meta name="robots" content="noarchive">', "document"),
        ('<!-- <meta name="robots" content="noindex"> -->', "document"),
        ('<meta name="googlebot" content="noindex">', "document"),
        ('<meta name="robots">', "document"),
    ],
)
def test_noindex_is_read_from_the_robots_meta_element(warc: Make, html: Make, meta: str, expected: str) -> None:
    assert outcome(rows(warc(body=html(head=meta)))[0]) == expected


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
def test_reading_continues_after_damage(warc: Make, compressed: bool, bad: bytes) -> None:
    good = [warc(f"http://a.example/{i}", compressed=compressed) for i in range(4)]
    found = rows(b"".join([*good[:2], bad, *good[2:]]))
    assert [row.url for row in found if not row.refused] == [f"http://a.example/{i}" for i in range(4)]
    assert [row.refused for row in found if row.refused] == ["warc_damaged"]
    # Only the last good capture before it is known for sure.
    assert next(row for row in found if row.refused).warc_offset == len(good[0])


def test_a_file_truncated_inside_a_record_is_reported(warc: Make) -> None:
    whole = warc("http://a.example/1") + warc("http://a.example/2", body=bytes(range(256)) * 40)
    found = [outcome(row) for row in rows(whole[:-40])]
    assert found[0] == "document"
    assert found[1:] in (["warc_truncated"], ["warc_damaged"])


# File, captures that must still be found, message about the rest. Counts of intact captures are from the manifest.
REAL = [
    ("dolma__sample-0000.warc.gz", 22, {}),
    ("derived-a.warc.zst", 22, {}),
    ("derived-a-dict.warc.zst", 22, {}),
    ("derived-a-plain.warc", 22, {}),
    ("derived-a-v1.1.warc.gz", 22, {}),
    ("derived-a-mal-single-member.warc.gz", 22, {}),
    ("derived-a-mal-wrong-digest.warc.gz", 22, {}),
    ("derived-a-mal-garbage-between.warc.gz", 22, {"warc_damaged": 1}),
    ("derived-a-mal-bitflip.warc.gz", 21, {"warc_damaged": 1}),
    ("derived-a-mal-short-content-length.warc.gz", 21, {"warc_truncated": 1}),
    ("derived-a-mal-no-content-length.warc.gz", 21, {"warc_damaged": 1}),
    ("derived-a-mal-truncated.warc.gz", 15, {"warc_truncated": 1}),
    ("derived-a-mal-empty.warc.gz", 0, {}),
    ("warcio__example.warc.gz", 1, {}),
    ("warcio__example-bad-non-chunked.warc.gz", 1, {}),
    ("warcio__example-trunc.warc", 0, {"warc_truncated": 1}),
    ("warcio__bad.arc", 0, {"warc_damaged": 2}),
    ("warcio__example.arc", 1, {}),
    ("aut__badexample.arc.gz", 0, {"warc_damaged": 1, "warc_truncated": 2}),
]


@pytest.mark.parametrize(("name", "captures", "broken"), REAL)
def test_real_files_good_and_broken_give_documents_or_reasons(
    shared_data: Path, name: str, captures: int, broken: dict[str, int]
) -> None:
    with (shared_data / "warc" / name).open("rb") as file:
        found = Counter(outcome(row) for row in read_warc(file, name, "web", CONFIG))
    reasons = ("warc_damaged", "warc_truncated")
    assert {reason: found[reason] for reason in reasons if found[reason]} == broken
    assert sum(found[reason] for reason in ("document", "empty", "noindex")) == captures


def test_damage_is_reported_with_file_and_offset(warc: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "sluice.extract"):
        _, damage = rows(warc() + b"no record")
    assert "x.warc.gz: warc_damaged at or after byte 0" in caplog.text
    assert (damage.url, damage.damaged) == ("x.warc.gz#0", True)


def test_a_rendered_page_is_extracted_like_a_captured_one(warc: Make, html: Make) -> None:
    data = warc() + conversion(html(), "text/html; charset=utf-8")
    captured, drawn = rows(data)
    assert drawn.content() == captured.content()
    assert (drawn.url, drawn.record_id, drawn.warc_offset) == ("http://a.example/", "urn:uuid:c", len(warc()))
    assert drawn.payload_digest == payload_digest(html())
    assert (captured.rendered, drawn.rendered) == (False, True)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_extraction_reads_the_files_of_the_crawl(html: Make, compression: Compression) -> None:
    file, when = io.BytesIO(), datetime(2026, 11, 21, 12, 30, 15, 250_000, tzinfo=UTC)
    writer = WarcWriter(file, "a" + suffix(compression), "sluice/0.1", "sluice/0.1", compression)
    sent = (("Content-Type", "text/html"), ("Content-Encoding", "gzip"))
    body = gzip.compress(html())
    answer = Response(200, "OK", sent, body, "", "192.0.2.1", b"GET / HTTP/1.1\r\n\r\n", 0.1)
    places = [writer.capture("http://a.example/", when, answer, {}) for _ in range(2)]
    places.append(writer.conversion("http://a.example/", when, html(), "text/html", places[0].record_id, {}))
    writer.finish()
    found = rows(file.getvalue())
    assert [(row.record_id, row.warc_offset, row.payload_digest) for row in found] == [
        (place.record_id, place.offset, place.payload_digest) for place in places
    ]
    assert [row.fetched_at for row in found] == [when] * 3
    assert [row.rendered for row in found] == [False, False, True]
    assert {row.content().text for row in found} == {found[0].content().text}


def test_a_text_of_common_crawl_keeps_url_date_and_language() -> None:
    info = b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 3\r\n\r\na:b\r\n\r\n"
    text = "Ein Satz, noch ein Satz.\nUnd Gr\u00fc\u00dfe.\n"
    language = "WARC-Identified-Content-Language: deu,eng\r\n"
    (row,) = rows(gzip.compress(info, mtime=0) + conversion(text.encode(), "text/plain", language))
    assert row.content().text == text.strip()
    assert row.content().language_hint == "deu"
    assert (row.url, row.record_id, row.rendered) == ("http://a.example/", "urn:uuid:c", False)
    assert row.fetched_at is not None


@pytest.mark.parametrize(
    ("url", "mime", "body", "expected"),
    [
        ("http://a.example/", "text/html; charset=utf-8", page(), "document"),
        ("https://a.example/", "text/plain", b"plain words", "document"),
        ("http://a.example/", "application/xhtml+xml", b"<html><head><title/></head><body>x</body></html>", "document"),
        ("http://a.example/", "", page(), "document"),
        ("http://a.example/a.png", "image/png", b"\x89PNG", "mime_image_png"),
        ("http://a.example/robots.txt", "text/plain", b"User-agent: *", "robots_txt"),
        ("urn:text:https://a.example/", "text/plain", b"words", "resource_urn_text"),
        ("urn:pageinfo:https://a.example/", "application/json", b"{}", "resource_urn_pageinfo"),
        ("URN:view:https://a.example/", "image/png", b"", "resource_urn_view"),
        ("urn:x-own:1", "text/plain", b"words", "resource_other"),
        ("dns:a.example", "text/dns", b"20261120", "resource_dns"),
        ("file:///etc/motd", "text/plain", b"words", "resource_file"),
        ("ftp://a.example/a.txt", "text/plain", b"words", "resource_other"),
        ("", "text/plain", b"words", "url_invalid"),
    ],
)
def test_every_resource_has_an_outcome(url: str, mime: str, body: bytes, expected: str) -> None:
    data = gzip.decompress(conversion(body, mime, url=url)).replace(b"WARC-Type: conversion", b"WARC-Type: resource")
    (row,) = rows(data)
    assert outcome(row) == expected
    assert not row.rendered
    (quick,) = read_warc(io.BytesIO(data), "x", "web", CONFIG, quick=True)
    assert quick.refused == row.refused


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("continuation", ["continuation"]),
        ("own-type", ["warc_type_unknown"]),
        ("metadata", []),
        ("request", []),
        ("warcinfo", []),
    ],
)
def test_content_of_other_records_is_rejected_by_type(kind: str, expected: list[str]) -> None:
    data = gzip.decompress(conversion(b"words", "text/plain"))
    data = data.replace(b"WARC-Type: conversion", f"WARC-Type: {kind}".encode())
    assert [outcome(row) for row in rows(data)] == expected


@pytest.mark.parametrize(
    ("mime", "body", "expected"),
    [
        ("application/json", b"{}", "mime_application_json"),
        ("", b"<html><p>x", "document"),
        ("text/html", b'<meta name="robots" content="noindex"><p>x', "noindex"),
        ("text/html", b"", "empty"),
    ],
)
def test_every_conversion_has_an_outcome(mime: str, body: bytes, expected: str) -> None:
    assert [outcome(row) for row in rows(conversion(body, mime))] == [expected]


SITEMAP = (
    b'<?xml version="1.0"?>\n<!-- made by x -->\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><url>'
)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("mime", "body", "expected"),
    [
        ("application/xml", SITEMAP, "sitemap"),
        ("text/xml", b"<sitemapindex>", "sitemap"),
        ("text/html", b"\xef\xbb\xbf" + SITEMAP, "sitemap"),
        ("application/x-gzip", SITEMAP, "sitemap"),
        ("application/octet-stream", SITEMAP, "sitemap"),
        ("application/rss+xml", b"<?xml version='1.0'?><?xml-stylesheet href='a'?><rss version='2.0'>", "feed"),
        ("application/atom+xml; charset=utf-8", b'<feed xmlns="http://www.w3.org/2005/Atom">', "feed"),
        ("text/xml", b'<rdf:RDF xmlns="http://purl.org/rss/1.0/">', "feed"),
    ],
)
def test_sitemaps_and_feeds_are_rejected_with_their_own_reasons(
    warc: Make, mime: str, body: bytes, expected: str, packed: bool
) -> None:
    data = warc(body=gzip.compress(body) if packed else body, http=f"Content-Type: {mime}\r\n")
    assert [outcome(row) for row in rows(data)] == [expected]


@pytest.mark.parametrize(
    ("mime", "body", "expected"),
    [
        ("text/plain", b"https://a.example/1\r\nhttps://a.example/2\n\n", "sitemap"),
        ("text/plain", b"https://a.example/1\nis a page about ships", "document"),
        ("application/xml", b"<other>", "mime_application_xml"),
        ("application/gzip", gzip.compress(b"a book", mtime=0), "mime_application_gzip"),
        ("application/x-gzip", b"\x1f\x8b broken", "mime_application_gzip"),
        ("application/xhtml+xml", b'<?xml version="1.0"?><!DOCTYPE html><html><p>Words', "document"),
        ("application/rss+xml", b"no feed at all", "mime_application_rss_xml"),
    ],
)
def test_a_page_that_resembles_a_sitemap_or_feed_is_handled_by_media_type(
    warc: Make, mime: str, body: bytes, expected: str
) -> None:
    assert [outcome(row) for row in rows(warc(body=body, http=f"Content-Type: {mime}\r\n"))] == [expected]


def test_rows_agree_with_an_independent_reader(shared_data: Path) -> None:
    name = "dolma__sample-0000.warc.gz"
    lines = (shared_data / "warc" / "records" / f"{name}.records.jsonl").read_text().splitlines()
    expected = [held for held in map(json.loads, lines) if held["type"] in ("response", "resource")]
    with (shared_data / "warc" / name).open("rb") as file:
        found = list(read_warc(file, name, "web", CONFIG))
    assert [row.url for row in found] == [held["uri"].strip("<>") for held in expected]
