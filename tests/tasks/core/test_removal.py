"""Parts of another version by reference, and the removal of versions, file by file, at any time and killed anywhere."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import Artifact, ArtifactFolder, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import InputError, SluiceError
from tasks.core.removal import begin, is_complete, proceed, remove_files
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.core.version_index import VersionIndex

NOW = datetime(2026, 11, 30, tzinfo=UTC)
PARTS = {"1": "abc", "2": "abd", "3": "abe"}
"""Parts of each version; those that an earlier version has are taken over from the one before."""


def begun(store: Store, version: str, parts: str, before: Artifact | None = None) -> Output:
    """Makes the parts of a version that the one before does not have, and takes over the others."""
    output = Output(store, ArtifactId("demo/words", version), version * 64)
    for name in parts:
        if before and (record := before.parts.part(name)):
            output.carry(before, record)
            continue
        with output.part(name, conserved=False) as part:
            part.write(f"texts/{name}.bin", f"the text of {name}".encode(), rows=1)
            part.write(f"more/of-{name}.bin", name.encode())
    return output


def finished(output: Output) -> Artifact:
    return commit(output, "toy", 1, Config(), (), Report())


def grown(store: Store, versions: Sequence[str] = tuple(PARTS)) -> list[Artifact]:
    made: list[Artifact] = []
    for version in versions:
        made.append(finished(begun(store, version, PARTS[version], made[-1] if made else None)))
    return made


def names(store: Store, version: str) -> str:
    """Returns the parts whose files are in the folder of a version."""
    paths = store.sizes(f"demo/words/{version}")
    whole = [name for name in "abcde" if f"texts/{name}.bin" in paths and f"more/of-{name}.bin" in paths]
    assert len([path for path in paths if not path.startswith(".")]) == 2 * len(whole)
    return "".join(whole)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def test_a_part_of_another_version_is_read_where_it_is_and_the_artifact_is_that_of_a_copy(
    store: Store, tmp_path: Path
) -> None:
    first, _, third = grown(store)
    copied = finished(begun(Store(str(tmp_path / "copied")), "3", PARTS["3"]))
    assert third.record.content == copied.record.content
    assert third.total() == copied.total()
    assert third.files() == copied.files()
    assert [names(store, version) for version in PARTS] == ["abc", "d", "e"]
    a = [first.entry(path).bytes for name in "ab" for path in (f"texts/{name}.bin", f"more/of-{name}.bin")]
    assert third.record.elsewhere() == {"demo/words@1": sum(a)}, "where the bytes are, and not the version before"
    limited = third.limited_to([part for part in third.parts if part.name == "a"])
    opened = Artifact.open_at(store, third.address)
    for artifact in (opened, opened.folder, third, pickle.loads(pickle.dumps(third.folder))):
        assert isinstance(artifact, ArtifactFolder)
        assert [artifact.read(path) for path in third.files()] == [copied.read(path) for path in copied.files()]
        assert artifact.read_range("texts/a.bin", 4, 8) == b"text"
        assert Path(artifact.local("texts/a.bin")).read_bytes() == b"the text of a"
        assert artifact.at("texts/e.bin") == "demo/words/3/texts/e.bin"
        with pytest.raises(FileNotFoundError):
            artifact.open("texts/c.bin")
    assert limited.folder.read("more/of-a.bin") == b"a"
    assert opened.verify() == []
    assert VersionIndex(store, "demo").users(first.address) == ["demo/words@2", "demo/words@3"]


def test_a_file_is_removed_with_the_last_version_that_refers_to_it(store: Store) -> None:
    first, second, third = grown(store)
    remove_files(second, "old", NOW)
    remove_files(first, "old", NOW)
    assert [names(store, version) for version in PARTS] == ["ab", "", "e"], "c was in no other version"
    assert third.verify() == []
    removal = first.removal()
    assert removal
    assert (removal.files, {by: kept.files for by, kept in removal.kept.items()}) == (2, {"demo/words@3": 4})
    with pytest.raises(InputError, match="files of demo/words@1 were removed"):
        first.read("texts/c.bin")
    remove_files(third, "old", NOW)
    proceed(first)
    assert [names(store, version) for version in PARTS] == ["", "", ""]
    assert (removal := first.removal())
    assert (removal.round, removal.files, removal.kept) == (1, 6, {})


def test_a_missing_file_of_another_version_is_named_with_who_refers_to_it(store: Store) -> None:
    third = grown(store)[2]
    store.remove("demo/words/1/more/of-b.bin")
    said = r"demo/words@3 refers to more/of-b.bin of demo/words@1, where it is missing\. Restore \S+; or remove \S+/3,"
    for call in (third.verify, lambda: third.read("more/of-b.bin"), lambda: third.folder.local("more/of-b.bin")):
        with pytest.raises(InputError, match=said):
            call()


@contextmanager
def each_request(monkeypatch: pytest.MonkeyPatch, call: Callable[[], None]) -> Iterator[None]:
    """Calls a function before every request to the store."""
    inside = False

    def hooked(method: Callable[..., Any]) -> Callable[..., Any]:
        def request(*args: Any, **options: Any) -> Any:
            nonlocal inside
            if not inside:
                inside = True
                try:
                    call()
                finally:
                    inside = False
            return method(*args, **options)

        return request

    with monkeypatch.context() as patch:
        for name in ("read", "names", "sizes", "publish", "write", "exists", "_remove_batch"):
            patch.setattr(Store, name, hooked(getattr(Store, name)))
        yield


class Killed(BaseException):
    """As SIGKILL: nothing catches it."""


def test_a_removal_that_is_killed_at_any_request_goes_on_and_keeps_what_is_referred_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, at = "", 0
    while True:
        store = Store(str(tmp_path / str(at)))
        first, second, third = grown(store)
        remove_files(first, "old", NOW)
        requests = iter(range(10_000))

        def kill(requests: Iterator[int] = requests, last: int = at) -> None:
            if next(requests) == last:
                raise Killed

        def remove(versions: Sequence[Artifact] = (second, third), first: Artifact = first) -> None:
            for one in versions:
                begin(one, "old", NOW)
            for one in (*versions, first):
                proceed(one)

        try:
            with each_request(monkeypatch, kill):
                remove((second,))
        except Killed:
            assert third.verify() == []
            remove((second,))
        else:
            break
        assert third.verify() == []
        left = "".join(names(store, version) for version in PARTS)
        assert left == "abe"
        remove()
        assert not any(names(store, version) for version in PARTS)
        at += 1
    assert at > 15


@pytest.mark.parametrize("removed_before", [False, True], ids=["whole", "partly removed"])
def test_a_commit_and_a_removal_at_the_same_time_never_leave_a_version_without_a_file(
    removed_before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each request of one of the two, the other one runs as a whole."""
    outcomes = set()
    for inner in ("removal", "commit"):
        at = 0
        while True:
            store = Store(str(tmp_path / inner / str(at)))
            first, second = grown(store, ["1", "2"])
            if removed_before:
                remove_files(first, "old", NOW)
            output = begun(store, "3", PARTS["3"], second)

            def remove(first: Artifact = first, second: Artifact = second) -> None:
                for one in (first, second):
                    begin(one, "old", NOW)
                for one in (first, second):
                    proceed(one)

            def finish(output: Output = output) -> None:
                try:
                    finished(output)
                except SluiceError as error:
                    outcomes.add(type(error).__name__)

            requests = iter(range(10_000))

            def at_once(
                requests: Iterator[int] = requests,
                last: int = at,
                call: Callable[[], None] = remove if inner == "removal" else finish,
            ) -> None:
                if next(requests) == last:
                    call()

            with each_request(monkeypatch, at_once):
                (finish if inner == "removal" else remove)()
            if next(requests) <= at:
                break
            found = Artifact.find(store, output.address)
            if found:
                outcomes.add("committed")
                assert found.verify() == [], at
            remove()
            assert names(store, "1") == ("ab" if found else names(store, "1")), at
            assert (removal := first.removal())
            assert is_complete(removal)
            at += 1
    assert outcomes == {"committed", "InputError", "TransientError"}
