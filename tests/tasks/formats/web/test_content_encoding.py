import gzip
import random
import time
import tracemalloc
import zlib

import brotli
import pyarrow as pa
import pytest

from tasks.formats.web.content_encoding import DecodedStream, decode

TEXT = b"The same text again and again. " * 50
LIMIT = 1 << 20


def zstd(data):
    return pa.compress(data, "zstd", asbytes=True)


def bare_deflate(data):
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (TEXT, ""),
        (TEXT, "identity"),
        (gzip.compress(TEXT), "gzip"),
        (gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:]), "x-gzip"),
        (gzip.compress(TEXT) + b"garbage", "GZIP"),
        (TEXT, "gzip"),
        (zlib.compress(TEXT), "deflate"),
        (bare_deflate(TEXT), "deflate"),
        (brotli.compress(TEXT), "br"),
        (zstd(TEXT), "zstd"),
        (zstd(TEXT[:100]) + zstd(TEXT[100:]), "zstd"),
        (b"\x50\x2a\x4d\x18\x04\0\0\0skip" + zstd(TEXT), "zstd"),
        (gzip.compress(brotli.compress(TEXT)), "br, gzip"),
        (TEXT, "none"),
        (TEXT, "UTF-8"),
        (TEXT, "text/html; charset=utf-8"),
        (TEXT, "8bit, x-secret"),
        (gzip.compress(TEXT), "br, gzip"),
        (gzip.compress(TEXT), "gzip;q=1.0"),
        (gzip.compress(TEXT), "UTF-8, gzip"),
        ("Московский".encode("utf-16"), "none"),
        (b"", "none"),
        (b"", ""),
    ],
)
def test_every_content_coding_is_decoded(body, coding):
    decoded = decode(body, coding, LIMIT)
    assert decoded.data in (TEXT, body)
    assert decoded.complete
    unpacked = DecodedStream(body, coding, LIMIT)
    assert [b"".join(unpacked), b"".join(unpacked)] == [decoded.data] * 2
    assert unpacked.complete


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
@pytest.mark.parametrize(
    "body",
    [
        TEXT,
        b"<!doctype html><title>x</title>" + TEXT,
        "Zażółć gęślą jaźń".encode(),
        "日本語".encode("utf-16"),
        "日本語 日本語".encode(),
        "<p>Привет, мир".encode("cp1251"),
        *(bytes((first,)) + b" is the first letter" for first in range(32, 127)),
        *(bytes((first,)) for first in range(32, 127)),
        b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n\1\2\3",
    ],
)
def test_a_body_stored_decoded_under_its_old_header_is_unchanged(coding, body):
    # Of two bytes and less, some letters are also whole streams.
    assert decode(body, coding, LIMIT) == decode(body, "", LIMIT) or len(body) < 2
    assert b"".join(DecodedStream(body, coding, LIMIT)) == body or len(body) < 2


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (gzip.compress(TEXT)[:-20], "gzip"),
        (zlib.compress(TEXT)[:20], "deflate"),
        (brotli.compress(TEXT)[:-3], "br"),
        (b"\xff" * 40, "br"),
        (b"\0broken", "br"),
        (zstd(random.Random(1).randbytes(9000))[:-20], "zstd"),
        (zstd(TEXT)[:8] + b"\xff" * 60, "zstd"),
        (gzip.compress(TEXT), "UTF-8"),
        (brotli.compress(random.Random(1).randbytes(3000)), "x-secret"),
        (gzip.compress(gzip.compress(gzip.compress(TEXT))), "gzip, gzip, gzip"),
    ],
)
def test_truncated_broken_or_unknown_codings_are_marked_incomplete(body, coding):
    decoded = decode(body, coding, LIMIT)
    assert not decoded.complete
    whole = random.Random(1).randbytes(9000) if len(body) > 8000 else TEXT
    assert whole.startswith(decoded.data)
    unpacked = DecodedStream(body, coding, LIMIT)
    assert whole.startswith(b"".join(unpacked))
    assert not unpacked.complete


def test_the_time_per_gzip_member_is_constant():
    empty = gzip.compress(b"")

    def seconds(members):
        begin = time.process_time()
        assert decode(gzip.compress(TEXT) + empty * members, "gzip", LIMIT) == decode(TEXT, "", LIMIT)
        return time.process_time() - begin

    # Copying the rest after each member would take quadratic time.
    assert any(seconds(200_000) < 9 * seconds(50_000) for _ in range(3))


@pytest.mark.parametrize("coding", ["", "gzip", "deflate", "br", "zstd"])
def test_the_output_does_not_exceed_the_limit(coding):
    pack = {"": bytes, "gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress, "zstd": zstd}[coding]
    assert decode(pack(b"x" * 1000), coding, 1000) == decode(b"x" * 1000, "", 1000)
    over = decode(pack(b"x" * 1001), coding, 1000)
    assert len(over.data) == 1000
    assert not over.complete


@pytest.mark.parametrize("coding", ["", "gzip", "deflate", "br", "zstd"])
@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001])
def test_blocks_end_at_the_limit(coding, size):
    pack = {"": bytes, "gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress, "zstd": zstd}[coding]
    unpacked = DecodedStream(pack(b"x" * size), coding, 1000)
    assert b"".join(unpacked) == b"x" * min(size, 1000)
    assert unpacked.complete == (size <= 1000)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
def test_a_long_body_is_never_in_memory_as_a_whole(coding):
    chance = random.Random(3)
    lines = [b"<url><loc>http://h/%d</loc></url>\n" % chance.randrange(10**9) for _ in range(2000)]
    text = b"".join(lines) * 400 + b" " * (8 << 20)
    body = text
    for one in coding.split(", "):
        packed = {
            "gzip": gzip.compress,
            "deflate": zlib.compress,
            "br": lambda data: brotli.compress(data, quality=1),
            "zstd": zstd,
        }
        body = packed[one](body)
    tracemalloc.start()
    unpacked = DecodedStream(body, coding, 1 << 30)
    digest, size = 0, 0
    for block in unpacked:
        digest, size = zlib.crc32(block, digest), size + len(block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (digest, size, unpacked.complete) == (zlib.crc32(text), len(text), True)
    assert peak < 2 << 20


def test_a_gzip_file_within_a_coding_is_read_through_both():
    inner = DecodedStream(brotli.compress(gzip.compress(TEXT)), "br", LIMIT)
    whole = DecodedStream(inner, "gzip", LIMIT)
    assert b"".join(whole) == TEXT
    assert whole.complete
    cut = DecodedStream(DecodedStream(brotli.compress(gzip.compress(TEXT))[:-2], "br", LIMIT), "gzip", LIMIT)
    assert TEXT.startswith(b"".join(cut))
    assert not cut.complete
    short = DecodedStream(DecodedStream(TEXT, "", 100), "gzip", LIMIT)
    assert b"".join(short) == TEXT[:100]
    assert not short.complete


def test_many_gzip_members_are_decoded_block_by_block_too():
    body = gzip.compress(TEXT) + gzip.compress(b"") * 100_000 + b"garbage"
    unpacked = DecodedStream(body, "gzip", LIMIT)
    assert b"".join(unpacked) == TEXT
    assert unpacked.complete
