"""Reads a Hugging Face model folder: shape, weights and origin of a model that Sluice's decoder computes exactly.

Reads `config.json`, the safetensors files (`model.safetensors`, or those of `model.safetensors.index.json`), and what
`README.md`, `LICENSE` and the hub's download state about license and revision. The values of tensors are read by
`weights`. Pickles are not read, because loading one can run code. Does not import torch.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from tokenizers import Tokenizer

from tasks.core.errors import InputError
from tasks.trainer.interchange.chat_template import FILE as CHAT_TEMPLATE
from tasks.trainer.interchange.chat_template import stated_template
from tasks.trainer.interchange.families import ARCHITECTURES, OTHER_MODEL, UnsupportedError, settings_of
from tasks.trainer.interchange.huggingface import (
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    listed_ids,
    names_in,
)
from tasks.trainer.interchange.mxfp4 import with_unpacked
from tasks.trainer.interchange.weights import (
    DTYPES,
    INDEX,
    WEIGHTS,
    Place,
    PlacedTensor,
    StackedTensor,
    StoredTensor,
    check_finite,
    renamed,
    tensors_in,
)
from tasks.trainer.model.config import ExpertsConfig, ModelConfig

SOURCE_FILES = (
    *(CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG, CHAT_TEMPLATE),
    *("special_tokens_map.json", "added_tokens.json"),
)
"""Files that state tokens, chat template and generation; an export of an imported model has them again."""
STATED = ("README.md", "LICENSE")
"""Files that state a license."""

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
    try:
        _check_architecture(content)
        shape, context = ModelConfig.model_validate(settings_of(content)), int(content["max_position_embeddings"])
        return FolderModel(shape, int(content["vocab_size"]), context, content)
    except UnsupportedError as error:
        raise InputError(f"{path}: {error}", error.remedy) from None
    except KeyError as error:
        raise InputError(f"{path} has no {error}", "name a complete Hugging Face model folder") from None
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, one['loc']))} {one['msg']}" for one in error.errors())
        raise InputError(f"{path} has a shape that Sluice's decoder does not have: {details}", OTHER_MODEL) from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} is not the configuration of a model ({error})", "download it again") from None


def _check_architecture(content: Mapping[str, Any]) -> None:
    names, kind = content.get("architectures"), content.get("model_type")
    name = next((name for name in ARCHITECTURES if names == [name]), "")
    if not name:
        raise UnsupportedError("architectures", names, f"import a model of {' or '.join(ARCHITECTURES)}")
    if kind != ARCHITECTURES[name]:
        raise UnsupportedError("model_type", kind, f"a model of {name} has {ARCHITECTURES[name]}")


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
    found = with_unpacked(found)
    expected = tensor_shapes(model.shape, model.vocab_size)
    named = names_in(model.shape)
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
    places = {name: Place.of(named(name)) for name in expected}
    return {
        name: _assembled([found[one] for one, _ in parts[name]], places[name], expected[name])
        for name in sorted(expected)
    }


def _assembled(parts: Sequence[StoredTensor], place: Place, shape: tuple[int, ...]) -> StoredTensor:
    """Returns a weight of ours of one tensor or several; raises InputError if they have different dtypes."""
    first, *others = parts
    if place.is_arranged:
        return PlacedTensor(first.path, first.name, first.dtype, shape, first.begin, first, place)
    if not others:
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
    pieces = zip(embedding.pieces(), head.pieces(), strict=True) if readable else ()
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
        "attention.wq.weight": (queries, dim),
        "attention.wk.weight": (keys, dim),
        "attention.wv.weight": (keys, dim),
        "attention.wo.weight": (dim, queries),
        **({} if model.experts else _ffn_shapes("ffn", dim, width, model.gated)),
    }
    if model.experts:
        in_layer |= _expert_shapes(model.experts, dim)
    if model.qkv_bias:
        in_layer |= {"attention.wq.bias": (queries,), "attention.wk.bias": (keys,), "attention.wv.bias": (keys,)}
    if model.output_bias:
        in_layer |= {"attention.wo.bias": (dim,)}
    if model.attention_sinks:
        in_layer |= {"attention.sinks": (model.heads,)}
    has_weights = model.norm_weight != "none"
    if model.qk_norm and has_weights:
        widths = (queries, keys) if model.qk_norm == "projection" else (model.head_dim, model.head_dim)
        in_layer |= {f"attention.{name}_norm.weight": (size,) for name, size in zip("qk", widths, strict=True)}
    if has_weights:
        places = {"pre": ("norm",), "post": ("post_norm",), "both": ("norm", "post_norm")}[model.norm_place]
        in_layer |= {f"{part}_{place}.weight": (dim,) for part in ("attention", "ffn") for place in places}
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (rows, dim)}
    if has_weights:
        shapes["norm.weight"] = (dim,)
    if not model.tie_embeddings:
        shapes["head.weight"] = (rows, dim)
    for layer in range(model.layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in in_layer.items()}
    return shapes


def _expert_shapes(experts: ExpertsConfig, dim: int) -> dict[str, tuple[int, ...]]:
    stacks = _ffn_shapes("ffn.experts", dim, experts.width)
    shapes: dict[str, tuple[int, ...]] = {"ffn.router.weight": (experts.count, dim)}
    if experts.bias:
        shapes |= {"ffn.router.bias": (experts.count,)}
        stacks |= {f"{name.removesuffix('weight')}bias": shape[:1] for name, shape in stacks.items()}
    return shapes | {name: (experts.count, *shape) for name, shape in stacks.items()}


def _ffn_shapes(where: str, dim: int, width: int, gated: bool = True) -> dict[str, tuple[int, ...]]:
    shapes = {"w1": (width, dim), "w2": (dim, width), **({"w3": (width, dim)} if gated else {})}
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
