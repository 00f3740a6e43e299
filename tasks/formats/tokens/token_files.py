"""Token files from elsewhere: documents that are tokens already, from Megatron-LM or Hugging Face.

Reads `.idx` with the `.bin` beside it (Megatron-LM), Parquet, or the Arrow streams of `Dataset.save_to_disk`. Where a
file names its documents by `id` and `url`, as exports of Sluice do, both are kept; elsewhere the URL names the file and
the place in it, and the id is a hash of URL and tokens.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.errors import InputError
from tasks.formats.documents.document import document_id
from tasks.formats.documents.external_files import SourceFile
from tasks.formats.tokens.megatron import TokenFile

_ID = re.compile(r"[0-9a-f]{32}")
_BATCH_ROWS = 1024

SUFFIXES = (".idx", ".parquet", ".arrow")


class TokenDocument(NamedTuple):
    """One document of a token file."""

    uid: bytes
    url: str
    tokens: NDArray[Any]
    """Integers of the file's own type, shape (n,)."""


def read(file: SourceFile, source: str, column: str) -> Iterator[TokenDocument]:
    """Yields the documents of a file in order.

    Args:
        file: a file whose name ends in one of SUFFIXES.
        source: name of the source, the host in the URLs of documents that have none.
        column: column with the tokens, in a table.

    Raises:
        InputError: the file is not readable, or has no such column.
    """
    rows = _megatron(file) if file.name.endswith(".idx") else _table(file, column)
    for number, (doc_id, url, tokens) in enumerate(rows):
        named = url or f"file://{source}/{file.name}#{number}"
        yield TokenDocument(bytes.fromhex(doc_id or _id(named, tokens)), named, tokens)


def _id(url: str, tokens: NDArray[Any]) -> str:
    digest = hashlib.blake2b(tokens.astype("<u4").tobytes(), digest_size=16).hexdigest()
    return document_id(url, f"tokens:{digest}")


def _megatron(file: SourceFile) -> Iterator[tuple[str, str, NDArray[Any]]]:
    if "://" in file.path:  # a fetched copy would have no .bin beside it
        raise InputError(f"{file.path}: Megatron files are read from a local disk", "copy both files to a local folder")
    path = Path(file.path)
    tokens = TokenFile.open(str(path))
    named = path.with_suffix(".documents.parquet")
    columns = parquet.read(str(named), ["id", "url"]).to_pydict() if named.exists() else None
    if columns and len(columns["id"]) != len(tokens.length):
        raise InputError(f"{named} does not have one row per document of {path.name}", "remove it or restore it")
    for row, (begin, length) in enumerate(zip(tokens.begin.tolist(), tokens.length.tolist(), strict=True)):
        doc_id, url = (columns["id"][row], columns["url"][row]) if columns else ("", "")
        yield _checked(doc_id), url, tokens.tokens[begin : begin + length]


def _table(file: SourceFile, column: str) -> Iterator[tuple[str, str, NDArray[Any]]]:
    for batch in _batches(file):
        names = batch.schema.names
        if column not in names:
            raise InputError(
                f'{file.path} has no column "{column}" but {", ".join(names)}', "name the one that holds the tokens"
            )
        kind = batch.schema.field(column).type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_integer(kind.value_type):
            raise InputError(f'{file.path}: the column "{column}" holds {kind}, not lists of integers', "name another")
        ids, urls = (batch.column(name).to_pylist() if name in names else [""] * len(batch) for name in ("id", "url"))
        for row, (doc_id, url) in enumerate(zip(ids, urls, strict=True)):
            scalar = batch.column(column)[row]
            if scalar.values is None:
                raise InputError(f'{file.path}: a row has no tokens in "{column}"', "leave these rows out")
            yield _checked(doc_id), url if isinstance(url, str) else "", scalar.values.to_numpy(zero_copy_only=False)


def _batches(file: SourceFile) -> Iterator[pa.RecordBatch]:
    path = file.local()
    if file.name.endswith(".parquet"):
        with parquet.opened(path) as opened:
            yield from opened.iter_batches(_BATCH_ROWS)
        return
    try:
        with pa.memory_map(path) as mapped:
            yield from pa.ipc.open_stream(mapped)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{file.path} is no Arrow stream ({error})", "name files of a saved dataset") from None


def _checked(doc_id: Any) -> str:
    """Returns an id of this form, or "" for ids of other kinds."""
    return doc_id if isinstance(doc_id, str) and _ID.fullmatch(doc_id) else ""
