import json
import time

import pyarrow as pa
import pytest

from tasks.crawl.robots import MAX_BYTES, Robots


def cases(folder):
    return json.loads((folder / "robots" / "cases.json").read_text())


def test_every_case_of_googles_and_protegos_suites_is_answered_as_written(shared_data):
    wrong = [
        (case["id"], case["test"])
        for case in cases(shared_data)
        if Robots(case["robots"].encode()).allows(case["url"], case["agent"]) != case["allowed"]
    ]
    assert wrong == []


def test_crawl_delays_and_sitemaps_are_read_as_protego_reads_them(shared_data):
    for case in json.loads((shared_data / "robots" / "crawl_delay_and_sitemaps.json").read_text()):
        robots = Robots(case["robots"].encode())
        if "sitemaps" in case:
            assert list(robots.sitemaps) == case["sitemaps"]
        else:
            assert robots.crawl_delay(case["agent"]) == case["crawl_delay"]
