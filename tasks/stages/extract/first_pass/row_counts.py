"""Numbers of rows of JSON and Parquet files that are rejected because they are not objects, or have no text.

If these are most rows of a file, the settings or the file are wrong, and the stage fails before it extracts anything.
Such a file is read again only for the error message.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tasks.core import parquet
from tasks.core.errors import InputError
from tasks.formats.documents.json_rows import rows as json_rows
from tasks.formats.lakes.table import TableFile
from tasks.stages.extract.partitioning import explain_read_errors, open_piece
from tasks.stages.extract.sources import InputUnit

RowCounts = Counter[tuple[str, str, str]]
"""Numbers of rows by source, path of the file, and reason for rejection ("" for rows with text)."""

_EXCERPT = 40
_LONGEST = 1 << 20
_HEAD = 1 << 16
# A JSON object with a member that is a list of objects, after members that are neither lists nor objects.
_WRAPPED = re.compile(rb'\s*\{(?:[^\[\]{}]{0,2000},)?\s*"([^"\\]{1,200})"\s*:\s*\[\s*\{')


def check_row_counts(tally: RowCounts, units: Sequence[InputUnit]) -> None:
    """Checks the numbers of rejected rows.

    Raises:
        InputError: most rows of a file are not JSON objects, a file is a single object that contains the list of rows,
            or no row of a source has a text.
    """
    by_file, by_source = defaultdict[tuple[str, str], Counter[str]](Counter), defaultdict[str, Counter[str]](Counter)
    for (name, path, reason), count in tally.items():
        by_file[name, path][reason] += count
        by_source[name][reason] += count
    for unit in units:
        _check_file(unit, by_file[unit.source.name, unit.file.path])
    for unit in units:
        _check_source(unit, by_source[unit.source.name])


def _check_file(unit: InputUnit, counts: Counter[str]) -> None:
    file, source = unit.file, unit.source
    rows, malformed = counts.total(), counts["json_malformed"]
    if 2 * malformed > rows:
        raise InputError(
            f'{file.path} of the file source "{source.name}": {malformed} of {rows} rows are not JSON objects '
            f"({_first_malformed(unit)})",
            "write one object per line or a list of objects, in UTF-8; exclude the file; or set another kind",
        )
    if source.kind == "jsonl" and rows == counts["no_text"] + counts["too_large"] == 1:
        with explain_read_errors(unit), open_piece(unit) as text:
            wrapped = _WRAPPED.match(text.read(_HEAD))
        if wrapped:
            field = wrapped[1].decode("utf-8", "replace")
            raise InputError(
                f'{file.path} of the file source "{source.name}" is one JSON object with a list "{field}", and without '
                f'"{source.text_field}"',
                f"write the list to a file of its own, for example with jq '.[\"{field}\"]'",
            )


def _first_malformed(unit: InputUnit) -> str:
    for number, row in _json_texts(unit):
        try:
            if not isinstance(json.loads(row), Mapping):
                return f"row {number} is not an object: {row[:_EXCERPT]!r}"
        except (ValueError, RecursionError) as error:
            return f"row {number}, {row[:_EXCERPT]!r}: {error}"
    return "the first one is very long"


def _check_source(unit: InputUnit, counts: Counter[str]) -> None:
    if counts["no_text"] == counts.total() > 0:
        raise InputError(
            f'no row of the file source "{unit.source.name}" has a text in the field "{unit.source.text_field}" (the '
            f"first of {unit.file.path} has: {', '.join(_fields(unit)) or 'no field'})",
            "set its text_field",
        )


def _fields(unit: InputUnit) -> list[str]:
    if isinstance(unit.file, TableFile):
        return sorted(one.name for one in unit.file.columns)
    if unit.source.kind == "parquet":
        return sorted(parquet.schema(unit.file.local()).names)
    row = json.loads(next((row for _, row in _json_texts(unit)), b"null"))
    return sorted(row) if isinstance(row, dict) else []


def _json_texts(unit: InputUnit) -> Iterator[tuple[int, bytes]]:
    """Yields number and bytes of the rows of a JSON file; rows above 1 MiB are skipped."""
    with explain_read_errors(unit), open_piece(unit) as text:
        for number, row in enumerate(json_rows(text, text.form, _LONGEST)):
            if row and row.strip():
                yield number, row
