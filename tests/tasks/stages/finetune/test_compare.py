"""Compares a fine-tuned model with its base on the same examples and documents, and registers it."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.formats.documents.examples import HELDOUT, Examples
from tasks.stages.finetune import TunedConfig
from tasks.trainer.model import model_file
from tasks.trainer.serve import TextModel
from tests.conftest import run_stage_in
from tests.corpora import Made
from tests.late import transformers
from tests.tasks.stages.finetune.conftest import COLOURS, INSTRUCTIONS, PREFERENCES, Make
from tests.tasks.stages.finetune.test_stage import STAGE, config
from tests.tasks.trainer.in_process import in_process

__all__ = ["in_process"]

SHORT = {"user": {"before": "Q", "after": " "}, "assistant": {"before": "A", "after": "\n"}}
"""So that examples fit into the context of the base: 32 tokens."""


def beside(base: Artifact, examples: Artifact, version: str, **settings: Any) -> Artifact:
    """A fine-tuning in the store of its base, according to its record."""
    inputs = {"base": base, "examples": examples}
    made = config(**settings)
    return run_stage_in(base.store.root, STAGE, made, inputs, kind="finetuned", version=version)


def compared(folder: Path, made: Made, tuned: Artifact, examples: Artifact, **evaluate: Any) -> Artifact:
    settings = TunedConfig.model_validate({"evaluate": {"max_tokens": 2_000, **evaluate}})
    inputs = {"finetuned": tuned, "examples": examples, "tokenizer": made.tokenizer}
    return run_stage_in(folder, "tasks.stages.finetune.compare", settings, inputs, kind="tuned_scores")


def rows_of(scores: Artifact) -> dict[str, dict[str, Any]]:
    return {f"{row['kind']} {row['name']}": row for row in json.loads(scores.read("comparison.json"))["rows"]}


def fits(examples: Examples) -> list[int]:
    """The examples that fit into the context of the base."""
    return [number for number in range(int(examples.firsts[-1])) if max(examples[number].lengths) <= 32]


def bits_by_hand(model: Artifact, weights: str, examples: Examples, text: int = 0) -> list[float]:
    """Bits of the learned tokens of each example, one at a time, from all logits."""
    loaded, _ = model_file.load_model(Path(model.local("model.json")), Path(model.local(weights)))
    found = []
    for number in range(int(examples.firsts[-1])):
        row = examples[number]
        first = sum(row.lengths[:text])
        tokens, learned = (part[first : first + row.lengths[text]] for part in (row.tokens, row.learned))
        inputs = torch.tensor([[examples.summary["eos_id"], *tokens[:-1].tolist()]])
        with torch.no_grad():
            p = torch.log_softmax(loaded(inputs, torch.zeros_like(inputs))[0].double(), dim=-1)
        at = np.flatnonzero(learned)
        found.append(-float(p[at, tokens[at].astype(int)].sum()) / math.log(2))
    return found


BASE_WEIGHTS = "checkpoints/step-00000150/model.safetensors"


def test_base_and_model_are_compared_on_held_out_examples_text_and_tasks(
    made: Made, base: Artifact, examples: Make, tmp_path: Path
) -> None:
    said = [{"prompt": f"{n}?", "response": f"{COLOURS[n % 6]} {n}"} for n in range(60)]
    rows = examples(said, heldout_share=0.3, template=SHORT)
    tuned = beside(base, rows, "compared", steps=40, lora={"rank": 4})
    (tmp_path / "task.jsonl").write_text(
        "".join(f'{{"q": "Say {word} 1 times.", "a": "{word}"}}\n' for word in COLOURS)
    )
    task = {"name": "colours", "kind": "cloze", "path": str(tmp_path / "task.jsonl"), "prompt": "{{q}}", "answer": "a"}
    scores = compared(tmp_path / "scores", made, tuned, rows, tasks=[task])
    found = rows_of(scores)
    assert set(found) == {"source code", "source my-books", "source web", "task colours", "examples responses"}
    held = Examples(rows, HELDOUT)
    fitting = fits(held)
    responses = [said[held[n].origin["line"] - 1]["response"] for n in fitting]
    size = [len(str(response)) + 1 for response in responses]
    row = found["examples responses"]
    assert row["items"] == len(size) > 5
    for name, (model, weights) in {
        "first": (base, BASE_WEIGHTS),
        "second": (tuned, "merged/model.safetensors"),
    }.items():
        bits = [bits_by_hand(model, weights, held)[number] for number in fitting]
        assert row[name] == pytest.approx(sum(bits) / sum(size), rel=1e-5)
    assert row["difference"] == pytest.approx(row["first"] - row["second"])
    assert row["interval"][0] > 0, "it has learned the form of the responses"
    assert scores.record.metrics["examples/responses/low"] == row["interval"][0]
    table = scores.read("comparison.md").decode()
    assert f"| examples responses | bpb | {row['items']} | {row['first']:.4f} | {row['second']:.4f} |" in table
    assert "examples responses" in scores.record.note


def test_preferences_are_scored_by_the_share_of_pairs_with_a_likelier_chosen_answer(
    made: Made, base: Artifact, examples: Make, tmp_path: Path
) -> None:
    rows = examples(PREFERENCES, kind="preferences", heldout_share=0.4, template=SHORT)
    tuned = beside(base, rows, "preferred", loss="dpo", steps=8)
    found = rows_of(compared(tmp_path / "scores", made, tuned, rows))
    held = Examples(rows, HELDOUT)
    for name, (model, weights) in {
        "first": (base, BASE_WEIGHTS),
        "second": (tuned, "checkpoints/step-00000008/model.safetensors"),
    }.items():
        chosen, rejected = (np.array(bits_by_hand(model, weights, held, text))[fits(held)] for text in (0, 1))
        assert found["examples preferences"][name] == pytest.approx((chosen < rejected).mean())


def test_both_models_use_the_shorter_context_and_longer_examples_are_skipped(
    made: Made, base: Artifact, examples: Make, tmp_path: Path
) -> None:
    long = [{**row, "response": f"{row['response']}{'grey ' * (n % 9)}"} for n, row in enumerate(INSTRUCTIONS)]
    rows = examples(long, heldout_share=0.3, template=SHORT)
    tuned = beside(base, rows, "short", steps=2)
    scores = compared(tmp_path / "scores", made, tuned, rows)
    held = Examples(rows, HELDOUT)
    assert json.loads(scores.read("comparison.json"))["context"] == 32
    assert rows_of(scores)["examples responses"]["items"] == len(fits(held)) < int(held.firsts[-1])


def test_the_registered_model_answers_messages_and_names_its_lineage(
    made: Made, base: Artifact, examples: Make, tmp_path: Path
) -> None:
    rows = examples(INSTRUCTIONS, heldout_share=0.3, template=SHORT)
    tuned = beside(base, rows, "registered", steps=30, lora={"rank": 4})
    scores = compared(tmp_path / "scores", made, tuned, rows)
    inputs = {"finetuned": tuned, "examples": rows, "tokenizer": made.tokenizer, "tuned_scores": scores}
    settings = TunedConfig.model_validate({"evaluate": {}})
    model = run_stage_in(tmp_path, "tasks.stages.finetune.register", settings, inputs, kind="tuned_model")
    folder = Path(model.local("model/model.json")).parent
    served = TextModel(folder)
    said = [{"role": "user", "content": "Say green 2 times."}]
    texts = served.predict([said, {"messages": said}, "QSay green 2 times. A"])
    assert texts[0] == texts[1] == texts[2]
    assert texts[0]
    lineage = json.loads((folder / "lineage.json").read_text())
    assert lineage["initial"]["artifact"] == "test/checkpoint@dev"
    assert lineage["scores"]["tuned"] == "test/finetuned@registered"
    assert transformers.AutoModelForCausalLM.from_pretrained(folder).num_parameters() > 0
    with pytest.raises(InputError, match="a message cannot be read"):
        served.predict([[{"role": "tool", "content": "x"}]])
    untuned = folder.parent / "untuned"
    untuned.mkdir()
    for path in folder.iterdir():
        (untuned / path.name).write_bytes(path.read_bytes())
    described = json.loads((folder / "model.json").read_text())
    (untuned / "model.json").write_text(json.dumps({name: described[name] for name in described if name != "template"}))
    with pytest.raises(InputError, match="was not fine-tuned and accepts no messages"):
        TextModel(untuned).predict([said])
