"""The table of links of a log: each target once, with the data of its sources."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from tasks.formats.web.domain import link
from tasks.formats.web.url import key
from tasks.stages.crawl.storage.fetchlog import PAGE, SITEMAP, SUCCESS, Outcome, from_tables, to_table
from tests.tasks.stages.crawl.cycle import links_table

PARTITIONS = 3


def outcomes(chance):
    """Up to 20 outcomes of pages and sitemaps on five hosts, with common links and redirects."""
    urls = [f"http://h{chance.randrange(5)}.example/{number}" for number in range(30)]
    for url in chance.sample(urls, chance.randrange(20)):
        after = timedelta(microseconds=chance.randrange(10**12))
        yield Outcome(
            key(url),
            url,
            link(url).host,
            depth=chance.randrange(5),
            status=SUCCESS,
            kind=chance.choice([PAGE, SITEMAP]),
            outlinks=tuple({link(chance.choice(urls)) for _ in range(chance.randrange(12))}),
            redirect=chance.choice(["", "", chance.choice(urls)]),
            fetched_at=chance.choice([None, datetime(2026, 1, 1, tzinfo=UTC) + after]),
        )


def expected(rows):
    """Computes the same from the outcomes, one target at a time."""
    by_url = sorted(rows, key=lambda one: one.url)
    wanted = {}
    for redirect in (False, True):
        for number, one in enumerate(by_url):
            targets = [link(one.redirect)] if redirect and one.redirect else () if redirect else one.outlinks
            for to in targets:
                wanted.setdefault((to.owner % PARTITIONS, to.key, redirect, to), []).append((number, one))
    for (partition, target, redirect, to), sources in sorted(wanted.items()):
        times = [one.fetched_at for _, one in sources if one.fetched_at]
        yield {
            "partition": partition,
            "key": target,
            "url": to.url,
            "host": to.host,
            "redirect": redirect,
            "depth": min(one.depth + (not redirect and one.kind == PAGE) for _, one in sources),
            "seen": min(times).replace(microsecond=min(times).microsecond // 1000 * 1000) if times else None,
            "sources": [number for number, _ in sources],
            "source_hosts": sorted({one.host for _, one in sources} - {to.host}),
            "lastmod": None,
        }


@pytest.mark.parametrize("seed", range(40))
def test_a_link_target_has_all_sources_least_depth_first_time_and_linking_hosts(seed):
    rows = list(outcomes(random.Random(seed)))
    table = links_table(rows, PARTITIONS)
    table.validate(full=True)
    assert [{**row, "key": row["key"].bytes} for row in table.to_pylist()] == list(expected(rows))
    read = from_tables(to_table(rows), table)
    assert [set(one.outlinks) for one in read] == [set(one.outlinks) for one in sorted(rows, key=lambda one: one.url)]
