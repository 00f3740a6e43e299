"""What the next cycle of canaries starts from: the decision of the one before, unless a person rejected it."""

import json
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.run.catalogue import STAGES
from tasks.run.lineage import previous_inputs
from tasks.run.place import Retention
from tasks.run.recipe import Recipe
from tasks.run.result import StageResult
from tasks.run.retention import survey
from tasks.run.runner import open_store, run_stage
from tasks.run.shell import main
from tasks.run.tracking import TrackingContext
from tests.tasks.run.test_adopted import REFINE, TOKENS, small_recipe
from tests.tasks.trainer.in_process import training_in_process

RECIPE = '{"name": "r", "extract": {"files": [{"name": "a", "kind": "text", "path": "/a"}]}, "canary": {}}'


def mixture(store: Store, version: str, web: float = 0.5) -> Artifact:
    output = Output(store, ArtifactId("r/mixture", version), "0" * 64)
    with output.part("mixture", conserved=False) as part, part.file("mixture.json") as file:
        file.write(json.dumps({"weights": {"web": web}}).encode())
    return commit(output, "decide", 1, Config(), [], Report())


def read_by_the_next_cycle(store: Store) -> dict[str, str]:
    own = ArtifactId("r/arms/round-1", "v3")
    found = previous_inputs(Recipe.from_text(RECIPE), store, STAGES["arms"], own, {})
    return {role: str(one.address) for role, one in found.items() if isinstance(one, Artifact)}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("SLUICE_STORE", str(tmp_path))
    store = Store(str(tmp_path))
    mixture(store, "v1")
    mixture(store, "v2")
    return store


def test_no_cycle_starts_from_a_rejected_mixture_and_its_runs_stay_evidence(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_by_the_next_cycle(store) == {"previous": "r/mixture@v2", "earlier": "r/mixture@v2"}
    assert main(["reject", "--recipe", RECIPE, "--version", "v2", "--why", "too much web"]) == 0
    assert capsys.readouterr().out.endswith(": too much web\n")
    assert read_by_the_next_cycle(store) == {"previous": "r/mixture@v1", "earlier": "r/mixture@v2"}
    kept = {one.artifact: one.needed for one in survey(store, "r", Retention(versions=1)).holdings}
    assert kept["r/mixture@v1"] == "the next version begins from it"
    assert main(["reject", "--recipe", RECIPE, "--version", "v2", "--withdraw"]) == 0
    assert read_by_the_next_cycle(store)["previous"] == "r/mixture@v2"


def test_a_mixture_that_is_made_again_with_another_result_is_not_rejected(store: Store) -> None:
    main(["reject", "--recipe", RECIPE, "--version", "v2"])
    Artifact.open_at(store, ArtifactId("r/mixture", "v2")).remove()
    mixture(store, "v2", web=0.7)
    assert read_by_the_next_cycle(store)["previous"] == "r/mixture@v2"
    main(["reject", "--recipe", RECIPE, "--version", "v2"])
    assert read_by_the_next_cycle(store)["previous"] == "r/mixture@v1"


def test_a_version_without_a_mixture_cannot_be_rejected(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reject", "--recipe", RECIPE, "--version", "v9"]) == 2
    assert "no artifact r/mixture@v9" in capsys.readouterr().err


def test_the_second_cycle_starts_from_the_promoted_mixture_and_knows_the_runs_of_the_first(tmp_path: Path) -> None:
    quiz = tmp_path / "quiz.jsonl"
    quiz.write_text('{"query": "one", "choices": ["two", "three"], "gold": 1}\n')
    task = {"name": "quiz", "kind": "multiple_choice", "path": str(quiz), "prompt": "{{query}}", "choices": "choices"}
    settings = {
        "tasks": ["quiz"],
        "current": {"books": 0.98, "notes": 0.02}, "anchors": ["uniform"], "target": {"notes": 1.0}, "guard_share": 9.0,
        "repetition_cap": 99.0, "steps": 8, "batch_size": 4, "microbatch": 4,
        "optim": {"lr": 3e-2, "warmup_steps": 1},
    }  # fmt: skip
    of_canary = {f"canary.{name}": value for name, value in settings.items()}
    recipe = small_recipe(tmp_path).override({"evaluate.tasks": [{**task, "answer": "gold"}], **of_canary})

    def run(stage: str, version: str = "v1", member: str = "", recipe: Recipe = recipe) -> StageResult:
        tracking = TrackingContext("", recipe.name)
        return run_stage(recipe, stage, version=version, source_version="v1", member=member, tracking=tracking)

    with training_in_process():
        for stage in (*REFINE, *TOKENS):
            run(stage)
        screened = run("arms", member="round-1").members
        for member in screened:
            run("canary", member=member)
        for member in run("finalist").members:
            run("confirm", member=member)
    assert run("decide").metrics["promoted"] == 1
    store = open_store(recipe)
    promoted = json.loads(Artifact.open_at(store, ArtifactId("smoke/mixture", "v1")).read("mixture.json"))["weights"]
    assert promoted == {"books": 0.5, "notes": 0.5}
    screening = Artifact.open_at(store, ArtifactId(f"smoke/canary/{screened[0]}", "v1"))
    assert {"task:quiz", "tokenizer"} <= {ref.role for ref in screening.record.inputs}

    run("arms", "v2", "round-1", recipe.override({"canary.steps": 9}))
    second = Artifact.open_at(store, ArtifactId("smoke/arms/round-1", "v2"))
    assert not second.record.adopted_from
    cycle = json.loads(second.read("cycle.json"))
    assert (cycle["arms"][0]["kind"], cycle["arms"][0]["weights"]) == ("current", promoted)
    [known] = cycle["evidence"]["cycles"]
    assert (known["artifact"], len(known["runs"])) == ("smoke/mixture@v1", len(screened))
    assert known["runs"][0]["bpb"].keys() == {"books", "notes", "quiz/answer", "quiz/choice"}
    assert "The current mixture is the decision of smoke/mixture@v1." in cycle["registered"]["rules"]
