"""Saves the shortest texts of a page from resiliparse, which takes them for the glyphs of an icon font.

Its main text drops each text node, and each element, that has three bytes of UTF-8 of which the last is not ASCII: not
only a character of the private use area, as intended, but a dash, a quotation mark, a euro sign, a Chinese or Thai
character, and two letters such as "o\u00f9". These get an invisible character, the word joiner, which `main_text` and
`tasks.formats.documents.text.clean` remove. Glyphs of the private use area, and arrows and shapes that stand alone in
an element, stay as they are and are dropped.
"""

import re

from resiliparse.parse.html import HTMLTree, Node

WORD_JOINER = "\u2060"

# Two characters of which the first is ASCII, or one that is neither a sign nor invisible, private or a space.
_TEXT = (
    "(?:[!-~][\u0080-\u07ff]|[\u0800-\u1fff\u2010-\u2021\u2024-\u2027\u2030-\u2038\u203b-\u205e\u2070-\u218f\u2200-\u22ff"
    "\u2e80-\u2fff\u3001-\ud7ff\uf900-\ufefe\uff00-\uffef])"
)
_SIGN = "[\u2022\u2023\u2039\u203a\u2190-\u21ff\u2300-\u27bf\u2b00-\u2bff]"
_SHORT = re.compile(f"\\s*+{_TEXT}\\s*+")
_MOST_SPACES = 64
# In markup; a sign counts between two inline elements, as in "File > Save".
_SHORT_IN_MARKUP = re.compile(f">\\s*+(?:{_TEXT}|({_SIGN})(?=\\s*+<\\w))(?=\\s*+<)")


def keep_characters(tree: HTMLTree) -> HTMLTree:
    """Returns a tree of which resiliparse keeps the shortest texts; the same one if there are none."""
    if tree.document is None:
        return tree
    source = tree.document.html
    if source.isascii():
        return tree
    kept = _SHORT_IN_MARKUP.sub(_with_joiner, source)
    return tree if kept == source else HTMLTree.parse(kept)


def keep_short(*nodes: Node | None) -> None:
    """Makes resiliparse keep text nodes with the shortest texts, whose neighbors were removed or replaced."""
    for node in nodes:
        if node is None or node.node_name != "#text":
            continue
        text = node.text or ""
        if len(text) <= _MOST_SPACES and not text.isascii() and _SHORT.fullmatch(text):
            node.text = text + WORD_JOINER


def _with_joiner(found: re.Match[str]) -> str:
    start = found.start()
    if found[1] and found.string[found.string.rfind("<", 0, start) + 1] != "/":
        return found[0]
    return found[0] + WORD_JOINER
