"""A model as one file of llama.cpp: GGUF, architecture "llama", fp32. Needs the extra `gguf`.

Reads a model folder of Hugging Face. llama.cpp turns queries and keys by neighbouring pairs, so the rows of their
matrices are permuted from halves to pairs, as its own `convert_hf_to_gguf.py` does.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from tasks.core.errors import InputError

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
"""What splits texts before the merges, as in GPT-2: of the pre-tokenizers of llama.cpp the one named "gpt-2"."""


def write_gguf(folder: Path, path: Path, name: str) -> None:
    """Writes the model in `folder` to `path`.

    Raises:
        InputError: the package gguf is missing, or the file could not say what the model or its tokenizer do.
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
            named = names.get_name(key, try_suffixes=(".weight",))
            assert named is not None, key
            writer.add_tensor(named, weight.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pairwise(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Returns the rows of a matrix [heads * head_dim, dim] ordered for rotation by pairs instead of halves."""
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
            "the tokenizer splits texts in another way than GPT-2, which llama.cpp knows by other names",
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
        **{one["content"]: one["id"] for one in tokenizer["added_tokens"]},
    }
    special = {one["id"] for one in tokenizer["added_tokens"] if one["special"]}
    tokens = {number: token for token, number in ids.items()}
    # A model may have more rows than the tokenizer has entries.
    listed = [tokens.get(number, f"[PAD{number}]") for number in range(config["vocab_size"])]
    kinds = gguf.TokenType
    types = [
        kinds.CONTROL if number in special else kinds.NORMAL if number in tokens else kinds.UNUSED
        for number in range(config["vocab_size"])
    ]
    merges = [one if isinstance(one, str) else " ".join(one) for one in tokenizer["model"]["merges"]]
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
