"""Import of tokenized documents and of existing tokenizers.

Reads the token files of a recipe (`tasks.formats.tokens.token_files`), which bypass filters and deduplication, and
checks that they match the tokenizer. Reads the `tokenizer.json` of an existing tokenizer (Hugging Face), and checks
that it is lossless; and the chat template beside it, as `import-model` publishes it.
"""

import json
import unicodedata
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.core.errors import InputError
from tasks.core.store import exists_outside, read_outside
from tasks.formats.documents.external_files import SourceFile, find
from tasks.formats.tokens import token_files
from tasks.formats.tokens.shard import TokenFormat
from tasks.formats.tokens.token_files import TokenDocument
from tasks.stages.tokens import EncodeConfig
from tasks.stages.tokens.encoder import PROBES, ReferenceEncoder, open_reference
from tasks.trainer.interchange.chat_template import FILE as CHAT_TEMPLATE

SETTINGS = "tokenizer_config.json"
_COMPARED_DOCUMENTS = 64
"""Number of documents at the beginning of a file that are decoded and encoded again."""


class TokenSource(NamedTuple):
    """One token file of a source."""

    source: str
    file: SourceFile
    column: str


class ImportedDocument(NamedTuple):
    """A document, its tokens with end-of-text in the dtype of the shards, and the number of UTF-8 bytes of its text."""

    document: TokenDocument
    tokens: NDArray[Any]
    n_bytes: int


def find_files(config: EncodeConfig) -> list[TokenSource]:
    """Returns the token files of all sources, sorted by source and name; raises InputError if a source has none."""
    sources = []
    for setting in sorted(config.token_files, key=lambda setting: setting.name):
        files = find(setting.path, f'the token files "{setting.name}"')
        if invalid := [file.path for file in files if not file.name.endswith(token_files.SUFFIXES)]:
            suffixes = ", ".join(token_files.SUFFIXES)
            raise InputError(f"{invalid[0]} is not a token file", f"name files that end in {suffixes}")
        sources += [TokenSource(setting.name, file, setting.column) for file in files]
    return sources


def names(source: TokenSource) -> Iterator[tuple[bytes, str]]:
    """Yields id and URL of the documents of a file, in the order of `documents`; raises InputError."""
    for row in token_files.read(source.file, source.source, source.column):
        yield row.uid, row.url


def documents(source: TokenSource, fmt: TokenFormat, tokenizer_json: str) -> Iterator[ImportedDocument]:
    """Yields the documents of a file.

    Raises:
        InputError: the file is not readable, has tokens beyond the vocabulary, or was made with another tokenizer.
    """
    reference = open_reference(tokenizer_json)
    rows = token_files.read(source.file, source.source, source.column)
    first = [_check_vocabulary(row, source, fmt) for row in islice(rows, _COMPARED_DOCUMENTS)]
    _compare(first, source, fmt, reference)
    for row in chain(first, (_check_vocabulary(row, source, fmt) for row in rows)):
        plain = row.tokens[:-1] if len(row.tokens) and row.tokens[-1] == fmt.eos_id else row.tokens
        tokens = np.append(plain, fmt.eos_id).astype(fmt.dtype)
        yield ImportedDocument(row, tokens, len(_text(reference.tokenizer, plain).encode()))


def _check_vocabulary(row: TokenDocument, source: TokenSource, fmt: TokenFormat) -> TokenDocument:
    if len(row.tokens) and not 0 <= int(row.tokens.min()) <= int(row.tokens.max()) < fmt.vocab_size:
        worst = int(row.tokens.max() if row.tokens.min() >= 0 else row.tokens.min())
        raise InputError(
            f"{source.file.path}: {row.url} has the token {worst}, outside the vocabulary of {fmt.vocab_size:,}",
            "import the tokenizer of the file ([tokenizer] file)",
        )
    return row


def _compare(rows: list[TokenDocument], source: TokenSource, fmt: TokenFormat, reference: ReferenceEncoder) -> None:
    """Checks that most documents have the same tokens after decoding and encoding; a few may have been cut."""
    plain = [row.tokens[row.tokens != fmt.eos_id] for row in rows]
    texts = [_text(reference.tokenizer, tokens) for tokens in plain]
    encoded = reference.encode(pa.array(texts, pa.string())).to_pylist()
    differing = [text for text, tokens, other in zip(texts, plain, encoded, strict=True) if tokens.tolist() != other]
    if len(differing) > len(rows) / 2:
        raise InputError(
            f"{source.file.path} was made with another tokenizer: of its first {len(rows)} documents {len(differing)} "
            f"have other tokens after decoding and encoding; one begins with {differing[0][:60]!r}",
            "import its tokenizer ([tokenizer] file), or remove the file",
        )


def _text(tokenizer: Tokenizer, tokens: NDArray[Any]) -> str:
    return str(tokenizer.decode(tokens.tolist(), skip_special_tokens=False))


def read(path: str, end_of_text: str) -> str:
    """Returns the content of a tokenizer file unchanged, after checks.

    Args:
        path: a local path or a URL of an object store.
        end_of_text: the token that ends a document.

    Raises:
        InputError: the file cannot be read or is not a tokenizer, the tokenizer loses or changes text, its ids have
            gaps, or it does not have the end-of-text token.
    """
    try:
        text = read_outside(path).decode()
        tokenizer = ReferenceEncoder(text).tokenizer
    except OSError as error:
        raise InputError(f"[tokenizer] file: {path} cannot be read ({error})", "correct the path") from None
    except Exception as error:  # tokenizers raises bare Exceptions
        raise InputError(
            f"[tokenizer] file: {path} is not a Hugging Face tokenizer ({str(error)[:200]})", "name a tokenizer.json"
        ) from None
    check_ids(tokenizer, f"[tokenizer] file: {path}")
    _check_end_of_text(tokenizer, path, end_of_text)
    check_lossless(tokenizer, f"[tokenizer] file: {path}")
    return text


def beside(path: str) -> list[str]:
    """Returns the paths of chat template and settings beside a tokenizer file; [] if it has no chat template."""
    folder = path.rpartition("/")[0]
    paths = [f"{folder}/{name}" for name in (CHAT_TEMPLATE, SETTINGS)]
    return paths if all(exists_outside(one) for one in paths) else []


def read_beside(path: str, end_of_text: str) -> tuple[str, dict[str, Any]]:
    """Returns the chat template beside a tokenizer file, "" if there is none, and the settings of the tokenizer.

    The settings are the end-of-text token, and for a chat template the tokens that it names.
    """
    settings: dict[str, Any] = {"eos_token": end_of_text}
    if not (paths := beside(path)):
        return "", settings
    template, stated = (read_outside(one).decode() for one in paths)
    named = {name: value for name, value in json.loads(stated).items() if name in ("bos_token", "stop_tokens")}
    return template, named | settings


def check_ids(tokenizer: Tokenizer, where: str) -> None:
    """Raises InputError, about the tokenizer of `where`, if its ids have gaps."""
    size, last = tokenizer.get_vocab_size(), max(tokenizer.get_vocab().values(), default=-1)
    if last != size - 1:  # a model has a row for each of 0 .. size - 1
        raise InputError(
            f"{where} has {size:,} entries but ids up to {last:,}",
            "number the entries without gaps",
        )


def _check_end_of_text(tokenizer: Tokenizer, path: str, end_of_text: str) -> None:
    special = special_tokens(tokenizer)
    if end_of_text not in special:
        # Encoding reads special tokens as plain characters; any other entry could occur in a text.
        names = ", ".join(special[:10]) or "none"
        raise InputError(
            f"[tokenizer] file: {path} has no special token {end_of_text}",
            f"set [tokenizer] end_of_text; its special tokens are: {names}",
        )


def special_tokens(tokenizer: Tokenizer) -> list[str]:
    """Returns the special tokens, sorted."""
    return sorted(token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special)


def check_lossless(tokenizer: Tokenizer, where: str) -> None:
    """Raises InputError, about the tokenizer of `where`, if a text changes when it is encoded and decoded.

    A tokenizer can normalize to NFC, as Qwen's does: the texts of documents are in NFC.
    """
    composes = json.loads(tokenizer.to_str()).get("normalizer") == {"type": "NFC"}
    for text in PROBES:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        if decoded != (unicodedata.normalize("NFC", text) if composes else text):
            raise InputError(
                f"{where} is not byte-level: {text[:40]!r} is decoded as {decoded[:40]!r}",
                "name a tokenizer with byte-level pieces and decoder and no normalizer except NFC, like that of GPT-2, "
                "Llama 3 or Qwen",
            )
