"""A recipe with examples and a base: both stages through the runner, and the trace of a step from the shell."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, RecipeError
from tasks.run import forecast
from tasks.run.export import export_model
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import run_stage
from tasks.run.shell import main
from tests.corpora import Made
from tests.tasks.stages.finetune.conftest import INSTRUCTIONS
from tests.tasks.trainer.in_process import training_in_process

ADAPTER = "checkpoints/step-00000002/model.safetensors"


@pytest.fixture
def recipe(made: Made, base: Artifact, tmp_path: Path) -> Recipe:
    assert made.tokenizer.store.root == base.store.root
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in INSTRUCTIONS))
    settings = json.loads(find_recipe("smoke").text)
    settings |= {
        "name": "test",
        "examples": {"files": [str(file)], "seq_len": 96},
        "finetune": {"base": "test/checkpoint@previous", "steps": 2, "batch_size": 4, "microbatch": 2, "lora": {}},
    }
    settings["place"]["store"] = base.store.root
    return Recipe.from_text(json.dumps(settings))


TUNING = {"examples": {"files": ["/rows.jsonl"]}, "finetune": {"base": "/data/pot", "steps": 2}}
TASKS = {"evaluate": {"tasks": [{"name": "quiz", "kind": "cloze", "path": "/quiz.jsonl", "prompt": "{{text}}"}]}}
TRAINED = ("documents", "tokens", "checkpoint")


@pytest.mark.parametrize(
    ("sections", "makes"),
    [
        (TUNING, ()),
        (TUNING | TASKS, ()),
        (TUNING | TASKS | {"tuned": {"model": "guide"}, "promote_tuned": {"enabled": True}}, ()),
        (TUNING | TASKS | {"chunks": {"enabled": True}}, TRAINED[:2]),
        (TUNING | TASKS | {"train": {"steps": 9}}, TRAINED),
        (TASKS, TRAINED),
    ],
)
def test_tasks_of_a_recipe_that_fine_tunes_are_no_reason_to_train_another_model(
    sections: dict[str, object], makes: tuple[str, ...]
) -> None:
    recipe = find_recipe(json.dumps({"name": "mine", **sections}))
    assert tuple(asset for asset in recipe.makes if asset in TRAINED) == makes
    assert find_recipe(recipe.text).makes == recipe.makes
    assert "finetune" not in sections or {"examples", "finetune"} <= set(recipe.stages("finetune"))


def test_a_recipe_with_only_examples_and_a_base_uses_the_tokenizer_of_the_base(
    recipe: Recipe, base: Artifact, made: Made, tmp_path: Path
) -> None:
    settings = {"name": "first", "examples": json.loads(recipe.text)["examples"], "place": {"store": base.store.root}}
    tuning = {"steps": 2, "batch_size": 4, "microbatch": 2}
    first = Recipe.from_text(json.dumps(settings | {"finetune": {**tuning, "base": str(base.address)}}))
    again = settings | {"name": "again", "finetune": {**tuning, "base": "first/finetuned@previous", "lora": {}}}
    assert (first.makes, first.parts) == ((), ())
    for recipe in (first, Recipe.from_text(json.dumps(again))):
        with training_in_process():
            for stage in recipe.stages("finetune"):
                run_stage(recipe, stage)
        for kind in ("examples", "tuned_scores", "tuned_model"):
            record = Artifact.open_at(base.store, ArtifactId(f"{recipe.name}/{kind}", recipe.version)).record
            assert {ref.role: ref.address for ref in record.inputs}["tokenizer"] == str(made.tokenizer.address)
        out = export_model(base.store, recipe.name, recipe.version, "model", str(tmp_path / recipe.name), tuned=True)
        assert (out / "tokenizer.json").read_bytes()
    lost = first.override({"finetune.base": "gone/checkpoint@dev"})
    with pytest.raises(InputError, match="gone/checkpoint@dev is not in"):
        run_stage(lost, "examples", version="other")
    nothing_yet = first.override({"finetune.base": "gone/checkpoint@previous"})
    with pytest.raises(InputError, match=r"\[finetune\] base: gone/checkpoint@previous is not in"):
        run_stage(nothing_yet, "examples", version="other")


def test_a_recipe_is_tuned_and_a_step_of_it_traced(
    recipe: Recipe, base: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = ("examples", "finetune", "evaluate_tuned", "register_tuned")
    assert recipe.stages("finetune") == stages
    with pytest.raises(InputError, match="Run the stage examples first"):
        run_stage(recipe, "finetune", version="taught", source_version="dev")
    for stage in stages:
        assert not run_stage(recipe, stage, version="taught", source_version="dev").skipped
        assert run_stage(recipe, stage, version="taught", source_version="dev").skipped
    record = Artifact.open_at(base.store, ArtifactId("test/finetuned", "taught")).record
    assert {ref.role: ref.address for ref in record.inputs} == {
        "base": "test/checkpoint@dev",
        "examples": "test/examples@taught",
    }
    model = Artifact.open_at(base.store, ArtifactId("test/tuned_model", "taught"))
    assert {ref.role for ref in model.record.inputs} == {"finetuned", "examples", "tokenizer", "tuned_scores"}
    assert model.record.note == "registered as test-tuned"
    bare = recipe.override({"finetune.lora.merge": False})
    assert bare.stages("finetune") == ("examples", "finetune"), "adapters alone are not compared and not registered"
    capsys.readouterr()
    main(["trace", "--recipe", recipe.text, "--version", "taught", "tuned:1"])
    printed = capsys.readouterr().out
    assert printed.startswith("step 1 of test/finetuned@taught, begun from test/checkpoint@dev: ")
    assert "rows.jsonl line " in printed
    main(["plan", "--recipe", recipe.text, "--version", "taught", "--tuned", "--json"])
    plan = json.loads(capsys.readouterr().out)
    shape = json.loads(base.read("model.json"))
    assert plan["planned"]["model"]["parameters"] == shape["parameters"]["total"]
    trained = load_file(Artifact.open_at(base.store, ArtifactId("test/finetuned", "taught")).local(ADAPTER))
    assert plan["planned"]["model"]["trained"] == sum(weight.numel() for weight in trained.values())
    assert plan["planned"]["checkpoints"]["bytes"] == 3 * 4 * plan["planned"]["model"]["trained"]
    assert {"frozen", "dequantized", "loading"} <= plan["planned"]["memory"]["per_rank_gib"].keys()
    assert {row["name"]: row["ratio"] for row in plan["compared"]}["FLOPs"] == pytest.approx(1)
    with pytest.raises(RecipeError, match="has no fine-tuning"):
        forecast.plan(find_recipe("smoke"), base.store, "1", tuned=True)
