"""Group 7, XML: sitemaps and feeds that inflate, form cycles or point to other hosts."""

import gzip

import pytest

from tests.tasks.stages.crawl.hostile.web import NOT_FOUND, page

pytestmark = pytest.mark.real_time

LAUGHS = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10 if n else "lol" * 10}">' for n in range(10))
URLSET = '<?xml version="1.0"?>{}<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{}</urlset>'


def listed(path):
    return f"<url><loc>{path}</loc></url>"


def urls(*paths, doctype=""):
    return URLSET.format(doctype, "".join(map(listed, paths))).encode()


def index(*paths):
    entries = "".join(f"<sitemap><loc>{path}</loc></sitemap>" for path in paths)
    return f'<?xml version="1.0"?><sitemapindex>{entries}</sitemapindex>'.encode()


def host_with(web, files, kind="application/xml"):
    """A host whose robots.txt names the first of `files` (path -> body) as its sitemap."""
    answers = {path: page(body, kind=kind) for path, body in files.items()}
    answers["/"] = page(b"<p>home")
    answers["/listed"] = page(b"<p>listed in a sitemap")
    first = next(iter(files))
    robots = page(f"User-agent: *\nAllow: /\nSitemap: {first}\n".encode(), kind="text/plain")
    return web.host(lambda path: answers.get(path, NOT_FOUND), robots=robots)


def every_kind():
    """Files by path; created lazily: a bomb of 100 MiB takes a moment."""
    return {
        "good": {"/s.xml": urls("/listed")},
        "billion laughs": {"/s.xml": urls("/listed", "&a9;", doctype=f"<!DOCTYPE x [{LAUGHS}]>")},
        "quadratic entities": {
            "/s.xml": urls("/listed", "&b;" * 10_000, doctype=f'<!DOCTYPE x [<!ENTITY b "{"b" * 50_000}">]>')
        },
        "entity from a file": {
            "/s.xml": urls("/listed", "&f;", doctype='<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]>')
        },
        "a document type from elsewhere": {
            "/s.xml": urls("/listed", doctype='<!DOCTYPE x SYSTEM "http://127.0.0.1:1/x.dtd">')
        },
        "index of itself": {"/s.xml": index("/s.xml", "/t.xml"), "/t.xml": urls("/listed")},
        "indexes in a circle": {
            "/s.xml": index("/t.xml"),
            "/t.xml": index("/s.xml", "/u.xml"),
            "/u.xml": urls("/listed"),
        },
        "bomb in gzip": {"/s.xml.gz": gzip.compress(urls("/listed") + b" " * (100 << 20), 1)},
        "bomb of one tag": {
            "/s.xml.gz": gzip.compress(b"<urlset><url><loc>/listed</loc></url><a " + b"a" * (100 << 20), 1)
        },
        "nested without end": {"/s.xml": b"<urlset><url><loc>/listed</loc></url>" + b"<url>" * 1_000_000},
        "a million entries": {"/s.xml": urls("/listed", *(f"/{number}" for number in range(100_000)))},
        "a long address": {"/s.xml": urls("/listed", "/" + "a" * 1_000_000)},
        "addresses of other schemes": {
            "/s.xml": urls("/listed", "file:///etc/passwd", "javascript:x", "data:,x", "ftp://h/")
        },
        "inside addresses": {"/s.xml": urls("/listed", "http://10.0.0.1/", "http://169.254.169.254/", "http://[::1]/")},
        "cut off": {"/s.xml": urls("/listed", "/2")[:-20]},
        "no XML behind the head": {"/s.xml": urls("/listed") + b"\0\xff<<<>>>"},
    }


def test_a_sitemap_of_any_kind_is_read_within_bounds(web, crawl):
    kinds = every_kind()
    hosts = {name: host_with(web, files) for name, files in kinds.items()}
    result = crawl(*hosts.values(), max_pages_per_host=20, max_depth=2, max_body_bytes=8 << 20)
    assert result.reasons(hosts) == dict.fromkeys(hosts, "")
    for name, host in hosts.items():
        for path in kinds[name]:
            assert host.paths().count(path) <= 1, f"{name}: {path} was asked for again and again"
        assert len(host.paths()) <= 23, name
    # The entry before the error may be read; nothing else may be.
    reached = {name for name, host in hosts.items() if "/listed" in host.paths()}
    assert reached >= {"good", "index of itself", "indexes in a circle", "inside addresses", "a long address"}
    assert not any("root:" in url or "lollol" in url for url in result.rows)
    assert not [url for url in result.rows if not url.startswith("http://127.0.0.1:")]


def test_a_hundred_thousand_sitemaps_are_not_all_fetched(web, crawl):
    lines = "".join(f"Sitemap: /s{number}.xml\n" for number in range(30_000))
    robots = page(f"User-agent: *\nAllow: /\n{lines}".encode(), kind="text/plain")
    host = web.host(lambda path: page(urls("/listed"), kind="application/xml"), robots=robots)
    crawl(host, max_pages_per_host=20)
    assert len(host.paths()) <= 23
