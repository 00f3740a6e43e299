"""Heads of archived HTTP responses, as any writer stores them, and whether a record has one.

As lenient as the crawler (RFC 9112, section 2.2): lines may end with a bare line feed, folded lines are joined, and a
line that is no field is ignored. Interim responses (RFC 9110, section 15.2) are skipped; the final one follows them.
"""

from typing import Any, NamedTuple

import fastwarc

MAX_HEAD = 1 << 20
"""Bytes of all heads of a response. Clients accept fewer, but long headers must not make a page unreadable."""

_HTTP = "application/http"
_BEGIN = b"HTTP/"
_SWITCHING = 101


class HttpHead(NamedTuple):
    """The head of a response.

    Attributes:
        status: None if the first line is no status line.
        fields: names and values as sent, in their order, decoded as Latin-1.
    """

    status: int | None
    fields: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        """Returns the first value of a field, or ""; `name` is in lower case."""
        return next((value for field, value in self.fields if field.lower() == name), "")


def has_head(record: fastwarc.WarcRecord) -> bool:
    """Returns whether the block of a response or revisit should begin with a head.

    Media types are case-insensitive (RFC 9110, section 8.3.1). Without a media type, the URL decides.
    """
    kind = (record.headers.get("Content-Type") or "").strip()
    if kind:
        return kind[: len(_HTTP)].lower() == _HTTP
    return (record.headers.get("WARC-Target-URI") or "").lstrip("<")[:4].lower() == "http"


def read_head(reader: Any) -> tuple[HttpHead | None, int]:
    """Reads the heads at the beginning of a block, up to the body.

    Args:
        reader: FastWARC's reader of the block.

    Returns:
        The final head, and the bytes read; None if they reach `MAX_HEAD`.
    """
    head, size = HttpHead(None, ()), 0
    while True:
        lines: list[bytes] = []
        while line := reader.readline(MAX_HEAD - size):
            size += len(line)
            if size >= MAX_HEAD:
                return None, size
            if not (line := line.rstrip(b"\r\n")):
                break
            lines.append(line)
        if not lines or (head.status is not None and not lines[0].startswith(_BEGIN)):
            return head, size
        head = _parse(lines)
        if head.status is None or not 100 <= head.status <= 199 or head.status == _SWITCHING:
            return head, size


def _parse(lines: list[bytes]) -> HttpHead:
    fields: list[tuple[str, list[str]]] = []
    for line in lines[1:]:
        text = line.decode("latin-1")
        if text[0] in " \t":
            if fields:
                fields[-1][1].append(text.strip())
            continue
        name, colon, value = text.partition(":")
        if colon:
            fields.append((name.rstrip(), [value.strip()]))
    return HttpHead(_status(lines[0]), tuple((name, " ".join(filter(None, values))) for name, values in fields))


def _status(line: bytes) -> int | None:
    version, _, rest = line.partition(b" ")
    code = rest.lstrip(b" ")[:3]
    return int(code) if version[:5].upper() == _BEGIN and len(code) == 3 and code.isdigit() else None
