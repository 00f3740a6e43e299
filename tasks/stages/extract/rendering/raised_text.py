"""Writes superscripts and subscripts as plain text that keeps their meaning: 10⁸, H₂O, x^{n+1}, 5½, 1st, ™.

Reads and changes the `sup` and `sub` elements of a parsed page. Without their elements, 10<sup>8</sup> would read 108.
In order: a mark of a footnote goes; a trademark, a degree or a fraction becomes its character; the letters of an
ordinal or an abbreviation (1st, 2e, Mlle, no) stay letters; digits and signs, and up to two letters, become the
characters of Unicode if all have one; all else is written as in TeX, x^{n+1} and x_{max}.
"""

import re
from collections.abc import Sequence

from resiliparse.parse.html import ElementNode, HTMLTree, Node, TextNode

from tasks.stages.extract.rendering.node_text import TextReader
from tasks.stages.extract.rendering.short_texts import keep_short

# Superscripts and subscripts of Unicode (blocks Superscripts and Subscripts, Latin-1 Supplement, Phonetic Extensions).
# The minus sign, and the hyphen that stands for it, have one; a dash has none.
_SUPERSCRIPT = dict(
    zip(
        "0123456789+-\u2212=()abcdefghijklmnoprstuvwxyzABDEGHIJKLMNOPRTUVW",
        "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁⱽᵂ",
        strict=True,
    )
)
_SUBSCRIPT = dict(zip("0123456789+-\u2212=()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", strict=True))
_DIGITS_AND_SIGNS = re.compile(r"[0-9+\-\u2212=()]++")
_MOST_LETTERS = 2
# A longer text is set small, not raised: a caption, a note, an advertisement.
_MOST_CHARACTERS = 40

_FRACTIONS = {
    (1, 2): "½", (1, 3): "⅓", (2, 3): "⅔", (1, 4): "¼", (3, 4): "¾", (1, 5): "⅕", (2, 5): "⅖", (3, 5): "⅗", (4, 5): "⅘",
    (1, 6): "⅙", (5, 6): "⅚", (1, 7): "⅐", (1, 8): "⅛", (3, 8): "⅜", (5, 8): "⅝", (7, 8): "⅞", (1, 9): "⅑",
    (1, 10): "⅒",
}  # fmt: skip
_SLASHES = ("/", "\u2044", "\u2215")
_NUMBER = re.compile(r"[0-9]{1,4}")

# Characters that look raised by themselves.
_AS_IT_IS = frozenset("®™℠©°℃℉º′″*†‡§¶'\"")
_TRADEMARKS = {"tm": "™", "(tm)": "™", "sm": "℠", "(sm)": "℠", "(r)": "®", "(c)": "©"}
_LETTERS_OF_ORDINALS = frozenset(
    (
        *("st", "nd", "rd", "th", "e", "er", "re", "ere", "ère", "ème", "eme", "ième", "ieme", "ier", "iers", "ière"),
        *("es", "ers", "res", "nde", "nds", "ndes", "de", "ste", "ra", "ro", "do", "da", "to", "ta", "mo", "ma", "vo"),
        *("va", "no", "na", "os", "as", "mos", "mas", "nt", "ht"),
    )
)
# A raised "o" or "a" is an ordinal in these languages, and a degree or an exponent in the others.
_WITH_SHORT_ORDINALS = ("es", "pt", "it", "gl", "ca")
_NUMERAL_BEFORE = re.compile(r"(?:[0-9]|(?<![^\W_])[IVXLCDM]{1,7})[.\u00a0 ]?\Z")
# Mlle, Mme, Mgr, Cie, Vve, Ste, Fre, Dra, Sra, Nra; no and fo: numero, folio.
_ABBREVIATIONS = frozenset(
    (*("lle", "lles", "me", "mes", "gr", "rs", "ie", "ve", "te", "tes", "ts", "re"), *("ra", "ras", "res", "ta", "sr"))
)
_ABBREVIATED_BEFORE = re.compile(r"(?<![^\W_])(?:[MDPCVSJFNE]|Mg|Vv|Ne)\Z")
_DOTTED_BEFORE = re.compile(r"[^\W\d_]{2}\.\Z")  # the Austrian "Mag.a"
_TITLES = ("Dr", "Mr", "St", "Sr", "Fr")
_NUMBER_BEFORE = re.compile(r"(?<![^\W_])[NnFf]\Z")
_DEGREE_BEFORE = re.compile(r"[0-9]\s?\Z")
_DEGREE_AFTER = re.compile(r"\s?[CFNSEWK](?![^\W_])")

# Footnote marks: a short label, by its class or role, or as a link within the page, or in brackets.
_LABEL = re.compile(
    r"\s*+\[?\(?\s*+(?:(?:note|n\.|fn|footnote|anm\.?|nb)\s?)?(?:[0-9]{1,4}|[a-zA-Z]{1,2}|[ivxlc]{1,7}|[*†‡§¶#‖⁎✝]{1,4})"
    r"(?:\s*+[,;\-\u2013]\s*+(?:[0-9]{1,4}|[a-z]))*+\s*+\)?\]?\s*+",
    re.I,
)
_NUMBERED = re.compile(r"\[\s*+(?:[0-9]{1,4}|[ivxlc]{1,7})(?:\s*+[,;\-\u2013]\s*+[0-9]{1,4})*+\s*+\]")
_BRACKETED = re.compile(r"\s*+\[[^\[\]]{1,40}\]\s*+")
_NOTE_NAME = re.compile(
    r"(?i)(?:^|[\s_:-])(?:reference|noteref|footnote|fnref|citation|endnote|biblioref|cite|noprint)"
)
_NOTE_ANCHOR = re.compile(r"(?i)#.*?[0-9]|[^#]*+#[^#]*?(?:cite|note|fn|ftn|foot|edn|bib|ref)")
_INLINE = frozenset(("A", "B", "I", "EM", "STRONG", "SPAN", "FONT", "VAR", "CITE", "SUP", "SUB"))
_MOST_LEVELS = 8
_NOTE_ATTRIBUTES = ("class", "id", "role", "epub:type", "rel")


def raise_text(tree: HTMLTree, nodes: Sequence[ElementNode], reader: TextReader) -> bool:
    """Replaces raised and lowered elements by plain text; returns whether something was changed.

    Args:
        tree: the page of the elements.
        nodes: its `sup` and `sub` elements, in document order.
        reader: reads texts of the page.
    """
    if not nodes or tree.document is None:
        return False
    root = tree.document.document_element
    language = ((root.get_attribute("lang") if root is not None else None) or "").lower()
    short_ordinals = language.startswith(_WITH_SHORT_ORDINALS)
    done: set[ElementNode] = set()
    changed = False
    # The last first, so that what is inside of an element is text when it is its turn, and a text node grows once.
    # Fractions begin with their numerator, so they come before.
    for node in reversed(nodes):
        if node.local_name == "sup" and (denominator := _denominator(node)) is not None:
            done.update((node, denominator))
            _replace_fraction(tree, node, denominator)
            changed = True
    for node in reversed(nodes):
        if node in done:
            continue
        text = " ".join(reader.text(node).split())
        if text and len(text) <= _MOST_CHARACTERS:
            _replace(tree, node, text, short_ordinals=short_ordinals)
            changed = True
    return changed


def _replace(tree: HTMLTree, node: ElementNode, text: str, *, short_ordinals: bool) -> None:
    if node.local_name == "sup":
        if _is_note(node, text):
            mark = _link_around(node) or node
            around = mark.previous_sibling, mark.next_sibling
            mark.remove()
            keep_short(*around)
            return
        plain = _raised(node, text, short_ordinals=short_ordinals)
    else:
        plain = text if all(letter in _AS_IT_IS for letter in text) else _written(text, _SUBSCRIPT, "_")
    _become(tree, node, plain)


def _raised(node: ElementNode, text: str, *, short_ordinals: bool) -> str:
    """Returns the plain form of a superscript."""
    if all(letter in _AS_IT_IS for letter in text):
        return text
    small = text.lower()
    if small in _TRADEMARKS and (text.isupper() or text.startswith("(")):
        return _TRADEMARKS[small]
    if text.replace(".", "").isalpha():
        before, after = _text_before(node), _text_after(node)
        if small == "o" and _DEGREE_BEFORE.search(before) and (not short_ordinals or _DEGREE_AFTER.match(after)):
            return "°"
        if _is_letters(small, before, after, short_ordinals=short_ordinals):
            return text
    return _written(text, _SUPERSCRIPT, "^")


def _is_letters(text: str, before: str, after: str, *, short_ordinals: bool) -> bool:
    """Returns whether raised letters belong to an ordinal or an abbreviation."""
    is_ordinal = text in _LETTERS_OF_ORDINALS or (short_ordinals and text in ("o", "a"))
    if is_ordinal and _NUMERAL_BEFORE.search(before):
        return True
    if _DOTTED_BEFORE.search(before):
        return True
    if text in ("o", "os"):
        return bool(_NUMBER_BEFORE.search(before))
    if len(text) == 1:  # "Dr Martin", and not a power
        return before[-1:] + text in _TITLES and after.lstrip(". \u00a0")[:1].isupper()
    return text in _ABBREVIATIONS and bool(_ABBREVIATED_BEFORE.search(before))


def _written(text: str, table: dict[str, str], sign: str) -> str:
    if len(text) <= _MOST_LETTERS or _DIGITS_AND_SIGNS.fullmatch(text):
        letters = [table.get(letter) for letter in text]
        if None not in letters:
            return "".join(letter or "" for letter in letters)
    return f"{sign}{text}" if len(text) == 1 else f"{sign}{{{text}}}"


def _denominator(node: ElementNode) -> ElementNode | None:
    """Returns the `sub` that makes a fraction with a `sup` and the slash after it."""
    slash = node.next_sibling
    if slash is None or slash.node_name != "#text" or (slash.text or "").strip() not in _SLASHES:
        return None
    below = slash.next_sibling
    if not isinstance(below, ElementNode) or below.local_name != "sub":
        return None
    return below if all(_NUMBER.fullmatch((part.text or "").strip()) for part in (node, below)) else None


def _replace_fraction(tree: HTMLTree, above: ElementNode, below: ElementNode) -> None:
    numbers = int((above.text or "0").strip()), int((below.text or "0").strip())
    fraction = _FRACTIONS.get(numbers)
    if fraction is None:
        # "5 7/16": without a space the whole number would be a part of the numerator.
        fraction = f"{numbers[0]}/{numbers[1]}"
        if _text_before(above)[-1:].isdigit():
            fraction = f" {fraction}"
    after = below.next_sibling
    if isinstance(slash := above.next_sibling, TextNode):
        slash.remove()
    below.remove()
    keep_short(after)
    _become(tree, above, fraction)


def _is_note(node: ElementNode, text: str) -> bool:
    """Returns whether a superscript is the mark of a footnote, which is apparatus and no text of the page."""
    links = node.query_selector_all("a")[:2]
    if not links and (outer := _link_around(node)) is not None:
        links = [outer]
    if _BRACKETED.fullmatch(text):
        return bool(links) or bool(_NUMBERED.fullmatch(text)) or _is_named_note(node)
    if not _LABEL.fullmatch(text):
        return False
    if _is_named_note(node) or any(map(_is_named_note, links)):
        return True
    return bool(links) and all(_NOTE_ANCHOR.match(link.get_attribute("href") or "") for link in links)


def _is_named_note(node: ElementNode) -> bool:
    return any(_NOTE_NAME.search(node.get_attribute(name) or "") for name in _NOTE_ATTRIBUTES)


def _link_around(node: ElementNode) -> ElementNode | None:
    """Returns the link that has nothing but an element."""
    outer = node.parent
    if not isinstance(outer, ElementNode) or outer.local_name != "a" or node.previous_sibling or node.next_sibling:
        return None
    return outer


def _text_before(node: Node) -> str:
    """Returns the end of the text before an element in its line."""
    before = node.previous_sibling
    if before is None and node.parent is not None and node.parent.node_name in _INLINE:
        before = node.parent.previous_sibling
    for _ in range(_MOST_LEVELS):
        if before is None or before.node_name not in _INLINE:
            break
        before = before.last_child
    return (before.text or "")[-12:] if before is not None and before.node_name == "#text" else ""


def _text_after(node: Node) -> str:
    """Returns the beginning of the text right after an element."""
    after = node.next_sibling
    return (after.text or "")[:12] if after is not None and after.node_name == "#text" else ""


def _become(tree: HTMLTree, node: ElementNode, text: str) -> None:
    """Replaces an element by text, which becomes a part of the text before it if there is some."""
    before, after = node.previous_sibling, node.next_sibling
    if before is not None and before.node_name == "#text":
        before.text = (before.text or "") + text
        node.remove()
        keep_short(before, after)
    elif tree.document is not None:
        written = tree.document.create_text_node(text)
        node.replace_with(written)
        keep_short(written, after)
