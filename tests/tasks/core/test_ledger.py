from pathlib import Path

import pytest

from tasks.core.artifact import RECORD, Artifact, ArtifactId
from tasks.core.commit import adopt
from tasks.core.errors import InputError
from tasks.core.ledger import Ledger, newest
from tasks.core.store import Store
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


def test_the_newest_artifact_of_a_name_can_exclude_a_version(chain: Store) -> None:
    run_stage_in(Path(chain.root), TOY, ToyConfig(), kind="seeds", version="later")
    latest = newest(chain, "test/seeds")
    before = newest(chain, "test/seeds", but="later")
    assert latest
    assert before
    assert (latest.address.version, before.address.version) == ("later", "dev")


def test_a_changed_byte_is_found_by_verifying(chain: Store) -> None:
    artifact = Artifact.open_at(chain, ArtifactId("test/pages", "dev"))
    assert artifact.verify() == []
    wrong = artifact.files("squares/")[0]
    with chain.write(f"{artifact.address.path}/{wrong}") as file:
        file.write(b"other")
    assert artifact.verify() == [wrong]
