r"""TeX of formulas: the commands of characters, styles, words and spaces, and TeX from pages without what is around it.

Greek and styled letters are named after their Unicode names; the rest is a table. The commands are those of LaTeX with
amsmath and amssymb, which KaTeX and MathJax know as well.
"""

import functools
import re
import unicodedata

_TABLE = r"""
− - ∗ * ⁎ * ′ ' ″ '' ‴ ''' ⁗ '''' ∶ : ⁄ / ∕ / ‐ - ⩵ ==
± \pm ∓ \mp × \times ÷ \div ⋅ \cdot · \cdot ∘ \circ ∙ \bullet • \bullet ⋆ \star ★ \bigstar ⊕ \oplus ⊖ \ominus
⊗ \otimes ⊘ \oslash ⊙ \odot ∧ \wedge ∨ \vee ∩ \cap ∪ \cup ⊎ \uplus ⊓ \sqcap ⊔ \sqcup ∖ \setminus ≀ \wr
⧵ \setminus ⨿ \amalg † \dagger ‡ \ddagger ⊼ \barwedge ⊻ \veebar ⋉ \ltimes ⋊ \rtimes ⋄ \diamond
⊞ \boxplus ⊠ \boxtimes ⊡ \boxdot ⊟ \boxminus
≤ \leq ≥ \geq ⩽ \leqslant ⩾ \geqslant ≠ \neq ≡ \equiv ≢ \not\equiv ≈ \approx ≉ \not\approx ≅ \cong ≃ \simeq ∼ \sim
≁ \nsim ∝ \propto ≐ \doteq ≔ := ≕ =: ≜ \triangleq ≪ \ll ≫ \gg ⋘ \lll ⋙ \ggg ≺ \prec ≻ \succ ⪯ \preceq ⪰ \succeq
≼ \preccurlyeq ≽ \succcurlyeq ≲ \lesssim ≳ \gtrsim ⪅ \lessapprox ⪆ \gtrapprox ≶ \lessgtr ≷ \gtrless ≮ \nless ≯ \ngtr
≰ \nleq ≱ \ngeq ≍ \asymp ⋈ \bowtie ⊨ \models ⊢ \vdash ⊣ \dashv ⊩ \Vdash ⊥ \perp ⟂ \perp ∥ \parallel ∦ \nparallel
∣ \mid ∤ \nmid ≗ \circeq ≑ \doteqdot ≊ \approxeq ∽ \backsim ⌣ \smile ⌢ \frown
∈ \in ∉ \notin ∋ \ni ⊂ \subset ⊃ \supset ⊆ \subseteq ⊇ \supseteq ⊊ \subsetneq ⊋ \supsetneq ⊄ \not\subset
⊈ \nsubseteq ⊉ \nsupseteq ⊏ \sqsubset ⊐ \sqsupset ⊑ \sqsubseteq ⊒ \sqsupseteq ∅ \emptyset ∀ \forall ∃ \exists
∄ \nexists ¬ \neg ⊤ \top ∴ \therefore ∵ \because ⊲ \lhd ⊳ \rhd ⊴ \trianglelefteq ⊵ \trianglerighteq
→ \to ← \leftarrow ↔ \leftrightarrow ⇒ \Rightarrow ⇐ \Leftarrow ⇔ \Leftrightarrow ⟶ \longrightarrow ⟵ \longleftarrow
⟷ \longleftrightarrow ⟹ \implies ⟸ \impliedby ⟺ \iff ↦ \mapsto ⟼ \longmapsto ↑ \uparrow ↓ \downarrow ↕ \updownarrow
⇑ \Uparrow ⇓ \Downarrow ⇕ \Updownarrow ↗ \nearrow ↘ \searrow ↙ \swarrow ↖ \nwarrow ↪ \hookrightarrow ↩ \hookleftarrow
⇀ \rightharpoonup ⇁ \rightharpoondown ↼ \leftharpoonup ↽ \leftharpoondown ⇌ \rightleftharpoons ⇋ \leftrightharpoons
↠ \twoheadrightarrow ↞ \twoheadleftarrow ↣ \rightarrowtail ⇝ \rightsquigarrow ⇄ \rightleftarrows ⇆ \leftrightarrows
⇉ \rightrightarrows ↾ \upharpoonright ↛ \nrightarrow ⇏ \nRightarrow ↺ \circlearrowleft ↻ \circlearrowright
∑ \sum ∏ \prod ∐ \coprod ∫ \int ∬ \iint ∭ \iiint ⨌ \iiiint ∮ \oint ∯ \oiint ⋂ \bigcap ⋃ \bigcup ⨁ \bigoplus
⨂ \bigotimes ⨀ \bigodot ⋁ \bigvee ⋀ \bigwedge ⨄ \biguplus ⨆ \bigsqcup
∂ \partial ∇ \nabla ∞ \infty √ \surd ∠ \angle ∡ \measuredangle △ \triangle ▽ \bigtriangledown □ \square ◻ \square
■ \blacksquare ◊ \lozenge ○ \bigcirc ♭ \flat ♮ \natural ♯ \sharp ♠ \spadesuit ♡ \heartsuit ♢ \diamondsuit
♣ \clubsuit ✓ \checkmark ∎ \blacksquare
ℓ \ell ℏ \hbar ℘ \wp ℜ \Re ℑ \Im ℵ \aleph ℶ \beth ℷ \gimel ℧ \mho ℎ h ı \imath ȷ \jmath 𝚤 \imath 𝚥 \jmath
ð \eth Ⅎ \Finv ∁ \complement ϵ \epsilon ε \varepsilon ϕ \phi φ \varphi ϑ \vartheta ϖ \varpi ϱ \varrho ς \varsigma
ϰ \varkappa ϝ \digamma ο o Å \mathring{A} ° ^{\circ} ℃ ^{\circ}\mathrm{C}
… \ldots ⋯ \cdots ⋮ \vdots ⋱ \ddots § \S ¶ \P £ \pounds ¥ \yen ® \circledR Ⓢ \circledS
⟨ \langle ⟩ \rangle 〈 \langle 〉 \rangle ⌊ \lfloor ⌋ \rfloor ⌈ \lceil ⌉ \rceil ‖ \| ⟦ \llbracket ⟧ \rrbracket
⟮ \lgroup ⟯ \rgroup ⎰ \lmoustache ⎱ \rmoustache ⌜ \ulcorner ⌝ \urcorner ⌞ \llcorner ⌟ \lrcorner
{ \{ } \} # \# $ \$ % \% & \& _ \_ ~ \sim \ \backslash ^ \wedge
¯ \bar{} ˉ \bar{} ‾ \overline{} ― \overline{} ˆ \hat{} ˜ \tilde{} ˙ \dot{} ¨ \ddot{}
"""
_SPACES = {
    "\u00a0": r"\ ",
    "\u2001": r"\quad",
    "\u2003": r"\quad",
    "\u2002": r"\enspace",
    "\u2004": r"\;",
    "\u2005": r"\:",
    "\u2006": r"\,",
    "\u2009": r"\,",
    "\u200a": r"\,",
    "\u205f": r"\:",
}
# Spaces that separate nothing, function application, invisible times, separator and plus, and joiners.
_INVISIBLE = frozenset(" \t\n\r\f\u200b\u200c\u200d\u2060\u2061\u2062\u2063\u2064\ufe00\ufe0e\ufe0f\ufeff")

_FUNCTION_NAMES = (
    "arccos arcsin arctan arg cos cosh cot coth csc deg det dim exp gcd hom inf ker lg lim liminf limsup ln log max min"
    " Pr sec sin sinh sup tan tanh"
)
FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
"""Names of functions that are commands of LaTeX."""

OPENING = {"(": "(", "[": "[", "{": r"\{", "⟨": r"\langle ", "⌊": r"\lfloor ", "⌈": r"\lceil ", "⟦": r"\llbracket "}
CLOSING = {")": ")", "]": "]", "}": r"\}", "⟩": r"\rangle ", "⌋": r"\rfloor ", "⌉": r"\rceil ", "⟧": r"\rrbracket "}
SAME = {"|": "|", "∣": "|", "‖": r"\|", "∥": r"\|"}
OPENING |= {"〈": r"\langle ", "\u2329": r"\langle "}
CLOSING |= {"〉": r"\rangle ", "\u232a": r"\rangle "}
_BIG_NAMES = (
    r"\sum \prod \coprod \int \iint \iiint \iiiint \oint \oiint \bigcap \bigcup \bigoplus \bigotimes \bigodot \bigvee"
    r" \bigwedge \biguplus \bigsqcup \lim \limsup \liminf \max \min \sup \inf \det \gcd \Pr \arg"
)
BIG = frozenset(_BIG_NAMES.split())
"""Operators whose scripts are limits."""
INTEGRALS = frozenset((r"\int", r"\iint", r"\iiint", r"\iiiint", r"\oint", r"\oiint"))
# Accents: for one letter, and for a longer base or a stretched accent.
OVER = {
    **dict.fromkeys("^ˆ\u0302", ("hat", "widehat")),
    **dict.fromkeys("~˜∼\u0303", ("tilde", "widetilde")),
    **dict.fromkeys("¯ˉ‾\u0304\u0305", ("bar", "overline")),
    **dict.fromkeys("―_", ("overline", "overline")),
    **dict.fromkeys("→⃗", ("vec", "overrightarrow")),
    "←": ("overleftarrow", "overleftarrow"),
    "↔": ("overleftrightarrow", "overleftrightarrow"),
    **dict.fromkeys(".˙\u0307", ("dot", "dot")),
    **dict.fromkeys("¨\u0308", ("ddot", "ddot")),
    "⃛": ("dddot", "dddot"),
    **dict.fromkeys("ˇ\u030c", ("check", "check")),
    **dict.fromkeys("˘\u0306", ("breve", "breve")),
    **dict.fromkeys("´\u0301", ("acute", "acute")),
    **dict.fromkeys("`\u0300", ("grave", "grave")),
    **dict.fromkeys("˚\u030a", ("mathring", "mathring")),
    **dict.fromkeys("⏞︷", ("overbrace", "overbrace")),
    "⎴": ("overbracket", "overbracket"),
}
UNDER = {
    **dict.fromkeys("_‾―¯ˉ\u0332", "underline"),
    **dict.fromkeys("⏟︸", "underbrace"),
    "⎵": "underbracket",
    "→": "underrightarrow",
    "←": "underleftarrow",
}
ARROWS = {
    **dict.fromkeys("→⟶", "xrightarrow"),
    **dict.fromkeys("←⟵", "xleftarrow"),
    **dict.fromkeys("⇒⟹", "xRightarrow"),
    **dict.fromkeys("⇐⟸", "xLeftarrow"),
    **dict.fromkeys("↔⟷", "xleftrightarrow"),
    "⇌": "xrightleftharpoons",
    "↦": "xmapsto",
}

_TEXT_STYLES = {"bold": "textbf", "italic": "textit", "monospace": "texttt", "sans-serif": "textsf"}
TEXT_ESCAPES = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "#$%&_{}"},
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "\xa0": " ",
    }
)
_WIDTHS = ((1.5, r"\qquad"), (0.7, r"\quad"), (0.4, r"\enspace"), (0.25, r"\;"), (0.2, r"\:"), (0.1, r"\,"))
_LENGTH = re.compile(r"(-?(?:\d++(?:\.\d*+)?|\.\d++))(em|ex|px|pt)")
_UNITS = {"em": 1.0, "ex": 0.43, "px": 0.0625, "pt": 0.1}
_NAMED_SPACES = {"veryverythinmathspace": r"\,", "verythinmathspace": r"\,", "thinmathspace": r"\,"}
_NAMED_SPACES |= {"mediummathspace": r"\:", "thickmathspace": r"\;", "verythickmathspace": r"\;"}
# What surrounds the TeX of an annotation; MediaWiki wraps it in a group.
_GROUPED = re.compile(r"\{\s*+\\(?:displaystyle|textstyle)\b\s*+(.*)\}\Z", re.DOTALL)
_DISPLAYED = re.compile(r"\\displaystyle(?![A-Za-z])\s*+")
_DELIMITERS = (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)"), ("$", "$"))
_COMMENT = re.compile(r"(\\.)|%[^\n]*+(?:\n\s*+)?", re.DOTALL)

# Styles by the words of a Unicode name or the value of mathvariant.
_STYLES = {
    "bold-fraktur": "mathfrak",
    "bold-script": "mathcal",
    "bold-sans-serif": "mathsf",
    "sans-serif-bold": "mathsf",
    "sans-serif-bold-italic": "mathsf",
    "sans-serif-italic": "mathsf",
    "bold-italic": "boldsymbol",
    "double-struck": "mathbb",
    "sans-serif": "mathsf",
    "monospace": "mathtt",
    "script": "mathcal",
    "fraktur": "mathfrak",
    "bold": "mathbf",
    "italic": "",
    "normal": "mathrm",
    # Of MathJax.
    "-tex-calligraphic": "mathcal",
    "-tex-bold-calligraphic": "mathcal",
    "-tex-mathit": "mathit",
}
_STYLED = re.compile(r"MATHEMATICAL ([A-Z -]+?) (?:CAPITAL|SMALL|DIGIT|NABLA|PARTIAL|EPSILON|THETA|KAPPA|PHI|RHO|PI)\b")
_LETTERLIKE = re.compile(r"(DOUBLE-STRUCK|SCRIPT|BLACK-LETTER) (?:CAPITAL|SMALL) ")
_GREEK = re.compile(r"GREEK (CAPITAL|SMALL) LETTER ([A-Z]+)$")
# Capitals that look like Latin ones have no command.
_LATIN_CAPITALS = dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΧ", "ABEZHIKMNOPTX", strict=True))
_SPACE = re.compile(r"\s++")


@functools.cache
def _table() -> dict[str, str]:
    pairs = _TABLE.split()
    return dict(zip(pairs[::2], pairs[1::2], strict=True)) | _SPACES | _LATIN_CAPITALS | dict.fromkeys(_INVISIBLE, "")


def of_text(text: str) -> str:
    r"""Returns the characters of an operator, an identifier or a number as TeX in math mode.

    >>> of_text("α≤5%"), of_text("ℝ"), of_text("𝐱")
    ('\\alpha\\leq5\\%', '\\mathbb{R}', '\\mathbf{x}')
    """
    return text if text.isalnum() and text.isascii() else joined([_of_character(one) for one in text])


@functools.lru_cache(1 << 12)
def _of_character(character: str) -> str:
    if (known := _table().get(character)) is not None:
        return known
    if character.isascii() or not (name := unicodedata.name(character, "")):
        return character
    if greek := _GREEK.match(name):
        letter = greek[2].replace("LAMDA", "LAMBDA").lower()
        return "\\" + (letter.capitalize() if greek[1] == "CAPITAL" else letter)
    if style := _STYLED.match(name):
        plain = unicodedata.normalize("NFKC", character)
        return styled(style[1].replace(" ", "-").lower(), of_text(plain)) if plain != character else character
    if letterlike := _LETTERLIKE.match(name):
        style_name = letterlike[1].lower().replace("black-letter", "fraktur")
        return styled(style_name, of_text(unicodedata.normalize("NFKC", character)))
    return character


def styled(variant: str, tex: str) -> str:
    r"""Returns TeX in a style.

    Args:
        variant: value of the attribute `mathvariant` (MathML Core, section 2.1.5), or one of MathJax.
        tex: a letter, or several.

    >>> styled("double-struck", "R"), styled("bold", r"\beta"), styled("italic", "x"), styled("normal", r"\Gamma")
    ('\\mathbb{R}', '\\boldsymbol{\\beta}', 'x', '\\Gamma')
    """
    command = _STYLES.get(variant, "")
    if tex.startswith((r"\math", r"\boldsymbol{")):  # by its character already
        return tex
    is_letters = tex.isascii() and tex.isalnum()
    if command == "mathbf" and not is_letters:
        command = "boldsymbol"
    if not command or not tex or (command == "mathrm" and not (is_letters and tex.isalpha())):
        return tex
    return f"\\{command}{{{tex}}}"


def joined(parts: list[str]) -> str:
    r"""Concatenates pieces of TeX; a command and a letter after it are separated by a space.

    >>> joined([r"\\alpha", "x", "+", r"\\beta"])
    '\\\\alpha x+\\\\beta'
    """
    out: list[str] = []
    named = False
    for part in parts:
        if not part:
            continue
        if named and part[0].isalpha():
            out.append(" ")
        out.append(part)
        name = part[part.rfind("\\") + 1 :] if "\\" in part else ""
        named = name.isascii() and name.isalpha()
    return "".join(out)


def in_text(text: str, variant: str = "") -> str:
    r"""Returns words in a formula; no-break spaces are spaces, and white space alone is a space of math mode."""
    if not text:
        return ""
    if not text.strip("\xa0\u2003\u2009 "):
        return joined([of_text(one) for one in text])
    return rf"\{_TEXT_STYLES.get(variant, 'text')}{{{text.translate(TEXT_ESCAPES)}}}"


def space(width: str) -> str:
    r"""Returns the command of a horizontal space; "" for a narrow one.

    >>> space("1em"), space("thinmathspace"), space("0.02em")
    ('\\quad', '\\,', '')
    """
    if width in _NAMED_SPACES:
        return _NAMED_SPACES[width]
    if not (length := _LENGTH.match(width)):
        return ""
    size = float(length[1]) * _UNITS[length[2]]
    return r"\!" if size <= -0.1 else next((command for least, command in _WIDTHS if size >= least), "")


def tidy_tex(tex: str) -> str:
    r"""Returns TeX from a page without comments, delimiters and what only sets its size, on one line.

    >>> tidy_tex(r"{\displaystyle E=mc^{2}}"), tidy_tex(" $x\n +1$ "), tidy_tex("% <![CDATA[\n a 5\\% %]]>")
    ('E=mc^{2}', 'x +1', 'a 5\\%')
    """
    if "%" in tex:
        tex = _COMMENT.sub(lambda match: match[1] or "", tex)
    tex = _SPACE.sub(" ", tex).strip()
    for opening, closing in _DELIMITERS:
        inner = tex[len(opening) : -len(closing)]
        if tex.startswith(opening) and tex.endswith(closing) and len(tex) > len(opening) and closing not in inner:
            tex = inner.strip()
            break
    if (grouped := _GROUPED.match(tex)) and _is_balanced(grouped[1]):
        tex = grouped[1].strip()
    return _DISPLAYED.sub("", tex, count=1) if tex.startswith(r"\displaystyle") else tex


def _is_balanced(tex: str) -> bool:
    """Returns whether no brace closes before it opens, so that the braces around `tex` are a pair."""
    depth = 0
    for brace in re.findall(r"\\.|[{}]", tex):
        depth += (brace == "{") - (brace == "}")
        if depth < 0:
            return False
    return depth == 0
