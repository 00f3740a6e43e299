"""Group 4: oversized, false or broken content codings. Bodies are stored as received and read within bounds."""

import gzip
import zlib

import brotli
import pyarrow as pa

from tests.tasks.stages.crawl.hostile.web import page

TEXT = b"<html><body><a href=/found>found</a>" + b"<p>text</p>" * 50
BLANK = 32 << 20


def deflated(data, wbits):
    stream = zlib.compressobj(9, wbits=wbits)
    return stream.compress(data) + stream.flush()


def nested(data, times):
    for _ in range(times):
        data = gzip.compress(data)
    return data


def readable():
    """(body, Content-Encoding) whose text has the link; created lazily, since it takes 32 MiB and a moment."""
    bomb = TEXT + b" " * BLANK
    return {
        "bomb in gzip": (gzip.compress(bomb), "gzip"),
        "bomb in deflate": (deflated(bomb, 15), "deflate"),
        "bomb in bare deflate": (deflated(bomb, -15), "deflate"),
        "bomb in br": (brotli.compress(bomb, quality=1), "br"),
        "bomb in zstd": (pa.compress(bomb, "zstd", asbytes=True), "zstd"),
        "bomb in two layers": (nested(bomb, 2), "gzip, gzip"),
        **{f"a header that lies about {coding}": (TEXT, coding) for coding in ("gzip", "deflate", "br", "zstd")},
        "truncated gzip": (gzip.compress(TEXT + bytes(range(256)) * 100)[:-200], "gzip"),
        "garbage behind gzip": (gzip.compress(TEXT) + b"garbage" * 1000, "gzip"),
        "several members": (gzip.compress(TEXT[:50]) + gzip.compress(TEXT[50:]), "gzip"),
        "members without end": (gzip.compress(TEXT) + gzip.compress(b" ") * 20_000, "gzip"),
        "an unknown coding": (TEXT, "x-secret"),
        "no coding at all": (TEXT, "none"),
        "a charset": (TEXT, "UTF-8"),
        "blanks and capitals": (gzip.compress(TEXT), " GZip ,, identity"),
    }


def unreadable():
    return {
        "three layers": (nested(TEXT, 3), "gzip, gzip, gzip"),
        "a hundred layers": (nested(TEXT, 3), ", ".join(["gzip"] * 100)),
        "br that is neither a stream nor text": (b"\0" + TEXT, "br"),
        "an unknown coding over gzip": (gzip.compress(TEXT), "x-secret"),
        "broken gzip": (b"\x1f\x8b" + b"\xff" * 100, "gzip"),
        "empty gzip": (b"", "gzip"),
    }


def test_a_body_is_decoded_within_limits_and_stored_as_received(web, crawl):
    def hosts(bodies):
        return {name: web.host(page(body, f"Content-Encoding: {coding}")) for name, (body, coding) in bodies.items()}

    bodies, closed = readable(), unreadable()
    open_hosts, closed_hosts = hosts(bodies), hosts(closed)
    every = {**open_hosts, **closed_hosts}
    result = crawl(*every.values(), max_depth=1)
    for name, host in every.items():
        body, _ = {**bodies, **closed}[name]
        capture = result.captures.get(host.url())
        assert capture is not None, name
        assert (capture["bytes"], capture["truncated"]) == (len(body), False), name
    assert result.reasons(every) == dict.fromkeys(every, "")
    assert {name for name, host in every.items() if "/found" in host.paths()} == set(bodies)


def test_a_bomb_that_is_large_on_the_wire_is_truncated(web, crawl):
    # 4 MiB of gzip that decompress to 4 GiB.
    block = gzip.compress(b"\0" * (64 << 20))
    body = block * (1 + (4 << 20) // len(block))
    host = web.host(page(body, "Content-Encoding: gzip"))
    capture = crawl(host).captures[host.url()]
    assert (capture["bytes"], capture["truncated"]) == (1 << 20, True)
