"""Contract of tasks.stages.crawl.page.reading: any body is parsed or kept without links; no exception is
raised."""

import asyncio
import gzip
import logging
import time
import zlib
from dataclasses import replace

import brotli
import pyarrow as pa
import pytest

from tasks.formats.web.robots_tag import Directives
from tasks.formats.web.scope import Scope
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.hosts.rules import Licensing, Ruling
from tasks.stages.crawl.http.client import Response
from tasks.stages.crawl.page import reading
from tasks.stages.crawl.page.links import parse_page
from tasks.stages.crawl.page.parser import PageParser
from tasks.stages.crawl.page.reading import ENOUGH_TEXT, PageComparison, Reader, ReadResult, mime_of, needs_browser
from tasks.stages.crawl.storage.fetchlog import FEED, PAGE, SITEMAP

URL = "http://h.example/dir/page"
FORBIDS = b"<meta name=robots content='nofollow noindex'>"


def answer(body: bytes, *headers: tuple[str, str], mime: str = "text/html") -> Response:
    return Response(200, "OK", (("Content-Type", mime), *headers), body, "", "", b"", 0.0)


async def no_licenses(url, licenses):
    return Licensing()


def read(one: Response, note=lambda *_: PageComparison(), *, reserved: bool = False, **settings) -> ReadResult:
    async def run() -> ReadResult:
        config = CrawlConfig(**settings)
        parser = PageParser(config.user_agent, 1.0)
        try:
            scope = Scope(["h.example"], exclude_pattern=config.exclude_pattern)
            reader = Reader(config, parser, scope, lambda _: (), note, no_licenses)
            return await reader.read(URL, one, mime_of(one.headers), Ruling(reserved=reserved))
        finally:
            await parser.close()

    return asyncio.run(run())


def links(one: Response, **settings) -> list[str]:
    return [found.url.removeprefix("http://h.example") for found in read(one, **settings).outlinks]


class NamedSitemaps:
    """A reader of sites whose robots.txt names sitemaps; counts how often they are looked up."""

    def __init__(self, *named: str) -> None:
        self.look_ups = 0
        self._named = named
        parser = PageParser("sluice", 1.0)
        self._reader = Reader(CrawlConfig(), parser, Scope(["h.example"]), self._look_up, lambda *_: None, no_licenses)

    def _look_up(self, url: str) -> tuple[str, ...]:
        self.look_ups += 1
        return self._named

    def is_accepted(self, url: str) -> bool:
        """Whether a body of a type that is no page is read."""
        return self._reader.body_limit(url, 200, (("Content-Type", "image/png"),)) > 0


def test_sitemaps_of_robots_txt_are_looked_up_once_for_an_origin() -> None:
    reader = NamedSitemaps("http://other.example/%7elist")
    assert [reader.is_accepted(f"http://h.example/{n}") for n in range(3)] == [False] * 3
    assert reader.is_accepted("http://other.example/~list")
    assert reader.look_ups == 2


def test_the_number_of_named_sitemaps_in_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_NAMED", 2)
    reader = NamedSitemaps(*(f"http://h.example/list{n}" for n in range(3)))
    assert [reader.is_accepted(f"http://h.example/list{n}") for n in range(3)] == [True, True, False]


def test_svg_and_mathml_are_read_like_html() -> None:
    page = b"""<a href=/1>x</a><svg><a xlink:href="/2">x</a><a href=/3 xlink:href=/no>x</a>
    <script xlink:href=/no></script>
    <title>t</title><foreignObject><a href=/4></a></foreignObject></svg><math><mi xlink:href=/5 definitionURL=/no>x</mi>
    <annotation-xml><a xlink:href=/6></a></annotation-xml></math><svg><link xlink:href=/no rel=canonical><base
    xlink:href=/no><iframe xlink:src=/no></svg><a href=/7>x</a>"""
    assert links(answer(page)) == ["/1", "/2", "/3", "/4", "/6", "/7"]


@pytest.mark.parametrize(
    "reference", ["&#xD800;", "&#55296;", "&#xDFFF;", "&#0;", "&#x110000;", "&#xFFFFFFFFFF;", "&x;"]
)
@pytest.mark.parametrize(
    ("mime", "body", "kind"),
    [
        ("text/html", "<title>%s</title><a href='/%s'>%s</a><a href=/end>x</a>", PAGE),
        ("application/rss+xml", "<rss><item><link>/%s</link></item><item><guid>%s</guid></item>%s", FEED),
        ("application/atom+xml", "<feed xml:base='%s'><entry><link rel='%s' href='/%s'/></entry>", FEED),
        ("application/xml", "<urlset><url><loc>/%s</loc><lastmod>%s</lastmod></url><url><loc>%s</loc></url>", SITEMAP),
    ],
)
def test_invalid_character_references_are_ignored(reference: str, mime: str, body: str, kind: str) -> None:
    end = {PAGE: "", FEED: "<item><link>/end</link></item><entry><link href='/end'/></entry>"}
    body = body % ((reference,) * 3) + end.get(kind, "<url><loc>/end</loc></url>")
    found = read(answer(body.encode(), mime=mime))
    assert (found.reason, found.kind) == ("", kind)
    assert "http://h.example/end" in {one.url for one in found.outlinks}


@pytest.mark.parametrize("name", ["needs_browser", "link"])
def test_a_page_on_which_parsing_fails_is_kept_without_links(monkeypatch, caplog, name: str) -> None:
    def fails(*_: object) -> None:
        raise KeyError("xlink:href")

    monkeypatch.setattr(reading, name, fails)
    body = b"<link rel=alternate type=application/rss+xml href=/feed><a href=/x>x</a>"
    with caplog.at_level(logging.WARNING):
        found = read(answer(body))
        assert found == ReadResult(unread=found.unread)
        assert found.unread
        assert found.unread in caplog.text
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{URL} is kept without its links: KeyError: 'xlink:href' (test_reading.py:")
    # Directives of the page still apply.
    assert read(answer(FORBIDS + body)).reason == "noindex"
    assert read(answer(body, ("X-Robots-Tag", "noindex"))).reason == "noindex"
    assert read(answer(b"<meta name=robots content=noai>" + body)).reason == "ai_optout"
    assert read(answer(body), reserved=True).reason == "ai_optout"


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_links_are_read_through_any_content_coding(coding) -> None:
    pack = {"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress}
    html = b"<a href=/next>next</a>"
    packed = pack[coding](html) if coding in pack else pa.compress(html, "zstd", asbytes=True)
    for body in (packed, html):
        links = read(answer(body, ("Content-Encoding", coding))).outlinks
        assert [one.url for one in links] == ["http://h.example/next"]


def test_a_page_sent_as_xhtml_is_read_as_xml() -> None:
    head = (
        '<script src="a.js"/><style/><title>A title</title><base href="http://h.example/in/"/>'
        '<link rel="canonical" href="/own"/><link rel="alternate" type="application/atom+xml" href="/feed"/>'
    )
    body = '<iframe src="frame"/><p><a href="a?x=1&amp;y=2">a</a><![CDATA[<a href="no">]]></p><script/><a href="b"/>'
    page = f'<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml"><head>{head}</head>{body}'
    whole = f"{page.replace('</head>', '</head><body>')}</body></html>".encode()
    result = read(answer(whole, mime="application/xhtml+xml; charset=utf-8"))
    assert (result.title, result.canonical) == ("A title", "http://h.example/own")
    links = [one.url.removeprefix("http://h.example") for one in result.outlinks]
    assert links == ["/in/frame", "/in/a?x=1&y=2", "/in/b", "/feed", "/own"]
    noindex = whole.replace(b"<title>", b'<title/><meta name="robots" content="noindex"/><title>', 1)
    assert read(answer(noindex, mime="application/xhtml+xml")).reason == "noindex"
    as_html = read(answer(whole.replace(b"</p>", b""), mime="application/xhtml+xml"))
    assert (as_html.title, as_html.unread) == ("", "")


def test_whether_a_page_sent_as_xhtml_needs_a_browser_is_judged_by_its_elements() -> None:
    page = '<html><head><title>Shop</title><script src="/app.js"/></head><body>{}</body></html>'
    text = f"<p>{'A menu. ' * 70}</p>"
    for body, needed in (("<p>A short page.</p>", False), (f'{text}<div id="root"/>', True), (text, False)):
        assert read(answer(page.format(body).encode(), mime="application/xhtml+xml")).render is needed


def test_a_sitemap_on_which_parsing_fails_is_kept_without_links(monkeypatch, caplog) -> None:
    monkeypatch.setattr(reading, "read_sitemap", lambda *_: 1 // 0)
    found = read(answer(b"<urlset>", mime="text/xml"))
    assert found == ReadResult(kind=SITEMAP, unread=found.unread)
    assert found.unread
    assert found.unread in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_an_unparsable_page_is_kept_and_the_log_states_why(caplog) -> None:
    body = b"<p " + b" ".join(b"%x" % number for number in range(600_000)) + b">"
    assert read(answer(body)) == ReadResult(kind=PAGE, unread="it takes more than 1 CPU seconds")
    assert f"{URL} is kept without its links: it takes more than 1 CPU seconds" in caplog.text
    assert read(answer(FORBIDS + body)).reason == "noindex"


DEEP = [b"<div>" * 5000, b"<p><b a=1><i>" * 2000, b"<title>t</title>" + b" " * (70 << 10) + b"<div>" * 5000]


@pytest.mark.parametrize("before", DEEP, ids=["body", "formatting", "a head of 70 kB"])
@pytest.mark.parametrize("separator", [", ", " ", ";"])
def test_robots_directives_apply_on_every_page(before: bytes, separator: str) -> None:
    def page(name: str, *words: str) -> Response:
        meta = f"<meta name={name} content='{separator.join(words)}'>".encode()
        return answer(before + meta + b"<a href=/x>x</a>")

    assert links(page("robots", "noarchive")) == ["/x"]
    assert links(page("otherbot", "noindex", "nofollow")) == ["/x"]
    assert links(page("robots", "noarchive", "nofollow")) == []
    assert replace(read(page("robots", "nofollow", "noindex")), title="") == ReadResult("noindex")
    assert read(page("robots", "noarchive", "noai")).reason == "ai_optout"
    assert replace(read(page("Sluice", "noindex", "nofollow")), title="") == ReadResult("noindex")
    assert read(page("sluice", "noarchive", "noindex")).reason == "noindex"


APP = '<script src="/static/main.4f3c.js"></script>'


@pytest.mark.parametrize(
    "body",
    [
        '<div id="root"></div>',
        "<div id=app></div>",
        '<div class="dark" id="__next">\n  <!-- here --></div>',
        '<main id="__nuxt"><div class="spinner"></div></main>',
        "<div id='root'>Loading ...</div>",
        "<app-root></app-root>",
        '<body ng-app="shop"><div ng-view></div>',
        "<noscript>You need to enable JavaScript to run this app.</noscript><div></div>",
        "<noscript>Veuillez activer <b>JavaScript</b>.</noscript><p>x",
    ],
)
def test_a_page_that_is_an_empty_frame_for_its_scripts_needs_a_browser(body):
    assert needs_browser(f"<!doctype html><title>Shop</title>{body}{APP}".encode(), 20)


def test_a_page_that_is_mostly_script_needs_a_browser():
    assert needs_browser(b"<title>x</title><script>" + b"document.write(1);" * 50 + b"</script>", 1)


@pytest.mark.parametrize(
    ("body", "chars"),
    [
        ("<p>A short page of a plain site.</p>", 30),
        ("<div id=root></div>", 0),  # without a script it stays empty
        (f"<h1>Contact</h1><p>Write to us.</p>{APP}", 25),
        (f'<div id="root"><p>{"Served whole. " * 40}</p></div>{APP}', 560),
        (f"<noscript>Enable JavaScript for comments</noscript><p>{'A short article. ' * 40}</p>{APP}", 700),
        (f'<div id="root"></div>{APP}', ENOUGH_TEXT),
    ],
)
def test_a_page_with_text_needs_no_browser(body, chars):
    assert not needs_browser(f"<!doctype html><title>Shop</title>{body}".encode(), chars)


@pytest.mark.parametrize(
    "piece",
    [b"<div ", b"<div id=", b"<noscript>", b"<script>", b"<a-b>", b"<!--", b'<div id="root">', b"<div id=root ", b" "],
)
def test_a_hostile_page_does_not_delay_the_crawl(piece):
    begin = time.process_time()
    needs_browser(b"<script>" + piece * (1 << 18), 0)
    assert time.process_time() - begin < 5.0


def test_real_articles_need_no_browser(shared_data):
    files = sorted((shared_data / "extraction_html" / "html").glob("*.html.gz"))
    assert len(files) > 50
    for file in files:
        html = gzip.decompress(file.read_bytes())
        page = parse_page(html, "https://site.example/", "sluice", Directives())
        assert not needs_browser(html, page.text_chars), file.name
