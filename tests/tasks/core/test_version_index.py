"""The index of a store: complete after any kill, made again when it is missing, and a few requests for any store."""

import shutil
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import adopt
from tasks.core.store import Store
from tasks.core.version_index import INDEX, VersionIndex
from tests.conftest import run_stage_in
from tests.s3_server import S3Server
from tests.tasks.run.toy_stage import ToyConfig

TOY = "tests.tasks.run.toy_stage"


def made(folder: Path | str, kind: str, version: str, source: Artifact | None = None, rows: int = 4) -> Artifact:
    inputs = {"numbers": source} if source else None
    return run_stage_in(folder, TOY, ToyConfig(rows=rows), inputs, kind=kind, version=version)


def addresses(index: VersionIndex, version: str) -> list[str]:
    return [str(one.address) for one in index.artifacts(version)]


def filled(folder: Path | str) -> VersionIndex:
    """Versions 1, 2 and dev of a recipe `test`; artifacts of 2 were made and adopted from those of 1."""
    source = made(folder, "source", "1")
    made(folder, "measured/pii", "1", source)
    made(folder, "numbers", "2", source)
    adopt(source, ArtifactId("test/source", "2"), ())
    made(folder, "source", "dev", rows=5)
    return VersionIndex(source.store, "test")


def test_versions_are_listed_newest_first_with_their_artifacts(tmp_path: Path) -> None:
    index = filled(tmp_path)
    assert index.versions() == ["dev", "2", "1"]
    assert addresses(index, "1") == ["test/source@1", "test/measured/pii@1"]
    assert set(addresses(index, "2")) == {"test/source@2", "test/numbers@2"}
    assert index.artifacts("unknown") == []
    assert VersionIndex(index.store, "other").versions() == []


def test_users_of_an_artifact_are_those_of_its_own_and_of_other_versions(tmp_path: Path) -> None:
    index = filled(tmp_path)
    users = ["test/measured/pii@1", "test/numbers@2", "test/source@2"]
    assert index.users(ArtifactId("test/source", "1")) == users
    assert index.users(ArtifactId("test/source", "1"), 1) == users[:2], "one of its own version, one of another"
    assert index.users(ArtifactId("test/numbers", "2")) == []


def test_users_of_a_version_are_artifacts_of_others(tmp_path: Path) -> None:
    index = filled(tmp_path)
    assert set(index.users_of_version("1")) == {"test/numbers@2", "test/source@2"}
    assert list(index.users_of_version("2")) == []


def test_an_artifact_of_another_recipe_is_a_user(tmp_path: Path) -> None:
    source = made(tmp_path, "source", "1")
    numbers = made(tmp_path, "numbers", "1", source)
    adopt(numbers, ArtifactId("other/copies", "1"), numbers.record.inputs)
    assert "other/copies@1" in VersionIndex(source.store, "test").users(source.address)


@pytest.mark.parametrize("lost", [INDEX, f"{INDEX}/test/whole"])
def test_a_missing_or_unfinished_index_is_made_again(tmp_path: Path, lost: str) -> None:
    index = filled(tmp_path)
    before = (index.versions(), [addresses(index, version) for version in index.versions()])
    if (tmp_path / lost).is_dir():
        shutil.rmtree(tmp_path / lost)
    else:
        (tmp_path / lost).unlink()
    again = VersionIndex(index.store, "test")
    assert set(again.versions()) == set(before[0])
    assert [addresses(again, version) for version in before[0]] == before[1]
    assert len(again.users(ArtifactId("test/source", "1"))) == 3


def test_a_process_killed_before_the_record_leaves_no_artifact_in_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = Store.publish

    def killed(store: Store, path: str, data: bytes) -> None:
        if path.endswith("/.artifact.json"):
            raise KeyboardInterrupt
        publish(store, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path, "source", "1")
    index = VersionIndex(Store(str(tmp_path)), "test")
    assert index.artifacts("1") == []
    made(tmp_path, "source", "1")
    assert addresses(index, "1") == ["test/source@1"]


def test_a_removed_or_unreadable_artifact_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = filled(tmp_path)
    Artifact.open_at(index.store, ArtifactId("test/numbers", "2")).remove()
    (tmp_path / "test" / "measured" / "pii" / "1" / ".artifact.json").write_text("{")
    assert addresses(index, "2") == ["test/source@2"]
    assert addresses(index, "1") == ["test/source@1"]
    assert "measured/pii" in caplog.text
    assert index.users(ArtifactId("test/source", "1")) == ["test/source@2"]


def test_on_an_object_store_a_version_costs_a_request_for_each_of_its_artifacts(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = filled(f"s3://{s3.buckets[0]}/indexed")
    store = Store(index.store.root)
    monkeypatch.setattr(Store, "list", lambda *_: pytest.fail("the requests of a listing grow with the store"))
    fresh = VersionIndex(store, "test")
    assert fresh.versions() == ["dev", "2", "1"]
    assert store.requests == 3
    assert len(fresh.artifacts("1")) == 2
    assert store.requests == 6
