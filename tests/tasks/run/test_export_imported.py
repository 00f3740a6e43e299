"""What an import and a fine-tuning do not change goes out as it came in: tokenizer, tokens that stop, context."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.documents.examples import Examples
from tasks.run.evaluate_model import evaluate_model
from tasks.run.export import export_model
from tasks.run.import_model import import_model
from tasks.run.shell import main
from tasks.trainer.evaluation.config import TaskConfig
from tasks.trainer.evaluation.items import CUT
from tasks.trainer.interchange.model_folder import SOURCE_FILES
from tasks.trainer.serve import TextModel
from tests.late import transformers
from tests.tasks.run.test_evaluate_model import recipe_in
from tests.tasks.stages.evaluate.test_tasks import rows_in
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.interchange.chat_templates import tokenizer_json, write_chat_folder
from tests.tasks.trainer.interchange.model_folders import CONTEXT, END, change, write_folder

BEGIN, TURN = "<|begin_of_text|>", "<|eot_id|>"
TEXT = "The river runs to the sea."


def llama3(folder: Path) -> Path:
    """A base whose tokenizer puts a token before a text, with two tokens that stop, and a token for padding."""
    write_chat_folder(folder, "Llama 3.1")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, begin)])
    tokenizer.save(str(folder / "tokenizer.json"))
    more = {"pad_token": "<|end_of_text|>", "chat_template": None, "added_tokens_decoder": {}}
    change(folder / "tokenizer_config.json", **more)
    ids = [tokenizer.token_to_id(token) for token in (TURN, "<|eom_id|>")]
    change(folder / "generation_config.json", bos_token_id=begin, eos_token_id=ids, temperature=0.6, do_sample=True)
    change(folder / "config.json", bos_token_id=begin, eos_token_id=ids)
    return folder


def qwen(folder: Path) -> Path:
    """A base with no token before a text, whose padding only `config.json` states, with more rows than tokens."""
    write_folder(folder, family="qwen2", vocab_size=512)
    (folder / "tokenizer.json").write_text(tokenizer_json("Qwen 3"))
    tokenizer = Tokenizer.from_str(tokenizer_json("Qwen 3"))
    end, turn = (tokenizer.token_to_id(token) for token in (END, "<|im_end|>"))
    change(folder / "config.json", eos_token_id=turn, bos_token_id=end, pad_token_id=end)
    change(folder / "tokenizer_config.json", eos_token={"content": "<|im_end|>"}, add_bos_token=False)
    (folder / "special_tokens_map.json").write_text('{"eos_token": "<|im_end|>"}')
    (folder / "added_tokens.json").write_text(json.dumps({"<think>": tokenizer.token_to_id("<think>")}))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}é{{ m.content }}{% endfor %}")
    (folder / "generation_config.json").unlink()
    return folder


BASES: dict[str, Callable[[Path], Path]] = {"llama 3": llama3, "qwen": qwen}


def named_ids(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "config.json").read_text())
    return {name: content.get(name, "absent") for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


@pytest.mark.parametrize("base", BASES)
def test_an_unchanged_model_goes_out_as_it_came_in(tmp_path: Path, base: str) -> None:
    source, store = BASES[base](tmp_path / "in"), Store(str(tmp_path / "store"))
    import_model(store, "smol", "1", str(source))
    out = export_model(store, "smol", "1", "model", str(tmp_path / "out"))
    for name in {"tokenizer.json", *SOURCE_FILES} - {"config.json"}:
        before, after = (folder / name for folder in (source, out))
        assert before.exists() == after.exists(), name
        assert not before.exists() or before.read_bytes() == after.read_bytes(), name
    assert named_ids(out) == named_ids(source)
    theirs, ours = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (source, out))
    assert ours(TEXT).input_ids == theirs(TEXT).input_ids
    assert (ours.bos_token, ours.eos_token, ours.pad_token) == (theirs.bos_token, theirs.eos_token, theirs.pad_token)
    models = (transformers.AutoModelForCausalLM.from_pretrained(folder) for folder in (source, out))
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "do_sample", "temperature")
    theirs, ours = ({name: getattr(model.generation_config, name) for name in names} for model in models)
    assert ours == theirs


def fields_of(folder: Path) -> dict[str, Any]:
    """The fields of `model.gguf` about tokens."""
    reader = gguf.GGUFReader(folder / "model.gguf")
    prefix = "tokenizer.ggml."
    return {name.removeprefix(prefix): reader.get_field(name).contents() for name in reader.fields if prefix in name}


@pytest.mark.parametrize("base", BASES)
def test_gguf_has_the_tokens_before_a_text_and_the_kinds_of_tokens_of_the_tokenizer(tmp_path: Path, base: str) -> None:
    source, store = BASES[base](tmp_path / "in"), Store(str(tmp_path / "store"))
    import_model(store, "smol", "1", str(source))
    fields = fields_of(export_model(store, "smol", "1", "gguf", str(tmp_path / "out")))
    assert fields["add_bos_token"] is (base == "llama 3")
    assert fields["add_eos_token"] is False
    tokens, kinds = fields["tokens"], [gguf.TokenType(kind).name for kind in fields["token_type"]]
    named = {name: tokens[fields[f"{name}_token_id"]] for name in ("bos", "eos", "eot") if f"{name}_token_id" in fields}
    of = dict(zip(tokens, kinds, strict=True))
    if base == "llama 3":
        assert named == {"bos": BEGIN, "eos": TURN, "eot": "<|eom_id|>"}
        assert (of[BEGIN], kinds.count("USER_DEFINED"), "UNUSED" in kinds) == ("CONTROL", 0, False)
    else:
        assert named == {"bos": END, "eos": "<|im_end|>"}
        assert (of["<think>"], of["<|im_end|>"], kinds[-1]) == ("USER_DEFINED", "CONTROL", "UNUSED")
    assert kinds.count("NORMAL") > 200


def test_gguf_refuses_a_tokenizer_that_puts_two_tokens_before_a_text(tmp_path: Path) -> None:
    source, store = llama3(tmp_path / "in"), Store(str(tmp_path / "store"))
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    two = [(BEGIN, tokenizer.token_to_id(BEGIN))]
    tokenizer.post_processor = TemplateProcessing(single=f"{BEGIN} {BEGIN} $A", special_tokens=two)
    tokenizer.save(str(source / "tokenizer.json"))
    import_model(store, "smol", "1", str(source))
    with pytest.raises(InputError, match=r"puts 2 tokens before a text and 0 after it; GGUF has one"):
        export_model(store, "smol", "1", "gguf", str(tmp_path / "out"))


RECIPE = """
name = "mine"

[examples]
files = ["{folder}/rows.jsonl"]
seq_len = 48
heldout_share = 0.0

[finetune]
base = "{folder}/base"
steps = 2
batch_size = 2
microbatch = 1
milestones = 1

[finetune.lora]
rank = 2

[[evaluate.tasks]]
name = "cloze"
kind = "cloze"
path = "{folder}/cloze.jsonl"
prompt = "{{{{text}}}}"

[place]
store = "{folder}/store"
mlflow = ""
"""


class Tuned:
    """A recipe of the documentation, with a task, whose base is a folder without chat template; all stages ran."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store, self.base = folder, Store(str(folder / "store")), llama3(folder / "base")
        (folder / "mine.toml").write_text(RECIPE.format(folder=folder))
        rows_in(folder, [{"prompt": f"river {n}?", "response": f"stone {n}"} for n in range(8)])
        rows_in(folder, [{"text": "the river", "answer": "stone"}] * 2, "cloze.jsonl")
        with training_in_process():
            for stage in ("examples", "finetune", "evaluate_tuned", "register_tuned"):
                assert main([stage, "--recipe", str(folder / "mine.toml"), "--version", "1"]) == 0, stage

    def artifact(self, kind: str) -> Artifact:
        return Artifact.open_at(self.store, ArtifactId(f"mine/{kind}", "1"))

    def export(self, kind: str, out: Path) -> Path:
        return export_model(self.store, "mine", "1", kind, str(out), tuned=True)

    def served(self) -> TextModel:
        return TextModel(Path(self.artifact("tuned_model").local("model/model.json")).parent)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    return Tuned(tmp_path_factory.mktemp("tuned"))


def test_a_fine_tuning_with_tasks_uses_the_tokenizer_of_its_base_and_scores_the_tasks(tuned: Tuned) -> None:
    comparison = json.loads(tuned.artifact("tuned_scores").read("comparison.json"))
    assert [row["name"] for row in comparison["rows"]] == ["cloze"]
    (ref,) = (ref for ref in tuned.artifact("examples").record.inputs if ref.role == "tokenizer")
    assert ref.address.startswith("imported/tokenizer@base-")


def test_a_fine_tuning_changes_only_the_chat_template_of_the_tokenizer(tuned: Tuned, tmp_path: Path) -> None:
    out = tuned.export("model", tmp_path / "out")
    assert (out / "tokenizer.json").read_bytes() == (tuned.base / "tokenizer.json").read_bytes()
    before, after = (json.loads((folder / "tokenizer_config.json").read_text()) for folder in (tuned.base, out))
    template = after.pop("chat_template")
    assert after == before
    assert (out / "generation_config.json").read_bytes() == (tuned.base / "generation_config.json").read_bytes()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    examples = Examples(tuned.artifact("examples"))
    said = [{"role": "user", "content": "river 0?"}, {"role": "assistant", "content": "stone 0"}]
    trained = [examples.summary["eos_id"], *examples[0].tokens.tolist()]
    assert tokenizer.apply_chat_template(said)["input_ids"] == trained, "end-of-text precedes it, not begin-of-text"
    fields = fields_of(tuned.export("gguf", tmp_path / "gguf"))
    assert (fields["add_bos_token"], fields["tokens"][fields["eot_token_id"]]) == (True, "<|eom_id|>")
    adapter = tuned.export("adapter", tmp_path / "adapter")
    assert transformers.AutoTokenizer.from_pretrained(adapter).chat_template == template


@pytest.mark.parametrize("changed", [False, True])
def test_adapters_name_the_folder_of_their_base_or_have_it_if_that_has_changed(
    tuned: Tuned, tmp_path: Path, changed: bool
) -> None:
    card = tuned.base / "tokenizer_config.json"
    before = card.read_text()
    card.write_text(before + " " * changed)
    out = tuned.export("adapter", tmp_path / "adapter")
    card.write_text(before)
    config = json.loads((out / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(out / "base" if changed else tuned.base)
    assert config["revision"] is None
    assert (out / "base" / "config.json").exists() is changed
    assert not (out / "config.json").exists()
    base = transformers.AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"])
    assert base.config.max_position_embeddings == CONTEXT


@pytest.mark.oracle("peft")
def test_peft_finds_the_base_of_adapters(tuned: Tuned, tmp_path: Path) -> None:
    import peft

    out = tuned.export("adapter", tmp_path / "adapter")
    merged = transformers.AutoModelForCausalLM.from_pretrained(tuned.export("model", tmp_path / "out"))
    ids = torch.arange(40)[None]
    with torch.no_grad():
        apart = peft.AutoPeftModelForCausalLM.from_pretrained(out)(ids).logits - merged(ids).logits
    assert apart.abs().max() <= 1e-4


def test_the_context_is_that_of_the_base_whatever_the_length_of_packed_sequences(tuned: Tuned, tmp_path: Path) -> None:
    out = tuned.export("model", tmp_path / "out")
    assert json.loads((out / "config.json").read_text())["max_position_embeddings"] == CONTEXT
    assert tuned.artifact("finetuned").read("model.json").count(b'"seq_len":256') == 1
    served, model = tuned.served(), transformers.AutoModelForCausalLM.from_pretrained(out)
    prompt = " ".join(["river"] * 60)
    ids = served.tokenizer.encode(prompt, add_special_tokens=False).ids
    assert 48 < len(ids) < CONTEXT - 10
    whole = torch.tensor([[served.description["eos_id"], *ids]])
    with torch.no_grad():
        theirs = model.generate(whole, max_new_tokens=8, do_sample=False)[0, whole.shape[1] :].tolist()
    assert served.predict([prompt], {"max_tokens": 8}) == [served.tokenizer.decode(theirs)]
    with pytest.raises(InputError, match=r"the prompt has \d+ tokens, and the model reads 256\. Shorten the prompt"):
        served.predict([prompt * 5])


def stopping(folder: Path, prompt: str, *, listed: bool) -> tuple[Path, list[int]]:
    """A model that writes its second greedy token as one that ends a text; and its greedy tokens without that end."""
    write_folder(folder, eos_token_id=0)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False).ids])
    free = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :].tolist()
    end = next(token for token in free if token != free[0])
    change(folder / "generation_config.json", eos_token_id=[0, end] if listed else end)
    return folder, free[: free.index(end)]


@pytest.mark.parametrize("listed", [True, False])
def test_every_token_of_generation_config_ends_a_text(tmp_path: Path, listed: bool) -> None:
    model, expected = stopping(tmp_path / "pot", "the river", listed=listed)
    text = Tokenizer.from_file(str(model / "tokenizer.json")).decode(expected)
    assert expected
    path = rows_in(tmp_path, [{"text": "the river", "answer": text.strip()}])
    settings: dict[str, Any] = {"name": "said", "kind": "generate", "path": path, "prompt": "{{text}}"}
    recipe, store = recipe_in(tmp_path, TaskConfig(**settings, max_new_tokens=12)), Store(str(tmp_path / "store"))
    made = evaluate_model(store, recipe, "1", str(model)).artifact
    (row,) = made.table("tasks/task.said.00000000.00000.parquet").to_pylist()
    assert (row["text"], row["exact_match"], row[CUT]) == (text, 1.0, False)


def test_a_prompt_that_was_cut_is_in_the_scores_and_their_table(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "pot")
    rows = [{"text": "river " * 400, "answer": "stone"}, {"text": "river", "answer": "stone"}]
    tasks = [
        TaskConfig(name=kind, kind=kind, path=rows_in(tmp_path, rows, f"{kind}.jsonl"), prompt="{{text}}", **more)
        for kind, more in (("cloze", {}), ("generate", {"max_new_tokens": 2}))  # type: ignore[arg-type]
    ]
    scores = evaluate_model(Store(str(tmp_path / "store")), recipe_in(tmp_path, *tasks), "1", str(model))
    assert [score[CUT] for score in json.loads(scores.artifact.read("scores.json"))["tasks"]] == [1, 1]
    assert "cut at their beginning: 1 of cloze (step 0), 1 of generate (step 0)." in scores.table
