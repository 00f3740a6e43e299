"""Contract of tasks.formats.web.mathml: a formula in MathML as TeX."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.formats.web.mathml import tex_of_mathml
from tasks.formats.web.mathml_tree import MAX_ELEMENTS, MAX_LENGTH

X, Y, N = "<mi>x</mi>", "<mi>y</mi>", "<mn>2</mn>"
LESS = "<mo>&lt;</mo>"
HALF = "<mfrac><mn>1</mn><mi>x</mi></mfrac>"
CELLS = "<mtr><mtd><mi>a</mi></mtd><mtd><mi>b</mi></mtd></mtr><mtr><mtd><mi>c</mi></mtd><mtd><mi>d</mi></mtd></mtr>"
TABLE = f"<mtable>{CELLS}</mtable>"
LINES = "<mtr><mtd><mi>i</mi></mtd></mtr><mtr><mtd><mi>j</mi></mtd></mtr>"
STATED = '<annotation encoding="{}">{}</annotation>'


@pytest.mark.parametrize(
    ("presentation", "tex"),
    [
        (f"<mi>E</mi><mo>=</mo><mi>m</mi><msup><mi>c</mi>{N}</msup>", "E=mc^2"),
        ("<mi>α</mi><mo>≤</mo><mi>Γ</mi>", r"\alpha\leq\Gamma"),
        ("<mi>α</mi><mi>x</mi><mo>∈</mo><mi>ℝ</mi>", r"\alpha x\in\mathbb{R}"),
        ('<mi mathvariant="double-struck">Z</mi><mi mathvariant="bold">v</mi>', r"\mathbb{Z}\mathbf{v}"),
        ('<mi mathvariant="script">L</mi><mi mathvariant="normal">d</mi>', r"\mathcal{L}\mathrm{d}"),
        ('<mi mathvariant="normal">a</mi><mi mathvariant="normal">b</mi><mi>c</mi>', r"\mathrm{ab}c"),
        ("<mi>𝔤</mi><mi>𝐱</mi><mi>𝑥</mi><mi>𝜷</mi><mi>𝗔</mi>", r"\mathfrak{g}\mathbf{x}x\boldsymbol{\beta}\mathsf{A}"),
        ("<mi>sin</mi><mo>\u2061</mo><mi>x</mi>", r"\sin x"),
        ("<mi>rank</mi><mo>\u2061</mo><mi>A</mi>", r"\operatorname{rank}A"),
        ("<mi>a</mi><mo>\u2062</mo><mi>b</mi><mo>\u2063</mo><mi>c</mi><mo>\u2064</mo><mi>d</mi>", "abcd"),
        ("<mi>speed</mi>", r"\mathrm{speed}"),
        (f"<mfrac>{X}{N}</mfrac>", r"\frac{x}{2}"),
        (f"<msqrt>{X}<mo>+</mo>{Y}</msqrt><mroot>{X}<mn>3</mn></mroot>", r"\sqrt{x+y}\sqrt[3]{x}"),
        (f"<msub>{X}<mrow><mi>i</mi><mi>j</mi></mrow></msub>", "x_{ij}"),
        (f"<msubsup>{X}<mi>i</mi>{N}</msubsup>", "x_i^2"),
        (f"<msup><msup>{X}{Y}</msup>{N}</msup>", "{x^y}^2"),
        (f"<msup><mi>f</mi><mo>′</mo></msup><mo>+</mo><msup>{X}<mo>∘</mo></msup>", r"f'+x^{\circ}"),
        (
            "<mmultiscripts><mi>F</mi><mn>1</mn><none></none><mprescripts></mprescripts><mn>2</mn><none></none>"
            "</mmultiscripts>",
            "{}_2F_1",
        ),
        (f"<munderover><mo>∑</mo><mi>i</mi><mi>n</mi></munderover>{X}", r"\sum_i^nx"),
        (f"<munder><mi>lim</mi><mrow>{X}<mo>→</mo><mn>0</mn></mrow></munder>", r"\lim_{x\to0}"),
        (f"<munder><mi>argmin</mi>{X}</munder>", r"\operatorname*{argmin}_x"),
        ("<munderover><mo>∫</mo><mi>a</mi><mi>b</mi></munderover>", r"\int\limits_a^b"),
        (f"<munder><mo>∑</mo><mtable>{LINES}</mtable></munder>", r"\sum_{\substack{i \\ j}}"),
        (f"<mover>{X}<mo>^</mo></mover><mover>{Y}<mo>→</mo></mover>", r"\hat{x}\vec{y}"),
        (f"<mover><mrow>{X}{Y}</mrow><mo>¯</mo></mover>", r"\overline{xy}"),
        (f"<munder><munder><mrow>{X}<mo>+</mo>{Y}</mrow><mo>⏟</mo></munder>{N}</munder>", r"\underbrace{x+y}_2"),
        ("<mover><mo>→</mo><mi>f</mi></mover><mover><mo>=</mo><mo>!</mo></mover>", r"\xrightarrow{f}\overset{!}{=}"),
        (f"<mrow><mo>(</mo>{TABLE}<mo>)</mo></mrow>", r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}"),
        (f"<mo>[</mo>{TABLE}<mo>]</mo>", r"\begin{bmatrix} a & b \\ c & d \end{bmatrix}"),
        (f"<mo>|</mo>{TABLE}<mo>|</mo>", r"\begin{vmatrix} a & b \\ c & d \end{vmatrix}"),
        (f"<mi>f</mi><mo>=</mo><mo>{{</mo>{TABLE}", r"f=\begin{cases} a & b \\ c & d \end{cases}"),
        (f'<mtable columnalign="right left">{CELLS}</mtable>', r"\begin{aligned} a & b \\ c & d \end{aligned}"),
        (
            f'<mtable columnalign="left right" columnlines="solid">{CELLS}</mtable>',
            r"\begin{array}{l|r} a & b \\ c & d \end{array}",
        ),
        (f"<mtable><mlabeledtr><mtd><mtext>(1)</mtext></mtd><mtd>{X}</mtd></mlabeledtr></mtable>", r"x \tag{1}"),
        (f"<mo>(</mo>{HALF}<mo>)</mo>", r"\left(\frac{1}{x}\right)"),
        (f'<mo stretchy="false">(</mo>{HALF}<mo stretchy="false">)</mo>', r"(\frac{1}{x})"),
        (f'<mo fence="true">(</mo>{X}<mo fence="true">)</mo>', r"\left(x\right)"),
        (f'<mrow>{X}<mo fence="true">|</mo></mrow>', r"\left.x\right|"),
        (f"<mo>[</mo><mn>0</mn><mo>,</mo>{X}<mo>)</mo><mi>f</mi><mo>(</mo>{X}<mo>)</mo>", "[0,x)f(x)"),
        ('<mo>(</mo><mfrac linethickness="0"><mi>n</mi><mi>k</mi></mfrac><mo>)</mo>', r"\binom{n}{k}"),
        (f'<mfenced open="[" close="]" separators=";">{X}{Y}</mfenced>', "[x;y]"),
        (f'<menclose notation="box">{X}</menclose><mphantom>{Y}</mphantom>', r"\boxed{x}\phantom{y}"),
        (f'{X}<mspace width="1em"></mspace><mtext>if&nbsp;</mtext>{Y}', r"x\quad\text{if }y"),
        (f"<mn>5</mn><mi>%</mi><mo>#</mo><mo>{{</mo>{X}<mo>}}</mo><mo>_</mo>", r"5\%\#\{x\}\_"),
        ("<mtext>a_b ~ 5$</mtext>", r"\text{a\_b \textasciitilde{} 5\$}"),
        (f"{X}{LESS}{Y}<mo>&amp;</mo><mo>−</mo><mn>1</mn>", r"x<y\&-1"),
        (f"<mstyle><mpadded>{X}</mpadded></mstyle><semantics>{Y}<annotation>why</annotation></semantics>", "xy"),
        (f"<mi><mover><mo><mi>y</mi></mo>{X}</mover></mi>", r"\overset{x}{y}"),
    ],
)
def test_presentation_elements_are_written_as_tex(presentation: str, tex: str) -> None:
    assert tex_of_mathml(f"<math>{presentation}</math>") == tex


@pytest.mark.parametrize(
    ("encoding", "annotation", "tex"),
    [
        ("application/x-tex", "E=mc^2", "E=mc^2"),
        ("TeX", r"{\displaystyle E=mc^{2}}", "E=mc^{2}"),
        ("LaTeX", r"{\textstyle {\frac {a}{b}}}", r"{\frac {a}{b}}"),
        ("application/x-tex", r"\displaystyle\alpha_{1}", r"\alpha_{1}"),
        ("application/x-tex", "\n  a &amp; b % note\n \\\\ 5\\% ", r"a & b \\ 5\%"),
        ("application/x-tex", r"\[x\]", "x"),
        ("application/x-tex", r"{\displaystyle a}+{b}", r"{\displaystyle a}+{b}"),
        ("application/x-tex", r"\ce{H2O}", r"\ce{H2O}"),
        ("StarMath 5.0", "x over 2", "y"),
        ("application/x-tex", " ", "y"),
    ],
)
def test_the_tex_of_an_annotation_counts_without_what_is_around_it(encoding: str, annotation: str, tex: str) -> None:
    assert tex_of_mathml(f"<math><semantics>{Y}{STATED.format(encoding, annotation)}</semantics></math>") == tex


def test_an_alternative_text_counts_if_it_is_tex() -> None:
    assert tex_of_mathml(f'<math class="ltx_Math" alttext="a&lt;b">{X}</math>') == "a<b"
    assert tex_of_mathml(f'<math data-latex="x_0">{X}</math>') == "x_0"
    assert tex_of_mathml(f'<math alttext="x squared">{X}</math>') == "x"


PARTS = (X, "<mo>(</mo>", "<mo>|</mo>", "<mtext>a\nb</mtext>", "a\n", "")


@given(st.recursive(st.sampled_from(PARTS), lambda part: st.builds(
    lambda name, parts: f"<{name}>{''.join(parts)}</{name}>",
    st.sampled_from(["mrow", "mfrac", "msub", "mover", "munderover", "mtable", "mtr", "mtd", "mmultiscripts", "mo"]),
    st.lists(part, max_size=4),
)))  # fmt: skip
def test_any_nesting_of_elements_has_tex_on_one_line(markup: str) -> None:
    assert "\n" not in tex_of_mathml(f"<math>{markup}</math>")


@pytest.mark.parametrize(
    "markup",
    [
        "<mrow>" * 3_000 + X + "</mrow>" * 3_000,
        "<mo>(</mo>" * 9_000 + "<mo>)</mo>" * 9_000,
        f"<msup>{X}" * 3_000 + "</msup>" * 3_000,
        "<mo>|</mo>" * 19_000,
        "<" * 1_000_000,
        "'" * 1_000_000,
        "<mi>" + r"\%{" * 500_000,
        ("<mrow>" + "<mo>(</mo>" * 20) * 10 + f"<mtext>{'%' * 100_000}</mtext>",
        '<mi mathvariant="normal">a</mi>' * 19_000,
        f"<mmultiscripts>{X * 19_000}</mmultiscripts>",
        f"<!-- a > b -->{X}",
    ],
    ids=[
        *("rows", "parentheses", "scripts", "bars", "less", "primes", "specials"),
        *("text", "letters", "multiscripts", "comment"),
    ],
)
def test_formulas_made_to_stall_take_linear_time(markup: str) -> None:
    begun = time.process_time()
    tex_of_mathml(f"<math>{markup}</math>")
    assert time.process_time() - begun < 2


def test_too_large_formulas_have_no_tex() -> None:
    assert not tex_of_mathml(f"<math>{X * MAX_ELEMENTS}</math>")
    assert not tex_of_mathml(f"<math>{'x' * MAX_LENGTH}</math>")
