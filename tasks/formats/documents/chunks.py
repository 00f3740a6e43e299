"""Chunks of documents for fine-tuning, with their lineage.

`chunks/<part>.parquet` (CHUNK) and `rejected/<part>.parquet` (REJECTED) have one row per chunk, in the order of the
documents and of their texts. `start` and `end` are code points of `text` in the kept document: the text of a chunk is
exactly that slice. If it begins with headings, `body` is the offset after them and `sections` has the headings above
that offset, which a fine-tuning example uses as its prompt (`heading_path`).
"""

from collections.abc import Sequence

import pyarrow as pa

from tasks.formats.documents.text import digest128

KIND = "chunks"
"""Kind of the artifact, and its folder with the chunks."""
TEXT, CODE, TABLE, HEADING = "text", "code", "table", "heading"

BOX = pa.struct(
    [
        pa.field("page", pa.int32(), nullable=False),  # from 1
        *(pa.field(name, pa.float32(), nullable=False) for name in ("x0", "y0", "x1", "y1")),
    ]
)
"""A box of `tasks.formats.documents.layout`, in points from the upper left corner of its page."""

_PLACE = [
    pa.field("id", pa.string(), nullable=False),  # see chunk_id
    pa.field("document", pa.string(), nullable=False),  # id of the document
    pa.field("url", pa.string(), nullable=False),  # of the page or file
    pa.field("source", pa.string(), nullable=False),
    pa.field("start", pa.int32(), nullable=False),
    pa.field("end", pa.int32(), nullable=False),
]
CHUNK = pa.schema(
    [
        *_PLACE,
        pa.field("overlap", pa.int32(), nullable=False),  # leading code points shared with the previous chunk
        pa.field("kind", pa.string(), nullable=False),  # TEXT, CODE or TABLE: the kind of most of its characters
        pa.field("title", pa.string(), nullable=False),  # of the document, or ""
        pa.field("headings", pa.list_(pa.string()), nullable=False),  # above it, the outermost first; not in `text`
        pa.field("body", pa.int32(), nullable=False),  # offset in `text` of the first text that is no heading
        pa.field("sections", pa.list_(pa.string()), nullable=False),  # headings above `body`, outermost first
        pa.field("text", pa.string(), nullable=False),
        pa.field("tokens", pa.int32(), nullable=False),  # of `rendered`
        pa.field("language", pa.string(), nullable=False),
        pa.field("tier", pa.string(), nullable=False),  # of the document
        # Pages and boxes of the text in a PDF file; null for a document without a layout.
        pa.field("pages", pa.list_(pa.int32())),
        pa.field("boxes", pa.list_(BOX)),
    ]
)
REJECTED = pa.schema(
    [
        *_PLACE,
        pa.field("reason", pa.string(), nullable=False),
        pa.field("duplicate_of", pa.string()),  # id of the chunk with the same text that is kept
    ]
)


def chunk_id(document: str, start: int, text: str) -> str:
    """Returns a chunk's id, 32 hex digits: a hash of the document's id and of the chunk's start and text."""
    return digest128(f"{document}\n{start}\n{text}")


def heading_path(title: str, sections: Sequence[str]) -> str:
    r"""Returns the document's title and the headings above a chunk's body, one per line.

    >>> heading_path("Manual", ["Manual", "Doors"])
    'Manual\nDoors'
    """
    return "\n".join([*([title] if title and title not in sections[:1] else []), *sections])


def rendered(headings: Sequence[str], text: str) -> str:
    r"""Returns a chunk as a model reads it: its headings, one per line, a blank line, and its text.

    >>> rendered(["Manual", "Doors"], "They open.")
    'Manual\nDoors\n\nThey open.'
    """
    return "\n".join([*headings, "", text]) if headings else text
