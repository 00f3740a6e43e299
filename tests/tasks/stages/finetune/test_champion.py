"""The champion among the fine-tuned models of a recipe: decided on the same held-out examples, text and tasks."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.core.artifact import Artifact
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.tracking import send
from tasks.stages.finetune import TunedConfig
from tasks.stages.registry import PromoteTunedConfig
from tests.conftest import run_stage_in
from tests.corpora import Made
from tests.tasks.stages.finetune.conftest import INSTRUCTIONS, PREFERENCES, Make
from tests.tasks.stages.finetune.test_compare import SHORT, beside
from tests.tasks.trainer.in_process import in_process

__all__ = ["in_process"]

PROMOTE = PromoteTunedConfig.model_validate({"enabled": True, "evaluate": {"max_tokens": 2_000}})


def registered(made: Made, base: Artifact, rows: Artifact, version: str, **settings: Any) -> dict[str, Artifact]:
    """A fine-tuned model in the store of its base, as inputs of a comparison."""
    tuned = beside(base, rows, version, **settings)
    inputs = {"finetuned": tuned, "examples": rows, "tokenizer": made.tokenizer}
    arguments = {"kind": "tuned_scores", "version": version}
    folder, evaluate = base.store.root, TunedConfig.model_validate({"evaluate": {"max_tokens": 2_000}})
    scores = run_stage_in(folder, "tasks.stages.finetune.compare", evaluate, dict(inputs), **arguments)  # type: ignore[arg-type]
    with_scores = {**inputs, "tuned_scores": scores}
    register, arguments = "tasks.stages.finetune.register", {"kind": "tuned_model", "version": version}
    return {**inputs, "model": run_stage_in(folder, register, evaluate, dict(with_scores), **arguments)}  # type: ignore[arg-type]


def decided(folder: Path, inputs: dict[str, Artifact], before: Artifact | None, version: str, **settings: Any) -> Any:
    """Compares and promotes; returns the comparison and the decision."""
    config = PROMOTE.model_copy(update=settings)
    last = {"decided": before} if before else {}
    stages = "tasks.stages.registry"
    comparison = run_stage_in(
        folder, f"{stages}.compare_tuned", config, {**inputs, **last}, kind="tuned_comparison", version=version
    )
    decision = run_stage_in(
        folder, f"{stages}.promote", config, {"comparison": comparison, **last}, kind="tuned_champion", version=version
    )
    return json.loads(comparison.read("comparison.json")), decision


def alias_of(decision: Artifact, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str, str]:
    """The name of the registered model, the alias and the model that a decision sends to MLflow."""
    monkeypatch.setattr(send, "register", lambda client, name, folder, run_id, model: str(model.address))
    set_to: list[tuple[str, str, str]] = []
    client = SimpleNamespace(set_registered_model_alias=lambda *alias: set_to.append(alias))
    champion = json.loads(decision.read("champion.json"))["champion"]["artifact"]
    message = SimpleNamespace(aliases={"champion": champion}, context=SimpleNamespace(experiment="test"))
    send.set_aliases(client, message, "0", decision)  # type: ignore[arg-type]
    return set_to[0]


def test_a_better_fine_tuned_model_becomes_champion_and_one_that_is_not_better_does_not(
    made: Made, base: Artifact, examples: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = examples(INSTRUCTIONS, heldout_share=0.3, template=SHORT)
    folder = Path(base.store.root)
    weak = registered(made, base, rows, "weak", steps=1, lora={"rank": 2})
    comparison, first = decided(folder, weak, None, "weak")
    assert comparison["rows"] == []
    assert json.loads(first.read("champion.json"))["champion"]["artifact"] == "test/tuned_model@weak"
    strong = registered(made, base, rows, "strong", steps=40, lora={"rank": 4})
    comparison, second = decided(folder, strong, first, "strong", guarded=("responses",))
    assert comparison["score"]["of"] == "examples"
    assert comparison["score"]["names"] == ["responses"]
    assert comparison["promoted"]
    names = {f"{row['kind']} {row['name']}": row for row in comparison["rows"]}
    assert set(names) == {"source code", "source my-books", "source web", "examples responses"}
    row = names["examples responses"]
    assert row["counts"]
    assert comparison["score"]["difference"] == row["difference"] == pytest.approx(row["first"] - row["second"])
    assert comparison["score"]["interval"][0] > 0
    decision = json.loads(second.read("champion.json"))
    assert decision["champion"]["artifact"] == "test/tuned_model@strong"
    assert "test/tuned_model@strong becomes champion: better than test/tuned_model@weak" in decision["reason"]
    assert "bits per byte over the responses of held-out examples" in decision["reason"]
    comparison, third = decided(folder, weak, second, "weak-again", guarded=("responses",))
    assert not comparison["promoted"]
    assert json.loads(third.read("champion.json"))["champion"]["artifact"] == "test/tuned_model@strong"
    assert alias_of(third, monkeypatch) == ("test-tuned", "champion", "test/tuned_model@strong")
    comparison, _ = decided(folder, strong, third, "strong-again")
    assert {row["difference"] for row in comparison["rows"]} == {0.0}, "a model compared with itself"
    assert not comparison["promoted"]


def test_preferences_are_decided_by_the_share_of_pairs_with_a_likelier_chosen_answer(
    made: Made, base: Artifact, examples: Make
) -> None:
    rows = examples(PREFERENCES, kind="preferences", heldout_share=0.4, template=SHORT)
    folder = Path(base.store.root)
    models = [registered(made, base, rows, f"pairs-{steps}", loss="dpo", steps=steps) for steps in (1, 8)]
    _, first = decided(folder, models[0], None, "pairs-1")
    comparison, _ = decided(folder, models[1], first, "pairs-8")
    assert comparison["score"]["names"] == ["preferences"]
    assert comparison["score"]["unit"] == "of the items"


def test_the_stages_run_in_recipes_that_make_a_whole_tuned_model() -> None:
    settings = json.loads(find_recipe("smoke").text)
    settings |= {"examples": {"files": ["/rows.jsonl"]}, "finetune": {"base": "smoke/checkpoint@previous", "lora": {}}}
    recipe = Recipe.from_text(json.dumps({**settings, "promote_tuned": {"enabled": True}}))
    stages = ("examples", "finetune", "evaluate_tuned", "register_tuned", "compare_tuned", "promote_tuned")
    assert recipe.stages("finetune") == stages
    assert recipe.override({"finetune.lora.merge": False}).stages("finetune") == stages[:2]
    assert Recipe.from_text(json.dumps(settings)).stages("finetune") == stages[:4]
