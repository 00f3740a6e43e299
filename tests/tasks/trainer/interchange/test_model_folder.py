"""Model folders of `transformers` compute the same here, and those that would not are refused by field."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.formats.tokens.shard import TokenFormat
from tasks.trainer.config import InitialSpec
from tasks.trainer.inference import Sampling, continuation
from tasks.trainer.interchange import weights as weights_module
from tasks.trainer.interchange.huggingface import names_in, small_files
from tasks.trainer.interchange.model_folder import read_model, read_origin, read_tensors, tensor_shapes
from tasks.trainer.interchange.weights import (
    INDEX,
    SHARD_BYTES,
    TORCH_NAMES,
    WEIGHTS,
    Place,
    StoredTensor,
    export_weights,
    write_fp32,
)
from tasks.trainer.model.config import ExpertsConfig, ModelConfig
from tasks.trainer.model.experts import Mixture
from tasks.trainer.model.loss import IGNORED
from tasks.trainer.model.model_file import describe, load_initial, load_model
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.model.transformer import Transformer
from tests.late import transformers
from tests.tasks.trainer.interchange.model_folders import CONTEXT, change, write_folder

CACHED = 20
"""Tokens of a greedy text that are also compared with generation by a cache of keys and values."""
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1, "num_hidden_layers": 3}
_GEMMA = {"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 24}
_GPT_OSS = {
    **{"family": "gpt_oss", "head_dim": 16, "num_hidden_layers": 3, "sliding_window": 16, "swiglu_limit": 0.3},
    **{"num_local_experts": 4, "num_experts_per_tok": 2},
}
_OLMO3_LONG = {
    "full_attention": {**YARN, "rope_theta": 5e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
}
FEATURES: dict[str, dict[str, Any]] = {
    "mistral, window": {"family": "mistral", "sliding_window": 16},
    "qwen3, window": {**_QWEN_WINDOW, "family": "qwen3", "head_dim": 16},
    "olmo2": {"family": "olmo2", "tie_word_embeddings": True, "num_key_value_heads": 4},
    "olmo3": {"family": "olmo3", "num_hidden_layers": 4, "sliding_window": 16},
    "olmo3, yarn": {"family": "olmo3", "num_hidden_layers": 5, "sliding_window": 16, "rope_parameters": _OLMO3_LONG},
    "smollm3": {"family": "smollm3", "num_hidden_layers": 5},
    "smollm3, window": {"family": "smollm3", "num_hidden_layers": 4, "sliding_window": 16, "use_sliding_window": True},
    "gemma2": {**_GEMMA, "family": "gemma2", "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "gemma3": {**_GEMMA, "family": "gemma3", "num_hidden_layers": 5, "sliding_window_pattern": 3},
    "gemma3, bf16, capped": {**_GEMMA, "family": "gemma3", "final_logit_softcapping": 5.0, "dtype": torch.bfloat16},
    "nanochat": {"family": "nanochat"},
    "gpt_oss": {**_GPT_OSS, "rope_parameters": {**YARN, "rope_theta": 1.5e5, "truncate": False}},
}
"""Models with features that a Llama has not."""
MIXTURE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied": {"tie_word_embeddings": True, "num_key_value_heads": 1},
    "mistral": {"family": "mistral", "rms_norm_eps": 1e-3},
    "wide window": {"family": "mistral", "sliding_window": CONTEXT},
    "odd width": {"intermediate_size": 100},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500_000.0}},
    "llama3": {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 32, "rope_theta": 500_000.0}},
    "yarn": {"rope_parameters": {**YARN, "beta_fast": 16.0, "rope_theta": 10_000.0}},
    "files": {"shard_size": "20KB"},
    "head width": {"head_dim": 12},
    "mistral, head width": {"family": "mistral", "head_dim": 16},
    "smollm": {
        "tie_word_embeddings": True,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "dtype": torch.bfloat16,
    },
    "qwen2": {"family": "qwen2", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "qwen2, tied, padded": {"family": "qwen2", "tie_word_embeddings": True, "vocab_size": 384, "shard_size": "20KB"},
    "qwen2, yarn": {"family": "qwen2", "rope_parameters": {**YARN, "rope_theta": 1e6}, "dtype": torch.bfloat16},
    "qwen3": {"family": "qwen3", "head_dim": 16, "rms_norm_eps": 1e-3},
    "qwen3, tied, padded": {"family": "qwen3", "head_dim": 24, "tie_word_embeddings": True, "vocab_size": 320},
    "qwen3_moe": {"family": "qwen3_moe", **MIXTURE},
    "mixtral, files, bf16": {
        "family": "mixtral",
        "dtype": torch.bfloat16,
        "shard_size": "20KB",
        "num_local_experts": 4,
    },
    "gpt_oss, files, bf16, square": {
        **{**_GPT_OSS, "dtype": torch.bfloat16, "shard_size": "20KB", "intermediate_size": 32},
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "bf16": {"dtype": torch.bfloat16},
    "fp16": {"dtype": torch.float16},
    **FEATURES,
}


def loaded(folder: Path, out: Path) -> Transformer:
    """Returns the model of a folder as a checkpoint has it."""
    model, tokens = read_model(folder), Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    with (out / "ours.safetensors").open("wb") as file:
        write_fp32(read_tensors(folder, model), file)
    described = describe(model.of_tokens(tokens), TokenFormat(tokens, 0, ""), model.context)
    (out / "model.json").write_text(json.dumps(described))
    return load_model(out / "model.json", out / "ours.safetensors")[0]


def exported(folder: Path, out: Path, limit: int) -> Path:
    """Writes the folder of the model that `loaded` has read from `folder`, in its dtypes."""
    tensors, target = read_tensors(folder, read_model(folder)), out / "exported"
    target.mkdir()
    described = json.loads((out / "model.json").read_text())
    described["dtype"] = TORCH_NAMES[tensors["embedding.weight"].dtype]
    for name, content in small_files(described, (folder / "tokenizer.json").read_text()).items():
        (target / name).write_bytes(content)
    dtypes = {name: tensor.dtype for name, tensor in tensors.items() if tensor.dtype != "F32"}
    with (out / "ours.safetensors").open("rb") as source:
        rename = names_in(ModelConfig.model_validate(described["model"]))
        export_weights(source, target, rename, dtypes, limit)
    return target


def all_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


@pytest.mark.parametrize("steps", [40, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_tokens_are_equal_and_an_export_has_the_same_bits(
    tmp_path: Path, name: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_module, "_PIECE", 100)  # so that a tensor has several pieces
    folder = write_folder(tmp_path / "theirs", **MODELS[name])
    sharded = "shard_size" in MODELS[name]
    assert (folder / INDEX).exists() == sharded
    ours = loaded(folder, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.randint(ours.vocab_size, (2, CONTEXT), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        logits = theirs(tokens).logits
        difference = (ours(tokens, torch.zeros_like(tokens)) - logits[..., : ours.vocab_size]).abs().max()
    assert difference <= 1e-4
    prompt = tokens[:1, :5].clone()
    prompt[0, 0] = 0
    # Rows of the embedding that are no tokens are never generated here; neither is the end of text in this test.
    no_tokens = [*range(ours.vocab_size, logits.shape[-1])] or None
    settings = {"min_new_tokens": steps, "max_new_tokens": steps, "do_sample": False, "suppress_tokens": no_tokens}
    whole = theirs.generate(prompt, **settings)
    written = whole[0, 5:].tolist()
    with torch.no_grad():
        following = ours(whole, torch.zeros_like(whole))[0, 4:-1]
    assert following[:, 1:].argmax(-1).add(1).tolist() == written, "each token is our most likely one"
    mine = continuation(ours, prompt[0, 1:].tolist(), 0, CONTEXT, Sampling(max_tokens=CACHED))
    assert mine == written[:CACHED]
    assert len(set(written)) > 3, "a text that repeats one token would be equal by chance"
    again = exported(folder, tmp_path, 20_000 if sharded else SHARD_BYTES)
    assert (again / INDEX).exists() == sharded
    if not sharded:
        read = load_model(tmp_path / "model.json", again / WEIGHTS)[0].state_dict()
        assert all(torch.equal(weight, ours.state_dict()[name]) for name, weight in read.items())
    before, after = all_tensors(folder), all_tensors(again)
    assert before.keys() == after.keys()
    assert all(before[name].dtype == after[name].dtype and torch.equal(before[name], after[name]) for name in before)
    assert read_model(again).shape == read_model(folder).shape
    copy = transformers.AutoModelForCausalLM.from_pretrained(again, dtype=torch.float32).eval()
    with torch.no_grad():
        assert torch.equal(copy(tokens).logits, logits)


@pytest.mark.parametrize("name", FEATURES)
def test_a_training_step_has_the_loss_and_the_gradients_of_transformers(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "theirs", **(MODELS[name] | {"dtype": torch.float32}))
    ours = loaded(folder, tmp_path)
    for mixture in ours.modules():
        if isinstance(mixture, Mixture):
            mixture.config = mixture.config.model_copy(update={"balance": "none"})
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.randint(ours.vocab_size, (2, 48), generator=torch.Generator().manual_seed(3))
    labels = torch.where(torch.arange(48) < 47, tokens.roll(-1, 1), IGNORED)
    loss = ours.loss(tokens, torch.zeros_like(tokens), labels)
    loss.backward()
    wanted = F.cross_entropy(theirs(tokens).logits.flatten(0, 1), labels.flatten(), reduction="sum")
    wanted.backward()
    torch.testing.assert_close(loss, wanted, atol=0, rtol=1e-4)
    of_theirs, rename = dict(theirs.named_parameters()), names_in(ours.config)
    for own, weight in ours.named_parameters():
        place = Place.of(rename(own))
        gradient = of_theirs[place.name].grad
        assert gradient is not None
        gradient = place.ours(gradient)
        assert gradient.abs().max() > 0
        torch.testing.assert_close(weight.grad, gradient, atol=1e-4 * float(gradient.abs().max()), rtol=1e-4, msg=own)


def test_weights_in_mxfp4_are_those_that_transformers_dequantizes(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "dtype": torch.bfloat16}
    dense = write_folder(tmp_path / "dense", **(_GPT_OSS | sizes))
    packed = write_folder(tmp_path / "packed", **(_GPT_OSS | sizes))
    weights, others = load_file(dense / WEIGHTS), load_file(packed / WEIGHTS)
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = others.pop(name).shape
        blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        scales = torch.randint(100, 140, blocks.shape[:-1], dtype=torch.uint8)
        weights[name] = convert_moe_packed_tensors(blocks, scales)
        others |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(weights, dense / WEIGHTS)
    save_file(others, packed / WEIGHTS)
    change(packed / "config.json", quantization_config={"quant_method": "mxfp4"})
    wanted, found = tensors(dense), tensors(packed)
    assert {name: one.dtype for name, one in found.items()} == {name: one.dtype for name, one in wanted.items()}
    for own, tensor in found.items():
        np.testing.assert_array_equal(tensor.values(), wanted[own].values(), own)
    scales[2, 3, 1] = 255
    save_file(others, packed / WEIGHTS)
    with pytest.raises(InputError, match=rf"{name} has values that are NaN"):
        tensors(packed)
    save_file({**others, f"{name}_blocks": blocks[:, :1].contiguous()}, packed / WEIGHTS)
    with pytest.raises(InputError, match=rf"blocks and scales of {name} are U8 \[4, 1, "):
        tensors(packed)


def test_a_configuration_of_an_older_transformers_gives_the_same_shape(tmp_path: Path) -> None:
    scaling = {**LLAMA3, "original_max_position_embeddings": 32}
    folder = write_folder(tmp_path / "new", rope_parameters={**scaling, "rope_theta": 500_000.0})
    new = read_model(folder).shape
    older = {"rope_parameters": None, "head_dim": None, "rope_theta": 500_000.0, "torch_dtype": "bfloat16"}
    change(folder / "config.json", **older, rope_scaling=scaling)
    assert read_model(folder).shape == new
    assert (new.rope_theta, new.rope_scaling is not None) == (500_000.0, True)


@pytest.mark.parametrize("width", [96, 100, 1536, 11008, 14336, 28672, 5461])
@pytest.mark.parametrize("dim", [96, 576, 4096])
def test_the_inner_width_is_exact(tmp_path: Path, width: int, dim: int) -> None:
    folder = write_folder(tmp_path / "model")
    change(folder / "config.json", hidden_size=dim, intermediate_size=width, head_dim=None)
    shape = read_model(folder).shape
    assert shape.ffn_dim == width
    assert ("ffn_width" in shape.model_dump()) == (width % 32 > 0), "older fingerprints stay as they are"


def test_shapes_are_those_of_the_decoder() -> None:
    qwen = {"head_width": 12, "qkv_bias": True, "qk_norm": True, "vocab_rows": 48}
    others = {"gated": False, "norm_weight": "none", "qk_norm": True}, {"norm_place": "post", "qk_norm": "projection"}
    experts = ExpertsConfig(count=4, per_token=2, width=24, bias=True)
    gpt_oss = {"qkv_bias": True, "output_bias": True, "attention_sinks": True, "experts": experts}
    others = *others, {"norm_place": "both"}, gpt_oss
    for settings in ({}, {"tie_embeddings": False}, {"tie_embeddings": False, **qwen}, *others):
        config = ModelConfig(layers=2, dim=32, heads=4, kv_heads=2, ffn_width=50, **settings)
        state = Transformer(config, 40).state_dict()
        assert tensor_shapes(config, 40) == {name: tuple(weight.shape) for name, weight in state.items()}
        weights = sum(weight.numel() for weight in state.values())
        assert ModelShape.of(config, config.embedding_rows(40)).weights["total"] == weights


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"architectures": ["GemmaForCausalLM"]},
        r'architectures = \["GemmaForCausalLM"\].* Import a model of Llama.*Qwen3',
    ),
    ({"architectures": None}, "architectures = null"),
    ({"model_type": "qwen3"}, 'model_type = "qwen3".* A model of LlamaForCausalLM has llama'),
    ({"attention_bias": True}, "attention_bias = true is not supported"),
    ({"mlp_bias": True}, "mlp_bias = true"),
    ({"hidden_act": "gelu"}, 'hidden_act = "gelu"'),
    ({"head_dim": 15}, "shape that Sluice's decoder does not have: .*head_width 15 must be even"),
    (
        {"hidden_size": 36, "head_dim": 9},
        "shape that Sluice's decoder does not have: .*dim 36 must be an even multiple of heads 4",
    ),
    (
        {"sliding_window": 64},
        "sliding_window = 64 is not supported. It is exact up to 64 tokens: set max_position_embeddings = 64",
    ),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types = .*sliding_attention"),
    ({"quantization_config": {"quant_method": "fp8"}}, 'quantization_config = .*"fp8".*equantize'),
    ({"auto_map": {"AutoModel": "code.Model"}}, "auto_map = .* code of its own"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 'rope_type = "dynamic" .* default, linear, llama3'),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}, "partial_rotary_factor of the rope"),
    ({"rope_parameters": {**YARN, "attention_factor": 1.0}}, "attention_factor of the rope_type yarn = 1.0"),
    ({"rope_parameters": {**YARN, "mscale": 0.7}}, "mscale of the rope_type yarn = 0.7"),
    ({"layer_types": ["chunked_attention", "full_attention"]}, 'layer_types = .*"chunked_attention"'),
    ({"final_logit_softcapping": 30.0}, r"final_logit_softcapping = 30\.0 is not supported"),
    ({"use_bidirectional_attention": True}, "use_bidirectional_attention = true"),
    ({"rope_parameters": LLAMA3}, "has no 'original_max_position_embeddings of the rope_type llama3'"),
    ({"num_hidden_layers": None}, "has no 'num_hidden_layers'"),
    ({"hidden_size": "wide"}, "is not the configuration of a model"),
]


@pytest.mark.parametrize(("fields", "said"), REFUSED, ids=[str(fields)[:50] for fields, _ in REFUSED])
def test_a_model_that_computes_something_else_is_refused(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    folder = write_folder(tmp_path / "model")
    change(folder / "config.json", **fields)
    with pytest.raises(InputError, match=said):
        read_model(folder)


def test_biases_of_all_matrices_of_attention_are_refused_also_for_qwen(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", family="qwen3", attention_bias=True)
    with pytest.raises(InputError, match="attention_bias = true is not supported"):
        read_model(folder)


def test_the_window_of_a_qwen_counts_if_a_layer_uses_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", family="qwen2")
    older = {"layer_types": None, "sliding_window": 64}
    for fields in ({"use_sliding_window": False}, {"use_sliding_window": True, "max_window_layers": 2}):
        change(folder / "config.json", **older, **fields)
        assert read_model(folder).shape.window == 0
    change(folder / "config.json", use_sliding_window=True, max_window_layers=1)
    shape = read_model(folder).shape
    assert (shape.window, shape.window_pattern) == (64, "fw")
    change(folder / "config.json", sliding_window=CONTEXT)
    assert read_model(folder).shape.window == 0


def test_a_qwen3_without_the_field_has_its_usual_head_width(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", family="qwen3", head_dim=128, num_hidden_layers=1)
    change(folder / "config.json", head_dim=None)
    assert read_model(folder).shape.head_width == 128
    assert read_tensors(folder, read_model(folder))


@pytest.mark.parametrize(
    ("family", "fields", "settings"),
    [
        ("mistral", {"sliding_window": None}, {"window": 4096, "window_pattern": "w"}),
        ("olmo3", {"sliding_window": None, "layer_types": None}, {"window": 4096, "window_pattern": "wwwf"}),
        ("smollm3", {"no_rope_layers": None, "tie_word_embeddings": None}, {"rope_pattern": "rrrn"}),
        (
            "gemma2",
            {"sliding_window": None, "attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": None},
            {"window": 4096, "attention_cap": 50.0, "logit_cap": 30.0, "head_width": 256, "attention_scalar": 0.0},
        ),
        (
            "gemma3",
            {"layer_types": None, "rope_parameters": None, "rope_theta": None, "_sliding_window_pattern": None},
            {"window_pattern": "wwwwwf", "rope_theta": 1e6, "window_rope_theta": 1e4, "logit_cap": 0.0},
        ),
    ],
)
def test_fields_that_are_missing_have_the_values_of_their_family(
    tmp_path: Path, family: str, fields: dict[str, Any], settings: dict[str, Any]
) -> None:
    width = {"head_dim": 256} if family.startswith("gemma") else {}
    folder = write_folder(tmp_path / "model", family=family, num_hidden_layers=6, max_position_embeddings=8192, **width)
    change(folder / "config.json", **fields)
    shape = read_model(folder).shape
    assert {name: getattr(shape, name) for name in settings} == settings


@pytest.mark.parametrize("content", [None, "[1]", "{"])
def test_a_folder_without_a_configuration_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=r"config\.json cannot be read .*Hugging Face model folder"):
        read_model(tmp_path)


def tensors(folder: Path) -> dict[str, StoredTensor]:
    return read_tensors(folder, read_model(folder))


NORM, QUERY = "model.norm.weight", "model.layers.1.self_attn.q_proj"


def test_missing_and_surplus_tensors_are_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file({**weights, **old}, folder / "model.safetensors")
    assert tensors(folder), "what config.json determines is not a weight"
    others = {name: weight for name, weight in weights.items() if name != NORM}
    save_file({**others, f"{QUERY}.bias": torch.ones(32)}, folder / "model.safetensors")
    said = rf"lacks {NORM}; it has, besides those of the model, {QUERY}\.bias"
    with pytest.raises(InputError, match=said):
        tensors(folder)
    save_file({"a": torch.ones(1)}, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"lacks lm_head\.weight, .* and 16 more"):
        tensors(folder)


HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_tied_model_may_repeat_its_embedding_as_head(
    tmp_path: Path, family: str, sharded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_module, "_PIECE", 100)
    folder = write_folder(tmp_path / "model", family=family, tie_word_embeddings=True, dtype=torch.bfloat16)
    before, whole = tensors(folder), load_file(folder / "model.safetensors")
    with_head = {**whole, HEAD: whole[EMBEDDING].clone()}
    if sharded:
        (folder / "model.safetensors").unlink()
        files = {name: f"{'head' if name == HEAD else 'rest'}.safetensors" for name in with_head}
        for file in set(files.values()):
            save_file({name: with_head[name] for name in with_head if files[name] == file}, folder / file)
        (folder / INDEX).write_text(json.dumps({"weight_map": files}))
    else:
        save_file(with_head, folder / "model.safetensors")
    assert tensors(folder).keys() == before.keys()
    with_head[HEAD][-1, -1] += 1
    save_file({HEAD: with_head[HEAD]} if sharded else with_head, folder / ("head" if sharded else "model.safetensors"))
    if sharded:
        (folder / "head").rename(folder / "head.safetensors")
    with pytest.raises(
        InputError, match=rf"{HEAD} differs from {EMBEDDING}, .* tie_word_embeddings = true\. Set it to f"
    ):
        tensors(folder)


def test_an_untied_model_without_head_is_refused_with_the_field_that_would_tie_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", tie_word_embeddings=True)
    change(folder / "config.json", tie_word_embeddings=None)
    with pytest.raises(InputError, match=rf"lacks {HEAD}\. .*, or set tie_word_embeddings = true there"):
        tensors(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_weight_that_is_not_finite_is_refused_with_its_tensor(
    tmp_path: Path, value: float, dtype: torch.dtype
) -> None:
    folder = write_folder(tmp_path / "model", dtype=dtype)
    loaded(folder, tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights[f"{QUERY}.weight"][1, 2] = value
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(InputError, match=rf"model\.safetensors: {QUERY}\.weight has values that are NaN or infinite"):
        loaded(folder, tmp_path)


def test_weights_in_the_store_that_are_not_finite_are_neither_loaded_nor_started_from(tmp_path: Path) -> None:
    loaded(write_folder(tmp_path / "model"), tmp_path)
    path = tmp_path / "ours.safetensors"
    weights = load_file(path)
    weights["norm.weight"][3] = float("nan")
    save_file(weights, path)
    said = r"ours\.safetensors: norm\.weight has values that are NaN or infinite"
    with pytest.raises(InputError, match=said):
        load_model(tmp_path / "model.json", path)
    with pytest.raises(InputError, match=said):
        load_initial(
            lambda _: None, InitialSpec(artifact="a/checkpoint@1", file=str(path), sha256=sha256_of_file(path))
        )


def test_shapes_and_dtypes_are_checked(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, NORM: torch.ones(31)}, folder / "model.safetensors")
    with pytest.raises(InputError, match=rf"{NORM} has the shape \[31\], and config\.json gives \[32\]"):
        tensors(folder)
    save_file({**weights, NORM: torch.ones(32).to(torch.float8_e4m3fn)}, folder / "model.safetensors")
    with pytest.raises(InputError, match=rf"{NORM} has the dtype F8_E4M3. Save the model in one of F32, F16, BF16"):
        tensors(folder)


def test_a_damaged_or_absent_file_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", shard_size="20KB")
    first, *_ = sorted(folder.glob("*.safetensors"))
    whole = first.read_bytes()
    for content in (whole[:-1], whole[:20], b"version https://git-lfs.github.com/spec/v1\n", b""):
        first.write_bytes(content)
        with pytest.raises(InputError, match=rf"{first.name} is not a complete safetensors file"):
            tensors(folder)
    first.unlink()
    with pytest.raises(InputError, match=rf"index\.json lists {first.name}, which is not in the folder"):
        tensors(folder)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(InputError, match=r"has neither model\.safetensors nor .*a pickle is not read"):
        tensors(folder)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", shard_size="20KB")
    first, second, *_ = sorted(folder.glob("*.safetensors"))
    save_file({**load_file(first), **load_file(second)}, second)
    with pytest.raises(InputError, match="both have"):
        tensors(folder)


def test_license_and_revision_are_those_that_the_folder_states(tmp_path: Path) -> None:
    revision = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "models--ink--pot" / "snapshots" / revision
    folder.mkdir(parents=True)
    found = read_origin(folder, {})
    assert (found.name, found.license, found.revision) == ("ink/pot", "", revision)
    (folder / "LICENSE").write_text("\n  Ink Community License\nwith terms\n")
    (folder / "README.md").write_text("---\nlibrary_name: transformers\nlicense: other\n---\n# Ink\nlicense: wrong\n")
    assert read_origin(folder, {}).license == "Ink Community License"
    (folder / "README.md").write_text("---\nlicense: 'apache-2.0'\n---\n")
    assert read_origin(folder, {}).license == "apache-2.0"
    local = tmp_path / "pot" / ".cache" / "huggingface" / "download"
    local.mkdir(parents=True)
    (local / "config.json.metadata").write_text(f"{revision}\netag\n1.0\n")
    found = read_origin(tmp_path / "pot", {"_name_or_path": "ink/pot"})
    assert (found.name, found.revision) == ("ink/pot", revision)
    assert read_origin(tmp_path / "pot", {"_name_or_path": "/home/ink/pot"}).name == "", "a path of another machine"
