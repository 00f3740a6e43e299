"""Files of rows that are not what their source says: most rows are no JSON, or no row has a text.

Such rows are rejected one by one, with reasons; where they are most of a file the settings or the file are wrong, and
the stage stops before it extracts anything. The first pass counts; the file is read again only to say what is wrong.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tasks.core import parquet
from tasks.core.errors import InputError
from tasks.formats.documents.external_files import SourceFile
from tasks.formats.documents.json_rows import rows as json_rows
from tasks.stages.extract.config import FileSource
from tasks.stages.extract.partitioning import readable, window
from tasks.stages.extract.row import Row

Tally = Counter[tuple[str, str, str]]
"""Numbers of rows by source, path of the file, and reason ("" for a text)."""

_SHOWN = 40
_LONGEST = 1 << 20
_HEAD = 1 << 16
# An object that holds a list of objects, behind members that are neither.
_WRAPPED = re.compile(rb'\s*\{(?:[^\[\]{}]{0,2000},)?\s*"([^"\\]{1,200})"\s*:\s*\[\s*\{')


def tallied(rows: Iterable[Row], file: SourceFile, source: FileSource, tally: Tally) -> Iterator[Row]:
    """Yields rows of a file and counts them."""
    for row in rows:
        tally[source.name, file.path, row.refused] += 1
        yield row


def refuse_misread(tally: Tally, files: Sequence[tuple[SourceFile, FileSource]]) -> None:
    """Checks the rows of all files.

    Raises:
        InputError: most rows of a file are no JSON objects, a file is one object around its rows, or no row of a source
            has a text.
    """
    by_file: dict[tuple[str, str], Counter[str]] = {}
    for (name, path, reason), count in tally.items():
        by_file.setdefault((name, path), Counter())[reason] += count
    for file, source in files:
        if counts := by_file.get((source.name, file.path)):
            _refuse_file(file, source, counts)
    _refuse_without_text(files, by_file)


def _refuse_file(file: SourceFile, source: FileSource, counts: Counter[str]) -> None:
    rows, bad = counts.total(), counts["json_malformed"]
    if 2 * bad > rows:
        raise InputError(
            f'{file.path} of the file source "{source.name}": {bad} of {rows} rows are no JSON objects '
            f"({_first_malformed(file, source)})",
            "write one object per line or a list of objects, in UTF-8; exclude the file; or set another kind",
        )
    if source.kind == "jsonl" and rows == counts["no_text"] + counts["too_large"] == 1:
        with readable(file, source), window(file, None) as text:
            found = _WRAPPED.match(text.read(_HEAD))
        if found:
            field = found[1].decode("utf-8", "replace")
            raise InputError(
                f'{file.path} of the file source "{source.name}" is one JSON object around a list, "{field}", and has '
                f'no "{source.text_field}" itself',
                f"write that list to a file of its own, such as by jq '.[\"{field}\"]'",
            )


def _first_malformed(file: SourceFile, source: FileSource) -> str:
    for number, row in _rows(file, source):
        try:
            if not isinstance(json.loads(row), Mapping):
                return f"row {number} is no object: {row[:_SHOWN]!r}"
        except (ValueError, RecursionError) as error:
            return f"row {number}, {row[:_SHOWN]!r}: {error}"
    return "the first of them is very long"


def _refuse_without_text(
    files: Sequence[tuple[SourceFile, FileSource]], by_file: Mapping[tuple[str, str], Counter[str]]
) -> None:
    by_source: dict[str, Counter[str]] = {}
    for (name, _), counts in by_file.items():
        by_source.setdefault(name, Counter()).update(counts)
    for file, source in files:
        counts = by_source.get(source.name, Counter())
        if counts["no_text"] == counts.total() > 0:
            raise InputError(
                f'no row of the file source "{source.name}" has a text in the field "{source.text_field}" (the first '
                f"of {file.path} has: {', '.join(_fields(file, source)) or 'no field'})",
                "set its text_field",
            )


def _fields(file: SourceFile, source: FileSource) -> list[str]:
    if source.kind == "parquet":
        return sorted(parquet.schema(file.local()).names)
    row = json.loads(next((row for _, row in _rows(file, source)), b"null"))
    return sorted(row) if isinstance(row, dict) else []


def _rows(file: SourceFile, source: FileSource) -> Iterator[tuple[int, bytes]]:
    """Yields number and bytes of the rows of a file of JSON that are not very long."""
    with readable(file, source), window(file, None) as text:
        for number, row in enumerate(json_rows(text, text.form, _LONGEST)):
            if row and row.strip():
                yield number, row
