"""Parts of a token shard (`shard`) without the rest of it: its format, the ids of some documents, a label of one.

Reads an open binary file, of which only the ranges that hold these are read.
"""

import json
from collections.abc import Collection
from typing import Any, BinaryIO

import pyarrow as pa

from tasks.core.errors import InputError
from tasks.formats.tokens.shard import BATCH_ROWS, META, TokenFormat, check_column


def read_format(file: BinaryIO, name: str) -> TokenFormat:
    """Returns the format of a shard; `name` is for messages.

    Raises:
        InputError: the file is not a token shard.
    """
    try:
        return TokenFormat(**json.loads(_opened(file).schema.metadata[META]))
    except (pa.ArrowInvalid, KeyError, TypeError) as error:
        raise InputError(f"{name} is not a readable token shard ({error})", "run the stage encode again") from None


def read_uids(file: BinaryIO, rows: Collection[int]) -> dict[int, str]:
    """Returns the ids (hex) of the documents in some rows of a shard, by row."""
    reader = _opened(file)
    found = {}
    for index in sorted({row // BATCH_ROWS for row in rows}):
        uids = reader.get_batch(index).column("doc_uid")
        inside = (row for row in rows if row // BATCH_ROWS == index)
        found.update({row: uids[row % BATCH_ROWS].as_py().hex() for row in inside})
    return found


def read_label(file: BinaryIO, row: int, name: str) -> str:
    """Returns the value of `source` or of a label column of the document in a row.

    Raises:
        InputError: the shard has no such column.
    """
    schema = pa.ipc.open_file(pa.PythonFile(file, mode="r")).schema
    check_column(schema, name)
    batch = _opened(file, schema.get_field_index(name)).get_batch(row // BATCH_ROWS)
    return str(batch.column(name)[row % BATCH_ROWS].as_py())


def _opened(file: BinaryIO, column: int = 0) -> Any:
    # The first column is `doc_uid`. Of columns that are not included not a byte is read.
    return pa.ipc.open_file(pa.PythonFile(file, mode="r"), options=pa.ipc.IpcReadOptions(included_fields=[column]))
