"""Counting of tokens with a tokenizer of the store."""

import os
from collections.abc import Sequence
from functools import lru_cache

from tokenizers import Tokenizer

from tasks.stages.chunks.units import Count

FILE = "tokenizer.json"


@lru_cache(maxsize=2)
def counter(tokenizer_json: str) -> Count:
    """Returns a function that counts the tokens of texts; cached per process, as loading takes a while.

    Special tokens are counted as the characters that they are in a text.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # parts use all cores already
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.encode_special_tokens = True

    def count(texts: Sequence[str]) -> list[int]:
        return [len(one) for one in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    return count
