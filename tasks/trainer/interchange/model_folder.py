"""Reads a Hugging Face model folder: shape, weights and origin of a model that Sluice's decoder computes exactly.

Reads `config.json`, the safetensors files (`model.safetensors`, or those of `model.safetensors.index.json`), and what
`README.md`, `LICENSE` and the hub's download state about license and revision. The values of tensors are read by
`weights`. Pickles are not read, because loading one can run code. Does not import torch.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from tokenizers import Tokenizer

from tasks.core.errors import InputError
from tasks.trainer.config import ModelConfig
from tasks.trainer.interchange.chat_template import FILE as CHAT_TEMPLATE
from tasks.trainer.interchange.chat_template import stated_template
from tasks.trainer.interchange.huggingface import (
    CONFIG,
    GENERATION_CONFIG,
    QWEN3_HEAD,
    TOKENIZER,
    TOKENIZER_CONFIG,
    listed_ids,
    weight_names,
)
from tasks.trainer.interchange.weights import (
    DTYPES,
    INDEX,
    WEIGHTS,
    StackedTensor,
    StoredTensor,
    check_finite,
    pieces_of,
    renamed,
    tensors_in,
)

SOURCE_FILES = (
    *(CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG, CHAT_TEMPLATE),
    *("special_tokens_map.json", "added_tokens.json"),
)
"""Files that state tokens, chat template and generation; an export of an imported model has them again."""
STATED = ("README.md", "LICENSE")
"""Files that state a license."""
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "MixtralForCausalLM": "mixtral",
}
"""Supported architectures, each with its `model_type`."""

_OTHER_MODEL = "import a model without it: no setting of Sluice's decoder computes the same"
_FIXED: dict[str, tuple[Any, str]] = {
    "hidden_act": ("silu", _OTHER_MODEL),
    "attention_bias": (False, _OTHER_MODEL),
    "mlp_bias": (False, _OTHER_MODEL),
    "partial_rotary_factor": (1.0, _OTHER_MODEL),
    "decoder_sparse_step": (1, _OTHER_MODEL),
    "mlp_only_layers": ([], _OTHER_MODEL),
    "quantization_config": (None, "import the weights that were quantized, or dequantize them and save them in bf16"),
    "auto_map": (None, "import a model that needs no code of its own"),
}
"""Fields with the only value that is computed exactly, which is also that of a missing field; and the remedy."""
_WINDOW, _UNWINDOWED_LAYERS = 4096, 28
"""`sliding_window` of a Mistral or Qwen model, and `max_window_layers` of Qwen, where `config.json` has no field."""
_SCALINGS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
    "yarn": {"factor", "original_max_position_embeddings", "beta_slow", "beta_fast"},
}
"""Supported values of `rope_type`, each with its settings that Sluice has."""
_OPTIONAL_SCALING = {"beta_slow", "beta_fast"}

_NOT_WEIGHTS = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Tensors of old checkpoints that `config.json` determines."""
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_NAMED = 5
"""Tensors that a message lists."""

_REVISION = re.compile(r"[0-9a-f]{40}")
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""Name of a model on the hub; `_name_or_path` can also be a path of the machine that saved the model."""
_DOWNLOADED = ".cache/huggingface/download/config.json.metadata"
"""File of `hf download --local-dir`; its first line is the revision."""


@dataclass(frozen=True)
class FolderModel:
    """Shape of the model in a folder, and the content of its `config.json`.

    `vocab_size` is the number of rows of the embedding, which can be more than the tokens of the tokenizer; `context`
    is the largest number of positions of a sequence.
    """

    shape: ModelConfig
    vocab_size: int
    context: int
    content: dict[str, Any]

    def of_tokens(self, tokens: int) -> ModelConfig:
        """Returns the shape of the model with a tokenizer of this many tokens."""
        padding = {"vocab_rows": self.vocab_size} if tokens < self.vocab_size else {}
        return self.shape.model_copy(update=padding)


@dataclass(frozen=True)
class Origin:
    """What a folder states about its model; "" if it does not."""

    name: str
    license: str
    revision: str


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a file of the folder; raises InputError if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        remedy = "name a complete Hugging Face model folder, or a model of the hub as hf://owner/name"
        raise InputError(f"{path} cannot be read ({cause})", remedy) from None
    return content


def read_model(folder: Path) -> FolderModel:
    """Returns the model of a folder; raises InputError, with the field, if Sluice's decoder computes something else."""
    path = folder / CONFIG
    content = read_json(path)
    _check_architecture(path, content)
    for field, (value, remedy) in _FIXED.items():
        if content.get(field) not in (None, value):
            raise _refusal(path, field, content[field], remedy)
    try:
        context = int(content["max_position_embeddings"])
        _check_attention(path, content, context)
        shape = ModelConfig.model_validate(_shape(path, content))
        return FolderModel(shape, int(content["vocab_size"]), context, content)
    except KeyError as error:
        raise InputError(f"{path} has no {error}", "name a complete Hugging Face model folder") from None
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, one['loc']))} {one['msg']}" for one in error.errors())
        raise InputError(f"{path} has a shape that Sluice's decoder does not have: {details}", _OTHER_MODEL) from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} is not the configuration of a model ({error})", "download it again") from None


def _refusal(path: Path, field: str, value: Any, remedy: str) -> InputError:
    return InputError(f"{path}: {field} = {json.dumps(value)} is not supported", remedy)


def _check_architecture(path: Path, content: Mapping[str, Any]) -> None:
    names, kind = content.get("architectures"), content.get("model_type")
    name = next((name for name in ARCHITECTURES if names == [name]), "")
    if names == ["GptOssForCausalLM"]:
        lacks = "attention sinks, the sliding window of every second layer, and the bias of the attention's output"
        raise _refusal(path, "architectures", names, f"Sluice has its experts, but neither {lacks}; {_OTHER_MODEL}")
    if not name:
        raise _refusal(path, "architectures", names, f"import a model of {' or '.join(ARCHITECTURES)}")
    if kind != ARCHITECTURES[name]:
        raise _refusal(path, "model_type", kind, f"a model of {name} has {ARCHITECTURES[name]}")


def _check_attention(path: Path, content: Mapping[str, Any], context: int) -> None:
    """Raises InputError unless every token attends to all earlier ones."""
    window = _window(content)
    if window is not None and window < context:
        remedy = f"it is exact up to {window} tokens: set max_position_embeddings = {window} if that is long enough"
        raise _refusal(path, "sliding_window", window, remedy)
    kinds = content.get("layer_types") or ()
    if set(kinds) - {"full_attention"}:
        raise _refusal(path, "layer_types", sorted(set(kinds)), _OTHER_MODEL)


def _window(content: Mapping[str, Any]) -> int | None:
    """Returns the number of positions that some layer attends to; None: all of them."""
    kind = content["model_type"]
    if kind not in ("qwen2", "qwen3", "qwen3_moe"):
        window: int | None = content.get("sliding_window", _WINDOW if kind == "mistral" else None)
        return window
    # The first layers of a Qwen have no window, and it must be enabled.
    limited = content["num_hidden_layers"] > content.get("max_window_layers", _UNWINDOWED_LAYERS)
    return content.get("sliding_window", _WINDOW) if content.get("use_sliding_window") and limited else None


def _shape(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a ModelConfig."""
    heads, dim, width = content["num_attention_heads"], content["hidden_size"], content["intermediate_size"]
    kind = content["model_type"]
    # Only Llama's default is the number of heads; the field of others must be there.
    kv_heads = content["num_key_value_heads"] if kind != "llama" else None
    head_dim = content.get("head_dim") or (QWEN3_HEAD if kind == "qwen3" else dim // heads)
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    shape = {
        "layers": content["num_hidden_layers"],
        "dim": dim,
        "heads": heads,
        "head_width": head_dim if head_dim * heads != dim else 0,
        "qkv_bias": kind == "qwen2",
        "qk_norm": kind in ("qwen3", "qwen3_moe"),
        "experts": _experts(content) if kind in ("qwen3_moe", "mixtral") else None,
        "kv_heads": kv_heads or content.get("num_key_value_heads") or heads,
        "rope_theta": rope.get("rope_theta") or content.get("rope_theta") or 10_000.0,
        "rope_scaling": _scaling(path, rope),
        "tie_embeddings": bool(content.get("tie_word_embeddings", False)),
        "norm_eps": content.get("rms_norm_eps", 1e-6),
        "ffn_multiple": width / dim,
    }
    return shape if ModelConfig.model_validate(shape).ffn_dim == width else {**shape, "ffn_width": width}


def _experts(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of an ExpertsConfig."""
    is_mixtral = content["model_type"] == "mixtral"
    return {
        "count": content.get("num_local_experts") or content["num_experts"],
        "per_token": content["num_experts_per_tok"],
        "width": content["intermediate_size" if is_mixtral else "moe_intermediate_size"],
        "normalize": is_mixtral or bool(content.get("norm_topk_prob", False)),
    }


def _scaling(path: Path, rope: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns `rope_scaling` of a ModelConfig from `rope_parameters`, or from `rope_scaling` of older files."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in _SCALINGS:
        raise _refusal(path, "rope_type", kind, f"import a model with one of {', '.join(_SCALINGS)}")
    known = _SCALINGS[kind]
    values = {name: value for name, value in rope.items() if value is not None}
    for name in sorted(values.keys() - known - {"rope_type", "type", "rope_theta"}):
        if not _is_implied(name, values):
            raise _refusal(path, f"{name} of the rope_type {kind}", values[name], _OTHER_MODEL)
    for name in sorted(known - values.keys() - _OPTIONAL_SCALING):
        raise KeyError(f"{name} of the rope_type {kind}")
    if kind == "default":
        return None
    names = {"original_max_position_embeddings": "original_length"}
    return {"kind": kind, **{names.get(name, name): values[name] for name in sorted(known & values.keys())}}


def _is_implied(name: str, values: Mapping[str, Any]) -> bool:
    """Returns whether a setting of the rotary positions that Sluice does not have is one that it always computes."""
    if name == "attention_factor" and "factor" in values:
        return math.isclose(values[name], 0.1 * math.log(values["factor"]) + 1, rel_tol=1e-6)
    return bool(values[name] == {"partial_rotary_factor": 1, "truncate": True}.get(name))


def weight_files(folder: Path) -> list[Path]:
    """Returns the safetensors files of a folder, sorted; raises InputError if there are none, or the index is wrong."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if not (folder / INDEX).exists():
        remedy = "save the model with transformers, which writes safetensors; a pickle is not read, as it can run code"
        raise InputError(f"{folder} has neither {WEIGHTS} nor {INDEX}", remedy)
    names = indexed_files(folder)
    for name in names:
        if not (folder / name).is_file():
            raise InputError(f"{folder / INDEX} lists {name}, which is not in the folder", "download the whole folder")
    return [folder / name for name in names]


def read_files(folder: Path) -> list[str]:
    """Returns the names of the files of a folder that are imported or state the origin of the model, sorted."""
    weights = [path.name for path in weight_files(folder)]
    optional = [name for name in (*STATED, INDEX, *SOURCE_FILES) if (folder / name).is_file()]
    return sorted({CONFIG, TOKENIZER, TOKENIZER_CONFIG, *weights, *optional})


def indexed_files(folder: Path) -> list[str]:
    """Returns the names of the files in the index of a folder, sorted; raises InputError if one cannot be in it."""
    names = sorted(set(map(str, read_json(folder / INDEX).get("weight_map", {}).values())))
    for name in names:
        if Path(name).name != name or Path(name).suffix != ".safetensors":
            raise InputError(f"{folder / INDEX} lists {name}, which is no safetensors file", "download it again")
    return names


def read_tensors(folder: Path, model: FolderModel) -> dict[str, StoredTensor]:
    """Returns the weights of a model by Sluice's name, sorted, after checking names, shapes, dtypes and values.

    Raises:
        InputError: a file is damaged, or tensors are missing, superfluous, of another shape or of another dtype, or
            have a value that is not finite. The head of a model with `tie_word_embeddings` is superfluous only if it
            differs from the embedding.
    """
    found: dict[str, StoredTensor] = {}
    for path in weight_files(folder):
        for name, tensor in tensors_in(path):
            if name in found:
                raise InputError(f"{path} and {found[name].path.name} both have {name}", "download the folder again")
            found[name] = tensor
    expected = tensor_shapes(model.shape, model.vocab_size)
    named = weight_names(model.shape.model_dump(mode="json"))
    parts = {name: renamed(named(name), shape) for name, shape in expected.items()}
    ours = {one: (name, shape) for name, of_name in parts.items() for one, shape in of_name}
    found = {name: tensor for name, tensor in found.items() if not _NOT_WEIGHTS.fullmatch(name)}
    if model.shape.tie_embeddings and _EMBEDDING in found and _HEAD in found:
        _check_tied(found[_EMBEDDING], found.pop(_HEAD))
    _check_names(folder, ours.keys() - found.keys(), found.keys() - ours.keys())
    for name, tensor in found.items():
        if tensor.shape != ours[name][1]:
            shapes = f"the shape {list(tensor.shape)}, and {CONFIG} gives {list(ours[name][1])}"
            raise InputError(f"{tensor.path}: {name} has {shapes}", "download the folder again")
        if tensor.dtype not in DTYPES:
            remedy = f"save the model in one of {', '.join(DTYPES)}"
            raise InputError(f"{tensor.path}: {name} has the dtype {tensor.dtype}", remedy)
    check_finite(found.values())
    return {name: _stacked([found[one] for one, _ in parts[name]], expected[name]) for name in sorted(expected)}


def _stacked(parts: Sequence[StoredTensor], shape: tuple[int, ...]) -> StoredTensor:
    """Returns a weight of ours of one tensor or several; raises InputError if they have different dtypes."""
    first, *others = parts
    if first.shape == shape:
        return first
    for other in others:
        if other.dtype != first.dtype:
            dtypes = f"{other.dtype}, and {first.name} has {first.dtype}"
            raise InputError(f"{other.path}: {other.name} has {dtypes}", "save all experts in one dtype")
    return StackedTensor(first.path, first.name, first.dtype, shape, first.begin, tuple(parts))


def _check_names(folder: Path, missing: set[str], surplus: set[str]) -> None:
    lists = [
        f"{text} {', '.join(sorted(names)[:_NAMED])}{f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''}"
        for text, names in (("lacks", missing), ("has, besides those of the model,", surplus))
        if names
    ]
    if lists:
        tied = ", or set tie_word_embeddings = true there if the embedding is the head" if _HEAD in missing else ""
        remedy = f"name a folder whose weights are those that its {CONFIG} describes{tied}"
        raise InputError(f"{folder} {'; it '.join(lists)}", remedy)


def _check_tied(embedding: StoredTensor, head: StoredTensor) -> None:
    """Raises InputError unless the head has the values of the embedding that config.json says it shares."""
    readable = embedding.dtype in DTYPES and head.dtype in DTYPES
    pieces = zip(pieces_of(embedding), pieces_of(head), strict=True) if readable else ()
    if not readable or embedding.shape != head.shape or not all(np.array_equal(*pair) for pair in pieces):
        raise InputError(
            f"{head.path}: {_HEAD} differs from {_EMBEDDING}, and {CONFIG} has tie_word_embeddings = true",
            f"set it to false if the model has a head of its own, or remove {_HEAD}",
        )


def tensor_shapes(model: ModelConfig, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor of a model by Sluice's name."""
    dim, width, rows = model.dim, model.ffn_dim, model.embedding_rows(vocab_size)
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    in_layer: dict[str, tuple[int, ...]] = {
        "attention_norm.weight": (dim,),
        "attention.wq.weight": (queries, dim),
        "attention.wk.weight": (keys, dim),
        "attention.wv.weight": (keys, dim),
        "attention.wo.weight": (dim, queries),
        "ffn_norm.weight": (dim,),
        **({} if model.experts else _swiglu_shapes("ffn", dim, width)),
    }
    if experts := model.experts:
        in_layer |= {"ffn.router.weight": (experts.count, dim)}
        stacks = _swiglu_shapes("ffn.experts", dim, experts.width)
        in_layer |= {name: (experts.count, *shape) for name, shape in stacks.items()}
    if model.qkv_bias:
        in_layer |= {"attention.wq.bias": (queries,), "attention.wk.bias": (keys,), "attention.wv.bias": (keys,)}
    if model.qk_norm:
        in_layer |= {f"attention.{name}_norm.weight": (model.head_dim,) for name in "qk"}
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (rows, dim), "norm.weight": (dim,)}
    if not model.tie_embeddings:
        shapes["head.weight"] = (rows, dim)
    for layer in range(model.layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in in_layer.items()}
    return shapes


def _swiglu_shapes(where: str, dim: int, width: int) -> dict[str, tuple[int, ...]]:
    shapes = {"w1": (width, dim), "w2": (dim, width), "w3": (width, dim)}
    return {f"{where}.{name}.weight": shape for name, shape in shapes.items()}


def read_ends(folder: Path) -> list[int]:
    """Returns the tokens that end a generated text, by `generation_config.json`, or else by `config.json`."""
    path = folder / GENERATION_CONFIG
    stated = read_json(path).get("eos_token_id") if path.is_file() else None
    return listed_ids(read_json(folder / CONFIG).get("eos_token_id") if stated is None else stated)


def token_content(token: Any) -> str:
    """Returns the text of a special token in `tokenizer_config.json`, which can be an object; "" if there is none."""
    return str(token.get("content") or "") if isinstance(token, dict) else str(token or "")


def around(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the tokens that a tokenizer puts before a text, and those that it puts after it."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    begin = next(at for at in range(len(whole)) if whole[at : at + len(plain)] == plain)
    return tuple(whole[:begin]), tuple(whole[begin + len(plain) :])


def read_chat_template(folder: Path) -> str:
    """Returns the chat template of a folder (`chat_template.stated_template`).

    Raises:
        InputError: a file cannot be read, or has something else than templates.
    """
    path = folder / CHAT_TEMPLATE
    try:
        file = path.read_text(encoding="utf-8") if path.is_file() else None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error})", "download it again") from None
    path = folder / TOKENIZER_CONFIG
    try:
        return stated_template(file, read_json(path))
    except (KeyError, TypeError) as error:
        remedy = "set it to the text of a template, or remove it"
        raise InputError(f"{path}: chat_template cannot be read ({error})", remedy) from None


def read_origin(folder: Path, content: Mapping[str, Any]) -> Origin:
    """Returns name, license and revision as the folder states them.

    Args:
        folder: a model folder, such as one that `hf download` has filled, or a snapshot in the cache of the hub.
        content: its `config.json`.
    """
    card, terms = _text(folder / "README.md"), _text(folder / "LICENSE")
    head = card.split("---", 2)[1] if card.startswith("---") and card.count("---") > 1 else ""
    stated = {match[1]: match[2] for match in re.finditer(r"(?m)^(license|license_name): *['\"]?([^'\"\n]+)", head)}
    license_ = stated.get("license", "").strip()
    if license_ in ("", "other"):
        first_line = next((line.strip() for line in terms.splitlines() if line.strip()), "")
        license_ = stated.get("license_name", "").strip() or first_line or license_
    name = str(content.get("_name_or_path") or "")
    revision = _text(folder / _DOWNLOADED).partition("\n")[0].strip()
    if folder.parent.name == "snapshots":
        name = name or folder.parents[1].name.removeprefix("models--").replace("--", "/")
        revision = revision or folder.name
    known_name = name if _HUB_NAME.fullmatch(name) else ""
    return Origin(known_name, license_, revision if _REVISION.fullmatch(revision) else "")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
