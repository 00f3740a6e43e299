"""Export to GGUF for llama.cpp: architectures "llama", "qwen2" and "qwen3", fp32. Needs the extra `gguf`.

Reads a Hugging Face model folder. In the first architecture llama.cpp rotates adjacent pairs of queries and keys, so
the rows of their matrices are permuted from halves to pairs, as in its `convert_hf_to_gguf.py`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.core.errors import InputError
from tasks.formats.tokens.pieces import IN_LLAMA_CPP
from tasks.trainer.interchange.huggingface import CONFIG, TOKENIZER, TOKENIZER_CONFIG
from tasks.trainer.interchange.model_folder import (
    around,
    read_chat_template,
    read_ends,
    read_json,
    token_content,
    weight_files,
)
from tasks.trainer.interchange.weights import tensors_in

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
    config = read_json(folder / CONFIG)
    tokenizer = json.loads((folder / TOKENIZER).read_text())
    _check(config)
    pre_tokenizer = pre_tokenizer_name(tokenizer)
    kind = config["model_type"]
    writer = gguf.GGUFWriter(path, kind)
    _describe(writer, gguf, config, name)
    _add_tokenizer(writer, gguf, config["vocab_size"], tokenizer, pre_tokenizer)
    _special_tokens(gguf, folder, config["vocab_size"]).add_to_gguf(writer, quiet=True)
    for add, number in zip((writer.add_eot_token_id, writer.add_eom_token_id), _more_ends(folder), strict=False):
        add(number)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], config["num_hidden_layers"])
    tensors = dict(tensor for file in weight_files(folder) for tensor in tensors_in(file))
    for key in sorted(tensors):
        weight = tensors[key].values()
        if kind == "llama" and key.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in key else "num_key_value_heads"]
            weight = pairwise(weight, heads)
        gguf_name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, key
        writer.add_tensor(gguf_name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pairwise(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Returns a matrix [heads * head_dim, dim] with its rows ordered for rotation of pairs instead of halves."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def pre_tokenizer_name(tokenizer: dict[str, Any]) -> str:
    """Returns the name of a pre-tokenizer in llama.cpp; raises InputError if it is not known.

    llama.cpp does not normalize: of a text that is not in NFC, a tokenizer with that normalizer has other tokens. It
    reads byte pair encodings only: its unigram model has no bytes for unknown characters.
    """
    if tokenizer["model"].get("type", "BPE") != "BPE":
        raise InputError(
            f"GGUF has no tokenizer of the type {tokenizer['model']['type']} with bytes for unknown characters",
            "export to huggingface, or train with [tokenizer] algorithm = bpe",
        )
    split, normalizer = tokenizer.get("pre_tokenizer") or {}, tokenizer.get("normalizer")
    # Llama 3 looks up a whole word before it merges, and llama.cpp does so with this pre-tokenizer only.
    whole_words = bool(tokenizer["model"].get("ignore_merges"))
    name = ""
    if {name: split.get(name) for name in BYTE_LEVEL} == BYTE_LEVEL and not normalizer:
        name = "gpt-2"
    elif split.get("type") == "Sequence" and normalizer in (None, {"type": "NFC"}):
        first, *rest = split["pretokenizers"]
        isolated = first.get("behavior") == "Isolated" and not first.get("invert")
        plain = [{key: one.get(key) for key in BYTE_LEVEL} for one in rest] == [{**BYTE_LEVEL, "use_regex": False}]
        name = IN_LLAMA_CPP.get(first.get("pattern", {}).get("Regex", ""), "") if isolated and plain else ""
    if not name or whole_words != (name == "llama-bpe"):
        raise InputError(
            "the pre-tokenizer differs from those of GPT-2, Qwen 2, Qwen 3.5 and Llama 3, and llama.cpp has none that "
            "splits every text in the same way",
            "export to huggingface; a tokenizer of ours can go to GGUF with [tokenizer] split = llama3 and single "
            "digits, or split = gpt2",
        )
    return name


def _check(config: dict[str, Any]) -> None:
    if config["model_type"] == "qwen3_moe":
        raise InputError("[train.model.experts] are not written to GGUF", "export to huggingface")
    scaling = config["rope_scaling"]
    if scaling and scaling["rope_type"] != "linear":
        raise InputError(
            f"[train.model.rope_scaling] kind = {scaling['rope_type']} is not written to GGUF", "export to huggingface"
        )


def _describe(writer: Any, gguf: Any, config: dict[str, Any], name: str) -> None:
    writer.add_name(name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    if config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(0)  # all tensors fp32
    if scaling := config["rope_scaling"]:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])


def _add_tokenizer(writer: Any, gguf: Any, rows: int, tokenizer: dict[str, Any], pre: str) -> None:
    """Adds the vocabulary; an added token that is not special is found in every text, and shown in it."""
    kinds = gguf.TokenType
    found = {number: (token, kinds.NORMAL) for token, number in tokenizer["model"]["vocab"].items()}
    for token in tokenizer["added_tokens"]:
        found[token["id"]] = (token["content"], kinds.CONTROL if token["special"] else kinds.USER_DEFINED)
    # The vocabulary of a model can be larger than that of the tokenizer.
    listed = [found.get(number, (f"[PAD{number}]", kinds.UNUSED)) for number in range(rows)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in listed])
    writer.add_token_types([kind for _, kind in listed])


def _special_tokens(gguf: Any, folder: Path, rows: int) -> Any:
    """Returns merges, special tokens and chat template of a folder, as `convert_hf_to_gguf.py` reads them.

    Whether a text begins and ends with a token is written in any case, because llama.cpp would assume it by the
    pre-tokenizer; it is read from the tokenizer, because settings beside it need not apply.

    Raises:
        InputError: more than one token stands before or after a text.
    """
    special = gguf.SpecialVocab(folder, load_merges=True, n_vocab=rows)
    special.chat_template = read_chat_template(folder) or None
    before, after = around(Tokenizer.from_file(str(folder / TOKENIZER)))
    if max(len(before), len(after)) > 1:
        cause = f"the tokenizer puts {len(before)} tokens before a text and {len(after)} after it; GGUF has one of each"
        raise InputError(cause, "export to huggingface")
    special.special_token_ids |= dict(zip(("bos",), before, strict=False)) | dict(zip(("eos",), after, strict=False))
    special.add_special_token = {"bos": bool(before), "eos": bool(after)}
    return special


def _more_ends(folder: Path) -> list[int]:
    """Returns the tokens besides `eos_token` that end a generated text; llama.cpp has room for two."""
    loaded = Tokenizer.from_file(str(folder / TOKENIZER))
    eos = token_content(read_json(folder / TOKENIZER_CONFIG).get("eos_token"))
    return [number for number in read_ends(folder) if loaded.id_to_token(number) not in (None, eos)]
