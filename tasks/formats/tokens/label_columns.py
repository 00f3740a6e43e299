"""Label columns of token shards: strings of few values, coded by a dictionary that a shard has once.

The dictionary is sorted, so that equal documents give equal bytes; see `labels` for the spelling of values.
"""

import json
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.config import nearest
from tasks.core.errors import InputError
from tasks.formats.tokens.labels import BASE_COLUMNS, SOURCE, label

LABEL_TYPE = pa.dictionary(pa.int32(), pa.string())


def coded(values: Sequence[str]) -> pa.DictionaryArray:
    """Codes the values of one column of a shard, shape (rows,).

    >>> coded(["silver", "gold", "silver"]).dictionary.to_pylist()
    ['gold', 'silver']
    """
    names = pa.array(sorted(set(values)), pa.string())
    codes = pc.index_in(pa.array(values, pa.string()), names)
    return pa.DictionaryArray.from_arrays(codes, names)


def column_of(name: str) -> str:
    """Returns the column of the documents that a label is read from.

    >>> column_of("tier"), column_of("metadata.topic")
    ('tier', 'metadata')
    """
    return name.partition(".")[0]


def spelt(column: pa.Array, name: str) -> list[str]:
    """Returns the label of each value of a column of the documents, shape (rows,).

    Args:
        column: the column that `column_of` names.
        name: the label; after a dot it names a field of the column's JSON objects.

    Raises:
        InputError: as `label` does.
    """
    if field := name.partition(".")[2]:
        return [label(json.loads(value).get(field) if value else None, name) for value in column.to_pylist()]
    if not pa.types.is_string(column.type):
        return [label(value, name) for value in column.to_pylist()]
    values = column.dictionary_encode()  # few values: each is spelt once
    names = [label(value, name) for value in values.dictionary.to_pylist()]
    return [label(None, name) if code is None else names[code] for code in values.indices.to_pylist()]


def check_column(schema: pa.Schema, name: str) -> None:
    """Raises InputError unless a shard of the schema has `source` or a label column of that name."""
    known = [SOURCE, *(field.name for field in schema if field.name not in BASE_COLUMNS)]
    if name not in known:
        raise InputError(
            f'the token shards have no column "{name}": {nearest(name, known)}',
            "name it in [encode] columns and run the stage encode again",
        )


def read_column(batches: Iterable[pa.RecordBatch], schema: pa.Schema, name: str) -> pa.DictionaryArray:
    """Returns `source` or a label column over all batches of a shard; raises InputError if there is none."""
    check_column(schema, name)
    parts = [batch.column(name) for batch in batches]
    whole = pa.chunked_array(parts, schema.field(name).type)
    if name == SOURCE:
        whole = whole.dictionary_encode()
    whole = whole.unify_dictionaries().combine_chunks()
    return whole if isinstance(whole, pa.DictionaryArray) else whole.chunk(0)
