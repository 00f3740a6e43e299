import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.formats.web.canonical_url import canonical
from tasks.stages.crawl.page.sitemap import read_feed

URL = "https://h.example/blog/feed"

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
    assert read_feed(body, URL) == tuple(f"https://h.example/{path}" for path in paths)


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
def test_what_is_no_feed_is_none(body):
    assert read_feed(body, URL) is None


def test_a_feed_that_is_cut_or_endless_gives_what_was_read():
    assert read_feed(RSS[: RSS.index(b"<item><guid isP")], URL) == ("https://h.example/1", "https://h.example/2")
    endless = b"<rss>" + b"".join(b"<item><link>/%d</link></item>" % number for number in range(6000))
    assert len(read_feed(endless, URL)) == 5000


PIECES = ["<rss>", "</rss>", "<feed xmlns='http://www.w3.org/2005/Atom'>", "<item>", "</item>", "<entry>", "</entry>"]
PIECES += ["<link>", "</link>", "<link href='/a'/>", "<guid>", "</guid>", "https://h/a", "&", "<![CDATA[", "]]>", "\0"]
PIECES += ['{"version": "https://jsonfeed.org/version/1"', ', "items": [', '{"url": "/a"}', "]}", " xml:base='::'", "é"]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_whatever_a_feed_holds_its_links_are_canonical(text):
    links = read_feed(text.encode(), URL)
    assert links is None or all(canonical(link) == link for link in links)
