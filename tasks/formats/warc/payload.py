"""The payload of a WARC record: reading within a limit, transfer decoding, digests."""

import hashlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import xxhash

Digest = Literal["computed", "quick", "declared"]

_BLOCK = 1 << 20
# Two letters of Base32 for every ten bits of a SHA-1.
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_BASE32 = [first + second for first in _LETTERS for second in _LETTERS]
_SHIFTS = range(150, -1, -10)
# Transfer coding in small chunks makes a body several times as long.
_CHUNKING = 4
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\Z")
_MAX_CHUNK_LINE = 4096
# Minimum mean size of a chunk, beyond the first ones, in a body of the requested length.
_MEAN_CHUNK = 16
_FEW_CHUNKS = 10_000


@dataclass(frozen=True)
class Body:
    """A body.

    Attributes:
        data: its beginning, up to the limit.
        digest: of all of it; "" where none was computed.
        size: bytes of it, without transfer coding.
        taken: bytes that were read, with transfer coding.
    """

    data: bytes
    digest: str
    size: int
    taken: int


def read_body(reader: Any, limit: int, digest: Digest, *, chunked: bool) -> Body:
    """Reads a body to its end; keeps `limit` bytes of it. A digest that is "declared" is not computed."""
    keep = _CHUNKING * limit if chunked else limit
    whole, label = _HASHES[digest][0](), _HASHES[digest][1]
    kept: list[bytes] = []
    taken = 0
    while block := reader.read(_BLOCK):
        if not chunked:
            whole.update(block)
        if taken < keep:
            kept.append(block[: keep - taken])
        taken += len(block)
    data = b"".join(kept)
    if not chunked:
        return Body(data, label(whole.digest()), taken, taken)
    body, ended = dechunk(data, limit)
    size = len(body) if ended and taken <= keep else max(taken, limit + 1)
    whole.update(body)
    return Body(body[:limit], label(whole.digest()), size, taken)


def dechunk(body: bytes, limit: int = sys.maxsize) -> tuple[bytes, bool]:
    """Decodes chunked transfer coding (RFC 9112, section 7.1), up to the first invalid chunk.

    A body that does not begin with a chunk is returned as it is: many archives store bodies without
    their transfer coding under headers that still name it.

    Returns:
        The body, and whether it is within the limit; of a larger one the beginning. A body of very many small chunks
        counts as larger, because each chunk costs as much as a large one.
    """
    whole, view = bytearray(), memoryview(body)
    at = chunks = 0
    while at < len(body):
        end = body.find(b"\n", at, at + _MAX_CHUNK_LINE)
        size = _CHUNK_SIZE.match(body, at, end) if end >= 0 else None
        if size is None:
            return (bytes(whole) if chunks else body), True
        length = int(size[1], 16)
        if not length:
            break
        if len(whole) > limit or chunks > limit // _MEAN_CHUNK + _FEW_CHUNKS:
            return bytes(whole), False
        at = end + 1 + length
        whole += view[end + 1 : at]
        chunks += 1
        at += 2 if body.startswith(b"\r\n", at) else body.startswith(b"\n", at)
    return bytes(whole), True


def payload_digest(payload: bytes) -> str:
    """Returns the digest of a payload as WARC and CDX write it: "sha1:" and Base32."""
    return sha1_label(hashlib.sha1(payload, usedforsecurity=False).digest())


def quick_digest(payload: bytes) -> str:
    """Returns a digest ("xxh3:" and hex) at a twentieth of the cost of SHA-1, for which anyone can make collisions."""
    return _quick_label(xxhash.xxh3_128_digest(payload))


def _quick_label(digest: bytes) -> str:
    return "xxh3:" + digest.hex()


def sha1_label(digest: bytes) -> str:
    """Returns a SHA-1 digest as WARC headers spell it."""
    # In half of the time of `base64.b32encode`.
    number = int.from_bytes(digest)
    return "sha1:" + "".join([_BASE32[number >> shift & 0x3FF] for shift in _SHIFTS])


class _Unhashed:
    """Null object with a hash's interface, for a digest that is not computed."""

    def update(self, block: bytes) -> None:
        """Ignores a block of the body."""

    def digest(self) -> bytes:
        return b""


_HASHES: dict[Digest, tuple[Callable[[], Any], Callable[[bytes], str]]] = {
    "computed": (partial(hashlib.sha1, usedforsecurity=False), sha1_label),
    "quick": (xxhash.xxh3_128, _quick_label),
    "declared": (_Unhashed, bytes.decode),
}
