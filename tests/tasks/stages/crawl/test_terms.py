"""Terms of use that sites state: kept with the capture as they stood, whatever is decided by them."""

import io
import json

import pytest
from aiohttp import web
from warcio.archiveiterator import ArchiveIterator

from tasks.formats.web.robots import Reservations, Robots
from tasks.formats.web.robots_tag import Directives
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.page.links import read_page
from tasks.stages.crawl.page.terms import also, header_terms, kept
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
    licenses = ["https://a.example/license.xml", "https://a.example/other.xml"]
    signals = [("content-signal", "search=yes"), *(("content-usage", one) for one in usage)]
    assert found == [*signals, *(("license", one) for one in licenses)]
    assert Robots(b"User-agent: *\nDisallow: /a", "sluice").terms("http://h/") == []


def test_a_file_full_of_terms_is_gone_through_as_far_as_pages_can_pay_for():
    lines = [f"Content-Usage: /{n} train-ai=n\nLicense: https://a.example/{n}" for n in range(5000)]
    robots = Robots("\n".join(["User-agent: *", *lines]).encode(), "sluice")
    assert len(robots.terms("http://h/1")) == 51
    assert robots.ai_optout("http://h/4999/a")  # what decides is read to the end


def test_a_license_belongs_to_no_group_and_ends_none():
    robots = Robots(b"User-agent: sluice\nLicense: https://a.example/l.xml\nUser-agent: b\nDisallow: /x", "sluice")
    assert not robots.allows("http://h/x")


def test_tdmrep_states_reservation_and_policy_of_the_rule_that_holds():
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
        ("Link", '</a.css>; rel=preload, </l.xml>; type="x"; rel=license', ["/l.xml"]),
        ("Link", '</a>; rel="next license"', ["/a"]),
        ("Link", '</license>; rel="next"', []),
        ("Link", "<" * 100_000, []),
        ("Set-Cookie", "license=1", []),
    ],
)
def test_headers_state_terms(name, value, found):
    expected = [one if isinstance(one, tuple) else ("license", one) for one in found]
    assert header_terms(((name, value),)) == expected


def test_a_page_states_terms_in_its_head():
    html = (
        b'<head><link rel="license" type="application/rsl+xml" href="/l.xml"><meta name="TDM-Policy" content="https://p/">'
        b'<meta name="tdm-reservation" content="1"><meta name="robots" content="noai, nofollow"></head>'
        b'<body><link rel="license" href="/comment.xml">'
    )
    page = read_page(html, "http://h/a/b", "sluice", Directives())
    assert sorted(page.terms) == [
        ("license", "http://h/l.xml"),
        ("robots", "noai, nofollow"),
        ("tdm-policy", "https://p/"),
        ("tdm-reservation", "1"),
    ]


def test_what_is_kept_is_bounded_and_plain():
    assert kept() == kept(header=[], page=[("license", " ")]) == ""
    assert kept(header=[("a", "x\r\ny: \x00z")]) == '{"header.a": "x y:  z"}'
    many = json.loads(kept(header=[(f"n{n}", "v" * 5000) for n in range(100)]))
    assert (len(many), {len(value) for value in many.values()}) == (20, {1000})
    assert (
        also(kept(robots=[("license", "l")]), page=[("license", "p")]) == '{"page.license": "p", "robots.license": "l"}'
    )


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


def test_terms_are_kept_in_log_archive_and_crawl_db(cycle):
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


def test_402_is_an_answer_that_is_not_tried_again(cycle):
    assert cycle.site.paths().count("/paid") == 1
    row = cycle.log()[cycle.site.url("/paid")]
    assert (row["status"], row["reason"], row["http_status"]) == ("fetch_gone", "payment_required", 402)
    assert json.loads(row["terms"])["header.crawler-price"] == "USD 0.01"
    known = cycle.urls()[cycle.site.url("/paid")]
    assert (known["status"], known["reason"], known["fails"]) == ("db_gone", "payment_required", 0)
    assert cycle.segments[0].record.rejected == {"payment_required": 1}


def test_documents_are_joined_to_the_terms_of_their_capture_by_its_record(cycle, run_stage):
    extracted = run_stage("tasks.stages.extract.stage", ExtractConfig(), {"warc": cycle.warc})
    rows = [row for path in extracted.files("documents/") for row in extracted.table(path).to_pylist()]
    logged = {row["record_id"]: row["terms"] for row in cycle.log().values()}
    (document,) = rows
    assert json.loads(logged[document["record_id"]])["robots.license"] == "https://a.example/license.xml"
