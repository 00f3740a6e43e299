"""Checkpoints of torchtitan and nanochat, converted to Hugging Face model folders, which an import reads.

torchtitan  a folder of `torch.distributed.checkpoint` (`.metadata`, `*.distcp`) with the weights of Llama 3. It states
            no shape, so `config.json` of the same Llama has to be in the folder. torchtitan rotates adjacent pairs of
            queries and keys, and `transformers` halves, so rows of their matrices are permuted.
nanochat    `model_<step>.pt` and `meta_<step>.json` of the newest step.

`tokenizer.json` and `tokenizer_config.json` have to be in both. Optimizer states are not read. Both formats contain
pickles: only classes that hold tensors and their places are loaded from them, so a file cannot run code.
"""

import io
import json
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.core.errors import InputError
from tasks.trainer.interchange.huggingface import CONFIG, TOKENIZER, TOKENIZER_CONFIG
from tasks.trainer.interchange.weights import FRAMEWORK, TORCH_NAMES, WEIGHTS, write_file

if TYPE_CHECKING:
    from torch import Tensor

_METADATA = ".metadata"
_STEP = re.compile(r"model_(\d+)\.pt")
_COPIED = (TOKENIZER, TOKENIZER_CONFIG, "generation_config.json", "chat_template.jinja", "README.md", "LICENSE")
"""Files that an import reads as they are."""
_NOT_MODEL = re.compile(r"(optimizer|lr_scheduler|dataloader|train_state)\b.*|(.*\.)?freqs_cis|rope\.cache")
"""Names in a checkpoint of torchtitan that are no weights, or that `config.json` determines."""
_SAFE = {
    "collections": {"OrderedDict"},
    "torch": {"Size", "device"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.metadata": {
        *("Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
        *("TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING"),
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
}
"""Classes in `.metadata`, by module: no function, and nothing that a module has only imported. Dtypes are torch's."""
_TITAN = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "lm_head.weight": "lm_head.weight",
}
_TITAN_IN_LAYER = {
    **{f"attention.w{one}.weight": f"self_attn.{one}_proj.weight" for one in "qkvo"},
    **{f"attention.qkv_linear.w{one}.weight": f"self_attn.{one}_proj.weight" for one in "qkv"},
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}
_NANO = {"transformer.wte.weight": "model.embed_tokens.weight", "lm_head.weight": "lm_head.weight"}
_NANO_IN_LAYER = {
    **{f"attn.c_{one}.weight": f"self_attn.{one}_proj.weight" for one in "qkv"},
    "attn.c_proj.weight": "self_attn.o_proj.weight",
    "mlp.c_fc.weight": "mlp.fc1.weight",
    "mlp.c_proj.weight": "mlp.fc2.weight",
}
_NANO_SETTINGS = {"sequence_len", "vocab_size", "n_layer", "n_head", "n_kv_head", "n_embd"}
_NANO_FEATURES = {
    "resid_lambdas": "factors of the residual stream",
    "x0_lambdas": "the embedding added in every layer",
    "value_embeds": "embeddings of values",
    "ve_gate": "gates of embeddings of values",
    "smear": "the embedding of the previous token",
    "backout": "a middle layer subtracted from the last one",
}
"""Features of newer versions of nanochat, by a part of the names of their tensors."""
_NANO_CAP = 15.0
_FLOAT32_EPS = 2.0**-23
"""What `torch.nn.functional.rms_norm` adds to the mean square by default, of fp32."""


@dataclass(frozen=True)
class Weight:
    """A tensor of a model folder: name, dtype as torch names it, shape, and how its values are read."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], "Tensor"]


def foreign_files(folder: Path) -> list[str]:
    """Returns the names of the files of a foreign checkpoint that are read, sorted; [] if the folder has none."""
    if (folder / CONFIG).is_file() and (folder / _METADATA).is_file():
        own = [_METADATA, CONFIG, *(path.name for path in folder.glob("*.distcp"))]
    elif (step := _last_step(folder)) is not None:
        own = [f"model_{step}.pt", f"meta_{step}.json"]
    else:
        return []
    return sorted([*own, *(name for name in _COPIED if (folder / name).is_file())])


def convert(folder: Path, out: Path) -> None:
    """Writes the model folder of a foreign checkpoint to `out`, an empty folder; a tensor at a time is in memory.

    Raises:
        InputError: a file is missing or damaged, or the model has a feature that Sluice's decoder does not have.
    """
    for name in (TOKENIZER, TOKENIZER_CONFIG):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder} has no {name}", "copy the tokenizer of the model there, in the format of transformers"
            )
    step = None if (folder / _METADATA).is_file() else _last_step(folder)
    try:
        config, weights = _titan(folder) if step is None else _nano(folder, step)
    except (
        *(OSError, EOFError, LookupError, ValueError, RuntimeError, AttributeError, TypeError, ImportError),
        pickle.UnpicklingError,
    ) as error:
        cause = f"the checkpoint in {folder} cannot be read ({' '.join(str(error).split())[:300]})"
        raise InputError(cause, "name a complete checkpoint of torchtitan or nanochat") from None
    (out / CONFIG).write_text(f"{json.dumps(config, indent=2)}\n")
    for name in _COPIED:
        if (folder / name).is_file():
            (out / name).write_bytes((folder / name).read_bytes())
    _write(weights, out / WEIGHTS)


def _write(weights: list[Weight], path: Path) -> None:
    names = {torch_name: name for name, torch_name in TORCH_NAMES.items()}
    for weight in weights:
        if weight.dtype not in names:
            raise InputError(f"{weight.name} has the dtype {weight.dtype}", f"save it in one of {', '.join(names)}")
    headers = []
    for weight in weights:
        values = 1
        for size in weight.shape:
            values *= size
        headers.append(
            (weight.name, names[weight.dtype], weight.shape, values * (4 if weight.dtype == "float32" else 2))
        )
    with path.open("wb") as file:
        write_file(file, headers, _bytes(weights), FRAMEWORK)


def _bytes(weights: list[Weight]) -> Iterator[bytes]:
    import torch

    for weight in weights:
        yield weight.read().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _renamed(name: str, whole: Mapping[str, str], in_layer: Mapping[str, str], prefix: str) -> str:
    """Returns the name of a weight in the model folder; "" if it has none."""
    if match := re.fullmatch(rf"{prefix}(\d+)\.(.+)", name):
        return f"model.layers.{match[1]}.{in_layer[match[2]]}" if match[2] in in_layer else ""
    return whole.get(name, "")


class _Unpickler(pickle.Unpickler):
    """Loads only the classes of _SAFE."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns a class; raises UnpicklingError if it is not one of _SAFE."""
        import torch

        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name in _SAFE.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{_METADATA} has {module}.{name}, which is not a part of a checkpoint")


def _titan(folder: Path) -> tuple[dict[str, Any], list[Weight]]:
    """Returns the configuration and the weights of a checkpoint of torchtitan."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

    found = _Unpickler(io.BytesIO((folder / _METADATA).read_bytes())).load()
    if not isinstance(found, Metadata):
        raise ValueError(f"{_METADATA} is not that of torch.distributed.checkpoint")
    metadata: Metadata = found

    class Reader(FileSystemReader):
        """Reads tensors by the metadata that was loaded above."""

        def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
            return metadata

    config = json.loads((folder / CONFIG).read_text())
    if config.get("model_type") != "llama":
        remedy = "import a Llama; for other models of torchtitan, convert the checkpoint with torchtitan to safetensors"
        raise InputError(f"{folder / CONFIG}: model_type = {json.dumps(config.get('model_type'))} is not llama", remedy)
    weights = []
    for name, entry in metadata.state_dict_metadata.items():
        bare = name.removeprefix("model.")
        if _NOT_MODEL.fullmatch(bare):
            continue
        new = _renamed(bare, _TITAN, _TITAN_IN_LAYER, r"layers\.")
        if not new or not isinstance(entry, TensorStorageMetadata):
            raise InputError(f"{folder} has {name}, which a Llama of torchtitan has not", "import a Llama without it")
        dtype = str(entry.properties.dtype).removeprefix("torch.")
        weights.append(Weight(new, dtype, tuple(entry.size), _titan_tensor(Reader(folder), name, new, entry, config)))
    return config, weights


def _titan_tensor(reader: Any, name: str, new: str, entry: Any, config: Mapping[str, Any]) -> Callable[[], "Tensor"]:
    """Returns a function that reads a tensor, with its rows ordered for the rotation of halves."""

    def read() -> "Tensor":
        import torch
        from torch.distributed.checkpoint.state_dict_loader import load

        tensor = torch.empty(tuple(entry.size), dtype=entry.properties.dtype)
        load({name: tensor}, storage_reader=reader, no_dist=True)
        if not new.endswith(("q_proj.weight", "k_proj.weight")):
            return tensor
        heads = config["num_attention_heads"]
        heads = heads if "q_proj" in new else config.get("num_key_value_heads") or heads
        return tensor.view(heads, -1, 2, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)

    return read


def _last_step(folder: Path) -> str | None:
    """Returns the newest step of a folder of nanochat, as its files name it."""
    steps = [match[1] for path in folder.glob("model_*.pt") if (match := _STEP.fullmatch(path.name))]
    steps = [step for step in steps if (folder / f"meta_{step}.json").is_file()]
    return max(steps, key=int, default=None)


def _nano(folder: Path, step: str) -> tuple[dict[str, Any], list[Weight]]:
    """Returns the configuration and the weights of a checkpoint of nanochat."""
    import torch

    settings = json.loads((folder / f"meta_{step}.json").read_text())["model_config"]
    for name in sorted(settings.keys() - _NANO_SETTINGS):
        if name == "window_pattern" and set(settings[name]) == {"L"}:
            continue
        raise InputError(f"{folder}: {name} = {json.dumps(settings[name])} of nanochat is not supported", _OTHER_NANO)
    file = folder / f"model_{step}.pt"
    state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    weights = []
    for name, tensor in state.items():
        bare = name.removeprefix("_orig_mod.")
        new = _renamed(bare, _NANO, _NANO_IN_LAYER, r"transformer\.h\.")
        if not new:
            known = next((feature for part, feature in _NANO_FEATURES.items() if part in bare), "a feature")
            raise InputError(f"{file} has {bare}: {known} of a newer nanochat is not supported", _OTHER_NANO)
        dtype = str(tensor.dtype).removeprefix("torch.")
        weights.append(Weight(new, dtype, tuple(tensor.shape), partial(state.get, name)))
    return _nano_config(settings, next(weight.shape[0] for weight in weights if "embed_tokens" in weight.name)), weights


_OTHER_NANO = "import a checkpoint of nanochat without it, such as those of 2025"


def _nano_config(settings: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Returns `config.json` of a nanochat, whose code determines what its settings do not; `rows` of the embedding."""
    return {
        "architectures": ["NanoChatForCausalLM"],
        "model_type": "nanochat",
        "hidden_size": settings["n_embd"],
        "intermediate_size": 4 * settings["n_embd"],
        "num_hidden_layers": settings["n_layer"],
        "num_attention_heads": settings["n_head"],
        "num_key_value_heads": settings["n_kv_head"],
        "max_position_embeddings": settings["sequence_len"],
        "vocab_size": rows,
        "hidden_act": "relu2",
        "rms_norm_eps": _FLOAT32_EPS,
        "rope_theta": 10_000.0,
        "final_logit_softcapping": _NANO_CAP,
        "tie_word_embeddings": False,
    }
