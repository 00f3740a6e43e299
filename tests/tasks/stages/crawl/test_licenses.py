"""RSL licenses and Link headers in a crawl: when a license is requested, what it excludes, what is recorded."""

import itertools
import json

import pytest
from aiohttp import web

from tasks.formats.web.tdmrep import TDMREP
from tasks.stages.crawl.hosts.rules import MAX_LICENSES
from tests.tasks.stages.crawl.site import Site
from tests.tasks.stages.crawl.test_tdm_file import a_day_later, captured, config_for, due, held

REFUSING = '<rsl xmlns="https://rslstandard.org/rsl"><content url="{}"><license><prohibits type="usage">ai-train'
REFUSING += "</prohibits></license></content></rsl>"
PERMITTING = '<rsl xmlns="https://rslstandard.org/rsl"><content url="/"><license/></content></rsl>'
LINK = '</l.xml>; rel="license"; type="application/rsl+xml"'
ELEMENT = '<link rel="license" type="application/rsl+xml" href="/l.xml">'


def rsl(text):
    return web.Response(body=text.encode(), content_type="application/rsl+xml")


def page(text, kind="text/html", **headers):
    return lambda _: web.Response(text=text, content_type=kind, headers=headers)


def site_with(license_text, pages, robots="User-agent: *\nAllow: /"):
    answer = license_text if callable(license_text) else lambda _: rsl(license_text)
    return Site({"/l.xml": answer, **pages}, robots)


def by_path(cycle):
    return {"/" + url.split("/", 3)[3]: row for url, row in cycle.log().items()}


PAGES = {"/": "<a href=/kept.html>1</a><a href=/closed/a>2</a>", "/kept.html": "kept", "/closed/a": "<a href=/b>b</a>"}


def test_a_license_named_in_robots_txt_excludes_the_pages_that_it_does_not_permit(crawl):
    with site_with(REFUSING.format("/closed/"), PAGES | {"/b": "beyond"}) as site:
        site.robots = f"License: {site.url('/l.xml')}\nUser-agent: *\nAllow: /"
        cycle = due(crawl(config_for(site)))
        assert site.paths()[:4] == ["/robots.txt", TDMREP, "/l.xml", "/"]
        assert site.paths().count("/l.xml") == 1
        assert captured(cycle) == {site.url("/"), site.url("/kept.html"), site.url("/b")}
        row = by_path(cycle)["/closed/a"]
        assert (row["reason"], row["requested"]) == ("ai_optout", True)
        assert json.loads(row["terms"]) == {
            "robots.license": site.url("/l.xml"),
            "robots.rsl-prohibits": "ai-train",
        }
        (stored,) = held(cycle)
        assert stored.files[site.url("/l.xml")] == REFUSING.format("/closed/").encode()
        # The file is cached for a day, and the pages of the next cycle are judged by it.
        site.requests.clear()
        crawl(config_for(site), "c2", cycle)
        assert not {"/l.xml", "/robots.txt"} & set(site.paths())
        site.requests.clear()
        crawl(config_for(site), "c3", a_day_later(cycle))
        assert "/l.xml" in site.paths()


@pytest.mark.parametrize("kind", ["text/html", "text/plain"])
def test_a_license_in_a_link_header_applies_to_its_page_of_any_type(crawl, kind):
    pages = {"/": "<a href=/a>a</a><a href=/b>b</a>", "/a": page("a", kind, Link=LINK), "/b": page("b", kind)}
    with site_with(REFUSING.format("/"), pages) as site:
        cycle = crawl(config_for(site))
        assert captured(cycle) == {site.url("/"), site.url("/b")}
        terms = json.loads(by_path(cycle)["/a"]["terms"])
        assert terms == {"header.license": site.url("/l.xml"), "page.rsl-prohibits": "ai-train"}


def test_a_license_in_an_element_is_requested_once_for_all_pages(crawl):
    pages = {"/": "".join(f"<a href=/{n}>x</a>" for n in range(5)), **{f"/{n}": f"{ELEMENT}<p>{n}" for n in range(5)}}
    with site_with(REFUSING.format("/3"), pages) as site:
        cycle = crawl(config_for(site))
        assert site.paths().count("/l.xml") == 1
        assert [path for path, row in by_path(cycle).items() if row["reason"]] == ["/3"]


def test_the_license_nearest_to_the_page_applies(crawl):
    own = '<link rel="license" type="application/rsl+xml" href="/own.xml">'
    pages = {"/": f"{own}<a href=/a>a</a>", "/a": "a", "/own.xml": lambda _: rsl(PERMITTING)}
    with site_with(REFUSING.format("/"), pages) as site:
        site.robots = f"License: {site.url('/l.xml')}\nUser-agent: *\nAllow: /"
        cycle = crawl(config_for(site))
        assert {path: row["reason"] for path, row in by_path(cycle).items()} == {"/": "", "/a": "ai_optout"}


def test_a_license_on_another_host_is_requested_anonymously_after_its_robots_txt_and_once_for_all_sites(crawl):
    with (
        site_with(REFUSING.format("/a"), {}) as shared,
        Site({"/": "<a href=/a>a</a>", "/a": "one"}) as one,
        Site({"/": "<a href=/a>a</a>", "/a": "two"}) as two,
    ):
        for site in (one, two):
            site.robots = f"License: {shared.url('/l.xml', 'localhost')}\nUser-agent: *\nAllow: /"
        cycle = crawl(config_for(one, two))
        assert shared.paths() == ["/robots.txt", "/l.xml"]
        assert captured(cycle) == {one.url("/"), two.url("/")}


def not_to_be_reached(_):
    raise AssertionError


@pytest.mark.parametrize(
    ("robots_of_other", "license_url"),
    [
        ("User-agent: *\nDisallow: /l.xml", "{}"),
        ("", "http://10.0.0.1/l.xml"),
        ("", "http://h.example:22/l.xml"),
        ("", "ftp://h.example/l.xml"),
        ("", "file:///etc/passwd"),
    ],
)
def test_a_license_that_must_not_be_requested_is_not_and_reserves_nothing(crawl, robots_of_other, license_url):
    with Site({"/l.xml": not_to_be_reached}, robots_of_other) as other, Site({"/": "page"}) as site:
        site.robots = f"License: {license_url.format(other.url('/l.xml'))}\nUser-agent: *\nAllow: /"
        cycle = crawl(config_for(site))
        assert captured(cycle) == {site.url("/")}
        assert "/l.xml" not in other.paths()


BIG = PERMITTING.replace("<content", f"<!--{'x' * (512 << 10)}--><content")
ANSWERS = {
    "missing": lambda _: web.Response(status=404),
    "unavailable": lambda _: web.Response(status=503),
    "no xml": lambda _: rsl("<rsl><content"),
    "a page": lambda _: web.Response(text="<html>", content_type="text/html"),
    "too long": lambda _: rsl(BIG.replace("<license/>", "<license><prohibits>all</prohibits></license>")),
    "a redirect to a private address": lambda _: web.Response(status=302, headers={"Location": "http://10.0.0.1/l"}),
    "an endless redirect": lambda _: web.Response(status=302, headers={"Location": "/l.xml"}),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("where", ["robots", "header"])
def test_a_license_that_cannot_be_read_reserves_nothing_but_is_recorded(crawl, name, where, caplog):
    caplog.set_level("INFO", logger="sluice")
    headers = {"Link": LINK} if where == "header" else {}
    with site_with(ANSWERS[name], {"/": page("page", **headers)}) as site:
        if where == "robots":
            site.robots = f"License: {site.url('/l.xml')}\nUser-agent: *\nAllow: /"
        cycle = crawl(config_for(site, max_backoff_s=5.0))
        assert captured(cycle) == {site.url("/")}
        assert json.loads(by_path(cycle)["/"]["terms"])[f"{where}.license"] == site.url("/l.xml")
        assert (f"its license {site.url('/l.xml')} cannot be" in caplog.text) is (name != "missing")


def test_the_delay_of_a_host_applies_to_its_licenses_too(crawl):
    pages = {"/": page("<a href=/a>a</a>", Link=LINK.replace("/l.xml", "/own.xml")), "/a": "a"}
    with site_with(PERMITTING, pages | {"/own.xml": lambda _: rsl(PERMITTING)}) as site:
        site.robots = f"License: {site.url('/l.xml')}\nUser-agent: *\nAllow: /"
        crawl(config_for(site, delay_s=0.15))
        times = sorted(site.requests)
        assert [path for *_, path in times] == ["/robots.txt", TDMREP, "/l.xml", "/", "/own.xml", "/a"]
        # The end of a response is recorded slightly after its last byte was sent.
        assert min(later[0] - earlier[1] for earlier, later in itertools.pairwise(times)) >= 0.14


def test_a_redirected_license_is_read(crawl):
    moved = lambda _: web.Response(status=301, headers={"Location": "/moved.xml"})  # noqa: E731
    with site_with(
        moved, {"/": "<a href=/a>a</a>", "/a": page("x", Link=LINK), "/moved.xml": lambda _: rsl(REFUSING.format(""))}
    ) as site:
        assert by_path(crawl(config_for(site)))["/a"]["reason"] == "ai_optout"


def test_a_site_with_a_license_for_every_page_costs_a_limited_number_of_requests(crawl):
    count = MAX_LICENSES + 5
    own = '<link rel="license" type="application/rsl+xml" href="/l{}.xml">'
    pages = {"/": "".join(f"<a href=/{n}>x</a>" for n in range(count))}
    pages |= {f"/{n}": f"{own.format(n)}<p>{n}" for n in range(count)}
    pages |= {f"/l{n}.xml": lambda _: rsl(PERMITTING) for n in range(count)}
    with Site(pages, "User-agent: *\nAllow: /") as site:
        cycle = crawl(config_for(site))
        assert sum(path.endswith(".xml") for path in site.paths()) == MAX_LICENSES
        refused = [path for path, row in by_path(cycle).items() if row["reason"] == "ai_optout"]
        assert len(refused) == 5  # nobody knows what the others say


def test_a_license_that_is_dropped_from_memory_applies_to_its_page(crawl, monkeypatch):
    monkeypatch.setattr("tasks.stages.crawl.hosts.rules._MAX_CACHED", 1)
    with site_with(REFUSING.format("/a"), {"/": "<a href=/a>a</a>", "/a": page("a", Link=LINK)}, "") as site:
        assert captured(crawl(config_for(site))) == {site.url("/")}


def test_without_rsl_in_the_policy_no_license_is_requested(crawl):
    with site_with(REFUSING.format("/"), {"/": page("x", Link=LINK)}) as site:
        site.robots = f"License: {site.url('/l.xml')}\nUser-agent: *\nAllow: /"
        cycle = crawl(config_for(site, ai_optouts=("robots", "header", "meta", "tdm")))
        assert "/l.xml" not in site.paths()
        assert captured(cycle) == {site.url("/")}


def test_an_unchanged_page_whose_link_header_names_a_refusing_license_is_taken_down(crawl):
    def answer(request):
        if request.headers.get("If-None-Match"):
            return web.Response(status=304, headers={"Link": LINK})
        return web.Response(text="page", content_type="text/html", headers={"ETag": '"v1"'})

    with site_with(REFUSING.format("/"), {"/": answer}) as site:
        first = a_day_later(due(crawl(config_for(site), "c1")))
        assert crawl(config_for(site), "c2", first).urls()[site.url()]["takedown"] == "ai_optout"


def test_a_canonical_url_in_a_link_header_is_used_like_that_of_an_element(crawl):
    named = '</text>; title="a, b"; rel="canonical nofollow"'
    element = '<link rel=canonical href="{}">'
    pages = {
        "/": "".join(f"<a href=/{name}>x</a>" for name in ("text.txt", "same", "other", "own", "pdf")),
        "/text.txt": page("text", "text/plain", Link=named),
        "/same": page(element.format("/text") + "same", Link=named),
        "/other": page(element.format("/else") + "other", Link=named),
        "/own": page("own", Link='</own>; rel="canonical"'),
        "/pdf": page("pdf", Link='</text>; rel="canonical"; anchor="/another"'),
        "/text": "the text",
    }
    with Site(pages, "User-agent: *\nAllow: /") as site:
        cycle = crawl(config_for(site))
        assert {path: row["canonical"] for path, row in by_path(cycle).items()} == {
            **dict.fromkeys(("/", "/other", "/own", "/pdf", "/text"), ""),
            **dict.fromkeys(("/text.txt", "/same"), site.url("/text")),
        }
        assert by_path(cycle)["/text"]["status"] == "fetch_success"  # the link is followed
