"""Hugging Face formats: `config.json`, model folders, PEFT adapters, chat templates.

Reads `config.json` of the families below; creates the files of a model folder, except weights, from the content of a
checkpoint's `model.json` and a `tokenizer.json`. The weights are those of a family in `transformers` (`families`) under
other names: queries and keys are rotated by halves there, too, so no rows are permuted. Does not import torch.

The tokenizer of a model that Sluice trained puts end-of-text before every text, as in training. A model that was
imported, or fine-tuned from one, keeps the files of its source byte for byte (`model_folder.SOURCE_FILES`); only its
`config.json` is written anew, in the layout that represents the model, with the source's tokens. A fine-tuning replaces
the chat template if it used another one, and adds to `generation_config.json` the tokens that end its responses.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tasks.core.errors import InputError
from tasks.trainer.interchange import families
from tasks.trainer.interchange.chat_template import FILE as CHAT_TEMPLATE
from tasks.trainer.interchange.chat_template import JINJA, stated_template
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.shape import ModelShape

CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
FAMILIES = (*families.FAMILIES, "olmo", "gpt2")
"""Values of `model_type` whose shape is known."""
_NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.wq.weight": "self_attn.q_proj.weight",
    "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
    "attention.wq.bias": "self_attn.q_proj.bias",
    "attention.wk.bias": "self_attn.k_proj.bias",
    "attention.wv.bias": "self_attn.v_proj.bias",
    "attention.wo.bias": "self_attn.o_proj.bias",
    "attention.sinks": "self_attn.sinks",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn.w1.weight": "mlp.gate_proj.weight",
    "ffn.w2.weight": "mlp.down_proj.weight",
    "ffn.w3.weight": "mlp.up_proj.weight",
    "ffn.router.weight": "mlp.gate.weight",
    "ffn.experts.w1.weight": "mlp.experts.{}.gate_proj.weight",
    "ffn.experts.w2.weight": "mlp.experts.{}.down_proj.weight",
    "ffn.experts.w3.weight": "mlp.experts.{}.up_proj.weight",
}
_POST_NORMS = {
    "attention_post_norm.weight": "post_attention_layernorm.weight",
    "ffn_post_norm.weight": "post_feedforward_layernorm.weight",
}
_RENAMED = {
    "pre": {},
    "post": _POST_NORMS,
    "both": {**_POST_NORMS, "ffn_norm.weight": "pre_feedforward_layernorm.weight"},
}
"""Names of norms that differ from those of Llama, by `norm_place`."""
_UNGATED = {"ffn.w1.weight": "mlp.fc1.weight", "ffn.w2.weight": "mlp.fc2.weight"}
_IN_MIXTRAL = {
    "ffn.router.weight": "block_sparse_moe.gate.weight",
    **{f"ffn.experts.{name}.weight": f"block_sparse_moe.experts.{{}}.{name}.weight" for name in ("w1", "w2", "w3")},
}
"""Names that differ in the layout of Mixtral, of models with experts and without norms of heads."""
_IN_GPT_OSS = {
    "ffn.router.weight": "mlp.router.weight",
    "ffn.router.bias": "mlp.router.bias",
    **{f"ffn.experts.w{1 + 2 * half}.weight": f"mlp.experts.gate_up_proj|T{half}" for half in (0, 1)},
    **{f"ffn.experts.w{1 + 2 * half}.bias": f"mlp.experts.gate_up_proj_bias|{half}" for half in (0, 1)},
    "ffn.experts.w2.weight": "mlp.experts.down_proj|T",
    "ffn.experts.w2.bias": "mlp.experts.down_proj_bias",
}
"""Names that differ in the layout of gpt-oss, of models whose experts have biases; marks as in `weights.Place`."""
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Tokens that `config.json` and `generation_config.json` name."""
STOP = "stop_ids"
"""Key of `model.json`: the tokens besides end-of-text that end a generated text, if there are any."""
CARD = "README.md"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_ADAPTER_NAME = re.compile(r"(.+)\.lora_([ab])")
ROLES = ("system", "user", "assistant")


def llama_name(name: str, renamed: Mapping[str, str] | None = None) -> str:
    """Returns the name in the Llama layout of a weight of ours; raises KeyError if the layout has none.

    In that of the matrices of experts `{}` stands for the number of the expert, which is the first index of ours, and
    `|` is before the marks of `weights.Place`.

    Args:
        name: of the weight.
        renamed: names within a layer that differ from those of Llama.

    >>> llama_name("layers.3.ffn.w1.weight")
    'model.layers.3.mlp.gate_proj.weight'
    """
    if match := re.fullmatch(r"layers\.(\d+)\.(.+)", name):
        return f"model.layers.{match[1]}.{({**_IN_LAYER, **(renamed or {})})[match[2]]}"
    return _NAMES[name]


def names_in(model: ModelConfig) -> Callable[[str], str]:
    """Returns `llama_name` with the names of the layout that represents the model."""
    ungated = {} if model.gated else _UNGATED
    mixture = {} if not model.experts or model.qk_norm else _IN_GPT_OSS if model.experts.bias else _IN_MIXTRAL
    return partial(llama_name, renamed={**_RENAMED[model.norm_place], **ungated, **mixture})


def llama_config(
    model: ModelConfig, vocab_size: int, seq_len: int, eos_id: int, dtype: str = "float32"
) -> dict[str, Any]:
    """Returns the content of `config.json`, of the first of `families.FAMILIES` that can state the model.

    Args:
        model: shape of the model.
        vocab_size: tokens of the vocabulary.
        seq_len: maximum number of tokens the model reads.
        eos_id: the end-of-text token, which also precedes every document.
        dtype: of the exported weights, as torch names it.

    Raises:
        InputError: the model has settings that no family can state together.
    """
    family = families.family_of(model)
    return {
        "architectures": [family.architecture],
        "model_type": family.kind,
        "hidden_size": model.dim,
        "intermediate_size": model.ffn_dim,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "rms_norm_eps": model.norm_eps,
        "max_position_embeddings": seq_len,
        "tie_word_embeddings": model.tie_embeddings,
        "vocab_size": model.embedding_rows(vocab_size),
        "bos_token_id": eos_id,
        "eos_token_id": eos_id,
        "torch_dtype": dtype,
        **families.fields(family, model, seq_len),
    }


def small_files(
    described: Mapping[str, Any],
    tokenizer: str,
    template: Mapping[str, Any] | None = None,
    source: Mapping[str, bytes] | None = None,
) -> dict[str, bytes]:
    """Returns the files of a model folder by name, except weights and card.

    Args:
        described: content of the checkpoint's `model.json`, and `dtype` if the weights are not exported in fp32.
        tokenizer: content of its `tokenizer.json`.
        template: record of the template of a fine-tuned model (`tasks.stages.finetune.templates`); None: the model was
            not fine-tuned.
        source: the SOURCE_FILES of the model from elsewhere that it is, or was fine-tuned from; empty: there is none.

    Raises:
        InputError: the model has a setting that the Llama layout cannot represent.
    """
    config = _config(described)
    if source:
        return _files_of_source(config, described, tokenizer, template, source)
    return _own_files(config, described, tokenizer, template)


def _config(described: Mapping[str, Any]) -> dict[str, Any]:
    model, dtype = ModelConfig.model_validate(described["model"]), described.get("dtype", "float32")
    return llama_config(model, described["vocab_size"], described["seq_len"], described["eos_id"], dtype)


def _own_files(
    config: dict[str, Any], described: Mapping[str, Any], tokenizer: str, template: Mapping[str, Any] | None
) -> dict[str, bytes]:
    """Returns the files of a model that Sluice trained.

    With an imported chat template the tokenizer stays as it is, because the template writes the first token.
    """
    eos_id, encoder = described["eos_id"], Tokenizer.from_str(tokenizer)
    eos = encoder.id_to_token(eos_id)
    encoder.post_processor = TemplateProcessing(
        single=f"{eos} $A", pair=f"{eos} $A {eos} $B", special_tokens=[(eos, eos_id)]
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": eos,
        "eos_token": eos,
        "model_max_length": described["seq_len"],
        "clean_up_tokenization_spaces": False,
        **({"chat_template": chat_template(template)} if template else {}),
    }
    generation = {"bos_token_id": eos_id, "eos_token_id": eos_id, "do_sample": False}
    contents = {CONFIG: config, GENERATION_CONFIG: generation, TOKENIZER_CONFIG: settings}
    if imported := template if template and JINJA in template else None:
        _name_special_tokens(contents, imported, encoder)
    files = {name: _json(content) for name, content in contents.items()}
    return {**files, TOKENIZER: (tokenizer if imported else encoder.to_str(pretty=True)).encode()}


def _name_special_tokens(contents: dict[str, dict[str, Any]], template: Mapping[str, Any], encoder: Tokenizer) -> None:
    """Sets the special tokens that an imported chat template names, and all that end a response."""
    begin = template["tokens"].get("bos_token")
    del contents[TOKENIZER_CONFIG]["bos_token"]
    contents[TOKENIZER_CONFIG] |= template["tokens"]
    stop = [encoder.token_to_id(token) for token in template["stop"]]
    contents[GENERATION_CONFIG]["eos_token_id"] = stop if len(stop) > 1 else stop[0]
    if begin:
        for name in (CONFIG, GENERATION_CONFIG):
            contents[name]["bos_token_id"] = encoder.token_to_id(begin)


def _files_of_source(
    config: dict[str, Any],
    described: Mapping[str, Any],
    tokenizer: str,
    template: Mapping[str, Any] | None,
    source: Mapping[str, bytes],
) -> dict[str, bytes]:
    """Returns the files of a model from elsewhere, with what its fine-tuning has changed."""
    stated = json.loads(source[CONFIG])
    config = {name: value for name, value in config.items() if name not in _TOKENS}
    config |= {name: stated[name] for name in _TOKENS if name in stated}
    files = {**source, CONFIG: _json(config), TOKENIZER: tokenizer.encode()}
    if template is None:
        return files
    settings = json.loads(source[TOKENIZER_CONFIG])
    file = source.get(CHAT_TEMPLATE)
    if (text := chat_template(template)) != stated_template(file.decode() if file else None, settings):
        files.pop(CHAT_TEMPLATE, None)
        files[TOKENIZER_CONFIG] = _json(settings | {"chat_template": text})
    generation = json.loads(source.get(GENERATION_CONFIG, "{}"))
    before = listed_ids(generation.get("eos_token_id", stated.get("eos_token_id")))
    if more := sorted({described["eos_id"], *described.get(STOP, ())} - set(before)):
        # `transformers` reads the tokens of a model without this file from `config.json`.
        named = generation or {name: stated[name] for name in _TOKENS if stated.get(name) is not None}
        files[GENERATION_CONFIG] = _json(named | {"eos_token_id": [*before, *more]})
    return files


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def listed_ids(stated: Any) -> list[int]:
    """Returns the tokens of `eos_token_id`, which is a number, a list or None."""
    return list(stated) if isinstance(stated, list) else [] if stated is None else [stated]


def adapter_config(lora: Mapping[str, Any], base: str, revision: str = "") -> bytes:
    """Returns the content of PEFT's `adapter_config.json`.

    Args:
        lora: settings of the adapters, as in `run.json` of a fine-tuning.
        base: the folder of the base, or its name on the hub, which PEFT loads.
        revision: its commit on the hub; "" for a folder.
    """
    targets = [llama_name(f"layers.0.{_place(target)}.weight").split(".")[-2] for target in lora["targets"]]
    content = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "revision": revision or None,
        "r": lora["rank"],
        "lora_alpha": lora["alpha"],
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted(targets),
    }
    return (json.dumps(content, indent=2) + "\n").encode()


def adapter_name(name: str) -> str:
    """Returns the PEFT name of an adapter matrix; raises KeyError if `name` is not an adapter matrix.

    >>> adapter_name("layers.3.attention.wq.lora_a")
    'base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight'
    """
    match = _ADAPTER_NAME.fullmatch(name)
    if match is None:
        raise KeyError(name)
    module = llama_name(f"{match[1]}.weight").removesuffix(".weight")
    return f"base_model.model.{module}.lora_{match[2].upper()}.weight"


def _place(target: str) -> str:
    """Returns the path of a projection within a layer, such as "attention.wq" or "ffn.w1"."""
    return f"{'ffn' if target[1:].isdigit() else 'attention'}.{target}"


def chat_template(template: Mapping[str, Any]) -> str:
    """Returns the chat template of a fine-tuning as Jinja, for `apply_chat_template`.

    The rendered text, tokenized as a whole, gives the tokens of training: end-of-text, the turns, end-of-text. With
    `add_generation_prompt` it ends with the start of a response instead. A base from elsewhere can have another
    begin-of-text token, or none, so the template does not write that.

    Args:
        template: for each of ROLES the text `before` and `after` the content of a message; or the record of an imported
            chat template, which is returned as it is.
    """
    if JINJA in template:
        return str(template[JINJA])
    turns = "".join(
        f"{{% {'if' if number == 0 else 'elif'} message['role'] == '{role}' %}}"
        f"{{{{ {_text(template[role]['before'])} + message['content'] + {_text(template[role]['after'])} }}}}"
        for number, role in enumerate(ROLES)
    )
    roles = ", ".join(ROLES)
    unknown = f"{{{{ raise_exception('a message has the role ' + message['role'] + ': known are {roles}') }}}}"
    return (
        "{{ eos_token }}{% for message in messages %}"
        f"{turns}{{% else %}}{unknown}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ {_text(template['assistant']['before'])} }}}}"
        "{% else %}{{ eos_token }}{% endif %}"
    )


def render_prompt(template: Mapping[str, Any], messages: Sequence[Mapping[str, str]]) -> str:
    """Returns the prompt for messages, as the Jinja template renders it after end-of-text.

    Raises:
        InputError: a message has no role in ROLES, or no content.
    """
    try:
        turns = [(template[message["role"]], message["content"]) for message in messages]
    except (KeyError, TypeError) as error:
        remedy = f"give messages with a role of {', '.join(ROLES)} and a content"
        raise InputError(f"a message cannot be read ({error})", remedy) from None
    text = "".join(f"{turn['before']}{content}{turn['after']}" for turn, content in turns)
    return f"{text}{template['assistant']['before']}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def read_shape(path: Path) -> ModelShape:
    """Returns the shape of the model in a `config.json`; raises InputError if it cannot be read or is not supported."""
    try:
        config = json.loads(path.read_text())
        return shape_of(config)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}", "name the config.json of a model") from None
    except KeyError as error:
        raise InputError(f"{path} has no {error}", "name the config.json of a model") from None


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Returns the shape of a published model from the content of its `config.json`.

    Raises:
        InputError: the model is of another family, or has biases in some of its matrices or another unknown feature.
        KeyError: a field is missing.
    """
    kind = config.get("model_type", "")
    if kind == "gpt2":
        dim, heads = config["n_embd"], config["n_head"]
        return ModelShape(
            layers=config["n_layer"],
            dim=dim,
            heads=heads,
            kv_heads=heads,
            head_dim=dim // heads,
            ffn_dim=config.get("n_inner") or 4 * dim,
            vocab_size=config["vocab_size"],
            tied=True,
            gated=False,
            biases=True,
            positions=config["n_positions"],
            norm_vectors=2,
        )
    if kind not in FAMILIES or (config.get("attention_bias") and kind != "gpt_oss") or config.get("mlp_bias"):
        raise InputError(
            f'a model of the type "{kind}"{" with biases" if kind in FAMILIES else ""} is not supported',
            f"supported are: {', '.join(FAMILIES)}",
        )
    if kind not in ("llama", "olmo"):
        try:
            settings = families.settings_of(config)
        except families.UnsupportedError as error:
            raise InputError(f"{CONFIG}: {error}", error.remedy) from None
        return ModelShape.of(ModelConfig.model_validate(settings), config["vocab_size"])
    heads, dim = config["num_attention_heads"], config["hidden_size"]
    return ModelShape(
        layers=config["num_hidden_layers"],
        dim=dim,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or (families.QWEN3_HEAD if kind == "qwen3" else dim // heads),
        ffn_dim=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_biases=kind == "qwen2",
        qk_norm=kind == "qwen3",
        norm_vectors=0 if kind == "olmo" else 1,
    )
