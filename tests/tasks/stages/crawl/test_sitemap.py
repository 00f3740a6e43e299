import gzip
import time
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.formats.web.canonical_url import canonical
from tasks.stages.crawl.page.sitemap import MAX_BYTES, MAX_ENTRIES, SitemapEntry, read_feed, read_sitemap
from tests.tasks.stages.crawl.page_cases import memory

URL = "https://h.example/sitemap.xml"
SPACE = "http://www.sitemaps.org/schemas/sitemap/0.9"


def urls(body, **named):
    return [entry.url for entry in read_sitemap(body, URL, **named).entries]


def urlset(*entries):
    return f'<?xml version="1.0"?><urlset xmlns="{SPACE}">{"".join(entries)}</urlset>'.encode()


def test_a_sitemap_gives_canonical_urls_once_each_with_their_dates():
    read = read_sitemap(
        urlset(
            "<url><loc> https://h.example/a?x=1&amp;utm_source=s </loc><lastmod>2026-01-02</lastmod></url>",
            "<url><loc><![CDATA[https://h.example/b?x=1&y=2]]></loc><lastmod>2026-01-02T03:04:05+02:00</lastmod></url>",
            "<url><loc>https://h.example/a?x=1</loc></url>",
            "<url><loc>https://other.example/c</loc><lastmod>soon</lastmod></url>",
            "<url><loc>mailto:x@y</loc></url><url></url>",
        ),
        URL,
    )
    assert read.kind == "urlset"
    assert read.left_out == ""
    assert read.entries == (
        SitemapEntry("https://h.example/a?x=1", datetime(2026, 1, 2, tzinfo=UTC)),
        SitemapEntry("https://h.example/b?x=1&y=2", datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)),
        SitemapEntry("https://other.example/c", None),
    )


@pytest.mark.parametrize(
    ("text", "date"),
    [("2026", datetime(2026, 1, 1, tzinfo=UTC)), ("2026-05", datetime(2026, 5, 1, tzinfo=UTC)), ("2026-13", None)],
)
def test_dates_can_be_only_a_year(text, date):
    body = urlset(f"<url><loc>https://h.example/</loc><lastmod>{text}</lastmod></url>")
    assert read_sitemap(body, URL).entries[0].lastmod == date


def test_an_index_names_sitemaps():
    body = b"<sitemapindex><sitemap><loc>https://h.example/s1.xml.gz</loc></sitemap></sitemapindex>"
    read = read_sitemap(body, URL)
    assert (read.kind, [entry.url for entry in read.entries]) == ("index", ["https://h.example/s1.xml.gz"])


def test_images_and_translations_of_a_page_are_not_pages():
    body = urlset(
        '<url xmlns:image="i" xmlns:xhtml="x"><image:image><image:loc>https://h.example/i.png</image:loc></image:image>'
        '<xhtml:link href="https://h.example/de"/><loc>https://h.example/a</loc></url>'
    )
    assert urls(body) == ["https://h.example/a"]


def test_text_gzip_and_other_encodings_are_read():
    text = b"\xef\xbb\xbfhttps://h.example/a\r\nhttps://h.example/b\n\n# remark\n"
    assert urls(text) == ["https://h.example/a", "https://h.example/b"]
    assert urls(gzip.compress(text)) == ["https://h.example/a", "https://h.example/b"]
    body = urlset("<url><loc>https://h.example/é?a&amp;b</loc></url>").decode()
    utf16 = body.replace('"1.0"', '"1.0" encoding="utf-16"').encode("utf-16")
    assert urls(utf16) == ["https://h.example/%C3%A9?a&b"]


@pytest.mark.parametrize(
    "body",
    [b"", b"<!doctype html><html><body>https://h/</body></html>", b"<rss/>", b"{}", bytes(range(256)), b"\x1f\x8b\x08"],
)
def test_other_xml_is_not_a_sitemap(body):
    assert read_sitemap(body, URL) is None


ONE = "<urlset><url><loc>https://h.example/a</loc></url></urlset>"


def declared(encoding):
    return f'<?xml version="1.0" encoding="{encoding}"?>{ONE}'


@pytest.mark.parametrize(
    "body",
    [
        *(declared(name).encode() for name in ("utf-16", "UTF-16LE", "ucs-2", "UTF-32", "utf8", "unknown")),
        *(declared("utf-16").encode(encoding) for encoding in ("utf-16", "utf-16-le", "utf-8-sig")),
        ONE.encode("utf-16"),
        b"\xef\xbb\xbf\xef\xbb\xbf\r\n" + declared("utf-8").encode(),
        gzip.compress(gzip.compress(declared("utf-16").encode())),
        b"https://h.example/a\r\n",
        "https://h.example/a\n".encode("utf-16"),
        b"\xef\xbb\xbf\nhttps://h.example/a\n",
    ],
)
def test_a_sitemap_is_read_in_the_encoding_that_its_bytes_have(body):
    assert urls(body) == ["https://h.example/a"]


def test_a_feed_is_read_in_the_encoding_that_its_bytes_have():
    feed = '<?xml version="1.0" encoding="utf-16"?><rss><channel><item><link>/a</link></item></channel></rss>'
    for body in (feed.encode(), feed.encode("utf-16"), gzip.compress(feed.encode())):
        assert read_feed(body, URL) == ("https://h.example/a",)
    assert read_feed(b'\xef\xbb\xbf{"version": "https://jsonfeed.org/version/1", "items": [{"url": "/a"}]}', URL) == (
        "https://h.example/a",
    )


@pytest.mark.parametrize(
    ("loc", "url"),
    [
        ("https://h.example/caf&eacute;", "https://h.example/caf%C3%A9"),
        ("&nbsp;https://h.example/a", "https://h.example/a"),
        ("https://h.example/?a=1&foo;b", "https://h.example/?a=1&foo;b"),
        ("https://h.example/?a=1&AMP;b=2&amp;c=3&d=4", "https://h.example/?a=1&b=2&c=3&d=4"),
        ("<![CDATA[https://h.example/?a=1&eacute;]]>", "https://h.example/?a=1&eacute;"),
    ],
)
def test_entities_of_html_are_characters_of_an_address(loc, url):
    assert urls(f"<urlset><url><loc>{loc}</loc></url></urlset>".encode()) == [url]


def test_a_broken_sitemap_gives_its_entries_before_the_error():
    cut = read_sitemap(urlset("<url><loc>https://h.example/a</loc></url>")[:-12] + b"<url><lo", URL)
    assert [entry.url for entry in cut.entries] == ["https://h.example/a"]
    assert cut.left_out == "its XML is incomplete"
    bare = urlset("<url><loc>https://h.example/a?x=1&y=2&reg=3</loc></url>", "<url><loc>/b</loc></url>")
    assert urls(bare) == ["https://h.example/a?x=1&y=2&reg=3", "https://h.example/b"]


def test_excess_entries_are_dropped_and_reported():
    body = urlset(*(f"<url><loc>https://h.example/{number}</loc></url>" for number in range(5)))
    assert read_sitemap(body, URL, limit=5).left_out == ""
    read = read_sitemap(body, URL, limit=3)
    assert (len(read.entries), read.left_out) == (3, "it has more than 3 entries")
    text = read_sitemap(b"https://h/1\nhttps://h/2", URL, limit=1)
    assert (len(text.entries), text.left_out) == (1, "it has more than 1 entries")
    assert read_sitemap(gzip.compress(body)[:-40], URL).left_out == "it is truncated, or has more than 50 MB"


@pytest.mark.parametrize(("kind", "packed"), [("xml", True), ("text", False)])
def test_a_large_sitemap_is_read_in_little_memory(kind, packed):
    names = [f"https://h.example/{number:06}/{'x' * 100}" for number in range(10_000)]
    if kind == "xml":
        images = f"<image:image><image:caption>{'word ' * 150}</image:caption></image:image>"
        body = urlset(*(f"<url xmlns:image='i'><loc>{name}?a&amp;b</loc>{images}</url>" for name in names))
    else:
        body = "\n".join(f"{name}?a&b\n{'#' * 900}" for name in names).encode()
    assert len(body) > 9_000_000
    body = gzip.compress(body, 1) if packed else body
    tracemalloc.start()
    read = read_sitemap(body, URL, limit=200_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(read.entries), read.left_out) == (10_000, "")
    assert read.entries[-1].url == names[-1] + "?a&b"
    assert peak < 6 << 20


@pytest.mark.soak
def test_a_sitemap_of_the_maximum_size_is_read_in_full():
    body = urlset(*(f"<url><loc>https://h.example/{number:06}{'x' * 900}</loc></url>" for number in range(MAX_ENTRIES)))
    assert 45_000_000 < len(body) < MAX_BYTES
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory("VmRSS")
    for packed in (body, gzip.compress(body, 1)):
        read = read_sitemap(packed, URL)
        # 50,000 URLs of 900 characters exceed the limit for one sitemap.
        assert read.left_out == "its URLs have more than 32 M characters"
        assert len(read.entries) > 35_000
    assert memory("VmHWM") - before < 300


def test_the_total_size_of_urls_is_bounded():
    long = "x" * 4000
    body = urlset(*(f"<url><loc>https://h.example/{number}/{long}</loc></url>" for number in range(10_000)))
    read = read_sitemap(body, URL)
    assert read.left_out == "its URLs have more than 32 M characters"
    assert 8000 < len(read.entries) < 9000
    text = read_sitemap(b"https://h/" + b"a" * 10_000 + b"\nhttps://h/b", URL)
    assert [entry.url for entry in text.entries] == ["https://h/b"]


def laughs(attribute=""):
    entities = "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9))
    return (
        f'<!DOCTYPE urlset [<!ENTITY a "aaaaaaaaaa">{entities}]><urlset {attribute}><url><loc>&j;</loc></url></urlset>'
    )


# Created lazily: together they take 150 MB.
@pytest.mark.parametrize(
    "body",
    [
        lambda: laughs().encode(),
        lambda: laughs('x="&j;"').encode(),
        lambda: laughs().encode("utf-16"),
        lambda: (
            b'<!DOCTYPE urlset [<!ENTITY e SYSTEM "file:///etc/passwd">]><urlset><url><loc>http://h/&e;</loc></url></urlset>'
        ),
        lambda: (
            b'<!DOCTYPE urlset [<!ENTITY % e SYSTEM "http://127.0.0.1:9/x"> %e;]><urlset><url><loc>http://h/</loc></url></urlset>'
        ),
        lambda: (
            b'<!DOCTYPE u [<!ENTITY e "'
            + b"a" * 100_000
            + b'">]><urlset>'
            + b"<url><loc>"
            + b"&e;" * 10_000
            + b"</loc></url>"
        ),
        lambda: b"<urlset>" + b"<a>" * 1_000_000,
        lambda: b"<urlset>" + b"<url>" * 1_000_000,
        lambda: b"<urlset>" + b"<x/>" * 1_000_000 + b"</urlset>",
        lambda: b"<urlset><url>" + b"<x/>" * 1_000_000 + b"</url></urlset>",
        lambda: b"<urlset><url><loc>" + b"a" * 20_000_000 + b"</loc></url></urlset>",
        lambda: b"<urlset>" + b"<url/>" * 3_000_000,
        lambda: b"<urlset><url><loc>" + b"&" * 30_000_000 + b"</loc></url></urlset>",
        lambda: b"http://\n" + b"x\n" * 10_000_000,
        lambda: b"<urlset " + b" ".join(b'a%d="x"' % number for number in range(100_000)) + b"></urlset>",
        lambda: gzip.compress(b"<urlset>" + b" " * (60 << 20), 1, mtime=0),
    ],
    ids=range(16),
)
def test_hostile_xml_gives_no_page_and_takes_little_time(body):
    made = body()
    begin = time.process_time()
    read = read_sitemap(made, URL)
    assert read is None or not read.entries
    assert time.process_time() - begin < 5


def test_a_page_behind_a_flood_of_elements_is_still_found():
    body = b"<urlset>" + b"<x/>" * 300_000 + b"<url><loc>https://h.example/a</loc></url></urlset>"
    assert urls(body) == ["https://h.example/a"]


PIECES = [
    "<urlset>",
    "</urlset>",
    "<url>",
    "</url>",
    "<loc>",
    "</loc>",
    "https://h/a",
    "&",
    "&amp;",
    "<![CDATA[",
    "]]>",
]
PIECES += ["<lastmod>", "2026-01-01", "</lastmod>", "\0", "é", "<!--", "-->", "<?x", "?>", "<!DOCTYPE urlset [", "]>"]
PIECES += ["<sitemapindex>", "<sitemap>", "xmlns='a'", "<", ">", '"', "\n", '<!ENTITY x "y">', "&x;"]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join), st.sampled_from(["utf-8", "utf-16", "latin-1"]))
def test_urls_of_any_sitemap_are_canonical(text, encoding):
    read = read_sitemap(text.encode(encoding), URL)
    assert read is None or all(canonical(entry.url) == entry.url for entry in read.entries)


FEED_URL = "https://h.example/blog/feed"

RSS = b"""<?xml version="1.0"?>
<rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom"><channel><title>T</title><link>https://h.example/</link>
<atom:link rel="self" href="https://h.example/blog/feed"/>
<item><title>A &nbsp; B</title><link> https://h.example/1?utm_source=rss </link></item>
<item><guid>https://h.example/2</guid></item>
<item><guid isPermaLink="false">https://h.example/no</guid></item>
<item><atom:link href="/3"/></item>
<item><link>https://h.example/1</link></item>
</channel></rss>"""

RDF = b"""<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/">
<channel rdf:about="x"><link>https://h.example/</link></channel>
<item rdf:about="y"><link>https://h.example/1</link></item></rdf:RDF>"""

ATOM = b"""<feed xmlns="http://www.w3.org/2005/Atom" xml:base="https://h.example/base/"><link href="https://h.example/"/>
<entry><link rel="edit" href="e"/><link rel="alternate" href="1"/><link rel="enclosure" href="x.mp3"/></entry>
<entry xml:base="deeper/"><link href="2"/></entry><entry><id>urn:x</id></entry></feed>"""

JSON = b"""{"version": "https://jsonfeed.org/version/1.1", "home_page_url": "https://h.example/",
"items": [{"url": "/1"}, {"url": 5}, {"id": "x"}, "y", {"url": "https://h.example/2#c"}]}"""


@pytest.mark.parametrize(
    ("body", "paths"),
    [(RSS, ["1", "2", "3"]), (RDF, ["1"]), (ATOM, ["base/1", "base/deeper/2"]), (JSON, ["1", "2"]), (b"<rss/>", [])],
    ids=["rss", "rdf", "atom", "json", "empty"],
)
def test_a_feed_gives_the_pages_of_its_entries(body, paths):
    assert read_feed(body, FEED_URL) == tuple(f"https://h.example/{path}" for path in paths)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><item><link>https://h.example/</link></item></html>",
        b'{"version": "1", "items": []}',
        b"{" * 100_000,
        b"[]",
        b'<!DOCTYPE rss [<!ENTITY e "https://h.example/x">]><rss><item><link>&e;</link></item></rss>',
    ],
    ids=["nothing", "html", "json", "braces", "list", "entities"],
)
def test_other_xml_is_not_a_feed(body):
    assert read_feed(body, FEED_URL) is None


def test_a_truncated_or_endless_feed_gives_the_entries_read_so_far():
    assert read_feed(RSS[: RSS.index(b"<item><guid isP")], FEED_URL) == ("https://h.example/1", "https://h.example/2")
    endless = b"<rss>" + b"".join(b"<item><link>/%d</link></item>" % number for number in range(6000))
    assert len(read_feed(endless, FEED_URL)) == 5000


FEED_PIECES = [
    "<rss>",
    "</rss>",
    "<feed xmlns='http://www.w3.org/2005/Atom'>",
    "<item>",
    "</item>",
    "<entry>",
    "</entry>",
]
FEED_PIECES += [
    "<link>",
    "</link>",
    "<link href='/a'/>",
    "<guid>",
    "</guid>",
    "https://h/a",
    "&",
    "<![CDATA[",
    "]]>",
    "\0",
]
FEED_PIECES += [
    '{"version": "https://jsonfeed.org/version/1"',
    ', "items": [',
    '{"url": "/a"}',
    "]}",
    " xml:base='::'",
    "é",
]


@given(st.lists(st.sampled_from(FEED_PIECES), max_size=30).map("".join))
def test_links_of_any_feed_are_canonical(text):
    links = read_feed(text.encode(), FEED_URL)
    assert links is None or all(canonical(link) == link for link in links)
