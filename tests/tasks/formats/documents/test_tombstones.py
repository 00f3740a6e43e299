"""Contract of tombstones: coverage of URLs, domains and documents."""

import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.core.artifact import ArtifactId
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.formats.documents.document import document_id
from tasks.formats.documents.tombstones import FILE, Tombstone, Tombstones, in_force, read, write
from tasks.formats.web.scope import Scope
from tests.taken_down import take_down

PAGE = Tombstones(urls=frozenset(["https://www.example.org/a?q=1"]))
DOMAIN = Tombstones(domains=frozenset(["example.org", "127.0.0.1"]))


def covered(stones: Tombstones, *urls: str) -> list[bool]:
    table = pa.table({"id": [document_id(url, "") for url in urls], "url": list(urls)})
    return stones.mask(table).tolist()


def test_a_url_covers_its_page_in_any_spelling() -> None:
    spellings = (
        "https://www.example.org/a?q=1",
        "http://example.org/a?q=1",
        "HTTPS://Example.ORG:443/b/../a?utm_source=x&q=1#top",
        "https://ex%61mple.org./a?q=1",
    )
    assert covered(PAGE, *spellings) == [True] * 4
    others = ("https://www.example.org/a", "https://www.example.org/a?q=2", "https://a.example.org/a?q=1", "no url", "")
    assert covered(PAGE, *others) == [False] * 5


def test_a_domain_covers_its_name_and_subdomains_on_every_port() -> None:
    inside = ("http://example.org/", "https://a.b.example.org:8443/x", "http://127.0.0.1:8080/", "http://EXAMPLE.org./")
    assert covered(DOMAIN, *inside) == [True] * 4
    assert (
        covered(DOMAIN, "http://myexample.org/", "http://example.org.evil.net/", "http://x.net/example.org")
        == [False] * 3
    )


def test_a_document_covers_only_its_id() -> None:
    url = "https://example.org/a"
    stones = Tombstones(documents=frozenset([document_id(url, "")]))
    assert covered(stones, url, "https://example.org/b") == [True, False]
    raw = pa.table({"doc_uid": pa.array([bytes.fromhex(document_id(url, ""))], pa.binary(16)), "url": [""]})
    assert stones.mask(raw).tolist() == [True]
    assert not stones.covers_url(url)


def test_a_file_url_covers_exactly_itself_and_no_page() -> None:
    file = "file://example.org/a%20b.txt"
    stones = Tombstones(urls=frozenset([file, "http://code.net/x"]), domains=frozenset(["dump"]))
    others = ("http://example.org/a%20b.txt", "file://example.org/a%20b.txt#1", "file://dump/x", "file://code.net/x")
    assert covered(stones, file, "https://code.net/x", *others) == [True, True] + [False] * 4
    assert (stones.causes(file), stones.causes("file://dump/x")) == ([file], [])
    assert (stones.hosts, stones.file_urls) == ({"code.net", "www.code.net"}, {file})
    assert not any("example.org" in spelling for spelling in stones.spellings)
    assert Scope(["example.org"], taken_down=stones).covers("http://example.org/a%20b.txt")


def test_pages_taken_down_are_outside_the_scope_of_a_crawl() -> None:
    scope = Scope(["example.org", "*.example.org", "other.net"], taken_down=PAGE)
    assert not scope.covers("http://example.org/a?q=1")
    assert scope.covers("http://example.org/")
    assert scope.refusal("http://example.org/a?q=1") == "takedown"
    scope = Scope(["*.example.org", "other.net"], taken_down=DOMAIN)
    assert (scope.covers_host("a.example.org"), scope.covers_host("other.net")) == (False, True)
    assert scope.refusal("http://a.example.org/") == "takedown"


def test_concurrent_takedowns_are_both_in_force_until_the_next_contains_them(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert in_force(store, "test") == []
    first = take_down(tmp_path, "t1", urls="http://a.net/", reason="first")
    one, two = (take_down(tmp_path, name, first, domains=f"{name}.net", urls="http://a.net/") for name in ("t2", "t3"))
    assert [str(each.address) for each in in_force(store, "test")] == [str(one.address), str(two.address)]
    assert {stone.value for stone in read(in_force(store, "test"))} == {"http://a.net/", "t2.net", "t3.net"}
    last = take_down(tmp_path, "t0", one, two, documents="0" * 32)
    (found,) = in_force(store, "test")
    assert found.address == last.address
    assert len(read([found])) == 4
    assert {stone.takedown for stone in read([found]) if stone.reason == "first"} == {"test/takedown@t1"}


@pytest.mark.parametrize("stones", [PAGE, DOMAIN, Tombstones()])
def test_an_empty_table_covers_nothing(stones: Tombstones) -> None:
    assert covered(stones) == []


def test_a_lift_holds_against_concurrent_takedowns_and_lifts_only_known_ones(tmp_path: Path) -> None:
    def values() -> list[str]:
        takedowns = in_force(Store(str(tmp_path)), "test")
        assert Tombstones.read(takedowns) == Tombstones.of(read(takedowns))
        return [stone.value for stone in read(takedowns)]

    first = take_down(tmp_path, "t1", domains="wrong.net")
    beside = take_down(tmp_path, "t1b", domains="wrong.net")
    lifting = take_down(tmp_path, "t2", first, lift="wrong.net")
    assert values() == ["wrong.net"]  # a request unknown to the lift
    again = take_down(tmp_path, "t3", lifting, beside, lift="wrong.net")
    assert values() == []
    # Each started before the lift, so it contains the lifted entry; it ends concurrently with the lift, or after it.
    take_down(tmp_path, "t4", first, beside, urls="http://b.net/")
    assert values() == ["http://b.net/"]
    take_down(tmp_path, "t5", *in_force(Store(str(tmp_path)), "test"), urls="http://c.net/")
    take_down(tmp_path, "t6", first, urls="http://d.net/")
    assert values() == ["http://b.net/", "http://c.net/", "http://d.net/"]
    assert len(again.table("lifted.parquet")) == 2


def test_a_worker_that_reads_tombstones_makes_no_object_of_each(tmp_path: Path) -> None:
    output = Output(Store(str(tmp_path)), ArtifactId("test/takedown", "t1"), "1" * 64)
    stones = [Tombstone("url", f"http://a.net/{row}", "privacy", "a", "2026", "form", "t1") for row in range(20_000)]
    with output.part("all", conserved=False) as part, part.file(FILE) as file:
        write(file, stones)
    tracemalloc.start()
    try:
        assert len(Tombstones.read([output.folder]).urls) == len(stones)
        assert tracemalloc.get_traced_memory()[1] / len(stones) < 300  # bytes; as objects, 860
    finally:
        tracemalloc.stop()
