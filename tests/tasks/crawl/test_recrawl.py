"""The second cycle: what is due, what has changed, and how often a page is looked at."""

import io
import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from aiohttp import web
from crawl_site import Site
from warcio.archiveiterator import ArchiveIterator

from tasks.crawl import crawldb
from tasks.crawl.config import CrawlConfig
from tasks.crawl.crawldb import CRAWLDB, DAY_S
from tasks.crawl.fetchlog import FETCH_LOG, Outcome, to_table
from tasks.crawl.update import _FOUND, _merged
from tasks.errors import InputError

T0 = datetime(2026, 1, 1, tzinfo=UTC)
T1 = T0 + timedelta(days=8)


def known(**changes):
    row = {
        "key": "k",
        "url": "http://h/",
        "host": "h",
        "status": crawldb.FETCHED,
        "reason": "",
        "depth": 1,
        "first_seen": T0,
        "last_fetch": T0,
        "next_due": T0 + timedelta(days=7),
        "interval_s": 7 * DAY_S,
        "fails": 0,
        "etag": '"1"',
        "last_modified": "",
        "payload_digest": "sha1:A",
        "record_id": "urn:uuid:1",
        "warc_path": "s/warc/1",
        "warc_offset": 10,
        "captured_at": T0,
    }
    return pa.Table.from_pylist([{**row, **changes}], schema=CRAWLDB)


def tried(status, **changes):
    outcome = Outcome("k", "http://h/", "h", 1, status, fetched_at=T1, requested=True, **changes)
    return to_table([outcome]).append_column("warc_path", pa.array(["s/warc/2"], pa.string()))


NOTHING = to_table([]).append_column("warc_path", pa.array([], pa.string()))


def merge(before=None, log=NOTHING, found=()):
    before = CRAWLDB.empty_table() if before is None else before
    return _merged(before, log, pa.Table.from_pylist(list(found), schema=_FOUND)).to_pylist()


def one(before=None, log=NOTHING):
    (row,) = merge(before, log)
    return row


def test_an_unchanged_page_is_looked_at_later_and_keeps_its_capture():
    for log in (tried("fetch_notmodified", etag='"1"'), tried("fetch_success", payload_digest="sha1:A", etag='"1"')):
        row = one(known(), log)
        assert row["status"] == crawldb.NOT_MODIFIED
        assert row["interval_s"] == int(10.5 * DAY_S)
        assert row["next_due"] == T1 + timedelta(days=10.5)
    assert one(known(), tried("fetch_notmodified"))["warc_path"] == "s/warc/1"


def test_a_changed_page_is_looked_at_sooner():
    row = one(known(), tried("fetch_success", payload_digest="sha1:B", record_id="urn:uuid:2", warc_offset=20))
    assert (row["status"], row["interval_s"]) == (crawldb.FETCHED, int(3.5 * DAY_S))
    assert (row["warc_path"], row["warc_offset"], row["captured_at"]) == ("s/warc/2", 20, T1)
    assert row["first_seen"] == T0


@pytest.mark.parametrize(
    ("digest", "interval", "bounded"),
    [("sha1:A", 25 * DAY_S, 30 * DAY_S), ("sha1:B", DAY_S, DAY_S), ("sha1:B", int(1.5 * DAY_S), DAY_S)],
)
def test_intervals_stay_within_a_day_and_thirty(digest, interval, bounded):
    assert one(known(interval_s=interval), tried("fetch_success", payload_digest=digest))["interval_s"] == bounded


def test_a_page_that_does_not_answer_keeps_its_status_until_it_failed_five_times():
    row = one(known(), tried("fetch_retry", reason="timeout"))
    assert (row["status"], row["fails"], row["reason"]) == (crawldb.FETCHED, 1, "timeout")
    assert row["next_due"] == T1 + timedelta(days=1)
    assert row["payload_digest"] == "sha1:A"
    row = one(known(fails=2), tried("fetch_retry", reason="timeout"))
    assert row["next_due"] == T1 + timedelta(days=4)
    assert one(known(fails=4), tried("fetch_retry", reason="timeout"))["status"] == crawldb.GONE
    assert one(known(fails=4), tried("fetch_success", payload_digest="sha1:A"))["fails"] == 0


def test_a_page_that_is_now_forbidden_is_gone_for_a_while_and_says_why():
    row = one(known(), tried("fetch_gone", reason="robots_denied"))
    assert (row["status"], row["reason"]) == (crawldb.GONE, "robots_denied")
    assert row["next_due"] == T1 + timedelta(days=30)
    assert row["warc_path"] == "s/warc/1"


def test_the_merge_is_exact():
    found = [
        {"key": key, "url": f"http://h/{key}", "host": "h", "depth": depth, "seen": T1}
        for key, depth in (("k", 0), ("new", 2), ("a", 3))
    ]
    rows = merge(known(), tried("fetch_notmodified"), found)
    assert [(row["key"], row["status"], row["depth"]) for row in rows] == [
        ("a", crawldb.UNFETCHED, 3),
        ("k", crawldb.NOT_MODIFIED, 0),
        ("new", crawldb.UNFETCHED, 2),
    ]
    assert rows[0]["next_due"] == rows[0]["first_seen"] == T1


def test_the_log_and_the_merge_know_the_same_columns():
    assert {*FETCH_LOG.names, "outlinks"} == set(Outcome.__dataclass_fields__)


def revised(artifact, run_stage, folder):
    """Sets every page of a crawl DB due now, as the days would."""
    for path in artifact.files("db/"):
        table = artifact.table(path)
        due = pa.array([T0] * table.num_rows, CRAWLDB.field("next_due").type)
        table = table.set_column(table.schema.get_field_index("next_due"), "next_due", due)
        with artifact.store.write(f"{artifact.address.path}/{path}") as file:
            pa.parquet.write_table(table, file)
    return artifact


@pytest.fixture
def cycle(run_stage, tmp_path):
    def run(config, version, previous=None):
        earlier = {"previous": previous} if previous else {}
        fetchlist = run_stage("tasks.crawl.generate", config, earlier, version=version)
        segments = [
            run_stage("tasks.crawl.fetch", config, {"fetchlist": fetchlist}, member=member, version=version)
            for member in fetchlist.record.members
        ]
        inputs = {"fetchlist": fetchlist, "segments": segments, **earlier}
        return segments, revised(run_stage("tasks.crawl.update", config, inputs, version=version), run_stage, tmp_path)

    return run


def config_for(site, **settings):
    base = {"seeds": (site.url(),), "allow_loopback": True, "delay_s": 0.0, "latency_factor": 0.0}
    return CrawlConfig(**{**base, **settings})


def rows_of(artifact):
    return {row["url"]: row for path in artifact.files("db/") for row in artifact.table(path).to_pylist()}


def test_a_page_that_has_not_changed_is_asked_for_conditionally_and_becomes_a_revisit(cycle):
    def page(request):
        if request.headers.get("If-None-Match") == '"v1"':
            return web.Response(status=304, headers={"ETag": '"v1"'})
        return web.Response(text="<a href=/b>b</a>", content_type="text/html", headers={"ETag": '"v1"'})

    answers = ["first", "second"]
    pages = {"/": page, "/b": lambda _: web.Response(text=answers.pop(0), content_type="text/html")}
    with Site(pages) as site:
        _, first = cycle(config_for(site), "c1")
        assert {row["status"] for row in rows_of(first).values()} == {crawldb.FETCHED}
        segments, second = cycle(config_for(site), "c2", first)
        rows, before = rows_of(second), rows_of(first)
    assert rows[site.url("/")]["status"] == crawldb.NOT_MODIFIED
    assert rows[site.url("/")]["record_id"] == before[site.url("/")]["record_id"]
    assert rows[site.url("/b")]["status"] == crawldb.FETCHED
    assert rows[site.url("/b")]["payload_digest"] != before[site.url("/b")]["payload_digest"]
    records = {}
    for segment in segments:
        for path in segment.files("warc/"):
            for record in ArchiveIterator(io.BytesIO(segment.read(path))):
                if record.rec_type in ("response", "revisit"):
                    records[record.rec_headers.get_header("WARC-Target-URI")] = record
    revisit = records[site.url("/")]
    assert revisit.rec_type == "revisit"
    assert revisit.rec_headers.get_header("WARC-Profile").endswith("server-not-modified")
    assert revisit.rec_headers.get_header("WARC-Refers-To") == f"<{before[site.url('/')]['record_id']}>"
    assert revisit.http_headers.get_statuscode() == "304"
    assert records[site.url("/b")].rec_type == "response"


def test_links_to_the_other_partition_are_fetched_in_the_next_cycle(cycle):
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
        _, first = cycle(config, "c1")
        waiting = {url for url, row in rows_of(first).items() if row["status"] == crawldb.UNFETCHED}
        assert waiting, "the hosts of this test must not all fall into one partition"
        _, second = cycle(config, "c2", first)
    assert all(rows_of(second)[url]["status"] == crawldb.FETCHED for url in waiting)


def test_another_number_of_partitions_is_refused(cycle):
    with Site({"/": "x"}) as site:
        _, first = cycle(config_for(site), "c1")
        with pytest.raises(InputError, match="2 partitions"):
            cycle(config_for(site, partitions=3), "c2", first)


def test_the_requests_of_a_cycle_are_shared_by_the_partitions_that_have_work(run_stage):
    config = CrawlConfig(seeds=("http://a.localhost/",), allow_loopback=True, partitions=4, max_pages=10)
    fetchlist = run_stage("tasks.crawl.generate", config)
    assert sorted(json.loads(fetchlist.read("budgets.json")).values()) == [0, 0, 0, 10]
    assert fetchlist.record.members == ("p0", "p1", "p2", "p3")
