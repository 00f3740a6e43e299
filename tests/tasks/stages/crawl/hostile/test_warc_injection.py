"""Group 9: no response and no URL forges a record of the archive. warcio reads the files."""

import base64
import hashlib
import io
from collections import Counter

import pyarrow as pa
import pytest
from warcio.archiveiterator import ArchiveIterator

from tests.tasks.stages.crawl.hostile.web import HEAD, page

FORGED = b"\r\n\r\nWARC/1.1\r\nWARC-Type: response\r\nWARC-Target-URI: http://forged.example/\r\n"
FORGED += b"WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-000000000000>\r\nContent-Length: 0\r\n\r\n\r\n\r\n"
LINE = "WARC-Target-URI: http://forged.example/"

ANSWERS = {
    "a body that is a record": page(FORGED * 3),
    "a body that begins as one": page(FORGED.lstrip()),
    "a header with the name of one": page(b"x", LINE, "WARC-Type: response", "Content-Length: 1"),
    "a folded header": HEAD + b"X: a\r\n " + LINE.encode() + b"\r\nContent-Length: 1\r\n\r\nx",
    "a header with LF": HEAD + b"X: a\n" + LINE.encode() + b"\r\nContent-Length: 1\r\n\r\nx",
    "a header with CR": HEAD + b"X: a\r" + LINE.encode() + b"\r\nContent-Length: 1\r\n\r\nx",
    "a header with a separator": page(b"x", "X: a\x85" + LINE + "\xa0"),
    "a content type with a quote": page(b"x", kind='text/html; charset="' + LINE),
    "a content type of blanks": page(b"x", kind="text/html \t \x0b" + LINE),
    "a reason with a record": b"HTTP/1.1 200 OK WARC/1.1 " + LINE.encode() + b"\r\nContent-Length: 1\r\n\r\nx",
    "an etag with a line": page(b"x", 'ETag: "a\\r\\n' + LINE + '"', "Last-Modified: \x01" + LINE),
    "an encoded body": page(FORGED, "Content-Encoding: gzip"),
    "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(FORGED) + FORGED + b"\r\n0\r\n\r\n",
    "a length that stays behind": HEAD + b"Content-Length: 3\r\n\r\nabc" + FORGED,
    "no length": HEAD + b"\r\n" + FORGED,
}
REFUSED = {
    "a content type of blanks": "mime",
}
PATHS = [
    "/%0d%0aWARC-Type:%20response",
    "/%0D%0A%0D%0AWARC/1.1",
    "/a\r\nb",
    "/a\nWARC/1.1",
    "/\u2028x",
    "/%00",
    "/ x",
    "/<>",
]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_content_of_a_site_cannot_forge_a_warc_record(web, crawl, compression):
    hosts = {name: web.host(answer) for name, answer in ANSWERS.items()}
    links = "".join(f"<a href='{path}'>x</a>" for path in PATHS)
    linking = web.host(page(links.encode()))
    result = crawl(*hosts.values(), linking, max_depth=1, warc_compression=compression)
    assert result.reasons(hosts) == {**dict.fromkeys(hosts, ""), **REFUSED}
    ours = {host.url().rstrip("/") for host in hosts.values()} | {linking.url().rstrip("/")}
    for file in sorted((result.folder / result.path / "warc").iterdir()):
        # warcio reads gzip and plain files.
        data = file.read_bytes() if compression == "gzip" else pa.input_stream(str(file), compression="zstd").read()
        _check(data, result, ours)


def _check(data, result, ours):
    kinds, ids = Counter(), Counter()
    for record in ArchiveIterator(io.BytesIO(data)):
        body = record.raw_stream.read()
        headers = record.rec_headers
        kinds[record.rec_type] += 1
        ids[headers.get_header("WARC-Record-ID")] += 1
        names = Counter(name.lower() for name, _ in headers.headers)
        assert max(count for name, count in names.items() if name != "warc-concurrent-to") == 1, headers.headers
        digest = headers.get_header("WARC-Block-Digest")
        if digest and record.rec_type != "revisit" and record.http_headers is None:
            assert digest == "sha1:" + base64.b32encode(hashlib.sha1(body).digest()).decode()
        target = headers.get_header("WARC-Target-URI")
        if record.rec_type != "warcinfo":
            assert target in result.rows, target
            assert not any(letter in target for letter in "\r\n\0 <>")
            assert any(target.startswith(one) for one in ours) or ":8" in target or target in result.captures
    # Equal bodies of one host are revisit records.
    assert kinds["response"] == len(result.captures)
    assert kinds["response"] + kinds["revisit"] == kinds["request"]
    assert max(ids.values()) == 1
