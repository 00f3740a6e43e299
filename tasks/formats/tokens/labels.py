"""Labels by which sequences are grouped: source names in recipes, and values of other document columns in shards.

Labels appear in messages, in mixtures of recipes and in file names. ASCII letters, digits and `-_.` are kept; every
other byte of the UTF-8 form is written as `%` and two hex digits, so that different values have different labels. A
missing value is `unknown`. Recipes import this module, so it imports only pydantic.
"""

from datetime import datetime
from typing import Annotated
from urllib.parse import quote

from pydantic import StringConstraints

from tasks.core.errors import InputError

SourceName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=40)]
"""Name of a source in mixtures, reports and files; also the host in the URLs of documents without a URL."""

SOURCE = "source"
"""The column that groups sequences by default; every shard has it."""
BASE_COLUMNS = ("doc_uid", "tokens", "n_tokens", "n_bytes", SOURCE, "split")
"""Columns of every shard; not available as names of label columns."""
DOCUMENT_COLUMNS = (
    *("id", "record_id", "url", "host", "fetched_at", "title", "language_hint", "published", "canonical", "licence"),
    *("form", SOURCE, "payload_digest", "warc_file", "warc_offset", "language", "tier"),
)
"""Columns of the kept documents whose values can be labels; in addition, fields of `metadata` after a dot."""
METADATA = "metadata."
"""Before the name of a field."""
UNKNOWN = "unknown"
"""Label of a document without a value."""
LONGEST = 100
"""Maximum length of a label in characters."""


def label(value: object, column: str) -> str:
    """Returns the label of a value in a column; for a time, its month.

    >>> label("gold", "tier"), label("News & media", "metadata.topic"), label(None, "language"), label(True, "adult")
    ('gold', 'News%20%26%20media', 'unknown', 'true')

    Raises:
        InputError: the value is not a string, integer, boolean or time, or its label is too long.
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
    # A leading dot would hide the file.
    name = quote(str(value), safe="").replace("~", "%7E").replace(".", "%2E", str(value).startswith("."))
    if len(name) > LONGEST:
        raise InputError(
            f'[encode] columns: {column} has a value of more than {LONGEST} characters, "{name[:40]}..."',
            "name a column with few, short values",
        )
    return name
