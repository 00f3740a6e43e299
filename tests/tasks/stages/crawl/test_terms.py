"""Stated terms of use: stored unchanged with the capture, independent of decisions."""

import io
import json
from datetime import UTC, datetime

import pytest
from aiohttp import web
from warcio.archiveiterator import ArchiveIterator

from tasks.formats.web.robots import Robots
from tasks.formats.web.robots_tag import Directives, directives
from tasks.formats.web.tdmrep import Reservations
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.page.links import ParsedPage, parse_page
from tasks.stages.crawl.page.terms import header_terms, merge_terms, opted_out, terms_json
from tasks.stages.extract.config import ExtractConfig
from tests.tasks.stages.crawl.site import Site

ROBOTS = b"""License: https://a.example/license.xml
Content-Signal: search=yes
User-agent: *
Content-Usage: train-ai=n
Content-Usage: /free train-ai=y
License: https://a.example/other.xml
Allow: /
User-agent: otherbot
Content-Signal: ai-train=no
Disallow: /
"""


@pytest.mark.parametrize(
    ("path", "usage"),
    [("/", ["train-ai=n"]), ("/free/a", ["train-ai=n", "/free train-ai=y"]), ("/fre", ["train-ai=n"])],
)
def test_robots_txt_states_terms_for_a_page(path, usage):
    found = Robots(ROBOTS, "sluice").terms(f"http://h{path}")
    signals = [("content-signal", "search=yes"), *(("content-usage", one) for one in usage)]
    # RSL 1.0, 4.4.2: a license of the crawler's group replaces those above all groups.
    assert found == [*signals, ("license", "https://a.example/other.xml")]
    assert Robots(b"User-agent: *\nDisallow: /a", "sluice").terms("http://h/") == []


def test_a_file_full_of_terms_is_read_within_bounds():
    lines = [f"Content-Usage: /{n} train-ai=n\nLicense: https://a.example/{n}" for n in range(5000)]
    robots = Robots("\n".join(["User-agent: *", *lines]).encode(), "sluice")
    assert len(robots.terms("http://h/1")) == 51
    assert robots.ai_optout("http://h/4999/a")  # directives are read to the end


def test_a_license_line_belongs_to_no_group_and_ends_none():
    robots = Robots(b"User-agent: sluice\nLicense: https://a.example/l.xml\nUser-agent: b\nDisallow: /x", "sluice")
    assert not robots.allows("http://h/x")


def test_tdmrep_gives_reservation_and_policy_of_the_matching_rule():
    rules = [
        {"location": "/free", "tdm-reservation": 0},
        {"location": "/", "tdm-reservation": 1, "tdm-policy": "https://a.example/policy.json"},
    ]
    said = Reservations(json.dumps(rules).encode())
    assert said.terms("http://h/free") == (("tdm-reservation", "0"),)
    assert said.terms("http://h/x") == (("tdm-reservation", "1"), ("tdm-policy", "https://a.example/policy.json"))
    assert Reservations(b"[]").terms("http://h/") == ()


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("Content-Usage", "train-ai=n", [("content-usage", "train-ai=n")]),
        ("TDM-Policy", "https://a.example/p", [("tdm-policy", "https://a.example/p")]),
        ("Crawler-Price", "USD 0.01", [("crawler-price", "USD 0.01")]),
        ("X-Robots-Tag", "noarchive, noai", [("x-robots-tag", "noarchive, noai")]),
        ("X-Robots-Tag", "noarchive, snoain", []),
        ("Link", '<https://a.example/l.xml>; rel="license"; type="application/rsl+xml"', ["https://a.example/l.xml"]),
        ("Link", '</a.css>; rel=preload, </l.xml>; type="x"; rel=license', ["http://h/l.xml"]),
        ("Link", '</a>; rel="next license"', ["http://h/a"]),
        ("Link", '</license>; rel="next"', []),
        ("Link", "<" * 100_000, []),
        ("Set-Cookie", "license=1", []),
    ],
)
def test_headers_state_terms(name, value, found):
    expected = [one if isinstance(one, tuple) else ("license", one) for one in found]
    assert header_terms(((name, value),), "http://h/a/b") == expected


def test_a_page_states_terms_in_its_head():
    html = (
        b'<head><link rel="license" type="application/rsl+xml" href="/l.xml"><meta name="TDM-Policy" content="https://p/">'
        b'<meta name="tdm-reservation" content="1"><meta name="robots" content="noai, nofollow"></head>'
        b'<body><link rel="license" href="/comment.xml">'
    )
    page = parse_page(html, "http://h/a/b", "sluice", Directives())
    assert sorted(page.terms) == [
        ("license", "http://h/l.xml"),
        ("robots", "noai, nofollow"),
        ("tdm-policy", "https://p/"),
        ("tdm-reservation", "1"),
    ]


def test_stored_terms_are_bounded_plain_text():
    assert terms_json() == terms_json(header=[], page=[("license", " ")]) == ""
    assert terms_json(header=[("a", "x\r\ny: \x00z")]) == '{"header.a": "x y:  z"}'
    many = json.loads(terms_json(header=[(f"n{n}", "v" * 5000) for n in range(100)]))
    assert (len(many), {len(value) for value in many.values()}) == (20, {1000})
    merged = merge_terms(terms_json(robots=[("license", "l")]), page=[("license", "p")])
    assert merged == '{"page.license": "p", "robots.license": "l"}'


PAGE = (
    '<link rel="license" href="/cc"><p>An ordinary page with text of its own, to be kept as a document. '
    + "More. " * 90
)


def site_with_terms():
    def page(_):
        return web.Response(text=PAGE, content_type="text/html", headers={"Content-Usage": "train-ai=y"})

    def tdm(_):
        rule = {"location": "/", "tdm-reservation": 0, "tdm-policy": "https://a.example/policy.json"}
        return web.json_response([rule])

    priced = {"Crawler-Price": "USD 0.01", "Retry-After": "1"}
    pages = {
        "/": page,
        "/paid": lambda _: web.Response(status=402, headers=priced),
        "/.well-known/tdmrep.json": tdm,
    }
    return Site(pages, robots="License: https://a.example/license.xml\nUser-agent: *\nAllow: /\n")


@pytest.fixture
def cycle(crawl):
    with site_with_terms() as site:
        config = CrawlConfig(
            seeds=(site.url(), site.url("/paid")), allow_loopback=True, delay_s=0.0, latency_factor=0.0, partitions=1
        )
        made = crawl(config, "c1")
    made.site = site
    return made


def test_terms_are_stored_in_log_archive_and_crawl_db(cycle):
    stated = {
        "header.content-usage": "train-ai=y",
        "page.license": cycle.site.url("/cc"),
        "robots.license": "https://a.example/license.xml",
        "tdmrep.tdm-policy": "https://a.example/policy.json",
        "tdmrep.tdm-reservation": "0",
    }
    url = cycle.site.url()
    assert json.loads(cycle.log()[url]["terms"]) == stated
    assert json.loads(cycle.urls()[url]["terms"]) == stated
    (segment,) = cycle.segments
    (path,) = segment.files("warc/")
    records = ArchiveIterator(io.BytesIO(segment.read(path)), check_digests="raise")
    (noted,) = [one.content_stream().read().decode() for one in records if one.rec_type == "metadata"]
    fields = dict(line.split(": ", 1) for line in noted.strip().splitlines())
    assert json.loads(fields["statedTerms"]) == stated


def test_status_402_is_not_retried(cycle):
    assert cycle.site.paths().count("/paid") == 1
    row = cycle.log()[cycle.site.url("/paid")]
    assert (row["status"], row["reason"], row["http_status"]) == ("fetch_gone", "payment_required", 402)
    assert json.loads(row["terms"])["header.crawler-price"] == "USD 0.01"
    known = cycle.urls()[cycle.site.url("/paid")]
    assert (known["status"], known["reason"], known["fails"]) == ("db_gone", "payment_required", 0)
    assert cycle.segments[0].record.rejected == {"payment_required": 1}


def test_documents_have_the_terms_of_their_capture(cycle, run_stage):
    extracted = run_stage("tasks.stages.extract.stage", ExtractConfig(), {"warc": cycle.warc})
    rows = [row for path in extracted.files("documents/") for row in extracted.table(path).to_pylist()]
    logged = {row["record_id"]: row["terms"] for row in cycle.log().values()}
    (document,) = rows
    assert json.loads(logged[document["record_id"]])["robots.license"] == "https://a.example/license.xml"


ALL = ("robots", "header", "meta", "tdm", "rsl")


def decided(policy=ALL, headers=(), html="", reserved=False, licensed=None):
    said = directives([value for name, value in headers if name == "X-Robots-Tag"], "sluice")
    page = parse_page(html.encode(), "http://h/", "sluice", said) if html else ParsedPage()
    return opted_out(policy, headers, said, page, reserved=reserved, licensed=licensed)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("X-Robots-Tag", "noai", "header"),
        ("X-Robots-Tag", "noarchive, NoAI, noimageai", "header"),
        ("X-Robots-Tag", "noml", "header"),
        ("X-Robots-Tag", "sluice: noai", "header"),
        ("X-Robots-Tag", "otherbot: noai", ""),
        ("X-Robots-Tag", "noimageai", ""),
        ("content-signal", "search=yes,ai-train=no", "header"),
        ("Content-Signal", "ai-train=yes, search=yes, ai-input=no", ""),
        ("Content-Usage", "train-ai=n", "header"),
        ("Content-Usage", "search=y, train-ai=n;x=1", "header"),
        ("Content-Usage", "train-ai=n, train-ai=y", "header"),
        ("Content-Usage", "train-genai=y, train-ai=n", "header"),
        ("Content-Usage", "bots=n", "header"),
        ("Content-Usage", "bots=y, train-ai=y", ""),
        ("Content-Usage", "train-ai=y, train-genai=n", "header"),
        ("Content-Usage", "search=n", ""),
        ("TDM-Reservation", " 1 ", "tdm"),
        ("tdm-reservation", "0", ""),
        ("tdm-policy", "https://h/policy.json", ""),
    ],
)
def test_a_response_header_that_refuses_training_is_respected(name, value, reason):
    assert decided(headers=[("Content-Type", "text/html"), (name, value)]) == reason


def test_the_recipe_selects_the_opt_outs():
    headers = [("X-Robots-Tag", "noai"), ("TDM-Reservation", "1")]
    html = '<meta name="robots" content="noai"><meta name="TDM-reservation" content="1">'
    assert decided(headers=headers, html=html) == "header"
    assert decided(("meta", "tdm"), headers, html) == "meta"
    assert decided(("tdm",), headers, html) == "tdm"
    assert decided(("robots",), headers, html) == ""
    assert decided((), headers, html, reserved=True) == ""
    assert decided(("header", "meta"), reserved=True) == ""


@pytest.mark.parametrize(
    ("html", "reason"),
    [
        ('<meta name="robots" content="index, noai">', "meta"),
        ('<meta name="sluice" content="noai">', "meta"),
        ('<meta name="googlebot" content="noai">', ""),
        ('<meta name="robots" content="noimageai">', ""),
        ('<meta name="tdm-reservation" content="1">', "tdm"),
        ('<meta name="tdm-reservation" content="yes">', ""),
    ],
)
def test_a_page_that_refuses_training_is_respected(html, reason):
    assert decided(html=html) == reason


@pytest.mark.parametrize(
    ("meta", "header", "site", "reason"),
    [
        ("0", "1", True, ""),
        ("1", "0", False, "tdm"),
        (None, "0", True, ""),
        (None, "1", False, "tdm"),
        (None, None, True, "tdm"),
        (None, "2", True, "tdm"),
        (None, None, False, ""),
    ],
)
def test_the_tdm_reservation_nearest_to_the_page_applies(meta, header, site, reason):
    headers = [] if header is None else [("tdm-reservation", header)]
    html = "<p>" if meta is None else f'<meta name="tdm-reservation" content="{meta}">'
    assert decided(headers=headers, html=html, reserved=site) == reason


NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "noindex"),
    [
        ("unavailable_after: 25 Jun 2010 15:00:00 PST", True),
        ("unavailable_after: 25 Jun 2030 15:00:00 PST", False),
        ("unavailable_after: Friday, 25-Jun-10 15:00:00 UTC", True),
        ("unavailable_after: Fri, 25 Jun 2010 15:00:00 GMT, nofollow", True),
        ("unavailable_after: 2010-06-25T15:00:00+01:00", True),
        ("unavailable_after: 2010-06-25", True),
        ("unavailable_after: 2030-06-25", False),
        ("unavailable_after: when the cows come home", False),
        ("unavailable_after:", False),
        ("otherbot: unavailable_after: 2010-06-25", False),
        ("sluice: unavailable_after: 2010-06-25", True),
        ("otherbot: nofollow, sluice: noindex", True),
        ("otherbot: nofollow, noindex", False),
        ("noindex, otherbot: nofollow", True),
        ("max-snippet: 20, noindex", True),
        ("max-image-preview:large, index", False),
    ],
)
def test_an_agent_name_applies_up_to_the_next_and_a_past_date_means_noindex(value, noindex):
    assert directives([value], "Sluice", NOW).noindex is noindex


def test_directives_of_several_places_add_up():
    assert directives(["noarchive"], "x") | directives(["nofollow", "noai"], "x") == Directives(
        nofollow=True, noarchive=True, noai=True
    )
