"""Encoding of texts to token ids with the fastest installed encoder that gives the same tokens as the reference.

The reference is `tokenizers` (Hugging Face), with about 1.5 MB of English per CPU-second (0.9 of many languages).
`gigatoken`, if installed, encodes 120 (34). It has the splits `gpt2`, `llama3` with single digits, and `o200k` with
digits from the left built in; others and unigram tokenizers are encoded by the reference. Its tokens are compared with
the reference on probe texts, and before each part on documents selected by a hash; after a difference the reference is
used for the whole part, so that shards do not depend on the installed encoder.

Texts and tokens are Arrow arrays: gigatoken reads and writes their buffers, and no document becomes a Python object.

Special tokens are not parsed from text: "<|endoftext|>" in a page is encoded as 13 characters.
"""

import importlib
import json
import logging
import os
import re
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from tasks.formats.tokens.pieces import PUBLISHED
from tasks.formats.tokens.shard import list_array

log = logging.getLogger("sluice.tokens")

_RENEW_AFTER = 256 << 20
"""Bytes of text after which the gigatoken encoder is recreated: it caches every word, which takes up to 13 bytes of
memory per byte of text."""

_REFERENCE_BATCH = 512
"""Texts in one call of `tokenizers`, whose results need many times the memory of the tokens."""

_MAX_COMPARED = 20_000
"""Maximum number of characters of a text that are compared."""

PROBES = (
    "", " ", "   leading and trailing   ", "\t\n\r\n \n\n\n", "don't I'LL we've o'clock 'tis", "1234567890 1,000.50 ١٢",
    "naïve e\u0301 ﬁ ſ ǆ Å", "日本語のテキスト 数据 한국어 ไทย", "🜚𓀀 👩\u200d👩\u200d👧 🇨🇭", "\x00\x01\x7f\u00a0\u2028",
    "हिन्दी में किताबें பள்ளிக்கூடம் ภาษาไทยที่นี่ ភាសាខ្មែរ മലയാളം ශ්‍රී می‌روم",
    "camelCase HTTPServer Ǆungla ÉCOLE ΣΊΣΥΦΟΣ HELLO'S", "1 12 123 1234 12345 123456 1234567 " + "9" * 60,
    "\u0301a \u0e34\u0301! 1\u0301 a.\u0301b", "/usr//\n/x#/\r\n\n \n",
    "a" * 3000, " " * 300, "if (x==y){return\tz;}//\n\tfor i in range(10):\n        pass", "https://a.org/?q=%20&b=1#c",
)  # fmt: skip


SLOW = {
    "not_installed": "gigatoken is not installed",
    "unknown_split": "gigatoken does not know the split or kind of the tokenizer",
    "other_tokens": "gigatoken gives other tokens",
}
"""Reasons why texts are encoded by the reference."""


class Encoder(Protocol):
    """Interface of the encoders."""

    def encode(self, texts: pa.StringArray) -> pa.LargeListArray:
        """Returns the tokens of each text, uint32, shape (texts, tokens), without an end-of-text token."""


class ReferenceEncoder:
    """Encodes with `tokenizers`, in one thread: parts already use all cores."""

    def __init__(self, tokenizer_json: str) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.tokenizer.encode_special_tokens = True  # as plain characters

    def encode(self, texts: pa.StringArray) -> pa.LargeListArray:
        """See `Encoder`."""
        tokens = []
        for first in range(0, len(texts), _REFERENCE_BATCH):
            batch = texts[first : first + _REFERENCE_BATCH].to_pylist()
            encodings = self.tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            tokens += [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        return list_array(tokens)


class GigatokenEncoder:
    """Encodes with gigatoken; texts that contain the characters of a special token are encoded by the reference.

    Raises:
        ImportError: it is not installed.
    """

    def __init__(self, tokenizer_json: str, reference: ReferenceEncoder) -> None:
        self._json = _with_published_split(tokenizer_json)
        self._module = importlib.import_module("gigatoken")
        self._awkward = importlib.import_module("awkward")  # which gigatoken requires
        self._renew()
        self._reference = reference
        special = [re.escape(token.content) for token in reference.tokenizer.get_added_tokens_decoder().values()]
        self._special = "|".join(special)

    def _renew(self) -> None:
        self._fast: Any = self._module.Tokenizer.from_json(self._json)
        self._bytes = 0

    def encode(self, texts: pa.StringArray) -> pa.LargeListArray:
        """See `Encoder`."""
        has_special = pc.match_substring_regex(texts, self._special) if self._special else None
        if has_special is None or not pc.any(has_special).as_py():
            return self._encode_plain(texts)
        plain = self._encode_plain(pc.if_else(has_special, "", texts))
        other = self._reference.encode(texts.filter(has_special))
        rows = np.arange(len(texts))
        rows[has_special.to_numpy(zero_copy_only=False)] = len(texts) + np.arange(len(other))
        return pa.concat_arrays([plain, other]).take(pa.array(rows))

    def _encode_plain(self, texts: pa.StringArray) -> pa.LargeListArray:
        if self._bytes > _RENEW_AFTER:
            self._renew()
        self._bytes += pc.sum(pc.binary_length(texts)).as_py() or 0
        encoded = self._fast.encode_batch(self._strings(texts), parallel=False).layout
        edges, tokens = np.asarray(encoded.offsets.data), np.asarray(encoded.content.data)
        return pa.LargeListArray.from_arrays(edges.astype(np.int64, copy=False), tokens)

    def _strings(self, texts: pa.StringArray) -> Any:
        """Returns the texts as an Awkward Array over the same buffers; `from_arrow` would give optional strings."""
        awkward, (_, edges, characters) = self._awkward, texts.buffers()
        offsets = np.frombuffer(edges or b"\0" * 4, np.int32)[texts.offset :][: len(texts) + 1].astype(np.int64)
        content = awkward.contents.NumpyArray(
            np.frombuffer(characters or b"", np.uint8), parameters={"__array__": "char"}
        )
        index = awkward.index.Index64(offsets)
        return awkward.Array(awkward.contents.ListOffsetArray(index, content, parameters={"__array__": "string"}))


def _with_published_split(tokenizer_json: str) -> str:
    """Returns a tokenizer with the form of its split that gigatoken knows, if there is one; the pieces are the same."""
    content = json.loads(tokenizer_json)
    for step in (content.get("pre_tokenizer") or {}).get("pretokenizers", []):
        pattern = step.get("pattern", {})
        if pattern.get("Regex") in PUBLISHED:
            pattern["Regex"] = PUBLISHED[pattern["Regex"]]
    return json.dumps(content)


class VerifiedEncoder:
    """An encoder that is compared with the reference and replaced by it after the first difference.

    Args:
        fast: the encoder to use as long as it equals the reference.
        reference: the reference encoder.
        slow_because: why `fast` is the reference, a key of SLOW; "" if it is not.
    """

    def __init__(self, fast: Encoder, reference: ReferenceEncoder, slow_because: str = "") -> None:
        self._fast: Encoder | None = fast
        self._reference = reference
        self.slow_because = slow_because
        """Why the fast encoder is not in use, a key of SLOW; "" if it is."""
        self.check(pa.array(PROBES))

    @property
    def is_fast(self) -> bool:
        """Whether the fast encoder is in use."""
        return self._fast not in (None, self._reference)

    def encode(self, texts: pa.StringArray) -> pa.LargeListArray:
        """See `Encoder`."""
        return (self._fast or self._reference).encode(texts)

    def check(self, texts: pa.StringArray) -> None:
        """Compares the beginnings of texts with the reference, and switches to the reference after a difference."""
        if self._fast is None or self._fast is self._reference:
            return
        probes = pc.utf8_slice_codeunits(texts, 0, _MAX_COMPARED)
        actual, expected = self._fast.encode(probes), self._reference.encode(probes)
        if not actual.equals(expected):
            text = next(text for text, *both in zip(probes, actual, expected, strict=True) if both[0] != both[1])
            log.warning("the fast encoder differs from tokenizers on %r...: it is not used any more", text.as_py()[:60])
            self._fast, self.slow_because = None, "other_tokens"


@lru_cache(maxsize=2)
def open_reference(tokenizer_json: str) -> ReferenceEncoder:
    """Returns the reference encoder of a tokenizer; cached per process, because loading takes 0.1 s."""
    return ReferenceEncoder(tokenizer_json)


@lru_cache(maxsize=2)
def open_encoder(tokenizer_json: str) -> VerifiedEncoder:
    """Returns the fastest verified encoder for a tokenizer; cached per process, because loading takes 0.4 s."""
    reference = open_reference(tokenizer_json)
    try:
        return VerifiedEncoder(GigatokenEncoder(tokenizer_json, reference), reference)
    except ImportError:
        return VerifiedEncoder(reference, reference, "not_installed")
    except Exception as error:  # a split or a kind of tokenizer that it does not know; the reference reads all
        log.info("gigatoken cannot read this tokenizer (%s): tokenizers is used", error)
        return VerifiedEncoder(reference, reference, "unknown_split")
