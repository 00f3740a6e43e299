"""Export to GGUF for llama.cpp: architecture "llama", fp32. Needs the extra `gguf`.

Reads a Hugging Face model folder. llama.cpp rotates adjacent pairs of queries and keys, so the rows of their matrices
are permuted from halves to pairs, as in its `convert_hf_to_gguf.py`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from tasks.core.errors import InputError

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
"""Settings of the GPT-2 pre-tokenizer, which llama.cpp calls "gpt-2"."""


def write_gguf(folder: Path, path: Path, name: str) -> None:
    """Writes the model in `folder` to `path`.

    Raises:
        InputError: the package gguf is missing, or the format cannot represent the model or its tokenizer.
    """
    try:
        import gguf
    except ImportError:
        raise InputError("the package gguf is not installed", 'install it: pip install "sluice[gguf]"') from None
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    _check(config, tokenizer)
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, config, name)
    template = json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template", "")
    _add_tokenizer(writer, gguf, config, tokenizer, template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        for key in sorted(file.keys()):
            weight = file.get_tensor(key)
            if key.endswith(("q_proj.weight", "k_proj.weight")):
                heads = config["num_attention_heads" if "q_proj" in key else "num_key_value_heads"]
                weight = pairwise(weight, heads)
            gguf_name = names.get_name(key, try_suffixes=(".weight",))
            assert gguf_name is not None, key
            writer.add_tensor(gguf_name, weight.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pairwise(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Returns a matrix [heads * head_dim, dim] with its rows ordered for rotation of pairs instead of halves."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def _check(config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    scaling = config["rope_scaling"]
    if scaling and scaling["rope_type"] != "linear":
        raise InputError(
            f"[train.model.rope_scaling] kind = {scaling['rope_type']} is not written to GGUF", "export to huggingface"
        )
    split = tokenizer.get("pre_tokenizer") or {}
    if {name: split.get(name) for name in BYTE_LEVEL} != BYTE_LEVEL or tokenizer.get("normalizer"):
        raise InputError(
            "the pre-tokenizer differs from that of GPT-2, and its name in llama.cpp is not known",
            "export to huggingface, and convert with llama.cpp's own script",
        )


def _describe(writer: Any, config: dict[str, Any], name: str) -> None:
    writer.add_name(name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(0)  # all tensors fp32
    if scaling := config["rope_scaling"]:
        writer.add_string("llama.rope.scaling.type", "linear")
        writer.add_rope_scaling_factor(scaling["factor"])


def _add_tokenizer(writer: Any, gguf: Any, config: dict[str, Any], tokenizer: dict[str, Any], template: str) -> None:
    ids: dict[str, int] = {
        **tokenizer["model"]["vocab"],
        **{token["content"]: token["id"] for token in tokenizer["added_tokens"]},
    }
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    tokens = {number: token for token, number in ids.items()}
    # The vocabulary of a model can be larger than that of the tokenizer.
    listed = [tokens.get(number, f"[PAD{number}]") for number in range(config["vocab_size"])]
    kinds = gguf.TokenType
    types = [
        kinds.CONTROL if number in special else kinds.NORMAL if number in tokens else kinds.UNUSED
        for number in range(config["vocab_size"])
    ]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(listed)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(True)
    if template:
        writer.add_chat_template(template)
