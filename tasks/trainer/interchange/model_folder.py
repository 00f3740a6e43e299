"""Reads a Hugging Face model folder: shape, weights and origin of a model that Sluice's decoder computes exactly.

Reads `config.json`, the safetensors files (`model.safetensors`, or those of `model.safetensors.index.json`), and what
`README.md`, `LICENSE` and the hub's download state about license and revision. Weights are converted in pieces, so
memory does not grow with the model. Pickles are not read, because loading one can run code. Does not import torch.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic import ValidationError

from tasks.core.errors import InputError
from tasks.trainer.config import ModelConfig
from tasks.trainer.interchange.huggingface import WEIGHTS, llama_name

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
ARCHITECTURES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral"}
"""Supported architectures, each with its `model_type`."""

_OTHER_MODEL = "import a model without it: no setting of Sluice's decoder computes the same"
_FIXED: dict[str, tuple[Any, str]] = {
    "hidden_act": ("silu", _OTHER_MODEL),
    "attention_bias": (False, _OTHER_MODEL),
    "mlp_bias": (False, _OTHER_MODEL),
    "partial_rotary_factor": (1.0, _OTHER_MODEL),
    "quantization_config": (None, "import the weights that were quantized, or dequantize them and save them in bf16"),
    "auto_map": (None, "import a model that needs no code of its own"),
}
"""Fields with the only value that is computed exactly, which is also that of a missing field; and the remedy."""
_MISTRAL_WINDOW = 4096
"""`sliding_window` of a Mistral model whose `config.json` does not have the field."""
_SCALINGS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
    "yarn": {"factor", "original_max_position_embeddings", "beta_slow", "beta_fast"},
}
"""Supported values of `rope_type`, each with its settings that Sluice has."""
_OPTIONAL_SCALING = {"beta_slow", "beta_fast"}

_READERS: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
"""Type in which the values of each supported dtype are read; a bf16 is the upper half of an fp32."""
_PIECE = 1 << 22
"""Values that are converted at a time."""
_NOT_WEIGHTS = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Tensors of old checkpoints that `config.json` determines."""
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

    `context` is the largest number of positions of a sequence.
    """

    shape: ModelConfig
    vocab_size: int
    context: int
    content: dict[str, Any]


@dataclass(frozen=True)
class FolderTensor:
    """A tensor in a safetensors file: dtype by its name there, shape, and the byte in the file where it begins."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int


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
        raise InputError(f"{path} cannot be read ({cause})", "name a complete Hugging Face model folder") from None
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
    if not name:
        raise _refusal(path, "architectures", names, f"import a model of {' or '.join(ARCHITECTURES)}")
    if kind != ARCHITECTURES[name]:
        raise _refusal(path, "model_type", kind, f"a model of {name} has {ARCHITECTURES[name]}")


def _check_attention(path: Path, content: Mapping[str, Any], context: int) -> None:
    """Raises InputError unless every token attends to all earlier ones, with heads that divide the width."""
    width, heads = content["hidden_size"], content["num_attention_heads"]
    head_dim = content.get("head_dim") or width // heads
    if head_dim * heads != width:
        raise _refusal(
            path, "head_dim", head_dim, f"import a model whose heads have hidden_size / heads = {width / heads:g}"
        )
    window = content.get("sliding_window", _MISTRAL_WINDOW if content["model_type"] == "mistral" else None)
    if window is not None and window < context:
        remedy = f"it is exact up to {window} tokens: set max_position_embeddings = {window} if that is long enough"
        raise _refusal(path, "sliding_window", window, remedy)
    kinds = content.get("layer_types") or ()
    if set(kinds) - {"full_attention"}:
        raise _refusal(path, "layer_types", sorted(set(kinds)), _OTHER_MODEL)


def _shape(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a ModelConfig."""
    heads, dim, width = content["num_attention_heads"], content["hidden_size"], content["intermediate_size"]
    # Mistral's default is not the number of heads, so its field must be there.
    kv_heads = content["num_key_value_heads"] if content["model_type"] == "mistral" else None
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    shape = {
        "layers": content["num_hidden_layers"],
        "dim": dim,
        "heads": heads,
        "kv_heads": kv_heads or content.get("num_key_value_heads") or heads,
        "rope_theta": rope.get("rope_theta") or content.get("rope_theta") or 10_000.0,
        "rope_scaling": _scaling(path, rope),
        "tie_embeddings": bool(content.get("tie_word_embeddings", False)),
        "norm_eps": content.get("rms_norm_eps", 1e-6),
        "ffn_multiple": width / dim,
    }
    return shape if ModelConfig.model_validate(shape).ffn_dim == width else {**shape, "ffn_width": width}


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
    names = sorted(set(read_json(folder / INDEX).get("weight_map", {}).values()))
    for name in names:
        if "/" in name or not (folder / name).is_file():
            raise InputError(f"{folder / INDEX} lists {name}, which is not in the folder", "download the whole folder")
    return [folder / name for name in names]


def read_tensors(folder: Path, model: FolderModel) -> dict[str, FolderTensor]:
    """Returns the weights of a model by Sluice's name, sorted, after checking names, shapes and dtypes.

    Raises:
        InputError: a file is damaged, or tensors are missing, superfluous, of another shape or of another dtype.
    """
    found: dict[str, FolderTensor] = {}
    for path in weight_files(folder):
        for name, tensor in _tensors_in(path):
            if name in found:
                raise InputError(f"{path} and {found[name].path.name} both have {name}", "download the folder again")
            found[name] = tensor
    expected = tensor_shapes(model.shape, model.vocab_size)
    ours = {llama_name(name): name for name in expected}
    found = {name: tensor for name, tensor in found.items() if not _NOT_WEIGHTS.fullmatch(name)}
    _check_names(folder, ours.keys() - found.keys(), found.keys() - ours.keys())
    for name, tensor in found.items():
        if tensor.shape != expected[ours[name]]:
            shapes = f"the shape {list(tensor.shape)}, and {CONFIG} gives {list(expected[ours[name]])}"
            raise InputError(f"{tensor.path}: {name} has {shapes}", "download the folder again")
        if tensor.dtype not in _READERS:
            remedy = f"save the model in one of {', '.join(_READERS)}"
            raise InputError(f"{tensor.path}: {name} has the dtype {tensor.dtype}", remedy)
    return {ours[name]: found[name] for name in sorted(found, key=lambda name: ours[name])}


def _check_names(folder: Path, missing: set[str], surplus: set[str]) -> None:
    lists = [
        f"{text} {', '.join(sorted(names)[:_NAMED])}{f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''}"
        for text, names in (("lacks", missing), ("has, besides those of the model,", surplus))
        if names
    ]
    if lists:
        raise InputError(
            f"{folder} {'; it '.join(lists)}", f"name a folder whose weights are those that its {CONFIG} describes"
        )


def tensor_shapes(model: ModelConfig, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor of a model by Sluice's name."""
    dim, width = model.dim, model.ffn_dim
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    in_layer = {
        "attention_norm": (dim,),
        "attention.wq": (queries, dim),
        "attention.wk": (keys, dim),
        "attention.wv": (keys, dim),
        "attention.wo": (dim, queries),
        "ffn_norm": (dim,),
        "ffn.w1": (width, dim),
        "ffn.w2": (dim, width),
        "ffn.w3": (width, dim),
    }
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (vocab_size, dim), "norm.weight": (dim,)}
    if not model.tie_embeddings:
        shapes["head.weight"] = (vocab_size, dim)
    for layer in range(model.layers):
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in in_layer.items()}
    return shapes


def _tensors_in(path: Path) -> Iterator[tuple[str, FolderTensor]]:
    """Yields name and place of each tensor in a safetensors file, after checking that the file is complete."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size - 8:
                raise ValueError("it ends within its header")
            header = json.loads(file.read(length))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            first, end = entry["data_offsets"]
            tensor = FolderTensor(path, entry["dtype"], tuple(entry["shape"]), 8 + length + first)
            values = _READERS.get(tensor.dtype)
            if not 0 <= first <= end <= size - 8 - length:
                raise ValueError(f"it ends before {name} does")
            if values and end - first != math.prod(tensor.shape) * values.itemsize:
                raise ValueError(f"{name} has another size than its shape")
            yield name, tensor
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a complete safetensors file ({error})", "download it again") from None


def write_weights(tensors: Mapping[str, FolderTensor], file: BinaryIO) -> None:
    """Writes a safetensors file in fp32, in the order of `tensors`, a piece of a tensor at a time.

    Every value of bf16 and fp16 is a value of fp32, so nothing is rounded.
    """
    header, begin = {}, 0
    for name, tensor in tensors.items():
        end = begin + 4 * math.prod(tensor.shape)
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        for piece in _pieces(tensor):
            file.write(piece.tobytes())


def _pieces(tensor: FolderTensor) -> "Iterator[np.ndarray[Any, np.dtype[np.float32]]]":
    """Yields the values of a tensor, float32 of shape (values,), in row-major order."""
    dtype, left = _READERS[tensor.dtype], math.prod(tensor.shape)
    with tensor.path.open("rb") as file:
        file.seek(tensor.begin)
        while left:
            values = np.fromfile(file, dtype, min(left, _PIECE))
            if not len(values):
                raise InputError(f"{tensor.path} became shorter while it was read", "import it again")
            left -= len(values)
            if tensor.dtype == "BF16":
                yield (values.astype("<u4") << 16).view("<f4")
            else:
                yield values.astype("<f4")


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
