"""Links of pages: exactly the links are read, including pages of documentation generators."""

import asyncio
import time
from pathlib import Path

import pytest

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import link
from tasks.formats.web.robots_tag import Directives, directives
from tasks.stages.crawl.page.links import ParsedPage, canonical_of, parse_page
from tasks.stages.crawl.page.parser import INLINE_BYTES, PageParser

NONE = Directives()


def links(html, url="http://h/dir/page", said=NONE, charset=""):
    return tuple(found.url for found in parse_page(html, url, "sluice", said, charset).links)


def test_links_are_canonical_unique_and_in_page_order():
    html = (
        b'<a href="b">1</a><a href="/a#x">2</a><a href="b?utm_source=q">3</a><area href="//o/"><a href=mailto:x@y>4</a>'
    )
    assert links(html) == ("http://h/dir/b", "http://h/a", "http://o/")


def test_frames_and_meta_refresh_are_links():
    html = b"""<meta http-equiv=Refresh content="5; URL='/next'"><iframe src=in></iframe>"""
    html += b"<meta http-equiv=refresh content=9>"
    assert links(html) == ("http://h/next", "http://h/dir/in")


@pytest.mark.parametrize(
    ("content", "leads_to"),
    [
        ("5; url=/next", "/next"),
        ("5; URL = '/next' ", "/next"),
        ('0;url="/next"x', "/next"),
        ("5; /next", "/next"),
        ("5, /next", "/next"),
        ("5 /next", "/next"),
        ("5;/next?a=1;b", "/next?a=1;b"),
        ("5; '/next", "/next"),
        (".5; /next", "/next"),
        ("1.5;url=/a b", "/a%20b"),
        ("5; urlaub", "/dir/urlaub"),
        ("5; url", "/dir/url"),
        ("5; /url=x", "/url=x"),
        ("5", ""),
        ("5;", ""),
        ("5; url=", ""),
        ("; /next", ""),
        ("/next", ""),
        ("5x; /next", ""),
        ("", ""),
    ],
)
def test_a_refresh_url_is_read_with_or_without_the_url_prefix(content, leads_to):
    want = (f"http://h{leads_to}",) if leads_to else ()
    quote = "'" if '"' in content else '"'
    assert links(f"<meta http-equiv=refresh content={quote}{content}{quote}>".encode()) == want


def test_queries_are_encoded_in_the_charset_of_the_page():
    body = """<base href="/д/?q=д"><meta http-equiv=refresh content="0; ?п"><link rel=canonical href="?q=д">
    <a href="/поиск?слово=дом&amp;x=%E4#якорь">x</a><a href="?ж=漢">x</a><a href="http://h/a?b">x</a>"""
    head = "<meta charset=windows-1251>"
    page = parse_page((head + body).encode("cp1251", "xmlcharrefreplace"), "http://h/", "sluice", NONE)
    assert [one.url for one in page.links] == [
        "http://h/%D0%B4/?%EF",
        "http://h/%D0%BF%D0%BE%D0%B8%D1%81%D0%BA?%F1%EB%EE%E2%EE=%E4%EE%EC&x=%E4",
        "http://h/%D0%B4/?%E6=%26%2328450%3B",
        "http://h/a?b",
    ]
    assert page.canonicals == ("http://h/%D0%B4/?q=%E4",)


@pytest.mark.parametrize(
    ("encoding", "charset", "query"),
    [
        ("utf-8", "utf-8", "%E6%97%A5%D0%BF%C3%A9"),
        ("utf-16", "", "%E6%97%A5%D0%BF%C3%A9"),
        ("cp932", "shift_jis", "%93%FA%84%81%26%23233%3B"),
        ("iso2022_jp", "iso-2022-jp", "%1B$BF|%27a%1B(B%26%23233%3B"),
        ("gb18030", "gb18030", "%C8%D5%A7%E1%A8%A6"),
        ("cp1252", "latin1", "%26%2326085%3B%26%231087%3B%E9"),
    ],
)
def test_characters_missing_in_the_charset_become_references(encoding, charset, query):
    html = '<a href="/?日пé">x</a>'.encode(encoding, "xmlcharrefreplace")
    assert links(html + " ".encode(encoding) * 20, charset=charset) == (f"http://h/?{query}",)


def test_links_are_read_in_the_charset_of_the_header_or_the_page():
    want = ("http://h/%D0%BF%D1%80",)
    body = '<a href="/\u043f\u0440">x</a>'
    assert links(b"<meta charset=windows-1251>" + body.encode("cp1251")) == want
    assert links(body.encode("koi8-r"), charset="koi8-r") == want
    assert links(body.encode()) == want
    assert links(body.encode(), charset="no-such-charset") == want
    assert links(body.encode(), charset="base64") == want


@pytest.mark.parametrize("said", [{"charset": "utf-7"}, {}], ids=["header", "page"])
def test_unknown_encodings_hide_no_links(said):
    page = b'<meta charset="utf-7"><a href=x>x</a>+ADw-a href=/hidden+AD4-y+ADw-/a+AD4-'
    assert links(page, **said) == ("http://h/dir/x",)


def test_base_applies_unless_it_is_not_a_web_url():
    assert links(b'<base href="/other/"><a href=x>x</a>') == ("http://h/other/x",)
    assert links(b'<base href="javascript:alert(1)"><a href=x>x</a>') == ("http://h/dir/x",)


def test_nofollow_is_respected_on_links_pages_and_headers():
    assert links(b'<a rel="external NoFollow" href=x>x</a><a href=y>y</a>') == ("http://h/dir/y",)
    assert links(b'<meta name=Robots content="noarchive, NOFOLLOW"><a href=x>x</a>') == ()
    assert links(b"<a href=x>x</a>", said=Directives(nofollow=True)) == ()


@pytest.mark.parametrize(
    ("html", "noindex"),
    [
        (b'<meta name="robots" content="noindex">', True),
        (b'<meta name="sluice" content="none">', True),
        (b'<meta name="googlebot" content="noindex">', False),
        (b'<meta name="robots" content="index, follow">', False),
        (b'<meta name="robots" content="revisit-after: 7 days, noindex">', True),
        (b'<p><meta name="robots" content="unavailable_after: 2010-01-01">', True),
        (b"<p>noindex</p>", False),
    ],
)
def test_a_page_says_whether_it_may_be_kept(html, noindex):
    assert parse_page(html, "http://h/", "sluice", NONE).noindex is noindex


def test_header_directives_for_another_bot_do_not_count():
    assert directives(["googlebot: noindex", "unavailable_after: 25 Jun 2027 15:00:00 PST"], "sluice") == NONE
    assert directives(["Sluice: noindex"], "sluice") == Directives(noindex=True)
    assert directives(["none"], "sluice") == Directives(noindex=True, nofollow=True)


@pytest.mark.parametrize(
    "html",
    [
        b"<div>" * 40_000 + b"<a href=z>z</a>",
        b"<b>" * 60_000 + b"<a href=z>z</a>",
        b"<div></x>" * 20_000 + b"<a href=z>z</a>",
        b"<ul><li>" * 20_000 + b"<a href=z>z</a>",
    ],
)
def test_a_deeply_nested_page_keeps_its_links_and_takes_little_time(html):
    begin = time.process_time()
    assert links(html) == ("http://h/dir/z",)
    assert time.process_time() - begin < 0.5


def test_a_deeply_nested_page_still_says_whether_it_may_be_kept():
    html = b'<title>T</title><meta name=robots content="noindex, noai"><link rel=canonical href=/c><body>'
    html += b"<div>" * 40_000 + b"text"
    page = parse_page(html, "http://h/", "sluice", NONE)
    assert (page.noindex, page.noai, page.canonicals, page.title, page.text_chars) == (
        True,
        True,
        ("http://h/c",),
        "T",
        4,
    )
    assert links(b"<meta name=robots content=nofollow><body>" + b"<div>" * 40_000 + b"<a href=z>z</a>") == ()


@pytest.mark.parametrize(
    ("html", "want"),
    [
        ('<link rel="Canonical" href="/a?utm_source=x#y">', "http://h/a"),
        ('<base href="/b/"><link rel=canonical href=a>', "http://h/b/a"),
        ('<link rel="canonical" href="/a"><link rel="canonical" href="http://h/a">', "http://h/a"),
        ('<link rel="canonical" href="/a"><link rel="canonical" href="/b">', ""),
        ('<link rel="canonical" href="javascript:x">', ""),
        ('<link rel="canonical">', ""),
        ('<p><link rel="canonical" href="/comment">', ""),
        ('<link rel="stylesheet" href="/a">', ""),
    ],
)
def test_the_canonical_link_is_read_from_the_head_if_it_is_unique(html, want):
    page = parse_page(html.encode(), "http://h/dir/page", "sluice", NONE)
    assert canonical_of(page, (), "http://h/dir/page") == want


def test_feeds_are_found_in_the_head():
    rss = 'type="application/rss+xml"'
    html = f"""<head><link rel="alternate" {rss} href="feed"><link rel="alternate" hreflang=de href=/de>
    <link rel="ALTERNATE home" type="application/Atom+xml" href="//h/atom"><link rel=alternate {rss} href=feed></head>
    <body><link rel=alternate {rss} href=/no>""".encode()
    assert parse_page(html, "http://h/dir/page", "sluice", NONE).feeds == ("http://h/dir/feed", "http://h/atom")
    assert parse_page(html, "http://h/", "sluice", Directives(nofollow=True)).feeds == ()


@pytest.mark.parametrize(
    ("html", "chars"),
    [
        ("", 0),
        ("<title>a title</title><style>p {}</style><p>four</p>\n\n<p>five5</p>", 9),
        ("<body><div id=root></div><script>" + "x" * 5000 + "</script><noscript>Switch it on</noscript>", 0),
        ("<p>" + "x" * 5000, 1024),
        (("<div>\n" + " " * 500 + "</div>") * 9 + "<p>x", 1),
    ],
)
def test_visible_text_is_counted_up_to_a_limit(html, chars):
    assert parse_page(html.encode(), "http://h/", "sluice", NONE).text_chars == chars


def test_a_title_is_one_line_of_at_most_200_characters():
    html = b"<title>\n Not \n found " + b"x" * 500 + b"</title><body><svg><title>drawing</title></svg>"
    title = parse_page(html, "http://h/", "sluice", NONE).title
    assert title.startswith("Not found xxx")
    assert len(title) == 200
    assert parse_page(b"<p><svg><title>drawing</title></svg>", "http://h/", "sluice", NONE).title == ""


@pytest.mark.parametrize("base", ["http://h/dir/page?q=1", "http://h/", "https://h:8/a;b/c/", "http://h/d/e/f"])
@pytest.mark.parametrize(
    "href",
    [
        "x",
        "./x",
        "../x",
        "..",
        "/x",
        "//o/x",
        "?y",
        "\\x",
        "\x01?y",
        "http:x",
        "https:x",
        "x?a/b",
        ";z",
        "%2e%2e/x",
        "é",
        "http:",
        "http:?q",
        "x/./y",
        "x/../../y",
        "x/..",
        "/x/../y/.",
        "x//y",
        "/_x/-y/~z.html",
        "_x",
        "x:y",
        "1x:y",
        "https://o/x/../y",
        "HTTPS://o/x",
        "mailto:a@b.example",
        "x" * 300,
        *(
            "../",
            "../../x/y.html",
            "../../../x",
            "../../../../x",
            "../../../../../x",
            "../../",
            "../.x",
            "..x",
            ".../x",
            "../x/../y",
            "../x//y",
        ),
        *("../x?y", "../é", "../%2e%2e/x", "../x;y", "..\\x", "../" * 90 + "x"),
        *("https://o.example/x/y.html", "http://o.example:8443/x", "http://o-o.example/", "https://o.example/~x/.y"),
        *("http://o.example:80/x", "https://o.example:80/x", "https://o.example:443/x", "http://o.example:080/x"),
        *("http://o.example:65536/x", "http://o.example:59999/x", "http://o.example:/x", "http://o.example"),
        *(
            "https://1.2.3.4/x",
            "https://1.2.3/x",
            "https://a.0x7f/x",
            "https://a.1/x",
            "https://a.1e/x",
            "http://127.1/",
        ),
        *("https://xn--a.example/x", "https://o.xn--p1ai/x", "https://O.example/x", "https://o_o.example/x"),
        *("https://o.example./x", "https://o..example/x", "https://.example/x", "https://-o.example/x"),
        *("https://o.example/x/../y", "https://o.example/x/./y", "https://o.example//x", "https://o.example/%7ex"),
        *("https://u@o.example/x", "https://o.example/x;jsessionid=1", "https://o.example\\x", "https://o.ex ample/x"),
    ],
)
def test_a_cached_link_equals_a_parsed_one(base, href):
    want = canonical(href, base)
    assert links(f'<a href="{href}">x</a>'.encode(), base) == ((want,) if want else ())
    assert links(f'<a href="{href}#part">x</a>'.encode(), base) == ((want,) if want else ())


def test_a_page_with_few_tags_is_read_in_full_at_any_depth():
    html = b"<div>" * 2000 + b"<p>" + b"x" * 2000 + b"<meta name=robots content=noindex><a href=z>z</a>"
    page = parse_page(html, "http://h/dir/page", "sluice", NONE)
    assert (page.links, page.noindex, page.text_chars) == ((link("http://h/dir/z"),), True, 1024)


def test_a_page_that_stalls_the_parser_is_skipped_and_the_next_one_is_read():
    # A million attributes of one element take the parser more than a minute.
    stalling = b"<div " + b" ".join(b"a%d" % number for number in range(500_000)) + b"><a href=x>x</a>"
    large = b"<p>text</p>" * 30_000 + b"<a href=/y>y</a>"
    assert len(large) > INLINE_BYTES

    async def run():
        parser = PageParser("sluice", cpu_s=1.5)
        try:
            first = await parser.read(stalling, "http://h/", NONE)
            second = await parser.read(large, "http://h/", NONE)
        finally:
            await parser.close()
        return first, second

    first, second = asyncio.run(run())
    assert first.unread == "it takes more than 1.5 CPU seconds"
    assert second.links == (link("http://h/y"),)


def test_a_tag_with_thousands_of_attributes_is_read_in_the_child_at_any_offset(monkeypatch):
    def refuse(*_):
        raise AssertionError("read in the crawl's own process")

    monkeypatch.setattr("tasks.stages.crawl.page.parser.parse_page", refuse)

    async def run():
        parser = PageParser("sluice")
        try:
            return [
                await parser.read(b"x" * begin + b"<a href=/y " + b"a=1 " * 4100 + b">y</a>", "http://h/", NONE)
                for begin in (0, 1, 8191, 8192, 9000, 40_000)
            ]
        finally:
            await parser.close()

    assert [page.links for page in asyncio.run(run())] == [(link("http://h/y"),)] * 6


SAMPLES = Path(__file__).with_name("samples")
ROOT = "http://h.example/"
LINKS = {
    "docbook": "d/e/tides.html d/e/water.html d/e/locks.html d/e/sql-tide.html d/e/index.html",
    # Drawn by graphviz, with a formula.
    "graph": "d/e/namespaceharbour.html d/e/classharbour_1_1Crane.html d/e/classharbour_1_1Machine.html"
    " d/e/classharbour_1_1Winch.html d/e/newton.html d/e/classharbour_1_1Hook.html https://doxygen.example/index.html",
    "javadoc": "noscript.html index.html d/e/package-summary.html d/lang/Hull.html d/lang/Floats.html d/e/Keel.html"
    " d/lang/String.html d/e/Sand.html",
    "mdbook": "d/title.html d/ch01.html d/e/sails.html d/print.html d/ch02.html d/ch03/tack.html d/ch03/jibe.html",
    "nodejs": "d/e/index.html d/e/anchors.html d/e/buoys.html https://src.example/harbour"
    " https://h.example/docs/latest-v3.x/api/buoys.html d/e/all.html d/e/buoys.json d/e/documentation.html"
    " https://src.example/lib/buoys.js https://whatwg.example/url https://mdn.example/Number",
    "r-help": "base/html/factor.html d/e/locks.html stats/html/arima.html d/doc/index.html d/e/00Index.html",
    "rustdoc": "d/e/index.html d/index.html src/harbour/ropes.rs.html core/marker/trait.Sized.html"
    " d/e/struct.Knot.html d/e/fn.splice.html d/e/struct.Bow.html core/marker/trait.Send.html d/e/struct.Rope.html",
    "sphinx": "d/genindex.html d/e/knots.html d/e/index.html https://src.example/Lib/lines.py"
    " https://rfc.example/rfc9309.html d/copyright.html",
}


def read(html: bytes) -> ParsedPage:
    return parse_page(html, ROOT + "d/e/page.html", "sluice", Directives())


@pytest.mark.parametrize("name", LINKS)
def test_exactly_the_links_of_a_page_are_read(name: str) -> None:
    html = (SAMPLES / f"{name}.html").read_bytes()
    page = read(html)
    assert [link.url.removeprefix(ROOT) for link in page.links] == LINKS[name].split()
    assert page.title
    assert page.text_chars > 100
    deep = read(html.replace(b"</body>", b"<div>" * 3000))
    assert (deep.links, deep.title, deep.canonicals) == (page.links, page.title, page.canonicals)


def test_every_sample_page_is_read() -> None:
    assert {path.stem for path in SAMPLES.iterdir()} == set(LINKS)
