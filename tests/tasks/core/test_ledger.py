import random
from datetime import timedelta
from pathlib import Path

import pytest

from tasks.core.artifact import RECORD, Artifact, ArtifactId
from tasks.core.commit import adopt
from tasks.core.errors import InputError
from tasks.core.ledger import Ledger, newest, newest_first, versions_of
from tasks.core.store import Store
from tasks.core.version_index import INDEX, VERSIONS, enter, entered_newness, newness
from tests.conftest import run_stage_in
from tests.tasks.run.toy_stage import ToyConfig

TOY = "tests.tasks.run.toy_stage"


@pytest.fixture
def chain(tmp_path: Path) -> Store:
    """seeds -> pages -> documents, and pages -> index."""
    seeds = run_stage_in(tmp_path, TOY, ToyConfig(), kind="seeds")
    pages = run_stage_in(tmp_path, TOY, ToyConfig(rows=11), {"seeds": seeds}, kind="pages")
    run_stage_in(tmp_path, TOY, ToyConfig(rows=12), {"pages": pages}, kind="documents")
    run_stage_in(tmp_path, TOY, ToyConfig(rows=13), {"pages": pages}, kind="index")
    return Store(str(tmp_path))


def test_ancestors_are_all_direct_and_indirect_inputs_nearest_first(chain: Store) -> None:
    assert Ledger(chain).ancestors("test/documents@dev") == ["test/pages@dev", "test/seeds@dev"]


def test_descendants_are_all_artifacts_derived_from_an_artifact(chain: Store) -> None:
    assert set(Ledger(chain).descendants("test/seeds@dev")) == {
        "test/pages@dev",
        "test/documents@dev",
        "test/index@dev",
    }
    assert Ledger(chain).descendants("test/index@dev") == []


def test_an_adopted_artifact_and_its_source_refer_to_each_other(chain: Store) -> None:
    index = Artifact.open_at(chain, ArtifactId("test/index", "dev"))
    adopt(index, ArtifactId("test/index", "next"), index.record.inputs)
    ledger = Ledger(chain)
    assert ledger.descendants("test/index@dev") == ["test/index@next"]
    assert ledger.ancestors("test/index@next") == ["test/pages@dev", "test/index@dev", "test/seeds@dev"]
    assert ledger.drift("test/index@next") == []


def test_drift_names_the_changed_input(chain: Store) -> None:
    assert Ledger(chain).drift("test/documents@dev") == []
    chain.remove("test/pages/dev")
    run_stage_in(Path(chain.root), TOY, ToyConfig(rows=20), kind="pages")
    assert Ledger(chain).drift("test/documents@dev") == ["pages: test/pages@dev has other bytes than when it was read"]


def test_a_missing_artifact_is_named(chain: Store) -> None:
    with pytest.raises(InputError, match="no artifact test/nothing@dev"):
        Ledger(chain).ancestors("test/nothing@dev")


def test_an_unreadable_record_hides_no_other_artifact(chain: Store) -> None:
    (Path(chain.root) / "test/index/dev" / RECORD).write_text("{")
    ledger = Ledger(chain)
    assert len(list(ledger)) == 3
    with pytest.raises(
        InputError, match=r"test/index/dev/.*is not a readable record.*run the stage that makes it again"
    ):
        ledger.find("test/index@dev")


@pytest.mark.parametrize("seed", range(4))
def test_the_newest_version_is_that_of_all_records_whatever_the_index_has(chain: Store, seed: int) -> None:
    """Some versions are made again, copied past the index, removed, or were killed before their record."""
    draw, made = random.Random(seed), Artifact.open_at(chain, ArtifactId("test/seeds", "dev")).record
    for _ in range(40):
        version = f"v{draw.randrange(12)}"
        path = f"test/seeds/{version}"
        chain.remove(path)
        finished = made.finished + timedelta(seconds=draw.randrange(9))
        versions = {VERSIONS: float(draw.randrange(3))} if draw.random() < 0.7 else {}
        record = made.model_copy(
            update={"artifact": f"test/seeds@{version}", "metrics": versions, "finished": finished}
        )
        how = draw.choice(("made", "made", "made", "copied", "removed", "killed"))
        if how in ("made", "killed"):
            enter(chain, record, finished)
        if how in ("made", "copied") and not (how == "copied" and version in entered_newness(chain, "test/seeds")):
            chain.publish(f"{path}/{RECORD}", record.model_dump_json().encode())
        expected = sorted(versions_of(chain, "test/seeds"), key=lambda one: newness(one.record), reverse=True)
        assert [one.address for one in newest_first(chain, "test/seeds")] == [one.address for one in expected]
        but = expected[0].address.version
        assert (before := newest(chain, "test/seeds", but=but)) is None or before.address == expected[1].address
    chain.remove(INDEX)
    assert [one.address for one in newest_first(chain, "test/seeds")] == [one.address for one in expected]


def test_a_changed_byte_is_found_by_verifying(chain: Store) -> None:
    artifact = Artifact.open_at(chain, ArtifactId("test/pages", "dev"))
    assert artifact.verify() == []
    wrong = artifact.files("squares/")[0]
    with chain.write(f"{artifact.address.path}/{wrong}") as file:
        file.write(b"other")
    assert artifact.verify() == [wrong]
