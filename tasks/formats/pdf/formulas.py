"""Displayed formulas among the lines of a region: which lines they are, their numbers, and matrices.

Pure functions over lines. A displayed formula stands apart from the text: indented, nearly without words, with letters
in math fonts or with a sign of relation. Its limits, numerators and indices are lines of their own in a PDF file, and
belong to it.
"""

import re
from collections.abc import Sequence
from statistics import median

from tasks.formats.pdf.lines import Line

MIN_LINES = 4
"""Minimum number of lines of a region that tell where its lines begin."""

_MATH = re.compile(r"[∀-⋿=+±×÷∑∏∫√∞≈≠≤≥α-ωΑ-Ω\U0001D400-\U0001D7FF]")
_RELATION = re.compile(r"[=<>≤≥≈∼≡∝≠⇔⇒→∈]")
_WORDS = re.compile(r"[^\W\d_]{3,}")
_NAMES = frozenset(
    ("log", "exp", "min", "max", "arg", "sin", "cos", "tan", "lim", "sup", "inf", "det", "var", "cov", "diag", "sign")
)
"""Names of functions, which are no words of a language."""
_LETTERS = re.compile(r"[\U0001D400-\U0001D7FF]")
"""Mathematical letters of Unicode, which text fonts have, too."""
_TAG = re.compile(r"\([A-Z]?\.?[0-9]{1,3}(?:\.[0-9]{1,3})?[a-z]?\)")
"""Number of a formula at the margin."""
_FEW, _LITTLE, _MATHS = 3, 0.4, 0.25
"""Maximum number of words of a formula, or share of its characters in words; minimum share in math fonts."""
_INDENT = 1.5
"""Minimum indentation of a displayed formula in font sizes."""
_MOST_CHARS, _MOST_SIGNS = 300, 2_000
"""Maximum length of a formula that only its characters tell, and of one that also stands apart."""
_FRAGMENT_CHARS = 12
_NEAR = 0.4
"""Maximum length of a part of a formula in a block of its own, and its distance in font sizes."""


def math_of(line: Line) -> float:
    """Returns the share of characters of formulas in a line: those in math fonts, or mathematical letters."""
    return max(line.math, len(_LETTERS.findall(line.text)) / max(1, len(line.text)))


def is_tag(text: str) -> bool:
    """Returns whether a text is the number of a formula, such as "(12)"."""
    return _TAG.fullmatch(text) is not None


def is_numbered(line: Line) -> bool:
    """Returns whether the last cell of a line with letters of formulas is the number of a formula."""
    return len(line.cells) > 1 and math_of(line) > 0.5 * _MATHS and is_tag(line.cells[-1].text)


def displayed(lines: Sequence[Line], left: float, items: Sequence[bool]) -> list[bool]:
    """Returns for each line whether it is part of a displayed formula, including limits, numerators and the like.

    Args:
        lines: consecutive lines of a region.
        left: where most of its lines begin.
        items: for each line, whether it begins a list item.
    """
    ignores_indent = len(lines) < MIN_LINES  # too few lines between formulas to tell where lines begin
    right = max((line.end for line in lines), default=0.0)
    candidates = [
        (ignores_indent or line.begin > left + _INDENT * line.size) and is_wordless(line.text) and not is_item
        for line, is_item in zip(lines, items, strict=True)
    ]
    found = [
        is_candidate and (math_of(line) > _MATHS or _is_centered_relation(line, left, right))
        for is_candidate, line in zip(candidates, lines, strict=True)
    ]
    for order in (range(1, len(lines)), range(len(lines) - 2, -1, -1)):
        step = 1 if order.step > 0 else -1
        for index in order:
            gap = lines[index].y0 - lines[index - 1].y1 if step > 0 else lines[index + 1].y0 - lines[index].y1
            is_part = candidates[index] and not _words(lines[index].text) and gap < 0.3 * lines[index].size
            found[index] = found[index] or (is_part and found[index - step])
    return found


def _is_centered_relation(line: Line, left: float, right: float) -> bool:
    """Returns whether a line has a relation, some letters of formulas, and room on both sides."""
    alone = line.cells[:-1] if is_numbered(line) else line.cells
    if line.mono > 0.5 or not math_of(line) or not _RELATION.search(line.text) or len(_words(line.text)) > 1:
        return False
    room = min(line.begin - left, right - max(cell.x1 for cell in alone))
    return line.from_right is False and room > 2 * _INDENT * line.size


def is_matrix(rows: Sequence[Line]) -> bool:
    """Returns whether aligned rows are a formula, such as a matrix."""
    math = sum(math_of(line) * len(line.text) for line in rows) / max(1, sum(len(line.text) for line in rows))
    return math > _MATHS and all(is_wordless(line.text) for line in rows)


def is_wordless(text: str) -> bool:
    """Returns whether a text has few words or few characters in words."""
    words = _words(text)
    return len(words) <= _FEW or sum(map(len, words)) < _LITTLE * len(text.replace(" ", ""))


def _words(text: str) -> list[str]:
    return [word for word in _WORDS.findall(_LETTERS.sub("", text)) if word.lower() not in _NAMES]


def is_formula(group: Sequence[Line], text: str, *, apart: bool) -> bool:
    """Returns whether a block consists mostly of symbols and letters of formulas.

    Args:
        group: its lines.
        text: its text.
        apart: whether its lines stand apart as a displayed formula does.
    """
    if apart and len(text) <= _MOST_SIGNS:
        return True
    if len(text) > _MOST_CHARS:
        return False
    signs = len(_MATH.findall(text))
    math = sum(math_of(line) * len(line.text) for line in group) / max(1, sum(len(line.text) for line in group))
    is_signs = math > 0.5 or (math > 0.3 and signs > 0) or (signs >= 2 and signs > 0.08 * len(text))
    return (is_signs or is_tag(text)) and len(_words(text)) <= _FEW


def is_fragment(group: Sequence[Line], beside: Sequence[Sequence[Line]]) -> bool:
    """Returns whether a block is a part of the formula above or below it: an index, a limit or a number.

    Args:
        group: its lines.
        beside: the lines of the formulas before and after it.
    """
    text = " ".join(line.text for line in group)
    if len(text) > _FRAGMENT_CHARS or _words(text):
        return False
    top, bottom = group[0].y0, group[-1].y1
    size = median(line.size for line in group)
    return any(
        min(bottom, max(line.y1 for line in formula)) - max(top, min(line.y0 for line in formula)) > -_NEAR * size
        for formula in beside
    )
