"""The tokenizer: deterministic bytes, lossless, fertility per language."""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.formats.documents.words import WORDS
from tasks.stages.tokens import TokenizerConfig
from tasks.stages.tokens.bpe import TOKENIZER, load, train
from tasks.stages.tokens.fertility import FERTILITY
from tasks.stages.tokens.sample import draw, id_hashes
from tests.conftest import run_stage_in
from tests.corpora import documents_in, kept_document, tokens_in

EOS = "<|endoftext|>"


def test_any_text_survives_a_round_trip(tmp_path: Path) -> None:
    tokenizer = load(tokens_in(tmp_path).tokenizer)
    for text in ("", " ", "plain", "naïve 数据 строка", "\t\n  x", "e\u0301", "🜚 𓀀", "\x00\x7f"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_the_end_of_text_token_is_the_first_entry_and_never_produced_by_text(tmp_path: Path) -> None:
    tokenizer = load(tokens_in(tmp_path).tokenizer)
    assert 0 not in tokenizer.encode(f"a{EOS}b").ids
    assert tokenizer.token_to_id(EOS) == 0
    assert tokenizer.get_vocab_size() == 300


def test_fertility_is_reported_by_language_and_by_source(tmp_path: Path) -> None:
    tokenizer = tokens_in(tmp_path).tokenizer
    fit = json.loads(tokenizer.read(FERTILITY))
    assert fit["language"].keys() == {"en", "de"}
    assert fit["source"].keys() == {"web", "code", "my-books"}
    assert fit["segmentation"] == [WORDS]
    for kind in ("language", "source"):
        for count in ("documents", "tokens"):
            assert sum(row[count] for row in fit[kind].values()) == fit["all"][count]
    assert 1 <= fit["language"]["en"]["tokens_per_word"] < 4
    assert 1 < fit["source"]["web"]["bytes_per_token"] < 8
    assert next(iter(tokenizer.parts)).metrics["bytes_per_token/source/web"] == fit["source"]["web"]["bytes_per_token"]


def test_pieces_per_word_show_what_a_split_costs_a_language(tmp_path: Path) -> None:
    hindi = "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है। "
    rows = [kept_document(f"https://a.org/{i}", hindi * 9, language="hi") for i in range(5)]
    measured = {}
    for split in ("gpt2", "llama3"):
        config = TokenizerConfig.model_validate({"vocab_size": 300, "split": split})
        inputs = {"documents": documents_in(tmp_path / split, rows)}
        made = run_stage_in(tmp_path / split, "tasks.stages.tokens.bpe", config, inputs, kind="tokenizer")
        measured[split] = next(iter(made.parts)).metrics["pieces_per_word/language/hi"]
        assert json.loads(made.read(FERTILITY))["language"]["hi"]["pieces_per_word"] == measured[split]
    assert measured["llama3"] < 1.2
    assert measured["gpt2"] > 3


def test_a_language_of_twice_the_median_cost_is_named(
    tmp_path: Path, run_stage: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    draw = random.Random(3)
    syllables = {"en": ("water", "stone"), "de": ("fluss", "licht"), "fr": ("rive", "pierre"), "xx": ("ㄱ", "ㅎ", "ᚠ")}
    rows = []
    for language, used in syllables.items():
        for number in range(3):
            length = 9 if language == "xx" else 1
            text = " ".join("".join(draw.choices(used, k=length)) for _ in range(500))
            rows.append(kept_document(f"https://{language}.org/{number}", text, language=language))
    rows.append(kept_document("https://b.org/1", "ᚠᚢᚦ ᚨᚱᚲ", language=""))
    documents = documents_in(tmp_path, rows)
    made = run_stage("tasks.stages.tokens.bpe", TokenizerConfig(vocab_size=330), {"documents": documents})
    ratios = {name: value for name, value in next(iter(made.parts)).metrics.items() if name.startswith("times_median/")}
    assert list(ratios) == ["times_median/language/xx"]
    assert "xx takes" in caplog.text
    assert made.record.note.endswith("; over 2 times the median tokens per word: xx")


def test_training_gives_the_same_bytes_in_any_process() -> None:
    code = (
        "import hashlib; from tasks.stages.tokens.bpe import train;"
        "from tasks.stages.tokens import TokenizerConfig;"
        "texts = [' '.join(f'w{i * j % 97} x{j}' for j in range(60)) for i in range(300)];"
        "made = train(texts, TokenizerConfig(vocab_size=700)).to_str(pretty=True);"
        "print(hashlib.sha256(made.encode()).hexdigest())"
    )
    env = {**os.environ, "PYTHONHASHSEED": "2", "RAYON_NUM_THREADS": "2"}
    there = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    texts = [" ".join(f"w{i * j % 97} x{j}" for j in range(60)) for i in range(300)]
    here = train(texts, TokenizerConfig(vocab_size=700)).to_str(pretty=True)
    assert there.stdout.strip() == hashlib.sha256(here.encode()).hexdigest()


def test_the_training_sample_is_drawn_from_all_documents_up_to_its_size(tmp_path: Path, run_stage: Callable) -> None:
    rows = [kept_document(f"https://a.org/{index}", f"{index} " * 100) for index in range(200)]
    documents = documents_in(tmp_path, rows, parts=4)
    size = sum(len(row["text"]) for row in rows) // 4
    artifact = run_stage(
        "tasks.stages.tokens.bpe", TokenizerConfig(vocab_size=300, sample_bytes=size), {"documents": documents}
    )
    assert 40 <= next(iter(artifact.parts)).metrics["sample_documents"] <= 65


@pytest.mark.parametrize("first_parts", [1, 3, 256])
def test_the_sample_has_the_documents_with_the_lowest_hashes_however_the_parts_arrive(
    tmp_path: Path, first_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.stages.tokens.sample._FIRST_PARTS", first_parts)
    rows = [kept_document(f"https://a.org/{i}", "x" * (i % 50), "web" if i % 3 else "code") for i in range(600)]
    documents = documents_in(tmp_path, rows, parts=11)
    shares = {"web": 0.25, "code": 0.75}
    expected, left = [], {source: share * 2_000 for source, share in shares.items()}
    ranks = id_hashes([row["id"] for row in rows], "sample/0").tolist()
    for rank, row in sorted(zip(ranks, rows, strict=True), key=lambda one: one[0]):
        if row["text"] and left[row["source"]] > 0:
            expected.append((rank, row["text"]))
            left[row["source"]] -= len(row["text"])
    for engine in (Engine(), Backwards()):
        drawn = draw(documents, engine, TokenizerConfig(sample_bytes=2_000, weights=shares))
        assert [(one.rank, one.text) for one in drawn] == expected


class Backwards(Engine):
    """Yields the results of the last parts first, as a cluster may."""

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        yield from reversed(list(super().map(fn, items)))


def test_weights_determine_the_share_of_each_source_in_the_sample(tmp_path: Path) -> None:
    rows = [kept_document(f"https://a.org/{i}", "web " * 100, "web") for i in range(300)]
    rows += [kept_document(f"https://b.org/{i}", "code" * 100, "code") for i in range(50)]
    documents = documents_in(tmp_path, rows, parts=3)
    config = TokenizerConfig(sample_bytes=20_000, weights={"web": 0.25, "code": 0.75})
    texts = [one.text for one in draw(documents, Engine(), config)]
    assert (sum("web" in text for text in texts), sum("code" in text for text in texts)) == (13, 38)
    with pytest.raises(InputError, match='no kept text of the source "wbe"'):
        draw(documents, Engine(), TokenizerConfig(weights={"web": 0.5, "wbe": 0.5}))


def test_real_text_takes_two_and_a_half_to_five_bytes_per_token(
    tmp_path: Path, shared_data: Path, run_stage: Callable
) -> None:
    rows = []
    for domain in ("web", "code"):
        with pa.input_stream(shared_data / "text_domains" / f"{domain}.jsonl.zst", compression="zstd") as file:
            found = [json.loads(line) for line in file.read().decode().splitlines()[:60]]
        rows += [kept_document(f"https://{domain}.org/{row['id']}", row["text"], domain) for row in found]
    artifact = run_stage(
        "tasks.stages.tokens.bpe", TokenizerConfig(vocab_size=2000), {"documents": documents_in(tmp_path, rows)}
    )
    assert json.loads(artifact.read(TOKENIZER))["model"]["type"] == "BPE"
    assert 2.5 < json.loads(artifact.read(FERTILITY))["all"]["bytes_per_token"] < 5


def test_small_languages_have_a_larger_share_of_the_sample_by_an_exponent_of_their_bytes(tmp_path: Path) -> None:
    rows = [kept_document(f"https://a.org/{i}", "word " * 80) for i in range(810)]
    rows += [kept_document(f"https://b.org/{i}", "字" * 100 + "." * 100, language="zh") for i in range(90)]
    documents = documents_in(tmp_path, rows, parts=3)

    def shares(**settings: Any) -> tuple[int, int]:
        sample = draw(documents, Engine(), TokenizerConfig(sample_bytes=48_000, **settings))
        return sum("word" in one.text for one in sample), sum("字" in one.text for one in sample)

    natural = shares()
    assert natural[0] > 6 * natural[1]
    assert shares(by="language", alpha={"language": 0.5}) == (90, 30), "(810 / 90) ** 0.5 = 3, of 120 documents"
    assert shares(by="source+language", weights={"web": 1.0}, alpha={"language": 0.0}) == (60, 60)
    assert "by" not in TokenizerConfig().model_dump()
