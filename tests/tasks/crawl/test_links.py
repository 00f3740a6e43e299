import asyncio
import time

import pytest

from tasks.crawl.links import Directives, deeper_than, directives, read_page
from tasks.crawl.parser import INLINE_BYTES, Parser

NONE = Directives()


def links(html, url="http://h/dir/page", said=NONE):
    return read_page(html, url, "sluice", said).links


def test_links_are_canonical_unique_and_in_page_order():
    html = (
        b'<a href="b">1</a><a href="/a#x">2</a><a href="b?utm_source=q">3</a><area href="//o/"><a href=mailto:x@y>4</a>'
    )
    assert links(html) == ("http://h/dir/b", "http://h/a", "http://o/")


def test_frames_and_meta_refresh_lead_on():
    html = b"""<meta http-equiv=Refresh content="5; URL='/next'"><iframe src=in></iframe>"""
    html += b"<meta http-equiv=refresh content=9>"
    assert links(html) == ("http://h/next", "http://h/dir/in")


def test_links_are_read_in_the_charset_of_the_header_or_the_page():
    want = ("http://h/%D0%BF%D1%80",)
    body = '<a href="/\u043f\u0440">x</a>'
    assert links(b"<meta charset=windows-1251>" + body.encode("cp1251")) == want
    assert read_page(body.encode("koi8-r"), "http://h/", "sluice", NONE, "koi8-r").links == want
    assert links(body.encode()) == want
    assert read_page(body.encode(), "http://h/", "sluice", NONE, "no-such-charset").links == want
    assert read_page(body.encode(), "http://h/", "sluice", NONE, "base64").links == want


def test_base_counts_unless_it_is_no_web_address():
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
        (b"<p>noindex</p>", False),
    ],
)
def test_a_page_says_whether_it_may_be_kept(html, noindex):
    assert read_page(html, "http://h/", "sluice", NONE).noindex is noindex


def test_header_directives_for_another_bot_do_not_count():
    assert directives(["googlebot: noindex", "unavailable_after: 25 Jun 2027 15:00:00 PST"], "sluice") == NONE
    assert directives(["Sluice: noindex"], "sluice") == Directives(noindex=True)
    assert directives(["none"], "sluice") == Directives(True, True)


@pytest.mark.parametrize(
    "html",
    [
        b"<div>" * 40_000 + b"<a href=z>z</a>",
        b"<b>" * 60_000 + b"<a href=z>z</a>",
        b"<div></x>" * 20_000 + b"<a href=z>z</a>",
        b"<ul><li>" * 20_000 + b"<a href=z>z</a>",
    ],
)
def test_a_deeply_nested_page_keeps_its_links_and_costs_little(html):
    begin = time.process_time()
    assert deeper_than(html, 512)
    assert links(html) == ("http://h/dir/z",)
    assert time.process_time() - begin < 0.5


def test_flat_pages_with_many_tags_are_not_taken_for_deep_ones():
    assert not deeper_than(b"<p>text<br>" * 5000, 512)
    assert not deeper_than(b"<div><p>x</p></div>" * 5000, 512)


def test_a_page_that_stalls_the_parser_is_given_up_and_the_next_one_is_read():
    # A million attributes of one element take the parser more than a minute.
    stalling = b"<div " + b" ".join(b"a%d" % number for number in range(500_000)) + b"><a href=x>x</a>"
    large = b"<p>text</p>" * 30_000 + b"<a href=/y>y</a>"
    assert len(large) > INLINE_BYTES

    async def run():
        parser = Parser("sluice", timeout_s=1.5)
        try:
            first = await parser.read(stalling, "http://h/", NONE)
            second = await parser.read(large, "http://h/", NONE)
        finally:
            await parser.close()
        return first, second

    first, second = asyncio.run(run())
    assert first is None
    assert second.links == ("http://h/y",)
