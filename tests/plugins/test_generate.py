"""A prompt that the model of a version continues, in a child process, and the explanation of its text."""

from pathlib import Path

import pytest
from sluice_ui import answers

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.formats.tokens.exposure import tokenizer_of
from tasks.trainer import answering
from tasks.trainer.answering import continue_text
from tasks.trainer.serve import TextModel
from tests.conftest import run_stage_in
from tests.corpora import tokens_in
from tests.plugins.conftest import HOSTILE
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.small_run import small_config


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("model")
    made = tokens_in(folder)
    inputs = {"shards": made.shards, "plan": made.plan}
    with training_in_process():
        return run_stage_in(folder, "tasks.stages.train.stage", small_config(), inputs, kind="checkpoint")


def test_the_text_is_that_of_the_last_weights_for_prompt_and_seed(model: Artifact, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(model)
    assert tokenizer
    weights = "checkpoints/step-00000012/model.safetensors"
    for source, path in ((model, "model.json"), (tokenizer, "tokenizer.json"), (model, weights)):
        (tmp_path / Path(path).name).write_bytes(source.read(path))
    (expected,) = TextModel(tmp_path).predict("some words", {"max_tokens": 12, "temperature": 1.0, "seed": 3})
    assert continue_text(model, "some words", 12, 1.0, 3) == expected


def test_a_machine_answers_one_question_at_a_time(model: Artifact) -> None:
    with answering._alone(), pytest.raises(InputError, match="is answering another question"):
        continue_text(model, "some words", 1, 0.0, 0)


def test_a_model_that_is_too_large_for_a_server_is_refused(model: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "MOST_WEIGHTS", 1000)
    with pytest.raises(InputError, match="a server reads 0 MB"):
        continue_text(model, "some words", 1, 0.0, 0)


def test_an_answer_that_takes_too_long_is_ended(model: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "TIMEOUT_S", 0.01)
    with pytest.raises(InputError, match="the answer took longer than"):
        continue_text(model, "some words", 1, 0.0, 0)


def test_a_child_without_enough_memory_says_so(model: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "_WORK_BYTES", -3 * answering.weights_bytes(model))
    with pytest.raises(InputError, match=r"memory|the answer failed"):
        continue_text(model, "some words", 1, 0.0, 0)


def test_the_generated_text_is_shown_after_its_prompt_and_explained(recipes, model, browse, monkeypatch) -> None:
    recipes("test")
    monkeypatch.setenv("SLUICE_STORE", model.store.root)
    monkeypatch.setattr(answers, "continue_text", lambda *asked: HOSTILE + str(asked[2:]))
    form = {"recipe": "test", "version": "dev", "prompt": "begin " + HOSTILE, "tokens": "9", "seed": "4"}
    text = browse("viewer", "POST", "/sluice/generate", data=form).text
    assert "<img" not in text
    assert text.index("begin &lt;script") < text.index("(9, 0.8, 4)")
    assert "test/checkpoint@dev continues the prompt" in text
    assert browse("viewer", "POST", "/sluice/generate", data={**form, "tokens": "9999"}).status_code == 422


def test_a_version_without_a_model_offers_no_prompt(get, corpus, tmp_path: Path) -> None:
    text = get("/sluice/explain?recipe=shown&version=v1").text
    assert "Continue and explain" not in text
    assert '<form action="/sluice/explain" method="post">' in text
