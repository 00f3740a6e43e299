"""Items of evaluation sets: id and text.

Reads the files that the settings name, on this machine or on an object store.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.core import parquet
from tasks.core.errors import InputError
from tasks.formats.external_files import SourceFile, find
from tasks.stages.decontaminate.config import EvaluationSet

_ROWS_AT_ONCE = 256


class Item(NamedTuple):
    """One item of an evaluation set."""

    set: str
    id: str
    text: str


def files_of(one: EvaluationSet) -> list[SourceFile]:
    """Returns the files of a set, sorted by name; raises as `tasks.formats.external_files.find` does."""
    return find(one.path, f'the evaluation set "{one.name}"')


def read_items(one: EvaluationSet) -> Iterator[Item]:
    """Yields the items of a set, in the order of its files and rows.

    Raises:
        InputError: a file cannot be read, a line is not JSON, a row lacks a field or has something else than text in
            it, or there is no row at all.
    """
    empty = True
    for file in files_of(one):
        for number, row in _parquet_rows(file, one) if one.kind == "parquet" else file.rows():
            empty = False
            yield _item(one, file, number, row)
    if empty:
        raise InputError(f'the evaluation set "{one.name}" has no item: {one.path} is empty', "correct its path")


def _parquet_rows(file: SourceFile, one: EvaluationSet) -> Iterator[tuple[int, Any]]:
    try:
        path = file.local()
        there = parquet.schema(path).names
        wanted = {*one.fields, one.id_field}
        # With a field missing, all of them are read: `_item` names it, and those that there are.
        columns = [name for name in there if name in wanted] if set(one.fields) <= set(there) else None
        with parquet.opened(path) as rows:
            batches = rows.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{file.path} cannot be read ({error})", "mend it or leave it out") from error


def _item(one: EvaluationSet, file: SourceFile, number: int, row: Any) -> Item:
    where = f"{file.path}, line {number}" if one.kind == "jsonl" else f"{file.path}, row {number}"
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: no JSON object", "write one item per line, as an object with its fields")
    texts = [text for field in one.fields for text in _texts(one, where, field, _value(one, where, field, row))]
    if not one.id_field:
        return Item(one.name, f"{file.name}:{number}", "\n".join(texts))
    value = _value(one, where, one.id_field, row)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f'{where}: the id "{one.id_field}" is neither text nor a whole number', "name another field")
    return Item(one.name, str(value), "\n".join(texts))


def _value(one: EvaluationSet, where: str, field: str, row: Mapping[str, Any]) -> Any:
    if field not in row:
        names = ", ".join(sorted(map(str, row))) or "none"
        raise InputError(
            f'{where}: no field "{field}" (there are: {names})',
            f'correct fields and id_field of the evaluation set "{one.name}"',
        )
    return row[field]


def _texts(one: EvaluationSet, where: str, field: str, value: Any) -> list[str]:
    texts = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(
            f'{where}: the field "{field}" is neither a text nor a list of texts',
            f'name other fields of the evaluation set "{one.name}"',
        )
    return texts
