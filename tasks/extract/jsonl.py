"""Documents as JSON lines, for readers without Parquet. Used by `stage`."""

import gzip
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import BinaryIO, cast

FIELDS = (
    *("id", "url", "fetched_at", "title", "language_hint", "published", "canonical", "licence", "text"),
    *("source", "record_id", "warc_file", "warc_offset"),
)
_LEVEL = 6


def write_jsonl(documents: Sequence[Mapping[str, object]], file: BinaryIO) -> None:
    """Writes one JSON object per document, gzip-compressed; the same documents give the same bytes.

    Args:
        documents: rows of tasks.documents.DOCUMENT; times become text (ISO 8601, UTC, milliseconds) or null.
        file: where the bytes go; only written forward, left open.
    """
    # The name and the time that gzip would put into its header are none of the documents.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=_LEVEL, mtime=0) as packed,
        io.BufferedWriter(cast(io.RawIOBase, packed), 1 << 20) as out,
    ):
        for document in documents:
            held = {name: _plain(document[name]) for name in FIELDS}
            out.write(json.dumps(held, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value
