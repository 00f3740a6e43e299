import gzip
import time
import zlib

import brotli
import pytest

from tasks.codings import decode

TEXT = b"The same text again and again. " * 50
LIMIT = 1 << 20


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
        (gzip.compress(brotli.compress(TEXT)), "br, gzip"),
    ],
)
def test_every_coding_gives_the_text_back(body, coding):
    decoded = decode(body, coding, LIMIT)
    assert decoded.data == TEXT
    assert decoded.complete


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (gzip.compress(TEXT)[:-20], "gzip"),
        (zlib.compress(TEXT)[:20], "deflate"),
        (brotli.compress(TEXT)[:-3], "br"),
        (b"\xff" * 40, "br"),
        (TEXT, "zstd"),
        (gzip.compress(gzip.compress(gzip.compress(TEXT))), "gzip, gzip, gzip"),
    ],
)
def test_what_is_cut_off_broken_or_unknown_is_marked_incomplete(body, coding):
    decoded = decode(body, coding, LIMIT)
    assert not decoded.complete
    assert TEXT.startswith(decoded.data)


def test_members_without_end_take_no_longer_each_than_the_first_ones():
    empty = gzip.compress(b"")

    def seconds(members):
        begin = time.process_time()
        assert decode(gzip.compress(TEXT) + empty * members, "gzip", LIMIT) == decode(TEXT, "", LIMIT)
        return time.process_time() - begin

    # Copying what stands behind each makes four times as many take sixteen times as long.
    assert any(seconds(200_000) < 9 * seconds(50_000) for _ in range(3))


@pytest.mark.parametrize("coding", ["", "gzip", "deflate", "br"])
def test_nothing_longer_than_the_limit_is_produced(coding):
    pack = {"": bytes, "gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress}[coding]
    assert decode(pack(b"x" * 1000), coding, 1000) == decode(b"x" * 1000, "", 1000)
    over = decode(pack(b"x" * 1001), coding, 1000)
    assert len(over.data) == 1000
    assert not over.complete
