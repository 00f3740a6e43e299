"""Documents as JSON lines, for readers without Parquet."""

import gzip
import io
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import BinaryIO, cast

FIELDS = (
    *("id", "url", "fetched_at", "title", "language_hint", "published", "canonical", "licence", "metadata", "text"),
    *("source", "record_id", "warc_file", "warc_offset"),
)
_LEVEL = 6


class JsonLines:
    """Writes one JSON object per document, gzip-compressed; the same documents give the same bytes. A context manager.

    Args:
        file: where the bytes go; only written forward, left open.
    """

    def __init__(self, file: BinaryIO) -> None:
        # No name and no time in the gzip header, so that the bytes depend only on the documents.
        self._packed = gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=_LEVEL, mtime=0)
        self._out = io.BufferedWriter(cast(io.RawIOBase, self._packed), 1 << 20)

    def __enter__(self) -> "JsonLines":
        return self

    def __exit__(self, *error: object) -> None:
        self._out.close()
        self._packed.close()

    def write(self, documents: Iterable[Mapping[str, object]]) -> None:
        """Writes rows of tasks.formats.documents.document.DOCUMENT.

        Times become ISO 8601 (UTC, milliseconds) or null, metadata a JSON object.
        """
        for document in documents:
            fields = {name: _plain(document[name]) for name in FIELDS}
            fields["metadata"] = json.loads(str(document["metadata"] or "null"))
            self._out.write(json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value
