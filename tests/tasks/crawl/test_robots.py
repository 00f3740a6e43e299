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
        if Robots(case["robots"].encode(), case["agent"]).allows(case["url"]) != case["allowed"]
    ]
    assert wrong == []


def test_crawl_delays_and_sitemaps_are_read_as_protego_reads_them(shared_data):
    for case in json.loads((shared_data / "robots" / "crawl_delay_and_sitemaps.json").read_text()):
        robots = Robots(case["robots"].encode(), case.get("agent", "*"))
        if "sitemaps" in case:
            assert list(robots.sitemaps) == case["sitemaps"]
        else:
            assert robots.crawl_delay() == case["crawl_delay"]


def allows(robots, url="http://h/page", agent="sluice"):
    return Robots(robots if isinstance(robots, bytes) else robots.encode(), agent).allows(url)


def test_rules_behind_512_kib_are_not_read():
    filler = b"#" * 99 + b"\n"
    body = b"User-agent: *\n" + filler * (MAX_BYTES // len(filler) + 1) + b"\nDisallow: /\n"
    assert allows(body)


@pytest.mark.parametrize(
    "body",
    [
        "\ufeffUser-agent: *\nDisallow: /page",
        "User-agent: *\nDisallow: /page".encode("utf-16"),
        b"User-agent: *\r\rDisallow: /page\r",
        b"\0\0User-agent: *\nDisallow: /page\0",
        b"<html>\n<body>\nUser-agent: *\nDisallow: /page",
    ],
    ids=["bom", "utf-16", "cr", "nul", "html around"],
)
def test_odd_files_are_read_for_what_they_forbid(body):
    assert not allows(body)


def test_where_the_rfc_and_google_differ_the_stricter_reading_counts():
    assert not allows("User-agent: *\nDisallow: /\nAllow: /%62%61%7A", "http://h/baz")
    assert not allows("User-agent: *\nDisallow: /%62%61%7A", "http://h/baz")
    assert not allows("User-agent: *\nDisallow: /k\u00e4se", "http://h/k%C3%A4se")
    assert allows("User-agent: *\nDisallow: /\nAllow: /k\u00e4se", "http://h/k%C3%A4se")
    assert not allows(b"User-agent: *\nDisallow: /k\xe4se", "http://h/k%E4se")


def test_a_crawl_delay_between_names_does_not_split_a_group():
    body = b"User-agent: sluice\nCrawl-delay: 3\nUser-agent: other\nDisallow: /page"
    ours, theirs = Robots(body, "sluice"), Robots(body, "other")
    assert not ours.allows("http://h/page")
    assert ours.crawl_delay() == 3.0
    assert theirs.crawl_delay() is None


@pytest.mark.parametrize(
    "body",
    [
        b"User-agent: *\nDisallow: /" + b"*a" * 200_000,
        b"User-agent: *\n" + b"Disallow: /*a*b*c*d$\n" * 25_000,
        b"".join(b"User-agent: bot%d\nDisallow: /\n" % number for number in range(16_000)),
        b"".join(b"User-agent: a%d\n" % number for number in range(18_000)) + b"Disallow: /ab\n" * 18_000,
        b"User-agent: s\nCrawl-delay: 1\nUser-agent: *\nCrawl-delay: 1\n" * 9_000,
        b"User-agent: *\nCrawl-delay: 1\n" * 17_000,
        b":" * MAX_BYTES,
        b"a" * MAX_BYTES,
    ],
    ids=[
        "star bomb",
        "many wildcards",
        "many groups",
        "names by rules",
        "names and delays",
        "many delays",
        "colons",
        "one line",
    ],
)
def test_a_hostile_file_costs_seconds_at_most(body):
    begin = time.process_time()
    allows(body, "http://h/" + "a" * 2000)
    assert time.process_time() - begin < 3.0


def test_real_files_get_protegos_answers_or_stricter_ones(shared_data):
    file = str(shared_data / "robots" / "real_sites.jsonl.zst")
    rows = [json.loads(line) for line in pa.input_stream(file, compression="zstd").read().splitlines()]
    rows = [row for row in rows if "robots" in row][::3]
    looser = stricter = 0
    for row in rows:
        for agent, answers in row["protego"].items():
            robots = Robots(row["robots"].encode(), agent)
            for path, protego in answers.items():
                ours = robots.allows(f"https://{row['host']}{path}")
                looser += ours and not protego
                stricter += protego and not ours
    assert looser == 0
    assert stricter <= 5
