"""Encoding of texts to token ids with the fastest installed encoder that gives the same tokens as the reference.

The reference is `tokenizers` (Hugging Face), with about 2 MB of text per second and core. `gigatoken`, if installed,
encodes 130 MB/s. Its tokens are compared with the reference on probe texts, and before each part on documents selected
by a hash; after a difference the reference is used for the whole part, so that shards do not depend on the installed
encoder.

Special tokens are not parsed from text: "<|endoftext|>" in a page is encoded as 13 characters.
"""

import importlib
import itertools
import logging
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

log = logging.getLogger("sluice.tokens")

_RENEW_AFTER = 256 << 20
"""Characters after which the gigatoken encoder is recreated: it caches every word, which takes up to 13 bytes of memory
per byte of text."""

_MAX_COMPARED = 20_000
"""Maximum number of characters of a text that are compared."""

Tokens = NDArray[np.uint32]

PROBES = (
    "", " ", "   leading and trailing   ", "\t\n\r\n \n\n\n", "don't I'LL we've o'clock 'tis", "1234567890 1,000.50 ١٢",
    "naïve e\u0301 ﬁ ſ ǆ Å", "日本語のテキスト 数据 한국어 ไทย", "🜚𓀀 👩\u200d👩\u200d👧 🇨🇭", "\x00\x01\x7f\u00a0\u2028",
    "a" * 3000, " " * 300, "if (x==y){return\tz;}//\n\tfor i in range(10):\n        pass", "https://a.org/?q=%20&b=1#c",
)  # fmt: skip


class Encoder(Protocol):
    """Interface of the encoders."""

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Returns the tokens of each text, shape (tokens,), without an end-of-text token."""


class ReferenceEncoder:
    """Encodes with `tokenizers`, in one thread: parts already use all cores."""

    def __init__(self, tokenizer_json: str) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.tokenizer.encode_special_tokens = True  # as plain characters

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """See `Encoder`."""
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]


class GigatokenEncoder:
    """Encodes with gigatoken; texts that contain the characters of a special token are encoded by the reference.

    Raises:
        ImportError: it is not installed.
    """

    def __init__(self, tokenizer_json: str, reference: ReferenceEncoder) -> None:
        self._json = tokenizer_json
        self._module = importlib.import_module("gigatoken")
        self._renew()
        self._reference = reference
        special = [re.escape(token.content) for token in reference.tokenizer.get_added_tokens_decoder().values()]
        self._special = re.compile("|".join(special) or "(?!)")

    def _renew(self) -> None:
        self._fast: Any = self._module.Tokenizer.from_json(self._json)
        self._characters = 0

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """See `Encoder`."""
        plain = ["" if self._special.search(text) else text for text in texts]
        if self._characters > _RENEW_AFTER:
            self._renew()
        self._characters += sum(map(len, plain))
        encoded = self._fast.encode_batch(plain, parallel=False)
        flat, edges = np.asarray(encoded.layout.content.data), np.asarray(encoded.layout.offsets.data).tolist()
        tokens = [flat[first:end] for first, end in itertools.pairwise(edges)]
        for index, (text, plain_text) in enumerate(zip(texts, plain, strict=True)):
            if text != plain_text:
                tokens[index] = self._reference.encode([text])[0]
        return tokens


class VerifiedEncoder:
    """An encoder that is compared with the reference and replaced by it after the first difference.

    Args:
        fast: the encoder to use as long as it equals the reference.
        reference: the reference encoder.
    """

    def __init__(self, fast: Encoder, reference: ReferenceEncoder) -> None:
        self._fast: Encoder | None = fast
        self._reference = reference
        self.check(PROBES)

    @property
    def is_fast(self) -> bool:
        """Whether the fast encoder is in use."""
        return self._fast is not None

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """See `Encoder`."""
        return (self._fast or self._reference).encode(texts)

    def check(self, texts: Sequence[str]) -> None:
        """Compares the beginnings of texts with the reference, and switches to the reference after a difference."""
        if self._fast is None or self._fast is self._reference:
            return
        probes = [text[:_MAX_COMPARED] for text in texts]
        for text, actual, expected in zip(
            probes, self._fast.encode(probes), self._reference.encode(probes), strict=True
        ):
            if not np.array_equal(actual, expected):
                log.warning("the fast encoder differs from tokenizers on %r...: it is not used any more", text[:60])
                self._fast = None
                return


@lru_cache(maxsize=2)
def open_encoder(tokenizer_json: str) -> VerifiedEncoder:
    """Returns the fastest verified encoder for a tokenizer; cached per process, because loading takes 0.4 s."""
    reference = ReferenceEncoder(tokenizer_json)
    try:
        fast: Encoder = GigatokenEncoder(tokenizer_json, reference)
    except ImportError:
        fast = reference
    except Exception as error:  # the package is new; the reference can read every tokenizer
        log.warning("gigatoken cannot read this tokenizer (%s): tokenizers is used", error)
        fast = reference
    return VerifiedEncoder(fast, reference)
