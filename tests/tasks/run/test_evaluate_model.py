"""`sluice evaluate-model`: scores of a model from elsewhere are those of `transformers` and of lm-eval."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import DriftError, RecipeError
from tasks.core.ledger import Ledger
from tasks.core.store import Store
from tasks.run.evaluate_model import evaluate_model
from tasks.run.import_model import import_model, imported_model
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.shell import main
from tasks.trainer.evaluation.comparison import Contender
from tasks.trainer.evaluation.config import EvaluateConfig, TaskConfig
from tests.conftest import run_stage_in
from tests.corpora import corpus, tokens_in
from tests.late import transformers
from tests.tasks.stages.evaluate.test_lm_eval import tasks_in
from tests.tasks.stages.evaluate.test_tasks import rows_in
from tests.tasks.trainer.interchange.model_folders import END, change, write_folder

ROWS = [{"text": "the river", "answer": "stone light"}, {"text": "water of", "answer": "the valley"}]


def recipe_in(folder: Path, *tasks: TaskConfig) -> Recipe:
    settings = {
        "name": "mine",
        "examples": {"files": ["/nowhere.jsonl"]},
        "finetune": {"base": "mine/checkpoint@1"},
        "evaluate": {"tasks": [task.model_dump(mode="json", exclude_defaults=True) for task in tasks]},
        "place": {"store": str(folder / "store"), "mlflow": ""},
    }
    return find_recipe(json.dumps(settings))


def cloze(folder: Path, rows: list[dict[str, Any]] = ROWS) -> TaskConfig:
    return TaskConfig(name="cloze", kind="cloze", path=rows_in(folder, rows, "cloze.jsonl"), prompt="{{text}}")


def scores_of(artifact: Artifact) -> dict[str, Any]:
    scores: dict[str, Any] = json.loads(artifact.read("scores.json"))
    return scores


def begin_with_end_of_text(folder: Path) -> None:
    """Makes the tokenizer of a folder put a token before each text, as that of Llama 3 does."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single=f"{END} {END} $A", special_tokens=[(END, 0)])
    tokenizer.save(str(folder / "tokenizer.json"))


@torch.no_grad()
def by_transformers(folder: Path, row: dict[str, str]) -> float:
    """Returns ln p of the answer, with the tokens that the folder's tokenizer puts before a text."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    whole, prompt = (tokenizer(text).input_ids for text in (f"{row['text']} {row['answer']}", row["text"]))
    log_p = torch.log_softmax(model(torch.tensor([whole])).logits[0].float(), dim=-1)
    return float(sum(log_p[at - 1, whole[at]] for at in range(len(prompt), len(whole))))


@pytest.mark.parametrize("changed", [lambda folder: None, begin_with_end_of_text], ids=["plain", "begin of text"])
def test_scores_are_those_of_transformers_after_the_tokens_of_the_models_own_tokenizer(
    tmp_path: Path, changed: Callable[[Path], None]
) -> None:
    model = write_folder(tmp_path / "pot")
    changed(model)
    made = evaluate_model(Store(str(tmp_path / "store")), recipe_in(tmp_path, cloze(tmp_path)), "1", str(model))
    (task,) = scores_of(made.artifact)["tasks"]
    theirs = [by_transformers(model, row) for row in ROWS]
    assert task["metrics"]["log_p"]["value"] == pytest.approx(sum(theirs) / len(theirs), abs=1e-4)
    assert (task["items"], task["decision_metric"]) == (2, "bpb")


def end_with_another_token(folder: Path) -> None:
    """Makes the most likely token after a text a special one that ends a text, beside end-of-text."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    prompt = torch.tensor([tokenizer.encode(ROWS[0]["text"]).ids])
    said = model.generate(prompt, max_new_tokens=9, do_sample=False)[0, prompt.shape[1] + 2 :].tolist()
    tokenizer.add_special_tokens([str(tokenizer.id_to_token(max(said, key=said.count)))])
    tokenizer.save(str(folder / "tokenizer.json"))
    change(folder / "generation_config.json", eos_token_id=[0, max(said, key=said.count)])


@pytest.mark.oracle("lm_eval")
@pytest.mark.parametrize("changed", [lambda folder: None, end_with_another_token], ids=["plain", "another end"])
def test_scores_equal_those_of_lm_eval_on_the_same_folder(tmp_path: Path, changed: Callable[[Path], None]) -> None:
    from lm_eval.models.huggingface import HFLM

    from benchmarks.exports import theirs

    model, tasks = write_folder(tmp_path / "pot"), tasks_in(tmp_path)
    changed(model)
    made = evaluate_model(Store(str(tmp_path / "store")), recipe_in(tmp_path, *tasks), "1", str(model))
    others = theirs(HFLM(pretrained=str(model), device="cpu", dtype="float32", batch_size=8), tasks)
    for score in scores_of(made.artifact)["tasks"]:
        for name, other in others[score["task"]]["metrics"].items():
            assert score["metrics"][name]["value"] == pytest.approx(other["value"], rel=1e-5), score["task"]


def test_the_command_scores_a_model_once_and_names_it_in_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, recipe = write_folder(tmp_path / "pot"), recipe_in(tmp_path, cloze(tmp_path))
    store = Store(str(tmp_path / "store"))
    command = ["evaluate-model", str(model), "--recipe", recipe.model_dump_json(exclude_defaults=True)]
    assert main([*command, "--version", "1"]) == 0
    table = capsys.readouterr().out
    base = imported_model(store, str(model))
    assert table.startswith(f"# {base.address}\n\n## Tasks\n")
    assert "| cloze | 2 | 0 | " in table
    made = f"mine/model_scores/imported-checkpoint-{base.address.version}@1"
    assert str(base.address) in Ledger(store).ancestors(made)
    assert base.ref("model") in Artifact.open_at(store, ArtifactId.parse(made)).record.inputs
    monkeypatch.setattr(Contender, "load", lambda *_: pytest.fail("the model is loaded"))
    assert main([*command, "--version", "1"]) == 0
    assert capsys.readouterr().out == table
    (tmp_path / "cloze.jsonl").write_text(json.dumps(ROWS[0]))
    with pytest.raises(DriftError, match=r"was made with other settings or inputs\. Give another --version"):
        evaluate_model(store, recipe, "1", str(model))


def test_an_interrupted_evaluation_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, recipe = write_folder(tmp_path / "pot"), recipe_in(tmp_path, cloze(tmp_path))
    store = Store(str(tmp_path / "store"))
    with monkeypatch.context() as context:
        context.setattr("tasks.run.evaluate_model.task_table", lambda *_: 1 / 0)  # after the items
        with pytest.raises(ZeroDivisionError):
            evaluate_model(store, recipe, "1", str(model))
    monkeypatch.setattr(Contender, "load", lambda *_: pytest.fail("the model is loaded"))
    assert scores_of(evaluate_model(store, recipe, "1", str(model)).artifact)["tasks"][0]["items"] == 2


def test_held_out_text_has_the_score_that_the_stage_evaluate_gives_it(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "pot")
    made = tokens_in(tmp_path, corpus(40), tokenizer_file=str(model / "tokenizer.json"))
    store = Store(str(tmp_path))
    checkpoint = import_model(store, "pot", "1", str(model)).checkpoint
    inputs = {"checkpoint": checkpoint, "shards": made.shards, "tokenizer": made.tokenizer}
    stage = run_stage_in(tmp_path, "tasks.stages.evaluate.stage", EvaluateConfig(), inputs, kind="scores")
    found = evaluate_model(store, find_recipe("smoke").override({"name": "test"}), "dev", "pot/checkpoint@1").artifact
    theirs = json.loads(stage.read("scores.json"))["sources"]
    assert {name: row["documents"] for name, row in scores_of(found)["sources"].items()} == {
        name: row["documents"] for name, row in theirs.items()
    }
    for name, row in scores_of(found)["sources"].items():
        assert row["bpb"] == pytest.approx(theirs[name]["bpb"], rel=1e-6)
        assert math.isfinite(row["bpb"])


def test_without_tasks_and_held_out_text_there_is_nothing_to_score(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"mine has no tasks, and its version 1 no held-out text\. Add \[\[evaluate"):
        evaluate_model(Store(str(tmp_path)), recipe_in(tmp_path), "1", str(tmp_path / "none"))
