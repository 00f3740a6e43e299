"""Published models and named sizes have their published parameters; FLOPs equal those counted by torch.

Published models are those of `transformers`, on torch's meta device: nothing is computed or stored.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tasks.core.errors import InputError
from tasks.trainer.interchange.huggingface import shape_of
from tasks.trainer.model.config import ExpertsConfig, ModelConfig
from tasks.trainer.model.shape import SIZES, ModelShape, attended_length, flops_per_token
from tasks.trainer.model.transformer import build
from tasks.trainer.planning.config import peak_flops
from tasks.trainer.sizes import defaults_of
from tests.late import transformers

LENGTH = 256
LLAMA = {"model_type": "llama", "tie_word_embeddings": False, "max_position_embeddings": 4096}
LLAMA_2_7B = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32}
LLAMA_2_70B = {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}
LLAMA_3_8B = {**LLAMA_2_7B, "num_key_value_heads": 8}
QWEN = {"tie_word_embeddings": True, "vocab_size": 151936, "max_position_embeddings": 32768}
QWEN_2_5_05B = {
    **{**QWEN, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2},
    "intermediate_size": 4864,
}
QWEN_3_06B = {
    **{**QWEN, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8},
    **{"intermediate_size": 3072, "head_dim": 128},
}
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "Llama 2 7B": ({**LLAMA, **LLAMA_2_7B, "intermediate_size": 11008, "vocab_size": 32000}, 6_738_415_616),
    "Llama 2 70B": ({**LLAMA, **LLAMA_2_70B, "intermediate_size": 28672, "vocab_size": 32000}, 68_976_648_192),
    "Llama 3 8B": ({**LLAMA, **LLAMA_3_8B, "intermediate_size": 14336, "vocab_size": 128256}, 8_030_261_248),
    "OLMo 7B": (
        {**LLAMA, **LLAMA_2_7B, "model_type": "olmo", "intermediate_size": 11008, "vocab_size": 50304},
        6_888_095_744,
    ),
    "Qwen 2.5 0.5B": ({"model_type": "qwen2", **QWEN_2_5_05B}, 494_032_768),
    "Qwen 3 0.6B": ({"model_type": "qwen3", **QWEN_3_06B}, 596_049_920),
    "GPT-2": (
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
        124_439_808,
    ),
}
"""config.json, and the parameters that the model's page on the Hugging Face hub states (safetensors)."""


_LONG = {"max_position_embeddings": 32768}
NEWER: dict[str, tuple[dict[str, Any], int]] = {
    "OLMo 2 7B": (
        {**LLAMA, **LLAMA_2_7B, "model_type": "olmo2", "intermediate_size": 11008, "vocab_size": 100352},
        7_298_617_344,
    ),
    "SmolLM3 3B": (
        {
            **{**_LONG, "model_type": "smollm3", "hidden_size": 2048, "num_hidden_layers": 36, "vocab_size": 128256},
            **{"num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 11008},
        },
        3_075_098_624,
    ),
    "Gemma 2 2B": (
        {
            **{**_LONG, "model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 26, "vocab_size": 256000},
            **{"num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 9216},
        },
        2_614_341_888,
    ),
    "Gemma 3 1B": (
        {
            **{**_LONG, "model_type": "gemma3_text", "hidden_size": 1152, "num_hidden_layers": 26},
            **{"num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 6912, "vocab_size": 262144},
        },
        999_885_952,
    ),
}
"""The same of models with features that a Llama has not; fields that are missing have the values of their family."""


QWEN_3_30B_A3B = {
    **{"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4},
    **{"head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936, "num_experts": 128},
    **{"num_experts_per_tok": 8, "moe_intermediate_size": 768},
}
MIXTRAL = {**LLAMA_3_8B, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2}
GPT_OSS_120B = {
    **{"hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8},
    **{"head_dim": 64, "intermediate_size": 2880, "vocab_size": 201088, "num_local_experts": 128},
    **{"num_experts_per_tok": 4, "attention_bias": True, "max_position_embeddings": 131072},
    "quantization_config": {"quant_method": "mxfp4"},
}
OF_EXPERTS: dict[str, tuple[dict[str, Any], int]] = {
    "Qwen 3 30B-A3B": ({"model_type": "qwen3_moe", **QWEN_3_30B_A3B}, 30_532_122_624),
    "Mixtral 8x7B": ({"model_type": "mixtral", **MIXTRAL, "vocab_size": 32000}, 46_702_792_704),
    "gpt-oss 120b": ({"model_type": "gpt_oss", **GPT_OSS_120B}, 116_829_156_672),
}


@pytest.mark.parametrize("name", [*MODELS, *NEWER, *OF_EXPERTS])
def test_parameter_counts_match_published_values(name: str) -> None:
    config, published = {**MODELS, **NEWER, **OF_EXPERTS}[name]
    assert shape_of(config).weights["total"] == published


@pytest.mark.parametrize("name", MODELS)
def test_flops_match_the_counter_of_torch(name: str) -> None:
    config, published = MODELS[name]
    kind = transformers.AutoConfig.for_model(**config, attn_implementation="eager")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(kind)
        tokens = torch.zeros((1, LENGTH), dtype=torch.int64)
        with FlopCounterMode(display=False) as counted, torch.no_grad():
            model(input_ids=tokens, attention_mask=torch.zeros((1, 1, LENGTH, LENGTH)), use_cache=False)
    assert sum(parameter.numel() for parameter in model.parameters()) == published
    # The backward pass has two products for each one of the forward pass.
    planned = flops_per_token(shape_of(config), LENGTH) * LENGTH
    assert planned == pytest.approx(3 * counted.get_total_flops(), rel=0.10)


def test_an_unknown_model_family_is_refused_with_a_list_of_the_known_ones() -> None:
    with pytest.raises(
        InputError,
        match=r'of the type "mamba" is not supported\. Supported are: llama, mistral, qwen2, qwen3, qwen3_moe, ',
    ):
        shape_of({"model_type": "mamba"})
    with pytest.raises(InputError, match=r"use_bidirectional_attention = true is not supported"):
        shape_of({"model_type": "gemma2", "use_bidirectional_attention": True})


DOCS = Path(__file__).parents[4] / "docs" / "model.md"
_UNIT = {"m": 1e6, "b": 1e9}
_FFN, _THETA = 8 / 3, 10_000.0


@pytest.mark.parametrize("name", SIZES)
def test_a_size_has_the_parameters_of_its_name(name: str) -> None:
    size = SIZES[name]
    weights = ModelShape.of(size.model, size.vocab_size).weights["total"]
    assert weights == pytest.approx(float(name[:-1]) * _UNIT[name[-1]], rel=0.05)


def test_the_documented_table_matches_the_sizes() -> None:
    rows = []
    for name, size in SIZES.items():
        model = size.model
        others = [
            *([f"ffn_multiple = {model.ffn_multiple}"] if model.ffn_multiple != _FFN else []),
            *([f"rope_theta = {model.rope_theta}"] if model.rope_theta != _THETA else []),
        ]
        shape = (
            model.layers,
            model.dim,
            model.heads,
            model.kv_heads,
            size.vocab_size,
            str(model.tie_embeddings).lower(),
        )
        weights = f"{ModelShape.of(model, size.vocab_size).weights['total']:,}"
        default = defaults_of(model.layer_weights)
        usual = (f"{default.lr:g}", f"{default.batch_tokens:,}", default.precision)
        rows.append([name, *map(str, shape), ", ".join(others), weights, *usual])
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in DOCS.read_text().splitlines()]
    assert [row for row in table if re.fullmatch(r"[\d.]+[mb]", row[0])] == rows


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tie_embeddings": False},
        {"head_width": 12, "qkv_bias": True, "qk_norm": True},
        {"gated": False},
        {"experts": ExpertsConfig(count=4, per_token=2, width=24, shared_width=16)},
    ],
)
def test_flops_per_token_match_the_counter_of_torch_forward_and_backward(settings: dict[str, Any]) -> None:
    config, vocab, length = ModelConfig(layers=2, dim=32, heads=4, kv_heads=2, **settings), 96, 24
    model = build(config, vocab, 0)
    tokens = torch.randint(vocab, (3, length))
    # Of the fused kernel on a CPU torch counts nothing.
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        model(tokens, torch.zeros_like(tokens)).sum().backward()
    assert counted.get_total_flops() == flops_per_token(ModelShape.of(config, vocab), length) * tokens.numel()


def test_a_layer_with_a_window_attends_to_no_more_keys_than_it_has() -> None:
    config = ModelConfig(layers=5, dim=32, heads=4, kv_heads=2, window=8, window_pattern="wwf")
    full, shape = (ModelShape.of(one, 96) for one in (config.model_copy(update={"window": 0}), config))
    saved = flops_per_token(full, 24) - flops_per_token(shape, 24)
    assert saved == 4 * 12 * 32 * (24 - 8), "layers 0, 1, 3 and 4"
    assert flops_per_token(shape, 6) == flops_per_token(full, 6)


def test_attention_within_documents_needs_fewer_flops_than_the_convention() -> None:
    assert attended_length([2048]) == 1024.5
    assert attended_length([700, 700, 648]) == pytest.approx(342.2, abs=0.1)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA GeForce RTX 3060", None),
        ("CPU", None),
    ],
)
def test_the_peak_of_a_gpu_is_found_by_the_words_of_its_name(name: str, peak: float | None) -> None:
    assert peak_flops(name, "bf16") == peak
    assert peak_flops(name, "fp32") == (peak and peak / 2), "TF32"
