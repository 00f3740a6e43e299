"""Parts of another version by reference, and the removal of versions, file by file, at any time and killed anywhere."""

import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import Artifact, ArtifactFolder, ArtifactId
from tasks.core.commit import adopt, clear, commit
from tasks.core.config import Config
from tasks.core.errors import DriftError, InputError, SluiceError, TransientError
from tasks.core.removal import begin, is_complete, proceed, remove_files
from tasks.core.removal.adoption import ADOPTING
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


def before_request(
    monkeypatch: pytest.MonkeyPatch, at: int, calls: Sequence[Callable[[], None]], outer: Callable[[], None]
) -> bool:
    """Runs `outer`, and `calls` as a whole before its request number `at`; returns whether it has so many."""
    requests = iter(range(10_000))

    def at_once() -> None:
        if next(requests) == at:
            for call in calls:
                call()

    with each_request(monkeypatch, at_once):
        outer()
    return next(requests) > at


def remove(*versions: Artifact) -> None:
    """Removes versions as one run of `gc` does, and what stayed of those that were removed before."""
    for one in versions:
        begin(one, "old", NOW)
    for one in versions:
        proceed(one)


@pytest.fixture
def copies(tmp_path: Path) -> Callable[[], Store]:
    """Returns copies of a store with two versions."""
    grown(Store(str(tmp_path / "grown")), ["1", "2"])
    number = iter(range(10_000))

    def copy() -> Store:
        folder = tmp_path / str(next(number))
        shutil.copytree(tmp_path / "grown", folder)
        return Store(str(folder))

    return copy


def version(store: Store, version: str) -> Artifact:
    return Artifact.open_at(store, ArtifactId("demo/words", version))


def test_a_removal_that_is_killed_at_any_request_goes_on_and_keeps_what_is_referred_to(
    copies: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise Killed

    for at in range(40):
        store = copies()
        remove(version(store, "1"))
        third = finished(begun(store, "3", PARTS["3"], version(store, "2")))
        removing = partial(remove, version(store, "2"), version(store, "1"))
        try:
            if not before_request(monkeypatch, at, [die], removing):
                break
        except Killed:
            assert third.verify() == []
        removing()
        assert third.verify() == []
        assert [names(store, version) for version in PARTS] == ["ab", "", "e"]
        remove(third, version(store, "1"))
        assert not any(names(store, version) for version in PARTS)
    assert 15 < at < 39


@pytest.mark.parametrize("partly", [False, True], ids=["whole", "partly removed"])
@pytest.mark.parametrize("inner", ["removal", "commit", "commit, removal, commit"])
def test_a_commit_and_removals_at_the_same_time_never_leave_a_version_without_a_file(
    partly: bool, inner: str, copies: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each request of a commit a removal runs as a whole, or before each of a removal a commit.

    A commit that is refused has said what it refers to, so a second removal can let it succeed before the first one
    goes on.
    """
    outcomes = set()

    def finish(output: Output) -> None:
        try:
            finished(output)
        except SluiceError as error:
            outcomes.add(type(error).__name__)

    for at in range(60):
        store = copies()
        first, second = version(store, "1"), version(store, "2")
        if partly:
            remove(first)
        output = begun(store, "3", PARTS["3"], second)
        committing, removing = partial(finish, output), partial(remove, first, second)
        calls = [{"removal": removing, "commit": committing}[name] for name in inner.split(", ")]
        if not before_request(monkeypatch, at, calls, committing if inner == "removal" else removing):
            break
        if found := Artifact.find(store, output.address):
            outcomes.add("committed")
            assert found.verify() == []
        remove(first)
        assert not found or names(store, "1") == "ab"
        assert (removal := first.removal())
        assert is_complete(removal)
    assert 5 < at < 59
    assert {"committed", "InputError" if inner == "removal" else "TransientError"} <= outcomes


@pytest.mark.parametrize(
    "inner", ["removal", "adoption", "removal, adoption, removal", "adoption, removal, adoption", "kill"]
)
def test_an_adoption_and_removals_at_the_same_time_leave_no_adopter_without_files_and_no_removal_of_files_in_use(
    inner: str, copies: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each request of an adoption removals run as a whole, or it is killed, or before each of a removal it runs.

    The removals were decided before the adoption. One that is decided with it removes the files of both.
    """
    outcomes, address = set(), ArtifactId("demo/words", "adopted")

    def adopting(source: Artifact) -> None:
        try:
            adopt(source, address, ())
            outcomes.add("adopted")
        except TransientError:
            outcomes.add("refused")

    def removing(source: Artifact) -> None:
        with suppress(InputError):  # it is adopted
            remove(source)

    def die(_: Artifact) -> None:
        raise Killed

    for at in range(40):
        store = copies()
        second = version(store, "2")
        each = {"removal": removing, "adoption": adopting, "kill": die}
        calls = [partial(each[name], second) for name in inner.split(", ")]
        outer = partial(removing if inner.startswith("adoption") else adopting, second)
        try:
            if not before_request(monkeypatch, at, calls, outer):
                break
        except Killed:
            removing(second)
            if complete := Artifact.find(store, address):
                clear(complete, again=True)
            else:
                adopting(second)
        removing(second)
        found = Artifact.find(store, address)
        if found is None:
            removing(second)
        assert (names(store, "2"), second.removal() is None) == (("d", True) if found else ("", False))
        assert not found or found.verify() == []
        assert not store.exists(f"{address.path}/{ADOPTING}")
        begin(second, "old", NOW, [address])
        proceed(second)
        assert names(store, "2") == ""
        assert not found or found.removal()
    assert 5 < at < 39
    assert outcomes == {"adopted", "refused"}


def test_an_adopter_that_was_removed_or_made_otherwise_keeps_no_files(store: Store) -> None:
    (first,) = grown(store, ["1"])
    for other in ("2", "3"):
        adopt(first, ArtifactId("demo/words", other), ())
        shutil.rmtree(Path(store.root, f"demo/words/{other}"))
    finished(begun(store, "3", "abc"))
    remove(first)
    assert (names(store, "1"), names(store, "3")) == ("", "abc")


def test_what_the_records_refer_to_stays_without_an_index_of_versions(store: Store) -> None:
    first, _, third = grown(store)
    store.remove(".index")
    begin(first, "old", NOW)
    proceed(first, known=[third.address])
    assert names(store, "1") == "ab"
    assert third.verify() == []


def test_parts_are_taken_over_only_from_versions_of_the_same_artifact(store: Store) -> None:
    (first,) = grown(store, ["1"])
    output = Output(store, ArtifactId("demo/other", "2"), "2" * 64)
    with pytest.raises(ValueError, match="demo/words/1 is no version of demo/other in this store"):
        output.carry(first, next(iter(first.parts)))


def test_a_version_that_is_made_again_takes_over_none_of_its_own_files_and_keeps_what_others_refer_to(
    store: Store,
) -> None:
    first, second, third = grown(store)
    shutil.rmtree(Path(store.root, "demo/words/1"))
    with pytest.raises(InputError, match="refers to files of demo/words@1, which was removed and is made again"):
        begun(store, "1", "abc", third)
    with pytest.raises(InputError, match="whose files were removed in the meantime, such as"):
        finished(begun(store, "4", "abcde", third))
    other = begun(store, "1", "ac")
    with other.part("b", conserved=False) as part:
        part.write("texts/b.bin", b"other bytes", rows=1)
    with pytest.raises(DriftError, match="refers to files of an earlier demo/words@1, which has other bytes now"):
        finished(other)
    shutil.rmtree(Path(store.root, "demo/words/1"))
    assert finished(begun(store, "1", "abc")).record.content == first.record.content
    assert third.verify() == second.verify() == []


def test_what_a_removal_has_left_of_a_version_does_not_decide_about_one_that_is_made_again(store: Store) -> None:
    first = finished(begun(store, "1", "abc"))
    remove_files(first, "old", NOW)
    Path(store.root, "demo/words/1/.artifact.json").unlink()
    again = finished(begun(store, "1", "abc"))
    assert again.removal() is None
    second = finished(begun(store, "2", "abd", again))
    remove_files(again, "old", NOW)
    assert second.verify() == []


def test_a_version_that_is_removed_no_longer_counts_as_the_one_that_keeps_files(store: Store) -> None:
    first, second, _third = grown(store)
    remove_files(first, "old", NOW)
    remove_files(second, "old", NOW)
    proceed(first)
    removal = first.removal()
    assert removal
    assert set(removal.kept) == {"demo/words@3"}
