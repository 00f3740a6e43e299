"""The fetch list of a cycle: its URLs, their order, and the number per host."""

import weakref
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.queries import connect
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.web.priorities import FILE, PRIORITIES
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import key
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.generate import _choose, attach_due_times
from tasks.stages.crawl.inject import SEEDS
from tasks.stages.crawl.policy import HostsFile, Policy
from tasks.stages.crawl.rank import RANKS, scores
from tasks.stages.crawl.storage import crawldb
from tasks.stages.crawl.storage.crawldb import KnownUrls
from tasks.stages.crawl.storage.fetchlist import shares
from tests.tasks.stages.crawl.cycle import Cycle

NOW = datetime(2026, 3, 1, tzinfo=UTC)
BASE = {"contact": "mailto:a@b.example", "include_hosts": ("*.example",), "partitions": 1}


def url_row(url, depth=1, overdue_days=1.0):
    row = dict.fromkeys(crawldb.URLS.names)
    return {**row, "key": key(url), "url": url, "depth": depth, "next_due": NOW - timedelta(days=overdue_days)}


def host_row(host, **changes):
    return {**dict.fromkeys(crawldb.HOSTS.names), "host": host, "crawl_delay_s": 0.0, "failures": 0, **changes}


def chosen(urls, hosts=(), ranks=(), seeds=(), policy=None, factors=(), **settings):
    """Returns the URLs that generate lists, in order."""
    config = CrawlConfig(**{**BASE, **settings})
    with connect(".") as connection:
        connection.register("previous", pa.Table.from_pylist(list(urls), schema=crawldb.URLS))
        connection.register("hosts", pa.Table.from_pylist(list(hosts), schema=crawldb.HOSTS))
        rows = [{"host": host, "documents": 1, "factor": factor} for host, factor in dict(factors).items()]
        connection.register("priorities", pa.Table.from_pylist(rows, schema=PRIORITIES))
        connection.register("ranks", pa.Table.from_pylist(list(ranks), schema=RANKS))
        scores = dict(seeds) if isinstance(seeds, dict) else dict.fromkeys(seeds, 1.0)
        rows = [{"key": key(url), "url": url, "host": url.split("/")[2], "score": scores[url]} for url in scores]
        connection.register("seeds", pa.Table.from_pylist(rows, schema=SEEDS))
        scope = Scope(config.include_hosts, config.include_prefixes, config.include_pattern, config.exclude_pattern)
        _choose(connection, config, scope, NOW, policy or Policy())
        return [url for (url,) in connection.execute("SELECT url FROM chosen ORDER BY place").fetchall()]


def test_urls_that_are_not_due_are_not_listed():
    urls = [url_row("http://a.example/1"), url_row("http://a.example/2", overdue_days=-1)]
    assert chosen(urls) == ["http://a.example/1"]


def test_hosts_take_turns_within_a_front_queue():
    urls = [url_row(f"http://{host}.example/{n}") for host in "ab" for n in range(3)]
    assert [url.split("/")[2][0] for url in chosen(urls)] == ["a", "b", "a", "b", "a", "b"]


def test_linked_hosts_come_before_unlinked_ones():
    urls = [url_row(f"http://{host}.example/{n}") for host in "ab" for n in range(3)]
    ranks = [{"host": "b.example", "score": 8.0}, {"host": "a.example", "score": 0.5}]
    assert [url.split("/")[2][0] for url in chosen(urls, ranks=ranks)] == list("bbbaaa")


def test_accepted_priorities_multiply_the_ranks_of_hosts_and_others_stay_as_they_are():
    urls = [url_row(f"http://{host}.example/{n}") for host in "abc" for n in range(2)]
    ranks = [{"host": f"{host}.example", "score": 1.0} for host in "abc"]
    order = [url.split("/")[2][0] for url in chosen(urls, ranks=ranks)]
    assert order == list("abcabc")
    factors = {"c.example": 4.0, "a.example": 0.25}
    order = [url.split("/")[2][0] for url in chosen(urls, ranks=ranks, factors=factors)]
    assert order == list("ccbbaa")
    ranks[0]["score"] = 16.0  # the rank of a times 1/4 is that of c times 4
    order = [url.split("/")[2][0] for url in chosen(urls, ranks=ranks, factors=factors)]
    assert order == list("acacbb")


def test_a_seed_score_overrides_the_page_score():
    urls = [url_row("http://a.example/near", depth=1)]
    seeds = {"http://a.example/low": 0.1, "http://a.example/plain": 1.0, "http://a.example/high": 40.0}
    assert [url.rpartition("/")[2] for url in chosen(urls, seeds=seeds)] == ["high", "plain", "near", "low"]


def test_pages_near_the_seeds_come_first_and_waiting_raises_the_score():
    urls = [url_row("http://a.example/deep", depth=15), url_row("http://a.example/near", depth=1)]
    assert chosen(urls) == ["http://a.example/near", "http://a.example/deep"]
    urls[0] = url_row("http://a.example/deep", depth=15, overdue_days=300)
    assert chosen(urls) == ["http://a.example/deep", "http://a.example/near"]


def test_a_host_is_listed_up_to_the_pages_its_pace_allows_in_the_time_limit():
    urls = [url_row(f"http://{host}.example/{n}") for host in "ab" for n in range(100)]
    found = chosen(urls, hosts=[host_row("a.example", crawl_delay_s=30.0)], time_box_s=600, max_pages_per_host=50)
    assert sum("//a." in url for url in found) == 20
    assert sum("//b." in url for url in found) == 50


def test_a_host_whose_back_off_exceeds_the_time_limit_waits_for_a_later_cycle():
    hosts = [
        host_row("a.example", backoff_until=NOW + timedelta(hours=5)),
        host_row("b.example", backoff_until=NOW + timedelta(minutes=5)),
    ]
    assert chosen([url_row("http://a.example/"), url_row("http://b.example/")], hosts=hosts) == ["http://b.example/"]


def test_pages_and_hosts_of_a_registered_domain_are_capped():
    urls = [url_row(f"http://h{host}.shop.example/{n}") for host in range(5) for n in range(4)]
    urls.append(url_row("http://other.example/"))
    found = chosen(urls, max_pages_per_domain=6, max_hosts_per_domain=3)
    assert len(found) == 7
    assert len({url.split("/")[2] for url in found if "shop" in url}) == 3
    assert "http://other.example/" in found


def test_urls_outside_the_current_scope_are_not_listed():
    urls = [url_row(f"http://a.example/{path}") for path in ("docs/1", "docs/2.zip", "blog/1")]
    urls.append(url_row("http://a.invalid/"))
    found = chosen(urls, include_prefixes=("http://a.example/docs/",), exclude_pattern=r"\.zip$")
    assert found == ["http://a.example/docs/1"]


def test_new_seeds_are_listed_and_known_ones_wait_until_due():
    urls = [url_row("http://a.example/known", overdue_days=-1)]
    seeds = ["http://a.example/known", "http://a.example/new"]
    assert chosen(urls, seeds=seeds) == ["http://a.example/new"]


def test_a_cycle_lists_the_best_due_urls():
    urls = [url_row(f"http://a.example/{n}", depth=n) for n in range(1, 20)]
    assert chosen(urls, max_pages=3) == [f"http://a.example/{n}" for n in (1, 2, 3)]


def fetched_row(url, days_ago, due_in_days, **changes):
    row = {**url_row(url, overdue_days=-due_in_days), "last_fetch": NOW - timedelta(days=days_ago)}
    return {**row, "status": crawldb.FETCHED, "fails": 0, "canonical": "", **changes}


def hosts_file(**fields):
    return Policy(HostsFile.model_validate(fields))


def test_refetch_requests_of_operators_are_listed_first_and_once():
    yesterday = NOW - timedelta(days=1)
    urls = [fetched_row(f"http://{host}.example/{path}", 3, 20) for host in "ab" for path in ("n/1", "n/2", "o/3")]
    urls += [url_row(f"http://c.example/{n}") for n in range(5)]
    again = {"http://a.example/n/*": yesterday, "b.example": yesterday, "http://c.example/4": yesterday}
    policy = hosts_file(again=again)
    found = chosen(urls, policy=policy, max_pages=7)
    assert set(found[:6]) == {"http://c.example/4"} | {url["url"] for url in urls[:2] + urls[3:6]}
    assert found[6].startswith("http://c.example/")
    tried_since = [{**row, "last_fetch": NOW - timedelta(hours=1)} for row in urls[:6]]
    assert chosen(tried_since, policy=policy) == []
    assert chosen(urls[:6], policy=hosts_file(again={"*.example": NOW + timedelta(hours=1)})) == []


def test_an_interval_of_the_hosts_file_overrides_the_adaptive_one():
    urls = [
        fetched_row("http://a.example/late", 2, 20),
        fetched_row("http://a.example/young", 0.5, 20),
        fetched_row("http://a.example/gone", 2, 20, status=crawldb.GONE),
        fetched_row("http://a.example/failing", 2, 20, fails=1),
        fetched_row("http://a.example/copy", 2, 20, canonical="http://a.example/late"),
        fetched_row("http://b.example/late", 2, 20),
        fetched_row("http://slow.b.example/due", 2, -1),
    ]
    policy = hosts_file(hosts={"a.example": {"interval_s": 86400}, "slow.b.example": {"interval_s": 30 * 86400}})
    assert chosen(urls, policy=policy) == ["http://a.example/late"]
    assert chosen(urls) == ["http://slow.b.example/due"]


@pytest.mark.parametrize(("own", "hosts"), [(3600, 86400), (3 * 86400, 86400)])
def test_the_shorter_of_seed_and_host_interval_applies(own, hosts):
    row = fetched_row("http://a.example/", 2, 20)
    policy = hosts_file(hosts={"a.example": {"interval_s": hosts}})
    with connect(".") as connection:
        connection.register("previous", pa.Table.from_pylist([row], schema=crawldb.URLS))
        seed = pa.schema([("key", pa.uuid()), ("interval_s", pa.int64())])
        connection.register("seeds", pa.Table.from_pylist([{"key": row["key"], "interval_s": own}], schema=seed))
        attach_due_times(connection, policy, NOW)
        (found,) = connection.execute("SELECT next_due FROM timed").fetchall()[0]
    assert found == row["last_fetch"] + timedelta(seconds=min(own, hosts))


def test_a_paused_host_is_not_listed():
    urls = [url_row("http://a.example/1"), url_row("http://b.example/1")]
    assert chosen(urls, policy=hosts_file(hosts={"a.example": {"pause": True}})) == ["http://b.example/1"]


def test_due_urls_are_rewritten_by_host_rules_without_duplicates():
    rule = {"match": "/print/", "to": "/"}
    policy = hosts_file(hosts={"a.example": {"drop_parameters": ("sid", "ref*"), "rewrite": (rule,)}})
    urls = [
        url_row("http://a.example/x?sid=1&q=2"),
        url_row("http://a.example/print/x?q=2&referrer=z"),
        url_row("http://a.example/known?sid=3"),
        fetched_row("http://a.example/known", 2, 20),
        url_row("http://b.example/x?sid=1"),
    ]
    found = chosen(urls, policy=policy, seeds=["http://a.example/print/?sid=4"])
    assert sorted(found) == ["http://a.example/", "http://a.example/x?q=2", "http://b.example/x?sid=1"]


def test_the_request_budget_is_shared_by_partitions_with_work():
    assert shares(10, {"p0": 0, "p1": 5, "p2": 0, "p3": 1}) == {"p0": 0, "p1": 5, "p2": 0, "p3": 5}
    assert shares(11, {"p0": 3, "p1": 5, "p2": 9}) == {"p0": 4, "p1": 4, "p2": 3}
    assert shares(10, {"p0": 0}) == {"p0": 0}


def test_every_partition_gets_a_fetch_list_and_every_seed_is_in_the_list_of_its_owner(run_stage):
    seeds = tuple(f"http://h{n}.localhost/" for n in range(12))
    config = CrawlConfig(seeds=seeds, allow_loopback=True, partitions=4)
    cycle = Cycle(run_stage, config)
    listed = [one.table("urls.parquet").column("url").to_pylist() for one in cycle.fetchlists]
    assert len(listed) == 4
    assert sorted(url for urls in listed for url in urls) == sorted(seeds)
    assert cycle.seeds.record.members == ("p0", "p1", "p2", "p3")


def test_the_bloom_filter_has_no_false_negatives_and_few_false_positives():
    keys = [key(f"http://a.example/{n}") for n in range(100_000)]
    known = KnownUrls(100_000)
    known.add(b"".join(keys))
    again = KnownUrls.from_bytes(known.to_bytes())
    assert all(one in again for one in keys)
    wrong = sum(key(f"http://b.example/{n}") in again for n in range(100_000))
    assert wrong <= 40  # 10 are expected at 0.01 %


def test_host_ranks_follow_links_between_hosts():
    edges = [("a", "hub"), ("b", "hub"), ("c", "hub"), ("hub", "a")]
    table = pa.Table.from_pylist([{"source": s, "target": t} for s, t in edges], schema=crawldb.EDGES)
    found = dict(zip(*(column.to_pylist() for column in scores([lambda: table]).columns), strict=True))
    assert found["hub"] > found["a"] > found["b"] == found["c"]
    assert sum(found.values()) == pytest.approx(len(found))
    # The same by the textbook's power iteration.
    expected = dict.fromkeys("abc", 0.25) | {"hub": 0.25}
    for _ in range(200):
        expected = {
            host: 0.15 / 4
            + 0.85 * sum(expected[s] / sum(s == other for other, _ in edges) for s, t in edges if t == host)
            for host in expected
        }
    assert all(found[host] == pytest.approx(4 * value, abs=1e-6) for host, value in expected.items())


def test_without_links_there_are_no_ranks():
    assert scores([]).num_rows == scores([crawldb.EDGES.empty_table]).num_rows == 0


@pytest.mark.parametrize("names", [1, 30, 1 << 18])  # that are hashed together
def test_ranks_are_the_same_from_many_crawl_dbs_whose_edges_are_not_in_memory_at_once(monkeypatch, names):
    monkeypatch.setattr("tasks.stages.crawl.rank._NAMES", names)
    monkeypatch.setattr("tasks.stages.crawl.rank._SLICE", 8)
    edges = [(f"h{number * 7 % 11}", f"h{number * 5 % 13}") for number in range(60)]
    table = pa.table(list(zip(*sorted(set(edges)), strict=True)), schema=crawldb.EDGES)
    seen = []

    def read(first):
        assert not any(reference() for reference in seen)
        rows = table.slice(first, 10).combine_chunks()
        seen.append(weakref.ref(rows))
        return rows

    reads = [partial(read, first) for first in range(0, table.num_rows, 10)]
    found = scores([*reads[:3], crawldb.EDGES.empty_table, *reads[3:], crawldb.EDGES.empty_table])
    assert found.equals(scores([lambda: table]))
    assert found.column("host").to_pylist() == sorted({host for edge in edges for host in edge})
    assert len(seen) == 2 * len(reads)


def test_the_stage_reads_only_priorities_that_are_named_and_gives_the_same_list_without(run_stage, tmp_path):
    config = CrawlConfig(seeds=("http://b.example/", "http://a.example/"), contact="mailto:a@b.example", partitions=1)
    table = pa.table([["b.example"], [7], [4.0]], schema=PRIORITIES)
    output = Output(Store(str(tmp_path)), ArtifactId("test/priorities", "dev"), "by-hand")
    with output.part("priorities", conserved=False) as part, part.file(FILE, rows=1) as file:
        pq.write_table(table, file)
    accepted = commit(output, "by hand", 1, Config(), [], Report())
    inputs = {
        "seeds": run_stage("tasks.stages.crawl.inject", config),
        "ranks": run_stage("tasks.stages.crawl.rank", config),
    }

    def listed(kind, **more):
        made = run_stage("tasks.stages.crawl.generate", config, inputs | more, member="p0", kind=kind)
        return {row["url"].split("/")[2]: row["score"] for row in made.table("urls.parquet").to_pylist()}

    assert listed("before") == {"a.example": 1.0, "b.example": 1.0}
    assert list(listed("after", priorities=accepted).items()) == [("b.example", 4.0), ("a.example", 1.0)]
