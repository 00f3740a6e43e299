"""Bytes to text: which encoding a page is in, in the order the HTML standard gives.

Used by the crawl (links of a page) and by extract (its text). Source of the order: HTML Living Standard, section
13.2.3.2 "Determining the character encoding": byte order mark, then the transport's charset, then the page's own meta
tag, then frequency analysis. Encodings that the standard leaves out (UTF-7 and its like) are nobody's.
"""

import codecs

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_BE, "utf-16-be"), (codecs.BOM_UTF16_LE, "utf-16-le"))

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
    for guess in dict.fromkeys((_said_by(data), "utf-8")):
        if guess and guess != known and (found := _try(data, guess)) is not None:
            return found
    # uchardet without the page's own claim; Windows-1252 decodes anything.
    found = _try(data, detect_encoding(data) or "utf-8")
    return found or _encoded(data.decode("windows-1252", "replace"))


def _said_by(data: bytes) -> str | None:
    found: str | None = detect_encoding(data, from_html_meta=True)
    # A tag that can be read in ASCII is not in UTF-16, whatever it says: the standard takes UTF-8 for it.
    return "utf-8" if found and found.startswith("utf-16") and b"<meta" in data[:1024].lower() else found


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
