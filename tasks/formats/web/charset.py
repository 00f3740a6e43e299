"""Character encoding detection and decoding of a page, in the order of the HTML standard.

Source of the order: HTML Living Standard, section 13.2.3.2 "Determining the character encoding": byte order mark, then
the transport's charset, then the page's own meta tag or XML declaration, then UTF-8 where the bytes are, then frequency
analysis. Encodings that are not in the standard (UTF-7, for example) are not supported. One deviation from the
standard: a declaration that the bytes clearly contradict is ignored, where a browser would show replacement
characters throughout.
"""

import codecs
import re
from typing import NamedTuple

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_BE, "utf-16-be"), (codecs.BOM_UTF16_LE, "utf-16-le"))

# With this mark before it, resiliparse returns UTF-32 for a page without a meta tag; no tag can name UTF-32, as the
# standard has no such label. Without the mark resiliparse would return a guess that looks like a declaration.
_UTF_32 = codecs.BOM_UTF32_LE
_PRESCAN = 1024

_XML_ENCODING = re.compile(rb"<\?xml[^>]{0,200}?\bencoding\s{0,20}=\s{0,20}[\"']([A-Za-z0-9_.:-]{1,40})[\"']")

# Labels that in the Encoding Standard (WHATWG, section 4.2) cover more characters than Python's codec of that name.
_WIDER = {
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "iso8859-11": "cp874",
}

# Encodings for which the standard's encoder covers less than its decoder: Python's codec for the encoder.
_WRITTEN = {"gbk": "gbk", "big5": "cp950"}

_BEYOND_ASCII = bytes(range(0x80, 0x100))

# A wrongly declared page fails at every accented letter; one torn character at the cut-off end of a page
# does not make the declaration wrong. Between them lies a wide gap.
_TOLERATED = 0.001


class Text(NamedTuple):
    """A payload as text.

    Attributes:
        text: the decoded text.
        source: the text in UTF-8, in most cases the input bytes themselves.
        encoding: Python's name of the encoding of queries in its links: that of the page, and UTF-8 for UTF-16
            (Encoding Standard, section 4.3 "Output encodings").
    """

    text: str
    source: bytes
    encoding: str


def decode(data: bytes, declared: str | None = None) -> str:
    """Decodes a payload; never fails.

    Args:
        data: the page.
        declared: charset of the Content-Type header, or None.

    Returns:
        The text. A declaration that does not fit the bytes is ignored; characters that remain undecodable
        are U+FFFD.
    """
    return with_source(data, declared).text


def with_source(data: bytes, declared: str | None = None) -> Text:
    """Returns what `decode` returns, with its source and encoding."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _encoded(data[len(mark) :].decode(encoding, "replace"))
    declared_encoding = map_encoding_to_html5(declared, fallback_utf8=False) if declared else None
    if declared_encoding and (decoded := _try(data, declared_encoding)) is not None:
        return decoded
    own_encoding = _declared_in(data)
    if own_encoding and own_encoding != declared_encoding and (decoded := _try(data, own_encoding)) is not None:
        return decoded
    # Text whose letters beyond ASCII are UTF-8 is nothing else, however short, and uchardet needs more to be sure.
    # ISO-2022-JP and UTF-16 may look like it, by their escapes and zeros.
    if b"\x1b" not in data and b"\0" not in data and (decoded := _utf8(data)) is not None:
        return decoded
    for guess in (_guessed(data), "utf-8"):
        if guess and (decoded := _try(data, guess)) is not None:
            return decoded
    return _encoded(data.decode("windows-1252", "replace"), "cp1252")  # it decodes anything


def _declared_in(data: bytes) -> str | None:
    """Returns the encoding that a page's meta tag or XML declaration names, or None."""
    encoding: str | None = detect_encoding(_UTF_32 + data[:_PRESCAN], from_html_meta=True, html5_compatible=False)
    if encoding == "utf-32":
        declared = _XML_ENCODING.match(data, 0, _PRESCAN)
        encoding = map_encoding_to_html5(declared[1].decode("ascii"), fallback_utf8=False) if declared else None
    # A declaration that is readable as ASCII is not in UTF-16, whatever it names: the standard uses UTF-8 then.
    return "utf-8" if encoding and encoding.startswith("utf-16") else encoding


def _guessed(data: bytes) -> str | None:
    """Returns the result of frequency analysis, if it is an encoding of the standard."""
    found: str | None = detect_encoding(data, html5_compatible=False)
    # resiliparse's table of the standard's names lacks uchardet's name for Korean, and would return UTF-8.
    if found is None or found in _WIDER.values():
        return found
    standard: str | None = map_encoding_to_html5(found, fallback_utf8=False)
    return standard


def _try(data: bytes, encoding: str) -> Text | None:
    """Decodes `data` from `encoding`; returns None where the bytes contradict it."""
    if encoding == "utf-8" and (found := _utf8(data)) is not None:
        return found
    wider = _WIDER.get(encoding, encoding)
    try:
        lenient: str = data.decode(wider, "replace")
    except (UnicodeError, LookupError):
        return None
    if lenient.count("\ufffd") > max(1, _TOLERATED * len(data)):
        return None
    return _encoded(lenient, "utf-8" if wider.startswith("utf-16") else _WRITTEN.get(encoding, wider))


def _utf8(data: bytes) -> Text | None:
    """Decodes UTF-8 with fewer damaged characters than valid ones beyond ASCII; returns None for other bytes.

    Pages in other encodings, read as UTF-8, have 0 (alphabets) to 32 per cent (Japanese) valid characters.
    """
    try:
        return Text(data.decode("utf-8"), data, "utf-8")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    damaged = text.count("\ufffd") - data.count(b"\xef\xbf\xbd")
    beyond = len(text) - len(data.translate(None, _BEYOND_ASCII))
    return _encoded(text) if 2 * damaged < beyond else None


def _encoded(text: str, encoding: str = "utf-8") -> Text:
    return Text(text, text.encode("utf-8", "surrogatepass"), encoding)
