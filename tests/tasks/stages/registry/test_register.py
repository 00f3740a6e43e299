"""Registered models: the layout of the folder."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.stages.registry import RegisterConfig
from tasks.stages.registry.merge import write_mean
from tasks.trainer.interchange.huggingface import names_in
from tasks.trainer.model.config import ExpertsConfig, ModelConfig
from tasks.trainer.model.model_file import load_model
from tasks.trainer.model.transformer import build
from tests.conftest import run_stage_in

MODEL = ModelConfig(
    layers=1, dim=16, heads=2, kv_heads=1, experts=ExpertsConfig(count=4, per_token=2, width=16, balance="bias")
)


def made(folder: Path, kind: str, files: dict[str, bytes]) -> Artifact:
    output = Output(Store(str(folder)), ArtifactId(f"test/{kind}", "dev"), "0" * 64)
    with output.part("all", conserved=False) as part:
        for name, content in files.items():
            part.write(name, content)
    return commit(output, kind, 1, Config(), (), Report())


def test_a_model_that_no_layout_of_transformers_has_is_registered_under_its_own_names(tmp_path: Path) -> None:
    model = build(MODEL, 64, seed=1)
    model.state_dict()["layers.0.ffn.router.choice_bias"].copy_(torch.arange(4.0))
    described = {"model": MODEL.model_dump(mode="json"), "vocab_size": 64, "eos_id": 0, "seq_len": 32}
    run = {"weights": {"web": 1.0}, "steps": 4, "checkpoint_steps": [4]}
    trained = {
        "checkpoints/step-00000004/model.safetensors": save(dict(model.state_dict())),
        **{name: json.dumps(content).encode() for name, content in (("model.json", described), ("run.json", run))},
    }
    inputs = {
        "checkpoint": made(tmp_path, "checkpoint", trained),
        "scores": made(tmp_path, "scores", {"scores.json": b'{"step": 4, "bpb": 1.5}'}),
        "tokenizer": made(tmp_path, "tokenizer", {"tokenizer.json": b"{}"}),
    }
    found = run_stage_in(tmp_path, "tasks.stages.registry.register", RegisterConfig(), dict(inputs))
    assert "model/config.json" not in found.files("model/")
    paths = (Path(found.local(f"model/{name}")) for name in ("model.json", "model.safetensors"))
    loaded, _ = load_model(*paths)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], tensor, rtol=0, atol=0)


def test_the_mean_of_models_with_fused_tensors_has_their_layout_and_is_read_back(tmp_path: Path) -> None:
    experts = ExpertsConfig(count=4, per_token=2, width=24, router="chosen", bias=True, clamp=7.0)
    shape = ModelConfig(
        layers=1, dim=16, heads=2, kv_heads=1, experts=experts, qkv_bias=True, output_bias=True, attention_sinks=True
    )
    states = [build(shape, 64, seed).state_dict() for seed in (1, 2)]
    for seed, state in enumerate(states):
        (tmp_path / f"{seed}.safetensors").write_bytes(save(dict(state)))
    with (tmp_path / "model.safetensors").open("wb") as target:
        write_mean([tmp_path / f"{seed}.safetensors" for seed in (0, 1)], target, names_in(shape))
    assert load_file(tmp_path / "model.safetensors")["model.layers.0.mlp.experts.gate_up_proj"].shape == (4, 16, 48)
    described = {"model": shape.model_dump(mode="json"), "vocab_size": 64, "eos_id": 0, "seq_len": 32}
    (tmp_path / "model.json").write_text(json.dumps(described))
    for name, mean in load_model(tmp_path / "model.json", tmp_path / "model.safetensors")[0].state_dict().items():
        torch.testing.assert_close(mean, (states[0][name] + states[1][name]) / 2)
