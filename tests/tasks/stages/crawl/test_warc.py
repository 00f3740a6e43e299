"""Contract of tasks.stages.crawl.storage.warc: files readable by others, correct digests, an index with correct
offsets."""

import bisect
import gzip
import io
import json
import random
import re
from datetime import UTC, datetime

import fastwarc
import pytest
from warcio.archiveiterator import ArchiveIterator

from tasks.formats.warc.archive import body_of, capture_at, captures, index_entry
from tasks.formats.warc.record import payload_digest
from tasks.stages.crawl.http.client import Response
from tasks.stages.crawl.storage.fetchlist import EarlierCapture
from tasks.stages.crawl.storage.warc import WarcWriter, suffix, surt

WHEN = datetime(2026, 11, 21, 12, 30, 15, 250_000, tzinfo=UTC)


def answer(body=b"<p>hello</p>", status=200, headers=(("Content-Type", "text/html"),), reason="OK", **more):
    fields = {
        "truncated": "",
        "address": "192.0.2.1",
        "request": b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "seconds": 0.5,
    }
    return Response(status=status, reason=reason, headers=tuple(headers), body=body, **{**fields, **more})


def open_writer(compression="gzip"):
    file = io.BytesIO()
    name = f"warc/one{suffix(compression)}"
    return file, WarcWriter(file, name, "sluice/0.1", "sluice/0.1 (+mailto:a@b.example)", compression)


def written(*answers, url="http://h/", compression="gzip", notes=None):
    file, writer = open_writer(compression)
    places = [writer.capture(url, WHEN, one, {"hopsFromSeed": "0", **(notes or {})}) for one in answers]
    return file, places, writer.finish()


def records(file):
    """The records read by warcio, which verifies every digest."""
    file.seek(0)
    return [
        (record.rec_type, record.rec_headers, record.http_headers, record.content_stream().read())
        for record in ArchiveIterator(file, check_digests="raise")
    ]


def verified(file):
    """The records read by FastWARC with its check of block digests; unlike warcio it reads zstd."""
    file.seek(0)
    found = []
    for record in fastwarc.ArchiveIterator(file, parse_http=False):
        holds = record.verify_block_digest()
        found.append((str(record.record_type).rpartition(".")[2], record.headers, record.reader.read(), holds))
    return found


def header(row, name):
    return row[1].get(name)


def test_every_record_is_a_gzip_member():
    file, places, _ = written(answer(), answer(b"second"))
    data = file.getvalue()
    for place in places:
        part = io.BytesIO(data[place.offset : place.offset + place.length])
        assert [record.rec_type for record in ArchiveIterator(part)] == ["response"]


def test_every_record_is_a_zstd_frame():
    file, places, _ = written(answer(), answer(b"second"), compression="zstd")
    data = file.getvalue()
    for place, body in zip(places, (b"<p>hello</p>", b"second"), strict=True):
        (capture,) = captures(io.BytesIO(data[place.offset : place.offset + place.length]))
        assert (capture.payload, capture.record_id) == (body, place.record_id)
    assert data.count(b"\x28\xb5\x2f\xfd") == 7  # warcinfo, and three records per capture


def test_a_zstd_frame_states_its_size_and_keeps_compressed_bodies_as_they_are():
    """Frames of unknown length need tables of a megabyte each, which takes twenty times as long as the record."""
    body = random.Random(0).randbytes(20_000)
    file, (place, _), _ = written(gzip_answer(body), answer(b"second" * 1000), compression="zstd")
    data = file.getvalue()
    frames = [at for at in range(len(data)) if data.startswith(b"\x28\xb5\x2f\xfd", at)]
    assert len(frames) == 7
    # RFC 8878, 3.1.1.1.1: the content size is given where its flag or that of a single segment is set.
    assert all(data[at + 4] & 0b1110_0000 for at in frames)
    assert body[:15_000] in data[place.offset : place.offset + place.length]
    assert place.length < len(body) + 1000


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_digests_are_correct_for_both_compressions(compression):
    file, writer = open_writer(compression)
    writer.capture("http://h/", WHEN, answer(), {"hopsFromSeed": "0"})
    writer.capture("http://h/z", WHEN, answer(gzip.compress(b"z"), headers=[("Content-Encoding", "gzip")]), {})
    writer.conversion("http://h/", WHEN, b"<p>drawn</p>", "text/html", "urn:uuid:0", {"engine": "chromium"})
    writer.finish()
    rows = verified(file)
    assert [row[3] for row in rows] == [True] * 9
    assert {str(header(row, "WARC-Block-Digest"))[:5] for row in rows} == {"sha1:"}
    for row in rows:
        if row[0] in ("response", "conversion"):
            body = row[2].partition(b"\r\n\r\n")[2] if row[0] == "response" else row[2]
            assert header(row, "WARC-Payload-Digest") == payload_digest(body)
    if compression == "gzip":
        assert len(records(file)) == 9


def gzip_answer(body):
    return answer(gzip.compress(body), headers=[("Content-Encoding", "GZIP"), ("Content-Type", "a/b")])


def test_compressed_bodies_are_not_compressed_again():
    packed = gzip_answer(b"<p>packed</p>")
    file, _, _ = written(answer(b"as it is"), packed, answer(b"third"), packed)
    rows = records(file)
    assert [row[0] for row in rows] == ["warcinfo", *("response", "request", "metadata") * 4]
    assert file.getvalue().count(packed.body) == 2
    assert rows[4][2].get_header("Content-Encoding") == "GZIP"


@pytest.mark.parametrize("size", [0, 1, 65_530, 65_531, 65_535, 131_066, 200_000])
def test_stored_bodies_of_every_size_are_whole_gzip_members(size):
    body = random.Random(size).randbytes(size)
    sent = answer(body, headers=[("Content-Encoding", "zstd"), ("Content-Type", "text/html")])
    file, places, _ = written(sent, answer(b"next"))
    data = file.getvalue()
    assert gzip.decompress(data[places[0].offset : places[0].offset + places[0].length]).endswith(body + b"\r\n\r\n")
    assert len(records(file)) == 7
    assert all(row[3] for row in verified(file))
    file.seek(0)
    assert next(captures(file)).payload == body


def test_a_compressed_body_is_stored_as_received():
    body = gzip.compress(b"<p>packed</p>" * 100)
    file, _, _ = written(answer(body, headers=[("Content-Encoding", "gzip")]))
    file.seek(0)
    (capture,) = captures(file)
    assert (capture.payload, body_of(capture, 1 << 20)) == (body, b"<p>packed</p>" * 100)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_every_record_is_warc_1_1(compression):
    file, _, _ = written(answer(), compression=compression)
    file.seek(0)
    opened = fastwarc.GzipReader if compression == "gzip" else fastwarc.ZstdReader
    data = opened(file).read()
    assert len(re.findall(rb"WARC/1\.1\r\nWARC-Type", data)) == 4
    assert data.startswith(b"WARC/1.1\r\nWARC-Type: warcinfo\r\n")
    assert b"format: WARC File Format 1.1\r\n" in data


def test_the_file_name_states_the_compression():
    assert (suffix("gzip"), suffix("zstd")) == (".warc.gz", ".warc.zst")


def test_a_conversion_record_refers_to_its_capture():
    file, writer = open_writer()
    captured = writer.capture("http://h/", WHEN, answer(), {})
    made = writer.conversion(
        "http://h/", WHEN, b"<p>drawn</p>", "text/html; charset=utf-8", captured.record_id, {"engine": "chromium"}
    )
    lines = writer.finish()
    rows = records(file)
    assert [row[0] for row in rows][4:] == ["conversion", "metadata"]
    head = rows[4][1]
    assert head.protocol == "WARC/1.1"
    assert head.get_header("WARC-Target-URI") == "http://h/"
    assert head.get_header("WARC-Refers-To") == f"<{captured.record_id}>"
    assert head.get_header("WARC-Record-ID") == f"<{made.record_id}>"
    assert head.get_header("Content-Type") == "text/html; charset=utf-8"
    assert head.get_header("WARC-Payload-Digest") == made.payload_digest == payload_digest(b"<p>drawn</p>")
    assert head.get_header("WARC-Block-Digest") == made.payload_digest
    assert head.get_header("WARC-Warcinfo-ID") == rows[0][1].get_header("WARC-Record-ID")
    assert rows[4][3] == b"<p>drawn</p>"
    assert rows[5][1].get_header("WARC-Refers-To") == f"<{made.record_id}>"
    assert rows[5][3] == b"engine: chromium\r\n"
    entry = next(index_entry(line) for line in lines if '"status": "-"' in line)
    assert (entry["mime"], int(entry["offset"]), int(entry["length"])) == ("text/html", made.offset, made.length)


def test_a_record_has_the_received_bytes_and_their_time():
    (_, headers, http, body) = next(row for row in records(written(answer())[0]) if row[0] == "response")
    assert headers.protocol == "WARC/1.1"
    assert headers.get_header("WARC-Date") == "2026-11-21T12:30:15.250000Z"
    assert headers.get_header("WARC-Payload-Digest") == payload_digest(b"<p>hello</p>")
    assert headers.get_header("WARC-IP-Address") == "192.0.2.1"
    assert (http.get_statuscode(), body) == ("200", b"<p>hello</p>")


FORGED = "x\r\n\r\nWARC/1.1\r\nWARC-Type: response\r\nWARC-Target-URI: http://forged/\r\nContent-Length: 0\r\n\r\n"


def test_line_breaks_in_headers_forge_nothing():
    hostile = answer(
        headers=[("X-Note", FORGED), ("X\r\nSet-Cookie", "a"), ("Content-Type", "text/html")], reason="OK" + FORGED
    )
    file, _, _ = written(hostile, answer(b"next"), url="http://h/" + FORGED)
    rows = records(file)
    assert [row[0] for row in rows] == ["warcinfo", *("response", "request", "metadata") * 2]
    assert {row[1].get_header("WARC-Target-URI") for row in rows[1:]}.isdisjoint({"http://forged/"})
    assert rows[1][3] == b"<p>hello</p>"
    file.seek(0)
    assert [capture.payload for capture in captures(file)] == [b"<p>hello</p>", b"next"]


HOSTILE = [
    {"headers": [(f"X-{FORGED}", "a"), ("Content-Type", "text/html")]},
    {"headers": [("", "no name"), ("\r\n", "a")]},
    {"headers": [("Content-Type", f"text/html{FORGED}")]},
    {"headers": [("Content-Type", "text/html\0\n\nWARC/1.1")]},
    {"reason": FORGED},
    {"reason": "OK\nX-Forged: 1"},
    {"address": FORGED},
]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("options", HOSTILE)
def test_server_input_cannot_forge_a_warc_header(options, compression):
    file, _, lines = written(answer(**options), answer(b"next"), compression=compression)
    rows = verified(file)
    assert [row[0] for row in rows] == ["warcinfo", *("response", "request", "metadata") * 2]
    assert [header(row, "WARC-Target-URI") for row in rows[1:]] == ["http://h/"] * 6
    assert all(row[3] for row in rows)
    assert [len(line.splitlines()) for line in lines] == [1, 1]
    file.seek(0)
    found = list(captures(file))
    assert [capture.payload for capture in found] == [b"<p>hello</p>", b"next"]
    names = {name.lower() for name, _ in found[0].http}
    assert names.isdisjoint({"x-forged", "warc-type", "warc-target-uri"})


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("notes", [{"via": FORGED}, {"via": "http://a/\r\nhopsFromSeed: 9"}, {f"n\r\n{FORGED}": "x"}])
def test_metadata_values_cannot_forge_a_record_or_field(notes, compression):
    file, _, _ = written(answer(), answer(b"next"), compression=compression, notes=notes)
    rows = verified(file)
    assert [row[0] for row in rows] == ["warcinfo", *("response", "request", "metadata") * 2]
    lines = rows[3][2].split(b"\r\n")
    assert lines[0] == b"hopsFromSeed: 0"
    assert len(lines) == 3
    assert b"\n" not in lines[1]


def test_a_conversion_cannot_forge_a_record_either():
    file, writer = open_writer()
    writer.conversion(f"http://h/{FORGED}", WHEN, FORGED.encode(), FORGED, f"urn:uuid:0{FORGED}", {"via": FORGED})
    rows = records(file)
    assert [row[0] for row in rows] == ["warcinfo", "conversion", "metadata"]
    assert rows[1][3] == FORGED.encode()


def test_headers_that_no_longer_describe_the_body_are_renamed():
    chunked = answer(
        headers=[("Transfer-Encoding", "chunked"), ("Content-Length", "999"), ("Content-Encoding", "gzip")]
    )
    (_, _, http, body) = next(row for row in records(written(chunked)[0]) if row[0] == "response")
    assert http.get_header("Transfer-Encoding") is None
    assert http.get_header("X-Crawler-Transfer-Encoding") == "chunked"
    assert http.get_header("X-Crawler-Content-Length") == "999"
    assert http.get_header("Content-Length") == str(len(b"<p>hello</p>"))
    assert body == b"<p>hello</p>"


def test_a_truncated_body_is_marked():
    file, _, _ = written(answer(truncated="disconnect"), answer())
    file.seek(0)
    assert [capture.headers.get("WARC-Truncated") for capture in captures(file)] == ["disconnect", None]


def test_a_revisit_record_refers_to_its_capture():
    file = io.BytesIO()
    writer = WarcWriter(file, "one.warc.gz", "sluice", "sluice")
    earlier = EarlierCapture("http://h/", WHEN, "urn:uuid:0", "sha1:A")
    writer.revisit("http://h/", WHEN, answer(b"", 304, reason="Not Modified"), earlier, {})
    headers = next(row[1] for row in records(file) if row[0] == "revisit")
    assert headers.get_header("WARC-Refers-To") == "<urn:uuid:0>"
    assert headers.get_header("WARC-Refers-To-Date") == "2026-11-21T12:30:15.250000Z"
    assert headers.get_header("WARC-Payload-Digest") == "sha1:A"


def test_an_empty_body_and_bytes_outside_latin_1_are_written():
    file, _, _ = written(answer(b"", headers=[("X", "\u20ac")]))
    file.seek(0)
    (capture,) = captures(file)
    assert capture.payload == b""


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("https://www.example.com/a/b?c", "com,example,www)/a/b?c"),
        ("http://127.0.0.1:80a/".replace("80a", "81"), "127.0.0.1:81)/"),
        ("http://[::1]/", "[::1])/"),
    ],
)
def test_index_keys_sort_by_domain(url, want):
    assert surt(url) == want


def index_of(urls, compression="gzip"):
    file, writer = open_writer(compression)
    for number, url in enumerate(urls):
        writer.capture(url, WHEN.replace(second=number % 60), answer(f"body of {url}".encode()), {})
    return file, writer.finish()


def test_index_lines_have_the_fields_of_pywb():
    _, writer = open_writer()
    typed = answer(headers=[("Content-Type", "Text/HTML; charset=utf-8")])
    place = writer.capture("http://h/a", WHEN, typed, {})
    writer.capture("http://h/b", WHEN, answer(headers=[]), {})
    earlier = EarlierCapture("http://h/a", WHEN, place.record_id, place.payload_digest)
    writer.revisit("http://h/c", WHEN, answer(b"", 304, reason="Not Modified"), earlier, {})
    captured, untyped, revisit = writer.finish()
    head, _, fields = captured.partition("{")
    assert head == "h)/a 20261121123015 "
    assert json.loads("{" + fields) == {
        "url": "http://h/a",
        "mime": "text/html",
        "status": "200",
        "digest": place.payload_digest.removeprefix("sha1:"),
        "length": str(place.length),
        "offset": str(place.offset),
        "filename": "warc/one.warc.gz",
    }
    assert index_entry(untyped)["mime"] == "unk"
    assert (index_entry(revisit)["mime"], index_entry(revisit)["status"]) == ("warc/revisit", "-")


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_page_is_found_by_its_key_in_the_sorted_index_and_read_at_its_offset(compression):
    urls = [f"http://{host}.example/{path}" for host in ("b", "a", "www.c") for path in ("", "x", "x/y?z=1", "~a")]
    file, lines = index_of(urls, compression)
    assert [line.encode() for line in lines] == sorted(line.encode() for line in lines)
    for url in urls:
        line = lines[bisect.bisect_left(lines, f"{surt(url)} ")]
        assert line.startswith(f"{surt(url)} ")
        capture = capture_at(io.BytesIO(file.getvalue()), int(index_entry(line)["offset"]))
        assert (capture.url, capture.payload) == (url, f"body of {url}".encode())
