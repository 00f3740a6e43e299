"""The plan of a training: the stages before and after it in the DAG, and the measured MFU in the next plan."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import RecipeError
from tasks.run import forecast
from tasks.run.forecast import plan
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import open_store, run_stage
from tasks.stages.canary.cost import CycleCost

RECIPE = """
name = "planned"
version = "1"
[[extract.files]]
name = "books"
kind = "text"
path = "{folder}/books/*.txt"
[annotate]
use = ["prose_score"]
[consolidate]
filters = []
mask_pii = false
[tokenizer]
vocab_size = 300
[pack]
seq_len = 32
[train]
steps = 6
batch_size = 4
microbatch = 2
milestones = 1
[train.model]
layers = 2
dim = 32
heads = 4
kv_heads = 2
[plan]
enabled = true
gpu = "CPU"
peak_flops = 1e10
memory_gb = 4
mfu = 0.5
region = "here"
[plan.regions.here]
price_per_gpu_hour = 2.0
gco2_per_kwh = 100.0
pue = 1.0
[place]
store = "{folder}/store"
"""
STAGES = (
    "extract",
    "annotate",
    "dedup",
    "consolidate",
    "tokenizer",
    "encode",
    "pack",
    "estimate",
    "train",
    "reconcile",
)


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe whose version 1 has been trained, with an estimate before it."""
    folder = tmp_path_factory.mktemp("planned")
    (folder / "books").mkdir()
    for number in range(40):
        (folder / "books" / f"{number}.txt").write_text(
            f"Book {number}. " + "The river runs to the sea. " * (20 + number)
        )
    (file := folder / "planned.toml").write_text(RECIPE.format(folder=folder))
    recipe = find_recipe(str(file))
    for stage in STAGES:
        run_stage(recipe, stage)
    return file


def test_the_estimate_comes_first_in_the_dag_and_the_comparison_after_the_training(recipe_file: Path) -> None:
    recipe = find_recipe(str(recipe_file))
    assert recipe.stages("pretrain") == ("estimate", "train", "evaluate", "register", "reconcile")
    assert "estimate" not in find_recipe("demo").stages("pretrain")


def test_the_plan_is_compared_with_the_run_and_the_next_plan_uses_the_measured_mfu(recipe_file: Path) -> None:
    recipe = find_recipe(str(recipe_file))
    store = open_store(recipe)
    first = plan(recipe, store, "1")
    assert (first.planned["time"]["mfu"], first.planned["time"]["mfu_from"]) == (0.5, "the plan")
    rows = {row["name"]: row for row in first.compared}
    assert rows["tokens"]["planned"] == 6 * 4 * 32
    assert 0 < rows["tokens"]["real"] <= 6 * 4 * 32
    assert rows["FLOPs"]["ratio"] == pytest.approx(1)
    real = rows["MFU"]["real"]
    assert real == pytest.approx(rows["FLOPs"]["real"] / rows["seconds of steps"]["real"] / 1e10)
    assert rows["kg CO2e"]["real"] == pytest.approx(rows["GPU-hours"]["real"] * 0.7 * 100 / 1000)
    assert rows["price"]["real"] == pytest.approx(rows["GPU-hours"]["real"] * 2)
    assert "| MFU | 0.5 |" in first.text()
    following = plan(recipe, store, "2")
    assert following.planned["time"]["mfu_from"] == "planned/checkpoint@1"
    assert following.planned["time"]["mfu"] == pytest.approx(real)
    assert following.compared == []


def test_without_a_gpu_its_figures_are_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "has_gpu", lambda: False)
    recipe = find_recipe("demo").override({"place.store": str(tmp_path)})
    text = plan(recipe, open_store(recipe), "1").text()
    assert "| layout | all of the model on each rank |" in text
    for row in ("MFU", "tokens per second", "time", "memory of a rank", "lost to both", "price", "carbon"):
        assert f"| {row} | - |" in text
    assert "H100 |" not in text
    assert "no GPU: figures for H100 are left out. Set [plan] gpu" in text
    of_another = plan(recipe.override({"plan.gpus": 8}), open_store(recipe), "1").text()
    assert "| devices | 2 x H100 of 8 |" in of_another
    assert "| layout | shard = 2 |" in of_another
    assert "Warning: only 2 of 8 ranks start, because more cannot share 2 microbatches a step" in of_another
    assert "%, from the plan |" in of_another


def test_the_plan_has_the_cost_of_the_longest_canary_cycle(tmp_path: Path) -> None:
    recipe = find_recipe("demo").override({"place.store": str(tmp_path), "canary.budget.price_per_gpu_hour": 2.0})
    # Four arms, and three of the confirmation with three seeds each.
    assert "Canaries, at most: 13 runs x " in (text := plan(recipe, open_store(recipe), "1").text())
    assert "hours of one H100 at 20% of its peak, 0.00 at 2 an hour" in text


def test_the_canaries_of_a_cluster_have_30_million_weights_and_a_price(tmp_path: Path) -> None:
    cluster = Recipe.load(Path(__file__).parents[3] / "dags" / "recipes" / "cluster" / "cluster.toml")
    recipe = cluster.override({"place.store": str(tmp_path), "place.store_conn_id": ""})
    vocabulary, length = recipe.tokenizer.vocab_size, recipe.pack.seq_len
    assert 30e6 <= CycleCost(recipe.canary, vocabulary, length).parameters < 31e6
    text = plan(recipe, open_store(recipe), "1").text()
    assert "Canaries, at most: 41 runs x " in text
    assert re.search(r"hours of one H100 at 20% of its peak, 0\.\d\d at 3 an hour", text)


def test_figures_whose_formula_does_not_hold_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "has_gpu", lambda: True)
    recipe = find_recipe("smoke").override({"place.store": str(tmp_path)})
    found = plan(recipe, open_store(recipe), "1")
    assert found.planned["checkpoints"]["lost_share"] > 1
    assert "| lost to both | - (a checkpoint, " in found.text()
    assert "| best checkpoint interval | - (longer than the run); set are" in found.text()
    assert "| price | - |" not in found.text()


def test_a_run_without_a_gpu_is_not_compared_with_the_rates_of_one(recipe_file: Path) -> None:
    recipe = find_recipe(str(recipe_file)).override({"plan.gpu": "H100", "plan.peak_flops": 0.0, "plan.memory_gb": 0.0})
    found = plan(recipe, open_store(recipe), "1")
    rows = {row["name"]: row for row in found.compared}
    assert rows["FLOPs"]["ratio"] == pytest.approx(1)
    assert rows["seconds in all"]["real"] is not None
    assert [rows[name]["ratio"] for name in ("MFU", "tokens per second", "GPU-hours", "price")] == [None] * 4
    assert rows["price"]["real"] is rows["seconds in all"]["planned"] is None
    assert "not compared with the rates and costs of H100" in found.text()


def test_the_stage_of_the_next_version_uses_the_measured_mfu_too(recipe_file: Path) -> None:
    recipe = find_recipe(str(recipe_file)).override({"train.steps": 12})
    result = run_stage(recipe, "estimate", version="2", source_version="1")
    measured = next(row for row in plan(recipe, open_store(recipe), "1").compared if row["name"] == "MFU")["real"]
    assert result.metrics["mfu"] == pytest.approx(measured)


def test_a_changed_price_does_not_affect_the_training(recipe_file: Path) -> None:
    recipe = find_recipe(str(recipe_file)).override({"plan.watts": 1.0, "plan.mfu": 0.1})
    assert run_stage(recipe, "train").skipped


def test_the_plan_describes_the_training_of_the_recipe(recipe_file: Path) -> None:
    recipe = find_recipe(str(recipe_file)).override({"train.steps": 12})
    assert recipe.plan.train == recipe.train
    assert plan(recipe, open_store(recipe), "none").planned["time"]["tokens"] == 12 * 4 * 32


def test_an_unknown_gpu_or_region_is_refused_with_the_setting_to_change(recipe_file: Path) -> None:
    with pytest.raises(RecipeError, match='"H1000" is unknown') as raised:
        find_recipe(str(recipe_file)).override({"plan.gpu": "H1000", "plan.peak_flops": 0.0, "plan.region": "hear"})
    assert 'no region "hear"' in str(raised.value)


def test_an_infeasible_layout_fails_the_estimate(recipe_file: Path) -> None:
    recipe = find_recipe(str(recipe_file)).override({"place.train.layout": {"tensor": 8}, "train.steps": 13})
    with pytest.raises(RecipeError, match="tensor = 8 does not divide kv_heads = 2"):
        run_stage(recipe, "estimate", version="3", source_version="1")


def test_another_model_is_planned_by_its_config(recipe_file: Path, tmp_path: Path) -> None:
    recipe = find_recipe(str(recipe_file))
    gpt2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257, "n_positions": 1024}
    (tmp_path / "config.json").write_text(json.dumps(gpt2))
    found = plan(recipe, open_store(recipe), "1", str(tmp_path / "config.json"))
    assert found.planned["model"]["parameters"] == 124_439_808
    assert found.compared == []


KILLED = """
import sys
from tasks.run.recipe import find_recipe
from tasks.run.runner import run_stage
from tests.kills import die_in

_, recipe, stage, version = sys.argv
die_in("", 1, folder=f"/{version}")
run_stage(find_recipe(recipe).override({"plan.watts": 2.0}), stage, version=version, source_version="1")
"""


@pytest.mark.parametrize("stage", ["estimate", "reconcile"])
def test_a_killed_plan_ends_with_the_same_bytes(recipe_file: Path, stage: str) -> None:
    recipe = find_recipe(str(recipe_file)).override({"plan.watts": 2.0})
    versions = [f"{stage}-whole", f"{stage}-killed"]
    for version in versions if stage == "reconcile" else ():
        run_stage(recipe, "estimate", version=version, source_version="1")
    run_stage(recipe, stage, version=versions[0], source_version="1")
    died = subprocess.run([sys.executable, "-c", KILLED, str(recipe_file), stage, versions[1]], check=False)
    assert died.returncode == -signal.SIGKILL
    run_stage(recipe, stage, version=versions[1], source_version="1")
    kind = {"estimate": "estimate", "reconcile": "reconciled"}[stage]
    whole, killed = (Artifact.open_at(open_store(recipe), ArtifactId(f"planned/{kind}", name)) for name in versions)
    assert [entry.sha256 for entry in killed.entries()] == [entry.sha256 for entry in whole.entries()]
