"""XHTML pages as HTML: what an XML parser reads in them, written for a parser of HTML.

A page of the type application/xhtml+xml is XML (HTML Living Standard, section 14): `<script src="a.js"/>` and
`<title/>` are whole elements, and CDATA is text. A parser of HTML takes these for start tags, and loses what follows.
A page that is not well-formed, or that declares entities, is left to be read as HTML. Nothing is fetched, and only the
named characters of HTML are expanded.
"""

import html.entities
import re
from collections.abc import Sequence
from html import escape
from xml.parsers import expat

_SPACE = "http://www.w3.org/1999/xhtml"
_SEPARATOR = "\n"  # in no namespace: attributes have none
# Prefixes that an HTML parser knows, or that stand for an attribute of HTML.
_ATTRIBUTE_SPACES = {
    "http://www.w3.org/XML/1998/namespace": "",
    "http://www.w3.org/1999/xlink": "xlink:",
}
_VOID = frozenset(
    (
        *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track"),
        "wbr",
    )
)
_IN_HEAD = frozenset(("base", "link", "meta", "noscript", "script", "style", "template", "title"))
# Elements whose content is no markup for a parser of HTML: with character references, and without.
_TEXT = frozenset(("title", "textarea"))
_RAW = frozenset(("script", "style"))
_UNSEEN = frozenset(("iframe", "noembed", "noframes"))
# An HTML parser would take all that follows, or their markup, for text.
_RENAMED = {"plaintext": "pre", "xmp": "pre", "listing": "pre"}

# In a script, an HTML parser would take this for its end, or for the beginning of a comment.
_MARKUP = re.compile("</|<!--")

_CDATA, _CDATA_END = b"<![CDATA[", b"]]>"
_NAMED = re.compile(rb"&([a-zA-Z]\w{0,31});")
_XML_NAMES = frozenset((b"amp", b"lt", b"gt", b"quot", b"apos"))


def html_of_xhtml(source: bytes) -> bytes | None:
    """Returns an XHTML page as HTML, in UTF-8; None if it is not well-formed XML with the root element `html`.

    The nesting stays, so the limits of HTML parsers apply to the result.

    Args:
        source: the page in UTF-8, whatever encoding it declares.

    >>> html_of_xhtml(b'<html><head><title/></head><body><br/><![CDATA[a < b]]>&eacute;</body></html>').decode()
    '<!DOCTYPE html><html><head><title></title></head><body><br>a &lt; bé</body></html>'
    """
    writer = _Writer()
    try:
        writer.parser.Parse(_with_characters(source), True)
    except (expat.ExpatError, _NotXhtmlError):
        return None
    return "".join(writer.parts).encode("utf-8", "surrogatepass")


def decoded_html(text: str, source: bytes) -> tuple[str, bytes]:
    """Returns an XHTML page as HTML, decoded and in UTF-8; as it is if it must be read as HTML.

    Args:
        text: the decoded page.
        source: the page in UTF-8.
    """
    html = html_of_xhtml(source)
    return (text, source) if html is None else (html.decode("utf-8", "surrogatepass"), html)


def _with_characters(source: bytes) -> bytes:
    """Returns a page with the named characters of HTML, which XML does not have, as character references."""
    parts, at = [], 0
    while (begin := source.find(_CDATA, at)) >= 0:
        end = source.find(_CDATA_END, begin)
        if end < 0:
            raise _NotXhtmlError
        parts += [_NAMED.sub(_character, source[at:begin]), source[begin:end]]
        at = end
    return b"".join((*parts, _NAMED.sub(_character, source[at:])))


def _character(name: re.Match[bytes]) -> bytes:
    meaning = None if name[1] in _XML_NAMES else html.entities.html5.get(f"{name[1].decode()};")
    return escape(meaning).encode("ascii", "xmlcharrefreplace") if meaning else name[0]


class _NotXhtmlError(Exception):
    """The page must be read as HTML."""


class _Writer:
    """Writes the events of an XML parser as HTML.

    Attributes:
        parser: the parser.
        parts: the HTML.
    """

    def __init__(self) -> None:
        self.parts = ["<!DOCTYPE html>"]
        self._open: list[str] = []  # names as written; "" for an element that is not
        self._left_out = 0  # open elements from the outermost that is left out
        self._raw_from = 0
        self.parser = parser = expat.ParserCreate("utf-8", _SEPARATOR)
        parser.buffer_text = True
        parser.ordered_attributes = True
        parser.specified_attributes = True  # a document type may declare long ones for every element
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.SkippedEntityHandler = self._skipped
        parser.EntityDeclHandler = self._refuse

    def _start(self, tag: str, attributes: Sequence[str]) -> None:
        space, _, name = tag.rpartition(_SEPARATOR)
        if not self._open and (name != "html" or space not in ("", _SPACE)):
            raise _NotXhtmlError
        parent = self._open[-1] if self._open else ""
        if self._left_out or parent in _TEXT | _RAW | _UNSEEN or (parent == "head" and name not in _IN_HEAD):
            self._left_out += 1
            self._open.append("")
            return
        name = _RENAMED.get(name, name)
        self._open.append(name)
        pairs = zip(attributes[::2], attributes[1::2], strict=True)
        written = [f' {known}="{escape(value)}"' for key, value in pairs if (known := _attribute(key))]
        self.parts.append(f"<{name}{''.join(written)}>")
        self._raw_from = len(self.parts)

    def _end(self, tag: str) -> None:
        name = self._open.pop()
        if self._left_out:
            self._left_out -= 1
        elif name not in _VOID:
            if name in _RAW and _MARKUP.search("".join(self.parts[self._raw_from :])):
                del self.parts[self._raw_from :]
            self.parts.append(f"</{name}>")

    def _text(self, text: str) -> None:
        inside = self._open[-1]
        if not self._left_out and inside not in _UNSEEN:
            self.parts.append(text if inside in _RAW else escape(text, quote=False))

    def _skipped(self, name: str, is_parameter: bool) -> None:
        if self._open and not is_parameter:
            self._text(f"&{name};")

    def _refuse(self, *_: object) -> None:
        raise _NotXhtmlError


def _attribute(key: str) -> str:
    """Returns the name of an attribute in HTML; "" if it has none."""
    space, _, name = key.rpartition(_SEPARATOR)
    return name if not space else _ATTRIBUTE_SPACES[space] + name if space in _ATTRIBUTE_SPACES else ""
