"""Splits of the tokenizer by language: pieces per word, tokens per word, and time.

    python -m benchmarks.splits --data FOLDER --packages FOLDER [--vocab 32000] [--rounds 2]
    python -m benchmarks.splits --data FOLDER --packages FOLDER --steps 400

`--data` has `langid/udhr_sentences.jsonl.zst`, the Universal Declaration of Human Rights by language, and
`text_domains/*.jsonl.zst`, texts in English by kind. `--packages` has
Debian packages `libreoffice-l10n-*`, unpacked by `dpkg -x PACKAGE.deb FOLDER`: the messages of one program in many
languages, so that all say the same. Words are those of `tasks.formats.documents.words`.

`pieces_per_word` is that of the declaration, before any merge. Then a vocabulary is trained for each split on messages
of all languages, half of them; on a tenth of the others it measures tokens per word, bytes per token, and `cost`: the
tokens of a language in relation to the median language for the same messages. `warns` compares what can be measured
without parallel texts with that cost: the rank correlation over languages. `domains` has the bytes per token of the
texts in English, for a vocabulary trained on a quarter of each kind. Times are CPU seconds of one thread, taken in
turn. Writes `splits.json`.

With `--steps`, small models (2 layers of width 128, 8,000 entries) are trained on twelve languages instead, with as
many tokens for each split, and their bits per byte are measured by language. Writes `splits_models.json`.
"""

import gettext
import math
import random
import time
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.stats import spearmanr
from tokenizers import Tokenizer

from benchmarks.harness import json_lines, keep, least, parser, spent, texts_of
from tasks.formats.documents.text import hash64
from tasks.formats.documents.words import has_unspaced, words
from tasks.stages.tokens import TokenizerConfig
from tasks.stages.tokens.bpe import train
from tasks.stages.tokens.encoder import VerifiedEncoder, open_encoder, open_reference
from tasks.stages.tokens.fertility import pieces_per_word

SETTINGS: dict[str, dict[str, str]] = {
    "gpt2": {"split": "gpt2"},
    "llama3": {"split": "llama3"},
    "llama3, digits left": {"split": "llama3", "digits": "left"},
    "llama3, digits right": {"split": "llama3", "digits": "right"},
    "o200k, digits left": {"split": "o200k", "digits": "left"},
    "o200k": {"split": "o200k"},
}
UNIGRAM = {"unigram, llama3": {"split": "llama3", "algorithm": "unigram"}}
LEAST_WORDS = 300
MODELLED = ("de", "ru", "ar", "hi", "bn", "ta", "th", "km", "ko", "ja", "zh_CN", "fi")
Texts = dict[str, list[str]]


def udhr(path: Path) -> Texts:
    """Returns the lines of the declaration by language, of languages with a code and enough words."""
    found: Texts = defaultdict(list)
    for row in json_lines(path):
        if row["lang"]:
            found[row["lang"]].append(unicodedata.normalize("NFC", row["text"]))
    return {lang: lines for lang, lines in sorted(found.items()) if len(words("\n".join(lines))) >= LEAST_WORDS}


def messages(folder: Path) -> dict[str, dict[str, str]]:
    """Returns the messages of the packages by language and original."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for path in sorted(folder.rglob("LC_MESSAGES/*.mo")):
        language = path.parts[-3]
        with path.open("rb") as file:
            catalog = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        for original, text in catalog.items():
            if isinstance(original, str) and original and len(text) > 1:
                found[language][f"{path.stem}/{original}"] = unicodedata.normalize("NFC", text)
    return {language: texts for language, texts in found.items() if "@" not in language and len(texts) > 5000}


def divided(by_language: Mapping[str, Mapping[str, str]]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Returns the texts to train on, and those to measure by language and original, by a hash of the original."""
    to_train = [
        text for texts in by_language.values() for original, text in texts.items() if hash64(original) % 20 < 10
    ]
    random.Random(0).shuffle(to_train)
    measured = {
        language: {original: text for original, text in texts.items() if hash64(original) % 20 == 10}
        for language, texts in by_language.items()
    }
    return to_train, measured


def fertility(tokenizer: Tokenizer, measured: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, float]]:
    """Returns by language tokens per word, bytes per token, and the tokens in relation to the median language."""
    shared = set.intersection(*(set(texts) for texts in measured.values()))
    rows = {}
    for language, texts in measured.items():
        chosen = [texts[original] for original in sorted(shared)]
        tokens = sum(len(one.ids) for one in tokenizer.encode_batch_fast(chosen, add_special_tokens=False))
        rows[language] = {
            "tokens_per_word": round(tokens / sum(len(words(text)) for text in chosen), 3),
            "bytes_per_token": round(sum(len(text.encode()) for text in chosen) / tokens, 3),
            "tokens": tokens,
        }
    middle = median(row["tokens"] for row in rows.values())
    return {language: {**row, "cost": round(row["tokens"] / middle, 3)} for language, row in rows.items()}


def domains(folder: Path) -> dict[str, dict[str, float]]:
    """Returns the bytes per token of each kind of text in English by setting, with 16,000 entries."""
    kinds = {path.name.partition(".")[0]: texts_of(path) for path in sorted(folder.glob("*.jsonl.zst"))}
    to_train = [text[:20_000] for texts in kinds.values() for text in texts[::4]]
    found: dict[str, dict[str, float]] = {}
    for name, settings in SETTINGS.items():
        made = train(to_train, TokenizerConfig.model_validate({"vocab_size": 16_000, **settings}))
        found[name] = {}
        for kind, texts in kinds.items():
            others = [text[:20_000] for text in texts[1::4]]
            tokens = sum(len(one.ids) for one in made.encode_batch_fast(others, add_special_tokens=False))
            found[name][kind] = round(sum(len(text.encode()) for text in others) / tokens, 3)
    return found


def bits_per_byte(name: str, by_language: Mapping[str, Mapping[str, str]], steps: int) -> dict[str, float]:
    """Returns the bits per byte by language of a model trained on `steps` batches of 8 sequences of 256 tokens."""
    import torch

    from tasks.trainer.model.config import ModelConfig
    from tasks.trainer.model.transformer import build

    to_train, measured = divided({language: by_language[language] for language in MODELLED})
    config = TokenizerConfig.model_validate({"vocab_size": 8_000, **SETTINGS[name]})
    encoder = open_reference(train(to_train, config).to_str())
    stream = np.concatenate([[0, *one] for one in encoder.encode(pa.array(to_train)).to_pylist()])
    model = build(ModelConfig(layers=2, dim=128, heads=4, tie_embeddings=True), 8_000, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
    draw = np.random.default_rng(0)

    def loss(rows: Any) -> torch.Tensor:
        x = torch.from_numpy(np.stack(rows)).long()
        return model.loss(x[:, :-1], torch.zeros_like(x[:, :-1]), x[:, 1:])

    for _ in range(steps):
        begins = draw.integers(0, len(stream) - 257, 8)
        optimizer.zero_grad()
        (loss([stream[begin : begin + 257] for begin in begins]) / (8 * 256)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    found = {}
    for language, texts in measured.items():
        chosen = list(texts.values())[:400]
        tokens = np.concatenate([[0, *one] for one in encoder.encode(pa.array(chosen)).to_pylist()])
        rows = [tokens[at : at + 257] for at in range(0, len(tokens), 256)]
        with torch.no_grad():
            nats = sum(float(loss([row])) for row in rows if len(row) > 1)
        found[language] = round(nats / math.log(2) / sum(len(text.encode()) for text in chosen), 4)
    return found


def speeds(made: Mapping[str, str], texts: list[str], rounds: int) -> dict[str, Any]:
    """Returns megabytes per CPU second of the slow and, if it equals it, the fast encoder of each tokenizer."""
    batch, megabytes = pa.array(texts, pa.string()), sum(len(text.encode()) for text in texts) / 1e6
    runs: dict[str, Callable[[], float]] = {}
    for name, content in made.items():
        encoders: dict[str, Any] = {"tokenizers": open_reference(content)}
        verified: VerifiedEncoder = open_encoder(content)
        if verified.is_fast:
            encoders["gigatoken"] = verified
        for kind, encoder in encoders.items():
            runs[f"{name}: {kind}"] = partial(spent, partial(encoder.encode, batch))
    return {name: round(megabytes / seconds, 2) for name, seconds in least(runs, rounds).items()}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--packages", type=Path, required=True)
    options.add_argument("--vocab", type=int, default=32_000)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--steps", type=int, default=0)
    given = options.parse_args()
    by_language = messages(given.packages)
    if given.steps:
        found = {}
        for name in ("llama3", "gpt2", "o200k"):
            found[name] = bits_per_byte(name, by_language, given.steps)
            print(name, found[name], flush=True)
        keep("splits_models", {"steps": given.steps, "bits_per_byte": found})
        return
    declaration = udhr(given.data / "langid" / "udhr_sentences.jsonl.zst")
    to_train, measured = divided(by_language)
    trained, made, seconds, table = {}, {}, {}, {}
    for name, settings in (SETTINGS | UNIGRAM).items():
        config = TokenizerConfig.model_validate({"vocab_size": given.vocab, **settings})
        begin = time.process_time()
        trained[name] = train(to_train, config)
        seconds[name] = round(time.process_time() - begin, 1)
        made[name] = trained[name].to_str()
        table[name] = fertility(open_reference(made[name]).tokenizer, measured)
        print(name, seconds[name], flush=True)
    lines_of = [(language, line) for language, lines in declaration.items() for line in lines]
    before = {name: pieces_per_word(trained[name], lines_of) for name in ("gpt2", "llama3", "o200k")}
    spaced = [language for language, lines in declaration.items() if not has_unspaced("".join(lines))]
    sample = [text for texts in measured.values() for text in texts.values()]
    default = table["llama3"].values()
    keep(
        "splits",
        {
            "languages": {"declaration": len(declaration), "messages": len(by_language), "spaced": len(spaced)},
            "trained_on_megabytes": round(sum(len(text.encode()) for text in to_train) / 1e6, 1),
            "most_pieces_per_word_spaced": {name: max(rows[one] for one in spaced) for name, rows in before.items()},
            "training_seconds": seconds,
            "megabytes_per_cpu_second": speeds(made, sample, given.rounds),
            "mean_tokens": {
                name: round(sum(row["tokens"] for row in rows.values()) / len(rows)) for name, rows in table.items()
            },
            "most_cost": {name: max((row["cost"], one) for one, row in rows.items()) for name, rows in table.items()},
            "warns": {
                measure: round(
                    float(spearmanr([row[measure] for row in default], [row["cost"] for row in default]).statistic), 3
                )
                for measure in ("tokens_per_word", "bytes_per_token")
            },
            "domains": domains(given.data / "text_domains"),
            "pieces_per_word": before,
            "fertility": table,
        },
    )


if __name__ == "__main__":
    main()
