"""Scores of tasks equal those of lm-eval on the same model (if lm-eval is installed)."""

import random
from pathlib import Path

import pytest

from tasks.core.errors import InputError
from tasks.trainer.evaluation.config import TaskConfig
from tasks.trainer.serve import for_lm_eval
from tests.corpora import WORDS
from tests.tasks.stages.evaluate.test_tasks import rows_in

ITEMS = 200


def tasks_in(folder: Path) -> list[TaskConfig]:
    """Tasks of all kinds, in words known to the model; some prompts exceed its context, some end with a space."""
    draw = random.Random(3)

    def words(most: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, most)))

    quiz = [
        {"query": words(12), "choices": [words(3) for _ in range(4)], "gold": number % 4} for number in range(ITEMS)
    ]
    cloze = [{"text": words(4) + draw.choice(["", " "]), "answer": draw.choice(WORDS)} for _ in range(ITEMS)]
    texts = [{"text": words(4), "answer": draw.choice(WORDS)} for _ in range(ITEMS)]
    return [
        TaskConfig(name="quiz", kind="multiple_choice", path=rows_in(folder, quiz, "quiz.jsonl"), prompt="{{query}}:",
                   choices="choices", answer="gold", shots=1, limit=ITEMS),
        TaskConfig(name="cloze", kind="cloze", path=rows_in(folder, cloze, "cloze.jsonl"), prompt="{{text}}",
                   limit=ITEMS),
        TaskConfig(name="texts", kind="generate", path=rows_in(folder, texts, "texts.jsonl"), prompt="{{text}}",
                   stop=("ll", "f"), max_new_tokens=8, extract=r"\w+", limit=ITEMS),
    ]  # fmt: skip


def test_without_lm_eval_the_error_names_the_extra(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lm_eval.api.model", None)
    with pytest.raises(InputError, match="Install the extra lm-eval"):
        for_lm_eval(model_folder)


@pytest.mark.oracle("lm_eval")
def test_scores_equal_those_of_lm_eval(model_folder: Path, tmp_path: Path) -> None:
    from benchmarks.exports import compared, ours, theirs

    tasks = tasks_in(tmp_path)
    found = compared(ours(model_folder, tasks), theirs(for_lm_eval(model_folder), tasks))
    for name, task in found.items():
        assert task["items"] == ITEMS
        assert task["largest_difference"] < 1e-6, name
        assert task["largest_difference_of_stderr"] < 1e-6, name
    assert found["quiz"]["metrics"].keys() == {"acc", "acc_norm", "acc_bytes"}
    assert found["cloze"]["metrics"].keys() == {"acc", "perplexity"}
    assert all(task["metrics"]["acc"][0] > 0 for name, task in found.items() if name != "texts")
    assert found["texts"]["equal_texts"] == ITEMS
    assert found["texts"]["metrics"]["exact_match"][0] > 0
