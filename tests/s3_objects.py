"""S3 server on loopback for a million small objects: a sorted dictionary in a process of its own, which counts.

`with served() as server: ...` starts it; `python -m tests.s3_objects [--delay-ms 10]` prints its URL. It has what the
store needs: PUT, also conditional, GET of whole objects and ranges, HEAD, LIST and DELETE, but no
uploads in pieces, no faults (`tests.s3_server`) and no check of signatures. A small object takes 0.6 kB and its PUT
0.4 ms of CPU, where moto takes 5.7 kB and 6.3 ms.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from sortedcontainers import SortedDict

from tests.s3_server import environment

BUCKET = "sluice"
CREATE = "CREATE"
"""Name of a PUT under the condition that there is no such object, which publishes a record."""

BEFORE = "before a write"
"""Count of the requests before the first PUT."""
KINDS = ("PUT", CREATE, "GET", "HEAD", "LIST", "POST", "DELETE")
"""Requests: PUT also of copies, LIST is a page of a listing, POST removes files."""

_KEYS = 1000
_META = "x-amz-meta-"
_DATE = b"Last-Modified: Sun, 29 Nov 2026 00:00:00 GMT\r\n"
_MISSING = b"<Error><Code>NoSuchKey</Code><Message>no such object</Message></Error>"
_EXISTS = b"<Error><Code>PreconditionFailed</Code><Message>it exists</Message></Error>"


@dataclass(frozen=True, slots=True)
class Stored:
    """An object: its bytes, the number of its version, and the lines of its metadata."""

    body: bytes
    version: int
    meta: bytes

    @property
    def headers(self) -> bytes:
        """Lines of the headers of a response with it."""
        return b'ETag: "%032x"\r\n' % self.version + _DATE + self.meta


@dataclass(frozen=True)
class Reply:
    """A response: status, body, lines of headers, and the length to state if it is not that of the body."""

    status: str
    body: bytes = b""
    headers: bytes = b""
    length: int | None = None

    def sent(self) -> bytes:
        """Returns the bytes on the wire."""
        length = len(self.body) if self.length is None else self.length
        return f"HTTP/1.1 {self.status}\r\nContent-Length: {length}\r\n".encode() + self.headers + b"\r\n" + self.body


class Objects:
    """The objects of all buckets, by "bucket/key", and the counts of requests and bytes."""

    def __init__(self) -> None:
        self.held: SortedDict = SortedDict()
        self.counts: Counter[str] = Counter()
        self._version = 0
        self._wrote = False
        self._most = 0

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply | None:
        """Carries out one request; returns None for one that is held, which has no effect and never ends."""
        path, _, query = target.partition("?")
        self._wrote = self._wrote or method == "PUT"
        self.counts[BEFORE] += not self._wrote and not path.startswith("/__")
        key, options = unquote(path[1:]), dict(parse_qsl(query, keep_blank_values=True))
        if key == "__counts":
            return self._told(options)
        if "/" not in key.rstrip("/"):
            if method == "GET":
                return self._list(key.rstrip("/"), options)
            return self._delete(key.rstrip("/"), body) if method == "POST" else Reply("200 OK")
        if method == "PUT":
            return self._put(key, headers, body)
        if method == "DELETE":
            self.counts["DELETE"] += 1
            self.held.pop(key, None)
            return Reply("204 No Content")
        return self._get(method, key, headers.get("range", ""))

    def _told(self, options: dict[str, str]) -> Reply:
        told = json.dumps({**self.counts, "objects": len(self.held)}).encode()
        if "reset" in options:
            self.counts.clear()
            self._wrote, self._most = False, int(options.get("most", 0))
        return Reply("200 OK", told)

    def _put(self, key: str, headers: dict[str, str], body: bytes) -> Reply | None:
        created = "if-none-match" in headers
        if created and self._most and self.counts[CREATE] >= self._most:
            return None
        self.counts[CREATE if created else "PUT"] += 1
        if created and key in self.held:
            return Reply("412 Precondition Failed", _EXISTS)
        meta = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if name.startswith(_META)).encode()
        if "aws-chunked" in headers.get("content-encoding", ""):
            body = _unchunked(body)
        self._version += 1
        self.counts["bytes in"] += len(body)
        self.held[key] = Stored(body, self._version, meta)
        return Reply("200 OK", b"", b'ETag: "%032x"\r\n' % self._version)

    def _get(self, method: str, key: str, wanted: str) -> Reply:
        self.counts[method] += 1
        stored = self.held.get(key)
        if stored is None:
            return Reply("404 Not Found", b"" if method == "HEAD" else _MISSING)
        if method == "HEAD":
            return Reply("200 OK", b"", stored.headers, len(stored.body))
        status, body, headers = "200 OK", stored.body, stored.headers
        if named := re.fullmatch(r"bytes=(\d+)-(\d*)", wanted):
            first, size = int(named[1]), len(body)
            if first >= size:
                return Reply("416 Range Not Satisfiable", b"<Error><Code>InvalidRange</Code></Error>")
            end = min(size, int(named[2]) + 1) if named[2] else size
            status, body = "206 Partial Content", body[first:end]
            headers += f"Content-Range: bytes {first}-{end - 1}/{size}\r\n".encode()
        self.counts["bytes out"] += len(body)
        return Reply(status, body, headers)

    def _list(self, bucket: str, options: dict[str, str]) -> Reply:
        self.counts["LIST"] += 1
        base, delimiter = f"{bucket}/", options.get("delimiter", "")
        prefix, most = base + options.get("prefix", ""), int(options.get("max-keys", _KEYS))
        at, end = base + options.get("continuation-token", options.get("prefix", "")), prefix + chr(sys.maxunicode)
        found: list[str] = []
        while len(found) < most:
            # One look-up a folder with a delimiter, else one for all.
            keys = self.held.irange(at, end, inclusive=(True, False))
            begun = len(found)
            for key in keys:
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                if cut >= 0:
                    found.append(
                        f"<CommonPrefixes><Prefix>{_named(key[len(base) : cut + 1])}</Prefix></CommonPrefixes>"
                    )
                    at = key[:cut] + chr(ord(delimiter) + 1)
                    break
                found.append(
                    f"<Contents><Key>{_named(key[len(base) :])}</Key><Size>{len(self.held[key].body)}</Size>"
                    '<LastModified>2026-11-29T00:00:00.000Z</LastModified><ETag>"0"</ETag></Contents>'
                )
                at = key + "\0"
                if len(found) == most:
                    break
            if len(found) == begun or (delimiter == "" and len(found) < most):
                break
        more = next(self.held.irange(at, end, inclusive=(True, False)), None) if len(found) == most else None
        token = f"<NextContinuationToken>{escape(more[len(base) :])}</NextContinuationToken>" if more else ""
        text = (
            '<?xml version="1.0"?><ListBucketResult><EncodingType>url</EncodingType>'
            f"<KeyCount>{len(found)}</KeyCount><IsTruncated>{'true' if more else 'false'}</IsTruncated>{token}"
            f"{''.join(found)}</ListBucketResult>"
        )
        return Reply("200 OK", text.encode(), b"Content-Type: application/xml\r\n")

    def _delete(self, bucket: str, body: bytes) -> Reply:
        self.counts["POST"] += 1
        for key in re.findall(r"<Key>(.*?)</Key>", body.decode()):
            self.held.pop(f"{bucket}/{unescape(key)}", None)
        return Reply("200 OK", b"<DeleteResult></DeleteResult>", b"Content-Type: application/xml\r\n")


def _named(key: str) -> str:
    return escape(quote(key, safe="/"))


def _unchunked(body: bytes) -> bytes:
    """Returns the content of a body in chunks, each after its length in hexadecimal, with a checksum at the end."""
    pieces, at = [], 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end].partition(b";")[0], 16)
        if not size:
            return b"".join(pieces)
        pieces.append(body[end + 2 : end + 2 + size])
        at = end + 4 + size


class _Connection(asyncio.Protocol):
    """Reads requests from a connection, one at a time, and answers each after `delay_s`."""

    def __init__(self, objects: Objects, delay_s: float) -> None:
        self._objects, self._delay_s = objects, delay_s
        self._received = bytearray()
        self._continued = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (head := self._received.find(b"\r\n\r\n")) >= 0:
            request, *lines = self._received[:head].decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            end = head + 4 + int(headers.get("content-length", 0))
            if len(self._received) < end:
                if headers.get("expect") == "100-continue" and not self._continued:
                    self._continued = True
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            body = bytes(self._received[head + 4 : end])
            del self._received[:end]
            self._continued = False
            method, target, _ = request.split(" ")
            if (reply := self._objects.answer(method, target, headers, body)) is None:
                continue
            if self._delay_s:
                asyncio.get_running_loop().call_later(self._delay_s, self._transport.write, reply.sent())
            else:
                self._transport.write(reply.sent())


@dataclass(frozen=True)
class Counting:
    """A running server: its URL, and the environment of its clients."""

    url: str
    environment: dict[str, str]

    def counts(self, *, reset: bool = False, most: int = 0) -> Counter[str]:
        """Returns requests by `KINDS`, those `BEFORE` a write, "bytes in" and "bytes out", and the "objects" now.

        With `reset`, all but the last begin again at 0, and every CREATE after the first `most` of them (0: none) is
        held until the next reset: its client waits, and can be killed.
        """
        query = f"?reset&most={most}" if reset else ""
        with urllib.request.urlopen(f"{self.url}/__counts{query}", timeout=300) as reply:
            return Counter(json.load(reply))

    @staticmethod
    def total(counts: Mapping[str, int]) -> int:
        """Returns the sum of the requests."""
        return sum(counts.get(kind, 0) for kind in KINDS)


@contextmanager
def served(delay_ms: float = 0.0) -> Iterator[Counting]:
    """Runs the server as a process; each response is sent after a delay."""
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "tests.s3_objects", "--delay-ms", str(delay_ms)]
    changed = os.environ | {"PYTHONPATH": str(root)}
    with subprocess.Popen(command, cwd=root, env=changed, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        url = server.stdout.readline().strip()
        try:
            yield Counting(url, environment(url))
        finally:
            server.kill()


async def _serve(delay_s: float) -> None:
    objects = Objects()
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(objects, delay_s), "127.0.0.1", 0, backlog=256
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.s3_objects")
    options.add_argument("--delay-ms", type=float, default=0.0)
    asyncio.run(_serve(options.parse_args().delay_ms / 1000))


if __name__ == "__main__":
    main()
