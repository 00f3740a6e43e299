"""The second cycle: due URLs, changes, and intervals of pages."""

import io
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import web
from warcio.archiveiterator import ArchiveIterator

from tasks.core.queries import connect
from tasks.formats.web.url import key
from tasks.stages.crawl import update
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.inject import SEEDS
from tasks.stages.crawl.storage import crawldb, fetchlist
from tasks.stages.crawl.storage.crawldb import DAY_S, URLS
from tasks.stages.crawl.storage.fetchlist import FETCHLIST
from tasks.stages.crawl.storage.fetchlog import FETCH_LOG, LINKS, Outcome, to_table
from tests.tasks.stages.crawl.site import Site

T0 = datetime(2026, 1, 1, tzinfo=UTC)
T1 = T0 + timedelta(days=8)
URL = "http://h/"
FIRST, SECOND = UUID(int=1), UUID(int=2)


def db_row(**changes):
    row = {
        "key": key(URL),
        "url": URL,
        "status": crawldb.FETCHED,
        "reason": "",
        "kind": "page",
        "depth": 1,
        "first_seen": T0,
        "last_fetch": T0,
        "next_due": T0 + timedelta(days=7),
        "interval_s": 7 * DAY_S,
        "fails": 0,
        "etag": '"1"',
        "last_modified": "",
        "payload_digest": "sha1:A",
        "record_id": FIRST.bytes,
        "warc_path": "s/warc/1",
        "warc_offset": 10,
        "captured_at": T0,
        "canonical": "",
        "redirect": "",
        "takedown": "",
        "terms": "",
    }
    return pa.Table.from_pylist([{**row, **changes}], schema=URLS)


def log_row(status, **changes):
    return to_table([Outcome(key(URL), URL, "h", 1, status, fetched_at=T1, requested=True, **changes)])


def link_row(url, depth, lastmod=None):
    row = {"partition": 0, "key": key(url), "url": url, "host": "h", "depth": depth, "redirect": False, "seen": T1}
    return {**row, "sources": [0], "source_hosts": [], "lastmod": lastmod}


def merged(before=None, log=None, links=(), interval_s=None):
    """Returns the rows of the generation after `before`."""
    tables = {
        "previous": before or URLS.empty_table(),
        "log": log or FETCH_LOG.empty_table(),
        "links": pa.Table.from_pylist(list(links), schema=LINKS),
        "listed": FETCHLIST.empty_table(),
        "seeds": pa.Table.from_pylist(
            [{"key": key(URL), "url": URL, "host": "h", "score": 1.0, "interval_s": interval_s}], schema=SEEDS
        ),
    }
    with connect(".") as connection:
        for name, table in tables.items():
            connection.register(name, table)
        connection.execute(update.NEW)
        connection.execute(update.SOONER)
        result = connection.execute(update.merged(T1, "s/"))
        names = [column[0] for column in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def updated_row(before=None, log=None, **more):
    (row,) = merged(before, log, **more)
    return row


def test_an_unchanged_page_gets_a_longer_interval_and_keeps_its_capture():
    for log in (
        log_row("fetch_notmodified", etag='"1"'),
        log_row("fetch_success", payload_digest="sha1:A", etag='"1"'),
    ):
        row = updated_row(db_row(), log)
        assert row["status"] == crawldb.NOT_MODIFIED
        assert row["interval_s"] == int(10.5 * DAY_S)
        assert row["next_due"] == T1 + timedelta(days=10.5)
    assert updated_row(db_row(), log_row("fetch_notmodified"))["warc_path"] == "s/warc/1"


def test_an_unchanged_redirect_gets_a_longer_interval_and_a_changed_one_a_shorter():
    def after(before, target):
        return updated_row(before, log_row("fetch_redir_temp", reason="redirect", redirect=target))

    first = after(None, "http://h/b")
    assert (first["status"], first["redirect"]) == (crawldb.REDIRECT_TEMPORARY, "http://h/b")
    assert first["interval_s"] == 7 * DAY_S
    state = db_row(status=first["status"], redirect=first["redirect"])
    assert after(state, "http://h/b")["interval_s"] == int(10.5 * DAY_S)
    assert after(state, "http://h/c")["interval_s"] == int(3.5 * DAY_S)
    assert after(db_row(redirect="http://h/b", interval_s=29 * DAY_S), "http://h/b")["interval_s"] == 30 * DAY_S
    assert after(db_row(), "http://h/b")["interval_s"] == 7 * DAY_S
    assert updated_row(state, log_row("fetch_retry", reason="timeout"))["redirect"] == "http://h/b"
    assert updated_row(state, log_row("fetch_success", payload_digest="sha1:A"))["redirect"] == ""


def test_a_seed_with_its_own_interval_keeps_it():
    for log in (
        log_row("fetch_notmodified"),
        log_row("fetch_success", payload_digest="sha1:B"),
        log_row("fetch_redir_perm"),
    ):
        row = updated_row(db_row(), log, interval_s=3600)
        assert (row["interval_s"], row["next_due"]) == (3600, T1 + timedelta(hours=1))
    assert updated_row(db_row(), log_row("fetch_gone", reason="http_404"), interval_s=3600)["interval_s"] == 30 * DAY_S
    assert updated_row(db_row(), log_row("fetch_retry", reason="timeout"), interval_s=3600)[
        "next_due"
    ] == T1 + timedelta(days=1)


def test_a_duplicate_gets_the_interval_of_a_non_canonical_page_and_keeps_its_capture():
    log = log_row("fetch_duplicate", reason="duplicate", payload_digest="sha1:B", record_id=f"urn:uuid:{SECOND}")
    row = updated_row(db_row(), log)
    assert (row["status"], row["reason"], row["interval_s"]) == (crawldb.DUPLICATE, "duplicate", 30 * DAY_S)
    assert (row["payload_digest"], row["warc_path"]) == ("sha1:A", "s/warc/1")


def test_a_changed_page_gets_a_shorter_interval():
    row = updated_row(
        db_row(),
        log_row(
            "fetch_success", payload_digest="sha1:B", record_id=f"urn:uuid:{SECOND}", warc_file="warc/2", warc_offset=20
        ),
    )
    assert (row["status"], row["interval_s"]) == (crawldb.FETCHED, int(3.5 * DAY_S))
    assert (row["warc_path"], row["warc_offset"], row["captured_at"]) == ("s/warc/2", 20, T1)
    assert row["first_seen"] == T0


@pytest.mark.parametrize(
    ("digest", "interval", "bounded"),
    [("sha1:A", 25 * DAY_S, 30 * DAY_S), ("sha1:B", DAY_S, DAY_S), ("sha1:B", int(1.5 * DAY_S), DAY_S)],
)
def test_intervals_are_between_one_and_thirty_days(digest, interval, bounded):
    assert (
        updated_row(db_row(interval_s=interval), log_row("fetch_success", payload_digest=digest))["interval_s"]
        == bounded
    )


def test_a_failing_page_keeps_its_status_until_the_fifth_failure():
    row = updated_row(db_row(), log_row("fetch_retry", reason="timeout"))
    assert (row["status"], row["fails"], row["reason"]) == (crawldb.FETCHED, 1, "timeout")
    assert row["next_due"] == T1 + timedelta(days=1)
    assert row["payload_digest"] == "sha1:A"
    row = updated_row(db_row(fails=2), log_row("fetch_retry", reason="timeout"))
    assert row["next_due"] == T1 + timedelta(days=4)
    assert updated_row(db_row(fails=4), log_row("fetch_retry", reason="timeout"))["status"] == crawldb.GONE
    assert updated_row(db_row(fails=4), log_row("fetch_success", payload_digest="sha1:A"))["fails"] == 0


def test_a_page_postponed_with_its_host_has_not_failed():
    row = updated_row(db_row(fails=4), log_row("fetch_retry", reason="host_backoff"))
    assert (row["status"], row["fails"]) == (crawldb.FETCHED, 4)
    row = updated_row(db_row(), log_row("fetch_retry", reason="host_backoff"))
    assert row["next_due"] == T1 + timedelta(days=1)


def test_a_newly_forbidden_page_is_gone_for_a_while_with_its_reason():
    row = updated_row(db_row(), log_row("fetch_gone", reason="robots_denied"))
    assert (row["status"], row["reason"]) == (crawldb.GONE, "robots_denied")
    assert row["next_due"] == T1 + timedelta(days=30)
    assert row["warc_path"] == "s/warc/1"


def test_a_newly_forbidden_page_is_marked_for_takedown_until_captured_again():
    for reason in ("robots_denied", "noindex", "ai_optout", "http_451"):
        row = updated_row(db_row(), log_row("fetch_gone", reason=reason))
        assert row["takedown"] == reason
    assert updated_row(db_row(), log_row("fetch_gone", reason="http_404"))["takedown"] == ""
    assert (
        updated_row(db_row(warc_path="", payload_digest=""), log_row("fetch_gone", reason="robots_denied"))["takedown"]
        == ""
    )
    assert updated_row(db_row(takedown="noindex"), log_row("fetch_retry", reason="timeout"))["takedown"] == "noindex"
    assert updated_row(db_row(takedown="noindex"))["takedown"] == "noindex"
    assert updated_row(db_row(takedown="noindex"), log_row("fetch_success", payload_digest="sha1:B"))["takedown"] == ""


def test_a_page_with_another_canonical_url_is_fetched_once_a_month():
    row = updated_row(db_row(), log_row("fetch_success", payload_digest="sha1:B", canonical="http://h/main"))
    assert (row["interval_s"], row["canonical"]) == (30 * DAY_S, "http://h/main")
    row = updated_row(db_row(), log_row("fetch_success", payload_digest="sha1:B", canonical=URL))
    assert row["interval_s"] == int(3.5 * DAY_S)


def test_the_merge_is_exact():
    links = [link_row(URL, 0), link_row("http://h/new", 2), link_row("http://h/new", 5), link_row("http://h/a", 3)]
    rows = merged(db_row(), log_row("fetch_notmodified"), links)
    news = sorted((key(url), url, depth) for url, depth in (("http://h/new", 2), ("http://h/a", 3)))
    assert [(row["url"], row["status"], row["depth"]) for row in rows] == [
        (URL, crawldb.NOT_MODIFIED, 1),
        *((url, crawldb.UNFETCHED, depth) for _, url, depth in news),
    ]
    assert rows[1]["next_due"] == rows[1]["first_seen"] == T1


@pytest.mark.parametrize(
    ("changes", "lastmod", "due"),
    [
        ({}, T0 + timedelta(hours=1), T1),  # changed since it was fetched
        ({}, T0 - timedelta(days=3), T0 + timedelta(days=20)),
        ({}, T0, T0 + timedelta(days=20)),
        ({}, None, T0 + timedelta(days=20)),
        ({"last_fetch": T1 - timedelta(hours=3)}, T1 - timedelta(hours=1), T1 + timedelta(hours=21)),  # once a day
        ({"next_due": T1 - timedelta(days=1)}, T0 + timedelta(hours=1), T1 - timedelta(days=1)),  # was due already
        ({"status": crawldb.GONE}, T0 + timedelta(hours=1), T1),
        ({"status": crawldb.FETCHED, "fails": 2}, T0 + timedelta(hours=1), T0 + timedelta(days=20)),  # a sick host
        ({"status": crawldb.UNFETCHED, "last_fetch": None}, T0, T0 + timedelta(days=20)),
    ],
)
def test_a_page_changed_according_to_its_sitemap_is_due_at_once_but_only_once_a_day(changes, lastmod, due):
    before = db_row(**{"next_due": T0 + timedelta(days=20), **changes})
    older = [link_row(URL, 1, T0 - timedelta(days=9)), link_row("http://h/other", 1, T1)]
    row = next(row for row in merged(before, links=[*older, link_row(URL, 1, lastmod)]) if row["url"] == URL)
    assert row["next_due"] == due
    assert row["interval_s"] == 7 * DAY_S


def test_the_terms_of_a_row_are_those_of_its_capture():
    before = db_row(terms='{"header.tdm-reservation": "0"}')
    assert updated_row(before, log_row("fetch_notmodified", terms="{}"))["terms"] == before.column("terms")[0].as_py()
    assert updated_row(before, log_row("fetch_gone", reason="payment_required", terms="{}"))["terms"].startswith(
        '{"header'
    )
    assert updated_row(before, log_row("fetch_success", payload_digest="sha1:B"))["terms"] == ""


def test_the_crawl_db_stays_sorted_for_any_sitemap():
    urls = [f"http://h/{n}" for n in (5, 1, 4, 2, 3)]
    rows = [db_row(key=key(url), url=url) for url in urls]
    links = [link_row(url, 1, T1) for url in sorted(urls)] + [link_row(f"http://h/new/{n}", 1, T1) for n in range(500)]
    assert [row["url"] for row in merged(pa.concat_tables(rows), links=links)][:5] == urls


def test_a_sitemap_makes_a_changed_page_due_before_its_interval_ends(crawl):
    def sitemap(_):
        rows = [f"<url><loc>{site.url(path)}</loc><lastmod>{when}</lastmod></url>" for path, when in lastmod.items()]
        return web.Response(text=f"<urlset>{''.join(rows)}</urlset>", content_type="application/xml")

    long_ago = "2001-02-03"
    lastmod = {"/": long_ago, "/b": long_ago, "/c": long_ago}
    with Site({"/": "home", "/b": "b", "/c": "c", "/map.xml": sitemap}) as site:
        site.robots = f"User-agent: *\nAllow: /\nSitemap: {site.url('/map.xml')}"
        config = config_for(site)
        first = crawl(config, "c1")
        later = datetime.now(UTC) + timedelta(days=5)
        due = [T0 if row["kind"] == "sitemap" else later for row in first.urls().values()]
        set_column(first.crawldb[0], "next_due", due)
        set_column(first.crawldb[0], "last_fetch", [datetime.now(UTC) - timedelta(days=2)] * len(due))
        lastmod["/b"] = datetime.now(UTC).isoformat()
        lastmod["/c"] = "2999-01-01"
        site.requests.clear()
        second = crawl(config, "c2", first)
        assert set(site.paths()) == {"/map.xml"}
        rows = second.urls()
        assert rows[site.url("/b")]["next_due"] < datetime.now(UTC)
        assert rows[site.url("/c")]["next_due"] == rows[site.url("/")]["next_due"] == later
        site.requests.clear()
        crawl(config, "c3", second)
        assert set(site.paths()) == {"/b"}


def test_dates_of_a_sitemap_are_ignored_for_other_domains(crawl):
    with Site({"/": "home"}) as other, Site({"/": "home"}) as site:
        rows = [f"<url><loc>{one}</loc><lastmod>2026-11-20</lastmod></url>" for one in (other.url(), site.url())]
        answer = f"<urlset>{''.join(rows)}</urlset>"
        site.pages["/map.xml"] = lambda _: web.Response(text=answer, content_type="application/xml")
        site.robots = f"User-agent: *\nAllow: /\nSitemap: {site.url('/map.xml', 'a.localhost')}"
        scope = (f"127.0.0.1:{other.port}", f"127.0.0.1:{site.port}", f"a.localhost:{site.port}")
        cycle = crawl(config_for(site, include_hosts=scope), "c1")
    links = [row for one in cycle.segments for path in one.files("links/") for row in one.table(path).to_pylist()]
    assert {row["url"] for row in links} == {other.url(), site.url(), site.url("/map.xml", "a.localhost")}
    assert {row["lastmod"] for row in links} == {None}


def test_the_tables_match_their_schemas():
    assert {*FETCH_LOG.names, "outlinks", "lastmods"} == set(Outcome._fields)
    assert list(updated_row(db_row())) == URLS.names


def set_column(artifact, name, values):
    """Overwrites one column of a crawl DB."""
    table = artifact.table(crawldb.URLS_FILE)
    column = pa.array(values, URLS.field(name).type)
    table = table.set_column(table.schema.get_field_index(name), name, column)
    with artifact.store.write(f"{artifact.address.path}/{crawldb.URLS_FILE}") as file:
        pq.write_table(table, file)


def make_due(cycle, next_due=T0):
    """Makes every page of a crawl DB due at one time, by default now."""
    for artifact in cycle.crawldb:
        set_column(artifact, "next_due", [next_due] * artifact.table(crawldb.URLS_FILE).num_rows)
    return cycle


def config_for(site, **settings):
    base = {"seeds": (site.url(),), "allow_loopback": True, "delay_s": 0.0, "latency_factor": 0.0, "partitions": 1}
    return CrawlConfig(**{**base, **settings})


def html(text, **headers):
    return web.Response(text=text, content_type="text/html", headers=headers)


def test_an_unchanged_page_is_requested_conditionally_and_becomes_a_revisit(crawl):
    def page(request):
        if request.headers.get("If-None-Match") == '"v1"':
            return web.Response(status=304, headers={"ETag": '"v1"'})
        return html("<a href=/b>b</a>", ETag='"v1"')

    answers = ["first", "second"]
    with Site({"/": page, "/b": lambda _: html(answers.pop(0))}) as site:
        first = make_due(crawl(config_for(site), "c1"))
        before = first.urls()
        assert {row["status"] for row in before.values()} == {crawldb.FETCHED}
        second = crawl(config_for(site), "c2", first)
        rows = second.urls()
    assert rows[site.url("/")]["status"] == crawldb.NOT_MODIFIED
    assert rows[site.url("/")]["record_id"] == before[site.url("/")]["record_id"]
    assert rows[site.url("/b")]["status"] == crawldb.FETCHED
    assert rows[site.url("/b")]["payload_digest"] != before[site.url("/b")]["payload_digest"]
    records = {}
    for segment in second.segments:
        for path in segment.files("warc/"):
            for record in ArchiveIterator(io.BytesIO(segment.read(path))):
                if record.rec_type in ("response", "revisit"):
                    records[record.rec_headers.get_header("WARC-Target-URI")] = record
    revisit = records[site.url("/")]
    assert revisit.rec_type == "revisit"
    assert revisit.rec_headers.get_header("WARC-Profile").endswith("server-not-modified")
    assert revisit.rec_headers.get_header("WARC-Refers-To") == f"<urn:uuid:{before[site.url('/')]['record_id']}>"
    assert revisit.http_headers.get_statuscode() == "304"
    assert records[site.url("/b")].rec_type == "response"


def test_the_second_cycle_of_a_static_site_transfers_only_changed_bodies(crawl):
    texts = {f"/{number}": f"page {number}" for number in range(20)}

    def serve(request):
        text = texts[request.path]
        tag = f'"{hash(text)}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers={"ETag": tag})
        sent.append(request.path)
        return html(text, ETag=tag)

    pages = {"/": lambda request: serve(request), **dict.fromkeys(texts, serve)}
    texts["/"] = "".join(f'<a href="{path}">x</a>' for path in texts)
    sent = []
    with Site(pages) as site:
        first = make_due(crawl(config_for(site), "c1"))
        assert sorted(sent) == sorted(texts)
        sent.clear()
        second = make_due(crawl(config_for(site), "c2", first))
        assert sent == []
        texts["/7"] += " with news"
        third = crawl(config_for(site), "c3", second)
        assert sent == ["/7"]
        rows = third.urls()
    grown = {row["interval_s"] for url, row in rows.items() if url != site.url("/7")}
    assert grown == {int(7 * 1.5 * 1.5 * DAY_S)}
    assert rows[site.url("/7")]["interval_s"] == int(7 * 1.5 * 0.5 * DAY_S)
    assert rows[site.url("/7")]["status"] == crawldb.FETCHED


def test_a_site_without_conditional_requests_is_refetched_and_only_changes_are_stored(crawl):
    pages = {"/": "<a href=/b>b</a>", "/b": "b"}
    with Site(pages) as site:
        first = make_due(crawl(config_for(site), "c1"))
        site.pages["/b"] = "b and <a href=/c>c</a>"
        site.pages["/c"] = "c"
        second = crawl(config_for(site), "c2", first)
        rows = second.urls()
    kinds = {}
    for segment in second.segments:
        for path in segment.files("warc/"):
            for record in ArchiveIterator(io.BytesIO(segment.read(path)), check_digests="raise"):
                if record.rec_type in ("response", "revisit"):
                    kinds[record.rec_headers.get_header("WARC-Target-URI")] = record
                    record.content_stream().read()
    assert {url: record.rec_type for url, record in kinds.items()} == {
        site.url("/"): "revisit",
        site.url("/b"): "response",
        site.url("/c"): "response",
    }
    assert kinds[site.url("/")].rec_headers.get_header("WARC-Profile").endswith("identical-payload-digest")
    assert rows[site.url("/")]["status"] == crawldb.NOT_MODIFIED
    assert rows[site.url("/")]["interval_s"] == int(7 * 1.5 * DAY_S)
    assert rows[site.url("/")]["warc_path"] == first.urls()[site.url("/")]["warc_path"]
    assert rows[site.url("/b")]["interval_s"] == int(7 * 0.5 * DAY_S)


def test_the_files_have_the_columns_of_their_schemas(crawl):
    with Site({"/": "<a href=/b>b</a>", "/b": "b"}) as site:
        cycle = crawl(config_for(site))
    promised = {
        (cycle.crawldb[0], crawldb.URLS_FILE): URLS,
        (cycle.crawldb[0], crawldb.HOSTS_FILE): crawldb.HOSTS,
        (cycle.crawldb[0], crawldb.ROBOTS_FILE): crawldb.ROBOTS,
        (cycle.crawldb[0], crawldb.EDGES_FILE): crawldb.EDGES,
        (cycle.fetchlists[0], fetchlist.URLS_FILE): FETCHLIST,
        (cycle.fetchlists[0], fetchlist.HOSTS_FILE): fetchlist.LISTED_HOSTS,
        (cycle.fetchlists[0], fetchlist.ROBOTS_FILE): crawldb.ROBOTS,
    }
    for (artifact, path), schema in promised.items():
        written = artifact.table(path).schema
        assert [(field.name, field.type) for field in written] == [(field.name, field.type) for field in schema], path


def test_the_report_of_a_cycle_lists_each_domain_with_its_main_problem(crawl):
    pages = {"/": "".join(f"<a href=/{n}>x</a>" for n in range(4)) + "<a href=/image>i</a>"}
    pages["/image"] = lambda _: web.Response(body=b"GIF89a", content_type="image/gif")
    with Site(pages) as site:
        cycle = crawl(config_for(site))
    (row,) = cycle.warc.table("domains.parquet").to_pylist()
    assert (row["domain"], row["hosts"], row["pages"], row["errors"]) == ("127.0.0.1", 1, 1, 5)
    assert row["main_reason"] == "http_404"
    assert cycle.warc.record.metrics["errors.http_404"] == 4


def test_a_url_that_is_not_due_is_not_fetched_even_if_a_page_links_to_it(crawl):
    with Site({"/": "<a href=/b>b</a>", "/b": "<a href=/>home</a>"}) as site:
        first = crawl(config_for(site), "c1")
        rows = first.urls()
        only_home = make_due(first, next_due=datetime.now(UTC) + timedelta(days=3))
        (number,) = [i for i, one in enumerate(first.crawldb) if one.table(crawldb.URLS_FILE).num_rows]
        due = [T0 if url == site.url("/") else row["next_due"] for url, row in rows.items()]
        set_column(first.crawldb[number], "next_due", due)
        site.requests.clear()
        second = crawl(config_for(site), "c2", only_home)
    assert site.paths() == ["/"]  # robots.txt is cached for a day
    assert set(second.log()) == {site.url("/")}


def test_links_to_the_other_partition_are_fetched_in_the_next_cycle(crawl):
    hosts = [f"h{number}.localhost" for number in range(4)]
    with Site({}) as site:
        port = site.port
        site.pages["/"] = "".join(f'<a href="http://{host}:{port}/leaf">x</a>' for host in hosts)
        site.pages["/leaf"] = "a leaf"
        config = CrawlConfig(
            seeds=(f"http://{hosts[0]}:{port}/",),
            include_hosts=tuple(f"{host}:{port}" for host in hosts),
            allow_loopback=True,
            delay_s=0.0,
            latency_factor=0.0,
        )
        first = crawl(config, "c1")
        waiting = {url for url, row in first.urls().items() if row["status"] == crawldb.UNFETCHED}
        assert waiting, "the hosts of this test must not all fall into one partition"
        second = crawl(config, "c2", first)
    assert all(second.urls()[url]["status"] == crawldb.FETCHED for url in waiting)


def test_a_page_forbidden_later_by_robots_txt_is_listed_for_takedown(crawl):
    with Site({"/": "<a href=/b>b</a>", "/b": "b"}) as site:
        first = make_due(crawl(config_for(site), "c1"))
        for artifact in first.crawldb:  # a day later
            with artifact.store.write(f"{artifact.address.path}/{crawldb.ROBOTS_FILE}") as file:
                pq.write_table(crawldb.ROBOTS.empty_table(), file)
        site.robots = "User-agent: *\nDisallow: /b"
        site.requests.clear()
        second = crawl(config_for(site), "c2", first)
        captured = first.urls()[site.url("/b")]
    assert "/b" not in site.paths()
    (row,) = second.warc.table("takedown.parquet").to_pylist()
    assert (row["url"], row["reason"]) == (site.url("/b"), "robots_denied")
    assert (row["warc_path"], row["warc_offset"]) == (captured["warc_path"], captured["warc_offset"])
    assert second.warc.record.metrics["takedown"] == 1


def test_retry_after_applies_in_the_next_cycle_too(crawl):
    pages = {"/": "<a href=/b>b</a>", "/b": lambda _: web.Response(status=503, headers={"Retry-After": "3600"})}
    with Site(pages) as site, Site({"/": "x"}) as other:
        config = config_for(site, time_box_s=60, seeds=(site.url(), other.url()))
        first = make_due(crawl(config, "c1"))
        hosts = {row["host"]: row for row in first.crawldb[0].table(crawldb.HOSTS_FILE).to_pylist()}
        asked = f"127.0.0.1:{site.port}"
        assert hosts[asked]["backoff_until"] > datetime.now(UTC) + timedelta(minutes=50)
        site.requests.clear()
        second = crawl(config, "c2", first)
        assert site.requests == []
        assert set(second.log()) == {other.url()}


def test_a_cycle_with_nothing_due_is_published_empty_and_keeps_the_crawl_db(crawl):
    with Site({"/": "x"}) as site:
        first = crawl(config_for(site), "c1")
        site.requests.clear()
        second = crawl(config_for(site), "c2", first)
        assert site.requests == []
    assert second.warc.record.rows_out == 0
    assert second.urls() == first.urls()


def test_an_outage_of_a_crawled_site_is_not_an_error(crawl):
    with Site({"/": "x"}) as site:
        first = make_due(crawl(config_for(site), "c1"))
        site.pages["/"] = lambda _: web.Response(status=500)
        second = crawl(config_for(site), "c2", first)
    assert second.urls()[site.url("/")]["fails"] == 1
