"""Documents that are tokens already: selection and checks of the token files of a recipe.

Reads the files (`tasks.formats.tokens.token_files`). Neither a filter nor dedup has seen them.
"""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.core.errors import InputError
from tasks.formats.external_files import SourceFile, find
from tasks.formats.tokens import token_files
from tasks.formats.tokens.shard import TokenFormat
from tasks.formats.tokens.token_files import TokenDocument
from tasks.stages.tokens.config import EncodeConfig
from tasks.stages.tokens.encoder import Reference

_COMPARED = 64
"""Documents at the beginning of a file that are decoded and encoded again."""


class TokenSource(NamedTuple):
    """One token file of a source."""

    source: str
    file: SourceFile
    column: str


class Imported(NamedTuple):
    """One document: its tokens with end-of-text, in the type of the shards, and the UTF-8 bytes of its text."""

    document: TokenDocument
    tokens: NDArray[Any]
    n_bytes: int


def find_files(config: EncodeConfig) -> list[TokenSource]:
    """Returns the token files of all sources, sorted by source and name; raises InputError where there is none."""
    found = []
    for given in sorted(config.token_files, key=lambda one: one.name):
        files = find(given.path, f'the token files "{given.name}"')
        if foreign := [file.path for file in files if not file.name.endswith(token_files.SUFFIXES)]:
            known = ", ".join(token_files.SUFFIXES)
            raise InputError(f"{foreign[0]} is no token file", f"name files that end in {known}")
        found += [TokenSource(given.name, file, given.column) for file in files]
    return found


def documents(given: TokenSource, fmt: TokenFormat, tokenizer_json: str) -> Iterator[Imported]:
    """Yields the documents of a file.

    Raises:
        InputError: the file is not readable, has tokens beyond the vocabulary, or was made with another tokenizer.
    """
    reference = Reference(tokenizer_json)
    rows = token_files.read(given.file, given.source, given.column)
    first = [_checked(row, given, fmt) for row in islice(rows, _COMPARED)]
    _compare(first, given, fmt, reference)
    for row in chain(first, (_checked(row, given, fmt) for row in rows)):
        plain = row.tokens[:-1] if len(row.tokens) and row.tokens[-1] == fmt.eos_id else row.tokens
        tokens = np.append(plain, fmt.eos_id).astype(fmt.dtype)
        yield Imported(row, tokens, len(_text(reference.tokenizer, plain).encode()))


def _checked(row: TokenDocument, given: TokenSource, fmt: TokenFormat) -> TokenDocument:
    if len(row.tokens) and not 0 <= int(row.tokens.min()) <= int(row.tokens.max()) < fmt.vocab_size:
        worst = int(row.tokens.max() if row.tokens.min() >= 0 else row.tokens.min())
        raise InputError(
            f"{given.file.path}: {row.url} has the token {worst}, outside the vocabulary of {fmt.vocab_size:,}",
            "import the tokenizer that the file was made with ([tokenizer] file)",
        )
    return row


def _compare(rows: list[TokenDocument], given: TokenSource, fmt: TokenFormat, reference: Reference) -> None:
    """Checks that most texts of some documents are encoded to the same tokens again; a few may have been cut."""
    plain = [row.tokens[row.tokens != fmt.eos_id] for row in rows]
    texts = [_text(reference.tokenizer, tokens) for tokens in plain]
    again = reference.encode(texts)
    differing = [
        text for text, tokens, other in zip(texts, plain, again, strict=True) if not np.array_equal(tokens, other)
    ]
    if len(differing) > len(rows) / 2:
        raise InputError(
            f"{given.file.path} was made with another tokenizer: of its first {len(rows)} documents {len(differing)} "
            f"have other tokens when they are decoded and encoded again; one reads {differing[0][:60]!r}",
            "import its tokenizer ([tokenizer] file), or leave the file out",
        )


def _text(tokenizer: Tokenizer, tokens: NDArray[Any]) -> str:
    return str(tokenizer.decode(tokens.tolist(), skip_special_tokens=False))
