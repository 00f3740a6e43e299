"""Elements of an untrusted XML file, one at a time, whatever is wrong with the file.

Used by sitemap and feed. What makes XML dangerous is switched off or refused: no DTD is loaded, nothing is fetched,
entities stay unexpanded, a file that declares some is not read, libxml2's own limits on nesting (256) and on the
length of one text (10 MB) hold, and what was read is dropped at once. What real files get wrong (bare ampersands, HTML
entities, wrong bytes, a cut end) is read over. 50,000 URLs take 0.7 s.
"""

import re
from collections.abc import Collection, Iterator
from typing import Any

from lxml import etree

_CHUNK = 64 << 10
_MAX_CHILDREN = 1000
_MAX_AMPERSANDS = 500_000
_BARE_AMPERSAND = re.compile(rb"&(?!#?\w{1,32};)")


class XmlStream:
    """Reads one file; to be iterated over once.

    Args:
        body: the file.
        roots: local names the outermost element may have, in any namespace; with another one nothing is read.
        items: local names of the elements to yield.

    Attributes:
        root: local name of the outermost element; "" before it came, or if it is none of `roots`.
        complete: whether the file was read up to the end of its outermost element.
    """

    def __init__(self, body: bytes, roots: Collection[str], items: Collection[str]) -> None:
        # UTF-16 is left as it is, and so is what is made of ampersands.
        bare = 0 < body.count(b"&") <= _MAX_AMPERSANDS and b"\0" not in body[:4]
        self._body = _escaped(body) if bare else body
        self._roots = roots
        self._items = items
        self._top: Any = None
        self.root = ""
        self.complete = False

    def __iter__(self) -> Iterator[Any]:
        """Yields wanted elements as they end; each is emptied when the next one is asked for."""
        parser = etree.XMLPullParser(
            events=("start", "end"),
            tag=[f"{{*}}{name}" for name in (*self._roots, *self._items)],
            recover=True,
            resolve_entities=False,
            no_network=True,
            load_dtd=False,
            huge_tree=False,
            remove_comments=True,
            remove_pis=True,
        )
        try:
            for at in range(0, len(self._body), _CHUNK):
                parser.feed(self._body[at : at + _CHUNK])
                for event, element in parser.read_events():
                    if not self.root and not self._begins(element):
                        return
                    if event == "end" and local_name(element) in self._items:
                        yield element
                        element.clear()
                    elif event == "end" and element is self._top:
                        self.complete = True
                        return
                if self.root:
                    self._forget(self._top)
        except etree.XMLSyntaxError:
            return

    def _begins(self, element: Any) -> bool:
        """Takes in the outermost element; returns False if the file is none of the wanted kind or not to be trusted."""
        declared = element.getroottree().docinfo.internalDTD
        if declared is not None and any(True for _ in declared.iterentities()):
            return False
        if element.getparent() is None and local_name(element) in self._roots:
            self.root = local_name(element)
            self._top = element
        return bool(self.root)

    def _forget(self, node: Any) -> None:
        """Drops what is finished; an item that is still open keeps its parts, unless they are too many."""
        while len(node) and (local_name(node) not in self._items or len(node) > _MAX_CHILDREN):
            del node[:-1]
            node = node[0]


def _escaped(body: bytes) -> bytes:
    """Escapes bare ampersands, which the parser would drop together with the parameter's name behind them."""
    first, *others = body.split(b"<![CDATA[")
    parts = [_BARE_AMPERSAND.sub(b"&amp;", first)]
    for other in others:
        literal, end, rest = other.partition(b"]]>")
        parts.append(literal + end + _BARE_AMPERSAND.sub(b"&amp;", rest))
    return b"<![CDATA[".join(parts)


def local_name(element: Any) -> str:
    """Returns the name of an element without its namespace; "" for what is no element."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def text_of(parent: Any, name: str) -> str:
    """Returns the text of the first child with that local name; "" if there is none or it is not plain text."""
    child = parent.find(f"{{*}}{name}")
    return (child.text or "").strip() if child is not None and not len(child) else ""
