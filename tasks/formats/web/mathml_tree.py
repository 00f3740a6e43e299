"""Elements of a formula in MathML, read from the markup that a parser of HTML serializes.

Every element is closed there, and "<" and ">" in attributes are escaped. Reading the serialization is ten times as fast
as visiting the nodes of the parser.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_DEPTH = 100
"""Nesting from which elements are read as their text; formulas of real pages have less than 40 levels."""
MAX_ELEMENTS = 20_000
"""Elements of a formula that is still read; a matrix of 50 times 50 has a third."""
MAX_LENGTH = 2_000_000
"""Characters of its markup."""
MAX_TEXT = 100_000
"""Characters of its text that is seen; TeX of this length is written nowhere."""

_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/<>]*+)([^<>]*+)>|<!--(?:[^-]|-(?!->))*+-->|([^<]++)|<")
_ATTRIBUTE = re.compile(r'([\w:-]++)="([^"]*+)"')
_UNSEEN = frozenset(("annotation", "annotation-xml", "script", "style", "template"))
_TOKENS = frozenset(("annotation", "mi", "mn", "mo", "ms", "mtext"))
_VOID = frozenset(("br", "hr", "img", "input", "wbr"))
_SPACE = re.compile(r"\s++")


@dataclass(slots=True)
class Element:
    """An element; `content` has elements and text, and `markup` its attributes."""

    name: str
    markup: str = ""
    content: list["Element | str"] = field(default_factory=list)

    @property
    def children(self) -> list["Element"]:
        """The elements in it."""
        return [one for one in self.content if isinstance(one, Element)]

    def get(self, name: str) -> str:
        """Returns an attribute in lower case; "" if it is absent."""
        return self.exact(name).strip().lower()

    def exact(self, name: str) -> str:
        """Returns an attribute; "" if it is absent."""
        if name not in self.markup:
            return ""
        return html.unescape(dict(_ATTRIBUTE.findall(self.markup)).get(name, ""))

    @property
    def text(self) -> str:
        """All text in the element; white space is collapsed, and dropped at the ends."""
        return _SPACE.sub(lambda run: "\xa0" if "\xa0" in run[0] else " ", "".join(self.texts())).strip(" ")

    def texts(self) -> Iterator[str]:
        """Yields the pieces of text in the element, as they are."""
        for one in self.content:
            if isinstance(one, str):
                yield one
            elif one.name not in _UNSEEN:
                yield from one.texts()


def parse(markup: str) -> Element | None:
    """Returns the root element; None if there is none, or if the formula is too large."""
    if len(markup) > MAX_LENGTH:
        return None
    root = Element("")
    around, number, deeper, seen = [root], 0, 0, 0
    for match in _TAG.finditer(markup):
        closing, name, attributes, text = match.groups()
        if text:
            seen += len(text) if around[-1].name not in _UNSEEN else 0
            if around[-1].name in _TOKENS or not text.isspace():
                around[-1].content.append(html.unescape(text))
        elif closing and deeper:
            deeper -= 1
        elif closing:
            del around[max(1, len(around) - 1) :]
        elif name:
            number += 1
            element = Element(name.lower().rpartition(":")[2], attributes)
            is_open = element.name not in _VOID and not attributes.endswith("/")
            if deeper or len(around) > MAX_DEPTH:
                deeper += is_open
            else:
                around[-1].content.append(element)
                around += [element] * is_open
    first = root.children[:1]
    return first[0] if first and number <= MAX_ELEMENTS and seen <= MAX_TEXT else None
