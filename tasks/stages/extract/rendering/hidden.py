"""Finds and removes what a browser does not show: hidden elements, icons, labels for screen readers, readings of ruby.

Reads and changes elements of a parsed page, in document order.
"""

import re

from resiliparse.parse.html import ElementNode, HTMLTree

from tasks.stages.extract.rendering.node_text import TextReader
from tasks.stages.extract.rendering.short_texts import keep_short
from tasks.stages.extract.rendering.source import WIDE

HIDDEN = (
    "[hidden]",
    '[style*="play:none" i]',
    '[style*="play: none" i]',
    '[style*="visib" i]',
    '[aria-hidden="true"]:not(svg, :empty)',
    'span[class*="sr-only"]',
    "span.visually-hidden",
    "span.screen-reader-text",
    "span.mw-editsection",
    "span.mw-cite-backlink",
)
"""Selectors of elements that may be hidden, and of links of wikis that edit a section or lead back to a footnote."""
_READINGS = "rt, rp, rtc"
MOST_NODES = 20_000
"""Elements of a page that the rules look at."""

_NOT_DISPLAYED = re.compile(r"(?i)(?:^|;)\s*+(?:display\s*+:\s*+none|visibility\s*+:\s*+(?:hidden|collapse))\b")
# Shown as soon as a reader searches for its words (HTML Living Standard, section 6.1).
UNTIL_FOUND = "until-found"
"""Value of `hidden` of an element that a search in the page shows."""
_NEVER_REMOVED = frozenset(("html", "body", "main", "article"))
_HEADING_NAMES = ("h1", "h2", "h3", "h4", "h5", "h6")
_HEADINGS = ", ".join(_HEADING_NAMES)
_HAS_READING = re.compile(f"[{WIDE}\uac00-\ud7a3]")
_WIKI_CONTROLS = re.compile(r"(?:^|\s)mw-(?:editsection|cite-backlink)(?:\s|$)")
_READER_CLASSES = re.compile(r"(?:^|[\s_-])(?:sr-only|visually-hidden|screen-reader-text)(?:\s|$)")
# A panel of tabs, an accordion, a spoiler: the reader opens it, and it may have the steps of a recipe.
_PANEL = re.compile(
    r"(?i)(?:^|[\s_-])(?:tabs?|tab-?(?:panel|pane|content)s?|accordions?|collaps\w{0,8}|panels?|faqs?|spoilers?"
    r"|toggle\w{0,8}|expand\w{0,8}|readmore|more)(?:[\s_-]|$)"
)
_PANEL_ATTRIBUTES = ("class", "id", "role")
# Longer texts for screen readers may be the only text of a chart or a table.
_MOST_LABEL = 80
# A hidden element with so many characters may be an article that a script reveals: it stays if it has half of the text.
_LONG, _REVEALED_SHARE = 500, 0.5
_MOST_LONG = 50
# Pictures that scripts and style sheets draw with letters: arrows, shapes, dingbats, private use, link signs.
_ICON = re.compile("[#×¶§†‹›«»•·|\\s\u2190-\u21ff\u2300-\u23ff\u2500-\u27bf\u2b00-\u2bff\ue000-\uf8ff\U0001f517]*+")
_ICON_CLASS = re.compile(
    r"(?i)(?:^|[\s_-])(?:icons?|fa|fas|far|fab|glyphicon|material-(?:icons|symbols)[\w-]*)(?:[\s_-]|$)"
)
_LIGATURE = re.compile(r"[a-z0-9_]{1,40}")


class Shown:
    """Decides which elements of a page are hidden, and removes them; elements come in document order."""

    def __init__(self, tree: HTMLTree, reader: TextReader) -> None:
        self.tree = tree
        self.changed = False
        self._reader = reader
        self._removed: ElementNode | None = None
        self._long = 0
        self._all = -1

    def is_removed(self, node: ElementNode) -> bool:
        """Returns whether an element is in one that was removed: then it follows it in document order."""
        return self._removed is not None and self._removed.contains(node)

    def remove(self, node: ElementNode) -> None:
        """Removes an element from the page."""
        around = node.previous_sibling, node.next_sibling
        node.remove()
        keep_short(*around)
        self._removed, self.changed = node, True

    def remove_readings(self, ruby: ElementNode) -> None:
        """Removes the readings of a Chinese, Japanese or Korean base, and the parentheses around them."""
        if not _HAS_READING.search(self._reader.text(ruby)):
            return
        for reading in ruby.query_selector_all(_READINGS)[:MOST_NODES]:
            if not self.is_removed(reading):
                self.remove(reading)

    def hides(self, node: ElementNode) -> bool:
        """Returns whether a browser does not show an element, or shows an icon in its place."""
        if node.local_name in _NEVER_REMOVED or self._reader.is_spent:
            return False
        hidden = node.get_attribute("hidden")
        style = node.get_attribute("style")
        if hidden is not None or (style and _NOT_DISPLAYED.search(style)):
            text = self._reader.text(node)
            return bool(text) and not text.isspace() and not _is_panel(node) and not self._is_revealed(node, text)
        names = node.get_attribute("class") or ""
        if node.get_attribute("aria-hidden") == "true" and _is_icon(self._reader.text(node), names):
            return True
        if _WIKI_CONTROLS.search(names):
            return True
        return bool(names) and bool(_READER_CLASSES.search(names)) and _is_label(node, self._reader.text(node))

    def _is_revealed(self, node: ElementNode, text: str) -> bool:
        """Returns whether a hidden element is so large a part of the page that a script must reveal it."""
        if len(text) < _LONG:
            return False
        self._long += 1
        if self._long > _MOST_LONG:
            return True
        if self._all < 0:
            self._all = len(self.tree.body.inner_text) if self.tree.body is not None else 0
        return len(node.inner_text) > _REVEALED_SHARE * self._all


def _is_panel(node: ElementNode) -> bool:
    return any(_PANEL.search(node.get_attribute(name) or "") for name in _PANEL_ATTRIBUTES)


def _is_icon(text: str, names: str) -> bool:
    if not text or text.isspace():
        return False
    return bool(_ICON.fullmatch(text)) or bool(_ICON_CLASS.search(names) and _LIGATURE.fullmatch(text.strip()))


def _is_label(node: ElementNode, text: str) -> bool:
    """Returns whether a text for screen readers is a short label and no heading."""
    if len(text) > _MOST_LABEL or node.local_name in _HEADING_NAMES:
        return False
    if node.first_element_child is not None and node.query_selector(_HEADINGS) is not None:
        return False
    parent = node.parent
    is_title = parent is not None and (parent.node_name or "").lower() in _HEADING_NAMES
    return not is_title or bool(node.previous_sibling or node.next_sibling)
