"""Contract of the source version: a derived version can be the next source; reuse follows records."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import RECORD, Artifact, ArtifactId, InputRef
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.warc.archive import MANIFEST, MANIFEST_SCHEMA
from tasks.run.lineage import artifacts_of_version
from tasks.run.recipe import Recipe
from tasks.run.result import StageResult
from tasks.run.runner import open_store, run_stage
from tasks.run.shell import main
from tasks.run.tracking import TrackingContext
from tests.tasks.run.test_changed_limit import STAGES, recipe, run

__all__ = ["recipe"]

MIN_WORDS = "consolidate.limits.gopher_quality.min_words"
FULL_LENGTH = "annotate.settings.prose_score.full_length"
SHARED = STAGES[:-1]


def one(recipe: Recipe, stage: str, version: str, source_version: str | None = None) -> StageResult:
    tracking = TrackingContext("", recipe.name)
    return run_stage(recipe, stage, version=version, source_version=source_version, tracking=tracking)


def adopted_from(recipe: Recipe, address: str) -> str:
    return Artifact.open_at(open_store(recipe), ArtifactId.parse(address)).record.adopted_from


def test_a_version_with_a_source_version_can_be_the_next_source_version(recipe: Recipe) -> None:
    first = run(recipe, "1")
    for number, source in ((2, "1"), (3, "2"), (4, "3")):
        made = run(recipe.override({MIN_WORDS: number}), str(number), source)
        assert [stage for stage in STAGES if not made[stage].skipped] == ["consolidate"]
        assert {made[stage].content for stage in SHARED} == {first[stage].content for stage in SHARED}
    fourth = Artifact.open_at(open_store(recipe), ArtifactId("demo/extracted", "4"))
    assert fourth.record.adopted_from == "demo/extracted@1"
    assert not [path for path in fourth.store.list(fourth.address.path) if not path.endswith(RECORD)]


def test_new_measurements_are_read_from_the_version_and_the_rest_from_its_sources(recipe: Recipe) -> None:
    run(recipe, "1")
    longer = recipe.override({FULL_LENGTH: 9000})
    run(longer, "2", "1")
    third = run(longer.override({MIN_WORDS: 5}), "3", "2")
    assert {stage: adopted_from(recipe, result.address) for stage, result in third.items()} == {
        "extract": "demo/extracted@1",
        "annotate": "demo/attributes@2",
        "dedup": "demo/duplicates@2",
        "consolidate": "",
    }
    fourth = run(longer.override({FULL_LENGTH: 8000}), "4", "3")
    assert [stage for stage in STAGES if not fourth[stage].skipped] == ["annotate", "dedup", "consolidate"]


def test_a_source_version_without_documents_provides_its_artifacts(recipe: Recipe) -> None:
    run(recipe, "1")
    longer = recipe.override({FULL_LENGTH: 9000})
    one(longer, "annotate", "2", "1")
    assert adopted_from(recipe, one(longer, "extract", "3", "2").address) == "demo/extracted@1"
    assert adopted_from(recipe, one(longer, "annotate", "3", "2").address) == "demo/attributes@2"
    assert not one(longer, "dedup", "3", "2").skipped


def test_a_crawl_is_found_through_artifacts_derived_from_it(recipe: Recipe) -> None:
    crawled = recipe.override({"crawl.enabled": True})
    captures(open_store(recipe), "1")
    run(crawled, "1")
    run(crawled.override({MIN_WORDS: 2}), "2", "1")
    assert adopted_from(recipe, one(crawled, "extract", "3", "2").address) == "demo/extracted@1"
    made = one(crawled.override({"extract.min_chars": 2}), "extract", "4", "2")
    assert not made.skipped
    inputs = Artifact.open_at(open_store(recipe), ArtifactId("demo/extracted", "4")).record.inputs
    assert "demo/warc@1" in {ref.address for ref in inputs}


def captures(store: Store, version: str) -> Artifact:
    """Puts a `warc` artifact without files into the store in the layout of `publish`."""
    output = Output(store, ArtifactId("demo/warc", version), version)
    with output.part("warc", conserved=False) as part, part.file(MANIFEST) as file:
        pq.write_table(MANIFEST_SCHEMA.empty_table(), file)
    return commit(output, "publish", 1, Config(), (), Report())


def test_artifacts_that_no_record_names_are_not_read(recipe: Recipe) -> None:
    run(recipe, "1")
    one(recipe.override({MIN_WORDS: 2}), "consolidate", "2", "1")
    store = open_store(recipe)
    shutil.rmtree(Path(store.root) / "demo" / "extracted" / "1")
    with pytest.raises(InputError, match=r"needs demo/extracted@3, and 2 has none.*[Rr]un the stage extract"):
        one(recipe, "annotate", "3", "2")
    one(recipe.override({"extract.min_chars": 2}), "extract", "1")  # the address now has another artifact
    with pytest.raises(InputError, match="and 2 has none"):
        one(recipe, "annotate", "3", "2")
    assert not one(recipe, "extract", "3", "2").skipped


def test_an_adopted_artifact_without_files_is_named_and_recomputed_by_a_new_version(recipe: Recipe) -> None:
    run(recipe, "1")
    run(recipe.override({MIN_WORDS: 2}), "2", "1")
    shutil.rmtree(Path(open_store(recipe).root) / "demo" / "extracted" / "1")
    with pytest.raises(
        InputError, match=r"demo/extracted@2 uses the files of demo/extracted@1, which is gone.*Restore it"
    ):
        one(recipe, "annotate", "2")
    made = one(recipe, "extract", "3", "2")
    assert (made.skipped, adopted_from(recipe, made.address)) == (False, "")


def test_inconsistent_artifacts_of_a_version_cannot_be_a_source(recipe: Recipe) -> None:
    run(recipe, "1")
    run(recipe.override({"extract.min_chars": 2}), "2")
    store = open_store(recipe)
    for kind, version in (("attributes", "1"), ("duplicates", "2")):
        copy(store, Artifact.open_at(store, ArtifactId(f"demo/{kind}", version)), "3")
    said = (
        r"of demo at 3 were made from different extracted: demo/extracted@1, demo/extracted@2.*one of these as source"
    )
    with pytest.raises(InputError, match=said):
        one(recipe, "annotate", "4", "3")
    assert adopted_from(recipe, one(recipe, "extract", "4", "3").address) == "demo/extracted@1"


def copy(store: Store, artifact: Artifact, version: str) -> None:
    """Puts a copy of an artifact at another version."""
    folder = Path(store.root) / artifact.address.name
    shutil.copytree(folder / artifact.address.version, folder / version)
    record = json.loads((folder / version / RECORD).read_text())
    record["artifact"] = f"{artifact.address.name}@{version}"
    (folder / version / RECORD).write_text(json.dumps(record))


@pytest.mark.parametrize(("role", "found"), [("ranks", ["demo/ranks@1"]), ("previous", [])])
def test_the_previous_cycle_is_not_part_of_a_version(recipe: Recipe, role: str, found: list[str]) -> None:
    store = open_store(recipe)
    ranks = written(store, "demo/ranks", "1", "rank").record
    ref = InputRef(role=role, address=ranks.artifact, fingerprint=ranks.fingerprint, content=ranks.content)
    written(store, "demo/fetchlist/p0", "2", "generate", ref)
    fetched = Artifact.open_at(store, ArtifactId("demo/fetchlist/p0", "2")).record
    ref = InputRef(role="fetchlist", address=fetched.artifact, fingerprint="2", content=fetched.content)
    written(store, "demo/crawldb/p0", "2", "update", ref)
    ref = InputRef(role="crawldb", address="demo/crawldb/p0@2", fingerprint="2", content=fetched.content)
    written(store, "demo/warc", "2", "publish", ref)
    assert [str(artifact.address) for artifact in artifacts_of_version(store, "demo", "ranks", "2")] == found


def written(store: Store, name: str, version: str, stage: str, *inputs: InputRef) -> Artifact:
    """Puts an artifact of one small file into the store."""
    output = Output(store, ArtifactId(name, version), version)
    with output.part("one", conserved=False) as part, part.file("x") as file:
        file.write(b"x")
    return commit(output, stage, 1, Config(), inputs, Report())


def test_what_if_works_for_a_version_that_kept_no_document(recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    run(recipe, "1")
    run(recipe.override({MIN_WORDS: 2}), "2", "1")
    with pytest.raises(InputError, match=r"none of .* is left"):
        run(recipe.override({MIN_WORDS: 500}), "3", "2")
    command = ["what-if", "--recipe", recipe.text, "--set", f"{MIN_WORDS}=500", "--version"]
    assert main([*command, "3"]) == 0
    assert "before: the settings of the recipe" in capsys.readouterr().out
    assert main([*command, "3", "--source-version", "2"]) == 0
    printed = capsys.readouterr().out
    assert "before: the settings of demo/documents@2" in printed
    assert "0 documents would be kept, 8 would be dropped" in printed
    assert main([*command, "4"]) == 2
    assert "no artifact demo/extracted@4" in (printed := capsys.readouterr().err)
    assert "--source-version" in printed
    assert main([*command, "4", "--source-version", "nope"]) == 2
    assert "and nope has none" in capsys.readouterr().err
