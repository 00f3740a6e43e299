"""Content codings of HTTP bodies: decoding within a size limit, at once (`decode`) or block by block (`DecodedStream`).

Many servers send tokens that are not codings ("none", "UTF-8", "text/html", a version of Apache). As in browsers, a
body under an unknown token is returned unchanged, unless it is clearly compressed. Archives often store decoded bodies
under the header that still names the coding, so a text or PDF file that is no complete stream of its coding is returned
unchanged, too.
"""

import codecs
import io
import itertools
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, cast

import brotli
import fastwarc
from isal import isal_zlib

ACCEPTED_CODINGS = "gzip, deflate, br"
_MAX_CODINGS = 2
_GZIP = b"\x1f\x8b"
# Zstandard frames, and frames to be skipped, of which a stream may have some first (RFC 8878).
_ZSTD = (b"\x28\xb5\x2f\xfd", *(bytes((kind, 0x2A, 0x4D, 0x18)) for kind in range(0x50, 0x60)))
_PDF = b"%PDF-"
_FIRST_BLOCK = 512
_BLOCK = 64 << 10
# First bytes of compressed data: compress, bzip2, xz, Zstandard, LZ4 and zip.
_COMPRESSED = (b"\x1f\x8b", b"\x1f\x9d", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"PK\x03\x04")
_PROBE = 512
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# Control characters that do not occur in text.
_NO_TEXT = bytes({*range(1, 9), *range(14, 27), *range(28, 32)})
_BEYOND_ASCII = bytes(range(0x80, 0x100))
_MARKUP = re.compile(rb"<[!/a-zA-Z]")


@dataclass(frozen=True)
class DecodedBody:
    """A body without content coding. `complete` is False if it was cut off, damaged or in an unknown compression."""

    data: bytes
    complete: bool


def decode(body: bytes, content_encoding: str, limit: int) -> DecodedBody:
    """Decodes the content codings of an HTTP body to at most `limit` bytes.

    Supports gzip (several members, trailing garbage), deflate (with and without zlib header), br and zstd, up to two
    codings in a row. A body that was stored decoded under its old header is returned unchanged.
    """
    codings = _codings(body, content_encoding)
    if codings is None:
        return DecodedBody(b"", complete=False)
    result = DecodedBody(body[:limit], complete=len(body) <= limit)
    for index, coding in enumerate(reversed(codings)):
        data = body if index == 0 else result.data
        step = _DECODERS[coding](data, limit)
        if not step.complete and len(step.data) < limit and _is_plain(data):
            step = DecodedBody(data[:limit], complete=len(data) <= limit)
        result = DecodedBody(step.data, complete=step.complete and (index == 0 or result.complete))
    return result


def _codings(body: bytes, content_encoding: str) -> list[str] | None:
    """Returns the codings to decode, in the order in which they were applied; None if decoding is not possible."""
    named = [coding.partition(";")[0].strip().lower() for coding in content_encoding.split(",")]
    codings = [coding for coding in named if coding in _DECODERS]
    if len(codings) > _MAX_CODINGS:
        return None
    if not codings and any(coding not in ("", "identity") for coding in named) and _is_compressed(body):
        return None
    return codings


def _is_compressed(body: bytes) -> bool:
    probe = b"" if body.startswith(_UTF_16) else body[:_PROBE]
    return body.startswith(_COMPRESSED) or len(probe.translate(None, _NO_TEXT)) < len(probe)


def _is_plain(body: bytes) -> bool:
    """Returns whether a body is a text, a page or a PDF file by its first bytes, and so not compressed."""
    if body.startswith((_PDF, *_UTF_16)):
        return True
    probe = body[:_PROBE]
    if _is_compressed(body) or b"\0" in probe:
        return False
    most_is_ascii = 8 * len(probe.translate(None, _BEYOND_ASCII)) >= 7 * len(probe)
    return most_is_ascii or _MARKUP.search(probe) is not None or _is_utf8(probe)


def _is_utf8(probe: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(probe)  # the last character may be cut off
    except UnicodeDecodeError:
        return False
    return True


def _gunzip(body: bytes, limit: int) -> DecodedBody:
    if not body.startswith(_GZIP):
        return DecodedBody(body[:limit], complete=len(body) <= limit)
    data, offset = bytearray(), 0
    # Browsers ignore anything after the last member.
    while body.startswith(_GZIP, offset):
        step, used = _inflate(memoryview(body)[offset:], limit - len(data), 31)
        data += step.data
        offset += used
        if not step.complete:
            return DecodedBody(bytes(data), complete=False)
    return DecodedBody(bytes(data), complete=True)


def _deflate(body: bytes, limit: int) -> DecodedBody:
    step, used = _inflate(memoryview(body), limit, 15 if _has_zlib_header(body) else -15)
    # The first letters of a text may be a bare stream by chance, which has no checksum.
    return DecodedBody(step.data, step.complete and (used == len(body) or not _is_plain(body)))


def _has_zlib_header(body: bytes) -> bool:
    # A zlib header's first two bytes are a multiple of 31 (RFC 1950); without one it is a bare stream.
    return len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0


def _inflate(body: memoryview, limit: int, window: int) -> tuple[DecodedBody, int]:
    """Inflates the first stream in `body`; also returns the number of bytes of `body` that it takes."""
    stream = isal_zlib.decompressobj(window)
    parts: list[bytes] = []
    at, got, size = 0, 0, _FIRST_BLOCK
    try:
        while at < len(body) and not stream.eof and got <= limit:
            # One extra byte distinguishes a body that just fits from a larger one; 0 would mean "no limit".
            parts.append(stream.decompress(body[at : at + size], limit + 1 - got))
            got += len(parts[-1])
            at = min(at + size, len(body))
            # At the end of a stream the rest of its block is copied. Blocks start small and grow with the stream, so
            # that a million empty streams take no longer than one stream of the same size.
            size *= 2
    except isal_zlib.error:  # type: ignore[misc]  # its stub calls the class an instance
        return DecodedBody(b"", complete=False), at
    return DecodedBody(b"".join(parts)[:limit], complete=stream.eof and got <= limit), at - len(stream.unused_data)


def _unbrotli(body: bytes, limit: int) -> DecodedBody:
    stream = brotli.Decompressor()
    try:
        data = stream.process(body, output_buffer_limit=limit + 1)
        while not stream.is_finished() and len(data) <= limit:
            more = stream.process(b"", output_buffer_limit=limit + 1 - len(data))
            if not more:
                break
            data += more
    except brotli.error:
        return DecodedBody(b"", complete=False)
    return DecodedBody(data[:limit], complete=stream.is_finished() and len(data) <= limit)


def _unzstd(body: bytes, limit: int) -> DecodedBody:
    if not body.startswith(_ZSTD):
        return DecodedBody(body[:limit], complete=len(body) <= limit)
    data = bytearray()
    try:
        for block in _unzstd_file(io.BytesIO(body)):
            data += block
            if len(data) > limit:
                return DecodedBody(bytes(data[:limit]), complete=False)
    except OSError:
        return DecodedBody(bytes(data), complete=False)
    return DecodedBody(bytes(data), complete=True)


def _unzstd_file(file: BinaryIO) -> Iterator[bytes]:
    # It refuses windows above 128 MiB.
    return iter(partial(fastwarc.ZstdReader(file).read, _BLOCK), b"")


_DECODERS = {"gzip": _gunzip, "x-gzip": _gunzip, "deflate": _deflate, "br": _unbrotli, "zstd": _unzstd}


class DecodedStream:
    """Iterates over the blocks of a body without its content codings, for bodies that must not be held in memory.

    May be iterated several times. Codings and wrong headers are handled as in `decode`; a damaged body ends at the
    damage.

    Args:
        body: a body, or blocks of one.
        content_encoding: value of the Content-Encoding header.
        limit: maximum number of bytes to yield.

    Attributes:
        complete: whether the last iteration reached the end of the body.
    """

    def __init__(self, body: "bytes | DecodedStream", content_encoding: str, limit: int) -> None:
        self._body = body
        self._content_encoding = content_encoding
        self._limit = limit
        self.complete = False

    def __iter__(self) -> Iterator[bytes]:
        self.complete = False
        left = self._limit
        try:
            for block in self._decoded_blocks():
                if len(block) > left:
                    yield block[:left]
                    return
                left -= len(block)
                yield block
        except _ERRORS:
            return
        self.complete = not isinstance(self._body, DecodedStream) or self._body.complete

    def _decoded_blocks(self) -> Iterator[bytes]:
        blocks = _split_blocks(self._body) if isinstance(self._body, bytes) else iter(self._body)
        first = next(blocks, b"")
        codings = _codings(first, self._content_encoding)
        if codings is None:
            raise EOFError("compressed in an unknown way")
        blocks = itertools.chain((first,), blocks)
        for coding in reversed(codings):
            blocks = _or_stored(_STREAMS[coding], blocks)
        return blocks


def _split_blocks(body: bytes) -> Iterator[bytes]:
    return (body[at : at + _BLOCK] for at in range(0, len(body), _BLOCK))


def _or_stored(decoder: Callable[[Iterator[bytes]], Iterator[bytes]], blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the decoded blocks, or those of a body that was stored decoded: the decoder fails at its beginning."""
    first = _at_least(_PROBE, b"", blocks)
    decoded = decoder(itertools.chain((first,), blocks))
    try:
        begin = next(filter(None, decoded), b"")
    except _ERRORS:
        if not _is_plain(first):
            raise
        begin, decoded = first, blocks
    yield begin
    yield from decoded


def _gunzip_blocks(blocks: Iterator[bytes]) -> Iterator[bytes]:
    pending = _at_least(2, b"", blocks)
    if not pending.startswith(_GZIP):
        yield pending
        yield from blocks
    while pending.startswith(_GZIP):
        pending = yield from _inflate_blocks(pending, blocks, 31)
        pending = _at_least(2, pending, blocks)


def _deflate_blocks(blocks: Iterator[bytes]) -> Iterator[bytes]:
    pending = _at_least(2, b"", blocks)
    yield from _inflate_blocks(pending, blocks, 15 if _has_zlib_header(pending) else -15)


def _inflate_blocks(pending: bytes, blocks: Iterator[bytes], window: int) -> Generator[bytes, None, bytes]:
    """Yields the content of one stream; returns the rest of the last block after its end."""
    stream = isal_zlib.decompressobj(window)
    size = _FIRST_BLOCK
    while not stream.eof:
        if not pending and not (pending := next(blocks, b"")):
            # All input has been read, but the decompressor may still have output.
            if not (last := stream.decompress(b"", _BLOCK)):
                raise EOFError("cut off")
            yield last
            continue
        # At the end of a stream the rest of the piece is copied, so the first pieces are small.
        piece, pending = pending[:size], pending[size:]
        size = min(2 * size, _BLOCK)
        while piece and not stream.eof:
            yield stream.decompress(piece, _BLOCK)
            piece = stream.unconsumed_tail
    return stream.unused_data + pending


def _unbrotli_blocks(blocks: Iterator[bytes]) -> Iterator[bytes]:
    stream = brotli.Decompressor()
    for block in blocks:
        more = stream.process(block, output_buffer_limit=_BLOCK)
        while more:
            yield more
            more = b"" if stream.is_finished() else stream.process(b"", output_buffer_limit=_BLOCK)
    if not stream.is_finished():
        raise EOFError("cut off")


def _unzstd_blocks(blocks: Iterator[bytes]) -> Iterator[bytes]:
    first = _at_least(4, b"", blocks)
    if not first.startswith(_ZSTD):
        yield first
        yield from blocks
    else:
        yield from _unzstd_file(cast(BinaryIO, _BlockFile(itertools.chain((first,), blocks))))


class _BlockFile:
    """A file to read once, of blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        data = self._rest or next(filter(None, self._blocks), b"")
        data, self._rest = (data[:size], data[size:]) if size >= 0 else (data, b"")
        self._at += len(data)
        return data

    def tell(self) -> int:
        return self._at


def _at_least(size: int, pending: bytes, blocks: Iterator[bytes]) -> bytes:
    while len(pending) < size and (block := next(blocks, b"")):
        pending += block
    return pending


_STREAMS: dict[str, Callable[[Iterator[bytes]], Iterator[bytes]]] = {
    "gzip": _gunzip_blocks,
    "x-gzip": _gunzip_blocks,
    "deflate": _deflate_blocks,
    "br": _unbrotli_blocks,
    "zstd": _unzstd_blocks,
}
_ERRORS: tuple[Any, ...] = (EOFError, OSError, isal_zlib.error, brotli.error)
