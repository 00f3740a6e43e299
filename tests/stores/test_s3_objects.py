"""The server for a million objects answers the store as the S3 server of the other tests does, and counts."""

from pathlib import Path

import pytest

from tasks.core.store import AlreadyPublished, Store
from tests.s3_objects import BEFORE, CREATE, Objects, served
from tests.s3_server import S3Server


def answers(store: Store) -> list[object]:
    """Returns what a store answers to everything that stages do with it."""
    store.publish("a/record", b"first")
    with pytest.raises(AlreadyPublished):
        store.publish("a/record", b"second")
    for name, content in (("a/b +%25&<é/x", b"0123456789"), ("a/b/c/y", b""), ("ab", b"z")):
        with store.write(name) as file:
            file.write(content)
    found: list[object] = [store.list("a"), store.sizes("a"), store.folders("a"), store.names("a"), store.folders("")]
    found += [store.read_range("a/b +%25&<é/x", *bounds) for bounds in ((0, 4), (3, 99), (10, 12))]
    found += [store.read(name) for name in ("a/record", "a/b/c/y")]
    found += [store.exists(name) for name in ("a", "a/b", "a/record", "b")]
    found += [store.size("a/record"), Path(store.local("a/record")).read_bytes()]
    with pytest.raises(FileNotFoundError):
        store.read("b")
    store.remove_files(["a/record", "b"])
    store.remove("a/b")
    return [*found, store.list("")]


def test_it_answers_the_store_as_the_other_server_does_and_counts_requests(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers(Store(f"s3://sluice/{tmp_path.name}"))
    with served() as server:
        for name, value in (server.environment | {"SLUICE_CACHE": str(tmp_path / "other")}).items():
            monkeypatch.setenv(name, value)
        store = Store(f"s3://sluice/{tmp_path.name}")
        assert answers(store) == expected
        server.counts(reset=True)
        store.read("ab")
        store.publish("c", b"12")
        counts = server.counts()
        assert (counts["GET"], counts[CREATE], counts[BEFORE], server.total(counts)) == (1, 1, 1, 2)
        assert (counts["bytes out"], counts["bytes in"]) == (1, 2)


def test_a_listing_has_pages_of_a_thousand_and_folders_are_found_without_their_files() -> None:
    objects = Objects()
    for number in range(2500):
        objects.answer("PUT", f"/sluice/x/{number % 2}/{number:05d}", {}, b"")
    pages, token = [], ""
    while not pages or b"<NextContinuationToken>" in pages[-1]:
        reply = objects.answer("GET", f"/sluice?list-type=2&prefix=x/{token}", {}, b"")
        assert reply
        pages.append(reply.body)
        name = reply.body.partition(b"<NextContinuationToken>")[2].partition(b"<")[0].decode()
        token = f"&continuation-token={name}"
    assert [page.count(b"<Key>") for page in pages] == [1000, 1000, 500]
    reply = objects.answer("GET", "/sluice?list-type=2&prefix=x/&delimiter=/", {}, b"")
    assert reply
    assert (reply.body.count(b"<Key>"), reply.body.count(b"<CommonPrefixes>")) == (0, 2)
    assert objects.counts["LIST"] == 4
