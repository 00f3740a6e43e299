"""Tokens of a formula in MathML as TeX: identifiers, numbers, operators, text and spaces."""

import re
from collections.abc import Callable

from tasks.formats.web.mathml_tree import Element
from tasks.formats.web.tex import (
    CLOSING,
    FUNCTIONS,
    OPENING,
    SAME,
    TEXT_ESCAPES,
    in_text,
    joined,
    of_text,
    space,
    styled,
)

_WORDS = re.compile(r"([^\W\d_]{2,}+)")
_LETTERS = re.compile(r"[^\W\d_]{2,}+\Z")
SIZES = {"1.2em": "big", "1.623em": "Big", "1.8em": "Big", "2.047em": "bigg", "2.4em": "bigg", "2.470em": "Bigg"}
SIZES |= {"3em": "Bigg", "3.0em": "Bigg"}


def bare(text: str) -> str:
    """Returns text outside of tokens, where a name of several letters is one of a function."""
    return joined([_word(one) if _LETTERS.match(one) else of_text(one) for one in _WORDS.split(text) if one])


def _word(name: str) -> str:
    return f"\\{name}" if name in FUNCTIONS else rf"\mathrm{{{of_text(name)}}}"


def function(name: str) -> str:
    """Returns the operator of a name."""
    plain = re.sub(r"\s", "", name)
    if plain in FUNCTIONS:
        return f"\\{plain}"
    return rf"\operatorname{{{name.translate(TEXT_ESCAPES)}}}" if _LETTERS.match(plain) else of_text(name)


def _mi(node: Element) -> str:
    text, variant = node.text, node.get("mathvariant")
    plain = re.sub(r"\s", "", text)
    if plain in FUNCTIONS:
        return f"\\{plain}"
    if node.get("data-mjx-texclass") == "op":
        return function(text)
    if not variant and _LETTERS.match(plain):
        return rf"\mathrm{{{of_text(plain)}}}" if plain.isascii() else in_text(text)
    return styled(variant or "italic", of_text(text))


def _mn(node: Element) -> str:
    return styled(node.get("mathvariant").replace("normal", ""), of_text(node.text))


def _mo(node: Element) -> str:
    text = node.text
    if _LETTERS.match(text):
        return r"\bmod" if text == "mod" else function(text)
    tex = of_text(text)
    size = SIZES.get(node.get("minsize"))
    if size and (text in OPENING or text in CLOSING or text in SAME):
        return f"\\{size}{OPENING.get(text) or CLOSING.get(text) or SAME[text]}".strip()
    return tex


def _mtext(node: Element) -> str:
    return in_text(node.text, node.get("mathvariant"))


def _ms(node: Element) -> str:
    quotes = node.exact("lquote") or '"', node.exact("rquote") or '"'
    return in_text(quotes[0] + node.text + quotes[1], "")


def _mspace(node: Element) -> str:
    if node.get("linebreak") == "newline":
        return r"\\"
    return space(node.get("width"))


TOKENS: dict[str, Callable[[Element], str]] = {
    "mi": _mi,
    "mn": _mn,
    "mo": _mo,
    "mtext": _mtext,
    "ms": _ms,
    "mspace": _mspace,
}
"""The conversion of each token."""
