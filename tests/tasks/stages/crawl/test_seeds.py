"""Seeds from recipe and files: invalid lines of a list are skipped and reported, those of a recipe are errors."""

import logging

import pytest

from tasks.core.errors import InputError
from tasks.stages.crawl.config import CrawlConfig

PUBLIC = {"contact": "mailto:a@b.example", "partitions": 1}


def urls(artifact):
    return artifact.table("seeds/p0.parquet").column("url").to_pylist()


@pytest.fixture
def inject(run_stage, tmp_path):
    """Runs the stage over the lines of one seed file."""

    def run(lines, version="dev", **settings):
        path = tmp_path / "seeds.txt"
        path.write_bytes(lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode())
        config = CrawlConfig(**{**PUBLIC, "seed_files": (str(path),), **settings})
        return run_stage("tasks.stages.crawl.inject", config, version=version)

    return run


def test_seeds_are_read_from_files_line_by_line(inject):
    lines = ["# mine", "http://a.localhost/ # home", "", "HTTP://A.localhost:80/", "http://b.localhost/x"]
    made = inject(lines, allow_loopback=True, contact="")
    assert urls(made) == ["http://a.localhost/", "http://b.localhost/x"]
    assert made.record.metrics["bad_seeds"] == 0
    assert made.table("rejected.parquet").num_rows == 0


def test_invalid_lines_of_a_long_list_are_skipped_and_reported(inject, tmp_path, caplog):
    lines = [f"https://site{number}.example.com/" for number in range(20_000)]
    bad = {
        7: ("nonsense", "url"),
        1999: ("https://me:secret@example.com/a", "url"),
        4000: ("http://10.0.0.1/", "private_address"),
        5000: ("http://2130706433/", "private_address"),
        9000: ("https://example.com:8443/", "port"),
        12_000: ("https://example.org/", "scope"),
        19_999: ("ftp://example.com/", "url"),
    }
    for number, (text, _) in bad.items():
        lines[number] = text
    with caplog.at_level(logging.WARNING, "sluice"):
        made = inject(lines, include_hosts=("*.example.com",))
    assert len(urls(made)) == 20_000 - len(bad)
    rows = made.table("rejected.parquet").to_pylist()
    assert [(row["line"] - 1, row["reason"]) for row in rows] == [(n, reason) for n, (_, reason) in bad.items()]
    assert rows[0]["file"] == str(tmp_path / "seeds.txt")
    assert rows[0]["text"] == "nonsense"
    assert all(row["why"] for row in rows)
    assert made.record.metrics["bad_seeds"] == len(bad)
    assert made.record.rejected == {"url": 3, "private_address": 2, "port": 1, "scope": 1}
    assert "7 lines" in caplog.text
    assert "nonsense" in caplog.text
    assert "secret" not in caplog.text + str(rows)


def test_fields_of_nutch_are_read_and_others_are_refused_with_their_line(inject):
    lines = [
        "http://a.example.com/\tnutch.score=10\tnutch.fetchInterval=86400",
        "http://b.example.com/ \t nutch.score=0.25\t# mine",
        "http://c.example.com/\t# with a remark",
        "http://d.example.com/\tnutch.fetchInterval=3600\t\t",
        "http://e.example.com/\tuserType=open_source",
        "http://f.example.com/\thttp://g.example.com/",
        "http://h.example.com/\tnutch.score=0",
        "http://i.example.com/\tnutch.score=high",
        "http://j.example.com/\tnutch.fetchInterval=0.5",
        "http://k.example.com/\tnutch.fetchInterval.fixed=86400",
    ]
    made = inject(lines, max_bad_seeds=0.7)
    rows = made.table("seeds/p0.parquet").select(["url", "score", "interval_s"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("http://a.example.com/", 10.0, 86_400),
        ("http://b.example.com/", 0.25, None),
        ("http://c.example.com/", 1.0, None),
        ("http://d.example.com/", 1.0, 3600),
    ]
    refused = made.table("rejected.parquet").to_pylist()
    assert [(row["line"], row["reason"]) for row in refused] == [(number, "fields") for number in range(5, 11)]
    with pytest.raises(InputError, match=r"behind a tab.*Write the URL alone"):
        inject(["https://example.com/"], version="recipe", seeds=("http://example.com/\tnutch.score=10",))


def test_lines_that_are_not_utf8_are_quarantined(inject):
    made = inject(b"\xef\xbb\xbfhttps://a.example.com/\nhttps://b.example.com/\xff\nhttps://c.example.com/\n")
    assert urls(made) == ["https://a.example.com/", "https://c.example.com/"]
    assert made.table("rejected.parquet").column("reason").to_pylist() == ["encoding"]


def test_a_file_with_no_seed_or_mostly_invalid_lines_is_refused(inject):
    with pytest.raises(InputError, match=r"no seed is usable: 2 lines.*url 2.*line 1: 'a'"):
        inject(["a", "b"])
    mostly = ["id,address", "1,a", "2,b", "https://example.com/"]
    with pytest.raises(InputError, match=r"3 lines of seed files.*4 lines were read.*max_bad_seeds"):
        inject(mostly, version="mostly")
    assert urls(inject(mostly, version="meant", max_bad_seeds=1.0)) == ["https://example.com/"]


def test_an_invalid_seed_in_the_recipe_is_an_error_despite_a_good_file(inject):
    with pytest.raises(InputError, match=r"http://10\.0\.0\.1/.*\[crawl\] seeds.*private_address"):
        inject(["https://example.com/"], seeds=("http://10.0.0.1/",))
    with pytest.raises(InputError, match=r"example\.org.*is not covered by the crawl"):
        inject(["https://example.com/"], seeds=("https://example.org/",), include_hosts=("example.com",))


def test_an_unreadable_file_and_a_public_seed_without_contact_are_refused(inject, run_stage, tmp_path):
    with pytest.raises(InputError, match="seed_files"):
        run_stage("tasks.stages.crawl.inject", CrawlConfig(seed_files=(str(tmp_path / "none"),)), version="none")
    with pytest.raises(InputError, match=r"contact is missing.*example\.com.*line 1"):
        inject(["https://example.com/"], contact="")
