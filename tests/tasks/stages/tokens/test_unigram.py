"""The unigram tokenizer: exact, the same bytes every time, and accepted by the stages that follow."""

import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.core.errors import InputError
from tasks.formats.tokens.shard import ShardSet
from tasks.stages.tokens import EncodeConfig, TokenizerConfig
from tasks.stages.tokens.bpe import TOKENIZER, load, train
from tasks.stages.tokens.encoder import PROBES, SLOW, ReferenceEncoder
from tasks.stages.tokens.token_import import check_ids, check_lossless
from tests.conftest import run_stage_in
from tests.corpora import corpus, documents_in

CONFIG = TokenizerConfig(algorithm="unigram", vocab_size=600)
TEXTS = ["the rivers at the riverside and the riverbank", "अधिकार अधिकारी अधिकारों के", "水は川を流れる"] * 20
HOSTILE = ("<|endoftext|>", "<0x41>", "<0xF0>\u0e5b", "<unk>", "\u2581 \U000f0041\U000f0020", "\x00\n\t\r ", "🜚𓀀")


def test_without_sentencepiece_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(InputError, match=r'Install it: pip install "sluice\[unigram\]"'):
        train(TEXTS, CONFIG)


@pytest.fixture(scope="module")
def made() -> ReferenceEncoder:
    pytest.importorskip("sentencepiece", reason="sentencepiece is not installed: sluice[unigram]")
    return ReferenceEncoder(train(TEXTS, CONFIG).to_str())


def test_every_text_is_decoded_as_it_was_and_never_has_a_reserved_entry(made: ReferenceEncoder) -> None:
    check_ids(made.tokenizer, "ours")
    check_lossless(made.tokenizer, "ours")
    reserved = {made.tokenizer.token_to_id(name) for name in (CONFIG.end_of_text, "<unk>", "<0x41>")}
    for text in (*PROBES, *HOSTILE):
        tokens = made.tokenizer.encode(text, add_special_tokens=False).ids
        assert made.tokenizer.decode(tokens, skip_special_tokens=False) == text
        assert not reserved & set(tokens), text


@given(text=st.text(st.sampled_from("aZérivकिต่水あ🙂👩\u200d\u0301\ufe0f1½ \n\t\u00a0\u3000<>0x|A\x00"), max_size=30))
def test_any_text_survives_a_round_trip(made: ReferenceEncoder, text: str) -> None:
    assert made.tokenizer.decode(made.tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_its_entries_are_whole_characters_within_pieces_and_end_of_text_is_the_first(made: ReferenceEncoder) -> None:
    vocabulary = json.loads(made.tokenizer.to_str())["model"]["vocab"]
    assert vocabulary[0][0] == CONFIG.end_of_text
    entries = {entry for entry, _ in vocabulary}
    assert any(entry.startswith(" river") for entry in entries)
    assert any(entry.startswith("अधिकार") for entry in entries)
    assert all("\ufffd" not in entry for entry in entries)
    assert not [entry for entry in entries if " " in entry[1:].strip()]


def test_a_common_word_that_begins_no_other_is_one_entry() -> None:
    pytest.importorskip("sentencepiece", reason="sentencepiece is not installed: sluice[unigram]")
    encoder = ReferenceEncoder(train([" của các không được người"] * 50, CONFIG).to_str()).tokenizer
    assert encoder.encode(" của các không được người").tokens == [" của", " các", " không", " được", " người"]


@pytest.mark.parametrize("vocab_size", [512, 600])
def test_every_ascii_character_is_an_entry_though_no_piece_of_the_sample_occurs_twice(vocab_size: int) -> None:
    pytest.importorskip("sentencepiece", reason="sentencepiece is not installed: sluice[unigram]")
    config = TokenizerConfig(algorithm="unigram", vocab_size=vocab_size, end_of_text="EOT")
    words = " ".join(map("".join, product("abcdefgh", repeat=4)))  # its entries fill 512
    for sample in ("aaaa", words):
        tokenizer = ReferenceEncoder(train([sample], config).to_str()).tokenizer
        assert {*map(chr, range(0x80))} <= tokenizer.get_vocab().keys()
        assert tokenizer.get_vocab_size() <= vocab_size
        assert tokenizer.encode("EOT <0x41>", add_special_tokens=False).tokens == [*"EOT <0x41>"]
    assert len(tokenizer.encode("abcd").tokens) < 4


@pytest.mark.parametrize("sample", [[], [""], ["a" * 5_000]])
def test_a_sample_of_which_nothing_is_read_is_refused_with_a_remedy(sample: list[str]) -> None:
    pytest.importorskip("sentencepiece", reason="sentencepiece is not installed: sluice[unigram]")
    with pytest.raises(InputError, match=r"has no text for a unigram vocabulary.*or raise sample_bytes"):
        train(sample, CONFIG)


def test_training_gives_the_same_bytes_every_time(made: ReferenceEncoder) -> None:
    assert train(TEXTS, CONFIG).to_str() == train(TEXTS, CONFIG).to_str()


def test_its_tokens_are_encoded_into_shards_and_the_note_says_by_what(tmp_path: Path, made: ReferenceEncoder) -> None:
    documents = documents_in(tmp_path, corpus(30))
    run: Callable = run_stage_in
    tokenizer = run(tmp_path, "tasks.stages.tokens.bpe", CONFIG, {"documents": documents}, kind="tokenizer")
    inputs = {"documents": documents, "tokenizer": tokenizer}
    encoded = run(tmp_path, "tasks.stages.tokens.encode", EncodeConfig(), inputs, kind="shards")
    reason = "unknown_split" if find_spec("gigatoken") else "not_installed"
    assert encoded.record.metrics[f"slow_parts/{reason}"] == len(documents.files("kept/"))
    assert f"; 2 parts encoded by tokenizers, at a tenth of the speed or less: {SLOW[reason]}" in encoded.record.note
    shards = ShardSet.open(encoded)
    assert shards.format.vocab_size == len(json.loads(tokenizer.read(TOKENIZER))["model"]["vocab"])
    shard = shards.shard(shards.names("web")[0])
    tokens = shard.slice(0, 0, int(shard.lengths[0]))
    assert tokens[-1] == shards.format.eos_id == 0
    text = load(tokenizer).decode(tokens[:-1].tolist())
    assert text in {row["text"] for row in corpus(30)}
