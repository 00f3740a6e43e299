"""The plan of a large crawl: simulated hosts follow the rules of the crawler, and totals follow from the inputs."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.crawl_plan import Hosts, Plan, Requests, arithmetic, cycle, divisions, silence
from tasks.core.pages import table

PLAN = Plan(latency_s=0.5, delay_s=1, latency_factor=2, time_box_s=3600, per_host=500, concurrency=64)


def hosts(plan, sizes, slow=()):
    delays = np.array([slow[number] if number < len(slow) else 0.0 for number in range(len(sizes))])
    return Hosts.of(plan, np.array(sizes, float), np.full(len(sizes), plan.latency_s), delays)


def test_a_single_host_is_limited_by_its_pause():
    alone = cycle(PLAN, hosts(PLAN, [10_000]), math.inf)
    assert (alone.pages, alone.bound) == (500, "slowest host")
    free = replace(PLAN, per_host=1e9)
    assert cycle(free, hosts(free, [10_000]), math.inf).pages == pytest.approx(3600 / 1.5, rel=0.01)


def test_a_slow_host_does_not_slow_the_others():
    free = replace(PLAN, per_host=1e9)
    quick = cycle(free, hosts(free, [10_000] * 9), math.inf)
    beside = cycle(free, hosts(free, [10_000] * 10, slow=[15]), math.inf)
    assert quick.pages < beside.pages < 1.02 * quick.pages


def test_every_host_gets_a_page_before_any_gets_a_second_one():
    web = hosts(PLAN, [100, 100, 1, 100])
    played = cycle(PLAN, web, 6)
    assert played.pages == 6
    assert sorted(100 - web.left[[0, 1, 3]]) == [1, 2, 2]
    assert web.left[2] == 0


def test_silent_hosts_are_retried_at_the_interval_of_the_crawl_db():
    web = hosts(PLAN, [10] * 2000)
    web.silent[:] = True
    tried = []
    for day in range(25):
        played = cycle(PLAN, web, math.inf, day)
        if played.seconds:
            tried.append(day)
            assert played.seconds == pytest.approx(2 * silence(PLAN))
            assert (played.pages, played.bound) == (0, "silent hosts")
    assert tried == [0, 1, 3, 7, 15, 22]


def test_concurrency_bounds_the_pages_of_many_slow_hosts():
    plan = replace(PLAN, latency_s=4, concurrency=4)
    played = cycle(plan, hosts(plan, [500] * 100), math.inf)
    # Each request occupies its slot for one second, although it takes four.
    assert played.bound == "places"
    assert played.pages == pytest.approx(3600 * 4, rel=0.02)


def test_equal_seeds_draw_equal_hosts_which_hold_all_urls_of_the_partition():
    small = replace(PLAN, pages=1e6, known=1, urls_per_partition=1e5)
    one, two = Hosts.drawn(small), Hosts.drawn(small)
    assert np.array_equal(one.left, two.left)
    assert one.left.sum() >= small.urls
    assert one.left.min() >= small.smallest


def test_the_sums_follow_from_the_inputs():
    rows = {what: much for what, much, _ in arithmetic(replace(PLAN, pages=864e6, days=10, known=2, warc_bytes=1e4))}
    assert rows["pages per second, on the average"] == "1,000"
    assert rows["partitions"] == "173"
    assert rows["Airflow task instances per cycle"] == "695"
    assert rows["WARC"].startswith("9 TB")


def test_no_plan_has_more_partitions_than_a_recipe_may_have():
    assert replace(PLAN, pages=1e12).partitions == 10_000


def test_more_partitions_cost_requests_and_more_concurrency_makes_a_task_faster():
    plan = replace(PLAN, pages=1e7, known=2, urls_per_partition=1e6, days=10, latency_s=1)
    rows = [
        [float(cell.removesuffix(" M").replace(",", "")) for cell in (*row[:3], *row[6:])] for row in divisions(plan)
    ]
    assert [row[:2] for row in rows] == [[parts, slots] for parts in (5, 10, 20, 40) for slots in (64, 256, 1024)]
    for few, some, many in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert few[2] < some[2] <= many[2]
        assert few[3:] == some[3:] == many[3:]


def test_fetch_and_update_read_something_of_every_partition():
    plan = replace(PLAN, pages=10_000, known=1, urls_per_partition=1000, days=1, pages_per_file=1000)
    one = Requests.of(plan)
    records = 3 * 10**2  # of fetch lists by fetch, of segments and rendered pages by update
    assert (one.get, one.head) == (4 * 10 + records + 2 * 10**2, 3 * 10 + 10**2)


def test_the_first_table_of_the_documentation_is_that_of_its_command():
    section = (Path(__file__).parents[2] / "docs" / "crawl.md").read_text().partition("## Crawling 10 billion pages")[2]
    (words,) = re.findall(r"benchmarks\.crawl_plan (.*)\n", section)
    names = [word.removeprefix("--").replace("-", "_") for word in words.split()[::2]]
    plan = Plan(**dict(zip(names, map(float, words.split()[1::2]), strict=True)))
    assert "\n".join(table(("what", "how much", "how"), arithmetic(plan))) in section
