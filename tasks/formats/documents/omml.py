"""Formulas of Word as MathML, from which `tasks.formats.web.mathml` writes TeX.

Reads elements of Office Math Markup (ECMA-376, part 1, section 22.1) as lxml elements. Word stores what stands where,
as presentation MathML does, so each of its elements has a counterpart; properties that only set a size are ignored. A
run of text is split into numbers, names and operators, since Word does not tell them apart.
"""

import re
from collections.abc import Callable
from html import escape
from typing import Any

_TOKEN = re.compile(r"(\d+(?:[.,]\d+)*+)|([^\W\d_])|(\s++)|(.)", re.DOTALL)
_DEEPEST = 60
_OFF = frozenset(("0", "off", "false"))
_BELOW_AND_ABOVE = frozenset("∑∏∐⋂⋃⋀⋁⨀⨁⨂⨄⨆")
# Script and style of a run (sections 22.1.2.94 and 22.1.2.111), as values of `mathvariant`.
_SCRIPTS = frozenset(("double-struck", "script", "fraktur", "sans-serif", "monospace"))
_STYLES = {"p": "normal", "b": "bold", "bi": "bold-italic"}


def mathml_of_omml(formula: Any) -> str:
    """Returns an `m:oMath` element as a `math` element of MathML.

    >>> from lxml import etree
    >>> formula = etree.fromstring('<oMath><f><num><r><t>1</t></r></num><den><r><t>2n</t></r></den></f></oMath>')
    >>> mathml_of_omml(formula)
    '<math><mfrac><mrow><mn>1</mn></mrow><mrow><mn>2</mn><mi>n</mi></mrow></mfrac></math>'
    """
    return f"<math>{_content(formula, 0)}</math>"


def _content(node: Any, depth: int) -> str:
    """Returns what an element contains as a row of MathML."""
    if node is None:
        return ""
    if depth > _DEEPEST:
        return f"<mtext>{escape(''.join(node.itertext()))}</mtext>"
    return "".join([_element(child, depth + 1) for child in node if isinstance(child.tag, str)])


def _element(node: Any, depth: int) -> str:
    name = _name(node)
    if name.endswith("Pr"):
        return ""
    if name == "r":
        return _run(node)
    write = _WRITERS.get(name)
    # Unknown ones, such as an insertion, hold elements of formulas.
    return write(node, depth) if write else _content(node, depth)


def _name(node: Any) -> str:
    return str(node.tag).rpartition("}")[2]


def _child(node: Any, name: str) -> Any:
    return next((child for child in node if isinstance(child.tag, str) and _name(child) == name), None)


def _children(node: Any, name: str) -> list[Any]:
    return [child for child in node if isinstance(child.tag, str) and _name(child) == name]


def _property(node: Any, name: str, default: str = "") -> str:
    """Returns the value of a property; `default` if it is not set. A property without a value is "on"."""
    properties = _child(node, f"{_name(node)}Pr")
    found = None if properties is None else _child(properties, name)
    if found is None:
        return default
    return next((str(value) for key, value in found.attrib.items() if key.rpartition("}")[2] == "val"), "on")


def _is_on(node: Any, name: str) -> bool:
    return _property(node, name, "off") not in _OFF


def _row(node: Any, name: str, depth: int) -> str:
    """Returns an argument as one element."""
    return f"<mrow>{_content(_child(node, name), depth)}</mrow>"


def _operator(sign: str, attributes: str = "") -> str:
    return f"<mo{attributes}>{escape(sign)}</mo>"


def _run(node: Any) -> str:
    """Returns the tokens of a run of text."""
    text = "".join([child.text or "" for child in _children(node, "t")])
    if _is_on(node, "nor"):
        return f"<mtext>{escape(text)}</mtext>" if text else ""
    style = _property(node, "sty", "i")
    script = _property(node, "scr")
    variant = script if script in _SCRIPTS else _STYLES.get(style, "")
    attribute = f' mathvariant="{variant}"' if variant else ""
    if style == "p" and len(text) > 1 and text.strip().isalpha():
        return f"<mi>{escape(text.strip())}</mi>"  # a name such as sin, or a unit
    parts = []
    for number, letter, space, sign in _TOKEN.findall(text):
        if number:
            parts.append(f"<mn{attribute}>{number}</mn>")
        elif letter:
            parts.append(f"<mi{attribute}>{letter}</mi>")
        elif sign:
            parts.append(_operator(sign))
        elif len(space) > 1 or space != " ":
            parts.append('<mspace width="0.3em"/>')
    return "".join(parts)


def _fraction(node: Any, depth: int) -> str:
    kind = _property(node, "type", "bar")
    above, below = _row(node, "num", depth), _row(node, "den", depth)
    if kind in ("lin", "skw"):
        return f"<mrow>{above}{_operator('/')}{below}</mrow>"
    attribute = ' linethickness="0"' if kind == "noBar" else ""
    return f"<mfrac{attribute}>{above}{below}</mfrac>"


def _radical(node: Any, depth: int) -> str:
    degree = _content(_child(node, "deg"), depth)
    base = _row(node, "e", depth)
    if not degree or _is_on(node, "degHide"):
        return f"<msqrt>{base}</msqrt>"
    return f"<mroot>{base}<mrow>{degree}</mrow></mroot>"


def _scripts(name: str, *arguments: str) -> Callable[[Any, int], str]:
    """Returns what writes an element whose arguments stand in the order of MathML."""
    return lambda node, depth: f"<{name}>{''.join([_row(node, one, depth) for one in arguments])}</{name}>"


def _before(node: Any, depth: int) -> str:
    scripts = _row(node, "sub", depth) + _row(node, "sup", depth)
    return f"<mmultiscripts>{_row(node, 'e', depth)}<mprescripts/>{scripts}</mmultiscripts>"


def _nary(node: Any, depth: int) -> str:
    """Returns a sum, product or integral with its limits and its operand."""
    sign = _property(node, "chr", "∫")
    is_stacked = _property(node, "limLoc", "undOvr" if sign in _BELOW_AND_ABOVE else "subSup") == "undOvr"
    below = "" if _is_on(node, "subHide") else _content(_child(node, "sub"), depth)
    above = "" if _is_on(node, "supHide") else _content(_child(node, "sup"), depth)
    names = ("munder", "mover", "munderover") if is_stacked else ("msub", "msup", "msubsup")
    limits = "".join([f"<mrow>{limit}</mrow>" for limit in (below, above) if limit])
    operator = _operator(sign, ' movablelimits="false"' if is_stacked and sign not in _BELOW_AND_ABOVE else "")
    if limits:
        name = names[2] if below and above else names[0] if below else names[1]
        operator = f"<{name}>{operator}{limits}</{name}>"
    return operator + _row(node, "e", depth)


def _delimited(node: Any, depth: int) -> str:
    opening, closing = _property(node, "begChr", "("), _property(node, "endChr", ")")
    # A property without a value is an empty delimiter.
    opening, closing = ("" if sign == "on" else sign for sign in (opening, closing))
    between = _operator(_property(node, "sepChr", "|"), ' separator="true"')
    inside = between.join([f"<mrow>{_content(one, depth)}</mrow>" for one in _children(node, "e")])
    # Without these attributes, an empty operator is none.
    begin = _operator(opening, ' form="prefix"' if opening else ' fence="true"')
    end = _operator(closing, ' form="postfix"' if closing else ' fence="true"')
    return f"<mrow>{begin}{inside}{end}</mrow>"


def _function(node: Any, depth: int) -> str:
    return f"{_row(node, 'fName', depth)}{_operator(chr(0x2061))}{_row(node, 'e', depth)}"


def _matrix(node: Any, depth: int) -> str:
    rows = [[_content(cell, depth) for cell in _children(row, "e")] for row in _children(node, "mr")]
    return _table(rows)


def _lines(node: Any, depth: int) -> str:
    return _table([[_content(line, depth)] for line in _children(node, "e")])


def _table(rows: list[list[str]]) -> str:
    cells = ["".join([f"<mtd>{cell}</mtd>" for cell in row]) for row in rows]
    return f"<mtable>{''.join([f'<mtr>{row}</mtr>' for row in cells])}</mtable>"


def _accent(node: Any, depth: int) -> str:
    sign = _property(node, "chr", "\u0302")
    return f'<mover accent="true">{_row(node, "e", depth)}{_operator(_SPACING.get(sign, sign))}</mover>'


def _bar(node: Any, depth: int) -> str:
    name, sign = ("mover", "‾") if _property(node, "pos", "bot") == "top" else ("munder", "_")
    return f"<{name}>{_row(node, 'e', depth)}{_operator(sign)}</{name}>"


def _grouped(node: Any, depth: int) -> str:
    name = "mover" if _property(node, "pos", "bot") == "top" else "munder"
    return f"<{name}>{_row(node, 'e', depth)}{_operator(_property(node, 'chr', '⏟'))}</{name}>"


def _phantom(node: Any, depth: int) -> str:
    inside = _row(node, "e", depth)
    return inside if _property(node, "show", "on") not in _OFF else f"<mphantom>{inside}</mphantom>"


# Combining accents of Word, as the spacing ones of MathML.
_SPACING = {
    "\u0300": "`",
    "\u0301": "´",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "¯",
    "\u0305": "‾",
    "\u0306": "˘",
    "\u0307": "˙",
    "\u0308": "¨",
    "\u030a": "˚",
    "\u030c": "ˇ",
    "\u20d6": "←",
    "\u20d7": "→",
    "\u20db": "⃛",
    "\u20e1": "↔",
}
_WRITERS: dict[str, Callable[[Any, int], str]] = {
    "f": _fraction,
    "rad": _radical,
    "sSub": _scripts("msub", "e", "sub"),
    "sSup": _scripts("msup", "e", "sup"),
    "sSubSup": _scripts("msubsup", "e", "sub", "sup"),
    "sPre": _before,
    "nary": _nary,
    "d": _delimited,
    "func": _function,
    "m": _matrix,
    "eqArr": _lines,
    "acc": _accent,
    "bar": _bar,
    "groupChr": _grouped,
    "limLow": _scripts("munder", "e", "lim"),
    "limUpp": _scripts("mover", "e", "lim"),
    "borderBox": lambda node, depth: f'<menclose notation="box">{_row(node, "e", depth)}</menclose>',
    "phant": _phantom,
}
