"""Contract of tasks.stages.crawl.page.links: no page inflates in the parser, and none loses a link."""

import gzip
import random

import pytest
from selectolax.lexbor import LexborHTMLParser

from tasks.formats.web.robots_tag import Directives
from tasks.stages.crawl.page.links import REPORTED, defuse, flatten, parse_page, restore_names

FORMATTING = ["a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"]


BLANKS = " >/\t\n\f\r"


def numbered(piece: str, count: int) -> str:
    return "".join(piece % number for number in range(count))


def attributes(count: int) -> str:
    return " ".join(f"a{number}" for number in range(count))


BOMBS = {
    "blocks closed over formatting": "<div>" * 1020 + numbered("<b a=%d>", 1020) + "</div>x" * 1020,
    "116 kB of it": "<div>" * 3000 + numbered("<b a=%d>", 6000) + "</div>x" * 3000,
    "paragraphs behind formatting": "<p>" + numbered("<b a=%d>", 500) + "<p>x" * 10_000,
    "attributes of a link": f"<p><a {attributes(3000)}>" + "<p>x" * 5000,
    "bytes of a link": "<p><a x='" + "y" * 16_000 + "'>" + "<p>x" * 20_000,
    "three of each name": "<p>" + "".join(f"<{name}>" * 3 for name in FORMATTING) + "<p>x" * 20_000,
    "end tags that adopt": f"<b {attributes(1000)}>" + ("<div>" * 8 + "</b>") * 250,
    "end tags that adopt others": numbered("<i a=%d>", 900) + f"<b {attributes(1000)}>" + "<div>" * 8 + "</i>" * 900,
    "hidden end tags": "<p>" + numbered("<b a=%d><!--</b>-->", 500) + "<p>x" * 5000,
    "end tags in values": "<p>" + numbered("<b a=%d x='</b>'>", 500) + "<p>x" * 5000,
    "end tags in tables": "<p>" + numbered("<b a=%d>", 500) + "<table><td>" + "</b>" * 500 + "</table>" + "<p>x" * 5000,
    "tables": numbered("<nobr a=%d><table><tr><td>", 900) + "x",
    "items": "<ul>" + numbered("<b a=%d><li>", 4000),
    "markers": numbered("<b a=%d><marquee></marquee><p>", 1000),
    "other cases and blanks": "<p>"
    + numbered("<B\fa=%d><StronG/a=%d>".replace("%d", "%%d", 1) % 1, 500)
    + "<p>x" * 5000,
    "nested": "<dl>" * 30_000,
    "options": "<select>" + "<option>x" * 10_000,
    "attributes of the body": numbered("<body a%d>", 10_000),
    "attributes of the root": numbered("<html a%d=1>", 10_000),
}


def elements(html: bytes) -> tuple[int, int]:
    """The number of elements and attributes of a parsed page."""
    found = LexborHTMLParser(html).css("*")
    return len(found), sum(len(one.attributes) for one in found)


@pytest.mark.parametrize("name", BOMBS)
def test_no_page_has_more_elements_or_attributes_than_its_source(name: str) -> None:
    html = BOMBS[name].encode()
    count, held = elements(defuse(html).source)
    assert count <= html.count(b"<") + 3
    assert held <= len(html) / 2


def test_without_flattening_the_pages_are_bombs() -> None:
    count, held = elements(BOMBS["paragraphs behind formatting"].encode()[: 4000 + 2000])
    assert count > 50_000
    assert held > 50_000


def depth(html: bytes) -> int:
    deepest, level, node = 0, 0, LexborHTMLParser(html).root
    while node is not None:
        deepest = max(deepest, level)
        if node.child is not None:
            node, level = node.child, level + 1
            continue
        while node is not None and node.next is None:
            node, level = node.parent, level - 1
        node = node.next if node is not None else None
    return deepest


@pytest.mark.parametrize(
    "piece", ["<div>", "<x-y a=1>", "<p><dl>", "<ruby><rt>", "<q\v>", "<x<x><x>", "<svg><a>", "<div/a=1>"]
)
def test_a_flattened_page_is_flat(piece: str) -> None:
    assert depth((piece * 3000).encode()) > 500
    assert depth(flatten((piece * 3000).encode())) < 8
    assert depth(defuse((piece * 3000).encode()).source) < 8


PAGE = b"""<!doctype html><html lang=de><head><title>A <b>bold</b> page</title><base href="/b/">
<meta name=robots content=noarchive><link rel=canonical href=c><style>p<a{}</style></head>
<body class=x><div><p>Some <A HREF=1>text</A> of <strong class=y>two</strong> words</p><area href=2>
<script>"<a href=no>"</script><!-- <a href=no> --><iframe src=4></iframe><svg><a xlink:href=5>x</a></svg>
<textarea><a href=no></textarea><table><td><a
href=6>x</table><a rel=nofollow href=no><a/href=7><aside href=no></aside><code/><i title="<a href=no>">x</div>"""


def said(html: bytes) -> tuple[object, ...]:
    page = parse_page(html, "http://h/a", "sluice", Directives(), "utf-8")
    paths = [link.url.removeprefix("http://h/b/") for link in page.links]
    return paths, page.noarchive, page.canonicals, page.title, page.text_chars


def test_flattening_keeps_text_and_links() -> None:
    links = ["1", "2", "4", "5", "6", "7"]
    whole = said(PAGE)
    assert whole[:3] == (links, True, ("http://h/b/c",))
    deep = said(PAGE + b"<div>" * 5000)
    assert deep[:3] == whole[:3]
    assert deep[3:] == ("A bold page", 40)
    assert whole[3:] == ("A <b>bold</b> page", 36)


def hrefs(html: bytes, selector: str) -> list[str]:
    found = [one.attributes.get("href") or "" for one in LexborHTMLParser(html).css(selector)]
    return list(dict.fromkeys(found))


def test_real_pages_keep_every_link_in_order(shared_data) -> None:  # type: ignore[no-untyped-def]
    pages = [gzip.decompress(path.read_bytes()) for path in sorted((shared_data / "extraction_html/html").iterdir())]
    selector = "z[href], area[href]"
    assert len(pages) > 50
    for page in pages:
        wanted = hrefs(page, "a[href], area[href]")
        # A reopened link appears again, and content moved out of a table appears elsewhere.
        assert sorted(hrefs(defuse(page).source, selector)) == sorted(wanted)
        # Templates also have links, which a parser separates.
        assert set(hrefs(flatten(page), selector)) >= set(wanted)


def test_only_names_of_formatting_elements_change_by_one_letter() -> None:
    chance = random.Random(3)
    others = ["aside", "area", "br", "body", "button", "col", "embed", "form", "img", "style", "script", "sub", "span"]
    others += ["ul", "noscript", "template", "td", "th", "track", "input", "iframe", "section", "select", "summary"]
    for _ in range(300):
        name = chance.choice([*FORMATTING, *others])
        written = "".join(chance.choice([letter, letter.upper()]) for letter in name)
        tag = f"x<{chance.choice(['', '/'])}{written}{chance.choice(BLANKS)}a="
        changed = defuse(tag.encode()).source.decode()
        different = [place for place, pair in enumerate(zip(tag, changed, strict=True)) if pair[0] != pair[1]]
        assert different == ([tag.index(written)] if name in FORMATTING else [])
        assert restore_names(changed) == tag


def test_a_url_that_contains_tags_is_unchanged() -> None:
    page = parse_page(b"<a href='/find?q=<b>&r=<code>'>x</a>", "http://h/", "sluice", Directives())
    assert [link.url for link in page.links] == ["http://h/find?q=%3Cb%3E&r=%3Ccode%3E"]


@pytest.mark.parametrize("html", [b"", b"<", b"</", b"<a", b"</a", b"a<b", b"<" * 5000, b"</" * 5000, b"<b" * 5000])
def test_a_truncated_page_is_accepted(html: bytes) -> None:
    assert len(defuse(html).source) <= 2 * len(html)
    assert flatten(html).count(b"<b") == 0


def test_the_summary_of_a_page_is_accurate_and_short() -> None:
    for name in REPORTED:
        for tag in (f"<{name}>", f"<{name.upper()}\n", f"</{name}>"):
            assert name in defuse(f"x{tag}    ".encode()).tags
    assert defuse(b"<abbr><pre><li><b><section><header><template><figure><input>").tags == frozenset()
