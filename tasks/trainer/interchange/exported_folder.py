"""Files of a model folder, except weights and card: of a model that Sluice trained, or of one from elsewhere.

The tokenizer of a model that Sluice trained puts end-of-text before every text, as in training. A model that was
imported, or fine-tuned from one, keeps the files of its source byte for byte (`SOURCE_FILES`, `tokenizer.json`); only
its `config.json` is written anew, in the layout of Llama or Qwen, with the source's tokens. A fine-tuning replaces the
chat template if it used another one, and adds to `generation_config.json` the tokens that end its responses.
"""

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tasks.trainer.config import ModelConfig
from tasks.trainer.interchange.chat_template import FILE as CHAT_TEMPLATE
from tasks.trainer.interchange.chat_template import JINJA, stated_template
from tasks.trainer.interchange.huggingface import chat_template, llama_config
from tasks.trainer.interchange.model_folder import CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, listed_ids
from tasks.trainer.model.model_file import stop_ids

_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Tokens that `config.json` and `generation_config.json` name."""


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
    if more := sorted(stop_ids(described) - set(before)):
        # `transformers` reads the tokens of a model without this file from `config.json`.
        named = generation or {name: stated[name] for name in _TOKENS if stated.get(name) is not None}
        files[GENERATION_CONFIG] = _json(named | {"eos_token_id": [*before, *more]})
    return files


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
