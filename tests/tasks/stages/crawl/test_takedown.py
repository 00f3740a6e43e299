"""Contract of the crawl with a takedown: it is not requested again from any source of URLs."""

import pyarrow.parquet as pq
import pytest

from tasks.core.store import Store
from tasks.formats.web.url import authority
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.storage import crawldb
from tasks.stages.crawl.why import why
from tests.taken_down import take_down
from tests.tasks.stages.crawl.cycle import Cycle
from tests.tasks.stages.crawl.site import Site


class TakedownCycle(Cycle):
    """A cycle with a takedown, which is an input of generate, fetch and update."""

    def __init__(self, run_stage, config, takedown, **options):
        self.takedown = takedown
        super().__init__(run_stage, config, **options)

    def stage(self, name, inputs=None, member="", **options):
        taken = {"takedowns": [self.takedown]} if name in ("generate", "fetch", "update") else {}
        return super().stage(name, {**(inputs or {}), **taken}, member, **options)


def config_for(site, **more):
    settings = {"allow_loopback": True, "delay_s": 0.0, "latency_factor": 0.0, "partitions": 1, "recrawl": True}
    return CrawlConfig(seeds=(site.url(), site.url("/seed")), **{**settings, **more})


@pytest.mark.parametrize("known", [False, True])
def test_no_seed_link_or_redirect_reaches_a_page_taken_down(crawl, run_stage, tmp_path, known):
    pages = {"/": "<a href=/b>b</a> <a href=/c>c</a>", "/b": "b", "/c": "<a href=/b?utm_source=x>b</a>", "/seed": "s"}
    with Site(pages) as site:
        config = config_for(site)
        first = crawl(config, "c1") if known else None
        takedown = take_down(tmp_path, urls=f"{site.url('/b').replace('http:', 'https:')}\n{site.url('/seed')}")
        site.requests.clear()
        if known:
            make_due(first)
        second = TakedownCycle(run_stage, config, takedown, version="c2", previous=first).fetch_all()
        paths = site.paths()
    assert {"/", "/c"} <= set(paths)
    assert not {"/b", "/seed"} & set(paths)
    rows = second.urls()
    for path in ("/b", "/seed"):
        row = rows.get(site.url(path))
        if row:  # a link that is known only from here may be missing
            assert (row["status"], row["reason"], row["next_due"]) == (crawldb.GONE, "takedown", None)
            assert row["takedown"] == ("takedown" if known else "")
    assert known <= (site.url("/b") in rows)


def test_a_lifted_page_is_due_in_the_next_cycle_without_a_mark(crawl, run_stage, tmp_path):
    pages = {"/": "<a href=/b>b</a>", "/b": "b", "/seed": "s"}
    with Site(pages) as site:
        config = config_for(site)
        both = [site.url("/b"), site.url("/seed")]
        taken = take_down(tmp_path, "t1", urls="\n".join(both))
        first = crawl(config, "c1")
        second = TakedownCycle(run_stage, config, taken, version="c2", previous=first).fetch_all()
        assert [second.urls()[url]["next_due"] for url in both] == [None, None]
        lifting = take_down(tmp_path, "t2", taken, lift="\n".join(both))
        site.requests.clear()
        one_each = config.model_copy(update={"max_pages": 1})
        third = TakedownCycle(run_stage, one_each, lifting, version="c3", previous=second).fetch_all()
        (asked,) = [path for path in site.paths() if path != "/robots.txt"]
    tried, waiting = sorted((third.urls()[url] for url in both), key=lambda row: row["url"] != site.url(asked))
    assert (tried["status"], waiting["status"]) == (crawldb.NOT_MODIFIED, crawldb.FETCHED)
    assert (tried["takedown"], waiting["takedown"], waiting["reason"]) == ("", "", "")
    assert waiting["next_due"] < tried["next_due"]


def test_a_domain_taken_down_gets_no_request(run_stage, tmp_path):
    with Site({"/": "home"}) as site:
        takedown = take_down(tmp_path, domains=authority(site.url()).partition(":")[0])
        TakedownCycle(run_stage, config_for(site), takedown).fetch_all()
        assert site.requests == []


def test_why_names_the_takedown_first(tmp_path):
    take_down(tmp_path, urls="http://a.net/x", reason="the author asked for it")
    config = CrawlConfig(seeds=("http://a.net/",), contact="https://a.net/")
    facts = why(Store(str(tmp_path)), "test", config, "https://www.a.net/x")
    assert facts["obstacles"][0]["by"] == "takedown"
    assert "test/takedown@t1 of 2026-11-21T09:30:00+00:00 (the author asked for it)" in facts["verdict"]
    assert why(Store(str(tmp_path)), "test", config, "http://a.net/y")["obstacles"] == []


def make_due(cycle):
    """Makes all pages of a cycle due."""
    for artifact in cycle.crawldb:
        table = artifact.table(crawldb.URLS_FILE)
        at = table.schema.get_field_index("next_due")
        table = table.set_column(at, table.schema.field(at), table.column("first_seen"))
        with artifact.store.write(f"{artifact.address.path}/{crawldb.URLS_FILE}") as file:
            pq.write_table(table, file)
