"""TeX of a formula in MathML: its annotation, or the TeX that its presentation elements stand for.

Reads the markup of one `math` element as a parser of HTML serializes it. The elements are those of MathML Core and
MathML 3, with the attributes by which KaTeX, MathJax, pandoc and LaTeXML state what the TeX was. Own conversion.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.formats.web.mathml_tokens import SIZES, TOKENS, bare, function
from tasks.formats.web.mathml_tree import Element, parse
from tasks.formats.web.tex import (
    ARROWS,
    BIG,
    CLOSING,
    INTEGRALS,
    OPENING,
    OVER,
    SAME,
    UNDER,
    joined,
    styled,
    tidy_tex,
)

MAX_FENCES = 20
"""Nested delimiters in one row that are paired."""

_SPACE = re.compile(r"\s++")

_TEX_TYPES = frozenset(("tex", "latex"))

_MATRICES = {"()": "pmatrix", "[]": "bmatrix", "{}": "Bmatrix", "||": "vmatrix", "‖‖": "Vmatrix", "{": "cases"}
_TALL = re.compile(
    r"\\(?:d?frac|binom|begin|sum|prod|i?i?int|oint|coprod|bigcup|bigcap|bigoplus|overset|underset|cfrac)\b"
)
_ENCLOSED = {
    "box": "boxed",
    "roundedbox": "boxed",
    "updiagonalstrike": "cancel",
    "downdiagonalstrike": "bcancel",
    "radical": "sqrt",
    "top": "overline",
    "actuarial": "overline",
    "bottom": "underline",
}
_MOST_SCRIPTS = 40  # children of mmultiscripts that are read; real ones have up to nine
_MOST_SEARCHED = 10_000  # characters between delimiters in which a tall part is searched
_FONT = re.compile(r"\\(math(?:rm|bf|bb|cal|frak|sf|tt|it)|boldsymbol)\{([A-Za-z0-9]++)\}\Z")
_COMMAND = re.compile(r"\\(?:[A-Za-z]++|.)(?:\{[^{}]*+\})?\Z")
_NAME = re.compile(r"\\(?:mathrm|operatorname)(\{[a-z]{2,}+\})\Z")
_PRIMES = re.compile("'++\\Z")


def tex_of_mathml(markup: str) -> str:
    r"""Returns a formula as TeX without delimiters, on one line; "" for an empty or too large one.

    An annotation with TeX counts, if the whole formula has one; else an alternative text that is TeX.

    Args:
        markup: a `math` element, as `Node.html` of the parser returns it.

    >>> tex_of_mathml("<math><msup><mi>x</mi><mn>2</mn></msup><mo>≤</mo><mfrac><mi>π</mi><mn>2</mn></mfrac></math>")
    'x^2\\leq\\frac{\\pi}{2}'
    """
    root = parse(markup)
    if root is None:
        return ""
    stated = _stated(root)
    return stated or _SPACE.sub(" ", _row(root.content)).strip()


def _stated(root: Element) -> str:
    """Returns the TeX that the page states for a whole formula; "" if there is none."""
    for outer in (root, *root.children[: len(root.children) == 1]):
        for semantics in outer.children:
            if semantics.name == "semantics" and len(outer.children) == 1 and (tex := _annotation(semantics)):
                return tex
    if latex := root.exact("data-latex"):  # MathJax 4
        return tidy_tex(latex)
    alternative = root.exact("alttext")
    if "ltx_Math" in root.markup or any(sign in alternative for sign in "\\^_"):
        return tidy_tex(alternative)
    return ""


def _annotation(semantics: Element) -> str:
    for one in semantics.children:
        kind = one.get("encoding").rpartition("/")[2].removeprefix("x-")
        if one.name == "annotation" and kind in _TEX_TYPES and (tex := tidy_tex("".join(one.texts()))):
            return tex
    return ""


def _tex(node: Element | str) -> str:
    if isinstance(node, str):
        return bare(node)
    # KaTeX has whole formulas in tokens, to set their spacing.
    is_row = node.name in ("mi", "mo") and any(one.name in _CONVERTERS for one in node.children)
    convert = None if is_row else _CONVERTERS.get(node.name)
    return convert(node) if convert else _row(node.content)


def _strong(node: Element) -> str:
    return styled("bold", _row(node.content))


def _argument(node: Element | str | None) -> str:
    return "" if node is None else _tex(node).strip()


def _arguments(node: Element, number: int) -> list[str]:
    """Returns the TeX of the first children; "" for those that are missing."""
    children = node.children[:number]
    return [_argument(one) for one in children] + [""] * (number - len(children))


def _script(tex: str) -> str:
    return tex if len(tex) == 1 else f"{{{tex}}}"


def _is_one(tex: str) -> bool:
    """Returns whether a script after `tex` belongs to all of it."""
    if len(tex) == 1 or _COMMAND.match(tex) or tex.isdigit() or tex[-1:] in (")", "]"):
        return True
    return tex.count(r"\right") == 1 and bool(_PAIRED.match(tex))


# Rows


@dataclass(slots=True)
class _Fence:
    """An opening delimiter: where its TeX is in the row, its character, and whether it stretches ("" if unstated)."""

    at: int
    sign: str
    stretch: str


def _row(content: Sequence[Element | str]) -> str:
    """Returns the TeX of elements in a row; delimiters around a matrix and around tall parts are paired."""
    parts: list[str] = []
    fences: list[_Fence] = []
    last = len(content) - 1
    for at, node in enumerate(content):
        operator = _operator(node)
        sign = operator.text if operator is not None else None
        if operator is None or sign is None or (sign and operator.get("minsize") in SIZES):
            parts.append(_applied(node, content[at + 1] if at < last else None))
        elif len(fences) < MAX_FENCES and _opens(operator, sign, at == 0 and last > 0):
            fences.append(_Fence(len(parts), sign, _stretch(operator)))
            parts.append(OPENING.get(sign) or SAME.get(sign, "").strip() or "")
        elif fences and _closes(operator, sign, at == last, fences[-1]):
            fence = fences.pop()
            inside = parts[fence.at + 1 :]
            parts[fence.at :] = [_fenced(fence, inside, sign, _stretch(operator))]
        elif at == last and parts and not fences and sign in SAME and _stretch(operator) == "true":
            parts = [_fenced(_Fence(0, "", "true"), parts, sign, "true")]
        else:
            parts.append(_tex(node))
    if fences and fences[-1].sign == "{" and len(parts) == fences[-1].at + 2 and parts[-1].startswith(r"\begin{"):
        parts[fences[-1].at :] = [_fenced(fences[-1], parts[-1:], "", "")]
    if len(parts) == 3 and _BIG_PARENTHESES.fullmatch(parts[0] + parts[2]) and parts[1].count(_ATOP) == 1:
        return _binomial(parts[1])
    return joined(_merged(parts))


def _binomial(fraction: str) -> str:
    above, _, below = fraction[1:-1].partition(_ATOP)
    return rf"\binom{{{above}}}{{{below}}}"


def _operator(node: Element | str | None) -> Element | None:
    """Returns the operator that an element is, also within elements that only group."""
    while isinstance(node, Element):
        if node.name == "mo" and not node.children:
            return node
        if node.name not in _GROUPS or len(node.content) != 1:
            return None
        node = node.content[0]
    return None


def _opens(operator: Element, sign: str, is_first: bool) -> bool:
    if sign in SAME:
        return _form(operator) == "prefix" or (is_first and not _form(operator))
    return sign in OPENING or (not sign and operator.get("fence") == "true" and is_first)


def _closes(operator: Element, sign: str, is_last: bool, fence: _Fence) -> bool:
    if sign in SAME:
        form = _form(operator)
        return form == "postfix" or ((fence.sign in SAME or not fence.sign) and form != "prefix" and is_last)
    return sign in CLOSING or (not sign and is_last)


def _form(operator: Element) -> str:
    kind = {"open": "prefix", "close": "postfix"}.get(operator.get("data-mjx-texclass"), "")
    return kind or operator.get("form")


def _stretch(operator: Element) -> str:
    """Returns "true" or "false" if an operator states whether it stretches, else ""."""
    if stated := operator.get("stretchy"):
        return stated
    return "true" if operator.get("fence") == "true" or operator.get("data-mjx-texclass") in ("open", "close") else ""


def _fenced(fence: _Fence, inside: list[str], closing: str, stretch: str) -> str:
    held = [one for one in inside if one]
    only = held[0] if len(held) == 1 else ""
    environment = _MATRICES.get(fence.sign + closing)
    if environment and only.startswith(r"\begin{matrix}") and only.endswith(r"\end{matrix}"):
        return only.replace("{matrix}", f"{{{environment}}}", 1)[: -len("{matrix}")] + f"{{{environment}}}"
    if environment == "cases" and (rows := _ONLY_ARRAY.match(only)):
        return rf"\begin{{cases}}{rows[1]}\end{{cases}}"
    if fence.sign + closing == "()" and only.startswith("{") and only.count(_ATOP) == 1:
        return _binomial(only)
    tex = joined(_merged(inside))
    opening = OPENING.get(fence.sign) or SAME.get(fence.sign) or "."
    ending = CLOSING.get(closing) or SAME.get(closing) or "."
    is_tall = "true" in (fence.stretch, stretch) or _TALL.search(tex, 0, _MOST_SEARCHED) or "." in (opening, ending)
    if is_tall and "false" not in (fence.stretch, stretch):
        return joined([rf"\left{opening}".strip(), tex, rf"\right{ending}".strip()])
    opening, ending = opening.removesuffix("."), ending.removesuffix(".")
    return joined([opening.strip(), tex, ending.strip()])


def _applied(node: Element | str, following: Element | str | None) -> str:
    """Returns the TeX of an element in a row; a name before the sign of function application is an operator's."""
    if isinstance(node, Element) and node.name == "mi" and (sign := _operator(following)) and "\u2061" in sign.text:
        return function(node.text)
    return _tex(node)


def _merged(parts: list[str]) -> list[str]:
    r"""Joins letters of one font: \mathrm{a}\mathrm{b} is \mathrm{ab}."""
    runs: list[tuple[str, list[str]]] = []
    for part in filter(None, parts):
        styling = _FONT.match(part)
        font, tex = (styling[1], styling[2]) if styling else ("", part)
        if font and runs and runs[-1][0] == font:
            runs[-1][1].append(tex)
        else:
            runs.append((font, [tex]))
    return [f"\\{font}{{{''.join(texts)}}}" if font else texts[0] for font, texts in runs]


# Layout


def _mfrac(node: Element) -> str:
    above, below = _arguments(node, 2)
    thickness = node.get("linethickness")
    if thickness[:1] == "0" and not thickness.lstrip("0.").strip("pxemt%"):
        return f"{{{above}{_ATOP}{below}}}"
    if node.get("bevelled") == "true":
        return f"{_script(above)}/{_script(below)}"
    return rf"\frac{{{above}}}{{{below}}}"


def _msqrt(node: Element) -> str:
    return rf"\sqrt{{{_row(node.content).strip()}}}"


def _mroot(node: Element) -> str:
    base, index = _arguments(node, 2)
    return rf"\sqrt[{{{index}}}]{{{base}}}" if "]" in index else rf"\sqrt[{index}]{{{base}}}"


def _scripted(base: str, below: str, above: str) -> str:
    if not _is_one(base):
        base = f"{{{base}}}"
    base += f"_{_script(below)}" if below else ""
    if above and _PRIMES.match(above):
        return base + above
    return base + (f"^{_script(above)}" if above else "")


def _msub(node: Element) -> str:
    base, below = _arguments(node, 2)
    return _scripted(base, below, "")


def _msup(node: Element) -> str:
    base, above = _arguments(node, 2)
    return _scripted(base, "", above)


def _sub(node: Element) -> str:
    return f"_{_script(_row(node.content).strip())}"


def _sup(node: Element) -> str:
    above = _row(node.content).strip()
    return above if _PRIMES.match(above) else f"^{_script(above)}"


def _msubsup(node: Element) -> str:
    base, below, above = _arguments(node, 3)
    return _scripted(base, below, above)


def _mmultiscripts(node: Element) -> str:
    base, *scripts = node.children[:_MOST_SCRIPTS] or [Element("mrow")]
    after: list[str] = []
    before: list[str] = []
    pairs = after
    for one in scripts:
        if one.name == "mprescripts":
            pairs = before
        else:
            pairs.append("" if one.name == "none" else _argument(one))

    def attached(tex: str, scripts: list[str]) -> str:
        for below, above in zip(scripts[::2], [*scripts[1::2], ""], strict=False):
            tex = _scripted(tex, below, above)
        return tex

    return joined([attached("", before) if before else "", attached(_argument(base), after)])


def _munder(node: Element) -> str:
    return _limits(node, "under")


def _mover(node: Element) -> str:
    return _limits(node, "over")


def _munderover(node: Element) -> str:
    return _limits(node, "under over")


def _limits(node: Element, places: str) -> str:
    """Returns a base with what is below and above it: limits, accents, braces or labels."""
    children = node.children
    base = _argument(children[0]) if children else ""
    around = dict(zip(places.split(), children[1:], strict=False))
    under, over = around.get("under"), around.get("over")
    if accented := _accented(base, under, over):
        return accented
    below, above = _stacked(_argument(under)), _stacked(_argument(over))
    arrow = ARROWS.get(sign.text) if (sign := _operator(children[0] if children else None)) else None
    if arrow:
        return rf"\{arrow}" + (f"[{below}]" if below else "") + f"{{{above}}}"
    if name := _NAME.match(base):
        base = rf"\operatorname*{name[1]}"
    elif base in INTEGRALS:
        base += r"\limits"
    elif not (base in BIG or base.startswith((r"\overbrace{", r"\underbrace{", r"\overbracket{"))):
        base = rf"\underset{{{below}}}{{{base}}}" if below else base
        return rf"\overset{{{above}}}{{{base}}}" if above else base
    return base + (f"_{_script(below)}" if below else "") + (f"^{_script(above)}" if above else "")


def _stacked(tex: str) -> str:
    """Returns a limit; lines in one column are a stack."""
    start, end = r"\begin{matrix} ", r" \end{matrix}"
    is_stack = tex.startswith(start) and tex.endswith(end) and "&" not in tex and tex.count(start) == 1
    return rf"\substack{{{tex[len(start) : -len(end)]}}}" if is_stack else tex


def _accented(base: str, under: Element | None, over: Element | None) -> str:
    """Returns a base with an accent or a brace, and the other script around it; "" if neither is one."""
    if over is not None and (sign := _accent(over)) and (commands := OVER.get(sign.text)):
        is_wide = not _is_one(base) or (len(base) > 1 and base[0] != "\\") or sign.get("stretchy") == "true"
        tex = rf"\{commands[is_wide]}{{{base}}}"
        return rf"\underset{{{_argument(under)}}}{{{tex}}}" if under is not None and _argument(under) else tex
    if under is not None and (sign := _accent(under)) and (command := UNDER.get(sign.text)):
        tex = rf"\{command}{{{base}}}"
        return tex + f"^{_script(_argument(over))}" if over is not None and _argument(over) else tex
    return ""


def _accent(node: Element) -> Element | None:
    """Returns the operator that may be an accent; some writers put it into other tokens."""
    return _operator(node) or (node if node.name in ("mi", "mn", "mtext") and node.text in OVER else None)


def _menclose(node: Element) -> str:
    inside = _row(node.content).strip()
    notations = node.get("notation").split()
    if "updiagonalstrike" in notations and "downdiagonalstrike" in notations:
        return rf"\xcancel{{{inside}}}"
    for notation in notations:
        if command := _ENCLOSED.get(notation):
            inside = rf"\{command}{{{inside}}}"
    return inside


def _mphantom(node: Element) -> str:
    inside = _row(node.content).strip()
    return rf"\phantom{{{inside}}}" if inside else ""


def _mstyle(node: Element) -> str:
    inside = _row(node.content)
    variant = node.get("mathvariant")
    return styled(variant, inside) if variant else inside


def _semantics(node: Element) -> str:
    return _annotation(node) or "".join(_tex(one) for one in node.content[:1])


def _mfenced(node: Element) -> str:
    opening = node.exact("open").strip() if "open=" in node.markup else "("
    closing = node.exact("close").strip() if "close=" in node.markup else ")"
    separators = "".join(node.exact("separators").split()) if "separators=" in node.markup else ","
    row: list[Element | str] = [Element("mo", ' form="prefix" fence=""', [opening])]
    for at, child in enumerate(node.children):
        if at and separators:
            row.append(Element("mo", "", [separators[min(at, len(separators)) - 1]]))
        row.append(child)
    row.append(Element("mo", ' form="postfix"', [closing]))
    return _row(row)


def _maction(node: Element) -> str:
    selection = node.get("selection")
    chosen = int(selection) - 1 if selection.isdecimal() and len(selection) < 4 else 0
    return "".join(_argument(one) for one in node.children[chosen : chosen + 1])


def _nothing(_: Element) -> str:
    return ""


# Tables


def _mtable(node: Element) -> str:
    rows = [_table_row(one) for one in node.children if one.name in ("mtr", "mlabeledtr")]
    widest = max((len(cells) for cells, _ in rows), default=0)
    if widest == 1 and len(rows) == 1 and rows[0][1]:
        return joined([rows[0][0][0], rf" \tag{{{rows[0][1]}}}"])
    lines = [" & ".join(cells) + (rf" \tag{{{label}}}" if label else "") for cells, label in rows]
    body = r" \\ ".join(lines)
    first = next((one for one in node.children if one.name in ("mtr", "mlabeledtr")), node)
    of_cells = "".join(f" {one.markup}" for one in first.children if one.name == "mtd")
    alignment = node.get("columnalign").split() or _ALIGNED.findall(of_cells)
    letters = "".join(one[0] for one in alignment if one in ("left", "center", "right"))
    if widest > 1 and letters[:2] == "rl":
        return rf"\begin{{aligned}} {body} \end{{aligned}}"
    bars = node.get("columnlines").split()
    if letters.strip("c") or any(bar != "none" for bar in bars):
        letters = (letters + (letters[-1:] or "c") * widest)[:widest]
        columns = "".join(
            letter + ("|" if at < widest - 1 and bars and bars[min(at, len(bars) - 1)] != "none" else "")
            for at, letter in enumerate(letters)
        )
        return rf"\begin{{array}}{{{columns}}} {body} \end{{array}}"
    return rf"\begin{{matrix}} {body} \end{{matrix}}"


def _table_row(row: Element) -> tuple[list[str], str]:
    """Returns the cells of a row, and the label of the equation in it, "" if it has none."""
    cells = [one for one in row.children if one.name == "mtd"]
    label = ""
    if cells and (row.name == "mlabeledtr" or cells[0].get("id").startswith("mjx-eqn")):
        label = cells.pop(0).text.strip("()")
    return [_row(one.content).strip() for one in cells], label


_ONLY_ARRAY = re.compile(
    r"\\begin\{(?:array\}\{l*\}|matrix\}|aligned\})(.*)\\end\{(?:array|matrix|aligned)\}\Z", re.DOTALL
)
_ALIGNED = re.compile(r'(?:columnalign="|tml-)(left|center|right)')
_BIG_PARENTHESES = re.compile(r"\\[bB]igg?\(\\[bB]igg?\)")
_PAIRED = re.compile(r"\\left[^a-z].*\\right(?:\\?[^a-zA-Z]|\\[a-z]++)\Z")
_ATOP = r" \atop "
_GROUPS = frozenset(("mo", "mrow", "mstyle", "mpadded", "texatom", "semantics"))
_CONVERTERS: dict[str, Callable[[Element], str]] = {
    **TOKENS,
    "mfrac": _mfrac,
    "msqrt": _msqrt,
    "mroot": _mroot,
    "msub": _msub,
    "msup": _msup,
    "msubsup": _msubsup,
    "sub": _sub,  # of HTML, as pandoc writes simple formulas
    "sup": _sup,
    "strong": _strong,
    "mmultiscripts": _mmultiscripts,
    "munder": _munder,
    "mover": _mover,
    "munderover": _munderover,
    "menclose": _menclose,
    "mphantom": _mphantom,
    "mstyle": _mstyle,
    "semantics": _semantics,
    "mfenced": _mfenced,
    "maction": _maction,
    "mtable": _mtable,
    **dict.fromkeys(("annotation", "annotation-xml", "none", "mprescripts", "script", "style"), _nothing),
}
