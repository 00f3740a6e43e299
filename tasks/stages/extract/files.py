"""Reads the files of sources as rows.

Reads files of the crawl, and files outside the store, compressed or not. The same files give the same rows on every
machine: the URL of a document consists of the source and the path below the fixed folder of the pattern, and does not
depend on the location of that folder; in a dataset of the hub it consists of the source, the dataset and the path in
it. The fields of a row other than text and URL are its metadata, one JSON object; equal rows give equal bytes.

Rows that are not JSON objects, or have no text, are rejected individually with a reason.
"""

import base64
import bz2
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from functools import partial
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from tasks.core import parquet
from tasks.core.clients import hub
from tasks.core.errors import InputError
from tasks.formats.documents.external_files import ZIP, SourceFile, codec_of
from tasks.formats.documents.json_rows import rows as json_rows
from tasks.formats.documents.parquet_rows import doubled, plain_fields, text_of
from tasks.formats.documents.text import clean
from tasks.formats.lakes.table import TableFile
from tasks.formats.warc.record import payload_digest, quick_digest
from tasks.formats.warc.wacz import warc_members
from tasks.formats.web.media_type import XHTML
from tasks.formats.web.url import MAX_CAPTURED_URL
from tasks.stages.extract.captures import read_warc
from tasks.stages.extract.config import HTML, ORIGIN, WARC, ArchiveFiles, ExtractConfig, FileSource, MessageFiles
from tasks.stages.extract.content import BodyHeaders, extract_capture, extract_metadata, extract_row, extract_text
from tasks.stages.extract.parser import parse_body
from tasks.stages.extract.partitioning import explain_read_errors, open_piece
from tasks.stages.extract.row import Content, ExtractOptions, InputRow
from tasks.stages.extract.sources import PARQUET_KINDS, CrawledFile, InputUnit

_ROWS_AT_ONCE = 16


def read_unit(unit: InputUnit, config: ExtractConfig, *, quick: bool = False) -> Iterator[InputRow]:
    """Yields the rows of one unit, in file order.

    Args:
        unit: a file, or a piece of a file of rows.
        config: settings of the extraction.
        quick: whether only identities are needed; see `captures.read_warc`.

    Raises:
        InputError: the file cannot be read.
    """
    if unit.crawl is not None:
        yield from _crawled(unit, unit.crawl, config, quick)
        return
    readers = {"jsonl": _json_rows, WARC: _captures, **dict.fromkeys(PARQUET_KINDS, _parquet_rows)}
    with explain_read_errors(unit):
        yield from readers.get(unit.source.kind, _whole_file)(unit, config, quick)


def _crawled(unit: InputUnit, crawl: CrawledFile, config: ExtractConfig, quick: bool) -> Iterator[InputRow]:
    path, readable = unit.file.path, 0
    with crawl.store.open(path) as file:
        for row in read_warc(file, path, unit.source.name, config, quick=quick, own=bool(crawl.index)):
            readable += not row.damaged
            yield row
    # Damage in external files is tolerated; a file of the crawl was complete when it was published.
    if readable != crawl.records:
        raise InputError(
            f"{crawl.store.url(path)}: {crawl.records} captures were published, {readable} can be read",
            "the file was damaged later: restore it, or crawl again as another version",
        )


def _url(unit: InputUnit) -> str:
    name = unit.file.name
    if hub.is_hub(unit.file.path):
        # Without the commit: a row that the next commit has unchanged is the same document.
        path = hub.parse(unit.file.path)
        name = f"{path.name}/{path.path}"
    return f"file://{unit.source.name}/{_quoted(name)}"


def _quoted(name: str) -> str:
    return quote(os.fsencode(name))  # as bytes, because a file name may be invalid UTF-8


def _whole_file(unit: InputUnit, config: ExtractConfig, quick: bool) -> Iterator[InputRow]:
    url, file, source = _url(unit), unit.file, unit.source
    if file.bytes > source.max_file_bytes:
        yield InputRow(url, source.name, refused="too_large")
        return
    try:
        data = _unpacked(file, source.max_file_bytes + 1)
    except _CompressionError:
        yield InputRow(url, source.name, refused="content_coding")
        return
    if len(data) > source.max_file_bytes:
        yield InputRow(url, source.name, refused="too_large")
        return
    to_content: Callable[[bytes, str], Content]
    if source.kind == HTML:
        to_content = partial(_page, options=config.options())
    elif source.kind in _OF_FILE:
        to_content = _OF_FILE[source.kind]
    else:
        settings = json.dumps(config.parsers[source.kind])
        to_content = partial(parse_body, source.kind, settings, form=config.text, most_rows=config.max_table_rows)
    yield InputRow(
        url=url,
        source=source.name,
        content=partial(to_content, data, file.name),
        size=len(data),
        payload_digest=_digest(data, quick),
    )


def _page(data: bytes, name: str, options: ExtractOptions) -> Content:
    """Returns the content of a saved page; its suffix says whether it is XHTML."""
    stem = os.path.splitext(name)[0] if codec_of(name) else name
    is_xhtml = stem.lower().endswith((".xhtml", ".xht"))
    return extract_capture(data, BodyHeaders("", (XHTML if is_xhtml else "text/html",)), options)


class _CompressionError(Exception):
    """A compressed file cannot be decompressed."""


def _unpacked(file: SourceFile, limit: int) -> bytes:
    with pa.OSFile(file.local()) as raw:
        packing = file.packing()
        if packing in (None, ZIP):  # zip archives are not unpacked, since their members can be anything
            return bytes(raw.read(limit))
        try:
            with pa.CompressedInputStream(raw, packing) as stream:
                return bytes(stream.read(limit))
        except OSError as error:
            raise _CompressionError from error


def _json_rows(unit: InputUnit, config: ExtractConfig, quick: bool) -> Iterator[InputRow]:
    with open_piece(unit) as text:
        json_texts = json_rows(text, text.form, config.max_payload_bytes)
        for number, row in enumerate(json_texts, start=unit.piece.first if unit.piece else 0):
            if row is None:
                yield InputRow(f"{_url(unit)}#{number}", unit.source.name, refused="too_large")
            elif row.strip():
                yield _record(_parsed(row), number, unit, quick)


def _parsed(row: bytes) -> Any:
    try:
        return json.loads(row)
    except (ValueError, RecursionError):
        return None


def _parquet_rows(unit: InputUnit, config: ExtractConfig, quick: bool) -> Iterator[InputRow]:
    file, source, piece = unit.file, unit.source, unit.piece
    stored, constants, ambiguous = _columns(file, source, quick)
    deleted = file.deleted_rows() if isinstance(file, TableFile) else ()
    number = piece.first if piece else 0
    text = stored.get(source.text_field)
    # Dictionary-encoded, so that a text that occurs in many rows is in memory once.
    with parquet.open_file(file.local(), [text] if text else None) as rows:
        groups = list(range(piece.start, piece.end)) if piece else None
        for batch in rows.iter_batches(batch_size=_ROWS_AT_ONCE, row_groups=groups, columns=[*stored.values()]):
            arrays = {name: batch.column(column) for name, column in stored.items()}
            for index in range(batch.num_rows):
                if number not in deleted:
                    fields = {name: array[index] for name, array in arrays.items()}
                    values = [fields[name] for name in (source.text_field, source.url_field) if name in fields]
                    if any(_bytes_of(value) > config.max_payload_bytes for value in values):
                        yield InputRow(f"{_url(unit)}#{number}", source.name, refused="too_large")
                    else:
                        row, without = plain_fields(fields)
                        yield _record(constants | row, number, unit, quick, [*ambiguous, *without])
                number += 1


def _columns(file: SourceFile, source: FileSource, quick: bool) -> tuple[dict[str, str], dict[str, Any], list[str]]:
    """Returns what to read: text, URL, and unless `quick` is set the metadata.

    Returns:
        names of columns in the file, and values of those that the file does not have, both by their name in the source;
        and the names of metadata that several columns have, none of which is read.
    """
    schema = parquet.schema(file.local())
    if isinstance(file, TableFile):
        stored, constants = file.stored_columns(schema), {one.name: one.constant for one in file.columns}
    else:
        stored, constants = {name: name for name in schema.names}, {}
    names = [*constants] if constants else schema.names
    metadata = names if source.metadata_fields is None else source.metadata_fields
    for field, required in (("text_field", (source.text_field,)), ("metadata_fields", metadata)):
        for name in required:
            if name not in names:
                raise InputError(
                    f'{file.path} has no column "{name}" (it has: {", ".join(sorted(names))})',
                    f'set {field} of the file source "{source.name}"',
                )
    needed = [*dict.fromkeys((source.text_field, source.url_field, *(() if quick else metadata)))]
    several = doubled(schema)
    ambiguous = [name for name in needed if stored.get(name) in several]
    for name in (source.text_field, source.url_field):
        if name in ambiguous:
            raise InputError(
                f'{file.path} of the file source "{source.name}" has several columns "{stored[name]}"',
                "write it with one of them, or exclude it",
            )
    columns = {name: stored[name] for name in needed if name in stored and name not in ambiguous}
    absent = {name: constants[name] for name in needed if name in constants and name not in stored}
    return columns, absent, ambiguous


def _bytes_of(value: pa.Scalar) -> int:
    plain = value.value if isinstance(value, pa.DictionaryScalar) else value
    return plain.as_buffer().size if isinstance(plain, pa.BinaryScalar) and plain.is_valid else 0


def _record(row: Any, number: int, unit: InputUnit, quick: bool, without: Sequence[str] = ()) -> InputRow:
    """Returns a row of a file; `without` names the fields that have no value in Python."""
    source, place = unit.source, f"{_url(unit)}#{number}"
    if not isinstance(row, Mapping):
        return InputRow(place, source.name, refused="json_malformed")
    fetched_at = None
    if isinstance(source, MessageFiles):
        place, fetched_at = _origin(row, source)
    try:
        text = text_of(row.get(source.text_field))
    except ValueError:
        return InputRow(place, source.name, refused="text_not_utf8")
    if not isinstance(text, str):
        refused = "text_not_utf8" if source.text_field in without else "no_text"
        return InputRow(place, source.name, refused=refused)
    url = _text_or_none(row.get(source.url_field))
    if source.url_field in without or (url is not None and len(url) > MAX_CAPTURED_URL):
        return InputRow(place, source.name, refused="url_invalid")
    try:
        metadata, left_out = ("", ()) if quick else _metadata(row, source, without)
    except RecursionError:
        return InputRow(place, source.name, refused="json_malformed")
    return InputRow(
        url=clean(url) if url and url.strip() else place,
        source=source.name,
        content=partial(extract_row, text),
        size=len(text),
        payload_digest=_digest(text.encode("utf-8", "surrogatepass"), quick),
        fetched_at=fetched_at,
        metadata=metadata,
        left_out=left_out,
    )


def _text_or_none(value: Any) -> str | None:
    try:
        text = text_of(value)
    except ValueError:
        return None
    return text if isinstance(text, str) else None


def _origin(row: Mapping[str, Any], source: FileSource) -> tuple[str, datetime | None]:
    """Returns the URL of a message without one, and its time."""
    topic, partition, offset, time = (row[ORIGIN][name] for name in ("topic", "partition", "offset", "time"))
    return f"kafka://{source.name}/{topic}/{partition}/{offset}", datetime.fromisoformat(time) if time else None


def _metadata(row: Mapping[str, Any], source: FileSource, without: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Returns the metadata of a row as JSON, and why fields were left out."""
    names = row.keys() if source.metadata_fields is None else source.metadata_fields
    fields = {name: row.get(name) for name in names if name not in (source.text_field, source.url_field)}
    text, too_long = fields_json(fields, source.max_metadata_bytes)
    reasons = {"metadata_cut": too_long, "metadata_unreadable": without}
    return text, tuple(reason for reason, left_out in reasons.items() if left_out)


def _digest(data: bytes, quick: bool) -> str:
    return quick_digest(data) if quick else payload_digest(data)


def _captures(unit: InputUnit, config: ExtractConfig, quick: bool) -> Iterator[InputRow]:
    file, source = unit.file, unit.source
    # FastWARC decompresses gzip and zstd; offsets in a bzip2 file are those in the decompressed stream.
    packing = file.packing()
    opener: Callable[..., Any] = bz2.open if packing == "bz2" else open
    name = file.name if file.name.isprintable() else _quoted(file.name)
    # The name of an archived file is its path in the store, like that of a file of the crawl.
    name = name if isinstance(source, ArchiveFiles) else f"{source.name}/{name}"
    with opener(file.local(), "rb") as handle:
        if packing != ZIP:
            yield from read_warc(handle, name, source.name, config, quick=quick)
            return
        for member, content in warc_members(handle):
            yield from read_warc(content, f"{name}/{clean(member)}", source.name, config, quick=quick)


_OF_FILE = {"text": extract_text, "metadata": extract_metadata}
"""What extracts the content of a whole file, by kind; pages are read as captures are, other kinds by parsers."""


def fields_json(fields: Mapping[str, Any], limit: int) -> tuple[str, tuple[str, ...]]:
    """Returns fields as JSON, sorted by name, and the names of the fields that were left out because of the limit.

    Numbers that are not finite become null, times ISO 8601, durations seconds, bytes base64, and other values text.

    Args:
        fields: fields by name; None values are left out.
        limit: maximum bytes of JSON; the longest fields are left out to meet it.

    Raises:
        RecursionError: a value is nested too deeply.

    >>> fields_json({"date": date(2026, 1, 2), "stars": 5, "none": None}, 100)
    ('{"date":"2026-01-02","stars":5}', ())
    >>> fields_json({"a": "x" * 99, "b": 1}, 20)
    ('{"b":1}', ('a',))
    """
    parts = {name: f"{_json(name)}:{_json(value)}" for name, value in sorted(fields.items()) if value is not None}
    size = 2 + sum(len(text.encode()) + 1 for text in parts.values())
    left_out = []
    for name in sorted(parts, key=lambda name: (-len(parts[name]), name)):
        if size <= limit:
            break
        size -= len(parts.pop(name).encode()) + 1
        left_out.append(name)
    return "{" + ",".join(parts.values()) + "}" if parts else "", tuple(sorted(left_out))


def _json(value: Any) -> str:
    try:
        text = _encoded(value)
    except ValueError:
        text = _encoded(_finite(value))
    # A JSON escape may be a lone surrogate, which UTF-8 cannot represent.
    return text.encode("utf-8", "replace").decode()


def _encoded(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
