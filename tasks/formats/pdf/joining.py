"""Blocks of all pages as one text, with the place of each: paragraphs that go on in the next column or page are joined.

Pure functions.
"""

import re
from collections.abc import Iterator, Sequence

from tasks.formats.documents.layout import Piece
from tasks.formats.documents.text import clean
from tasks.formats.pdf.blocks import END, Block

_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_LAST = re.compile(r"([^\W\d_]+(?:-[^\W\d_]+)*)-$")
_FIRST = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_ASIDE = frozenset(("caption", "table", "footnote", "turned"))
_MOST_FLOATS = 60
_AS_LINES = frozenset(("table", "code", "contents"))
_TERMINAL = (".", "!", "?", ":", ";", "\u201d", '"', ")")
# Before these a hyphen stays where the document tells nothing: "self-" and "attention" are two words.
_PREFIXES = frozenset(
    ("self", "non", "well", "high", "low", "large", "small", "state", "open", "end", "fine", "zero", "few")
)


def joined(found: Sequence[Block]) -> tuple[str, tuple[Piece, ...]]:
    """Returns the text of a document and its pieces."""
    words = _vocabulary(found)
    texts: list[str] = []
    pieces: list[Piece] = []
    at = 0
    for chain in _chains(_footnotes_last(found)):
        before, apart = "", False
        for block in chain:
            text = clean("\n".join(block.lines) if block.kind in _AS_LINES else _flowing(block.lines, words))
            if not text:
                continue
            if before:
                apart = apart or block.kind == "formula"
                glue, cut = ("\n", False) if apart else _seam(before, text, words)
                apart = block.kind == "formula"
                if cut:
                    texts[-1] = texts[-1][:-1]
                    last = pieces[-1]
                    pieces[-1] = Piece(last.start, last.end - 1, last.kind, last.page, last.box)
                    at -= 1
            else:
                glue = "\n\n" if texts else ""
            texts += [glue, text]
            at += len(glue)
            pieces.append(Piece(at, at + len(text), block.kind, block.page, block.box))
            at += len(text)
            before = text
    return "".join(texts), tuple(pieces)


def _vocabulary(found: Sequence[Block]) -> set[str]:
    """Returns the words that stand within lines, in lower case, those with hyphens whole."""
    return {word.lower() for block in found for line in block.lines for word in _WORD.findall(_LAST.sub("", line))}


def _footnotes_last(found: Sequence[Block]) -> list[Block]:
    """Returns the blocks with the footnotes of each page behind its other blocks."""
    return sorted(found, key=lambda block: (block.page, block.kind == "footnote"))


def _chains(found: Sequence[Block]) -> Iterator[list[Block]]:
    """Yields the blocks of each paragraph; what floats between two of its parts follows it."""
    waiting = list(found)
    floats: list[Block] = []
    at = 0
    while at < len(waiting):
        chain = [waiting[at]]
        at += 1
        while chain[0].kind in ("paragraph", "item"):
            after = next((to for to in range(at, len(waiting)) if waiting[to].kind != "formula"), at)
            if after > at and _goes_on_after(chain[-1], waiting[after]):
                chain += waiting[at : after + 1]
                at = after + 1
                continue
            ahead = at
            while ahead < len(waiting) and _floats(waiting[ahead], chain[-1]) and ahead - at < _MOST_FLOATS:
                ahead += 1
            if ahead >= len(waiting) or not _goes_on(chain[-1], waiting[ahead]):
                break
            floats += waiting[at:ahead]
            chain.append(waiting[ahead])
            at = ahead + 1
        yield chain
        yield from ([one] for one in floats)
        floats = []


def _floats(block: Block, before: Block) -> bool:
    """Returns whether a block is none of the text that a paragraph belongs to, such as the labels of a figure."""
    return block.kind in _ASIDE or (block.kind != "heading" and abs(block.size - before.size) > 0.3)


def _goes_on_after(before: Block, after: Block) -> bool:
    """Returns whether a block is the rest of the paragraph before it, with displayed formulas between them.

    It is in most texts, whatever its first letter, since few begin a paragraph behind a formula; an indent says so.
    """
    if after.kind != "paragraph" or after.page - before.page not in (0, 1) or abs(before.size - after.size) > 0.3:
        return False
    return not after.indented


def _goes_on(before: Block, after: Block) -> bool:
    """Returns whether a block is the rest of the paragraph before it, in the next column or on the next page."""
    if after.kind != "paragraph" or after.page - before.page not in (0, 1) or abs(before.size - after.size) > 0.3:
        return False
    if after.page == before.page and after.box[1] >= before.box[3] - before.size and after.box[0] < before.box[2]:
        return False  # below it in the same column
    last, first = before.lines[-1], after.lines[0][:1]
    if last.endswith(_TERMINAL):
        return False
    return before.runs_on or first.islower() or first.isdigit() or last.endswith(("-", ","))


def _flowing(lines: Sequence[str], words: set[str]) -> str:
    text = lines[0]
    for line in lines[1:]:
        if line.startswith(END):
            text += line
            continue
        glue, cut = _seam(text, line, words)
        text = (text[:-1] if cut else text) + glue + line
    return text


def _seam(before: str, after: str, words: set[str]) -> tuple[str, bool]:
    """Returns what goes between two lines, and whether the hyphen at the end of the first goes.

    A hyphen goes if the word without it stands elsewhere in the document, and stays if the word with it does; without
    either it goes between lower case letters. In a compound of three parts the two parts beside it tell the same, and
    it stays if the first of them is a word.
    """
    last, first = _LAST.search(before[-80:]), _FIRST.match(after)
    if last is None or first is None:
        return (" ", False) if not _without_spaces(before[-1:], after[:1]) else ("", False)
    whole = (last[1] + first[0]).lower()
    if whole in words and last[1].rpartition("-")[2]:
        return "", True
    compound = f"{last[1]}-{first[0]}".lower() in words or last[1].lower() in _PREFIXES
    if "-" in whole:
        tail, head = last[1].rpartition("-")[2].lower(), first[0].partition("-")[0].lower()
        compound = compound or (tail + head not in words and tail in words)
    if compound or not first[0][0].islower() or last[1][-1].isupper():
        return "", False
    return "", True


def _without_spaces(before: str, after: str) -> bool:
    """Returns whether both letters are of a script that writes no spaces: Chinese and Japanese."""
    return all(
        "\u3040" <= letter <= "\u30ff" or "\u3400" <= letter <= "\u9fff" or letter in "、。「」，"
        for letter in (before, after)
        if letter
    )
