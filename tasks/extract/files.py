"""File sources: which local files they take, and their files as rows.

Reads files outside the store, used by `stage`. The same files give the same rows on every machine: a document's URL
names the source and the path below the fixed folder of the pattern, not where that folder stands.
"""

import email.parser
import email.policy
import fnmatch
import glob
import json
import os
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import InputError
from tasks.extract.captures import payload_digest, read_warc
from tasks.extract.charset import decode
from tasks.extract.config import ExtractConfig, FileSource
from tasks.extract.row import Content, Rejected, Row
from tasks.text import clean, hash64

_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
ONE_ROW_KINDS = ("text", "metadata")
"""Kinds of sources whose files are one row each."""

_MAGIC = "*?["
_PLACEHOLDERS = {"{stdlib}": "stdlib", "{site_packages}": "purelib"}


@dataclass(frozen=True)
class LocalFile:
    """One file of a source: where it stands, what it is called in the corpus, and its size in bytes."""

    path: str
    name: str
    bytes: int


def find_files(source: FileSource) -> list[LocalFile]:
    """Returns the files of a source in name order.

    Raises:
        InputError: the pattern is not absolute or matches no file.
    """
    pattern = source.path
    for placeholder, name in _PLACEHOLDERS.items():
        pattern = pattern.replace(placeholder, sysconfig.get_path(name))
    folder = _fixed_folder(pattern)
    where = f'the pattern "{source.path}" of the file source "{source.name}"'
    if not os.path.isabs(pattern):
        raise InputError(f"{where} is not absolute", "begin it with /, {stdlib} or {site_packages}")
    found = [_local(path, folder) for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    kept = [file for file in found if not any(fnmatch.fnmatch(file.name, glob_) for glob_ in source.exclude)]
    if not kept:
        raise InputError(f"{where} matches no file below {folder}", "correct it, or remove the source from the recipe")
    return sorted(_sample(kept, source), key=lambda file: file.name)


def _fixed_folder(pattern: str) -> str:
    steps = pattern.split("/")
    fixed = next((i for i, step in enumerate(steps) if any(char in step for char in _MAGIC)), len(steps) - 1)
    return "/".join(steps[:fixed]) or "/"


def _local(path: str, folder: str) -> LocalFile:
    return LocalFile(path, os.path.relpath(path, folder).replace(os.sep, "/"), os.path.getsize(path))


def _sample(files: list[LocalFile], source: FileSource) -> list[LocalFile]:
    if source.max_files is None and source.max_bytes is None:
        return files
    # By hash of the name: a sample of the whole tree, not its first folders, and the same one on every machine.
    ordered = sorted(files, key=lambda file: (hash64(file.name), file.name))[: source.max_files]
    taken, total = [], 0
    for file in ordered:
        total += file.bytes
        if source.max_bytes is not None and total > source.max_bytes:
            break
        taken.append(file)
    return taken or ordered[:1]


def read_file(file: LocalFile, source: FileSource, config: ExtractConfig) -> Iterator[Row]:
    """Yields the rows of one file, in file order; raises InputError when the file itself cannot be read."""
    try:
        yield from _READERS[source.kind](file, source, config)
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f'{file.path} of the file source "{source.name}" cannot be read ({error})', "mend it, or exclude it"
        ) from error


def _url(source: FileSource, file: LocalFile) -> str:
    # By bytes: a file name need not be text.
    return f"file://{source.name}/{quote(os.fsencode(file.name))}"


def _whole_file(
    to_content: Callable[[bytes, LocalFile], Content], file: LocalFile, source: FileSource, config: ExtractConfig
) -> Iterator[Row]:
    if file.bytes > source.max_file_bytes:
        yield Row(_url(source, file), source.name, refused="too_large")
        return
    with open(file.path, "rb") as handle:
        data = handle.read()
    yield Row(
        url=_url(source, file),
        source=source.name,
        content=partial(to_content, data, file),
        payload_digest=payload_digest(data),
    )


def _plain(data: bytes, file: LocalFile) -> Content:
    if b"\0" in data:
        raise Rejected("binary")
    return Content(text=clean(decode(data)), title=clean(file.name))


def _metadata(data: bytes, file: LocalFile) -> Content:
    """Reads a `METADATA` file (core metadata, PEP 566): the summary, then the description as it is written."""
    message = email.parser.Parser(policy=email.policy.compat32).parsestr(decode(data, "utf-8"))
    body = message.get_payload()
    text = body if isinstance(body, str) and body.strip() else _unfolded(str(message.get("Description", "")))
    if not text.strip():
        raise Rejected("no_description")
    summary = str(message.get("Summary", ""))
    title = " ".join(str(message.get("Name", file.name)).split())
    return Content(text=clean(f"{title}: {summary}\n\n{text}" if summary else text), title=title)


def _unfolded(description: str) -> str:
    """Undoes the folding of a description that stands in a header: eight spaces or seven and a bar."""
    return "\n".join(line.removeprefix("       |").removeprefix("        ") for line in description.split("\n"))


def _json_lines(file: LocalFile, source: FileSource, config: ExtractConfig) -> Iterator[Row]:
    with pa.OSFile(file.path) as raw, _opened(raw, file.path) as stream:
        for number, line in enumerate(_lines(stream, config.max_payload_bytes)):
            if line is None:
                yield Row(f"{_url(source, file)}#{number}", source.name, refused="too_large")
            elif line.strip():
                yield _record(_parsed(line), number, file, source)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _opened(raw: pa.NativeFile, path: str) -> pa.NativeFile:
    codec = _CODECS.get(os.path.splitext(path)[1])
    return pa.CompressedInputStream(raw, codec) if codec else raw


def _lines(stream: pa.NativeFile, limit: int) -> Iterator[bytes | None]:
    """Yields lines without their end; None for a line longer than `limit`, which is not kept in memory."""
    parts: list[bytes] = []
    size = 0
    while block := stream.read(1 << 20):
        *whole, rest = block.split(b"\n")
        for end in whole:
            yield b"".join([*parts, end]) if size + len(end) <= limit else None
            parts, size = [], 0
        size += len(rest)
        parts = [*parts, rest] if size <= limit else []
    if size:
        yield b"".join(parts) if size <= limit else None


def _parquet_rows(file: LocalFile, source: FileSource, config: ExtractConfig) -> Iterator[Row]:
    with pq.ParquetFile(file.path) as parquet:
        names = set(parquet.schema_arrow.names)
        if source.text_field not in names:
            raise InputError(
                f'{file.path} has no column "{source.text_field}" (it has: {", ".join(sorted(names))})',
                f'set text_field of the file source "{source.name}"',
            )
        columns = [name for name in (source.text_field, source.url_field) if name in names]
        number = 0
        for batch in parquet.iter_batches(batch_size=1024, columns=columns):
            for held in batch.to_pylist():
                yield _record(held, number, file, source)
                number += 1


def _record(held: Any, number: int, file: LocalFile, source: FileSource) -> Row:
    place = f"{_url(source, file)}#{number}"
    if not isinstance(held, Mapping):
        return Row(place, source.name, refused="json_malformed")
    text = held.get(source.text_field)
    if not isinstance(text, str):
        return Row(place, source.name, refused="no_text")
    url = held.get(source.url_field)
    return Row(
        url=clean(url) if isinstance(url, str) and url.strip() else place,
        source=source.name,
        content=partial(_row_text, text),
        payload_digest=payload_digest(text.encode("utf-8", "surrogatepass")),
    )


def _row_text(text: str) -> Content:
    return Content(text=clean(text))


def _captures(file: LocalFile, source: FileSource, config: ExtractConfig) -> Iterator[Row]:
    with open(file.path, "rb") as handle:
        yield from read_warc(handle, f"{source.name}/{file.name}", source.name, config)


_READERS: dict[str, Callable[[LocalFile, FileSource, ExtractConfig], Iterator[Row]]] = {
    "text": partial(_whole_file, _plain),
    "metadata": partial(_whole_file, _metadata),
    "jsonl": _json_lines,
    "parquet": _parquet_rows,
    "warc": _captures,
}
