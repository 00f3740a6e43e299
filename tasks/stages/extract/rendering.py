"""Makes the tree of a page show what a browser shows, for all extractors alike.

Reads the source and the parsed tree of one page. `as_scripted` and `join_lines` rewrite the source before it is parsed;
`render` changes the tree: hidden elements go, readings of ruby go, raised and lowered text keeps its meaning
(`raised_text`), code keeps its lines (`code_listings`).

Most pages need none of this. One CSS query finds the elements of all rules: it takes as long as a search of the source
for two or three words. Every step is linear in the length of the page.
"""

import re
from collections.abc import Iterable

from resiliparse.parse.html import ElementNode, HTMLTree

from tasks.stages.extract.code_listings import LISTINGS, clean_listings, is_listing
from tasks.stages.extract.raised_text import raise_text
from tasks.stages.extract.short_texts import keep_short

# Raw text of a browser that runs scripts (HTML Living Standard, sections 13.2.5 and 13.2.6.4): elements in which no tag
# begins but their own end tag. `noscript` is one of them; resiliparse reads its content as markup.
_RAW_TEXT = re.compile(
    rb"(?i)<(?:!--|(script|style|textarea|title|xmp|iframe|noembed|noframes|plaintext|noscript)(?=[\s/>]))"
)
_COMMENT_END = re.compile(rb"--!?>")
_TAG_REST = re.compile(rb"""(?>[^>"'=]++|=\s*+(?>"[^"]*+"|'[^']*+')?+|["'])*+>""")
_ANY_TAG = re.compile(rb"<[^>]*+>")
_NOSCRIPT, _START, _END = b"noscript", b"<noscript", b"</noscript"
_SIMPLE_TAG = re.compile(
    rb"<(/?)(a|aside|b|br|center|div|em|figure|form|h[1-6]|i|iframe|img|input|li|link|meta|p|picture|section|small|"
    rb"source|span|strong|style|ul|)\b"
)
_VOID = frozenset((b"br", b"img", b"input", b"link", b"meta", b"source"))
# A page whose text is in its noscript elements: so many bytes of text there, and less than a fifth of it elsewhere. A
# shorter text only says that the page needs scripts.
_FALLBACK_BYTES, _FALLBACK_SHARE = 500, 0.2

# Characters of East Asian Width W, F or H (UAX #11) of Chinese and Japanese; Hangul and emoji are wide as well, but
# Korean has spaces between words.
WIDE = (
    "\u2e80-\u303e\u3041-\u3130\u3190-\u31ff\u3220-\u325f\u3280-\ua4cf\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff9f"
    "\uffe0-\uffe6\U00020000-\U0003fffd"
)
# Of these letters and marks no Chinese or Japanese text of some lines lacks all.
_WIDE_MARKS = "。、，的の"
_INLINE = "</?(?:a|abbr|b|big|cite|em|font|i|mark|q|s|small|span|strong|sub|sup|time|u|wbr)(?:\\s[^<>]*+)?+>"
_SEGMENT_BREAK = re.compile(f"(?i)([{WIDE}])((?:[ \\t]|{_INLINE})*+)[\\r\\n]((?:\\s|{_INLINE})*+)(?=[{WIDE}])")
_WITH_LAYOUT = re.compile(r"(?i)<(pre|textarea|script|style|listing|xmp)\b[^<]*+(?:<(?!/\1\b)[^<]*+)*+")
_SPACES = re.compile(r"(<[^<>]*+>)|\s++")

_SHOWN_ANYWAY = ":is(.katex, math, mjx-container, .mwe-math-element)"
_HIDDEN = (
    "[hidden]",
    '[style*="play:none"]',
    '[style*="play: none"]',
    '[style*="visib"]',
    '[aria-hidden="true"]:not(svg, :empty)',
    'span[class*="sr-only"]',
    "span.visually-hidden",
    "span.screen-reader-text",
)
_READINGS = "rt, rp, rtc"
_RAISED_NAMES = ("sup", "sub")
_CANDIDATES = ", ".join((*_HIDDEN, "ruby", *_RAISED_NAMES, LISTINGS))
_MOST_CANDIDATES = 20_000

_NOT_DISPLAYED = re.compile(r"(?i)(?:^|;)\s*+(?:display\s*+:\s*+none|visibility\s*+:\s*+(?:hidden|collapse))\b")
# Shown as soon as a reader searches for its words (HTML Living Standard, section 6.1).
_UNTIL_FOUND = "until-found"
_NEVER_REMOVED = frozenset(("html", "body", "main", "article"))
_HEADING_NAMES = ("h1", "h2", "h3", "h4", "h5", "h6")
_HEADINGS = ", ".join(_HEADING_NAMES)
_HAS_READING = re.compile(f"[{WIDE}\uac00-\ud7a3]")
_READER_CLASSES = re.compile(r"(?:^|[\s_-])(?:sr-only|visually-hidden|screen-reader-text)(?:\s|$)")
# Longer texts for screen readers may be the only text of a chart or a table.
_MOST_LABEL = 80
# A hidden element with so many characters may be an article that a script reveals: it stays if it has half of the text.
_LONG, _REVEALED_SHARE = 500, 0.5
_MOST_LONG = 50
# Nested elements contain each other's text; more characters than these are only read on a page made for it.
_MOST_READ = 20_000_000
# Pictures that scripts and style sheets draw with letters: arrows, shapes, dingbats, private use, link signs.
_ICON = re.compile("[#×¶§†‹›«»•·|\\s\u2190-\u21ff\u2300-\u23ff\u2500-\u27bf\u2b00-\u2bff\ue000-\uf8ff\U0001f517]*+")
_ICON_CLASS = re.compile(
    r"(?i)(?:^|[\s_-])(?:icons?|fa|fas|far|fab|glyphicon|material-(?:icons|symbols)[\w-]*)(?:[\s_-]|$)"
)
_LIGATURE = re.compile(r"[a-z0-9_]{1,40}")


def as_scripted(source: bytes) -> bytes:
    """Returns the source of a page without its noscript elements, which a browser that runs scripts does not show.

    Such an element ends at the next `</noscript`, whatever is in it (HTML Living Standard, section 13.2.6.4, "noscript"
    with the scripting flag): an unclosed comment, table or frame in it does not swallow the rest of the page. One
    without an end tag has the rest of the page. Of a page whose text is in these elements only the tags are removed.

    Args:
        source: the page in UTF-8.
    """
    if _is_harmless(source):
        return source
    spans = _noscript_spans(source)
    if not spans:
        return source
    shown, insides, at = [], [], 0
    for start, inner, inner_end, end in spans:
        shown.append(source[at:start])
        insides.append(source[inner:inner_end])
        at = end
    shown.append(source[at:])
    rest = b"".join(shown)
    if sum(map(len, insides)) >= _FALLBACK_BYTES and _is_fallback(insides, rest):
        pairs = zip(shown, [*insides, b""], strict=True)
        return b"".join(part for pair in pairs for part in pair)
    return rest


def _is_harmless(source: bytes) -> bool:
    """Returns whether a parser that reads noscript elements as markup finds their ends as well, as it mostly does.

    Then their content has only elements that are closed in order, and none with a parsing of its own, so that the
    extractors leave out these elements and nothing else.
    """
    at, size = source.find(_START), 0
    if at < 0 and _NOSCRIPT not in source.lower():
        return True
    while at >= 0:
        end = source.find(_END, at)
        if end < 0 or b"<!" in (inside := source[at + len(_START) : end]):
            return False
        size += len(_ANY_TAG.sub(b"", inside))
        open_tags: list[bytes] = []
        for closing, name in _SIMPLE_TAG.findall(inside):
            if not name or (closing and (not open_tags or open_tags.pop() != name)):
                return False
            if not closing and name not in _VOID:
                open_tags.append(name)
        if open_tags or size >= _FALLBACK_BYTES:
            return False
        at = source.find(_START, end)
    return True


def _noscript_spans(source: bytes) -> list[tuple[int, int, int, int]]:
    """Returns for each noscript element where it begins, where its content begins and ends, and where it ends."""
    spans: list[tuple[int, int, int, int]] = []
    at, last = 0, max(source.rfind(b"<noscript"), source.rfind(b"<NOSCRIPT"))
    if last < 0:
        last = source.lower().rfind(b"<noscript")
    while at <= last and (found := _RAW_TEXT.search(source, at)):
        start, name = found.start(), found[1]
        if not name:
            closed = _COMMENT_END.search(source, start + 2)
            at = closed.end() if closed else len(source)
            continue
        opening = source.rfind(b"<", at, start)
        if opening >= 0 and source[opening + 1 : opening + 2].isalpha() and source.find(b">", opening, start) < 0:
            at = found.end()  # in the value of an attribute
            continue
        tag = _TAG_REST.match(source, found.end())
        inner = tag.end() if tag else len(source)
        inner_end, at = _end_of(name.lower(), source, inner)
        if name.lower() == _NOSCRIPT:
            spans.append((start, inner, inner_end, at))
    return spans


def _end_of(name: bytes, source: bytes, at: int) -> tuple[int, int]:
    """Returns where the end tag of an element begins and ends."""
    closing = re.compile(rb"(?i)</" + name + rb"(?=[\s/>])").search(source, at) if name != b"plaintext" else None
    if not closing:
        return len(source), len(source)
    tag = _TAG_REST.match(source, closing.end())
    return closing.start(), tag.end() if tag else len(source)


def _is_fallback(insides: Iterable[bytes], rest: bytes) -> bool:
    inside = _text_bytes(b" ".join(insides))
    return inside >= _FALLBACK_BYTES and _text_bytes(rest) < _FALLBACK_SHARE * inside


def _text_bytes(source: bytes) -> int:
    """Returns the number of bytes of text without white space; those of comments, scripts and the like do not count."""
    parts, at = [], 0
    while found := _RAW_TEXT.search(source, at):
        parts.append(source[at : found.start()])
        if found[1]:
            at = _end_of(found[1].lower(), source, found.end())[1]
        else:
            closed = _COMMENT_END.search(source, found.start() + 2)
            at = closed.end() if closed else len(source)
    parts.append(source[at:])
    return len(b"".join(_ANY_TAG.sub(b" ", b"".join(parts)).split()))


def join_lines(html: str) -> str:
    """Returns the source of a page without the line breaks between two Chinese or Japanese characters.

    CSS Text Module Level 3, section 4.1.3: a line break in the source becomes nothing, and not a space, between two
    characters whose East Asian Width is wide, full-width or half-width and of which none is Hangul; white space beside
    it goes with it (section 4.1.1), and the bounds of inline elements do not matter. Two links with a line break
    between them stay two words, as most are items of a menu. Preformatted text is left as it is.
    """
    if not any(mark in html for mark in _WIDE_MARKS):
        return html
    parts: list[str] = []
    at = 0
    for exact in _WITH_LAYOUT.finditer(html):
        parts += (_SEGMENT_BREAK.sub(_joined, html[at : exact.start()]), exact[0])
        at = exact.end()
    parts.append(_SEGMENT_BREAK.sub(_joined, html[at:]))
    return "".join(parts)


def _joined(found: re.Match[str]) -> str:
    before, tags, more = found.groups()
    tags += more
    if "</a" in tags and "<a" in tags:
        return found[0]
    return before + (_SPACES.sub(r"\1", tags) if tags else "")


def render(tree: HTMLTree, source: bytes) -> bool:
    """Changes the tree of a page into what a browser shows; returns whether something was changed.

    Args:
        tree: the parsed page.
        source: the page in UTF-8, in which rules look for the words that they need.
    """
    document = tree.document
    if document is None:
        return False
    found = document.query_selector_all(_CANDIDATES)[:_MOST_CANDIDATES]
    if not found:
        return False
    formulas: set[ElementNode] = set()
    if b"math" in source or b"katex" in source or b"mjx-" in source:
        inside = f"{_SHOWN_ANYWAY} :is({_CANDIDATES}), {_SHOWN_ANYWAY}:is({_CANDIDATES})"
        formulas.update(document.query_selector_all(inside)[:_MOST_CANDIDATES])
    shown = _Shown(tree)
    raised: list[ElementNode] = []
    listings = False
    for node in found:
        name = node.local_name
        if node in formulas or shown.is_removed(node):
            continue
        if node.get_attribute("hidden") == _UNTIL_FOUND:
            node.remove_attribute("hidden")
        elif shown.hides(node):
            shown.remove(node)
        elif name in _RAISED_NAMES:
            raised.append(node)
        elif name == "ruby":
            shown.remove_readings(node)
        else:
            listings |= is_listing(node)
    changed = raise_text(tree, raised)
    changed |= listings and clean_listings(tree)
    return changed or shown.changed


class _Shown:
    """Decides which elements of a page are hidden, and removes them; elements come in document order."""

    def __init__(self, tree: HTMLTree) -> None:
        self.tree = tree
        self.changed = False
        self._removed: ElementNode | None = None
        self._read = self._long = 0
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
        if self._read > _MOST_READ or not _HAS_READING.search(self._text(ruby)):
            return
        for reading in ruby.query_selector_all(_READINGS)[:_MOST_CANDIDATES]:
            if not self.is_removed(reading):
                self.remove(reading)

    def hides(self, node: ElementNode) -> bool:
        """Returns whether a browser does not show an element, or shows an icon in its place."""
        if node.local_name in _NEVER_REMOVED or self._read > _MOST_READ:
            return False
        hidden = node.get_attribute("hidden")
        style = node.get_attribute("style")
        if (hidden is not None and hidden.lower() != _UNTIL_FOUND) or (style and _NOT_DISPLAYED.search(style)):
            text = self._text(node)
            return bool(text) and not text.isspace() and not self._is_revealed(node, text)
        names = node.get_attribute("class") or ""
        if node.get_attribute("aria-hidden") == "true" and _is_icon(self._text(node), names):
            return True
        return bool(names) and bool(_READER_CLASSES.search(names)) and _is_label(node, self._text(node))

    def _text(self, node: ElementNode) -> str:
        text = node.text or ""
        self._read += len(text)
        return text

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
