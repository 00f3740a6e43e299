"""Artifacts of a source version are adopted: a limit that keeps the same documents reruns no tokens and no training."""

from pathlib import Path

import pytest

from tasks.core.artifact import RECORD, Artifact, ArtifactId
from tasks.formats.hooks import Hooks
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import StageResult, join_stage, open_store, run_stage
from tasks.run.trace.trace import trace
from tasks.run.tracking import TrackingContext

REFINE = ("extract", "annotate", "dedup", "consolidate")
TOKENS = ("tokenizer", "encode", "pack")
MAX_REPEATED = "consolidate.limits.gopher_repetition.max_duplicate_lines"
TINY = {"layers": 1, "dim": 16, "heads": 2, "kv_heads": 1}


def small_recipe(folder: Path) -> Recipe:
    for source in ("books", "notes"):
        (folder / source).mkdir()
        for number in range(12):
            text = "the and of " + " ".join(f"{source}{number}x{place}" for place in range(60 + 10 * number))
            (folder / source / f"{number}.txt").write_text(f"{text}.\n" + "again\n" * (40 if number == 3 else 0))
    return find_recipe("smoke").override(
        {
            "place.store": str(folder / "store"),
            "crawl.enabled": False,
            "extract.files": [
                {"name": name, "kind": "text", "path": f"{folder}/{name}/*.txt"} for name in ("books", "notes")
            ],
            "annotate.use": ["gopher_quality", "gopher_repetition", "prose_score", "pii"],
            "consolidate.filters": ["gopher_quality", "gopher_repetition"],
            "consolidate.sources": ["books", "notes"],
            "tokenizer.vocab_size": 300,
            "pack.seq_len": 16,
            "encode.heldout_share": 0.25,
            "canary.current": {"books": 0.5, "notes": 0.5},
            "canary.anchors": [],
            "canary.arms": 0,
            "canary.rounds": 1,
            "canary.steps": 2,
            "canary.confirmations": 3,
            "canary.model": TINY,
            "train.steps": 2,
            "train.batch_size": 4,
            "train.milestones": 1,
            "train.model": TINY,
        }
    )


def whole(recipe: Recipe, version: str, source_version: str | None = None) -> dict[str, StageResult]:
    """Runs every stage from files to a registered model."""

    def one(stage: str, member: str = "") -> StageResult:
        tracking = TrackingContext("", recipe.name)
        return run_stage(
            recipe, stage, version=version, source_version=source_version, member=member, tracking=tracking
        )

    found = {stage: one(stage) for stage in (*REFINE, *TOKENS)}
    found["arms"] = one("arms", "round-1")
    found |= {f"canary {member}": one("canary", member) for member in found["arms"].members}
    found["finalist"] = one("finalist")
    found |= {f"confirm {member}": one("confirm", member) for member in found["finalist"].members}
    return found | {stage: one(stage) for stage in ("decide", "train", "evaluate", "register")}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, dict[str, StageResult]]:
    recipe = small_recipe(tmp_path_factory.mktemp("adopted"))
    return recipe, whole(recipe, "1")


def test_a_limit_that_keeps_the_same_documents_reruns_only_consolidate(
    first: tuple[Recipe, dict[str, StageResult]],
) -> None:
    recipe, made = first
    second = whole(recipe.override({MAX_REPEATED: 0.31}), "2", "1")
    assert [stage for stage, result in second.items() if not result.skipped] == ["consolidate"]
    assert second["consolidate"].fingerprint != made["consolidate"].fingerprint
    store = open_store(recipe)
    for stage in set(second) - {"consolidate"}:
        artifact = Artifact.open_at(store, ArtifactId.parse(second[stage].address))
        assert artifact.record.adopted_from == made[stage].address
        assert [path for path in store.list(artifact.address.path) if not path.endswith(RECORD)] == []
        assert artifact.verify() == []
    checkpoint = Artifact.open_at(store, ArtifactId("smoke/checkpoint", "2")).record
    assert {ref.address for ref in checkpoint.inputs} == {"smoke/shards@2", "smoke/plan@2", "smoke/mixture@2"}


def test_a_version_with_adopted_artifacts_is_traced_and_can_be_the_next_source(
    first: tuple[Recipe, dict[str, StageResult]],
) -> None:
    recipe, made = first
    other = recipe.override({MAX_REPEATED: 0.32})
    whole(other, "3", "1")
    store = open_store(recipe)
    found = trace(store, recipe.name, "3", "step:1").to_json()
    assert found["artifacts"]["checkpoint"] == "smoke/checkpoint@3"
    assert found["artifacts"]["documents"] == "smoke/documents@3"
    page = found["sequences"][0]["slices"][0]["url"]
    kept = trace(store, recipe.name, "3", page).to_json()["documents"][0]
    assert kept["fate"] == "kept"
    assert 1 in kept["steps"]
    fourth = whole(other.override({MAX_REPEATED: 0.33}), "4", "3")
    assert [stage for stage, result in fourth.items() if not result.skipped] == ["consolidate"]
    train = Artifact.open_at(store, ArtifactId.parse(fourth["train"].address))
    assert train.record.adopted_from == made["train"].address  # the artifact with the files, not a chain of records


@pytest.mark.parametrize("first_node", [True, False])
def test_other_nodes_of_a_gang_do_nothing_for_an_adopted_artifact(
    first: tuple[Recipe, dict[str, StageResult]], monkeypatch: pytest.MonkeyPatch, first_node: bool
) -> None:
    recipe, _ = first
    joined: list[str] = []
    monkeypatch.setattr(
        "tasks.stages.train.stage.HOOKS", Hooks(join=lambda config, inputs, output: joined.append(str(config.steps)))
    )
    version = f"gang-{first_node}"
    if first_node:
        run_stage(recipe, "train", version=version, source_version="1", tracking=TrackingContext("", recipe.name))
    join_stage(recipe, "train", version=version, source_version="1")
    assert joined == []
    join_stage(recipe.override({"train.steps": 3}), "train", version="gang", source_version="1")
    assert joined == ["3"]


def test_a_limit_that_changes_the_kept_documents_recomputes_tokens(
    first: tuple[Recipe, dict[str, StageResult]],
) -> None:
    recipe, _ = first
    stricter = recipe.override({"consolidate.limits.gopher_quality.min_words": 100})
    made = {
        stage: run_stage(stricter, stage, version="5", source_version="1", tracking=TrackingContext("", recipe.name))
        for stage in (*REFINE, *TOKENS)
    }
    assert [stage for stage, result in made.items() if not result.skipped] == ["consolidate", *TOKENS]


def test_a_stage_cannot_open_undeclared_files(first: tuple[Recipe, dict[str, StageResult]]) -> None:
    recipe, _ = first
    documents = Artifact.open_at(open_store(recipe), ArtifactId("smoke/documents", "1"))
    part = documents.restricted_to(("kept/",))
    assert part.files() == documents.files("kept/")
    rejected = documents.files("rejected/")[0]
    with pytest.raises(ValueError, match=r"is not one of the files that this stage declares"):
        part.open(rejected)
