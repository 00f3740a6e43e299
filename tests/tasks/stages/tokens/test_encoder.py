"""Encoders: equal to the reference or unused; text never encodes to special tokens."""

from collections.abc import Sequence

import numpy as np
import pytest

from tasks.stages.tokens import TokenizerConfig
from tasks.stages.tokens.bpe import train
from tasks.stages.tokens.encoder import PROBES, GigatokenEncoder, ReferenceEncoder, VerifiedEncoder, open_encoder

MADE = train([" ".join(PROBES)] * 3, TokenizerConfig(vocab_size=500)).to_str()
HOSTILE = ["<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|> <|endoftext", "plain"]


def as_lists(tokens: Sequence[np.ndarray]) -> list[list[int]]:
    return [one.tolist() for one in tokens]


def test_a_special_token_in_a_text_is_read_as_characters() -> None:
    encoder = open_encoder(MADE)
    tokenizer = ReferenceEncoder(MADE).tokenizer
    for text, tokens in zip(HOSTILE, encoder.encode(HOSTILE), strict=True):
        assert 0 not in tokens
        assert tokenizer.decode(tokens.tolist()) == text


def test_gigatoken_gives_the_same_tokens_as_the_reference() -> None:
    pytest.importorskip("gigatoken", reason="gigatoken is not installed: encoding takes tokenizers")
    reference = ReferenceEncoder(MADE)
    texts = [*PROBES, *HOSTILE]
    assert as_lists(GigatokenEncoder(MADE, reference).encode(texts)) == as_lists(reference.encode(texts))
    assert open_encoder(MADE).is_fast


class Wrong:
    """Differs from the reference on texts with a certain word."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.reference = ReferenceEncoder(MADE)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        found = self.reference.encode(texts)
        return [one[:-1] if self.word in text else one for text, one in zip(texts, found, strict=True)]


def test_an_encoder_that_differs_on_a_probe_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    encoder = VerifiedEncoder(Wrong("naïve"), ReferenceEncoder(MADE))
    assert not encoder.is_fast
    assert "differs from tokenizers on 'naïve" in caplog.text
    assert as_lists(encoder.encode(["naïve"])) == as_lists(ReferenceEncoder(MADE).encode(["naïve"]))


def test_an_encoder_that_differs_on_a_checked_document_is_replaced_before_anything_is_encoded() -> None:
    encoder = VerifiedEncoder(Wrong("rare"), ReferenceEncoder(MADE))
    texts = ["one", "a rare word", "another rare word"]
    encoder.check(texts[:1])
    assert encoder.is_fast
    encoder.check(texts[2:])
    assert not encoder.is_fast
    assert as_lists(encoder.encode(texts)) == as_lists(ReferenceEncoder(MADE).encode(texts))


def test_only_the_beginning_of_a_long_document_is_compared() -> None:
    encoder = VerifiedEncoder(Wrong("rare"), ReferenceEncoder(MADE))
    encoder.check(["a" * 20_000 + "rare"])
    assert encoder.is_fast
