"""`sluice import-model`: a model folder becomes a checkpoint that fine-tuning, training and export read."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.digest import sha256_of_file
from tasks.core.errors import DriftError, InputError
from tasks.core.ledger import Ledger
from tasks.core.store import Store
from tasks.run import import_model as command
from tasks.run.export import export_model
from tasks.run.import_model import import_model, read_tokenizer
from tasks.run.shell import main
from tasks.run.trace.audit import audit
from tasks.run.trace.cards import card
from tasks.run.trace.text import render
from tasks.run.trace.trace import trace
from tasks.stages.tokens import EncodeConfig, PackConfig
from tasks.trainer.evaluation.config import EvaluateConfig
from tasks.trainer.interchange.model_folder import read_model
from tasks.trainer.model.config import ModelConfig
from tests.conftest import run_stage_in
from tests.corpora import corpus, documents_in
from tests.taken_down import take_down
from tests.tasks.trainer.interchange.hub_server import COMMIT, NAME, HubServer
from tests.tasks.trainer.interchange.model_folders import END, change, write_folder
from tests.tasks.trainer.small_run import small_config

RECIPE = """
name = "smol"

[examples]
files = ["{folder}/rows.jsonl"]
seq_len = 64
heldout_share = 0.25

[finetune]
base = "smol/checkpoint@1"
steps = 2
batch_size = 2
microbatch = 1
milestones = 1

[finetune.lora]
rank = 2

[place]
store = "{folder}/store"
mlflow = ""
"""
NOT_ON_RECORD = "the training of smol/checkpoint@1 is not on record: the model was imported"


@dataclass(frozen=True)
class Imported:
    """A folder with a model and a recipe, whose version 1 is the imported model."""

    folder: Path

    @property
    def store(self) -> Store:
        return Store(str(self.folder / "store"))

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def run(self, *arguments: str) -> int:
        return main([*arguments, "--recipe", str(self.folder / "smol.toml"), "--version", "1"])

    def artifact(self, kind: str) -> Artifact:
        return Artifact.open_at(self.store, ArtifactId(f"smol/{kind}", "1"))


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    folder = tmp_path_factory.mktemp("imported")
    (folder / "smol.toml").write_text(RECIPE.format(folder=folder))
    rows = [{"prompt": f"river {number}?", "response": f"stone {number}"} for number in range(12)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    write_folder(folder / "model", dtype=torch.bfloat16, shard_size="20KB", tie_word_embeddings=True)
    (folder / "model" / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    made = Imported(folder)
    assert made.run("import-model", str(made.model)) == 0
    return made


def test_the_record_names_every_file_with_its_sha256(imported: Imported) -> None:
    checkpoint, tokenizer = imported.artifact("checkpoint"), imported.artifact("tokenizer")
    files = {path.name: path for path in imported.model.iterdir()}
    refs = {ref.role: ref for ref in checkpoint.record.inputs}
    assert refs.keys() == {"tokenizer", *(f"file:{name}" for name in files)}
    assert len(list(imported.model.glob("*.safetensors"))) > 1
    for name, path in files.items():
        assert refs[f"file:{name}"].address == f"external:{path}"
        assert refs[f"file:{name}"].content == sha256_of_file(path)
    assert refs["tokenizer"] == tokenizer.ref("tokenizer")
    assert tokenizer.read("tokenizer.json") == (imported.model / "tokenizer.json").read_bytes()
    assert json.loads(tokenizer.read("tokenizer_config.json")) == {"eos_token": END}
    about = json.loads(checkpoint.read("import.json"))
    assert (about["license"], about["architecture"]) == ("apache-2.0", "LlamaForCausalLM")
    assert checkpoint.record.note.endswith(f"license: apache-2.0, imported from {imported.model}")
    assert checkpoint.verify() == tokenizer.verify() == []
    ledger = Ledger(imported.store)
    assert ledger.drift("smol/checkpoint@1") == []
    assert "smol/tokenizer@1" in ledger.ancestors("smol/checkpoint@1")


def test_the_command_prints_the_settings_of_a_training(imported: Imported, capsys: pytest.CaptureFixture[str]) -> None:
    import tomllib

    assert imported.run("import-model", str(imported.model)) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert ModelConfig.model_validate(tomllib.loads(last)["model"]) == read_model(imported.model).shape


def test_the_same_folder_again_changes_nothing_and_another_one_is_refused(imported: Imported, tmp_path: Path) -> None:
    before = imported.artifact("checkpoint").record
    again = import_model(imported.store, "smol", "1", str(imported.model))
    assert again.checkpoint.record == before
    other = write_folder(tmp_path / "other", num_hidden_layers=1)
    with pytest.raises(DriftError, match=r"smol/checkpoint@1 exists, and is not the model .* another --version"):
        import_model(imported.store, "smol", "1", str(other))
    assert imported.run("import-model", str(tmp_path / "none")) == 2


def test_a_model_with_a_weight_that_is_not_finite_leaves_no_artifact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "smol.toml").write_text(RECIPE.format(folder=tmp_path))
    model = write_folder(tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, model / "model.safetensors")
    made = Imported(tmp_path)
    assert made.run("import-model", str(model)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "model.norm.weight has values that are NaN or infinite" in line
    with pytest.raises(InputError, match="no artifact smol/tokenizer@1"):
        made.artifact("tokenizer")


def test_an_interrupted_import_is_continued(
    imported: Imported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "store"))
    with monkeypatch.context() as context:
        context.setattr(command, "_descriptions", lambda *_: 1 / 0)  # after the tokenizer
        with pytest.raises(ZeroDivisionError):
            import_model(store, "smol", "1", str(imported.model))
    assert Artifact.find(store, ArtifactId("smol/tokenizer", "1"))
    assert Artifact.find(store, ArtifactId("smol/checkpoint", "1")) is None
    made = import_model(store, "smol", "1", str(imported.model))
    assert made.checkpoint.record.content == imported.artifact("checkpoint").record.content


EXPORTED: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "bf16": {"dtype": torch.bfloat16},
    "padded qwen": {"family": "qwen3", "head_dim": 12, "vocab_size": 384, "dtype": torch.bfloat16},
}


@pytest.mark.parametrize("name", EXPORTED)
def test_an_export_has_the_same_tensors_and_says_where_they_come_from(tmp_path: Path, name: str) -> None:
    source, store = write_folder(tmp_path / "in", **EXPORTED[name]), Store(str(tmp_path / "store"))
    import_model(store, "smol", "1", str(source))
    out = export_model(store, "smol", "1", "model", str(tmp_path / "out"))
    theirs, ours = load_file(source / "model.safetensors"), load_file(out / "model.safetensors")
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) and theirs[name].dtype == ours[name].dtype for name in theirs)
    dtype = str(EXPORTED[name].get("dtype", torch.float32)).removeprefix("torch.")
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == dtype
    assert read_model(out).shape == read_model(source).shape
    card_text = (out / "README.md").read_text()
    assert "Sluice did not train it: it was imported" in card_text
    assert f"- {NOT_ON_RECORD}\n- name: not stated\n- license: not stated\n- revision: not stated" in card_text
    assert f"- model.safetensors: sha256 `{sha256_of_file(source / 'model.safetensors')}`" in card_text
    assert str(tmp_path) not in card_text, "a card is public"


def test_trace_and_audit_say_that_the_training_is_not_on_record(
    imported: Imported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for query in ("https://h1.org/", "a" * 32, "domain:h1.org"):
        found = trace(imported.store, "smol", "1", query)
        assert found.to_json()["unrecorded"] == NOT_ON_RECORD
        assert NOT_ON_RECORD in render(found)
        assert "never captured" not in render(found)
    assert imported.run("trace", "step:0") == 2
    assert NOT_ON_RECORD in capsys.readouterr().err
    store = Store(str(tmp_path / "store"))
    import_model(store, "test", "1", str(imported.model))
    assert audit(store, "test").models == []
    take_down(store.root, "t1", domains="h1.org")
    (model,) = audit(store, "test").models
    assert (model["artifact"], audit(store, "test").absent) == ("test/checkpoint@1", True)
    assert "not known: the training of test/checkpoint@1 is not on record" in audit(store, "test").text()


def test_a_fine_tuning_starts_from_it(imported: Imported, tmp_path: Path) -> None:
    for stage in ("examples", "finetune"):
        assert imported.run(stage) == 0
    tuned = imported.artifact("finetuned")
    assert "began from smol/checkpoint@1" in tuned.record.note
    out = export_model(imported.store, "smol", "1", "model", str(tmp_path / "out"), tuned=True)
    merged = load_file(out / "model.safetensors")
    base = load_file(imported.artifact("checkpoint").local("checkpoints/step-00000000/model.safetensors"))
    assert torch.equal(merged["model.embed_tokens.weight"], base["embedding.weight"])
    assert not torch.equal(merged["model.layers.0.mlp.up_proj.weight"], base["layers.0.ffn.w3.weight"])
    card_text = (out / "README.md").read_text()
    assert f"- {NOT_ON_RECORD}" in card_text
    assert "- license: apache-2.0" in card_text
    step = render(trace(imported.store, "smol", "1", "tuned:0"))
    assert step.startswith("step 0 of smol/finetuned@1, begun from smol/checkpoint@1")
    page = render(trace(imported.store, "smol", "1", "https://h1.org/"))
    assert "fine-tuned: smol/finetuned@1, begun from smol/checkpoint@1" in page
    assert NOT_ON_RECORD in page


def test_it_is_evaluated_and_a_training_starts_from_it(imported: Imported, tmp_path: Path) -> None:
    made = import_model(Store(str(tmp_path)), "test", "dev", str(imported.model))
    documents = documents_in(tmp_path, corpus(40))
    inputs = {"documents": documents, "tokenizer": made.tokenizer}
    shards = run_stage_in(tmp_path, "tasks.stages.tokens.encode", EncodeConfig(), inputs, kind="shards")
    plan = run_stage_in(tmp_path, "tasks.stages.tokens.pack", PackConfig(seq_len=32), {"shards": shards}, kind="plan")
    inputs = {"shards": shards, "tokenizer": made.tokenizer}
    scores = run_stage_in(
        tmp_path,
        "tasks.stages.evaluate.stage",
        EvaluateConfig(),
        {**inputs, "checkpoint": made.checkpoint},
        kind="scores",
    )
    assert json.loads(scores.read("scores.json"))["step"] == 0
    config = small_config(model=made.shape, steps=2, milestones=1, init_from="test/checkpoint@dev")
    trained = run_stage_in(
        tmp_path,
        "tasks.stages.train.stage",
        config,
        {"shards": shards, "plan": plan, "initial": made.checkpoint},
        kind="checkpoint",
        version="further",
    )
    assert "began from test/checkpoint@dev" in trained.record.note
    found = render(trace(made.checkpoint.store, "test", "further", corpus(1)[0]["url"]))
    not_on_record = "the training of test/checkpoint@dev is not on record: the model was imported"
    assert f"began\n  not known  {not_on_record}" in found
    lineage = {"checkpoint": trained, "tokenizer": made.tokenizer}
    assert f"## Imported weights\n\n- {not_on_record}\n" in card(lineage, [])


def test_a_model_of_the_hub_is_recorded_with_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "model", family="qwen2", vocab_size=384)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with HubServer(folder) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        made = import_model(Store(str(tmp_path / "store")), "smol", "1", f"hf://{NAME}@v1")
    checkpoint = made.checkpoint
    assert checkpoint.record.note.endswith(f"imported from hf://{NAME}@{COMMIT}")
    refs = {ref.role: ref for ref in checkpoint.record.inputs}
    assert refs["file:config.json"].address == f"external:hf://{NAME}@{COMMIT}/config.json"
    assert refs["file:model.safetensors"].content == sha256_of_file(folder / "model.safetensors")
    about = json.loads(checkpoint.read("import.json"))
    assert (about["name"], about["revision"]) == (NAME, COMMIT)
    assert (made.shape.vocab_rows, json.loads(checkpoint.read("model.json"))["vocab_size"]) == (384, 300)
    local = import_model(made.checkpoint.store, "smol", "2", str(folder)).checkpoint
    weights = "checkpoints/step-00000000/model.safetensors"
    assert checkpoint.read(weights) == local.read(weights)


def tokenizer(folder: Path) -> Any:
    return read_tokenizer(folder, read_model(folder))


def test_a_tokenizer_of_another_size_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    assert tokenizer(folder).tokens.eos_id == 0
    size = read_model(folder).vocab_size
    change(folder / "config.json", vocab_size=size - 1)
    with pytest.raises(InputError, match=f"has ids up to {size - 1}, and config.json a vocab_size of {size - 1}"):
        tokenizer(folder)
    change(folder / "config.json", vocab_size=size + 4)
    assert tokenizer(folder).tokens.vocab_size == size, "rows of the model beyond the tokenizer are padding"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"eos_token": None}, r"tokenizer_config\.json has no eos_token. Set it .* special tokens: <\|endoftext\|>"),
        ({"eos_token": "the"}, 'eos_token = "the" is not a special token'),
        ({"eos_token": {"content": "<eos>"}}, 'eos_token = "<eos>" is not a special token'),
    ],
)
def test_a_tokenizer_without_end_of_text_is_refused(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    folder = write_folder(tmp_path / "model")
    change(folder / "tokenizer_config.json", **settings)
    with pytest.raises(InputError, match=said):
        tokenizer(folder)


def test_model_and_tokenizer_must_name_the_same_end_of_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_folder(tmp_path / "model")
    change(folder / "config.json", eos_token_id=[2, 0], bos_token_id=1)
    with caplog.at_level("WARNING"):
        assert tokenizer(folder).tokens.eos_id == 0
    assert "trained with the token 1 before a text" in caplog.text
    change(folder / "config.json", eos_token_id=2)
    with pytest.raises(InputError, match=r"has the id 0, and config\.json eos_token_id = 2\. Set both"):
        tokenizer(folder)


@pytest.mark.parametrize("where", ["file", "field", "named", "none"])
def test_the_tokenizer_has_the_chat_template_of_the_folder(tmp_path: Path, where: str) -> None:
    folder, text = write_folder(tmp_path / "model"), "{{ bos_token }}{% for m in messages %}é{% endfor %}\n"
    named = [{"name": "tool_use", "template": "other"}, {"name": "default", "template": text}]
    fields = {"field": text, "named": named, "file": "an older one"}
    change(folder / "tokenizer_config.json", bos_token={"content": END}, chat_template=fields.get(where))
    if where == "file":
        (folder / "chat_template.jinja").write_text(text)
    published = import_model(Store(str(tmp_path / "store")), "smol", "1", str(folder)).tokenizer
    settings = json.loads(published.read("tokenizer_config.json"))
    if where == "none":
        assert "chat_template.jinja" not in published.files("")
        assert settings == {"eos_token": END}
    else:
        assert published.read("chat_template.jinja").decode() == text
        assert settings == {"eos_token": END, "bos_token": END}
    roles = {ref.role for ref in published.record.inputs}
    assert ("file:chat_template.jinja" in roles) == (where == "file")
    change(folder / "tokenizer_config.json", chat_template={"a": "b"})
    if where != "file":
        with pytest.raises(InputError, match=r"tokenizer_config\.json: chat_template cannot be read"):
            tokenizer(folder)


def test_a_tokenizer_that_changes_texts_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    path = folder / "tokenizer.json"
    whole = Tokenizer.from_file(str(path))
    whole.enable_truncation(16)
    whole.save(str(path))
    with pytest.raises(InputError, match=r"truncation = .* Set truncation to null"):
        tokenizer(folder)
    words = Tokenizer(models.WordLevel({END: 0, "a": 1}, unk_token=END))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.add_special_tokens([END])
    words.save(str(path))
    change(folder / "config.json", vocab_size=2)
    with pytest.raises(InputError, match=r"tokenizer\.json is not byte-level"):
        tokenizer(folder)
    path.write_text("{}")
    with pytest.raises(InputError, match="is not a Hugging Face tokenizer"):
        tokenizer(folder)
    path.unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json cannot be read"):
        tokenizer(folder)
