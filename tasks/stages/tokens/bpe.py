"""Stage tokenizer: kept documents -> a tokenizer, trained or imported, and its fertility.

Reads `documents` (kept/) and, if the recipe names one, the file of a tokenizer (see `token_import`), or with
`[encode] accumulate` the tokenizer of the version before (`earlier`); writes
`tokenizer.json` (Hugging Face format), `tokenizer_config.json` (the end-of-text token), `chat_template.jinja` if there
is one beside the file, and `fertility.json`: tokens per word and bytes per token of the sample, by language and by
source (see `fertility`).

A text is split into pieces (`tasks.formats.tokens.pieces`), and tokens are learned within them: byte-level byte pair
encoding, or a unigram vocabulary (`unigram`). Every text can be encoded and decoded without loss, and none has an
"unknown" token. The same documents and settings give the same bytes of `tokenizer.json` on any number of workers: the
sample is selected and ordered by a hash of the document's id (`sample`), and tokens are trained in one thread.
"""

import json
import logging
import os
from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tasks.core.artifact import Artifact
from tasks.core.digest import sha256_of
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.hooks import Hooks
from tasks.formats.tokens.pieces import expression
from tasks.stages.tokens import TokenizerConfig, token_import, unigram
from tasks.stages.tokens.encoder import ReferenceEncoder, open_reference
from tasks.stages.tokens.fertility import (
    FERTILITY,
    TIMES_MEDIAN,
    FertilityCounts,
    costly,
    fertility_metrics,
    fertility_table,
    pieces_per_word,
)
from tasks.stages.tokens.sample import SampledDocument, draw
from tasks.trainer.interchange.chat_template import FILE as CHAT_TEMPLATE

log = logging.getLogger("sluice.tokens")

VERSION = 3
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"

_COSTLY = "times_median/language/"
"""Prefix of the metrics of costly languages."""


def external(config: TokenizerConfig) -> dict[str, list[str]]:
    """Returns the external files that the stage reads, by role."""
    if not config.file:
        return {}
    chat = token_import.beside(config.file)
    return {"tokenizer": [config.file], **({"chat_template": chat} if chat else {})}


HOOKS = Hooks(external=external)


def run(config: TokenizerConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Trains or imports the tokenizer; raises InputError if no document has text, or the imported one is invalid."""
    if TOKENIZER in output.committed:
        return _report(output)
    documents = inputs["documents"]
    sample = draw(documents, engine, config)
    if "earlier" in inputs:
        content, chat_template, settings = _of_earlier(inputs["earlier"])
    elif config.file:
        content = token_import.read(config.file, config.end_of_text)
        chat_template, settings = token_import.read_beside(config.file, config.end_of_text)
    else:
        chat_template, settings = "", {"eos_token": config.end_of_text}
        content = train((document.text for document in sample), config).to_str(pretty=True)
    tokenizer = ReferenceEncoder(content).tokenizer
    size = tokenizer.get_vocab_size()
    if size < config.vocab_size and not config.file and "earlier" not in inputs:
        log.warning(
            "the sample gives %d of the %d requested entries: it is too small or too uniform", size, config.vocab_size
        )
    fertility = _fertility(tokenizer, sample)
    with output.part(TOKENIZER, conserved=False) as part:
        for name, table in ((TOKENIZER_CONFIG, settings), (FERTILITY, fertility)):
            part.write(name, json.dumps(table, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n")
        part.write(TOKENIZER, content.encode())
        if chat_template:
            part.write(CHAT_TEMPLATE, chat_template.encode())
        part.metric("vocab_size", size)
        part.metric("sample_documents", len(sample))
        part.metric("bytes_per_token", fertility["all"]["bytes_per_token"])
        part.metric("tokens_per_word", fertility["all"]["tokens_per_word"])
        for name, value in fertility_metrics(fertility).items():
            part.metric(name, value)
        for language, ratio in costly(fertility).items():
            part.metric(f"{_COSTLY}{language}", ratio)
    return _report(output)


def _of_earlier(shards: Artifact) -> tuple[str, str, dict[str, Any]]:
    """Returns tokenizer, chat template ("" for none) and settings of the shards of an earlier version."""
    tokenizer = shards.open_input("tokenizer")
    chat_template = tokenizer.read(CHAT_TEMPLATE).decode() if tokenizer.files(CHAT_TEMPLATE) else ""
    return tokenizer.read(TOKENIZER).decode(), chat_template, json.loads(tokenizer.read(TOKENIZER_CONFIG))


def _report(output: Output) -> Report:
    metrics = output.committed[TOKENIZER].metrics
    note = f"{metrics['vocab_size']:,.0f} entries, {metrics['bytes_per_token']:.2f} bytes per token"
    if languages := sorted(name.removeprefix(_COSTLY) for name in metrics if name.startswith(_COSTLY)):
        note += f"; over {TIMES_MEDIAN:g} times the median tokens per word: {', '.join(languages)}"
    return Report(metrics=dict(metrics), note=note)


def load(artifact: Artifact) -> Tokenizer:
    """Returns the tokenizer of an artifact, which encodes special tokens in a text as plain characters."""
    return open_reference(artifact.read(TOKENIZER).decode()).tokenizer


def eos_of(artifact: Artifact, tokenizer: Tokenizer) -> int:
    """Returns the id of the end-of-text token of an artifact's tokenizer."""
    eos = tokenizer.token_to_id(json.loads(artifact.read(TOKENIZER_CONFIG))["eos_token"])
    assert eos is not None
    return eos


def digest(artifact: Artifact) -> str:
    """Returns the sha256 of the tokenizer's file, which identifies the tokenizer in shards and models."""
    return sha256_of(artifact.read(TOKENIZER))


def train(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Trains a tokenizer; the end-of-text token has id 0, followed by the 256 bytes.

    Raises:
        InputError: see `unigram.train`.
    """
    _one_thread()
    if config.algorithm == "unigram":
        return unigram.train(texts, config)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level_split(config)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=[config.end_of_text],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def byte_level_split(config: TokenizerConfig) -> pre_tokenizers.PreTokenizer:
    """Returns the pre-tokenizer of the settings, which writes pieces in the byte-level alphabet."""
    if config.split == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = pre_tokenizers.Split(Regex(expression(config.split, config.digits)), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _fertility(tokenizer: Tokenizer, sample: list[SampledDocument]) -> dict[str, Any]:
    """Returns the table of the sample, and warns of costly languages."""
    counts = FertilityCounts()
    for first in range(0, len(sample), 256):
        rows = sample[first : first + 256]
        encodings = tokenizer.encode_batch_fast([row.text for row in rows], add_special_tokens=False)
        for row, encoding in zip(rows, encodings, strict=True):
            counts.add(row.language, row.source, row.text, len(encoding.ids), len(row.text.encode()))
    table = fertility_table([counts.record()])
    for language, pieces in pieces_per_word(tokenizer, ((row.language, row.text) for row in sample)).items():
        table["language"][language]["pieces_per_word"] = pieces
    for language, ratio in costly(table).items():
        log.warning(
            "%s takes %.2f tokens per word, %.1f times those of the median language: a model pays as much more for its "
            "texts. Add texts of it, weight their source in [tokenizer] weights, or raise vocab_size",
            language,
            table["language"][language]["tokens_per_word"],
            ratio,
        )
    return table


def _one_thread() -> None:
    # Parts already use all cores, and the order in which threads count pairs is not deterministic.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
