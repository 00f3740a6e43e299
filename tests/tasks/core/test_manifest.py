"""Manifests: a reader reads what it needs of the parts, and the identity of files does not depend on their division."""

import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest

from tasks.core import commit as committing
from tasks.core import manifest
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import adopt, clear, commit
from tasks.core.config import Config
from tasks.core.errors import InputError, SupersededError
from tasks.core.manifest import MANIFESTS, Parts, Total
from tasks.core.removal import remove_files
from tasks.core.stage import Output, Report
from tasks.core.store import Store

ADDRESS = ArtifactId("demo/words", "a")
REMOVAL = {".removed.json", ".removal/000000.claim", ".removal/0000.json"}
IN_MANIFEST = 3
PARTS = [f"part-{number:05d}-of-00010" for number in range(10)]


@pytest.fixture(autouse=True)
def small_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "PARTS_IN_MANIFEST", IN_MANIFEST)


def begun(folder: Path, names: Sequence[str] = PARTS, address: ArtifactId = ADDRESS, seconds: float = 1 / 3) -> Output:
    """Makes the parts of an artifact: three files for each name, and one for all."""
    output = Output(Store(str(folder)), address, "1" * 64)
    for number, name in enumerate(names):
        with output.part(name) as part:
            part.count_in(5)
            part.reject("short", number)
            part.count_out(5 - number % 5)
            part.reject("odd", number % 5 - number)
            part.metric("seconds", number * seconds)
            part.write(f"texts/{name}.bin", bytes(number), rows=number)
            part.write(f"keys/web-{number % 2}-{number}.bin", name.encode())
            with part.file(f"tokens/{name}.bin", rows=1, tokens=number) as file:
                file.write(b"1")
    with output.part("summary", conserved=False) as part:
        part.write("summary.json", b"{}")
    return output


def made(folder: Path, names: Sequence[str] = PARTS, address: ArtifactId = ADDRESS) -> Artifact:
    """Makes an artifact and opens it."""
    output = begun(folder, names, address)
    records = [output.committed[name] for name in sorted(output.committed)]
    commit(output, "toy", 1, Config(), (), Report())
    artifact = Artifact.open_at(output.store, address)
    assert list(artifact.parts) == records
    assert artifact.record.content == Total.of(entry for part in records for entry in part.files).digest
    return artifact


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The manifests that were read from the store."""
    seen: list[str] = []
    group = Parts._group

    def counted(parts: Parts, number: int) -> object:
        seen.append(parts._manifests[number].first)
        return group(parts, number)

    monkeypatch.setattr(Parts, "_group", counted)
    return seen


def test_what_is_known_of_folders_is_in_the_record_and_a_part_or_file_in_one_manifest(
    tmp_path: Path, read: list[str]
) -> None:
    artifact = made(tmp_path)
    records = list(artifact.parts)
    read.clear()
    texts = [entry for part in records for entry in part.files if entry.path.startswith("texts/")]
    assert len(artifact.parts) == 11
    assert artifact.total("texts/") == Total.of(texts)
    assert (artifact.total("texts/").files, artifact.total("texts/").bytes, artifact.total("texts/").rows) == (
        10,
        45,
        45,
    )
    assert artifact.total("summary.json").bytes == 2
    assert artifact.total().files == 31
    assert not read
    assert artifact.parts.part(PARTS[4]) == records[4]
    assert artifact.entry(f"tokens/{PARTS[8]}.bin") == records[8].files[2]
    assert read == [PARTS[3], PARTS[6]]
    read.clear()
    assert artifact.files("summary") == ["summary.json"]
    assert read == [PARTS[9]]
    assert artifact.parts.part("part-x") is None
    read.clear()
    assert artifact.parts.part(f"{PARTS[2]}x") is None, "between two manifests"
    assert Path(artifact.local("keys/web-1-3.bin")).read_bytes() == PARTS[3].encode()
    assert not read
    with pytest.raises(FileNotFoundError):
        artifact.entry("texts/part-x.bin")


def test_many_files_are_looked_up_in_one_pass_over_the_manifests_with_their_folders(
    tmp_path: Path, read: list[str]
) -> None:
    artifact = made(tmp_path)
    entries = {entry.path: entry for entry in artifact.entries()}
    read.clear()
    names = [*entries, "keys/none.bin", "none"]
    assert {entry.path: entry for entry in artifact.parts.lookup(names)} == entries
    assert sorted(read) == PARTS[::IN_MANIFEST]
    read.clear()
    few = ["summary.json", f"texts/{PARTS[5]}.bin", "none"]
    assert list(artifact.parts.lookup(few)) == [entries["summary.json"], entries[f"texts/{PARTS[5]}.bin"]]
    assert read == [PARTS[9], PARTS[3]]


def test_a_manifest_of_parts_with_many_files_has_fewer_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "FILES_IN_MANIFEST", 6)
    assert [one.parts for one in made(tmp_path / "six").record.manifests] == [2, 2, 2, 2, 2, 1]
    monkeypatch.setattr(committing, "FILES_IN_MANIFEST", 2)
    assert [one.parts for one in made(tmp_path / "two").record.manifests] == [1] * 11


@pytest.mark.parametrize("prefixes", [("texts/",), ("keys/web-1", "summary.json"), ("keys/web-0-", "keys/"), ("x/",)])
def test_what_a_stage_reads_in_part_is_identified_by_its_files(tmp_path: Path, prefixes: tuple[str, ...]) -> None:
    artifact = made(tmp_path)
    entries = [entry for part in artifact.parts for entry in part.files if entry.path.startswith(prefixes)]
    assert artifact.restricted_to(prefixes).ref("words").files == Total.of(entries).digest
    assert list(artifact.parts.entries(prefixes)) == entries


def test_equal_files_have_equal_content_whatever_part_and_manifest_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = made(tmp_path / "apart")
    monkeypatch.setattr(committing, "PARTS_IN_MANIFEST", 100)
    output = Output(Store(str(tmp_path / "one")), ADDRESS, "1" * 64)
    with output.part("all", conserved=False) as part:
        for path in reversed(apart.files()):
            part.write(path, apart.read(path))
    one = commit(output, "toy", 1, Config(), (), Report())
    assert (len(one.record.manifests), len(apart.record.manifests)) == (1, 4)
    assert one.record.content == apart.record.content
    texts = ("texts/",)
    assert one.restricted_to(texts).ref("words").files == apart.restricted_to(texts).ref("words").files
    other = made(tmp_path / "other", [*PARTS[:-1], "part-00009-of-00011"])
    assert other.record.content != apart.record.content


def test_a_worker_gets_the_parts_that_it_reads(tmp_path: Path) -> None:
    artifact = made(tmp_path)
    part = artifact.parts.part(PARTS[4])
    assert part
    limited: Artifact = pickle.loads(pickle.dumps(artifact.limited_to([part])))
    assert list(limited.parts) == [part]
    assert limited.files() == [entry.path for entry in part.files]
    assert limited.total("texts/").bytes == 4
    assert limited.parts.folders() == {folder: limited.total(folder) for folder in ("keys/", "texts/", "tokens/")}
    assert PARTS[5] not in str(pickle.dumps(limited))
    assert PARTS[4] not in str(pickle.dumps(artifact)), "the record alone"


def test_a_lost_commit_and_a_removal_leave_the_manifests_of_the_artifact(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    late = Output(store, ADDRESS, "1" * 64)
    artifact = made(tmp_path)
    with late.part("part-of-another-attempt", conserved=False) as part:
        part.write("texts/other.bin", b"2")
    assert commit(late, "toy", 1, Config(), (), Report()).record == artifact.record
    listed = {path for path in store.sizes(ADDRESS.path) if path.startswith(MANIFESTS)}
    assert listed == {one.path for one in artifact.record.manifests}
    clear(artifact, again=True)
    remove_files(artifact, "of a test", artifact.record.finished)
    assert set(store.sizes(ADDRESS.path)) == artifact.record_paths | REMOVAL
    assert list(Artifact.open_at(store, ADDRESS).parts) == list(artifact.parts)


def test_an_adopted_artifact_has_the_manifests_of_its_source_made_again_with_other_metrics(tmp_path: Path) -> None:
    source = made(tmp_path)
    adopted = adopt(source, ArtifactId("demo/words", "b"), ())
    assert adopted.record.manifests == source.record.manifests
    source.remove()
    again = commit(begun(tmp_path, seconds=2.0), "toy", 1, Config(), (), Report())
    assert again.record.manifests != source.record.manifests
    manifest._GROUPS._groups.clear()
    found = Artifact.open_at(source.store, adopted.address)
    assert list(found.parts) == list(again.parts)
    assert found.verify() == []


def test_the_folder_of_an_adopted_artifact_has_no_manifests_of_an_attempt_that_made_it(tmp_path: Path) -> None:
    source, address = made(tmp_path), ArtifactId("demo/words", "b")
    late = begun(tmp_path, address=address)
    adopted = adopt(source, address, ())
    assert commit(late, "toy", 1, Config(), (), Report()).record == adopted.record
    assert not source.store.names(f"{address.path}/{MANIFESTS}")


def test_an_attempt_whose_work_was_taken_over_writes_no_manifest(tmp_path: Path) -> None:
    output = begun(tmp_path)

    def taken_over() -> None:
        raise SupersededError("another attempt has it")

    output.fence = taken_over
    with pytest.raises(SupersededError):
        commit(output, "toy", 1, Config(), (), Report())
    assert not output.store.names(f"{ADDRESS.path}/{MANIFESTS}")


def test_half_a_manifest_of_an_earlier_attempt_is_replaced(tmp_path: Path) -> None:
    artifact = made(tmp_path)
    parts, first = list(artifact.parts), artifact.record.manifests[0]
    path = Path(artifact.store.url(f"{artifact.path}/{first.path}"))
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    assert manifest.write(artifact.store, artifact.path, parts[:IN_MANIFEST]) == first
    assert path.read_bytes() == whole


@pytest.mark.parametrize(("data", "state"), [(None, "missing"), (b"PAR1", "damaged")])
def test_a_lost_or_damaged_manifest_is_named(tmp_path: Path, data: bytes | None, state: str) -> None:
    artifact = made(tmp_path, address=ArtifactId("demo/words", state))
    path = Path(artifact.store.url(f"{artifact.path}/{artifact.record.manifests[1].path}"))
    path.unlink()
    if data:
        path.write_bytes(data)
    manifest._GROUPS._groups.clear()
    with pytest.raises(InputError, match=rf"{path.name} is {state}.*[Rr]estore"):
        list(artifact.parts)
