"""Encoders: equal to the reference or unused; text never encodes to special tokens."""

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from tasks.stages.tokens import TokenizerConfig
from tasks.stages.tokens.bpe import train
from tasks.stages.tokens.encoder import (
    PROBES,
    Encoder,
    GigatokenEncoder,
    ReferenceEncoder,
    VerifiedEncoder,
    open_encoder,
)

MADE = train([" ".join(PROBES)] * 3, TokenizerConfig(vocab_size=500)).to_str()
HOSTILE = ["<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|> <|endoftext", "plain"]


def encoded(encoder: Encoder, texts: Sequence[str]) -> list[list[int]]:
    return encoder.encode(pa.array(texts, pa.string())).to_pylist()


def test_a_special_token_in_a_text_is_read_as_characters() -> None:
    encoder = open_encoder(MADE)
    tokenizer = ReferenceEncoder(MADE).tokenizer
    for text, tokens in zip(HOSTILE, encoded(encoder, HOSTILE), strict=True):
        assert 0 not in tokens
        assert tokenizer.decode(tokens) == text


def test_gigatoken_gives_the_same_tokens_as_the_reference() -> None:
    pytest.importorskip("gigatoken", reason="gigatoken is not installed: encoding takes tokenizers")
    reference = ReferenceEncoder(MADE)
    texts = [*PROBES, *HOSTILE]
    assert encoded(GigatokenEncoder(MADE, reference), texts) == encoded(reference, texts)
    assert open_encoder(MADE).is_fast


SPLITS: list[dict[str, str]] = [{"split": "gpt2"}]
SPLITS += [{"split": one, "digits": digits} for one in ("llama3", "o200k") for digits in ("single", "left", "right")]
FAST = SPLITS[0], {"split": "llama3", "digits": "single"}, {"split": "o200k", "digits": "left"}
CHARACTERS = "aZÉßǅकिต่ក្한漢あ🙂👩\u200d\u200c\u0301\ufe0f1٣½ \n\r\t\u00a0\u3000.'/-s"


def trained(settings: dict[str, str]) -> str:
    config = TokenizerConfig.model_validate({"vocab_size": 700, **settings})
    return train([" ".join(PROBES), CHARACTERS * 2] * 3, config).to_str()


@pytest.mark.parametrize("settings", SPLITS, ids=" ".join)
def test_every_split_is_encoded_fast_with_equal_tokens_or_by_the_reference(settings: dict[str, str]) -> None:
    pytest.importorskip("gigatoken", reason="gigatoken is not installed: encoding takes tokenizers")
    encoder = open_encoder(trained(settings))
    assert encoder.is_fast == (settings in FAST)
    assert bool(encoder.slow_because) != encoder.is_fast
    draw = random.Random(7)
    texts = ["".join(draw.choices(CHARACTERS, k=draw.randint(0, 30))) for _ in range(1500)]
    reference = ReferenceEncoder(trained(settings))
    assert encoded(encoder, texts) == encoded(reference, texts)
    for text, tokens in zip(texts, encoded(encoder, texts), strict=True):
        assert reference.tokenizer.decode(tokens) == text


def test_texts_in_a_slice_of_an_array_are_encoded_as_texts_of_their_own() -> None:
    texts = pa.array(["left out", *HOSTILE, "", "naïve", "left out"], pa.string())
    encoder = open_encoder(MADE)
    assert encoder.encode(texts[1:-1]).to_pylist() == encoded(encoder, texts[1:-1].to_pylist())
    assert encoder.encode(texts[:0]).to_pylist() == []


class Wrong:
    """Differs from the reference on texts with a certain word."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.reference = ReferenceEncoder(MADE)

    def encode(self, texts: pa.StringArray) -> pa.LargeListArray:
        found = zip(texts.to_pylist(), self.reference.encode(texts).to_pylist(), strict=True)
        return pa.array([one[:-1] if self.word in text else one for text, one in found], pa.large_list(pa.uint32()))


def test_an_encoder_that_differs_on_a_probe_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    encoder = VerifiedEncoder(Wrong("naïve"), ReferenceEncoder(MADE))
    assert not encoder.is_fast
    assert "differs from tokenizers on 'naïve" in caplog.text
    assert encoded(encoder, ["naïve"]) == encoded(ReferenceEncoder(MADE), ["naïve"])


def test_an_encoder_that_differs_on_a_checked_document_is_replaced_before_anything_is_encoded() -> None:
    encoder = VerifiedEncoder(Wrong("rare"), ReferenceEncoder(MADE))
    texts = ["one", "a rare word", "another rare word"]
    encoder.check(pa.array(texts[:1]))
    assert encoder.is_fast
    encoder.check(pa.array(texts[2:]))
    assert not encoder.is_fast
    assert encoded(encoder, texts) == encoded(ReferenceEncoder(MADE), texts)


def test_only_the_beginning_of_a_long_document_is_compared() -> None:
    encoder = VerifiedEncoder(Wrong("rare"), ReferenceEncoder(MADE))
    encoder.check(pa.array(["a" * 20_000 + "rare"]))
    assert encoder.is_fast
