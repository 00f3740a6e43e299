"""Group 7: HTML that stalls parsers, inflates, or is false."""

import pytest

from tests.soak import soak_but
from tests.tasks.stages.crawl.hostile.web import page

pytestmark = pytest.mark.real_time

FOUND = b"<a href=/found>found</a>"
MIB = 1 << 20


def many(piece, size):
    return piece * (size // len(piece))


def readable(mib):
    """Pages by name; a large one has seven times `mib` bytes."""
    return {
        "a million equal attributes": FOUND + b"<p " + many(b"a=1 ", 4 * mib) + b">x</p>",
        "a million links": FOUND + b"".join(b"<a href=/%d>x</a>" % n for n in range(400_000 * mib // MIB)),
        "a million equal links": FOUND * (200_000 * mib // MIB),
        "one text node": FOUND + many(b"text ", 7 * mib),
        "one attribute": FOUND + b"<p title='" + many(b"text ", 7 * mib) + b"'>x</p>",
        "one comment": FOUND + b"<!--" + many(b"text ", 7 * mib),
        "one script": FOUND + b"<script>" + many(b"<a href=/no>", 7 * mib),
        "open tags without end": FOUND + many(b"<a ", 7 * mib),
        "open quotes without end": FOUND + many(b"<a href='", 7 * mib),
        "base of another scheme": b"<base href='javascript:alert(1)'>" + FOUND,
        "base of data": b"<base href='data:text/html,x'>" + FOUND,
        "links of other schemes": b"<a href=javascript:x>1</a><a href=file:///etc/passwd>2</a><a href=data:,x>3</a>"
        + FOUND,
        "refresh to itself": b"<meta http-equiv=refresh content='0; url=/'>" + FOUND,
        "refresh of the mad": b"<meta http-equiv=refresh content='" + b"9" * 10_000 + b";url=/'>" + FOUND,
        "utf-7": b"<meta charset=utf-7>+ADw-b+AD4-" + FOUND,
        "a charset that is none": b"<meta charset=no-such-thing>" + FOUND,
        "a charset that is a codec": b"<meta charset=rot13>" + FOUND,
        "contradictory charsets": b"<meta charset=utf-16><meta charset=koi8-r><meta charset=utf-8>" + FOUND,
        "lone surrogates": b"\xed\xa0\x80\xed\xb0\x80&#xD800;&#xDFFF;<a href='/\xed\xa0\x80'>x</a>" + FOUND,
        "NULs": b"\0\0<html>\0" + FOUND.replace(b"found<", b"\0found<"),
        "bytes of all kinds": bytes(range(256)) * 1000 + FOUND,
        "entities without end": FOUND + many(b"&amp;&lt;&#1;&notanentity;", 4 * mib),
        "tables in tables": FOUND + b"<table><tr><td>" * 10_000,
        "formatting left open": FOUND + b"<b><i><u><p>" * 20_000,
    }


# Quadratic in the parser: they may be parsed, or kept without their links.


def slow():
    return {
        "a million attributes": FOUND + b"<p " + b" ".join(b"a%d=1" % n for n in range(900_000)) + b">x</p>",
        "50k short attributes": FOUND + b"<p " + b" ".join(b"%x" % n for n in range(50_000)) + b">x</p>",
        "15k attributes of one small page": FOUND
        + b"<p "
        + b" ".join(b'%x="<"' % n for n in range(15_000))
        + b">x</p>",
    }


DEEP = {
    "a million nested div": FOUND + b"<div>" * 1_000_000,
    "100k nested div": FOUND + b"<div>" * 100_000,
    "a million nested span and font": FOUND + b"<span><font>" * 500_000,
    "nested and closed": FOUND + b"<div>" * 300_000 + b"</div>" * 300_000,
    "nested lists": FOUND + b"<ul><li>" * 500_000,
    "nested with false ends": FOUND + b"<div><!--</div>-->" * 300_000,
}
BILLION = b"".join(b'<!ENTITY a%d "%s">' % (n, b"&a%d;" % (n - 1) * 10 if n else b"lol" * 10) for n in range(10))
XML = {
    "billion laughs": b"<?xml version='1.0'?><!DOCTYPE html [" + BILLION + b"]><html><p>&a9;</p>" + FOUND + b"</html>",
    "entity from a file": b"<!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><html><p>&e;</p>"
    + FOUND
    + b"</html>",
    "entity from the net": b"<!DOCTYPE x [<!ENTITY %% e SYSTEM 'http://127.0.0.1:%d/'> %%e;]><html>"
    + FOUND
    + b"</html>",
}


@pytest.fixture
def crawl_pages(web, crawl):
    def run(pages, kind="text/html", **settings):
        hosts = {name: web.host(page(body, kind=kind)) for name, body in pages.items()}
        # No host gets requests other than "/" and "/found".
        result = crawl(*hosts.values(), max_depth=1, max_body_bytes=8 * MIB, max_pages_per_host=10, **settings)
        return hosts, result

    return run


@pytest.mark.parametrize("mib", soak_but({0}, [MIB // 4, MIB]))
def test_a_page_of_any_form_is_read_in_bounded_time_and_memory(crawl_pages, mib):
    hosts, result = crawl_pages(readable(mib))
    assert result.reasons(hosts) == dict.fromkeys(hosts, "")
    # Of a million links a few are tried, not always this one.
    assert {name for name, host in hosts.items() if "/found" not in host.paths()} <= {"a million links"}
    for host in hosts.values():
        assert len(host.paths()) <= 12


@pytest.mark.soak
def test_a_page_that_slows_the_parser_does_not_stall_the_fetch(crawl_pages):
    hosts, result = crawl_pages(slow())
    assert result.reasons(hosts) == dict.fromkeys(hosts, "")
    assert "/found" in hosts["15k attributes of one small page"].paths()


@pytest.mark.soak
def test_a_page_too_deep_for_the_parser_does_not_stall_the_fetch(crawl_pages):
    hosts, result = crawl_pages(DEEP)
    assert result.reasons(hosts) == dict.fromkeys(hosts, "")
    reached = {name for name, host in hosts.items() if "/found" in host.paths()}
    assert {"a million nested div", "100k nested div", "nested and closed"} <= reached


def test_entities_of_a_document_are_neither_expanded_nor_fetched(web, crawl_pages):
    bait = web.host(page(b"secret"))
    pages = {name: body % bait.port if b"%%" in body else body for name, body in XML.items()}
    hosts, result = crawl_pages(pages, kind="application/xhtml+xml")
    assert result.reasons(hosts) == dict.fromkeys(hosts, "")
    assert bait.connections == 0


def test_a_body_of_100_mb_is_truncated(web, crawl):
    host = web.host(page(FOUND + b"text " * (20 << 20)))
    result = crawl(host, max_depth=1, max_body_bytes=2 * MIB)
    assert (result.captures[host.url()]["bytes"], result.captures[host.url()]["truncated"]) == (2 * MIB, True)
    assert "/found" in host.paths()
    assert host.sent < 40 * MIB


CHARSETS = ("utf-7", "no-such", "rot13", "idna", "unicode_escape", "zlib", "utf-16", "utf-8" * 1000)


def test_an_invalid_charset_in_the_header_is_ignored(web, crawl):
    hosts = {charset: web.host(page(FOUND, kind=f"text/html; charset={charset}")) for charset in CHARSETS}
    hosts["a NUL"] = web.host(page(FOUND, kind="text/html; charset=utf-8\0"))
    result = crawl(*hosts.values(), max_depth=1)
    assert result.reasons(hosts) == {**dict.fromkeys(hosts, ""), "a NUL": "protocol"}
