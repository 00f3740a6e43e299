"""Contract of the crawl with several spellings of a URL: one row, and one request as the linking page spells it."""

import uuid
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import web

from tasks.formats.web.robots_tag import directives
from tasks.formats.web.url import key
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.page.links import parse_page
from tasks.stages.crawl.page.sitemap import read_feed, read_sitemap
from tasks.stages.crawl.policy import HostsFile, Policy
from tasks.stages.crawl.storage import crawldb
from tests.tasks.stages.crawl.cycle import again_since
from tests.tasks.stages.crawl.site import Site

LOWER, UPPER, TILDE, ESCAPED = "/%d9%85/", "/%D9%85/", "/~ann/", "/%7Eann/"
SETTINGS = {"allow_loopback": True, "delay_s": 0.0, "latency_factor": 0.0, "partitions": 1, "recrawl": True}


def config_for(site, *seeds, **more):
    return CrawlConfig(seeds=tuple(map(site.url, seeds or ("/",))), **{**SETTINGS, **more})


def requested(site):
    return [path for path in site.paths() if path not in ("/robots.txt", "/.well-known/tdmrep.json")]


def test_seeds_in_two_spellings_are_one_seed(crawl):
    with Site({ESCAPED: "a", TILDE: "a"}) as site:
        cycle = crawl(config_for(site, ESCAPED, TILDE))
        assert len(requested(site)) == 1
    assert [row["status"] for row in cycle.urls().values()] == ["db_fetched"]


def test_links_of_later_cycles_in_another_spelling_add_no_row_and_no_request(crawl):
    pages = {"/": f"<a href='{LOWER}'>a</a>", LOWER: "a"}
    with Site(pages) as site:
        config = config_for(site)
        first = crawl(config, "c1")
        pages["/"] = f"<a href='{UPPER}'>a</a> <a href=/new>n</a>"
        make_due(first.crawldb[0], site.url("/"))
        site.requests.clear()
        second = crawl(config, "c2", first)
        assert requested(site) == ["/", "/new"]
    assert set(second.urls()) == {site.url("/"), site.url(LOWER), site.url("/new")}


def make_due(artifact, url):
    """Makes one row due."""
    rows = artifact.table(crawldb.URLS_FILE).to_pylist()
    for row in rows:
        row["next_due"] = row["first_seen"] if row["url"] == url else row["next_due"]
    write_rows(artifact, rows)


def write_rows(artifact, rows):
    for row in rows:
        row |= {name: row[name].bytes for name in ("key", "record_id") if isinstance(row[name], uuid.UUID)}
    with artifact.store.write(f"{artifact.address.path}/{crawldb.URLS_FILE}") as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=artifact.table(crawldb.URLS_FILE).schema), file)


def to(target):
    return lambda request: web.Response(status=301, headers={"Location": target})


@pytest.mark.parametrize(("linked", "served"), [(UPPER, LOWER), (TILDE, ESCAPED)])
def test_a_redirect_to_another_spelling_is_followed_and_remembered(crawl, linked, served):
    pages = {"/": f"<a href='{linked}'>a</a>", linked: to(served), served: "a page"}
    with Site(pages) as site:
        config = config_for(site)
        first = crawl(config, "c1")
        assert requested(site) == ["/", linked, served]
        row = first.urls()[site.url(served)]
        assert (row["status"], row["redirect"]) == ("db_fetched", "")
        assert set(first.log()) == {site.url("/"), site.url(served)}
        make_due(first.crawldb[0], site.url(served))
        site.requests.clear()
        crawl(config, "c2", first)
        assert requested(site) == [served]


def test_redirects_between_spellings_in_a_circle_end(crawl):
    with Site({"/": f"<a href='{TILDE}'>a</a>", TILDE: to(ESCAPED), ESCAPED: to(TILDE)}) as site:
        cycle = crawl(config_for(site))
        assert len(requested(site)) == 7
    statuses = {row["key"]: row["status"] for row in cycle.urls().values()}
    assert statuses[uuid.UUID(bytes=key(site.url(TILDE)))] == "db_redir_perm"


def test_a_page_that_names_itself_in_another_spelling_has_no_other_canonical_url(crawl):
    page = f"<link rel=canonical href='{UPPER}'>text"
    with Site({"/": f"<a href='{LOWER}'>a</a>", LOWER: page}) as site:
        cycle = crawl(config_for(site))
        assert requested(site) == ["/", LOWER]
    row = cycle.urls()[site.url(LOWER)]
    assert (row["canonical"], row["interval_s"]) == ("", crawldb.FIRST_INTERVAL_S)


def test_canonical_links_in_two_spellings_are_one():
    html = f"<link rel=canonical href='{LOWER}'><link rel=canonical href='{UPPER}'>".encode()
    assert parse_page(html, "http://h/", "sluice", directives([], "sluice")).canonicals == (f"http://h{LOWER}",)


def test_sitemaps_and_feeds_list_a_page_once():
    entries = "".join(f"<url><loc>http://h{path}</loc></url>" for path in (LOWER, UPPER, ESCAPED, TILDE))
    found = read_sitemap(f"<urlset>{entries}</urlset>".encode(), "http://h/sitemap.xml")
    assert [entry.url for entry in found.entries] == [f"http://h{LOWER}", f"http://h{ESCAPED}"]
    items = "".join(f"<item><link>http://h{path}</link></item>" for path in (LOWER, UPPER))
    assert read_feed(f"<rss><channel>{items}</channel></rss>".encode(), "http://h/") == (f"http://h{LOWER}",)


def test_a_rule_that_only_changes_the_spelling_changes_the_request_of_a_known_page(crawl, tmp_path):
    with Site({"/": f"<a href='{LOWER}'>a</a>", LOWER: "a", UPPER: "a"}) as site:
        config = config_for(site)
        first = crawl(config, "c1")
        hosts = tmp_path / "hosts.toml"
        hosts.write_text("[hosts.'127.0.0.1']\nrewrite = [{ match = '%d9', to = '%D9' }]\n")
        make_due(first.crawldb[0], site.url(LOWER))
        site.requests.clear()
        second = crawl(config.model_copy(update={"hosts_file": str(hosts)}), "c2", first)
        assert requested(site) == [UPPER]
    assert set(second.urls()) == {site.url("/"), site.url(UPPER)}


def test_the_hosts_file_lists_pages_again_in_any_spelling(crawl, tmp_path):
    again = {f"http://h{UPPER}": "2026-11-01T00:00:00Z", "http://h/%7Eann/*": "2026-11-02T00:00:00Z"}
    policy = Policy(HostsFile.model_validate({"again": again}))
    dates = again_since(policy, *(f"http://h{path}" for path in (LOWER, TILDE + "b", "/%D9%86/")))
    assert [date and date.day for date in dates] == [1, 2, None]
    pages = {"/": f"<a href='{LOWER}'>a</a> <a href='{ESCAPED}b%7e'>b</a> <a href=/c>c</a>", LOWER: "a", "/c": "c"}
    with Site({**pages, f"{ESCAPED}b%7e": "b"}) as site:
        first = crawl(config_for(site), "c1")
        hosts, now = tmp_path / "hosts.toml", datetime.now(UTC).isoformat()
        hosts.write_text(f"[again]\n'{site.url(UPPER)}' = {now}\n'{site.url(TILDE)}*' = {now}\n")
        site.requests.clear()
        crawl(config_for(site, hosts_file=str(hosts)), "c2", first)
        assert sorted(requested(site)) == sorted([LOWER, f"{ESCAPED}b%7e"])
