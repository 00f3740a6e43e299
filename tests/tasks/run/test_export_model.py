"""`sluice export .. model`: the trained weights, and their lineage."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.run.export import export_model, weights_file
from tasks.run.trace.cards import filters_of
from tasks.trainer.evaluation.config import EvaluateConfig
from tests.conftest import run_stage_in
from tests.corpora import corpus, documents_in, tokens_in
from tests.late import transformers
from tests.taken_down import take_down
from tests.tasks.trainer.small_run import small_config


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a trained and evaluated model."""
    folder = tmp_path_factory.mktemp("trained")
    made = tokens_in(folder, corpus(60))
    config = small_config(mixture={"web": 0.25, "code": 0.5, "my-books": 0.25}, steps=4, milestones=2)
    inputs = {"shards": made.shards, "plan": made.plan}
    checkpoint = run_stage_in(folder, "tasks.stages.train.stage", config, inputs, kind="checkpoint")
    inputs = {"checkpoint": checkpoint, "shards": made.shards, "tokenizer": made.tokenizer}
    (folder / "quiz.jsonl").write_text('{"query": "The river", "choices": [" runs", " sings"], "gold": 0}\n' * 3)
    quiz = {"name": "quiz", "kind": "multiple_choice", "path": str(folder / "quiz.jsonl"), "prompt": "{{query}}"}
    tasks = ({**quiz, "choices": "choices", "answer": "gold"},)
    evaluation = EvaluateConfig.model_validate({"tasks": tasks, "task_milestones": 2})
    run_stage_in(folder, "tasks.stages.evaluate.stage", evaluation, inputs, kind="scores")
    take_down(folder, "t1", domains="h1.org", reason="asked")
    return folder


def test_the_weights_are_those_of_the_last_milestone(store: Path, tmp_path: Path) -> None:
    out = export_model(Store(str(store)), "test", "dev", "model", str(tmp_path / "out"))
    checkpoint = Artifact.find(Store(str(store)), ArtifactId("test/checkpoint", "dev"))
    ours = load_file(checkpoint.local(weights_file(checkpoint)))
    theirs = load_file(out / "model.safetensors")
    assert "step-00000004" in weights_file(checkpoint)
    assert len(ours) == len(theirs)
    assert torch.equal(ours["embedding.weight"], theirs["model.embed_tokens.weight"])
    assert torch.equal(ours["layers.1.ffn.w2.weight"], theirs["model.layers.1.mlp.down_proj.weight"])


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_the_dtype_of_an_export_is_that_of_its_configuration(
    store: Path, tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    out = export_model(Store(str(store)), "test", "dev", "model", str(tmp_path / "out"), dtype=name)
    assert {weight.dtype for weight in load_file(out / "model.safetensors").values()} == {dtype}
    assert transformers.AutoConfig.from_pretrained(out).dtype == dtype
    with pytest.raises(InputError, match=r"--dtype = .* does not apply to gguf"):
        export_model(Store(str(store)), "test", "dev", "gguf", str(tmp_path / "gguf"), dtype=name)


def test_the_card_states_training_data_and_exclusions_without_naming_takedowns(store: Path, tmp_path: Path) -> None:
    out = export_model(Store(str(store)), "test", "dev", "model", str(tmp_path / "out"))
    card = (out / "README.md").read_text()
    assert "| code | 50.0% |" in card
    assert "- 4 steps of 4 sequences of 32 tokens" in card
    scores = json.loads((store / "test/scores/dev/scores.json").read_text())
    assert f"| mean | {scores['bpb']:.4f} |" in card
    quiz = scores["tasks"][-1]
    assert quiz["step"] == 4
    assert f"| quiz | 0 | 3 | acc {quiz['metrics']['acc']['value']:.4f} ± " in card
    assert card.count("| quiz |") == 1, "of two milestones the last one"
    assert "0 addresses, 1 domains and 0 documents are taken down today" in card
    assert "h1.org" not in card
    assert "- checkpoint: `test/checkpoint@dev`" in card


def test_an_export_is_reproducible_and_lists_its_files(store: Path, tmp_path: Path) -> None:
    one, two = (export_model(Store(str(store)), "test", "dev", "gguf", str(tmp_path / name)) for name in ("one", "two"))
    about = json.loads((one / "export.json").read_text())
    assert about == json.loads((two / "export.json").read_text())
    assert about["artifact"] == "test/checkpoint@dev"
    assert set(about["files"]) == {path.name for path in one.iterdir()} - {"export.json"}
    for name, entry in about["files"].items():
        assert entry["sha256"] == sha256_of_file(two / name)


def test_a_failed_export_leaves_no_folder(store: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing of test@none"):
        export_model(Store(str(store)), "test", "none", "model", str(tmp_path / "out"))
    tokens_in(tmp_path / "untrained", corpus(12))
    with pytest.raises(InputError, match="has no checkpoint"):
        export_model(Store(str(tmp_path / "untrained")), "test", "dev", "model", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_card_describes_the_processing_of_documents(tmp_path: Path) -> None:
    documents = documents_in(tmp_path, corpus(6), 1)
    settings = {"filters": ["gopher_quality"], "limits": {"gopher_quality": {"min_words": 50}}, "mask_pii": True}

    def of(kind: str, **config: object) -> Artifact:
        record = documents.record.model_copy(update={"stage": kind, "config": config})
        return Artifact(documents.store, documents.address, record)

    artifacts = {
        "documents": of("consolidate", **settings, dedup=True),
        "duplicates": of("dedup", exact=True, near=True, jaccard=0.8),
        "contamination": of("decontaminate", sets=[{"name": "piqa"}, {"name": "arc"}]),
    }
    assert filters_of(artifacts) == [
        "- gopher_quality: min_words = 50",
        "- duplicates: one of equal texts and of texts of a Jaccard similarity of 0.8 and more is kept",
        "- personal data that was found is masked",
        "- documents with items of these evaluation sets are left out: piqa, arc",
    ]
    artifacts["documents"] = of("consolidate", **settings | {"mask_pii": False}, dedup=False)
    assert len(filters_of(artifacts)) == 2
