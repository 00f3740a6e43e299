import io
from datetime import UTC, datetime

import pytest
from warcio.archiveiterator import ArchiveIterator

from tasks.archive import captures
from tasks.crawl.client import Answer
from tasks.crawl.warc import Earlier, WarcWriter, payload_digest, surt

WHEN = datetime(2026, 11, 21, 12, 30, 15, 250_000, tzinfo=UTC)


def answer(body=b"<p>hello</p>", status=200, headers=(("Content-Type", "text/html"),), reason="OK", **more):
    fields = {
        "truncated": False,
        "address": "192.0.2.1",
        "request": b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "seconds": 0.5,
    }
    return Answer(status=status, reason=reason, headers=tuple(headers), body=body, **{**fields, **more})


def written(*answers, url="http://h/"):
    file = io.BytesIO()
    writer = WarcWriter(file, "warc/one.warc.gz", "sluice/0.1", "sluice/0.1 (+mailto:a@b.example)")
    places = [writer.capture(url, WHEN, one, {"hopsFromSeed": "0"}) for one in answers]
    return file, places, writer.finish()


def records(file):
    file.seek(0)
    return [
        (record.rec_type, record.rec_headers, record.http_headers, record.content_stream().read())
        for record in ArchiveIterator(file, check_digests="raise")
    ]


def test_every_record_is_a_gzip_member_of_its_own():
    file, places, _ = written(answer(), answer(b"second"))
    data = file.getvalue()
    for place in places:
        part = io.BytesIO(data[place.offset : place.offset + place.length])
        assert [record.rec_type for record in ArchiveIterator(part)] == ["response"]


def test_a_record_says_what_was_received_and_when():
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


def test_a_body_that_was_cut_off_is_marked():
    file, _, _ = written(answer(truncated=True), answer())
    file.seek(0)
    assert [capture.truncated for capture in captures(file)] == [True, False]


def test_a_revisit_names_the_capture_it_repeats():
    file = io.BytesIO()
    writer = WarcWriter(file, "one.warc.gz", "sluice", "sluice")
    earlier = Earlier("http://h/", WHEN, "urn:uuid:0", "sha1:A")
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
