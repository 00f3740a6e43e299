"""How the families of `transformers` state the features of a decoder in `config.json`.

A `Family` says which settings of `ModelConfig` all its models have, which ones its file can state, and what fields that
are missing mean. `settings_of` reads a file; `family_of` chooses the family whose file can state a model, and `fields`
writes what is particular to it. No family has code of its own in the decoder: what a model computes is in its settings.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.core.errors import InputError
from tasks.trainer.model.config import ExpertsConfig, ModelConfig

OTHER_MODEL = "import a model without it: no setting of Sluice's decoder computes the same"
QWEN3_HEAD = 128
"""`head_dim` of a Qwen 3 whose `config.json` does not have the field."""
_WINDOW, _UNWINDOWED_LAYERS = 4096, 28
"""`sliding_window`, and `max_window_layers` of Qwen, where `config.json` has no field."""
_SLIDING, _FULL = "sliding_attention", "full_attention"
_BASE = frozenset(
    (
        *("layers", "dim", "heads", "head_width", "kv_heads", "ffn_multiple", "ffn_width", "rope_theta"),
        *("rope_scaling", "tie_embeddings", "vocab_rows", "norm_eps"),
    )
)
"""Settings that every family can state."""
_ACTIVATIONS = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh", "relu2": "relu2"}
_WINDOWS = frozenset(("window", "window_pattern"))
_OPTIONAL_WINDOWS = ("qwen2", "qwen3", "qwen3_moe", "smollm3")
"""Families whose windows are off unless `use_sliding_window` says that they are on."""
_SCALINGS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
    "yarn": {"factor", "original_max_position_embeddings", "beta_slow", "beta_fast", "truncate"},
}
"""Supported values of `rope_type`, each with its settings that Sluice has."""
_OPTIONAL_SCALING = {"beta_slow", "beta_fast", "truncate"}
_GPT_OSS_SCALING = {
    **{"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    **{"beta_slow": 1.0, "beta_fast": 32.0, "truncate": False},
}
"""Rotary positions of a gpt-oss whose file states none."""


@dataclass(frozen=True)
class Family:
    """A `model_type` of `transformers`.

    Attributes:
        kind: the `model_type`.
        architecture: the class.
        fixed: settings of ModelConfig that all its models have.
        free: settings besides those of every family that its file can state.
        missing: fields with a value where the file has none.
        activation: field of the activation.
    """

    kind: str
    architecture: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    missing: Mapping[str, Any] = field(default_factory=dict)
    activation: str = "hidden_act"

    def lacking(self, model: ModelConfig) -> list[str]:
        """Returns the settings of a model that the file of this family cannot state."""
        required = {name: setting.default for name, setting in type(model).model_fields.items()} | dict(self.fixed)
        lacking = [
            name for name in sorted(required.keys() - _BASE - self.free) if getattr(model, name) != required[name]
        ]
        lacking += ["window_pattern"] if self.kind == "mistral" and model.window_pattern != "w" else []
        return lacking + self._lacking_experts(model) if "experts" in self.free else lacking

    def _lacking_experts(self, model: ModelConfig) -> list[str]:
        """Returns the settings of a model's experts that the file of this family cannot state."""
        experts = model.experts
        if experts is None:
            return ["experts"]
        stated = {"shared_width": 0, "router": "softmax", "bias": False, "clamp": 0.0}
        if self.kind == "gpt_oss":
            stated |= {"router": "chosen", "bias": True, "clamp": experts.clamp or "a limit"}
        stated |= {"normalize": True} if self.kind == "mixtral" else {}
        lacking = [name for name, value in stated.items() if getattr(experts, name) != value]
        return [f"experts.{name}" for name in (*lacking, *(["balance"] if experts.balance == "bias" else ()))]


_GEMMA = {
    "norm_place": "both",
    "norm_weight": "offset",
    "activation": "gelu_tanh",
    "embedding_scale": "sqrt_dim",
}
_GEMMA_FIELDS = {
    **{"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True},
    **{"query_pre_attn_scalar": 256, "sliding_window": _WINDOW},
}
_NANOCHAT = {
    **{"qk_norm": True, "norm_weight": "none", "activation": "relu2", "gated": False},
    **{"embedding_scale": "rms", "rope_reversed": True},
}
_LISTED = (
    Family("llama", "LlamaForCausalLM"),
    Family("mistral", "MistralForCausalLM", free=_WINDOWS, missing={"sliding_window": _WINDOW}),
    Family("qwen2", "Qwen2ForCausalLM", {"qkv_bias": True}, _WINDOWS, {"sliding_window": _WINDOW}),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        {"qk_norm": True},
        _WINDOWS,
        {"head_dim": QWEN3_HEAD, "sliding_window": _WINDOW},
    ),
    Family("qwen3_moe", "Qwen3MoeForCausalLM", {"qk_norm": True}, frozenset({"experts"}), {"sliding_window": _WINDOW}),
    Family(
        "mixtral",
        "MixtralForCausalLM",
        free=frozenset({"experts"}),
        missing={"rope_theta": 1e6, "rms_norm_eps": 1e-5},
    ),
    Family(
        "gpt_oss",
        "GptOssForCausalLM",
        {"qkv_bias": True, "output_bias": True, "attention_sinks": True},
        _WINDOWS | {"experts"},
        {
            **{"head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 1.5e5, "rope_scaling": _GPT_OSS_SCALING},
            **{"sliding_window": 128, "swiglu_limit": 7.0},
        },
    ),
    Family(
        "smollm3",
        "SmolLM3ForCausalLM",
        free=_WINDOWS | {"rope_pattern"},
        missing={"tie_word_embeddings": True, "rope_theta": 2e6, "no_rope_layer_interval": 4},
    ),
    Family(
        "olmo2",
        "Olmo2ForCausalLM",
        {"norm_place": "post", "qk_norm": "projection"},
        missing={"rms_norm_eps": 1e-5},
    ),
    Family(
        "olmo3",
        "Olmo3ForCausalLM",
        {"norm_place": "post", "qk_norm": "projection"},
        _WINDOWS | {"window_rope_theta"},
        {"rms_norm_eps": 1e-5, "rope_theta": 5e5, "sliding_window": _WINDOW},
    ),
    Family(
        "gemma2",
        "Gemma2ForCausalLM",
        _GEMMA,
        _WINDOWS | {"attention_scalar", "attention_cap", "logit_cap"},
        {**_GEMMA_FIELDS, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        "hidden_activation",
    ),
    Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        {**_GEMMA, "qk_norm": True},
        _WINDOWS | {"window_rope_theta", "attention_scalar", "logit_cap"},
        {**_GEMMA_FIELDS, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6},
        "hidden_activation",
    ),
    Family(
        "nanochat",
        "NanoChatForCausalLM",
        _NANOCHAT,
        frozenset({"logit_cap"}),
        {"hidden_act": "relu2", "final_logit_softcapping": 15.0},
    ),
)
FAMILIES = {family.kind: family for family in _LISTED}
"""Families by `model_type`; the first that can state a model is the one of its export."""
ARCHITECTURES = {family.architecture: family.kind for family in _LISTED}

_FIXED: dict[str, tuple[Any, str]] = {
    "attention_bias": (False, OTHER_MODEL),
    "mlp_bias": (False, OTHER_MODEL),
    "clip_qkv": (None, OTHER_MODEL),
    "use_bidirectional_attention": (False, OTHER_MODEL),
    "decoder_sparse_step": (1, OTHER_MODEL),
    "mlp_only_layers": ([], OTHER_MODEL),
    "partial_rotary_factor": (1.0, OTHER_MODEL),
    "swiglu_alpha": (1.702, OTHER_MODEL),
    "quantization_config": (None, "import the weights that were quantized, or dequantize them and save them in bf16"),
    "auto_map": (None, "import a model that needs no code of its own"),
}
"""Fields with the only value that is computed exactly, which is also that of a missing field; and the remedy."""


class UnsupportedError(Exception):
    """A field of `config.json` has a value that Sluice's decoder does not compute."""

    def __init__(self, name: str, value: Any, remedy: str = OTHER_MODEL) -> None:
        super().__init__(f"{name} = {json.dumps(value)} is not supported")
        self.remedy = remedy


def family_of(model: ModelConfig) -> Family:
    """Returns the family whose `config.json` can state a model.

    Raises:
        InputError: there is none; it names the settings that the closest one cannot state.
    """
    # A family without experts states none of their settings, so that it would lack fewer.
    closest = min(
        _LISTED, key=lambda family: (("experts" in family.free) != bool(model.experts), len(family.lacking(model)))
    )
    lacking = closest.lacking(model)
    if lacking:
        changed = [name for name, setting in type(model).model_fields.items() if name not in _BASE]
        changed = [name for name in changed if getattr(model, name) != type(model).model_fields[name].default]
        values = model.model_dump(mode="json", include=set(changed))
        settings = ", ".join(f"{name} = {json.dumps(values[name])}" for name in changed)
        raise InputError(
            f"no layout of transformers represents [train.model] {settings} together: that of {closest.kind} cannot "
            f"represent {', '.join(lacking)}",
            "export a model that was trained without it",
        )
    return closest


def fields(family: Family, model: ModelConfig, context: int) -> dict[str, Any]:
    """Returns the fields of `config.json` that are particular to a family, for a model that it can state."""
    kind = family.kind
    stated: dict[str, Any] = {family.activation: _ACTIVATIONS[model.activation]}
    if kind not in ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"):
        stated["pad_token_id"] = None  # else a default of the class, which need not be a token here
    if kind not in ("qwen2", "mixtral"):
        # Qwen 2 always has biases of queries, keys and values; this field would give all matrices of attention one.
        stated["attention_bias"] = model.output_bias
    if kind in ("llama", "smollm3"):
        stated["mlp_bias"] = False
    if kind == "smollm3":
        stated["no_rope_layers"] = [int(model.has_rope(layer)) for layer in range(model.layers)]
    stated |= _window_fields(family, model, context) if family.free >= _WINDOWS else {}
    stated |= _expert_fields(kind, model.experts) if model.experts else {}
    return stated | _score_fields(family, model) | _rope_fields(family, model)


def _window_fields(family: Family, model: ModelConfig, context: int) -> dict[str, Any]:
    """Returns which layers have a window; those of Qwen and SmolLM3 are off unless a field says that they are on."""
    is_optional = family.kind in _OPTIONAL_WINDOWS
    stated: dict[str, Any] = {"use_sliding_window": model.window > 0} if is_optional else {}
    if is_optional and not model.window:
        return stated
    stated["sliding_window"] = model.window or context
    if family.kind != "mistral":
        windows = [model.window_of(layer) for layer in range(model.layers)]
        stated["layer_types"] = [_SLIDING if window else _FULL for window in windows]
    if family.kind in ("qwen2", "qwen3"):
        stated["max_window_layers"] = 0
    return stated


def _expert_fields(kind: str, experts: ExpertsConfig) -> dict[str, Any]:
    """Returns the experts of Mixtral, gpt-oss or Qwen 3 MoE, whose layers all have them."""
    stated: dict[str, Any] = {"num_experts_per_tok": experts.per_token}
    if kind == "gpt_oss":
        stated |= {"intermediate_size": experts.width, "num_local_experts": experts.count}
        return {**stated, "swiglu_limit": experts.clamp}
    if kind == "mixtral":
        stated |= {"intermediate_size": experts.width, "num_local_experts": experts.count, "sliding_window": None}
        return stated
    stated |= {"moe_intermediate_size": experts.width, "num_experts": experts.count, "use_sliding_window": False}
    return {**stated, "norm_topk_prob": experts.normalize, "decoder_sparse_step": 1, "mlp_only_layers": []}


def _score_fields(family: Family, model: ModelConfig) -> dict[str, Any]:
    """Returns how scores and logits are computed."""
    stated: dict[str, Any] = {}
    if "attention_scalar" in family.free:
        scalar = model.attention_scalar or model.head_dim
        stated["query_pre_attn_scalar"] = int(scalar) if scalar == int(scalar) else scalar
    for name, cap in (("attn_logit_softcapping", "attention_cap"), ("final_logit_softcapping", "logit_cap")):
        if family.kind.startswith("gemma") or cap in family.free:
            stated[name] = getattr(model, cap) or None
    return stated


def _rope_fields(family: Family, model: ModelConfig) -> dict[str, Any]:
    """Returns the rotary positions as `transformers` 4 reads them; and for two kinds of layers, as 5 does, too."""
    names = {"kind": "rope_type", "original_length": "original_max_position_embeddings"}
    scaling = model.rope_scaling and {
        names.get(name, name): value for name, value in model.rope_scaling.model_dump().items()
    }
    if "rope_scaling" in family.missing:
        scaling = scaling or {"rope_type": "default"}
    stated = {"rope_theta": model.rope_theta, "rope_scaling": scaling}
    if "window_rope_theta" not in family.free:
        return stated
    whole = {"rope_type": "default", **(scaling or {}), "rope_theta": model.rope_theta}
    local = {"rope_type": "default", "rope_theta": model.window_rope_theta} if model.window_rope_theta else whole
    both = {_FULL: whole, _SLIDING: local}
    return {**stated, "rope_parameters": both, "rope_local_base_freq": local["rope_theta"]}


def settings_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a ModelConfig, from a `config.json` of one of FAMILIES.

    Raises:
        UnsupportedError: a field has a value that the decoder does not compute.
        KeyError: a field is missing.
    """
    family = FAMILIES[content["model_type"]]
    fixed = {**_FIXED, "attention_bias": (family.fixed.get("output_bias", False), OTHER_MODEL)}
    if family.kind == "gpt_oss" and (content.get("quantization_config") or {}).get("quant_method") == "mxfp4":
        del fixed["quantization_config"]  # read by `weights`
    for name, (value, remedy) in fixed.items():
        if content.get(name) not in (None, value):
            raise UnsupportedError(name, content[name], remedy)
    activation = _ACTIVATIONS[family.fixed.get("activation", "silu")]
    if _field(family, content, family.activation, activation) not in (None, activation):
        raise UnsupportedError(family.activation, content[family.activation])
    heads, dim, width = content["num_attention_heads"], content["hidden_size"], content["intermediate_size"]
    # Only the defaults of these are the number of heads; the field of others must be there.
    has_default = family.kind in ("llama", "olmo2", "olmo3", "nanochat")
    kv_heads = content.get("num_key_value_heads") if has_default else content["num_key_value_heads"]
    head_dim = _field(family, content, "head_dim") or dim // heads
    windows, ropes = _windows(family, content), _ropes(content)
    settings = {
        "layers": content["num_hidden_layers"],
        "dim": dim,
        "heads": heads,
        "head_width": head_dim if head_dim * heads != dim else 0,
        "kv_heads": kv_heads or heads,
        "tie_embeddings": bool(_field(family, content, "tie_word_embeddings", False)),
        "norm_eps": _field(family, content, "rms_norm_eps", 1e-6),
        "ffn_multiple": width / dim,
        **family.fixed,
        **windows,
        **_ropes_of(family, content, windows),
        **_scores_of(family, content, head_dim),
    }
    if "experts" in family.free:
        settings["experts"] = _experts(family.kind, content)
    if "rope_pattern" in family.free:
        settings["rope_pattern"] = _pattern("r" if rope else "n" for rope in ropes)
    return settings if ModelConfig.model_validate(settings).ffn_dim == width else {**settings, "ffn_width": width}


def _field(family: Family, content: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Returns a field; where there is none, what it means in the family. A field can be null."""
    return content[name] if name in content else family.missing.get(name, default)


def _pattern(letters: Iterable[str]) -> str:
    """Returns the shortest string that, repeated, begins with these letters.

    >>> _pattern("wwfwwfw"), _pattern("wwww"), _pattern("fwww")
    ('wwf', 'w', 'fwww')
    """
    whole = "".join(letters)
    return next(whole[:size] for size in range(1, len(whole) + 1) if (whole[:size] * len(whole))[: len(whole)] == whole)


def _ropes(content: Mapping[str, Any]) -> list[bool]:
    """Returns whether each layer has rotary positions, of SmolLM3."""
    layers, stated = content["num_hidden_layers"], content.get("no_rope_layers")
    interval = content.get("no_rope_layer_interval", 4)
    return [bool(stated[layer]) if stated else (layer + 1) % interval > 0 for layer in range(layers)]


def _experts(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of an ExpertsConfig."""
    is_qwen = kind == "qwen3_moe"
    settings = {
        "count": content.get("num_local_experts") or content["num_experts"],
        "per_token": content["num_experts_per_tok"],
        "width": content["moe_intermediate_size" if is_qwen else "intermediate_size"],
        "normalize": not is_qwen or bool(content.get("norm_topk_prob", False)),
    }
    if kind == "gpt_oss":
        limit = _field(FAMILIES[kind], content, "swiglu_limit")
        settings |= {"router": "chosen", "bias": True, "clamp": limit}
    return settings


def _windows(family: Family, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `window` and `window_pattern`, unless every token attends to all earlier ones.

    Raises:
        UnsupportedError: the family has no windows, and the file states one that is shorter than its context.
    """
    layers = content["num_hidden_layers"]
    kinds, window = content.get("layer_types"), _field(family, content, "sliding_window")
    if set(kinds or ()) - {_FULL, _SLIDING} or (kinds and not family.free >= _WINDOWS and set(kinds) != {_FULL}):
        raise UnsupportedError("layer_types", sorted(set(kinds or ())))
    enabled = family.kind not in _OPTIONAL_WINDOWS or content.get("use_sliding_window")
    slides = [kind == _SLIDING for kind in kinds] if kinds else _usual_windows(family.kind, content)
    if not family.free >= _WINDOWS:
        is_shorter = enabled and window is not None and window < content["max_position_embeddings"]
        if is_shorter and (kinds or any(slides)):
            remedy = f"it is exact up to {window} tokens: set max_position_embeddings = {window} if that is long enough"
            raise UnsupportedError("sliding_window", window, remedy)
        return {}
    # Where windows also have other rotary positions, they matter even if they are as long as the context.
    if not enabled or window is None or not any(slides):
        return {}
    if window >= content["max_position_embeddings"] and "window_rope_theta" not in family.free:
        return {}
    return {"window": window, "window_pattern": _pattern("w" if slide else "f" for slide in slides[:layers])}


def _usual_windows(kind: str, content: Mapping[str, Any]) -> list[bool]:
    """Returns which layers have a window if `layer_types` does not say it."""
    layers = range(content["num_hidden_layers"])
    if kind in ("qwen2", "qwen3", "qwen3_moe"):
        first = content.get("max_window_layers", _UNWINDOWED_LAYERS)
        return [layer >= first for layer in layers]
    if kind == "smollm3":
        return [not rope for rope in _ropes(content)]
    period = {"olmo3": 4, "gemma2": 2, "gpt_oss": 2, "gemma3_text": content.get("sliding_window_pattern", 6)}.get(kind)
    return [period is None or (layer + 1) % period > 0 for layer in layers]


def _ropes_of(family: Family, content: Mapping[str, Any], windows: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `rope_theta`, `rope_scaling` and `window_rope_theta`."""
    stated = content.get("rope_parameters") or {}
    by_kind = _FULL in stated or _SLIDING in stated
    rope = (stated.get(_FULL) if by_kind else stated) or content.get("rope_scaling")
    rope = rope or family.missing.get("rope_scaling", {})
    usual = family.missing.get("rope_theta", 10_000.0)
    theta = rope.get("rope_theta") or content.get("rope_theta") or usual
    settings = {"rope_theta": theta, "rope_scaling": _scaling(rope)}
    if "window_rope_theta" not in family.free or not windows:
        return settings
    local = (stated.get(_SLIDING) if by_kind else None) or {}
    other = content.get("rope_local_base_freq") or family.missing.get("rope_local_base_freq", theta)
    local_theta, local_scaling = local.get("rope_theta") or other, _scaling(local)
    if (local_theta, local_scaling) == (theta, settings["rope_scaling"]):
        return settings
    if local_scaling is not None:
        raise UnsupportedError(f"rope_type of {_SLIDING}", local.get("rope_type"))
    return {**settings, "window_rope_theta": local_theta}


def _scores_of(family: Family, content: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """Returns the settings of the scores and of the logits."""
    scores: dict[str, Any] = {}
    if "attention_scalar" in family.free:
        scalar = _field(family, content, "query_pre_attn_scalar")
        scores["attention_scalar"] = 0.0 if scalar == head_dim else scalar
    for name, cap in (("attn_logit_softcapping", "attention_cap"), ("final_logit_softcapping", "logit_cap")):
        value = _field(family, content, name)
        if cap in family.free:
            scores[cap] = value or 0.0
        elif value:
            raise UnsupportedError(name, value)
    return scores


def _scaling(rope: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns `rope_scaling` of a ModelConfig from `rope_parameters`, or from `rope_scaling` of older files."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in _SCALINGS:
        raise UnsupportedError("rope_type", kind, f"import a model with one of {', '.join(_SCALINGS)}")
    known = _SCALINGS[kind]
    values = {name: value for name, value in rope.items() if value is not None}
    for name in sorted(values.keys() - known - {"rope_type", "type", "rope_theta"}):
        if not _is_implied(name, values):
            raise UnsupportedError(f"{name} of the rope_type {kind}", values[name])
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
    return bool(values[name] == {"partial_rotary_factor": 1}.get(name))
