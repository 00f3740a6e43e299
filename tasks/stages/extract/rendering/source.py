"""Rewrites the source of a page before it is parsed: noscript elements, line breaks between Chinese characters.

Reads and returns the source of one page. Every step is linear in its length.
"""

import re
from collections.abc import Iterable

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
# Of these letters and marks no Chinese or Japanese text of some pages lacks all; shorter pages are searched anyway.
_SMALL = 20_000
_WIDE_MARKS = "。、，的の"
_INLINE = "</?(?:a|abbr|b|big|cite|em|font|i|mark|q|s|small|span|strong|sub|sup|time|u|wbr)(?:\\s[^<>]*+)?+>"
_SEGMENT_BREAK = re.compile(f"(?i)([{WIDE}])((?:[ \\t]|{_INLINE})*+)[\\r\\n]((?:\\s|{_INLINE})*+)(?=[{WIDE}])")
_WITH_LAYOUT = re.compile(r"(?i)<(pre|textarea|script|style|listing|xmp)\b[^<]*+(?:<(?!/\1\b)[^<]*+)*+")
_SPACES = re.compile(r"(<[^<>]*+>)|\s++")


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
    lower = source.lower()
    at, size = lower.find(_START), 0
    while at >= 0:
        end = lower.find(_END, at)
        if end < 0 or b"<!" in (inside := lower[at + len(_START) : end]):
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
        at = lower.find(_START, end)
    return True


def _noscript_spans(source: bytes) -> list[tuple[int, int, int, int]]:
    """Returns for each noscript element where it begins, where its content begins and ends, and where it ends."""
    spans: list[tuple[int, int, int, int]] = []
    at, last = 0, source.lower().rfind(_START)
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
    if html.isascii() or (len(html) > _SMALL and not any(mark in html for mark in _WIDE_MARKS)):
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
