"""Documents that are tokens already: selection and checks of the token files of a recipe.

Reads the files (`tasks.formats.tokens.token_files`). Neither a filter nor dedup has seen them.

Import of a tokenizer that was made elsewhere: `tokenizer.json` of Hugging Face.

Reads the file; returns its text as it is, if any text comes back from its tokens unchanged.
"""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.core.errors import InputError
from tasks.core.store import read_outside
from tasks.formats.documents.external_files import SourceFile, find
from tasks.formats.tokens import token_files
from tasks.formats.tokens.shard import TokenFormat
from tasks.formats.tokens.token_files import TokenDocument
from tasks.stages.tokens import EncodeConfig
from tasks.stages.tokens.encoder import PROBES, Reference

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


def read(path: str, end_of_text: str) -> str:
    """Returns the content of the file.

    Args:
        path: a local path or a URL of an object store.
        end_of_text: the token that ends a document.

    Raises:
        InputError: the file cannot be read or is no tokenizer, the tokenizer loses or changes text, its ids have gaps,
            or it has no such token.
    """
    try:
        text = read_outside(path).decode()
        tokenizer = Reference(text).tokenizer
    except OSError as error:
        raise InputError(f"[tokenizer] file: {path} cannot be read ({error})", "correct the path") from None
    except Exception as error:  # tokenizers raises bare Exceptions
        raise InputError(
            f"[tokenizer] file: {path} is no tokenizer of Hugging Face ({str(error)[:200]})", "name a tokenizer.json"
        ) from None
    _check_ids(tokenizer, path)
    _check_end_of_text(tokenizer, path, end_of_text)
    _check_lossless(tokenizer, path)
    return text


def _check_ids(tokenizer: Tokenizer, path: str) -> None:
    size, last = tokenizer.get_vocab_size(), max(tokenizer.get_vocab().values(), default=-1)
    if last != size - 1:  # a model has a row for each of 0 .. size - 1
        raise InputError(
            f"[tokenizer] file: {path} has {size:,} entries and the ids up to {last:,}",
            "number the entries without a gap",
        )


def _check_end_of_text(tokenizer: Tokenizer, path: str, end_of_text: str) -> None:
    special = sorted(token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special)
    if end_of_text not in special:
        # Encoding reads special tokens as plain characters; another entry could stand in a text.
        known = ", ".join(special[:10]) or "none"
        raise InputError(
            f"[tokenizer] file: {path} has no special token {end_of_text}",
            f"set [tokenizer] end_of_text; its special tokens are: {known}",
        )


def _check_lossless(tokenizer: Tokenizer, path: str) -> None:
    for text in PROBES:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        back = tokenizer.decode(ids, skip_special_tokens=False)
        if back != text:
            raise InputError(
                f"[tokenizer] file: {path} is not byte-level: {text[:40]!r} comes back as {back[:40]!r}",
                "name a tokenizer without normalizer whose pieces and decoder are byte-level, as of GPT-2 or Llama 3",
            )
