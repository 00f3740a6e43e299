"""Incremental parser of one HTTP/1 response, as lenient as curl, with limits. It does no I/O.

Like curl, it accepts bare line feeds, blanks before a colon, a lone CR within a value (replaced by a blank: RFC 9112,
2.2), folded lines, control characters, repeated equal lengths, and bytes after the body. It rejects responses whose end
is ambiguous, although curl reads some of them: two different lengths, a length together with chunked coding, or a
length that is not a number. It also rejects NUL, lines without a colon, and transfer codings other than chunked. When
the connection ends within a body, the part received is available.
"""

import re
from collections.abc import Callable
from typing import Literal

Headers = tuple[tuple[str, str], ...]
BodyLimit = Callable[[int, Headers], int]

# curl accepts fields of 100 KiB and, since 8.6, 5,000 of them in 300 KiB. More than two 1xx responses are rare.
MAX_FIELD, MAX_FIELDS, MAX_HEAD, MAX_INTERIM = 100 << 10, 5000, 512 << 10, 16
Truncated = Literal["", "length", "disconnect"]
"""Why a body is incomplete, as in WARC-Truncated: it exceeds the limit, or the connection ended within it."""
MAX_UNWANTED = 16 << 10
"""Unwanted bodies up to this size in bytes are read to the end, so that the connection can be reused."""

_MAX_CHUNK_LINE, _MAX_TRAILERS = 16 << 10, 64 << 10
# Bytes by which chunk headers may exceed the content of the chunks.
_FRAMING_MARGIN = 256 << 10

_BEGIN = b"HTTP/"
_CR = ord("\r")
_END = re.compile(rb"\n\r*\n")
_STATUS = re.compile(r"HTTP/(1\.[01]|2(?:\.0)?) +([1-9]\d\d)(?!\d)[ \t]*(.*)", re.I | re.ASCII)
_LENGTH = re.compile(r"\d{1,18}", re.ASCII)
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,16})[ \t]*(?:;[^\n]*)?\r?\n")
_FRAMING = ("content-length", "transfer-encoding", "connection")
_WITHOUT_BODY = (204, 304)


class ProtocolError(Exception):
    """The bytes are not a valid response, or its end is ambiguous."""


class DisconnectError(ProtocolError):
    """The connection ended before the response was complete."""


class ResponseParser:
    """Parser of one response, with the parts received so far.

    Args:
        limit: maximum number of body bytes.
        body_limit: called with status and headers; returns a limit that replaces `limit`, 0 for no body.

    Attributes:
        status: HTTP status; 0 until the head is complete.
        reason: reason phrase.
        headers: name and value in the order received, decoded as Latin-1.
        begun: whether any bytes have been received.
        done: whether the response is complete, or its body has reached the limit.
        truncated: why the body is incomplete, or "".
        size: body bytes received.
        reusable: whether the connection can be used for another request.
    """

    def __init__(self, limit: int, body_limit: BodyLimit | None = None) -> None:
        self.status = 0
        self.reason = ""
        self.headers: Headers = ()
        self.begun = self.done = self.reusable = False
        self.truncated: Truncated = ""
        self._limit = self._default_limit = limit
        self._body_limit = body_limit
        self._keep_body = True
        self._buffer = b""
        self._head_bytes = self._interims = 0
        self._body: list[bytes] = []
        self._framing = self.size = 0
        # Bytes still missing from the body or chunk, and whether the line end after a chunk is missing.
        self._remaining = 0
        self._after_chunk = False
        # No bound methods: a reference cycle would keep the body until the next garbage collection.
        self._feed = ResponseParser._feed_head

    @property
    def body(self) -> bytes:
        """The body up to the limit; b"" if it was not requested."""
        return b"".join(self._body)[: self._limit] if self._keep_body else b""

    def feed(self, data: bytes) -> None:
        """Parses received bytes; raises ProtocolError."""
        self.begun = True
        self._feed(self, data)

    def end(self) -> None:
        """Handles the end of the connection; raises DisconnectError if the response is incomplete."""
        self.reusable = False
        if not self.done and self._feed is not ResponseParser._feed_rest:
            raise DisconnectError(
                "the connection ends " + ("within the body" if self.status else "before the head does")
            )
        self.done = True

    def truncate(self) -> bool:
        """Ends the response after the connection broke; returns False if no part of its body was received."""
        self.reusable = False
        if not self.status or not self.size or not self._keep_body or self.done:
            return False
        self.done, self.truncated = True, "disconnect"
        return True

    def _feed_head(self, data: bytes) -> None:
        searched = max(self._buffer.rfind(b"\n"), 0)
        self._buffer += data
        while not self.status:
            if self._buffer[:5].upper() != _BEGIN[: len(self._buffer)]:
                raise ProtocolError(f"it begins with {self._buffer[:20]!r}")
            end = _END.search(self._buffer, searched)
            if self._head_bytes + (end.end() if end else len(self._buffer)) > MAX_HEAD:
                raise ProtocolError(f"a head of more than {MAX_HEAD} bytes")
            if end is None:
                return
            head, self._buffer, searched = self._buffer[: end.start()], self._buffer[end.end() :], 0
            self._head_bytes += end.end()
            self._set_head(head)
        rest, self._buffer = self._buffer, b""
        if rest and self.done:
            self.reusable = False
        elif rest:
            self._feed(self, rest)

    def _set_head(self, head: bytes) -> None:
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
        self._limit = self._default_limit if self._body_limit is None else self._body_limit(status, headers)
        if not self._limit and self._body_limit is not None:
            self._keep_body, self._limit = False, min(self._default_limit, MAX_UNWANTED)
            if length is not None and length > self._limit:
                self.done, self.truncated = True, "length"
                self.reusable = False
        if chunked:
            self._feed = ResponseParser._feed_chunks
        elif length is None:
            self.reusable = False
            self._feed = ResponseParser._feed_rest
        else:
            self._remaining, self.done = length, self.done or not length
            self._feed = ResponseParser._feed_length

    def _feed_length(self, data: bytes) -> None:
        if len(data) > self._remaining:
            # Bytes after the body are ignored; some servers count characters instead of bytes.
            self.reusable = False
            data = data[: self._remaining]
        self._remaining -= len(data)
        self.done = not self._remaining
        self._append(data)

    def _feed_rest(self, data: bytes) -> None:
        self._append(data)

    def _append(self, data: bytes) -> None:
        self._body.append(data)
        self.size += len(data)
        if self.size > self._limit:
            self.done, self.truncated = True, "length"
            self.reusable = False

    def _feed_chunks(self, data: bytes) -> None:
        buffer, at = self._buffer + data if self._buffer else data, 0
        while not self.done and at < len(buffer):
            if self._remaining:
                content = buffer[at : at + self._remaining]
                at += len(content)
                self._remaining -= len(content)
                self._after_chunk = not self._remaining
                self._append(content)
            elif self._after_chunk:
                if at + 1 == len(buffer) and buffer[at] == _CR:
                    break
                at = _skip_line_end(buffer, at)
                self._after_chunk = False
            else:
                line = _CHUNK.match(buffer, at)
                if line is None:
                    if len(buffer) - at > _MAX_CHUNK_LINE or buffer.find(b"\n", at) >= 0:
                        raise ProtocolError(f"no size of a chunk: {buffer[at : at + 20]!r}")
                    break
                self._count_framing(line.end() - at)
                self._remaining, at = int(line[1], 16), line.end()
                if not self._remaining:
                    self._buffer, self._feed = b"\n", ResponseParser._feed_trailers
                    self._feed_trailers(buffer[at:])
                    return
        self._buffer = buffer[at:]

    def _count_framing(self, count: int) -> None:
        self._framing += count + 2
        if self._framing > self.size + _FRAMING_MARGIN:
            raise ProtocolError(f"{self._framing} bytes of chunked coding for a body of {self.size}")

    def _feed_trailers(self, data: bytes) -> None:
        self._buffer += data
        end = _END.search(self._buffer)
        if (end.end() if end else len(self._buffer)) > _MAX_TRAILERS:
            raise ProtocolError(f"trailers of more than {_MAX_TRAILERS} bytes")
        if end is not None:
            self.done = True
            self.reusable = self.reusable and end.end() == len(self._buffer)


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
    """Joins lines that begin with a blank to the line before (RFC 9112, 5.2)."""
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
    """Returns the length of the body (None: unknown), whether it is chunked, and whether the connection persists."""
    values: dict[str, list[str]] = {}
    for name, value in headers:
        key = name.lower()
        if key in _FRAMING:
            values.setdefault(key, []).extend(part.strip(" \t") for part in value.split(","))
    options = {option.lower() for option in values.get("connection", ())}
    persists = "close" not in options and (version != "1.0" or "keep-alive" in options)
    if status in _WITHOUT_BODY:
        return 0, False, persists
    codings = {coding.lower() for coding in values.get("transfer-encoding", ())} - {"", "identity"}
    lengths = set(values.get("content-length", ()))
    if codings - {"chunked"}:
        raise ProtocolError(f"the transfer coding {', '.join(sorted(codings))}")
    if len(lengths) > 1 or (lengths and codings):
        raise ProtocolError("the length is said twice, and differently")
    for length in lengths:
        if not _LENGTH.fullmatch(length):
            raise ProtocolError(f"the length {length[:20]!r}")
        return int(length), False, persists
    return None, bool(codings), persists


def _skip_line_end(buffer: bytes, at: int) -> int:
    for end in (b"\r\n", b"\n"):
        if buffer.startswith(end, at):
            return at + len(end)
    raise ProtocolError("a chunk is longer than it says")
