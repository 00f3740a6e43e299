"""Character encoding detection and decoding of a page, in the order of the HTML standard.

The order is that of the HTML Living Standard, section 13.2.3.2 "Determining the character encoding": byte order mark,
charset of the transport, meta tag or XML declaration of the page, UTF-8 if the bytes are valid, frequency analysis.
Encodings that are not in the standard (such as UTF-7) are not supported. One deviation from the standard: a declaration
that the bytes clearly contradict is ignored, where a browser would show replacement characters.
"""

import codecs
import re
from typing import NamedTuple

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_BE, "utf-16-be"), (codecs.BOM_UTF16_LE, "utf-16-le"))

# With this mark prepended, resiliparse returns UTF-32 for a page without a meta tag. No tag can name UTF-32, because
# the standard has no such label. Without the mark resiliparse would return a guess in place of a declaration.
_UTF_32 = codecs.BOM_UTF32_LE
_PRESCAN = 1024

_XML_ENCODING = re.compile(rb"<\?xml[^>]{0,200}?\bencoding\s{0,20}=\s{0,20}[\"']([A-Za-z0-9_.:-]{1,40})[\"']")

# Labels that cover more characters in the Encoding Standard (WHATWG, section 4.2) than Python's codec of that name.
_WIDER = {
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "iso8859-11": "cp874",
}

# Python's codec for encodings whose encoder in the standard covers fewer characters than the decoder.
_ENCODERS = {"gbk": "gbk", "big5": "cp950"}

_BEYOND_ASCII = bytes(range(0x80, 0x100))

# A wrong declaration fails at every accented letter. One damaged character at the end of a truncated page does not make
# a declaration wrong. The threshold is between these two cases, which are far apart.
_MAX_DAMAGED_SHARE = 0.001


class DecodedText(NamedTuple):
    """A payload as text.

    Attributes:
        text: the decoded text.
        source: the text in UTF-8, in most cases the input bytes themselves.
        encoding: Python's name of the encoding of queries in the page's links: the page's own, or UTF-8 for UTF-16
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
        The text. A declaration that contradicts the bytes is ignored; undecodable characters become U+FFFD.
    """
    return decode_with_source(data, declared).text


def decode_with_source(data: bytes, declared: str | None = None) -> DecodedText:
    """Like `decode`, but returns the text with its source and encoding."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _decoded_text(data[len(mark) :].decode(encoding, "replace"))
    declared_encoding = map_encoding_to_html5(declared, fallback_utf8=False) if declared else None
    if declared_encoding and (decoded := _decode_as(data, declared_encoding)) is not None:
        return decoded
    own_encoding = _declared_encoding(data)
    if own_encoding and own_encoding != declared_encoding and (decoded := _decode_as(data, own_encoding)) is not None:
        return decoded
    # Text with valid UTF-8 beyond ASCII is UTF-8, even if it is too short for uchardet. ISO-2022-JP and UTF-16 may look
    # like ASCII, but they contain escapes or zeros.
    if b"\x1b" not in data and b"\0" not in data and (decoded := _utf8(data)) is not None:
        return decoded
    for guess in (_detect(data), "utf-8"):
        if guess and (decoded := _decode_as(data, guess)) is not None:
            return decoded
    return _decoded_text(data.decode("windows-1252", "replace"), "cp1252")  # decodes any bytes


def _declared_encoding(data: bytes) -> str | None:
    """Returns the encoding named by a page's meta tag or XML declaration, or None."""
    encoding: str | None = detect_encoding(_UTF_32 + data[:_PRESCAN], from_html_meta=True, html5_compatible=False)
    if encoding == "utf-32":
        declared = _XML_ENCODING.match(data, 0, _PRESCAN)
        encoding = map_encoding_to_html5(declared[1].decode("ascii"), fallback_utf8=False) if declared else None
    # A declaration that is readable as ASCII is not in UTF-16; if it names UTF-16, the standard uses UTF-8.
    return "utf-8" if encoding and encoding.startswith("utf-16") else encoding


def _detect(data: bytes) -> str | None:
    """Returns the result of frequency analysis if it is an encoding of the standard, else None."""
    encoding: str | None = detect_encoding(data, html5_compatible=False)
    # resiliparse's table of the standard's names lacks uchardet's name for Korean, and would return UTF-8.
    if encoding is None or encoding in _WIDER.values():
        return encoding
    standard: str | None = map_encoding_to_html5(encoding, fallback_utf8=False)
    return standard


def _decode_as(data: bytes, encoding: str) -> DecodedText | None:
    """Decodes `data` from `encoding`; returns None if the bytes contradict it."""
    if encoding == "utf-8" and (decoded := _utf8(data)) is not None:
        return decoded
    wider = _WIDER.get(encoding, encoding)
    try:
        lenient: str = data.decode(wider, "replace")
    except (UnicodeError, LookupError):
        return None
    if lenient.count("\ufffd") > max(1, _MAX_DAMAGED_SHARE * len(data)):
        return None
    return _decoded_text(lenient, "utf-8" if wider.startswith("utf-16") else _ENCODERS.get(encoding, wider))


def _utf8(data: bytes) -> DecodedText | None:
    """Decodes UTF-8 if fewer characters beyond ASCII are damaged than valid, else returns None.

    Pages in other encodings, read as UTF-8, have from 0% (alphabets) to 32% (Japanese) valid characters.
    """
    try:
        return DecodedText(data.decode("utf-8"), data, "utf-8")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    damaged = text.count("\ufffd") - data.count(b"\xef\xbf\xbd")
    beyond = len(text) - len(data.translate(None, _BEYOND_ASCII))
    return _decoded_text(text) if 2 * damaged < beyond else None


def _decoded_text(text: str, encoding: str = "utf-8") -> DecodedText:
    return DecodedText(text, text.encode("utf-8", "surrogatepass"), encoding)
