"""Tasks: scores equal those computed token by token from the model, also after a kill."""

import json
import math
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, cast

import pytest
import torch
from pydantic import ValidationError
from tokenizers import Tokenizer

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.config import parse
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Listener, Output
from tasks.core.store import Store
from tasks.stages.evaluate import stage
from tasks.stages.registry import PromoteConfig
from tasks.trainer.config import TrainConfig
from tasks.trainer.evaluation import scoring
from tasks.trainer.evaluation.config import EvaluateConfig, TaskConfig
from tasks.trainer.evaluation.items import matching_tokenizer, read
from tasks.trainer.evaluation.scoring import decisive
from tasks.trainer.inference import Likelihood, Sampling, Scorer, continuation
from tests.conftest import run_stage_in
from tests.corpora import Made

QUESTIONS = [
    {"query": "the river", "choices": ["of light", "stone", "naïve über valley"], "gold": number % 3, "id": number}
    for number in range(5)
] + [{"query": "строка 数据", "choices": ["return", "import the water"], "gold": 1}]


def rows_in(folder: Path, rows: Iterable[dict[str, Any]], name: str = "rows.jsonl") -> str:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def choices(path: str, **more: Any) -> TaskConfig:
    settings = {
        "name": "quiz",
        "kind": "multiple_choice",
        "prompt": "{{query}}",
        "choices": "choices",
        "answer": "gold",
    }
    return TaskConfig(path=path, **{**settings, **more})


def scorer_of(made: Made, trained: Artifact, step: int = 150) -> Scorer:
    model, described = stage.load(trained, step)
    tokenizer = Tokenizer.from_str(matching_tokenizer(made.tokenizer, described))
    return Scorer(model, tokenizer, described["eos_id"], described["seq_len"], 64)


def evaluated(made: Made, trained: Artifact, folder: Path, *tasks: TaskConfig, **more: Any) -> Artifact:
    inputs = {"checkpoint": trained, "shards": made.shards, "tokenizer": made.tokenizer}
    return run_stage_in(folder, "tasks.stages.evaluate.stage", EvaluateConfig(tasks=tasks, **more), inputs)  # type: ignore[arg-type]


@torch.no_grad()
def by_hand(scorer: Scorer, prompt: str, answer: str) -> float:
    """ln p of an answer, token by token, without batches."""
    tokens = scorer.encode(prompt + answer)
    before = len(scorer.encode(prompt))
    total = 0.0
    for place in range(before, len(tokens)):
        seen = torch.tensor([[scorer.eos_id, *tokens[:place]]])
        logits = scorer.model(seen, torch.zeros_like(seen))[0, -1].float()
        total += float(torch.log_softmax(logits, -1)[tokens[place]])
    return total


def generated(scorer: Scorer, prompt: str) -> list[int]:
    """The tokens of a prompt and four added by greedy decoding."""
    tokens = scorer.encode(prompt)
    return [*tokens, *continuation(scorer.model, tokens, scorer.eos_id, 32, Sampling(max_tokens=4))]


def test_a_choice_is_scored_by_likelihood_and_normalized_by_tokens_and_bytes(
    made: Made, trained: Artifact, tmp_path: Path
) -> None:
    task = choices(rows_in(tmp_path, QUESTIONS))
    (score,) = json.loads(evaluated(made, trained, tmp_path, task).read("scores.json"))["tasks"]
    scorer, items = scorer_of(made, trained), []
    for row in QUESTIONS:
        log_p = [by_hand(scorer, row["query"], f" {choice}") for choice in row["choices"]]
        sizes = {"acc": [1] * len(log_p), "acc_norm": [len(choice) for choice in row["choices"]],
                 "acc_bytes": [len(choice.encode()) for choice in row["choices"]]}  # fmt: skip
        ranked = {name: [one / size for one, size in zip(log_p, of, strict=True)] for name, of in sizes.items()}
        right = {name: float(of.index(max(of)) == row["gold"]) for name, of in ranked.items()}
        items.append({**right, "bpb": -ranked["acc_bytes"][row["gold"]] / math.log(2)})
    assert score["items"] == len(QUESTIONS)
    for name, found in score["metrics"].items():
        values = [item[name] for item in items]
        assert found["value"] == pytest.approx(fmean(values), rel=1e-5)
        assert found["stderr"] == pytest.approx(stdev(values) / math.sqrt(len(values)), rel=1e-5)
    assert score["metrics"].keys() == {"acc", "acc_norm", "acc_bytes", "bpb"}
    assert (score["decision_metric"], score["contamination"]) == ("bpb", None)


def test_a_cloze_answer_is_correct_if_greedy_decoding_produces_it(
    made: Made, trained: Artifact, tmp_path: Path
) -> None:
    scorer = scorer_of(made, trained)
    # Only texts that encode to the generated tokens: of others, greedy decoding gives another form.
    texts = [
        "the river",
        "stone light valley",
        "return import",
        "valley",
        "the stone",
        "light",
        "import the",
        "river of",
    ]
    answers = {text: scorer.greedy([text], 4, [])[0] for text in texts}
    prompts = [text for text in texts if scorer.encode(text + answers[text]) == generated(scorer, text)][:3]
    greedy = [answers[prompt] for prompt in prompts]
    rows = [{"prompt": p, "answer": answer} for p, answer in zip([*prompts, "the of"], [*greedy, "zzz"], strict=True)]
    task = TaskConfig(
        name="words", kind="cloze", path=rows_in(tmp_path, rows), prompt="{{prompt}}", delimiter="", limit=4
    )
    (score,) = json.loads(evaluated(made, trained, tmp_path, task).read("scores.json"))["tasks"]
    assert score["metrics"]["acc"]["value"] == 0.75
    log_p = fmean(by_hand(scorer, row["prompt"], row["answer"]) for row in rows)
    assert score["metrics"]["log_p"]["value"] == pytest.approx(log_p, rel=1e-5)
    assert score["metrics"]["perplexity"]["value"] == pytest.approx(math.exp(-log_p), rel=1e-4)


def test_generated_text_ends_before_the_first_stop_and_is_compared_with_every_answer(
    made: Made, trained: Artifact, tmp_path: Path
) -> None:
    scorer = scorer_of(made, trained)
    ids = continuation(scorer.model, scorer.encode("the river"), scorer.eos_id, 32, Sampling(max_tokens=12))
    whole = scorer.tokenizer.decode(ids)
    stop = whole.strip()[3:5]
    first = whole.partition(stop)[0]
    assert first != whole, "the stop text is in it"
    rows = [{"q": "the river", "answer": ["other", first.strip()]}, {"q": "the river", "answer": f"{first.strip()}x"}]
    task = TaskConfig(name="texts", kind="generate", path=rows_in(tmp_path, rows), prompt="{{q}}", stop=(stop,),
                      max_new_tokens=12)  # fmt: skip
    made_ = evaluated(made, trained, tmp_path, task)
    (score,) = json.loads(made_.read("scores.json"))["tasks"]
    assert score["metrics"]["exact_match"]["value"] == 0.5
    (path,) = made_.files("tasks/")
    assert made_.table(path).column("text").to_pylist() == [first, first]


def test_greedy_text_is_the_same_alone_and_in_a_batch(made: Made, trained: Artifact) -> None:
    scorer = scorer_of(made, trained)
    prompts = ["the", "stone light valley of the", "строка", "naïve über"]
    assert scorer.greedy(prompts, 10, ["t"]) == [scorer.greedy([prompt], 10, ["t"])[0] for prompt in prompts]


def test_few_shot_examples_are_the_first_rows_other_than_the_item(tmp_path: Path) -> None:
    rows = [{"query": f"q{number}", "choices": ["no", "yes"], "gold": number % 2} for number in (0, 0, 1, 2)]
    task = choices(rows_in(tmp_path, rows), prompt="{{query}}:", shots=2)
    assert [item.prompt for item in read(task)] == [
        "q1: yes\n\nq2: no\n\nq0:",
        "q1: yes\n\nq2: no\n\nq0:",
        "q0: no\n\nq0: no\n\nq1:",
        "q0: no\n\nq0: no\n\nq2:",
    ]


class _Kept(Listener):
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.steps: dict[int, dict[str, float]] = {}

    def metrics(self, step: int, values: Any) -> None:
        self.steps[step] = dict(values)

    def file(self, name: str, data: bytes) -> None:
        self.files[name] = data


def _inputs(made: Made, trained: Artifact) -> Inputs:
    return Inputs({"checkpoint": trained, "shards": made.shards, "tokenizer": made.tokenizer})


def _output(folder: Path) -> Output:
    return Output(Store(str(folder)), ArtifactId("test/scores", "dev"), "f" * 64)


def test_the_last_milestones_are_scored_and_shown_by_step(made: Made, trained: Artifact, tmp_path: Path) -> None:
    config = EvaluateConfig(tasks=(choices(rows_in(tmp_path, QUESTIONS)),), task_milestones=2)
    output, kept = _output(tmp_path), _Kept()
    output.listen(kept)
    report = stage.run(config, _inputs(made, trained), output, Engine())
    assert list(kept.steps) == [100, 150]
    assert kept.files["tasks.png"].startswith(b"\x89PNG")
    lines = kept.files["tasks.md"].decode().splitlines()
    assert [line.split(" | ")[0] for line in lines if "quiz" in line] == ["| 100", "| 150"]
    assert all("**bpb " in line and "not looked for" in line for line in lines if "quiz" in line)
    assert report.metrics["task/quiz/bpb"] == kept.steps[150]["task_by_step/quiz/bpb"]
    assert kept.steps[100] != kept.steps[150]


def test_a_killed_evaluation_resumes_at_the_first_missing_part(
    made: Made, trained: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "ITEMS_PER_PART", 2)
    config = EvaluateConfig(tasks=(choices(rows_in(tmp_path, QUESTIONS)),))
    whole = _output(tmp_path / "whole")
    stage.run(config, _inputs(made, trained), whole, Engine())
    calls: list[int] = []
    likelihoods = Scorer.likelihoods

    def dies(scorer: Scorer, requests: Any) -> list[Likelihood]:
        calls.append(len(requests))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return likelihoods(scorer, requests)

    monkeypatch.setattr(Scorer, "likelihoods", dies)
    with pytest.raises(KeyboardInterrupt):
        stage.run(config, _inputs(made, trained), _output(tmp_path / "killed"), Engine())
    resumed = _output(tmp_path / "killed")
    stage.run(config, _inputs(made, trained), resumed, Engine())
    assert calls == [6, 6, 6, 5], "the first part was not scored again"
    assert {name: record.files for name, record in resumed.committed.items()} == {
        name: record.files for name, record in whole.committed.items()
    }


@pytest.mark.parametrize(
    ("row", "more", "said"),
    [
        ({"query": "q", "choices": ["a"]}, {}, 'rows.jsonl:2 of the task "quiz": no field "gold"'),
        ({"query": "q", "choices": ["a"], "gold": 1}, {}, '"gold" is 1, which is none of 1 choices'),
        ({"query": "q", "choices": "ab", "gold": 1}, {}, '"choices" has a value that is not text'),
        ({"question": "q", "choices": ["a"], "gold": 0}, {}, "'query' is undefined"),
        ({"query": "q", "choices": ["a"], "gold": 0}, {"prompt": "{{query"}, "is not a Jinja template"),
        ({"query": "q", "choices": ["a"], "gold": 0}, {"shots": 2}, "has 1 rows to take 2 examples from"),
    ],
)
def test_an_unreadable_row_is_named(tmp_path: Path, row: dict[str, Any], more: dict[str, Any], said: str) -> None:
    path = rows_in(tmp_path, [{"query": "p", "choices": ["a", "b"], "gold": 1}, row])
    with pytest.raises(InputError) as caught:
        list(read(choices(path, **more)))
    assert said in str(caught.value)


@pytest.mark.parametrize("kind", ["multiple_choice", "cloze", "generate"])
def test_a_likelihood_that_is_not_finite_is_refused_with_its_item(
    made: Made, trained: Artifact, tmp_path: Path, kind: str
) -> None:
    scorer = scorer_of(made, trained)
    with torch.no_grad():
        cast(Any, scorer.model.norm).weight.fill_(3e38)  # finite, but the logits are not
    row = {"id": "first", "query": "the river", "choices": ["of light", "stone"], "gold": 0, "answer": "stone"}
    fields = {"choices": "choices", "answer": "gold"} if kind == "multiple_choice" else {}
    more = {"kind": kind, **({"max_new_tokens": 2} if kind == "generate" else {})}
    task = TaskConfig(name="quiz", prompt="{{query}}", path=rows_in(tmp_path, [row] * 2), **fields, **more)
    output = Output(Store(str(tmp_path)), ArtifactId("test/scores", "1"), "by-hand")
    with pytest.raises(InputError, match=r'of the task "quiz": the model gives no finite likelihood'):
        scoring.score_task(task, "0", lambda: scorer, output)
    assert not output.committed


def test_an_unscorable_answer_is_named(made: Made, trained: Artifact, tmp_path: Path) -> None:
    task = choices(rows_in(tmp_path, [{"query": "q", "choices": ["a", "b " * 50], "gold": 0}]))
    with pytest.raises(InputError, match=r'rows.jsonl:1 of the task "quiz": .* and the context 32'):
        evaluated(made, trained, tmp_path, task)
    merged = rows_in(tmp_path, [{"query": "wate", "answer": "r"}])
    task = TaskConfig(name="cloze", kind="cloze", path=merged, prompt="wate", delimiter="")
    with pytest.raises(InputError, match=r'rows.jsonl:1 of the task "cloze": an answer has no token of its own'):
        evaluated(made, trained, tmp_path, task)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"choices": ""}, "names the field with the choices"),
        ({"stop": ("x",)}, "only for generate"),
        ({"path": "rows.jsonl"}, "is not absolute"),
        ({"shots_path": "/rows.jsonl"}, "without shots nothing is read from it"),
        ({"extract": "("}, "not a regular expression"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        choices("/rows.jsonl") and choices(**{"path": "/rows.jsonl", **settings})


def test_the_settings_in_the_documentation_are_valid() -> None:
    text = (Path(__file__).parents[4] / "docs" / "evaluation.md").read_text()
    blocks = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", text, re.S)]
    sections = {"evaluate": EvaluateConfig, "promote": PromoteConfig, "train": TrainConfig}
    found = [(name, parse(sections[name], given, "evaluation.md")) for block in blocks for name, given in block.items()]
    assert [name for name, _ in found] == ["evaluate", "train", "evaluate", "promote"]
    assert [task.kind for task in found[0][1].tasks] == ["multiple_choice", "cloze", "generate"]  # type: ignore[attr-defined]


def test_a_small_model_is_compared_by_bits_per_byte_and_a_large_one_by_accuracy() -> None:
    assert decisive("multiple_choice", 749_999_999) == "bpb"
    assert decisive("multiple_choice", 750_000_000) == "acc_norm"
