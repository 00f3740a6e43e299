"""A recipe names a model from elsewhere by its address: it is imported once, by its content, and is in the lineage."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import DriftError, InputError, RecipeError
from tasks.core.ledger import versions_of
from tasks.core.store import Store
from tasks.formats.tokens.exposure import BASE, INITIAL, origin_ref
from tasks.run import import_model as import_command
from tasks.run.export import export_model
from tasks.run.import_model import import_model, imported_model
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.result import StageResult
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext
from tasks.trainer.interchange.model_folder import read_model
from tests.corpora import corpus, tokens_in
from tests.tasks.trainer.interchange.hub_server import COMMIT, NAME, HubServer
from tests.tasks.trainer.interchange.model_folders import change, write_folder

HUB = f"hf://{NAME}"
NEXT = "89abcdef0123456789abcdef0123456789abcdef"


@dataclass(frozen=True)
class Bench:
    """A recipe that only fine-tunes, with its store below a folder."""

    folder: Path

    @property
    def store(self) -> Store:
        return Store(str(self.folder / "store"))

    def recipe(self, base: str) -> Recipe:
        settings: dict[str, Any] = {
            "name": "mine",
            "examples": {"files": [f"{self.folder}/rows.jsonl"], "seq_len": 64},
            "finetune": {"base": base, "steps": 2, "batch_size": 2, "microbatch": 1, "lora": {"rank": 2}},
            "place": {"store": self.store.root, "mlflow": ""},
        }
        return find_recipe(json.dumps(settings))

    def run(self, base: str, version: str = "1", *stages: str) -> list[StageResult]:
        tracking = TrackingContext("", "mine")
        names = stages or ("examples", "finetune")
        return [run_stage(self.recipe(base), name, version=version, tracking=tracking) for name in names]

    def tuned(self, version: str = "1") -> Artifact:
        return Artifact.open_at(self.store, ArtifactId("mine/finetuned", version))

    def imported(self) -> list[Artifact]:
        return list(versions_of(self.store, "imported/checkpoint"))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    rows = [{"prompt": f"river {number}?", "response": f"stone {number}"} for number in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Bench(tmp_path)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that states a license."""
    folder = write_folder(tmp_path_factory.mktemp("written") / "Pot 1B", dtype=torch.bfloat16)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    return folder


@pytest.fixture
def model(written: Path, tmp_path: Path) -> Path:
    """A model folder of the test's own."""
    return Path(shutil.copytree(written, tmp_path / written.name))


@pytest.fixture
def hub(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with HubServer(model) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def test_a_base_is_imported_once_and_found_again_by_its_content(bench: Bench, model: Path) -> None:
    assert [result.skipped for result in bench.run(str(model))] == [False, False]
    (base,) = bench.imported()
    assert base.address.version.startswith("pot-1b-")
    assert origin_ref(bench.tuned()) == base.ref(BASE)
    finished = base.record.finished
    moved = Path(shutil.copytree(model, bench.folder / "elsewhere" / model.name))
    assert all(result.skipped for result in bench.run(str(model)))
    assert bench.run(str(moved), "2", "examples")[0].content == bench.run(str(model), "1", "examples")[0].content
    assert [one.record.finished for one in bench.imported()] == [finished]


def test_adapters_name_their_base_on_the_hub_with_its_commit(bench: Bench, hub: HubServer, tmp_path: Path) -> None:
    bench.run(f"{HUB}@v1")
    out = export_model(bench.store, "mine", "1", "adapter", str(tmp_path / "out"))
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == (NAME, COMMIT)
    assert not (out / "base").exists()


def test_the_base_is_in_lineage_and_card(bench: Bench, model: Path, tmp_path: Path) -> None:
    bench.run(str(model))
    (base,) = bench.imported()
    assert f"began from {base.address}" in bench.tuned().record.note
    card = (
        export_model(bench.store, "mine", "1", "model", str(tmp_path / "out"), tuned=True) / "README.md"
    ).read_text()
    assert f"the training of {base.address} is not on record: the model was imported" in card
    assert "- license: apache-2.0" in card
    weights = next(ref for ref in base.record.inputs if ref.role == "file:model.safetensors")
    assert f"- model.safetensors: sha256 `{weights.content}`" in card
    assert str(tmp_path) not in card, "a card is public"


def test_a_folder_that_has_changed_is_another_base_and_refused_at_the_same_version(bench: Bench, model: Path) -> None:
    bench.run(str(model))
    change(model / "config.json", rope_theta=5000.0)
    with pytest.raises(DriftError, match=r"Pot 1B, its input base, has changed, and is now imported/"):
        bench.run(str(model), "1", "finetune")
    assert [result.skipped for result in bench.run(str(model), "2")] == [False, False]
    assert origin_ref(bench.tuned("2")) != origin_ref(bench.tuned("1"))


def test_a_moving_revision_is_its_commit_and_refused_when_it_has_moved(bench: Bench, hub: HubServer) -> None:
    bench.run(f"{HUB}@main")
    (base,) = bench.imported()
    about = json.loads(base.read("import.json"))
    assert (about["name"], about["revision"], about["license"]) == (NAME, COMMIT, "apache-2.0")
    assert base.record.note.endswith(f"imported from {HUB}@{COMMIT}")
    hub.commit = NEXT
    with pytest.raises(DriftError, match=rf"{HUB}@main, its input base, has changed, and is now imported/checkpoint@"):
        bench.run(f"{HUB}@main", "1", "finetune")
    assert len(bench.imported()) == 2


def test_a_commit_that_was_imported_needs_no_network(bench: Bench, hub: HubServer) -> None:
    bench.run(f"{HUB}@{COMMIT}")
    hub.requests.clear()
    assert all(result.skipped for result in bench.run(f"{HUB}@{COMMIT}"))
    assert hub.requests == []


def test_examples_of_an_earlier_state_of_the_base_are_not_mixed_with_it(bench: Bench, hub: HubServer) -> None:
    bench.run(f"{HUB}@main", "1", "examples")
    hub.commit = NEXT
    change(hub.folder / "tokenizer_config.json", chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(InputError, match=r"mine/examples@1 was made with imported/tokenizer@.* another version"):
        bench.run(f"{HUB}@main", "1", "finetune")


def test_a_url_is_imported_without_a_second_download(bench: Bench, hub: HubServer) -> None:
    url = f"{hub.url}/files"
    bench.run(url)
    assert bench.imported()[0].record.note.endswith(f"imported from {url}")
    hub.requests.clear()
    assert all(result.skipped for result in bench.run(url))
    assert hub.fetched("model.safetensors") == []
    change(hub.folder / "config.json", rope_theta=5000.0)
    with pytest.raises(DriftError, match="its input base, has changed"):
        bench.run(url, "1", "finetune")


def test_the_command_and_a_recipe_import_the_same_checkpoint(bench: Bench, hub: HubServer) -> None:
    found = imported_model(bench.store, f"{HUB}@v1")
    by_hand = import_model(bench.store, "pot", "1", f"{HUB}@{COMMIT}").checkpoint
    assert (found.record.content, found.record.fingerprint) == (by_hand.record.content, by_hand.record.fingerprint)


def test_two_runs_that_import_a_model_at_once_end_with_one_checkpoint(
    bench: Bench, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = list[Artifact]()
    write = import_command._write_checkpoint

    def overtaken(*arguments: Any) -> None:
        with monkeypatch.context() as context:
            context.setattr(import_command, "_write_checkpoint", write)
            others.append(imported_model(bench.store, str(model)))
        write(*arguments)

    monkeypatch.setattr(import_command, "_write_checkpoint", overtaken)
    assert imported_model(bench.store, str(model)).record == others[0].record
    assert others[0].verify() == []


def test_a_training_starts_from_a_model_of_the_hub(tmp_path: Path, model: Path, hub: HubServer) -> None:
    tokenizer = str(model / "tokenizer.json")
    tokens_in(tmp_path, corpus(30), tokenizer_file=tokenizer)
    shape = read_model(model).shape.model_dump(mode="json")
    settings = {
        "name": "test",
        "place.store": str(tmp_path),
        "place.train.nproc": 1,
        "crawl.enabled": False,
        "makes": ["documents", "tokens", "checkpoint"],
        "extract.files": [{"name": "books", "kind": "text", "path": "/nowhere/*.txt"}],
        "canary.current": {},
        "consolidate.sources": ["books"],
        "train.model": {name: value for name, value in shape.items() if value is not None},
        "train.steps": 2,
        "train.batch_size": 2,
        "train.microbatch": 1,
        "train.milestones": 1,
        "train.init_from": f"{HUB}@v1",
    }
    run_stage(find_recipe("smoke").override(settings), "train", version="dev", tracking=TrackingContext("", "test"))
    trained = Artifact.open_at(Store(str(tmp_path)), ArtifactId("test/checkpoint", "dev"))
    (base,) = versions_of(Store(str(tmp_path)), "imported/checkpoint")
    assert [ref for ref in trained.record.inputs if ref.role == INITIAL] == [base.ref(INITIAL)]
    assert f"began from {base.address}" in trained.record.note
    assert base.record.note.endswith(f"imported from {HUB}@{COMMIT}")


def test_an_error_of_the_import_names_the_setting(bench: Bench, model: Path) -> None:
    change(model / "config.json", hidden_act="gelu")
    with pytest.raises(InputError, match=r'finetune\.base: .*hidden_act = "gelu" is not supported'):
        bench.run(str(model))
    with pytest.raises(InputError, match=r"finetune\.base: .* has neither model\.safetensors nor"):
        bench.run(str(model / "none"))
    assert bench.imported() == []


@pytest.mark.parametrize("setting", ["train.init_from", "finetune.base"])
def test_a_recipe_with_an_address_is_checked_without_a_network(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a connection"))
    for address in ("hf://ink/Pot-1B", "hf://ink/pot@main", "s3://b/pot", "https://h/pot", "/data/pot", "~/p", "./p"):
        find_recipe("smoke").override({setting: address})
    for address, said in {
        "hf://ink": r"hf://ink is not a model of the hub. Write hf://owner/name",
        "https://me:secret@h/pot": r"https://…: the URL has credentials or a query",
        "/data/pot.gguf": r"pot.gguf is a GGUF file, and not a Hugging Face folder. Convert it with transformers",
        "models/pot": r"<recipe>/checkpoint@<version>.*; a model from elsewhere is a folder, its URL, or hf://",
    }.items():
        with pytest.raises(RecipeError, match=said):
            find_recipe("smoke").override({setting: address})
