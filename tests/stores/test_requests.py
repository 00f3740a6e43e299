"""Requests that a large artifact costs: a resume, a removal, a verification, its versions; on every store the same."""

import errno
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from tasks.core import remote
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import InputError, StoreError, SupersededError, TransientError
from tasks.core.ledger import newest, versions_of
from tasks.core.removal import is_complete, remove_files
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.run.scale.units import unit
from tests.s3_server import S3Server
from tests.stores.conftest import ON_EMULATORS, Place

PARTS, FILES = 60, 2
ADDRESS = ArtifactId("demo/books", "a")


def begun(store: Store, parts: int = PARTS, address: ArtifactId = ADDRESS) -> Output:
    """Returns the output of a stage that was killed before its commit."""
    output = Output(store, address, "1" * 64)
    for number in range(parts):
        name = f"part-{number:05}"
        with output.part(name, conserved=False) as part:
            for folder in range(FILES):
                part.write(f"{folder}/{name}.bin", f"{number} {folder} ".encode() * 100)
    return output


def committed(store: Store, parts: int, address: ArtifactId = ADDRESS) -> Artifact:
    return commit(begun(store, parts, address), "toy", 1, Config(), (), Report())


@pytest.fixture
def cost(s3: S3Server) -> Callable[[Callable[[], Any]], int]:
    """Counts the requests that a call sends to the S3 server."""

    def counted(call: Callable[[], Any]) -> int:
        before = s3.faults.requests
        call()
        return s3.faults.requests - before

    return counted


@pytest.fixture
def s3_store(s3: S3Server, tmp_path: Path) -> Store:
    return Store(f"s3://sluice/{tmp_path.name}")


Cost = Callable[[Callable[[], Any]], int]


def test_a_resume_on_s3_costs_one_request_for_each_part(s3_store: Store, cost: Cost) -> None:
    made = begun(s3_store).committed
    resumed: list[Output] = []
    requests = cost(lambda: resumed.append(Output(s3_store, ADDRESS, "1" * 64)))
    assert requests / PARTS == pytest.approx(unit("requests_resume"), rel=0.01)
    assert list(resumed[0].committed.items()) == list(made.items())
    assert cost(lambda: Output(s3_store, ADDRESS, "2" * 64)) <= 1.1 * PARTS  # removes them


def test_a_worker_on_s3_sends_two_requests_for_a_file_that_it_reads_and_one_for_a_file_or_record_that_it_writes(
    s3_store: Store, sent: Counter[str]
) -> None:
    source, output = committed(s3_store, 8).folder, Output(s3_store, ArtifactId("demo/words", "a"), "2" * 64)
    sent.clear()
    for number in range(8):
        with output.part(f"part-{number:05}", conserved=False) as part:
            source.local(f"0/{part.name}.bin")
            for folder in range(FILES):
                part.write(f"{folder}/{part.name}.bin", b"1")
    read, written = 8, 8 * (FILES + 1)
    heads, gets, puts = (unit(name) for name in ("head_read", "get_read", "put_written"))
    assert sent == {"HEAD": read * heads, "GET": read * gets, "PUT": written * puts}
    for number in range(8):
        source.local(f"0/part-{number:05}.bin")  # as another task does on this machine
    assert sent == {"HEAD": 2 * read * heads, "GET": read * gets, "PUT": written * puts}


@pytest.fixture
def sent(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests to the S3 server by method, and "COPY"."""
    answer, counts = s3.faults.app, Counter[str]()

    def counting(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        counts["COPY" if "HTTP_X_AMZ_COPY_SOURCE" in environ else environ["REQUEST_METHOD"]] += 1
        return answer(environ, start)

    monkeypatch.setattr(s3.faults, "app", counting)
    return counts


def test_to_take_over_parts_on_s3_costs_the_same_requests_however_many_they_are(
    s3_store: Store, sent: Counter[str]
) -> None:
    costs = []
    for parts in (2, 8):
        before = committed(s3_store, parts, ArtifactId(f"of{parts}/books", "a"))
        output = Output(s3_store, ArtifactId(before.address.name, "b"), "2" * 64)
        sent.clear()
        for record in before.parts:
            output.carry(before, record)
        assert not sent, "the manifest is in memory"
        after = commit(output, "toy", 1, Config(), (), Report())
        assert (after.record.content, after.verify()) == (before.record.content, [])
        costs.append(sent - Counter(GET=parts * FILES))  # of the verification
    assert costs[0] == costs[1]
    assert not costs[1]["COPY"]
    assert s3_store.sizes("of8/books/b").keys() == after.record_paths
    of_worker = pickle.loads(pickle.dumps(after.folder))
    sent.clear()
    for number in range(4):
        path = f"1/part-{number:05}.bin"
        assert Path(of_worker.local(path)).read_bytes() == before.read(path)
    assert sent["GET"] - 8 <= 1, "the record, once; the manifest is in memory"


def test_a_commit_on_s3_removes_what_was_left_out_at_once(s3_store: Store, cost: Cost) -> None:
    output = begun(s3_store, 16)
    output.leave_out([f"part-{number:05}" for number in range(1, 16)])
    made: list[Artifact] = []
    assert cost(lambda: made.append(commit(output, "toy", 1, Config(), (), Report()))) < 18
    kept = {f"{folder}/part-00000.bin" for folder in range(FILES)}
    assert s3_store.sizes(ADDRESS.path).keys() == kept | made[0].record_paths


def test_verification_on_s3_costs_one_request_a_file_and_removal_a_few(s3_store: Store, cost: Cost) -> None:
    artifact = committed(s3_store, 16)
    assert cost(artifact.verify) == 16 * FILES + 1
    assert cost(lambda: remove_files(artifact, "no longer needed", datetime.now(UTC))) < 12
    assert (removal := artifact.removal())
    assert is_complete(removal)
    with pytest.raises(InputError, match=r"the files of demo/books@a were removed on .*no longer needed"):
        artifact.verify()


def test_the_versions_of_a_kind_cost_a_request_each_and_the_newest_as_much_of_any_number(
    s3_store: Store, cost: Cost
) -> None:
    for version, parts in (("a", 1), ("b", 8)):
        committed(s3_store, parts, ArtifactId("demo/books", version))
    begun(s3_store, 1, ArtifactId("demo/books", "unfinished"))
    committed(s3_store, 1, ArtifactId("demo/books/index", "a"))
    found: list[Artifact] = []
    assert cost(lambda: found.extend(versions_of(s3_store, "demo/books"))) == 1 + 4  # folders: two are no versions
    assert [one.address.version for one in found] == ["a", "b"]
    chosen: list[Artifact | None] = []
    for number in range(6):
        committed(s3_store, 1, ArtifactId("demo/news", str(number)))
        chosen.clear()
        assert cost(lambda: chosen.append(newest(s3_store, "demo/news"))) == 2 + 1  # listings, and one record
        assert [one.address.version for one in chosen if one] == [str(number)]


def test_a_listing_of_several_pages_on_s3_is_complete(
    s3: S3Server, s3_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        s3_store.publish(f"a/{number} +%25/x", b"1" * number)
    s3_store.publish("ab", b"1")
    answer = s3.faults.app

    def two_a_page(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        return answer({**environ, "QUERY_STRING": environ["QUERY_STRING"] + "&max-keys=2"}, start)

    monkeypatch.setattr(s3.faults, "app", two_a_page)
    before = s3.faults.requests
    assert s3_store.sizes("a") == {f"{number} +%25/x": number for number in range(5)}
    assert s3.faults.requests - before == 3


def test_a_part_without_a_file_or_with_one_of_another_size_is_made_again(store: Store) -> None:
    whole = begun(store, 4).committed
    store.remove(f"{ADDRESS.path}/1/part-00001.bin")
    for name, content in (("part-00002", b"short"), ("part-00003", store.read(f"{ADDRESS.path}/0/part-00003.bin"))):
        with store.write(f"{ADDRESS.path}/0/{name}.bin") as file:
            file.write(content)
    again = Output(store, ADDRESS, "1" * 64)
    assert list(again.committed) == ["part-00000", "part-00003"]
    assert store.list(f"{ADDRESS.path}/.parts") == [f"{ADDRESS.path}/.parts/{name}.json" for name in again.committed]
    assert begun(store, 4).committed == whole
    assert Output(store, ADDRESS, "1" * 64).committed == whole


def test_files_are_removed_together_and_a_missing_one_is_no_error(store: Store) -> None:
    for number in range(5):
        store.publish(f"a/{number}", b"1")
    store.remove_files(["a/0", "a/9", "a/1", "b/1", "a/2"])
    store.remove_files([])
    assert store.list("") == ["a/3", "a/4"]


def test_a_missing_or_changed_file_is_found_by_verifying(store: Store) -> None:
    artifact = committed(store, 4)
    gone, longer, other, *_ = artifact.files("0/")
    store.remove(f"{ADDRESS.path}/{gone}")
    for path, change in ((longer, lambda data: data + b"1"), (other, lambda data: b"x" + data[1:])):
        content = change(store.read(f"{ADDRESS.path}/{path}"))
        with store.write(f"{ADDRESS.path}/{path}") as file:
            file.write(content)
    assert artifact.verify() == [gone, longer, other]


@pytest.mark.parametrize("place", ON_EMULATORS, indirect=True)
def test_a_local_copy_has_the_bytes_of_the_record_and_is_made_once(place: Place) -> None:
    artifact = committed(place.store(), 2)
    first, damaged = artifact.files("0/")
    content = artifact.read(first)
    with artifact.store.write(f"{artifact.path}/{damaged}") as file:
        file.write(b"x" + artifact.read(damaged)[1:])
    assert Path(artifact.local(first)).read_bytes() == content
    before = place.faults.requests
    assert Path(artifact.local(first)).read_bytes() == content
    assert place.faults.requests == before
    with pytest.raises(InputError, match=rf"{damaged} is damaged: it differs from its artifact's record\. Restore"):
        artifact.local(damaged)
    with pytest.raises(FileNotFoundError):
        artifact.local("0/none.bin")


def test_files_that_s3_refuses_to_remove_are_reported(
    s3: S3Server, s3_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_store.publish("a", b"1")
    answer = s3.faults.app

    def refusing(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "POST":
            return answer(environ, start)
        environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        start("200 OK", [("Content-Type", "application/xml")])
        error = "<Error><Key>a</Key><Code>AccessDenied</Code><Message>a bucket policy</Message></Error>"
        return [f"<DeleteResult>{error}</DeleteResult>".encode()]

    monkeypatch.setattr(s3.faults, "app", refusing)
    for remove in (lambda: s3_store.remove("a"), lambda: s3_store.remove_files(["a"])):
        with pytest.raises(StoreError, match=r"no permission to remove \S+/a \(AccessDenied: a bucket policy\)"):
            remove()


def answering(store: Store, replies: Iterable[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Lets S3 answer with `replies` without a server; returns the requests."""
    sent: list[dict[str, Any]] = []
    coming = iter(replies)

    def call(_: str, **request: Any) -> dict[str, Any]:
        sent.append(request)
        return next(coming)

    monkeypatch.setattr(store._fs, "call_s3", call)
    monkeypatch.setattr(remote, "_PAUSES_S", (0.0, 0.0))
    return sent


def refusal(*codes: str) -> dict[str, Any]:
    return {"Errors": [{"Key": f"x/{number}", "Code": code} for number, code in enumerate(codes)]}


def test_files_that_s3_is_too_busy_to_remove_are_removed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store, paths = Store("s3://sluice/x"), ["0", "1", "2"]
    sent = answering(store, [refusal("SlowDown", "NoSuchKey", "InternalError"), {}], monkeypatch)
    store.remove_files(paths)
    keys = [[one["Key"] for one in request["Delete"]["Objects"]] for request in sent]
    assert keys == [["x/0", "x/1", "x/2"], ["x/0", "x/2"]]
    sent = answering(store, [refusal("NoSuchKey", "SlowDown")] * 3, monkeypatch)
    with pytest.raises(TransientError, match=r"did not remove s3://sluice/x/1 .*SlowDown"):
        store.remove_files(paths)
    sent = answering(store, [refusal("SlowDown", "SlowDown", "AccessDenied")], monkeypatch)
    with pytest.raises(StoreError, match=r"no permission to remove s3://sluice/x/2 \(AccessDenied"):
        store.remove_files(paths)


def test_an_access_point_of_s3_is_a_root(monkeypatch: pytest.MonkeyPatch) -> None:
    point = "arn:aws:s3:us-east-1:123456789012:accesspoint/books"
    for root, prefix in ((f"s3://{point}", ""), (f"s3://{point}/x", "x/")):
        store = Store(root)
        listed = {"Contents": [{"Key": f"{prefix}a/b", "Size": 3}, {"Key": f"{prefix}a/", "Size": 0}]}
        sent = answering(store, [listed, listed, {}], monkeypatch)
        assert store.sizes("a") == {"b": 3}
        store.remove("a")
        assert [request["Bucket"] for request in sent] == [point] * 3
        assert sent[0]["Prefix"] == f"{prefix}a/"
        assert sent[2]["Delete"]["Objects"] == [{"Key": f"{prefix}a"}, {"Key": f"{prefix}a/b"}]


@pytest.mark.parametrize("store", ["folder", "memory", "hdfs", "webhdfs"], indirect=True)
def test_files_in_a_folder_that_cannot_be_listed_are_not_gone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = begun(store, 4).committed
    listing, errors = store._fs.ls, [requests.ConnectionError("no route"), OSError(errno.EIO, "a disk")]

    def failing(path: str, **options: Any) -> Any:
        if path.endswith("/0"):
            raise errors.pop(0)
        return listing(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(store._fs, "ls", failing)
        while errors:
            with pytest.raises((OSError, TransientError), match=r"no route|a disk"):
                Output(store, ADDRESS, "1" * 64)
        errors.append(FileNotFoundError("removed since its folder was listed"))
        assert {path.partition("/")[0] for path in store.sizes(ADDRESS.path)} == {"1", ".parts"}
    assert Output(store, ADDRESS, "1" * 64).committed == made


def test_a_record_that_vanishes_is_that_of_a_missing_part_or_of_a_committed_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path))
    output = begun(store, 3)
    read = store.read

    def removing(path: str) -> bytes:
        if path.endswith("part-00001.json"):
            store.remove(path)
        return read(path)

    monkeypatch.setattr(store, "read", removing)
    assert list(Output(store, ADDRESS, "1" * 64).committed) == ["part-00000", "part-00002"]
    begun(store, 3)
    store.publish(f"{ADDRESS.path}/.artifact.json", b"{}")
    with pytest.raises(SupersededError, match="demo/books@a: another attempt has already committed it"):
        Output(store, output.address, output.fingerprint)


@pytest.mark.parametrize("place", ["webhdfs"], indirect=True)
def test_a_late_duplicate_does_not_touch_a_file_of_hdfs_with_the_same_bytes(place: Place) -> None:
    store = place.store()

    def number_after(content: bytes) -> int:
        with store.write("a/x.bin") as file:
            file.write(content)
        assert store.read("a/x.bin") == content
        assert store.list("a", unfinished=True) == ["a/x.bin"]
        return int(store._fs.info(store._full("a/x.bin"))["fileId"])

    assert number_after(b"12") == number_after(b"12") < number_after(b"21") < number_after(b"2")


def test_a_full_cache_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> str:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("tasks.core.store.cached_copy", full)
    with pytest.raises(StoreError, match=r"full while writing .*Free space"):
        Store("memory://sluice").local("x", 1, "0" * 64)


def test_calls_are_made_a_bounded_number_ahead_and_end_in_order() -> None:
    begun: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            begun.append(number)
            yield number

    results = remote.concurrently(lambda number: number * number, numbers(), 3)
    assert next(results) == 0
    assert len(begun) == 6
    assert list(results) == [number * number for number in range(1, 100)]
