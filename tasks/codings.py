"""The content codings of HTTP bodies, undone within a limit.

Used by the crawler, by `archive` and by the process that extracts, which imports little else.
"""

from dataclasses import dataclass

import brotli
from isal import isal_zlib

ACCEPTED_CODINGS = "gzip, deflate, br"
_MAX_CODINGS = 2
_GZIP = b"\x1f\x8b"
_FIRST_BLOCK = 512


@dataclass(frozen=True)
class Decoded:
    """A body without content coding. `complete` is False when it was cut off, broken or of an unknown coding."""

    data: bytes
    complete: bool


def decode(body: bytes, content_encoding: str, limit: int) -> Decoded:
    """Undoes the content codings of an HTTP body, never producing more than `limit` bytes.

    Knows gzip (several members, garbage behind), deflate (with and without zlib header) and br, up to two in a row. A
    header that promises gzip over a body that is none is taken for a lie: the body is returned as it is.
    """
    codings = [coding.strip().lower() for coding in content_encoding.split(",")]
    codings = [coding for coding in codings if coding not in ("", "identity")]
    if len(codings) > _MAX_CODINGS:
        return Decoded(b"", complete=False)
    result = Decoded(body[:limit], complete=len(body) <= limit)
    for index, coding in enumerate(reversed(codings)):
        decoder = _DECODERS.get(coding)
        if decoder is None:
            return Decoded(b"", complete=False)
        step = decoder(body if index == 0 else result.data, limit)
        result = Decoded(step.data, complete=step.complete and (index == 0 or result.complete))
    return result


def _gunzip(body: bytes, limit: int) -> Decoded:
    if not body.startswith(_GZIP):
        return Decoded(body[:limit], complete=len(body) <= limit)
    data, at = bytearray(), 0
    # Behind the last member may stand anything; browsers ignore it.
    while body.startswith(_GZIP, at):
        step, used = _inflate(memoryview(body)[at:], limit - len(data), 31)
        data += step.data
        at += used
        if not step.complete:
            return Decoded(bytes(data), complete=False)
    return Decoded(bytes(data), complete=True)


def _deflate(body: bytes, limit: int) -> Decoded:
    # A zlib header's first two bytes are a multiple of 31 (RFC 1950); without one it is a bare stream.
    wrapped = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0
    return _inflate(memoryview(body), limit, 15 if wrapped else -15)[0]


def _inflate(body: memoryview, limit: int, window: int) -> tuple[Decoded, int]:
    """Inflates the one stream that `body` begins with; returns also how many bytes of `body` it took."""
    stream = isal_zlib.decompressobj(window)
    parts: list[bytes] = []
    at, got, size = 0, 0, _FIRST_BLOCK
    try:
        while at < len(body) and not stream.eof and got <= limit:
            # One byte more than allowed tells a body that just fits from one that does not; 0 would mean "no limit".
            parts.append(stream.decompress(body[at : at + size], limit + 1 - got))
            got += len(parts[-1])
            at = min(at + size, len(body))
            # A stream's end comes back with all that stood behind it in its block. So blocks grow with the stream, and
            # a million empty ones take no longer than one of their size.
            size *= 2
    except isal_zlib.error:  # type: ignore[misc]  # its stub calls the class an instance
        return Decoded(b"", complete=False), at
    return Decoded(b"".join(parts)[:limit], complete=stream.eof and got <= limit), at - len(stream.unused_data)


def _unbrotli(body: bytes, limit: int) -> Decoded:
    stream = brotli.Decompressor()
    try:
        data = stream.process(body, output_buffer_limit=limit + 1)
        while not stream.is_finished() and len(data) <= limit:
            more = stream.process(b"", output_buffer_limit=limit + 1 - len(data))
            if not more:
                break
            data += more
    except brotli.error:
        return Decoded(b"", complete=False)
    return Decoded(data[:limit], complete=stream.is_finished() and len(data) <= limit)


_DECODERS = {"gzip": _gunzip, "x-gzip": _gunzip, "deflate": _deflate, "br": _unbrotli}
