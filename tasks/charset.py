"""Bytes to text: which encoding a page is in, in the order the HTML standard gives.

Used by the crawl (links of a page) and by extract (its text). Source of the order: HTML Living Standard, section
13.2.3.2 "Determining the character encoding": byte order mark, then the transport's charset, then the page's own meta
tag, then UTF-8 where all bytes are, then frequency analysis. Encodings that the standard leaves out (UTF-7 and its
like) are nobody's.
"""

import codecs
import contextlib

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_BE, "utf-16-be"), (codecs.BOM_UTF16_LE, "utf-16-le"))

# With this mark before it, a page without a meta tag is taken for UTF-32, which no tag can say: the standard has no
# such label. Without it resiliparse would guess, and not tell that it has.
_UTF_32 = codecs.BOM_UTF32_LE
_PRESCAN = 1024

# A wrongly declared page fails at every accented letter; one torn character at the cut-off end of a page
# does not make the declaration wrong. Between them lies a wide gap.
_TOLERATED = 0.001


def decode(data: bytes, declared: str | None = None) -> str:
    """Decodes a payload; never fails.

    Args:
        data: the page.
        declared: charset of the Content-Type header, or None.

    Returns:
        The text. A declaration that does not fit the bytes is ignored; characters that remain undecodable
        are U+FFFD.
    """
    return with_source(data, declared)[0]


def with_source(data: bytes, declared: str | None = None) -> tuple[str, bytes]:
    """Returns what `decode` returns, and the same text in UTF-8: in most cases the very bytes that came in."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _encoded(data[len(mark) :].decode(encoding, "replace"))
    known = map_encoding_to_html5(declared, fallback_utf8=False) if declared else None
    if known and (found := _try(data, known)) is not None:
        return found
    said = _said_by(data)
    if said and said != known and (found := _try(data, said)) is not None:
        return found
    # Text with letters beyond ASCII that is UTF-8 to the last byte is nothing else, however short, and uchardet needs
    # more to be sure. ISO-2022-JP and UTF-16 may look like it, by their escapes and zeros.
    if b"\x1b" not in data and b"\0" not in data:
        with contextlib.suppress(UnicodeError):
            return data.decode("utf-8"), data
    for guess in (detect_encoding(data), "utf-8"):
        if guess and (found := _try(data, guess)) is not None:
            return found
    return _encoded(data.decode("windows-1252", "replace"))  # it decodes anything


def _said_by(data: bytes) -> str | None:
    """Returns the encoding that a page's meta tag names, or None."""
    found: str | None = detect_encoding(_UTF_32 + data[:_PRESCAN], from_html_meta=True, html5_compatible=False)
    # A tag that can be read in ASCII is not in UTF-16, whatever it says: the standard takes UTF-8 for it.
    return None if found == "utf-32" else "utf-8" if found and found.startswith("utf-16") else found


def _try(data: bytes, encoding: str) -> tuple[str, bytes] | None:
    try:
        text = data.decode(encoding)
    except (UnicodeError, LookupError):
        pass
    else:
        return (text, data) if encoding == "utf-8" else _encoded(text)
    try:
        lenient: str = data.decode(encoding, "replace")
    except (UnicodeError, LookupError):
        return None
    return _encoded(lenient) if lenient.count("\ufffd") <= max(1, _TOLERATED * len(data)) else None


def _encoded(text: str) -> tuple[str, bytes]:
    return text, text.encode("utf-8", "surrogatepass")
