"""The stage: examples in, a model out that has learned them, with the code of pretraining."""

import hashlib
import json
from collections import Counter
from pathlib import Path
from statistics import fmean

import pytest
import torch
from safetensors.torch import load
from tokenizers import Tokenizer

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.stage import Inputs
from tasks.formats.documents.examples import Examples
from tasks.run.trace.trace import trace_tuned
from tasks.trainer.config import LoraConfig
from tasks.trainer.data.batches import ExampleBatches
from tasks.trainer.model import model_file
from tasks.trainer.place import TrainPlace
from tasks.trainer.spec import tuning_spec
from tasks.trainer.tuning.config import FinetuneConfig
from tests.conftest import run_stage_in
from tests.corpora import Made
from tests.tasks.stages.finetune.conftest import INSTRUCTIONS, PREFERENCES, Make
from tests.tasks.trainer.in_process import in_process

__all__ = ["in_process"]

STAGE = "tasks.stages.finetune.stage"
BASE = "test/checkpoint@dev"


def config(**settings: object) -> FinetuneConfig:
    optim = {"lr": 1e-2, "weight_decay": 0.0, "warmup_steps": 2, "schedule": "cosine"}
    usual = {"base": BASE, "steps": 16, "batch_size": 4, "microbatch": 2, "checkpoint_every": 4, "optim": optim}
    return FinetuneConfig.model_validate({**usual, **settings})


def tune(
    folder: Path, base: Artifact, examples: Artifact, settings: FinetuneConfig, place: TrainPlace | None = None
) -> Artifact:
    return run_stage_in(folder, STAGE, settings, {"base": base, "examples": examples}, kind="finetuned", place=place)


def losses(artifact: Artifact) -> list[float]:
    return artifact.table("loss.parquet")["loss"].to_pylist()


@pytest.mark.parametrize(
    ("lora", "kind"),
    [(None, "sft"), ({"rank": 4}, "sft"), ({"rank": 4, "base": "nf4"}, "sft"), (None, "dpo"), ({"rank": 4}, "dpo")],
)
def test_the_loss_falls(
    base: Artifact, examples: Make, tmp_path: Path, lora: dict[str, object] | None, kind: str
) -> None:
    rows = examples(INSTRUCTIONS) if kind == "sft" else examples(PREFERENCES, kind="preferences")
    made = tune(tmp_path, base, rows, config(lora=lora, loss=kind))
    found = losses(made)
    assert fmean(found[-4:]) < 0.9 * fmean(found[:4])
    if kind == "dpo":
        assert found[0] == pytest.approx(0.6931, abs=1e-4)  # -log sigmoid(0): the model equals its reference


@pytest.mark.parametrize("count", [1, 12])
def test_the_model_reads_what_its_base_reads_or_the_longest_text_it_has_learned(
    base: Artifact, examples: Make, tmp_path: Path, count: int
) -> None:
    short = {"user": {"before": "", "after": "\n"}, "assistant": {"before": "", "after": ""}}
    rows = examples([{"prompt": "a", "response": "the river " * count, "id": n} for n in range(2)], template=short)
    lengths = Examples(rows)[0].lengths
    made = tune(tmp_path, base, rows, config(steps=1))
    assert json.loads(base.read("model.json"))["seq_len"] == 32
    assert (max(lengths) > 32) is (count > 1)
    assert json.loads(made.read("model.json"))["seq_len"] == max(32, *lengths)


def test_an_adapter_leaves_the_base_and_the_merged_model_is_whole(
    base: Artifact, examples: Make, tmp_path: Path
) -> None:
    made = tune(tmp_path, base, examples(INSTRUCTIONS), config(lora=LoraConfig(rank=2, targets=("wq",))))
    adapter = load(made.read("checkpoints/step-00000016/model.safetensors"))
    assert {name.rpartition(".")[2] for name in adapter} == {"lora_a", "lora_b"}
    before = load(base.read("checkpoints/step-00000150/model.safetensors"))
    after = load(made.read("merged/model.safetensors"))
    assert sorted(after) == sorted(before)
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {f"layers.{layer}.attention.wq.weight" for layer in (0, 1)}
    model_file.load_model(Path(made.local("model.json")), Path(made.local("merged/model.safetensors")))


@pytest.mark.soak
def test_a_fine_tuned_model_can_be_tuned_again(base: Artifact, examples: Make, tmp_path: Path) -> None:
    taught = tune(tmp_path / "1", base, examples(INSTRUCTIONS), config(lora={"rank": 4}))
    again = tune(tmp_path / "2", taught, examples(INSTRUCTIONS), config(base="test/finetuned@dev", steps=2))
    assert losses(again)[0] < 0.9 * losses(taught)[0]
    bare = tune(tmp_path / "3", base, examples(INSTRUCTIONS), config(lora={"rank": 4, "merge": False}, steps=2))
    with pytest.raises(InputError, match="adapters without their base"):
        tune(tmp_path / "4", bare, examples(INSTRUCTIONS), config(base="test/finetuned@dev"))


def test_examples_of_the_other_kind_are_refused(base: Artifact, examples: Make, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"reads preferences, and .* has instructions"):
        tune(tmp_path, base, examples(INSTRUCTIONS), config(loss="dpo"))


def test_a_step_names_the_rows_it_read(made: Made, base: Artifact, examples: Make, tmp_path: Path) -> None:
    rows = examples(INSTRUCTIONS)
    tuned = tune(tmp_path / "store", base, rows, config())
    spec = tuning_spec(config(), Inputs({"base": base, "examples": rows}), tmp_path / "run")
    tokenizer = Tokenizer.from_str(made.tokenizer.read("tokenizer.json").decode())
    parts = ExampleBatches(spec).microbatches(3, [0, 1]).values()
    text = " ".join(tokenizer.decode(tokens.tolist()) for part in parts for tokens in part.tokens)
    found = trace_tuned(tuned.store, "test", "dev", 3).to_json()["rows"]
    assert all(row["file"] == "rows.jsonl" and INSTRUCTIONS[row["line"] - 1]["id"] == row["id"] for row in found)
    prompts = Counter(INSTRUCTIONS[row["line"] - 1]["prompt"] for row in found)
    assert prompts
    assert prompts == {row["prompt"]: n for row in INSTRUCTIONS if (n := text.count(row["prompt"]))}
    with pytest.raises(InputError, match="Its steps are 0 to 15"):
        trace_tuned(tuned.store, "test", "dev", 16)


def contents(artifact: Artifact) -> dict[str, str]:
    return {path: hashlib.sha256(artifact.read(path)).hexdigest() for path in artifact.files()}
