"""`export --tuned` and `export adapter`: `transformers` and PEFT compute the same, on the same tokens."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.stage import Inputs
from tasks.core.store import Store
from tasks.formats.documents.examples import Examples
from tasks.run.export import export_model
from tasks.run.place import Place
from tasks.run.recipe import find_recipe
from tasks.run.shell import main
from tasks.stages.finetune import ExamplesConfig
from tasks.trainer.interchange import huggingface
from tasks.trainer.model.transformer import Transformer
from tasks.trainer.spec import tuning_spec
from tasks.trainer.tuning.config import FinetuneConfig
from tasks.trainer.tuning.model import build_tuned
from tests.conftest import run_stage_in
from tests.corpora import corpus, tokens_in
from tests.late import transformers
from tests.taken_down import take_down
from tests.tasks.trainer.small_run import small_config

SAID: list[list[tuple[str, str]]] = [
    [("user", "Say water."), ("assistant", "water river")],
    [("system", "Be kind.\n"), ("user", " two  spaces\n\n"), ("assistant", "\n\nnew lines ahead"), ("user", "über?"),
     ("assistant", "строка 数据 😀 \"quoted\" {{ braces }}")],
    [("user", ""), ("assistant", " leading")],
    [("user", "last is the user's"), ("assistant", "x"), ("user", "again")],
]  # fmt: skip
TEMPLATE = {
    "system": {"before": '<<"sys">>\n', "after": "\n"},
    "user": {"before": "Ü {% q %}: ", "after": "\n\n"},
    "assistant": {"before": "A:\n", "after": "\\n\n"},
}


def messages(said: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in said]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a briefly trained base, and examples in a template with unusual characters."""
    folder = tmp_path_factory.mktemp("tuned")
    made = tokens_in(folder, corpus(60))
    config = small_config(mixture={"web": 0.25, "code": 0.5, "my-books": 0.25}, steps=30, milestones=1)
    run_stage_in(
        folder, "tasks.stages.train.stage", config, {"shards": made.shards, "plan": made.plan}, kind="checkpoint"
    )
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps({'messages': messages(said)})}\n" for said in SAID))
    settings = {"files": [str(folder / "rows.jsonl")], "seq_len": 256, "heldout_share": 0, "template": TEMPLATE}
    examples = ExamplesConfig.model_validate(settings)
    run_stage_in(folder, "tasks.stages.finetune.examples", examples, {"tokenizer": made.tokenizer}, kind="examples")
    return folder


def tuned(folder: Path, version: str, **settings: Any) -> Artifact:
    """A fine-tuning that changes the weights noticeably."""
    optim = {"lr": 3e-2, "weight_decay": 0.0, "warmup_steps": 1, "schedule": "cosine"}
    usual = {"base": "test/checkpoint@dev", "steps": 6, "batch_size": 2, "microbatch": 1, "optim": optim}
    config = FinetuneConfig.model_validate({**usual, **settings})
    inputs = {role: opened(folder, kind) for role, kind in (("base", "checkpoint"), ("examples", "examples"))}
    return run_stage_in(folder, "tasks.stages.finetune.stage", config, inputs, kind="finetuned", version=version)


def opened(folder: Path, kind: str, version: str = "dev") -> Artifact:
    return Artifact.open_at(Store(str(folder)), ArtifactId(f"test/{kind}", version))


def as_trained(folder: Path, model: Artifact) -> Transformer:
    """The fine-tuned model: the base with unmerged adapters, or all weights."""
    config = FinetuneConfig.model_validate(model.record.config)
    inputs = Inputs({role: opened(folder, kind) for role, kind in (("base", "checkpoint"), ("examples", "examples"))})
    built = build_tuned(tuning_spec(config, inputs, folder / "unused"))
    built.load_state_dict(load_file(model.local("checkpoints/step-00000006/model.safetensors")))
    return built.eval()


def difference(ours: Transformer, theirs: Any) -> tuple[float, float]:
    """The largest difference of logits, and their distance from those of a uniform model."""
    tokens = torch.randint(ours.vocab_size, (2, 48), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        mine, other = ours(tokens, torch.zeros_like(tokens)), theirs(tokens).logits
    return float((mine - other).abs().max()), float(mine.std())


def exported(folder: Path, version: str, kind: str, out: Path) -> Path:
    return export_model(Store(str(folder)), "test", version, kind, str(out), tuned=True)


def test_the_chat_template_produces_the_tokens_of_training(folder: Path, tmp_path: Path) -> None:
    tuned(folder, "full")
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported(folder, "full", "model", tmp_path / "out"))
    examples = Examples(opened(folder, "examples"))
    for number, said in enumerate(SAID):
        trained = [examples.summary["eos_id"], *examples[number].tokens.tolist()]
        assert tokenizer.apply_chat_template(messages(said))["input_ids"] == trained
        if said[-1][0] == "assistant":
            asked = tokenizer.apply_chat_template(messages(said[:-1]), add_generation_prompt=True)["input_ids"]
            straddles = said[-1][1].startswith("\n")  # its first line break merges with that of the template
            assert (asked == trained[: len(asked)]) is not straddles
            assert tokenizer(huggingface.render_prompt(TEMPLATE, messages(said[:-1])))["input_ids"] == asked
    with pytest.raises(Exception, match="a message has the role tool: known are system, user, assistant"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "x"}])


@pytest.mark.parametrize(
    ("name", "lora"), [("full", None), ("fp32", {"rank": 4, "alpha": 12.0}), ("nf4", {"base": "nf4"})]
)
def test_a_whole_model_computes_the_same_in_transformers(
    folder: Path, tmp_path: Path, name: str, lora: dict[str, Any] | None
) -> None:
    model = tuned(folder, name, lora=lora)
    out = exported(folder, model.address.version, "model", tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    apart, spread = difference(as_trained(folder, model), theirs)
    assert apart <= 1e-4 < 1e-2 < spread
    base = export_model(Store(str(folder)), "test", "dev", "model", str(tmp_path / "base"))
    assert (
        difference(as_trained(folder, model), transformers.AutoModelForCausalLM.from_pretrained(base).eval())[0] > 1e-2
    )
    assert list(json.loads((out / "export.json").read_text())["files"]) == sorted(
        path.name for path in out.iterdir() if path.name != "export.json"
    )


@pytest.mark.oracle("peft")
@pytest.mark.parametrize("targets", [["wq", "wv"], ["wq", "wk", "wv", "wo", "w1", "w2", "w3"]])
def test_adapters_compute_the_same_in_peft(folder: Path, tmp_path: Path, targets: list[str]) -> None:
    import peft

    model = tuned(
        folder, f"adapter-{len(targets)}", lora={"rank": 4, "alpha": 12.0, "targets": targets, "merge": False}
    )
    base = export_model(Store(str(folder)), "test", "dev", "model", str(tmp_path / "base"))
    out = exported(folder, model.address.version, "adapter", tmp_path / "out")
    whole = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    apart, spread = difference(as_trained(folder, model), peft.PeftModel.from_pretrained(whole, out).eval())
    assert apart <= 1e-4 < 1e-2 < spread
    assert difference(as_trained(folder, model), peft.AutoPeftModelForCausalLM.from_pretrained(out).eval())[0] <= 1e-4
    assert transformers.AutoTokenizer.from_pretrained(out).chat_template == huggingface.chat_template(TEMPLATE)


def test_adapters_have_the_names_and_settings_of_peft(folder: Path, tmp_path: Path) -> None:
    model = tuned(folder, "names", lora={"rank": 2, "alpha": 6.0, "targets": ["wq", "w2"], "merge": False})
    out = exported(folder, "names", "adapter", tmp_path / "out")
    weights = load_file(out / "adapter_model.safetensors")
    ours = load_file(model.local("checkpoints/step-00000006/model.safetensors"))
    stem = "base_model.model.model.layers"
    assert torch.equal(weights[f"{stem}.1.self_attn.q_proj.lora_A.weight"], ours["layers.1.attention.wq.lora_a"])
    assert torch.equal(weights[f"{stem}.0.mlp.down_proj.lora_B.weight"], ours["layers.0.ffn.w2.lora_b"])
    assert len(weights) == len(ours) == 8
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 6.0, ["down_proj", "q_proj"])
    # Nothing outside the store has the base, so it is in the folder; an artifact's id names nothing that PEFT can load.
    assert config["base_model_name_or_path"] == str(out / "base")
    base = export_model(Store(str(folder)), "test", "dev", "model", str(tmp_path / "base"))
    assert (out / "base" / "model.safetensors").read_bytes() == (base / "model.safetensors").read_bytes()
    assert "base/config.json" in json.loads((out / "export.json").read_text())["files"]
    with pytest.raises(InputError, match="adapters without their base"):
        exported(folder, "names", "model", tmp_path / "whole")
    tuned(folder, "full")
    with pytest.raises(InputError, match="has no adapters: all weights were trained"):
        exported(folder, "full", "adapter", tmp_path / "none")


def test_the_card_names_base_examples_and_how_much_was_taken_down_and_gguf_has_the_template(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(folder, "full")
    learned = next(iter(corpus(60)))["url"]
    take_down(folder, "t1", urls=learned, reason="asked")
    recipe = find_recipe("smoke").override({"name": "test"}).model_copy(update={"place": Place(store=str(folder))})
    out = tmp_path / "out"
    assert main(["export", "--recipe", recipe.text, "--version", "full", "--tuned", "gguf", str(out)]) == 0
    card = (out / "README.md").read_text()
    assert "# Fine-tuned model of test/finetuned@full" in card
    assert "- `test/checkpoint@dev` " in card
    assert "- of the file rows.jsonl" in card
    assert "- the model has learned from 1 documents that are taken down today" in card
    assert learned not in card
    read = gguf.GGUFReader(out / "model.gguf")
    assert read.get_field("tokenizer.chat_template").contents() == huggingface.chat_template(TEMPLATE)
    capsys.readouterr()
    assert main(["export", "--recipe", recipe.text, "--version", "dev", "--tuned", "model", str(tmp_path / "no")]) == 2
    assert "test@dev has no finetuned" in capsys.readouterr().err
