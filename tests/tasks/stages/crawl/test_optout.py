from datetime import UTC, datetime

import pytest

from tasks.formats.web.robots_tag import Directives, directives
from tasks.stages.crawl.page.links import Page, read_page
from tasks.stages.crawl.page.terms import opted_out

ALL = ("robots", "header", "meta", "tdm")


def decided(policy=ALL, headers=(), html="", reserved=False):
    said = directives([value for name, value in headers if name == "X-Robots-Tag"], "sluice")
    page = read_page(html.encode(), "http://h/", "sluice", said) if html else Page()
    return opted_out(policy, headers, said, page, reserved=reserved)


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
        ("Content-Usage", "train-ai=n, train-ai=y", ""),
        ("Content-Usage", "bots=n", "header"),
        ("Content-Usage", "bots=n, train-ai=y", ""),
        ("Content-Usage", "train-ai=y, train-genai=n", "header"),
        ("Content-Usage", "search=n", ""),
        ("TDM-Reservation", " 1 ", "tdm"),
        ("tdm-reservation", "0", ""),
        ("tdm-policy", "https://h/policy.json", ""),
    ],
)
def test_a_response_header_that_refuses_training_is_heard(name, value, reason):
    assert decided(headers=[("Content-Type", "text/html"), (name, value)]) == reason


def test_the_recipe_says_which_opt_outs_bind():
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
def test_a_page_that_refuses_training_is_heard(html, reason):
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
def test_of_tdm_reservations_the_one_nearest_to_the_page_counts(meta, header, site, reason):
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
def test_a_crawlers_name_holds_up_to_the_next_and_a_day_that_is_over_means_noindex(value, noindex):
    assert directives([value], "Sluice", NOW).noindex is noindex


def test_directives_of_several_places_add_up():
    assert directives(["noarchive"], "x") | directives(["nofollow", "noai"], "x") == Directives(
        nofollow=True, noarchive=True, noai=True
    )
