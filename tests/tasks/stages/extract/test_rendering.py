"""Contract of tasks.stages.extract.rendering and its parts: the text of a page is what a browser shows."""

import time
from pathlib import Path

import pytest
from resiliparse.parse.html import HTMLTree

from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.html import read_page
from tasks.stages.extract.page_blocks import read_blocks
from tasks.stages.extract.rendering import render
from tasks.stages.extract.rendering.code_listings import code_language
from tasks.stages.extract.rendering.source import as_scripted, join_lines

STORY = "The harbour was quiet that morning, and the boats lay still until the wind came up from the south."
PARAGRAPH = f"<p>{STORY}</p>"
ALL = ("blocks", "resiliparse", "visible")
OPEN_STATES = ("resiliparse", "visible")
"""Extractors that keep every short text of a test page, which the classifier of blocks may drop."""


def shown(markup: str, extractor: str, language: str = "en") -> str:
    """Returns what an extractor finds of some markup between two paragraphs."""
    page = f"<html lang={language}><body><article>{PARAGRAPH}{markup}{PARAGRAPH}</article></body></html>"
    config = ExtractConfig.model_validate({"extractor": extractor})
    return read_page(page, config).text.replace(STORY, "").strip("\n")


def of_line(markup: str, language: str = "en") -> str:
    """Returns what all extractors find of some markup in a sentence, which must be the same."""
    begin, end = "In the year of the great wind they wrote: ", " was what they found on that day, and no more."
    texts = {shown(f"<p>{begin}{markup}{end}</p>", extractor, language) for extractor in ALL}
    assert len(texts) == 1, texts
    return texts.pop().removeprefix(begin.rstrip()).removesuffix(end.strip()).strip()


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("10<sup>8</sup> m", "10⁸ m"),
        ("CO<sub>2</sub> and SO<sub>4</sub><sup>2-</sup>", "CO₂ and SO₄²⁻"),
        ("<sup>14</sup>C", "¹⁴C"),
        ("x<sup>2</sup>, a<sub>n</sub>, 10<sup>\u22123</sup>", "x², aₙ, 10⁻³"),
        ("10<sup>n+1</sup> and x<sub>max</sub>", "10^{n+1} and x_{max}"),
        ("2<sup>q</sup>", "2^q"),
        ("x<sup>a<sub>2</sub></sup>", "x^{a₂}"),
        ("5<sup>1</sup>/<sub>2</sub> cups, 5<sup>7</sup>&frasl;<sub>16</sub> in", "5½ cups, 5 7/16 in"),
        ("Acme<sup>TM</sup> and Ajax<sup>®</sup>", "Acme™ and Ajax®"),
        ("20<sup>o</sup>C", "20°C"),
        ("<sup>A long note that is set in small letters above the line</sup>",) * 2,
    ],
)
def test_raised_and_lowered_text_keeps_its_meaning(markup: str, text: str) -> None:
    assert of_line(markup) == text.replace("<sup>", "").replace("</sup>", "")


@pytest.mark.parametrize(
    ("language", "markup", "text"),
    [
        ("en", "the 1<sup>st</sup>, 2<sup>nd</sup> and 11<sup>th</sup>", "the 1st, 2nd and 11th"),
        (
            "fr",
            "le 1<sup>er</sup> du XX<sup>e</sup>, n<sup>o</sup> 5, M<sup>lle</sup> X",
            "le 1er du XXe, no 5, Mlle X",
        ),
        ("fr", "D<sup>r</sup> Martin", "Dr Martin"),
        ("es", "1<sup>a</sup> y 2<sup>o</sup>", "1a y 2o"),
        ("de", "Mag.<sup>a</sup> Huber", "Mag.a Huber"),
        ("en", "2<sup>a</sup> and n<sup>r</sup>", "2ᵃ and nʳ"),
    ],
)
def test_letters_of_ordinals_and_abbreviations_stay_letters(language: str, markup: str, text: str) -> None:
    assert of_line(markup, language) == text


@pytest.mark.parametrize(
    ("mark", "left"),
    [
        ('<sup><a href="#fn1">1</a></sup>', ""),
        ('<a href="#_ftn2"><sup>b</sup></a>', ""),
        ('<sup class="reference"><a href="/wiki/X#cite_note-3">[3]</a></sup>', ""),
        ('<sup class="noprint"><i>[<a href="/wiki/W">citation needed</a>]</i></sup>', ""),
        ("<sup>[7]</sup>", ""),
        ('<sup><a href="/wiki/Square">2</a></sup>', "²"),
        ("<sup>2</sup>", "²"),
        ('<sup><a href="#top">see the long table below</a></sup>', "^{see the long table below}"),
    ],
)
def test_marks_of_footnotes_go_and_exponents_with_links_stay(mark: str, left: str) -> None:
    assert of_line(f"a word{mark}") == f"a word{left}"


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<span hidden>X</span>seen", "seen"),
        ("<span style='color: red; display:none'>X</span>seen", "seen"),
        ("<span style='visibility: hidden'>X</span>seen", "seen"),
        ("<span class='sr-only'>Share:</span> seen", "seen"),
        ("<i aria-hidden=true class='material-icons'>arrow_back</i>seen", "seen"),
        ("<i aria-hidden=true>\u2192</i>seen", "seen"),
        ("<b title='hidden display:none'>seen</b>", "seen"),
        ("<b hidden=until-found>seen</b>", "seen"),
        ("<b style='--display:none'>seen</b>", "seen"),
        ("<b class='katex'><i style='display:none'>left to the formulas</i></b>", "left to the formulas"),
    ],
)
def test_what_is_hidden_is_left_out_and_what_only_says_so_is_kept(markup: str, text: str) -> None:
    for extractor in ("blocks", "visible"):  # resiliparse leaves out more
        found = shown(f"<p>In the year of the great wind they had {markup} and wrote it down that day.</p>", extractor)
        assert found == f"In the year of the great wind they had {text} and wrote it down that day."


def test_hidden_elements_that_scripts_or_readers_reveal_and_hidden_headings_are_kept() -> None:
    tab = "<div id='tab-2' class='content' style='display: none'>Roast the chicken</div>"
    page = f"<body><div hidden>{PARAGRAPH * 9}</div>{tab}<h2><span class='sr-only'>Title</span></h2><p>Wait</p></body>"
    text = read_page(page, ExtractConfig(extractor="visible")).text
    assert text.count(STORY) == 9
    assert "Title" in text
    assert "Roast the chicken" in text


def test_the_cases_of_hidden_text(shared_data: Path) -> None:
    for path in sorted((shared_data / "cases" / "hidden").glob("*.html")):
        for extractor in ALL:
            text = read_page(path.read_text(), ExtractConfig.model_validate({"extractor": extractor})).text
            assert "SECRET" not in text
            assert ("TITLED" if "word" in path.name else "Prices start here") in text


def test_the_word_hidden_in_a_value_does_not_make_a_block_hidden() -> None:
    def is_hidden(tag: str) -> bool:
        page = read_blocks(HTMLTree.parse(f"<body>{tag}text"))
        assert page is not None
        return any("tag_hidden" in page_groups for page_groups in _names(page.groups))

    tags = ["<p title='the hidden cost'>", "<p class='a hidden b'>", "<p hidden>", "<p id=a style='display: none'>"]
    assert [is_hidden(tag) for tag in tags] == [False, False, True, True]


def _names(groups: list[tuple[int, ...]]) -> list[set[str]]:
    from tasks.stages.extract.page_blocks import GROUPS

    return [{GROUPS[index] for index in of} for of in groups]


@pytest.mark.parametrize(
    "inside",
    ["<div><img src=x>", "<table><tr><td>x", "<!-- x", "<iframe src=x>", "<p>Please turn on JavaScript</p>"],
)
@pytest.mark.parametrize("name", ["noscript", "NOSCRIPT", "NoScript"])
def test_noscript_ends_at_its_end_tag_whatever_is_in_it(name: str, inside: str) -> None:
    page = f"<body><p>Before</p><{name}>{inside}</{name} >{PARAGRAPH * 4}</body>"
    for extractor in ALL:
        text = read_page(page, ExtractConfig.model_validate({"extractor": extractor})).text
        assert text.count(STORY) == 4
        assert "JavaScript" not in text


def test_noscript_in_scripts_comments_and_values_is_no_element() -> None:
    source = (
        b"<script>'<noscript><div>'</script><!-- <noscript> --><a title='<noscript>'>b</a><noscript><div></noscript>c"
    )
    assert as_scripted(source) == source.replace(b"<noscript><div></noscript>", b"")


def test_a_page_whose_text_is_all_in_noscript_shows_it() -> None:
    fallback = PARAGRAPH * 9
    page = f"<body><script>app()</script><div id=app></div><noscript>{fallback}</noscript></body>"
    assert read_page(page).text.count(STORY) == 9
    note = "<body><div id=app></div><noscript>You need to enable JavaScript to run this app.</noscript></body>"
    assert not read_page(note).text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rt>じ</rt></ruby>を読む。", "漢字を読む。"),
        ("<ruby><rb>東京</rb><rtc><rt>とうきょう</rt></rtc></ruby>。", "東京。"),
        ("<ruby>word<rt>gloss</rt></ruby>", "wordgloss"),
        ("<span>我</span>爱<b>你</b>中国", "我爱你中国"),
        ("<em>où</em> <b>x</b> – <b>€</b> → <b>y</b>", "où x – € → y"),
        ("日本\n  語<b>の\n</b>文\nと\nEnglish と 東京", "日本語の文と English と 東京"),
        ("。\r\n「雪", "。「雪"),
        ("한국\n어", "한국 어"),
        ("ภาษา\nไทย", "ภาษา ไทย"),
        ("<a href=/a>东京</a>\n<a href=/b>大阪</a>", "东京 大阪"),
    ],
)
def test_chinese_and_japanese_text_is_whole_and_without_readings(markup: str, text: str) -> None:
    for extractor in OPEN_STATES:
        assert shown(f"<p>{markup}</p>", extractor, "ja") == text


def test_line_breaks_of_preformatted_text_stay() -> None:
    source = "<p>日本\n語</p><pre>日本\n語</pre><textarea>の\n文</textarea><p>日本\n語"
    assert join_lines(source) == "<p>日本語</p><pre>日本\n語</pre><textarea>の\n文</textarea><p>日本語"


_PYGMENTS = """<table class="highlighttable"><tr><td class="linenos"><pre>1\n2\n3</pre></td>
<td class="code"><pre><span class="k">def</span> f():\n\n    return 1\n</pre></td></tr></table>"""
_ROUGE = """<table class="rouge-table"><tr><td class="rouge-gutter gl"><pre class="lineno">1\n2\n</pre></td>
<td class="rouge-code"><pre>puts 1\n  puts 2\n</pre></td></tr></table>"""
_HIGHLIGHT_JS = """<pre><code><table class="hljs-ln"><tr><td class="hljs-ln-numbers"><div>1</div></td><td
class="hljs-ln-code">a {</td></tr><tr><td class="hljs-ln-numbers"></td><td>  42</td></tr></table></code></pre>"""
_GITHUB = """<table class="highlight"><tr><td class="blob-num" data-line-number=1></td><td class="blob-code">if a:</td>
</tr><tr><td class="blob-num" data-line-number=2></td><td class="blob-code">    b()</td></tr></table>"""
_HEXO = """<figure class="highlight"><table><tr><td class="gutter"><pre><span class="line">1</span><br></pre></td>
<td class="code"><pre><span class="line">a</span><br><span>  b</span><br></pre></td></tr></table></figure>"""


@pytest.mark.parametrize(
    ("markup", "code"),
    [
        (_PYGMENTS, "def f():\n\n    return 1"),
        (_ROUGE, "puts 1\n  puts 2"),
        (_HIGHLIGHT_JS, "a {\n  42"),
        (_GITHUB, "if a:\n    b()"),
        (_HEXO, "a\n  b"),
        ("<pre><span class=lineno> 9 </span>a\n<span class=lineno>10 </span>  b</pre>", "a\n  b"),
        ("<pre><code><span class=line>a</span>\n<span class=line>  b</span></code></pre>", "a\n  b"),
        (
            "<pre><code><span class=line>a</span><span class=line></span><span class=line>  b</span></code></pre>",
            "a\n\n  b",
        ),
        ("<pre><code><div>a</div><div><br></div>\n<div>  b</div></code></pre>", "a\n\n  b"),
        ("<pre><ol class=linenums><li>a</li><li>  b</li></ol></pre>", "a\n  b"),
        ("<div><pre>$ ls <button>Copy</button></pre><div class=copy-btn>Copy</div></div>", "$ ls"),
        ("<pre>    a\n\n\tb</pre>", "    a\n\n\tb"),
        ("<pre>x = <span class=line>[1]</span>\ny</pre>", "x = [1]\ny"),
    ],
)
def test_listings_have_one_line_per_line_and_no_numbers(markup: str, code: str) -> None:
    for extractor in OPEN_STATES:
        assert shown(markup, extractor) == code


def test_numbers_and_buttons_outside_of_listings_stay() -> None:
    text = shown("<p class=line-number>42 boats</p><p class=copy>Copy that</p><pre>a</pre><p>9</p>", "visible")
    assert "42 boats" in text
    assert "9" in text


@pytest.mark.parametrize(
    ("value", "language"),
    [
        ("hljs language-python", "python"),
        ("highlight-source-c++", "c++"),
        ("brush: java; toolbar: false", "java"),
        ("sourceCode haskell", "haskell"),
        ("prettyprint lang-c", "c"),
        ("highlight-python notranslate", "python"),
        ("src src-emacs-lisp", "emacs-lisp"),
        ("rust", "rust"),
        *((value, "") for value in ("", "hljs", "lang-en", "language-none", "highlight-box", "code-block")),
    ],
)
def test_the_class_of_a_listing_names_its_language(value: str, language: str) -> None:
    assert code_language(value) == language


def test_headings_and_soft_hyphens_are_read_as_before() -> None:
    text = shown("<h2>Big<br>title</h2><p>Schiff\u00adfahrt super<wbr>cali and a&nbsp;b</p>", "visible")
    assert text == "Big\ntitle\n\nSchifffahrt supercali and a b"


@pytest.mark.parametrize(
    "page",
    [
        "<noscript><div>" * 10_000,
        "<noscript>" + "<script>" * 20_000 + "</noscript>",
        "<!-- <noscript>" * 20_000 + "<noscript>",
        "字<b>\n" * 8_000,
        "字" + "<b>" * 900 + "\n" * 50_000,
        "<ruby>漢" + "<rt>か" * 5_000,
        "<p>" + "x<sup>1</sup><span hidden>y</span>" * 3_000,
        "<sup>" * 3_000 + "x" * 100_000,
        "<span class=sr-only aria-hidden=true hidden>" * 3_000 + "x" * 10_000,
        "<pre>" + "<div>" * 3_000 + "x\n" * 10_000,
        "<pre>" + "<span class=line>x</span><button>c</button>" * 3_000,
        "<pre>" + "<span class=lineno>" * 3_000 + "1" * 10_000,
        '<p title="' + "hidden style " * 50_000 + '">x',
    ],
)
def test_hostile_pages_take_linear_time(page: str) -> None:
    begun = time.process_time()
    source = as_scripted(page.encode())
    tree = HTMLTree.parse(join_lines(source.decode()))
    parsed = time.process_time()
    render(tree, source)
    read_blocks(tree)
    assert parsed - begun < 4
    assert time.process_time() - parsed < 2
