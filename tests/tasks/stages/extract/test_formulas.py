"""Contract of tasks.stages.extract.formulas: each rendered formula of a page stands in its text once, as TeX."""

import re
import time
from pathlib import Path

import pytest
from resiliparse.parse.html import HTMLTree

from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.formulas import write_formulas
from tasks.stages.extract.html import read_page
from tests.soak import soak_but

PARAGRAPH = "<p>The harbour was quiet that morning, and the boats lay still until the wind came up from the south.</p>"
ROW = "<mi>E</mi><mo>=</mo><mi>m</mi><msup><mi>c</mi><mn>2</mn></msup>"
NOTE = '<annotation encoding="application/x-tex">E=mc^2</annotation>'
MATH = f"<math><semantics><mrow>{ROW}</mrow>{NOTE}</semantics></math>"
BLOCK = MATH.replace("<math>", '<math display="block">')
HIDDEN = '<span class="katex-html" aria-hidden="true"><span class="base">E=mc2</span></span>'
KATEX = f'<span class="katex"><span class="katex-mathml">{MATH}</span>{HIDDEN}</span>'
PREVIEW = '<span class="MathJax_Preview">E=mc2</span>'
BOXES = f'<nobr aria-hidden="true">E=mc2</nobr><span class="MJX_Assistive_MathML"><math>{ROW}</math></span>'
ASSISTIVE = f"<mjx-assistive-mml><math>{ROW}</math></mjx-assistive-mml>"
FALLBACK = r'alt="{\displaystyle E=mc^2}"'
CELL = '<td class="ltx_eqn_cell">'
NUMBER = f'{CELL}<span class="ltx_tag ltx_tag_equation">(7)</span></td>'

INLINE = {
    "mathml": MATH,
    "mathml without annotation": f"<math>{ROW}</math>",
    "hidden mathml and a picture": f'<span style="display: none">{MATH}</span><img src="x.svg" alt="E=mc^2">',
    "katex": KATEX,
    "katex as mathml only": f'<span class="katex">{MATH}</span>',
    "katex error": '<span class="katex-error" title="ParseError" style="color:#cc0000">E=mc^2</span>',
    "mathjax 2": f'{PREVIEW}<span class="MathJax">{BOXES}</span><script type="math/tex">E=mc^2</script>',
    "mathjax 2 before it ran": f'{PREVIEW}<script type="math/tex">% <![CDATA[\nE=mc^2 %]]></script>',
    "mathjax 2 without script": f'<span class="MathJax">{BOXES}</span>',
    "mathjax 2 with an attribute": f"<span class='MathJax_SVG' data-mathml='<math>{ROW}</math>'><svg></svg></span>",
    "mathjax 2 of mathml": f'<script type="math/mml">{MATH}</script>',
    "mathjax 3 of boxes": f'<mjx-container jax="CHTML"><mjx-math><mjx-c></mjx-c></mjx-math>{ASSISTIVE}</mjx-container>',
    "mathjax 3 of svg": f'<mjx-container jax="SVG"><svg><g data-mml-node="math"></g></svg>{ASSISTIVE}</mjx-container>',
    "mathjax 4": '<mjx-container><mjx-math data-latex="E=mc^2"><mjx-c>E</mjx-c></mjx-math></mjx-container>',
    "mediawiki": f'<span class="mwe-math-element"><span class="mwe-math-mathml-inline" style="display:none">{MATH}'
    f'</span><img src="x" class="mwe-math-fallback-image-inline" aria-hidden="true" {FALLBACK}></span>',
    "mediawiki picture": f'<span class="mwe-math-element"><img src="x" {FALLBACK}></span>',
    "mathml with a prefix": MATH.replace("</", "</mml:").replace("<", "<mml:").replace("<mml:/mml:", "</mml:"),
    "attribute": '<span class="ztext-math" data-tex="E=mc^2"><span>E=mc2</span></span>',
    "stack exchange": f'<span class="math-container">{KATEX}</span>',
    "latexml": f'<math class="ltx_Math" alttext="E=mc^2" display="inline">{ROW}</math>',
    "pandoc": '<span class="math inline">E=mc^2</span>',
    "pandoc html": '<span class="math inline"><em>E</em> = <em>m</em><em>c</em><sup>2</sup></span>',
    "sphinx picture": '<img class="math" src="_images/math/4f.png" alt="E=mc^2">',
    "wordpress": '<img src="https://s0.wp.com/latex.php?latex=E%3Dmc%5E2&amp;bg=ffffff" alt="E=mc^2" class="latex">',
    "wordpress without text": '<img src="//s0.wp.com/latex.php?latex=E%3Dmc%5E2&amp;bg=fff&amp;s=0">',
    "codecogs": r'<img src="https://latex.codecogs.com/svg.image?\inline&amp;space;\dpi{110}E=mc^2">',
    "codecogs encoded": '<img src="https://latex.codecogs.com/gif.latex?%5Clarge%20E%3Dmc%5E2" alt="equation">',
    "mimetex, loaded late": '<img class="x" src="/clear.gif" data-src="https://latex.x.org/cgi-bin/mimetex.cgi?E=mc^2">',
    "mathtex": '<img src="/cgi-bin/mathtex.cgi?E=mc^2">',
    "github": '<img class="math" src="https://render.example/render/math?math=E%3Dmc%5E2">',
}
DISPLAYED = {
    "mathml": BLOCK,
    "katex": f'<span class="katex-display">{KATEX}</span>',
    "mathjax 2": f'<div class="MathJax_Display"><span class="MathJax">{BOXES}</span></div>'
    '<script type="math/tex; mode=display">E=mc^2</script>',
    "mathjax 3": f'<mjx-container jax="SVG" display="true"><svg></svg>{ASSISTIVE}</mjx-container>',
    "mediawiki": f'<div class="mwe-math-element"><div style="display:none">{MATH}</div>'
    f'<img src="x" class="mwe-math-fallback-image-display" {FALLBACK}></div>',
    "pandoc": '<span class="math display">E=mc^2</span>',
    "quicklatex": '<img src="quicklatex.com-1.png" class="ql-img-displayed-equation" alt="E=mc^2">',
    "sphinx picture": '<div class="math"><p><img src="x.png" alt="E=mc^2" class="math"></p></div>',
    "latexml": f'<table class="ltx_equation ltx_eqn_table"><tr class="ltx_eqn_row">{CELL}</td>{CELL}{MATH}</td></tr>'
    "</table>",
}
AS_THEY_ARE = {
    "inline source": r"\(E=mc^2\)",
    "displayed source": r"$$E=mc^2$$",
    "sphinx": r'<span class="math notranslate nohighlight">\(E=mc^2\)</span>',
    "pandoc": r'<span class="math inline">\(E=mc^2\)</span>',
    "stack exchange": '<span class="math-container">$E=mc^2$</span>',
    "dollars": "from $5 to $6 for mathematics in latex",
    "photograph": '<img src="math.jpg" class="photo" alt="E = mc^2">',
    "nested example": f"<pre><b><i>{MATH}</i></b></pre>",
    "example": "<code>&lt;math&gt;x&lt;/math&gt;</code> and <code><span class=katex-error>x</span></code>",
}


def page(markup: str) -> str:
    sentence = f"<p>Every sailor of this harbour knows that {markup} holds for all of the boats that lie in it.</p>"
    return f"<html><head><title>x</title></head><body><article>{PARAGRAPH * 2}{sentence}{PARAGRAPH * 2}</article>"


def text_of(html: str, extractor: str = "blocks") -> str:
    if extractor == "trafilatura":
        pytest.importorskip("trafilatura", reason="the extra `careful` is not installed")
    return read_page(html, ExtractConfig.model_validate({"extractor": extractor})).text


@pytest.mark.parametrize("extractor", soak_but({0, 1, 2}, ["blocks", "resiliparse", "visible", "trafilatura"]))
@pytest.mark.parametrize("markup", INLINE.values(), ids=INLINE)
def test_a_formula_in_a_sentence_stands_there_once(markup: str, extractor: str) -> None:
    text = text_of(page(markup), extractor)
    assert "knows that $E=mc^2$ holds" in text
    assert text.count("mc") == 1


@pytest.mark.parametrize("extractor", soak_but({0, 1, 2}, ["blocks", "resiliparse", "visible", "trafilatura"]))
@pytest.mark.parametrize("markup", DISPLAYED.values(), ids=DISPLAYED)
def test_a_displayed_formula_is_a_line_of_its_own(markup: str, extractor: str) -> None:
    text = text_of(page(markup), extractor)
    assert re.search(r"knows that\n+\$\$E=mc\^2\$\$\n", text)
    assert text.count("mc") == 1


@pytest.mark.parametrize("extractor", ["blocks", "resiliparse", "visible"])
def test_a_displayed_formula_between_paragraphs_belongs_to_them(extractor: str) -> None:
    text = text_of(f"<body><article>{PARAGRAPH * 3}<div>{BLOCK}</div><div>{BLOCK}</div>{PARAGRAPH * 3}", extractor)
    assert text.count("$$E=mc^2$$") == 2
    source = text_of(f"<body><article>{PARAGRAPH * 3}<div>\\[E=mc^2\\]</div>{PARAGRAPH * 3}", extractor)
    assert r"\[E=mc^2\]" in source


def test_an_extractor_that_parses_for_itself_reads_the_formulas_as_well() -> None:
    text = text_of(page(KATEX), "trafilatura")
    assert "knows that $E=mc^2$ holds" in text
    assert text.count("mc") == 1


@pytest.mark.parametrize("markup", AS_THEY_ARE.values(), ids=AS_THEY_ARE)
def test_text_that_is_no_rendered_formula_is_left_as_it_is(markup: str) -> None:
    html = page(f"{markup}, in math and latex,")
    tree = HTMLTree.parse(html)
    before = str(tree)
    assert not write_formulas(tree, html.encode())
    assert str(tree) == before


def test_numbers_of_equations_are_tags() -> None:
    row = f'<tr class="ltx_equation">{CELL}<math alttext="a">a</math></td>{CELL}<math alttext="\\leq b">b</math></td>'
    table = f'<table class="ltx_equationgroup">{row}{NUMBER}</tr>{row}</tr></table>'
    assert re.search(r"\n\$\$a \\leq b \\tag\{7\}\$\$\n+\$\$a \\leq b\$\$\n", text_of(page(table)))
    picture = (
        '<div class="math"><p><span class="eqno">(3)<a href="#x">¶</a></span><img class="math" alt="x^2"></p></div>'
    )
    assert "\n$$x^2 \\tag{3}$$\n" in text_of(page(picture))


def test_nested_tables_are_no_table_of_equations() -> None:
    table = f'<table class="ltx_equation"><tr><td><table><tr><td>{MATH}</td></tr></table></td></tr></table>'
    assert text_of(page(table), "visible").count("E=mc^2") == 1


def test_chemical_formulas_keep_their_source() -> None:
    assert r"that $\ce{H2O}$ holds" in text_of(page(KATEX.replace("E=mc^2", r"\ce{H2O}")))


def test_neighbors_stay_apart_and_words_in_a_table_of_equations_stay() -> None:
    assert "that $E=mc^2$ $E=mc^2$ holds" in text_of(page(MATH * 2))
    table = f'<table class="ltx_equation"><tr><td>where</td><td>{MATH}</td></tr></table>'
    assert re.search(r"where\s+\$E=mc\^2\$", text_of(page(table), "visible"))


@pytest.mark.parametrize("name", ["0-plain-mathml", "1-katex", "2-mediawiki"])
@pytest.mark.parametrize("extractor", ["blocks", "resiliparse", "visible"])
def test_reported_pages_hold_their_formula_once(shared_data: Path, name: str, extractor: str) -> None:
    text = text_of((shared_data / "cases/mathml" / f"{name}.html").read_text(), extractor)
    assert text.startswith("Energy $E=mc^2$ and a long text")
    assert text.count("mc") == 1


@pytest.mark.parametrize(
    "markup",
    [
        "<span class=katex>" * 3_000 + MATH,
        "<math>" * 3_000,
        MATH * 3_000,
        "<mjx-container>" * 3_000 + MATH * 500,
        "<table class=ltx_equation><tr>" + f"<td>{MATH}</td>" * 3_000,
        f"<span class=MathJax></span>{PREVIEW}" * 3_000 + '<script type="math/tex">x</script>',
        "<div>" * 3_000 + "<img class=math alt=x_1>" * 3_000,
    ],
    ids=["open katex", "open math", "many", "open containers", "cells", "previews", "deep pictures"],
)
def test_pages_made_to_stall_take_bounded_time(markup: str) -> None:
    tree, begun = HTMLTree.parse(f"<body>{markup}"), time.process_time()
    write_formulas(tree, markup.encode())
    assert time.process_time() - begun < 4
