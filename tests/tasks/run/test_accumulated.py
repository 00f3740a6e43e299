"""A corpus that grows: each version encodes only its new documents, and trains on those of all versions."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.engine import Engine
from tasks.core.errors import InputError, RecipeError
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.formats.tokens import origins
from tasks.formats.tokens.index import DocumentIndex
from tasks.formats.tokens.origins import leave_out, superseded_marks
from tasks.formats.tokens.shard import ShardSet
from tasks.run.place import Retention
from tasks.run.recipe import Recipe
from tasks.run.retention import collect, survey
from tasks.run.runner import StageResult, open_store, run_stage
from tasks.run.trace.answer import PageTrace
from tasks.run.trace.trace import trace
from tasks.run.tracking import TrackingContext
from tasks.trainer.config import ReplayConfig
from tasks.trainer.spec import _replay
from tests.tasks.run.test_adopted import REFINE, small_recipe
from tests.tasks.trainer.small_run import small_config

TOKENS = ("tokenizer", "encode", "pack")
CHANGED = 4
STAGES = (*REFINE, "dedup_index", *TOKENS, "train")
GROWING: dict[str, Any] = {
    "dedup_index.enabled": True,
    "encode.accumulate": True,
    "train.steps": 6,
    "canary.current": {},
}


def run(recipe: Recipe, version: str, stages: tuple[str, ...] = STAGES) -> dict[str, StageResult]:
    context = TrackingContext("", recipe.name)
    return {stage: run_stage(recipe, stage, version=version, tracking=context) for stage in stages}


def add(folder: Path, version: str, files: int = 6) -> None:
    for number in range(files):
        words = " ".join(f"new{version}x{number}x{place}" for place in range(90))
        (folder / "books" / f"{version}-{number}.txt").write_text(f"the and of {words}.\n")


def artifact(recipe: Recipe, kind: str, version: str) -> Artifact:
    return Artifact.open_at(open_store(recipe), ArtifactId(f"{recipe.name}/{kind}", version))


def tokens_of(recipe: Recipe, version: str) -> dict[str, list[int]]:
    """Tokens of every document of a version's shards, by id."""
    shards = ShardSet.open(artifact(recipe, "shards", version))
    found = {}
    for shard in map(shards.shard, shards.all_names):
        lengths = shard.lengths.tolist()
        found |= {shard.uid(row).hex(): shard.slice(row, 0, length).tolist() for row, length in enumerate(lengths)}
    return found


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """Three versions: the second has six new files, the third six more, and four that have changed."""
    folder = tmp_path_factory.mktemp("grown")
    recipe = small_recipe(folder).override({**GROWING, "makes": ["documents", "tokens", "checkpoint"]})
    run(recipe, "1")
    add(folder, "2")
    run(recipe, "2")
    add(folder, "3")
    for number in range(CHANGED):
        words = " ".join(f"edit{number}x{place}" for place in range(90))
        (folder / "books" / f"2-{number}.txt").write_text(f"the and of {words}.\n")
    run(recipe, "3")
    return recipe


def test_earlier_tokens_are_taken_over_and_only_new_documents_are_encoded(grown: Recipe) -> None:
    first, second, third = (tokens_of(grown, version) for version in ("1", "2", "3"))
    assert first.items() < second.items() < third.items()
    assert (len(second) - len(first), len(third) - len(second)) == (6, 6 + CHANGED)
    kept = artifact(grown, "documents", "3").record.metrics["kept"]
    assert artifact(grown, "shards", "3").record.rejected["encoded_before"] >= kept - 6 - CHANGED
    assert len({artifact(grown, "tokenizer", version).read("tokenizer.json") for version in ("1", "2", "3")}) == 1
    for path in artifact(grown, "shards", "1").files("shards/"):
        assert {artifact(grown, "shards", version).at(path) for version in ("1", "2", "3")} == {
            f"{grown.name}/shards/1/{path}"
        }
    assert artifact(grown, "shards", "3").record.elsewhere().keys() == {f"{grown.name}/shards@{one}" for one in "12"}


def test_a_document_of_an_earlier_version_is_traced_to_its_capture_and_the_new_steps(grown: Recipe) -> None:
    store = open_store(grown)
    index = DocumentIndex(artifact(grown, "shards", "3"))
    assert len(index.parts) == 3 * grown.field("extract.parts")
    read = 0
    for table in index.entries():
        for uid, url in zip(table.column("doc_uid").to_pylist(), table.column("url").to_pylist(), strict=True):
            found = trace(store, grown.name, "3", uid.hex())
            assert isinstance(found, PageTrace)
            document = next(one for one in found.documents if one.id == uid.hex())
            assert (document.fate, document.url) == ("kept", url)
            assert document.capture is not None
            assert document.capture.url == url
            read += bool(document.reading and document.reading.steps)
    assert read > 12  # more documents than one version has


@pytest.mark.parametrize("range_rows", [1 << 22, 7])
def test_the_earlier_documents_of_changed_files_are_not_trained_on(
    grown: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, range_rows: int
) -> None:
    monkeypatch.setattr(origins, "_RANGE_ROWS", range_rows)
    before, after = (artifact(grown, "shards", version) for version in ("2", "3"))
    output = Output(Store(str(tmp_path)), ArtifactId("test/plan", "3"), "by-hand")
    marks = superseded_marks(after, output, Engine())
    rows = {shard: of_shard.read() for shard, of_shard in marks.items()}
    leave_out(output)
    assert not output.committed
    assert sum(map(sum, rows.values())) == CHANGED
    for number in range(CHANGED):
        url = f"file://books/2-{number}.txt"
        (old,) = DocumentIndex(before).by_url(url)
        assert rows[old.shard][old.row] == 1
        assert len(DocumentIndex(after).by_url(url)) == 2
        found = trace(open_store(grown), grown.name, "3", old.uid.hex())
        assert isinstance(found, PageTrace)
        (document,) = (one for one in found.documents if one.id == old.uid.hex())
        assert not (document.reading and document.reading.steps)
    trained = sum(sum(of_shard) for name, of_shard in rows.items() if "-train-" in name)
    assert artifact(grown, "plan", "3").record.rejected.get("superseded", 0) == trained > 0


def test_what_the_traces_of_the_newest_version_show_is_not_removed(grown: Recipe, tmp_path: Path) -> None:
    shutil.copytree(open_store(grown).root, tmp_path / "store")
    store = Store(str(tmp_path / "store"))
    policy = Retention(versions=1, grace_days=0)
    stored = Artifact.open_at(store, ArtifactId(f"{grown.name}/shards", "1"))
    removed = collect(store, grown.name, policy).removed
    assert f"{grown.name}/shards@1" in removed
    of_documents = {entry.path for part in stored.parts if part.name.startswith("v") for entry in part.files}
    assert set(store.sizes(stored.path)) & set(stored.files()) == of_documents, "without the sums of all parts"
    assert Artifact.open_at(store, ArtifactId(f"{grown.name}/shards", "3")).verify() == []
    held = {one.artifact: one.needed for one in survey(store, grown.name, policy).holdings if one.stays}
    assert held[f"{grown.name}/shards@1"] == f"{grown.name}/shards@3 refers to them"
    assert not [address for address in removed if address.startswith(f"{grown.name}/documents@")]
    for table in DocumentIndex(Artifact.open_at(store, ArtifactId(f"{grown.name}/shards", "3"))).entries():
        for uid in table.column("doc_uid").to_pylist()[:2]:
            found = trace(store, grown.name, "3", uid.hex())
            assert isinstance(found, PageTrace)
            assert found.documents[0].capture is not None


def test_shards_that_did_not_accumulate_are_not_taken_over(tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path).override({**GROWING, "makes": ["documents", "tokens"]})
    run(recipe.override({"encode.accumulate": False}), "1", STAGES[:-1])
    add(tmp_path, "2")
    with pytest.raises(InputError, match=r"shards@1 was made without \[encode\] accumulate"):
        run(recipe, "2", STAGES[:-1])


def test_a_corpus_that_is_not_compared_with_earlier_versions_does_not_accumulate(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"encode.accumulate: .*\[dedup_index\] enabled = true"):
        small_recipe(tmp_path).override({"encode.accumulate": True})


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [
        ({"2026-10": 30}, {"2026-10": 1.0}),
        ({"2026-10": 30, "2026-11": 10}, {"2026-10": 0.25, "2026-11": 0.75}),
        ({"2026-09": 20, "2026-10": 30, "2026-11": 10}, {"2026-09": 0.1, "2026-10": 0.15, "2026-11": 0.75}),
        ({"2026-10": 30, "2026-11": 10, "unknown": 10}, {"2026-10": 0.1875, "2026-11": 0.75, "unknown": 0.0625}),
    ],
)
def test_replay_of_earlier_months_names_no_month(sequences: dict[str, int], expected: dict[str, float]) -> None:
    config = small_config(replay=ReplayConfig(share=0.25, old=("earlier",)))
    natural = {source: count / sum(sequences.values()) for source, count in sequences.items()}
    assert _replay(config, natural, sequences) == pytest.approx(expected)
    with pytest.raises(RecipeError, match='the source "web" is not a month'):
        _replay(config, {"web": 1.0}, {"web": 10})
