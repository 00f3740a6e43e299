"""Names by which sequences are grouped: of sources, as recipes write them, and of other labels of documents in shards.

A label stands in messages, in mixtures of recipes and in file names. Letters, digits and `-_.` of ASCII stand for
themselves, every other byte of the UTF-8 form is `%` and two hex digits, so that different values have different names;
the absence of a value is `unknown`. Recipes read this: it imports pydantic and no more.
"""

from datetime import datetime
from typing import Annotated
from urllib.parse import quote

from pydantic import StringConstraints

from tasks.core.errors import InputError

SourceName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=40)]
"""Name of a source in mixtures, reports and files, and host in the URLs of documents without one."""

SOURCE = "source"
"""The column that every shard has, and that groups sequences by default."""
BASE_COLUMNS = ("doc_uid", "tokens", "n_tokens", "n_bytes", SOURCE, "split")
"""Columns of every shard; no label is called so."""
UNKNOWN = "unknown"
"""Label of a document without a value."""
LONGEST = 100
"""Characters that a label may have."""


def label(value: object, column: str) -> str:
    """Returns the name of a value of a column; of a time, its month.

    >>> label("gold", "tier"), label("News & media", "metadata.topic"), label(None, "language"), label(True, "adult")
    ('gold', 'News%20%26%20media', 'unknown', 'true')

    Raises:
        InputError: the value is no text, number, truth value or time, or its name is too long.
    """
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, datetime):
        return f"{value:%Y-%m}"
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int):
        raise InputError(
            f"[encode] columns: {column} has the value {value!r}, which is no name",
            "name a column of texts, whole numbers, truth values or times",
        )
    # A leading dot would hide a file, and "summary.json" is another file of the plan.
    name = quote(str(value), safe="").replace("~", "%7E").replace(".", "%2E", str(value).startswith("."))
    if len(name) > LONGEST:
        raise InputError(
            f'[encode] columns: {column} has a value of more than {LONGEST} characters, "{name[:40]}..."',
            "name a column with few, short values",
        )
    return name
