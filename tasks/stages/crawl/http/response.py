"""Incremental parser of one HTTP/1 response, as lenient as curl and with limits.

No I/O: reads bytes, returns a response or raises ProtocolError. Accepts what curl accepts: bare line feeds, blanks
before a colon, lone CR within a value (a blank takes its place: RFC 9112, 2.2), folded lines, control characters, a
repeated equal length, bytes behind the body. Responses with an ambiguous end are refused, though curl reads some of
them: two different lengths, a length and chunks at once, a length that is not a number; so are NUL, lines without a
colon, and other transfer codings than chunks. Where the connection ends within a body, as much of it is returned as
came.
"""

import re
from collections.abc import Callable
from typing import Literal

Headers = tuple[tuple[str, str], ...]
Wanted = Callable[[int, Headers], int]

# curl takes fields of 100 KiB and, since 8.6, 5,000 of them in 300 KiB. 1xx answers come once or twice, if at all.
MAX_FIELD, MAX_FIELDS, MAX_HEAD, MAX_INTERIM = 100 << 10, 5000, 512 << 10, 16
Truncated = Literal["", "length", "disconnect"]
"""Why a body is not whole, in the words of WARC-Truncated: longer than is taken, or the connection ended within it."""
MAX_UNWANTED = 16 << 10
"""Unwanted bodies up to this size are read to their end, which keeps the connection; above, it is closed."""

_MAX_CHUNK_LINE, _MAX_TRAILERS = 16 << 10, 64 << 10
# Chunk headers may exceed the content of the chunks up to so many bytes.
_FRAMING_MARGIN = 256 << 10

_BEGIN = b"HTTP/"
_CR = ord("\r")
_END = re.compile(rb"\n\r*\n")
_STATUS = re.compile(r"HTTP/(1\.[01]|2(?:\.0)?) +([1-9]\d\d)(?!\d)[ \t]*(.*)", re.I | re.ASCII)
_LENGTH = re.compile(r"\d{1,18}", re.ASCII)
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,16})[ \t]*(?:;[^\n]*)?\r?\n")
# What lies between commas outside quoted strings.
_PART = re.compile(r'(?:[^",]|"[^"]*(?:"|$))+')
_TYPE = re.compile(r"(?!\*/\*)[\w!#$%&'*+.^`|~-]+/[\w!#$%&'*+.^`|~-]+[ \t]*(?:;|$)", re.ASCII)
_FRAMING = ("content-length", "transfer-encoding", "connection")
_WITHOUT_BODY = (204, 304)


class ProtocolError(Exception):
    """The bytes are no response, or none with a clear end."""


class DisconnectError(ProtocolError):
    """The connection ends too early."""


class Response:
    """One response while it is received.

    Args:
        limit: bytes of body to take.
        wanted: returns by status and headers how many bytes of body to read instead; 0 for none.

    Attributes:
        status: HTTP status; 0 while the head is not complete.
        reason: the words behind it.
        headers: in the order received, latin-1.
        begun: bytes have been received.
        done: it is complete, or as much of it is here as is taken.
        truncated: why the body is not whole, or "".
        size: bytes of body received.
        reusable: the connection may be used for another request.
    """

    def __init__(self, limit: int, wanted: Wanted | None = None) -> None:
        self.status = 0
        self.reason = ""
        self.headers: Headers = ()
        self.begun = self.done = self.reusable = False
        self.truncated: Truncated = ""
        self._limit = self._usual = limit
        self._wanted = wanted
        self._keep = True
        self._buffer = b""
        self._head_bytes = self._interims = 0
        self._body: list[bytes] = []
        self._framing = self.size = 0
        # Bytes missing of the body or of the chunk; and whether the line end behind a chunk is missing.
        self._left = 0
        self._behind_chunk = False
        # No bound methods: a reference cycle would keep the body until the next garbage collection.
        self._feed = Response._feed_head

    @property
    def body(self) -> bytes:
        """The body up to the limit; b"" if it was not requested."""
        return b"".join(self._body)[: self._limit] if self._keep else b""

    def feed(self, data: bytes) -> None:
        """Takes bytes from the wire; raises ProtocolError."""
        self.begun = True
        self._feed(self, data)

    def end(self) -> None:
        """Handles the end of the connection; raises ProtocolError where it is too early."""
        self.reusable = False
        if not self.done and self._feed is not Response._feed_rest:
            raise DisconnectError(
                "the connection ends " + ("within the body" if self.status else "before the head does")
            )
        self.done = True

    def cut(self) -> bool:
        """Ends the response where the connection has broken; returns whether a part of its body is here."""
        self.reusable = False
        if not self.status or not self.size or not self._keep or self.done:
            return False
        self.done, self.truncated = True, "disconnect"
        return True

    def _feed_head(self, data: bytes) -> None:
        looked = max(self._buffer.rfind(b"\n"), 0)
        self._buffer += data
        while not self.status:
            if self._buffer[:5].upper() != _BEGIN[: len(self._buffer)]:
                raise ProtocolError(f"it begins with {self._buffer[:20]!r}")
            found = _END.search(self._buffer, looked)
            if self._head_bytes + (found.end() if found else len(self._buffer)) > MAX_HEAD:
                raise ProtocolError(f"a head of more than {MAX_HEAD} bytes")
            if found is None:
                return
            head, self._buffer, looked = self._buffer[: found.start()], self._buffer[found.end() :], 0
            self._head_bytes += found.end()
            self._take_head(head)
        rest, self._buffer = self._buffer, b""
        if rest and self.done:
            self.reusable = False
        elif rest:
            self._feed(self, rest)

    def _take_head(self, head: bytes) -> None:
        version, status, reason, headers = parse_head(head)
        if status == 101:
            raise ProtocolError("it changes to another protocol")
        if status < 200:
            self._interims += 1
            if self._interims > MAX_INTERIM:
                raise ProtocolError(f"more than {MAX_INTERIM} interim responses")
            return
        self.status, self.reason, self.headers = status, reason, headers
        length, chunked, self.reusable = _framing(version, status, headers)
        self._limit = self._usual if self._wanted is None else self._wanted(status, headers)
        if not self._limit and self._wanted is not None:
            self._keep, self._limit = False, min(self._usual, MAX_UNWANTED)
            if length is not None and length > self._limit:
                self.done, self.truncated = True, "length"
                self.reusable = False
        if chunked:
            self._feed = Response._feed_chunks
        elif length is None:
            self.reusable = False
            self._feed = Response._feed_rest
        else:
            self._left, self.done = length, self.done or not length
            self._feed = Response._feed_length

    def _feed_length(self, data: bytes) -> None:
        if len(data) > self._left:
            # Bytes behind the body are ignored; some servers count characters instead of bytes.
            self.reusable = False
            data = data[: self._left]
        self._left -= len(data)
        self.done = not self._left
        self._take(data)

    def _feed_rest(self, data: bytes) -> None:
        self._take(data)

    def _take(self, data: bytes) -> None:
        self._body.append(data)
        self.size += len(data)
        if self.size > self._limit:
            self.done, self.truncated = True, "length"
            self.reusable = False

    def _feed_chunks(self, data: bytes) -> None:
        buffer, at = self._buffer + data if self._buffer else data, 0
        while not self.done and at < len(buffer):
            if self._left:
                piece = buffer[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                self._behind_chunk = not self._left
                self._take(piece)
            elif self._behind_chunk:
                if at + 1 == len(buffer) and buffer[at] == _CR:
                    break
                at = _behind_line_end(buffer, at)
                self._behind_chunk = False
            else:
                line = _CHUNK.match(buffer, at)
                if line is None:
                    if len(buffer) - at > _MAX_CHUNK_LINE or buffer.find(b"\n", at) >= 0:
                        raise ProtocolError(f"no size of a chunk: {buffer[at : at + 20]!r}")
                    break
                self._count_framing(line.end() - at)
                self._left, at = int(line[1], 16), line.end()
                if not self._left:
                    self._buffer, self._feed = b"\n", Response._feed_trailers
                    self._feed_trailers(buffer[at:])
                    return
        self._buffer = buffer[at:]

    def _count_framing(self, count: int) -> None:
        self._framing += count + 2
        if self._framing > self.size + _FRAMING_MARGIN:
            raise ProtocolError(f"{self._framing} bytes of chunked coding for a body of {self.size}")

    def _feed_trailers(self, data: bytes) -> None:
        self._buffer += data
        found = _END.search(self._buffer)
        if (found.end() if found else len(self._buffer)) > _MAX_TRAILERS:
            raise ProtocolError(f"trailers of more than {_MAX_TRAILERS} bytes")
        if found is not None:
            self.done = True
            self.reusable = self.reusable and found.end() == len(self._buffer)


def content_type(headers: Headers) -> str:
    """Returns the value of Content-Type that counts: of several, in one field or in many, the last that names a type.

    As browsers do (Fetch Standard, 3.5 "extract a MIME type"). "" where there is none.

    >>> content_type((("Content-Type", "text/plain"), ("content-type", "*/*, text/html; charset=x")))
    'text/html; charset=x'
    """
    named = [value for name, value in headers if name.lower() == "content-type"]
    every = [part.strip() for value in named for part in _PART.findall(value)]
    return next((part for part in reversed(every) if _TYPE.match(part)), every[-1] if every else "")


def parse_head(head: bytes) -> tuple[str, int, str, Headers]:
    """Returns version ("1.1"), status, reason and headers of a head without its last line end; raises ProtocolError."""
    if b"\0" in head:
        raise ProtocolError("NUL in the head")
    text = head.decode("latin-1").rstrip("\r").replace("\r\n", "\n")
    lines = text.split("\n")
    if "\r" in text:
        lines = [line.rstrip("\r").replace("\r", " ") for line in lines]
    if "\n " in text or "\n\t" in text:
        lines = _unfolded(lines)
    first = _STATUS.match(lines[0])
    if first is None:
        raise ProtocolError(f"no status line: {lines[0][:40]!r}")
    if len(lines) - 1 > MAX_FIELDS:
        raise ProtocolError(f"more than {MAX_FIELDS} fields")
    if len(head) > MAX_FIELD and max(map(len, lines)) > MAX_FIELD:
        raise ProtocolError(f"a field of more than {MAX_FIELD} bytes")
    headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise ProtocolError(f"a line without a colon: {line[:40]!r}")
        headers.append((name.rstrip(" \t"), value.strip(" \t")))
    return first[1], int(first[2]), first[3].rstrip(), tuple(headers)


def _unfolded(lines: list[str]) -> list[str]:
    """Joins lines that begin with a blank to the one before (RFC 9112, 5.2)."""
    groups: list[list[str]] = []
    for line in lines:
        if line.startswith((" ", "\t")):
            if len(groups) < 2:
                raise ProtocolError("a folded line that goes on from none")
            groups[-1].append(line.strip(" \t"))
        else:
            groups.append([line])
    return [" ".join(group) for group in groups]


def _framing(version: str, status: int, headers: Headers) -> tuple[int | None, bool, bool]:
    """Returns the length of the body (None: not declared), whether it is chunked, whether the connection persists."""
    values: dict[str, list[str]] = {}
    for name, value in headers:
        key = name.lower()
        if key in _FRAMING:
            values.setdefault(key, []).extend(part.strip(" \t") for part in value.split(","))
    options = {option.lower() for option in values.get("connection", ())}
    stays = "close" not in options and (version != "1.0" or "keep-alive" in options)
    if status in _WITHOUT_BODY:
        return 0, False, stays
    codings = {coding.lower() for coding in values.get("transfer-encoding", ())} - {"", "identity"}
    lengths = set(values.get("content-length", ()))
    if codings - {"chunked"}:
        raise ProtocolError(f"the transfer coding {', '.join(sorted(codings))}")
    if len(lengths) > 1 or (lengths and codings):
        raise ProtocolError("the length is said twice, and differently")
    for length in lengths:
        if not _LENGTH.fullmatch(length):
            raise ProtocolError(f"the length {length[:20]!r}")
        return int(length), False, stays
    return None, bool(codings), stays


def _behind_line_end(buffer: bytes, at: int) -> int:
    for end in (b"\r\n", b"\n"):
        if buffer.startswith(end, at):
            return at + len(end)
    raise ProtocolError("a chunk is longer than it says")
