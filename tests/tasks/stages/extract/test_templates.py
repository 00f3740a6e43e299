"""Pages of known software: what is in the element of the content is main text, but for the boxes in it."""

from tasks.stages.extract.html import read_page

_MENU = "".join(f'<li><a href="/wiki/{number}">Library number {number}</a></li>' for number in range(30))

_WIKI = f"""<html><head><title>lcm - Reference</title></head><body class="mediawiki ltr site-navbar">
<div id="mw-navigation"><ul>{_MENU}</ul></div>
<h1 id="firstHeading" class="firstHeading">lcm</h1>
<div id="mw-content-text" lang="en"><div class="t-navbar"><ul>{_MENU}</ul></div>
<table class="declarations"><tr><td>Defined in header &lt;numeric&gt;</td><td></td></tr>
<tr><td>int lcm(int m, int n);</td><td>(since 2017)</td></tr></table>
<p>Computes the least common multiple of the integers m and n, which is zero if one of the two is zero.</p>
<h2>Example<span class="mw-editsection">[<a href="/edit">edit</a>]</span></h2>
<h2>See also</h2><table><tr><td><a href="/gcd">gcd</a></td><td>greatest common divisor</td></tr>
<tr><td><a href="/pow">pow</a></td><td>power</td></tr></table>
<ol class="references"><li><span class="mw-cite-backlink">^ </span>Euclid, Elements</li></ol>
<table class="navbox"><tr><td><ul>{_MENU}</ul></td></tr></table></div>
<div id="catlinks">Categories: Numbers</div></body></html>"""


def test_the_content_of_a_wiki_is_main_text_without_its_boxes_and_controls() -> None:
    text = read_page(_WIKI).text
    assert [line for line in text.splitlines() if line] == [
        "lcm",
        "Defined in header <numeric>",
        "int lcm(int m, int n);\t(since 2017)",
        "Computes the least common multiple of the integers m and n, which is zero if one of the two is zero.",
        "Example",
        "See also",
        "gcd\tgreatest common divisor",
        "pow\tpower",
        "Euclid, Elements",
    ]


def test_sections_named_like_boxes_and_elements_nested_deeply_are_read() -> None:
    prose = "The ship was steered by the stars, and later by a clock that kept the time of the harbor it had left."
    deep = '<div id="mw-content-text">' * 3_000
    page = f"""<html><body>{deep}<h2 id="Navigation">Navigation</h2><section id="Navigation-2"><p>{prose}</p></section>
    <li id="cite_note-metadata-3">Sobel, Longitude</li>{"<p>a word</p>" * 3_000}{"</div>" * 3_000}</body></html>"""
    lines = [line for line in read_page(page).text.splitlines() if line]
    assert lines[:3] == ["Navigation", prose, "Sobel, Longitude"]
    assert len(lines) == 3_003


def test_the_tables_of_links_of_a_docbook_reference_are_main_text() -> None:
    rows = "".join(f'<tr><td>gint</td><td><a href="#{name}">{name} ()</a></td></tr>' for name in ("g_abs", "g_min"))
    page = f"""<html><body><table class="navigation"><tr><td><a href="index.html">Home</a></td></tr></table>
    <div class="refentry"><h2>Standard Macros</h2><div class="refsect1"><h2>Functions</h2>
    <table class="informaltable">{rows}</table></div>
    <p>These macros provide more specialized features which are not needed so often by application programmers.</p>
    <table class="navigation"><tr><td>Next</td><td><a href="n.html">Memory</a></td></tr></table></div></body></html>"""
    text = read_page(page).text
    assert "gint\tg_abs ()\ngint\tg_min ()" in text
    assert text.startswith("Standard Macros")
    assert text.endswith("application programmers.")
