"""Any response of a site is read or refused; none raises an exception."""

from hypothesis import example, given
from hypothesis import strategies as st

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.content_encoding import decode
from tasks.formats.web.domain import partition
from tasks.formats.web.robots import Robots
from tasks.formats.web.robots_tag import Directives, directives
from tasks.formats.web.url import authority, host_and_port, is_trap, key
from tasks.stages.crawl.hosts.politeness import retry_after
from tasks.stages.crawl.http.address import Grants, refusal
from tasks.stages.crawl.page.links import parse_page
from tasks.stages.crawl.page.sitemap import read_feed, read_sitemap

PIECES = [
    "http:",
    "https:",
    "/",
    "//",
    "\\",
    "@",
    ":",
    "[",
    "]",
    "::1",
    "127.1",
    "0x7f",
    ".",
    "%2e",
    "?",
    "&",
    "#",
    "a",
    "é",
]
PIECES += [
    "utm_source=x",
    "=",
    ";",
    " ",
    "\t",
    "\n",
    "\0",
    "\u3002",
    "１",
    "xn--",
    "localhost",
    "443",
    "99999",
    "\ud800",
    "%",
]
urls = st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=40)

LINES = [
    "User-agent: *\n",
    "user-agent",
    "Disallow: /",
    "Allow: ",
    "Crawl-delay: ",
    "Sitemap:",
    "*",
    "$",
    "%",
    "%zz",
    "\r",
]
LINES += [
    "User-agent: GPTBot\n",
    "Content-Signal: ",
    "ai-train=no",
    "\n",
    "#",
    " ",
    "\0",
    "\ufeff",
    "sluice",
    "é",
    "nan",
    "1e999",
    ":",
    "/",
    "\u2028",
    "\x85",
    "\x1c",
]
files = st.lists(st.sampled_from(LINES), max_size=30).map(lambda parts: "".join(parts).encode()) | st.binary(
    max_size=200
)


@given(urls, st.sampled_from(["http://h/a/b?c", "https://[::1]:81/", None]))
@example("http://h/..;jsessionid=1", None)
def test_any_text_is_canonicalized_or_refused(text, base):
    url = canonical(text, base)
    if url is None:
        return
    assert canonical(url) == url
    host, port = host_and_port(url)
    assert host
    assert authority(url) == (host if port is None else f"{host}:{port}")
    assert not host.endswith(".")
    assert refusal(authority(url), Grants()) in (None, "private_address", "port")
    assert 0 <= partition(url, 7) < 7
    assert len(key(url)) == 16
    assert is_trap(url) in (True, False)


@given(files, urls)
def test_any_robots_file_gives_a_decision(body, path):
    robots = Robots(body, "sluice")
    assert robots.allows(canonical(path, "http://h/") or "http://h/") in (True, False)
    assert robots.allows(path) in (True, False)
    assert robots.ai_optout(path) in (True, False)
    assert (robots.crawl_delay() or 0.0) >= 0.0


@given(
    st.binary(max_size=300), st.lists(st.sampled_from(["gzip", "deflate", "br", "identity", "x", "", ","]), max_size=4)
)
def test_any_body_is_decoded_or_marked(body, codings):
    assert len(decode(body, ",".join(codings), 100).data) <= 100


TAGS = [
    "<a href=",
    '"',
    "'",
    ">",
    "<",
    "/",
    "x",
    "<base href=",
    "<meta name=robots content=",
    "noindex",
    "<div>",
    "</div>",
]
TAGS += [
    "<!--",
    "-->",
    "<script>",
    "</script>",
    "\0",
    "é",
    "<meta charset=utf-7>",
    "<meta http-equiv=refresh content='0;url=",
    "\xff",
]


@given(
    st.lists(st.sampled_from(TAGS), max_size=40).map("".join),
    st.sampled_from(["", "utf-8", "utf-16", "idna", "zlib", "x"]),
)
def test_any_page_is_parsed(html, charset):
    page = parse_page(html.encode("latin-1", "replace"), "http://h/", "sluice", Directives(), charset)
    assert all(canonical(link.url) == link.url for link in page.links)
    assert all(canonical(one) == one for one in (*page.feeds, *filter(None, page.canonicals)))


XML = ["<?xml version='1.0'?>", "<urlset>", "<sitemapindex>", "<sitemap>", "<url>", "<loc>", "http://h/a", "</loc>"]
XML += [
    "<rss>",
    "<channel>",
    "<item>",
    "<link>",
    "<feed>",
    "<entry>",
    "<link href='http://h/b'/>",
    "</url>",
    "&lt;",
    "&x;",
]
XML += [
    "<!DOCTYPE x [<!ENTITY x 'y'>]>",
    "<![CDATA[",
    "]]>",
    "<lastmod>2026-01-01",
    "\0",
    "é",
    "\xff",
    "{",
    '"url":',
    "[",
]


@given(st.lists(st.sampled_from(XML), max_size=30).map("".join))
def test_any_sitemap_or_feed_is_parsed(text):
    body = text.encode("latin-1", "replace")
    sitemap = read_sitemap(body, "http://h/sitemap.xml")
    assert sitemap is None or all(canonical(one.url) == one.url for one in sitemap.entries)
    assert all(canonical(one) == one for one in read_feed(body, "http://h/feed") or ())


@given(st.text(max_size=60))
def test_any_header_is_parsed(value):
    pause = retry_after(value)
    assert pause is None or 0 <= pause <= 86400
    assert directives([value], "sluice").noindex in (True, False)
