r"""Writes each formula of a parsed page once, as TeX: `$E=mc^2$` in a line, `$$E=mc^2$$` as a paragraph.

A rendered formula stands in a page several times: as MathML with its source, as boxes or SVG for the eye, as a picture
with an alternative text, as the script it was made from. Known are KaTeX, MathJax 2 to 4, MediaWiki, LaTeXML (arXiv),
Sphinx, pandoc, pictures of formulas by common services, and MathML alone. Formulas that a page holds as source, between
`\(` and `\)` or dollars, are left as they are, and so is everything inside `pre` and `code`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, unquote_plus

from tasks.formats.web.mathml import tex_of_mathml
from tasks.formats.web.tex import tidy_tex

if TYPE_CHECKING:
    from resiliparse.parse.html import HTMLTree
    from resiliparse.parse.html.node import ElementNode

MAX_FORMULAS = 20_000
"""Formulas of one kind in a page that are written; more are left as they are."""
MAX_TEX = 100_000
"""Characters of a formula that is written."""

# One of these is in the source of every page with markup of formulas: MathML, MathJax, MediaWiki and
# pandoc have the first, KaTeX and services of pictures the second. Each search takes 0.1 ms of a page of 190 kB.
_MARKS = (b"math", b"atex")
_NO_EXAMPLE = ":not(pre *, code *)"

_RENDERED = ".MathJax_Display, .MathJax_SVG_Display, .MJXc-display, .MathJax, .MathJax_SVG, .MathJax_CHTML, .mjx-chtml"
_OF_MATHJAX = ("MathJax", "MJX", "mjx")
_MOST_BEFORE_SCRIPT = 3
_SOURCE_DELIMITERS = ("$", r"\(", r"\[")
# Spaces by which pandoc lays a formula out in HTML.
_LAYOUT = re.compile("&nbsp;|[\u00a0\u2000-\u200a\u202f\u205f]")
# Pictures whose alternative text is TeX, and addresses of services that draw the TeX in their query.
_SERVICES = ("latex.php", "codecogs.com/", "/equation?tex=", "mathtex.cgi", "mimetex.cgi", "/render/math?")
_ADDRESSES = ("src", "data-src")  # the second of pictures that load late
_DRAWN = ", ".join(f'[{name}*="{service}"]' for name in _ADDRESSES for service in _SERVICES)
_PICTURES = (
    "img:is(.math, .tex, .latex, .ql-img-inline-formula, .ql-img-displayed-equation,"
    f' [class*="mwe-math-fallback"], [src*="/media/math/render/"], {_DRAWN})'
)
_QUERY = re.compile(r"[?&](?:latex|tex|math|chl)=([^&]*+)")
# Commands before a formula that tell such a service how to draw it.
_DRAWING = re.compile(
    r"(?:\s*+\\(?:(?:dpi|bg|fg|fn)_?(?:\{[^{}]*+\}|\w++)|(?:inline|tiny|small|[lL]arge|LARGE|huge|displaystyle)\b))++\s*+"
)
_IS_TEX = re.compile(r"[\\^_=<>+{}]|\A.\Z|\A[a-zA-Z]\w?\([^()]*+\)\Z")


@dataclass(frozen=True)
class _Formula:
    """TeX without delimiters, and whether it is displayed in a paragraph of its own."""

    tex: str
    is_displayed: bool = False


def write_formulas(tree: HTMLTree, source: bytes) -> bool:
    """Replaces each rendered formula of a page by its TeX; a page without any costs two searches.

    Args:
        tree: the parsed page, which is changed.
        source: the same page in UTF-8.

    Returns:
        whether there was a formula.
    """
    if not any(mark in source for mark in _MARKS) or (document := tree.document) is None:
        return False
    changed = False
    for selector, read in _RULES:
        # Copied, because an index into the list of the parser takes time that grows with its length.
        for element in document.query_selector_all(selector).values()[:MAX_FORMULAS]:
            changed |= read(tree, element)
    return changed


def _outermost(selector: str) -> str:
    """Returns a selector without elements in others of it, and without those in examples."""
    inside = ", ".join(f"{one} *" for one in (*selector.split(", "), "pre", "code"))
    return f":is({selector}):not({inside})"


def _write(tree: HTMLTree, element: ElementNode, formula: _Formula | None) -> bool:
    """Puts a formula in the place of an element; returns whether there was one."""
    if formula is None or not 0 < len(formula.tex) <= MAX_TEX:
        return False
    if formula.is_displayed:
        element.replace_with(_paragraph(tree, formula.tex))
        return True
    before = element.previous_sibling
    space = " " if before is not None and before.tag == "#text" and (before.value or "").endswith("$") else ""
    text = tree.create_text_node(f"{space}${formula.tex}$")
    assert text is not None
    element.replace_with(text)
    return True


def _paragraph(tree: HTMLTree, tex: str) -> ElementNode:
    paragraph = tree.create_element("p")
    assert paragraph is not None
    paragraph.text = f"$${tex}$$"
    return paragraph  # type: ignore[return-value]  # the stub has the base class


def _is_displayed(math: ElementNode) -> bool:
    return "block" in (math.getattr("display") or "") or math.getattr("mode") == "display"


def _math_in(element: ElementNode) -> _Formula | None:
    math = element.query_selector("math")
    return _Formula(tex_of_mathml(math.html), _is_displayed(math)) if math is not None else None


# KaTeX


def _katex_displayed(tree: HTMLTree, element: ElementNode) -> bool:
    formula = _math_in(element) if element.child_element_count == 1 else None
    return _write(tree, element, _Formula(formula.tex, True) if formula else None)


def _katex(tree: HTMLTree, element: ElementNode) -> bool:
    # An element that is not closed holds more than a formula.
    return element.child_element_count <= 2 and _write(tree, element, _math_in(element))


def _katex_error(tree: HTMLTree, element: ElementNode) -> bool:
    return _write(tree, element, _Formula(tidy_tex(element.text or "")))


# MathJax


def _container(tree: HTMLTree, element: ElementNode) -> bool:
    """Writes a container of MathJax 3 or 4."""
    is_displayed = element.getattr("display") == "true"
    formula = _math_in(element)
    if formula is None:
        stated = element.query_selector('mjx-math[data-latex], g[data-mml-node="math"][data-latex]')
        formula = _Formula(tidy_tex(stated.getattr("data-latex") or "")) if stated is not None else None
    return _write(tree, element, _Formula(formula.tex, is_displayed) if formula else None)


def _script(tree: HTMLTree, element: ElementNode) -> bool:
    """Writes the script of a formula for MathJax 2, and removes what was drawn before it."""
    kind = element.getattr("type") or ""
    if kind.startswith("math/tex"):
        formula = _Formula(tidy_tex(element.text or ""), "mode=display" in kind.replace(" ", ""))
    elif kind.startswith("math/mml"):
        formula = _of_markup(element.text or "")
    else:
        return False
    drawn = element.previous_element_sibling
    for _ in range(_MOST_BEFORE_SCRIPT):
        if drawn is None or not (drawn.class_name or "").startswith(_OF_MATHJAX):
            break
        before = drawn.previous_element_sibling
        drawn.remove()
        drawn = before
    return _write(tree, element, formula)


def _of_markup(markup: str) -> _Formula:
    from resiliparse.parse.html import HTMLTree

    document = HTMLTree.parse(markup[:MAX_TEX]).document
    math = document.query_selector("math") if document is not None else None
    return _Formula(tex_of_mathml(math.html), _is_displayed(math)) if math is not None else _Formula("")


def _rendered(tree: HTMLTree, element: ElementNode) -> bool:
    """Writes a formula of MathJax 2 whose script is gone."""
    formula = _math_in(element)
    if formula is None:
        stated = element if element.hasattr("data-mathml") else element.query_selector("[data-mathml]")
        formula = _of_markup(stated.getattr("data-mathml") or "") if stated is not None else None
    is_displayed = "isplay" in (element.class_name or "")
    return _write(tree, element, _Formula(formula.tex, is_displayed or formula.is_displayed) if formula else None)


# Writers of whole pages


def _mediawiki(tree: HTMLTree, element: ElementNode) -> bool:
    formula = _math_in(element)
    picture = element.query_selector("img")
    if (formula is None or not formula.tex) and picture is not None:
        formula = _Formula(tidy_tex(picture.getattr("alt") or ""))
    is_displayed = "block" in (element.class_name or "") or (
        picture is not None and "display" in (picture.class_name or "")
    )
    return _write(tree, element, _Formula(formula.tex, is_displayed or formula.is_displayed) if formula else None)


def _latexml(tree: HTMLTree, table: ElementNode) -> bool:
    """Writes the rows of a table of equations, with their numbers, as a paragraph each."""
    if table.query_selector("table table, tr table") is not None:
        return False
    paragraphs = []
    for row in table.query_selector_all("tr").values():
        formulas = row.query_selector_all("math:not(math *)").values()
        number = row.query_selector(".ltx_tag")
        label = (number.text or "").strip() if number is not None else ""
        words = _visible(row) - sum(map(_visible, formulas)) - len("".join(label.split()))
        tex = " ".join(tex_of_mathml(math.html) for math in formulas)
        if words > 0 or len(tex) > MAX_TEX:
            return False
        if tex:
            paragraphs.append(_paragraph(tree, tex + (rf" \tag{{{label.strip('()')}}}" if label else "")))
    if paragraphs:
        table.replace_with(*paragraphs)
    return bool(paragraphs)


def _visible(element: ElementNode) -> int:
    """Returns the number of characters of an element without white space."""
    return len("".join((element.text or "").split()))


def _marked(tree: HTMLTree, element: ElementNode) -> bool:
    """Writes a formula of pandoc, as TeX without delimiters or in HTML."""
    text = (element.text or "").strip()
    if not text or text.startswith(_SOURCE_DELIMITERS):
        return False
    is_source = element.first_element_child is None and any(sign in text for sign in "\\^_{")
    tex = tidy_tex(text) if is_source else tex_of_mathml(_LAYOUT.sub("", element.html))
    return _write(tree, element, _Formula(tex, "display" in (element.class_name or "")))


def _attribute(tree: HTMLTree, element: ElementNode) -> bool:
    return _write(tree, element, _Formula(tidy_tex(element.getattr("data-tex") or "")))


def _math(tree: HTMLTree, element: ElementNode) -> bool:
    formula = _Formula(tex_of_mathml(element.html), _is_displayed(element))
    around = element.parent_element
    if around is not None and "none" in (around.getattr("style") or "") and around.child_element_count == 1:
        # It is hidden, and a picture after it shows the formula.
        picture = around.next_element_sibling
        if picture is not None and picture.tag == "img" and formula.tex:
            picture.remove()
            element = around
    return _write(tree, element, formula)


# Pictures


def _picture(tree: HTMLTree, element: ElementNode) -> bool:
    kind, alternative = element.class_name or "", element.getattr("alt") or ""
    tex = _drawn(alternative) if _IS_TEX.search(alternative) else ""
    for name in _ADDRESSES:
        tex = tex or _of_address(element.getattr(name) or "")
    tex = tex or (_drawn(alternative) if "math" in kind.split() else "")
    place = _place(element)
    number = place.query_selector(".eqno") if place is not None else None
    if number is not None and tex:
        tex += rf" \tag{{{(number.text or '').strip().rstrip('¶#').strip('()')}}}"
        number.remove()
    return _write(tree, element, _Formula(tex, place is not None or "display" in kind))


def _place(element: ElementNode) -> ElementNode | None:
    """Returns the element of Sphinx around a displayed picture, with or without a paragraph between."""
    around = element.parent_element
    if around is not None and around.tag == "p":
        around = around.parent_element
    return around if around is not None and around.tag == "div" and around.class_name == "math" else None


def _of_address(address: str) -> str:
    query = _QUERY.search(address)
    if query:
        return _drawn(unquote_plus(query[1]))
    _, mark, rest = address.partition("?")
    return (
        _drawn(unquote(rest.replace("&space;", " "))) if mark and ("codecogs" in address or ".cgi" in address) else ""
    )


def _drawn(tex: str) -> str:
    tex = tidy_tex(tex)
    drawing = _DRAWING.match(tex)
    return tidy_tex(tex[drawing.end() :]) if drawing else tex


_Rule = tuple[str, Callable[["HTMLTree", "ElementNode"], bool]]
# In order: each finds what those before have left.
_RULES: tuple[_Rule, ...] = (
    (_outermost("table.ltx_equation, table.ltx_equationgroup"), _latexml),
    (_outermost(".katex-display"), _katex_displayed),
    (_outermost(".katex"), _katex),
    (_outermost(".katex-error"), _katex_error),
    (_outermost("mjx-container"), _container),
    (f'script[type^="math/"]{_NO_EXAMPLE}', _script),
    (_outermost(_RENDERED), _rendered),
    (_outermost(".mwe-math-element"), _mediawiki),
    (_outermost("span.math.inline, span.math.display"), _marked),
    (_outermost("span[data-tex]"), _attribute),
    *((_outermost(name), _math) for name in ("math", r"m\:math", r"mml\:math")),
    (f"{_PICTURES}{_NO_EXAMPLE}", _picture),
)
