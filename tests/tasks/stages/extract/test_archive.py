"""Stage `archive`: the captures that a recipe names, as Common Crawl has them, and little of its index."""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, RecipeError, StoreError
from tasks.core.store import Store
from tasks.formats.warc import common_crawl
from tasks.formats.warc.archive import provenance_of
from tasks.run.place import Retention
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.retention import collect
from tasks.run.runner import run_stage
from tasks.run.trace.text import render
from tasks.run.trace.trace import trace
from tasks.run.tracking import TrackingContext
from tasks.stages.extract import archive as stage
from tests.common_crawl import CRAWL, LATER, Page, real_pages, write_crawl
from tests.conftest import SHARED_DATA
from tests.s3_server import S3Server
from tests.taken_down import take_down

PROSE = "The river carries stones from the hills to the sea, and the people at its banks tell of the year {0}. " * 4


def page(url: str, year: int = 0, **options: Any) -> Page:
    return Page(url, f"<html lang=en><title>{year}</title><p>{PROSE.format(year)}</p></html>".encode(), **options)


PAGES = [
    page("https://www.river.example/", 1),
    page("https://river.example/b", 2),
    page("https://docs.river.example/a", 3),
    page("https://river.example:8080/c", 4),
    page("https://riverside.example/", 5),
    page("https://example/river.example", 6),
    page("https://river.example/fluss", 7, languages="deu,eng"),
    page("https://river.example/nothing", 8, languages=None),
    page("https://river.example/feed", 9, mime="application/rss+xml"),
    page("https://river.example/gone", 10, status=404),
    page("https://other.example/Docs/one", 11),
    page("https://other.example/docs/two", 12),
    page("http://www.other.example/docs/three?q=1", 13),
    page("https://other.example/documents", 14),
    page("https://names.example/%d9%85/one", 15),
    page("https://names.example/%D9%85/two", 16),
    page("https://names.example/%7Eann/", 17),
]


@dataclass(frozen=True)
class Bench:
    """A recipe whose source is a stand-in of Common Crawl in a folder."""

    folder: Path
    root: str = ""
    store_url: str = ""

    @property
    def crawls(self) -> Path:
        return self.folder / "commoncrawl"

    @property
    def store(self) -> Store:
        return Store(self.store_url or f"{self.folder}/store")

    def recipe(self, **settings: Any) -> Recipe:
        source = {"name": "rivers", "crawls": [CRAWL], "root": self.root or str(self.crawls), **settings}
        text = {
            "name": "test",
            "extract": {"archives": [source], "min_chars": 20},
            "makes": ["documents"],
            "place": {"store": self.store.root, "mlflow": "", "workers": 1},
        }
        return find_recipe(json.dumps(text))

    def run(self, stages: str = "archive", version: str = "1", **settings: Any) -> Artifact:
        for name in stages.split():
            result = run_stage(self.recipe(**settings), name, version=version, tracking=TrackingContext("", "test"))
        return Artifact.open_at(self.store, ArtifactId.parse(result.address))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(common_crawl, "PAUSES_S", ())
    return Bench(tmp_path)


def urls(archived: Artifact) -> list[str]:
    tables = (archived.table(path, ["url"]) for path in archived.files("provenance/"))
    return [url for table in tables for url in table["url"].to_pylist()]


def rejected(artifact: Artifact) -> dict[str, str]:
    rows = (row for path in artifact.files("rejected/") for row in artifact.table(path).to_pylist())
    return {row["url"]: row["reason"] for row in rows}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"domains": ["river.example"]}, [PAGES[n].url for n in (0, 1, 6, 7, 2, 3)]),
        ({"domains": ["docs.river.example"]}, [PAGES[2].url]),
        ({"domains": ["river.example"], "languages": ["deu"]}, [PAGES[6].url]),
        ({"domains": ["river.example"], "mime": ["application/rss+xml"]}, [PAGES[8].url]),
        ({"prefixes": ["https://other.example/docs/"]}, [PAGES[n].url for n in (12, 11)]),
        ({"prefixes": ["https://other.example/Docs"]}, [PAGES[10].url]),
        ({"prefixes": ["https://names.example/م/"]}, [PAGES[n].url for n in (14, 15)]),
        ({"prefixes": ["https://names.example/~a"]}, [PAGES[16].url]),
        ({"domains": ["riverside.example"], "prefixes": ["http://river.example/b"]}, [PAGES[n].url for n in (1, 4)]),
    ],
)
def test_the_captures_of_domains_and_prefixes_are_fetched_in_the_order_of_the_index(
    bench: Bench, settings: dict[str, Any], found: list[str]
) -> None:
    write_crawl(bench.crawls, CRAWL, PAGES, others=50, group_rows=10)
    assert urls(bench.run(**settings)) == found


@pytest.mark.parametrize("spelled", ["a|b", "a%7Cb", "a%7cb"])
@pytest.mark.parametrize("prefix", ["a|b", "a%7Cb"])
def test_a_prefix_also_covers_characters_that_sites_do_not_escape(bench: Bench, prefix: str, spelled: str) -> None:
    wanted = f"https://names.example/{spelled}/1"
    write_crawl(bench.crawls, CRAWL, [page(wanted), page("https://names.example/a/b")])
    assert urls(bench.run(prefixes=[f"https://names.example/{prefix}"])) == [wanted]


def test_a_document_has_the_time_of_the_capture_and_its_trace_leads_to_the_bytes(bench: Bench) -> None:
    write_crawl(bench.crawls, CRAWL, PAGES)
    extracted = bench.run("archive extract", domains=["river.example"])
    rows = [row for path in extracted.files("documents/") for row in extracted.table(path).to_pylist()]
    assert len(rows) == 6
    for row in rows:
        (number,) = (number for number, page in enumerate(PAGES) if page.url == row["url"])
        assert row["fetched_at"] == datetime(2026, 10, 20, 12, 0, number, tzinfo=UTC)
        assert (row["source"], f"the year {number + 1}." in row["text"]) == ("rivers", True)
        there = provenance_of(bench.store, row["warc_file"], row["warc_offset"])
        assert there is not None
        assert there.crawl == CRAWL
        member = (bench.crawls / there.file).read_bytes()[there.file_offset :][: there.length]
        assert bench.store.read(row["warc_file"])[row["warc_offset"] :][: there.length] == member
    answer = render(trace(bench.store, "test", "1", rows[0]["url"]))
    assert f"  from       {CRAWL}, crawl-data/{CRAWL}/segments/" in answer


def test_a_lookup_reads_a_small_share_of_the_index(bench: Bench) -> None:
    write_crawl(bench.crawls, CRAWL, PAGES, others=40_000, group_rows=1_000)
    metrics = bench.run(domains=["river.example"]).record.metrics
    assert metrics["index_bytes_read"] < 0.15 * metrics["index_bytes"]


def test_a_later_crawl_adds_the_pages_that_are_new_or_have_changed(bench: Bench) -> None:
    write_crawl(bench.crawls, CRAWL, PAGES)
    changed = replace(PAGES[1], body=page("", 77).body)
    write_crawl(bench.crawls, LATER, [PAGES[0], changed, page("https://river.example/new", 78)])
    archived = bench.run(domains=["river.example"], crawls=[CRAWL, LATER])
    assert urls(archived)[6:] == ["https://river.example/b", "https://river.example/new"]
    assert archived.record.metrics["rivers/repeated"] == 1


def test_most_is_a_sample_by_url_that_does_not_depend_on_the_other_captures(bench: Bench) -> None:
    pages = [page(f"https://river.example/{number:03d}", number) for number in range(60)]
    write_crawl(bench.crawls, CRAWL, pages)
    some = urls(bench.run(domains=["river.example"], most=9))
    more = urls(bench.run(version="2", domains=["river.example"], most=20))
    assert (len(some), len(more)) == (9, 20)
    assert set(some) < set(more)
    assert some == sorted(some)
    assert some != [one.url for one in pages[:9]]


def test_a_record_that_is_not_what_the_index_says_is_rejected_by_name(bench: Bench) -> None:
    elsewhere = {"warc_record_offset": 3}
    pages = [
        replace(PAGES[0], changes={"content_digest": "A" * 32}),
        replace(PAGES[1], changes=elsewhere),
        replace(PAGES[2], changes={"warc_filename": "crawl-data/none.warc.gz"}),
        replace(PAGES[6], changes={"url": "https://river.example/ocean"}),
        replace(PAGES[7], changes={"warc_record_length": 60}),
        replace(PAGES[3], changes={"warc_record_length": 1_000_000}),
        page("https://river.example/whole", 20),
    ]
    write_crawl(bench.crawls, CRAWL, pages)
    archived = bench.run(domains=["river.example"])
    assert urls(archived) == ["https://river.example/whole"]
    assert rejected(archived) == {
        PAGES[0].url: "digest_differs",
        PAGES[1].url: "warc_damaged",
        PAGES[2].url: "not_found",
        "https://river.example/ocean": "url_differs",
        PAGES[7].url: "warc_damaged",
        PAGES[3].url: "warc_truncated",
    }


def test_a_page_that_was_taken_down_is_not_fetched_and_the_others_are_not_fetched_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "AT_ONCE", 2)
    write_crawl(bench.crawls, CRAWL, PAGES)
    settings = {"domains": ["river.example"]}
    first = bench.run(**settings)
    take_down(bench.store.root, urls=[PAGES[1].url])
    read = list[str]()
    whole = common_crawl.CrawlData.read
    monkeypatch.setattr(
        common_crawl.CrawlData, "read", lambda data, path, *range_: read.append(path) or whole(data, path, *range_)
    )
    second = bench.run(version="2", **settings)
    assert rejected(second) == {PAGES[1].url: "taken_down"}
    assert len(read) == 1, "the other page of the part with the page that was taken down"
    assert urls(second) == [url for url in urls(first) if url != PAGES[1].url]
    untouched = [path for path in first.files("captures/") if not path.endswith("000000.warc.gz")]
    assert [second.at(path) for path in untouched] == [first.at(path) for path in untouched]
    bench.run("extract", version="2", **settings)
    assert held(bench.store, PAGES[1].url) == 1
    collected = collect(bench.store, "test", Retention(versions=1, grace_days=0))
    assert collected.removed == ["test/archived@1"]
    assert held(bench.store, PAGES[1].url) == 0, "the file is not kept for other parts of the version"
    assert held(bench.store, PAGES[2].url) == 1
    assert second.verify() == []
    assert f"  from       {CRAWL}, " in render(trace(bench.store, "test", "2", PAGES[2].url))


def held(store: Store, url: str) -> int:
    """Number of WARC files of the store with a page."""
    bodies = (gzip.decompress(store.read(path)) for path in store.list("test/archived") if path.endswith(".warc.gz"))
    return sum(f"URI: {url}\r\n".encode() in body for body in bodies)


def test_pages_that_ask_not_to_be_used_give_no_document(bench: Bench) -> None:
    noindex = (("X-Robots-Tag", "noindex"),)
    write_crawl(bench.crawls, CRAWL, [PAGES[0], replace(PAGES[1], headers=noindex)])
    extracted = bench.run("archive extract", domains=["river.example"])
    assert rejected(extracted) == {PAGES[1].url: "noindex"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"crawls": ["CC-MAIN-2031-01"]}, r"has no index of the crawl CC-MAIN-2031-01. Correct crawls: https://index"),
        ({"domains": ["sea.example"]}, r'has no capture for the archive "rivers". Correct its domains'),
    ],
)
def test_an_archive_without_a_capture_says_what_to_correct(bench: Bench, settings: dict[str, Any], said: str) -> None:
    write_crawl(bench.crawls, CRAWL, PAGES)
    with pytest.raises(InputError, match=said):
        bench.run(**{"domains": ["river.example"], **settings})


def test_captures_none_of_which_can_be_used_are_an_error_with_the_reasons(bench: Bench) -> None:
    write_crawl(bench.crawls, CRAWL, [replace(PAGES[0], changes={"content_digest": "A" * 32})])
    with pytest.raises(InputError, match=r"none of 1 captures could be used \(digest_differs\)"):
        bench.run(domains=["river.example"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, r"an archive needs domains or prefixes"),
        ({"domains": ["River.example"]}, r"domains"),
        ({"prefixes": ["river.example/b"]}, r'"river.example/b" is not the beginning of a URL'),
        ({"domains": ["a.example"], "crawls": ["2026-43"]}, r"crawls"),
        ({"domains": ["a.example"], "root": "https://data.commoncrawl.org"}, r"contact is missing"),
        ({"domains": ["a.example"], "root": "https://me:word@cc.example"}, r"the root has credentials"),
    ],
)
def test_an_archive_that_cannot_be_read_is_refused_with_the_recipe(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        Bench(Path("/nowhere"), "s3://commoncrawl").recipe(**settings)


KILLED = """
import os, signal, sys
from pathlib import Path
from tasks.stages.extract import archive
from tests.tasks.stages.extract.test_archive import Bench

archive.AT_ONCE = 2
commit = archive._write
parts = iter(range(int(sys.argv[2])))

def write(*arguments):
    if next(parts, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    commit(*arguments)

archive._write = write
Bench(Path(sys.argv[1])).run(domains=["river.example"])
"""


def test_a_run_that_was_killed_goes_on_and_ends_with_the_same_bytes(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "AT_ONCE", 2)
    write_crawl(bench.crawls, CRAWL, PAGES)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), "2"], env=dict(os.environ), check=False)
    assert killed.returncode == -signal.SIGKILL
    parts = bench.store.list("test/archived/1/.parts")
    assert len(parts) == 3, "the lookup and two parts"
    resumed = bench.run(domains=["river.example"])
    other = replace(bench, folder=tmp_path / "other")
    (tmp_path / "other").mkdir()
    (other.crawls).symlink_to(bench.crawls)
    whole = other.run(domains=["river.example"])
    assert [(entry.path, entry.sha256) for part in resumed.parts for entry in part.files] == [
        (entry.path, entry.sha256) for part in whole.parts for entry in part.files
    ]


def test_an_object_store_that_asks_to_slow_down_is_asked_again(bench: Bench, s3: S3Server) -> None:
    write_crawl(bench.crawls, CRAWL, PAGES)
    root = f"s3://{s3.buckets[0]}/archive"
    for path in bench.crawls.rglob("*.*z*"):
        if path.is_file():
            with Store(root).write(str(path.relative_to(bench.crawls))) as file:
                file.write(path.read_bytes())
    s3.faults.share = 0.2
    there = replace(bench, root=root, store_url=f"s3://{s3.buckets[0]}/store")
    extracted = there.run("archive extract", domains=["river.example"])
    assert extracted.record.rows_out == 6
    answer = render(trace(there.store, "test", "1", PAGES[1].url))
    assert f"  from       {CRAWL}, " in answer


class WebServer(ThreadingHTTPServer):
    """Serves the files of a folder by ranges, and refuses the first requests with `refusals`."""

    def __init__(self, folder: Path, refusals: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.refusals, self.agents = folder, refusals, set[str]()
        Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *args: Any) -> None:
        self.shutdown()
        super().__exit__(*args)


class _Handler(BaseHTTPRequestHandler):
    server: WebServer

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.agents.add(self.headers["User-Agent"])
        path = self.server.folder / self.path.lstrip("/")
        refused = self.server.refusals.pop(0) if self.server.refusals else 0
        data = path.read_bytes() if path.is_file() else b""
        status = refused or (200 if path.is_file() else 404)
        self.send_response(206 if status == 200 and "Range" in self.headers else status)
        if status == 200 and (asked := self.headers["Range"]):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            data = data[int(first) : int(last) + 1]
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


@pytest.fixture
def served(bench: Bench) -> Callable[..., WebServer]:
    """Starts a web server with the crawl, as data.commoncrawl.org has it."""
    import gzip

    write_crawl(bench.crawls, CRAWL, PAGES)
    paths = sorted(str(path.relative_to(bench.crawls)) for path in bench.crawls.rglob("*.parquet"))
    listing = bench.crawls / f"crawl-data/{CRAWL}/cc-index-table.paths.gz"
    listing.write_bytes(gzip.compress("\n".join([*paths, "cc-index/table/other.parquet"]).encode()))
    return lambda refusals=(): WebServer(bench.crawls, list(refusals))


def test_a_web_server_is_asked_again_after_a_pause_by_a_client_with_an_address(
    bench: Bench, served: Callable[..., WebServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = list[float]()
    monkeypatch.setattr(common_crawl, "PAUSES_S", (1.0, 2.0, 4.0))
    monkeypatch.setattr(common_crawl.time, "sleep", paused.append)
    with served([503, 503]) as server:
        web = replace(bench, root=f"http://127.0.0.1:{server.server_port}")
        archived = web.run(domains=["river.example"], contact="mailto:me@river.example")
    assert len(urls(archived)) == 6
    assert paused == [1.0, 2.0]
    assert all(agent.endswith("(+mailto:me@river.example)") for agent in server.agents)


def test_a_web_server_that_has_blocked_the_client_is_left_alone(bench: Bench, served: Callable[..., WebServer]) -> None:
    with served([403]) as server:
        web = replace(bench, root=f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(StoreError, match=r"refuses .*403.*too many requests. Wait for a day"):
            web.run(domains=["river.example"], contact="mailto:me@river.example")


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="the real pages are not here")
def test_real_pages_give_the_documents_that_they_give_as_files(bench: Bench) -> None:
    bodies = list(real_pages(SHARED_DATA / "extraction_html" / "html", 24))
    pages = [Page(f"https://river.example/{number:02d}", body) for number, body in enumerate(bodies)]
    write_crawl(bench.crawls, CRAWL, pages)
    archived = bench.run(domains=["river.example"])
    assert archived.record.rows_out == 24
    extracted = bench.run("extract", domains=["river.example"])
    assert extracted.record.rows_out >= 20


def test_the_index_of_an_early_crawl_has_no_languages(bench: Bench) -> None:
    write_crawl(bench.crawls, CRAWL, PAGES)
    for path in bench.crawls.rglob("*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(["content_languages", "warc_record_id"]), path)
    assert len(urls(bench.run(domains=["river.example"]))) == 6
    with pytest.raises(InputError, match=r"has no column content_languages. Choose a later crawl, or leave languages"):
        bench.run(version="2", domains=["river.example"], languages=["eng"])
