"""Chunks of documents for fine-tuning, with their lineage.

`chunks/<part>.parquet` (CHUNK) and `rejected/<part>.parquet` (REJECTED) have a row per chunk, in the order of the
documents and of their texts. `start` and `end` are code points of `text` in the kept document: the text of a chunk is
that stretch of it, character for character. Where it begins with headings, `body` is behind them, and `sections` has
the headings above that place: what a chunk stands under (`asked`) as an example for a fine-tuning.
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
        pa.field("overlap", pa.int32(), nullable=False),  # code points at the beginning that the chunk before has, too
        pa.field("kind", pa.string(), nullable=False),  # TEXT, CODE or TABLE: what most of its characters are
        pa.field("title", pa.string(), nullable=False),  # of the document, or ""
        pa.field("headings", pa.list_(pa.string()), nullable=False),  # above it, the outermost first; not in `text`
        pa.field("body", pa.int32(), nullable=False),  # code points of `text` before what is no heading
        pa.field("sections", pa.list_(pa.string()), nullable=False),  # headings above what begins at `body`
        pa.field("text", pa.string(), nullable=False),
        pa.field("tokens", pa.int32(), nullable=False),  # of `rendered`
        pa.field("language", pa.string(), nullable=False),
        pa.field("tier", pa.string(), nullable=False),  # of the document
        # Boxes of the text on the pages of a PDF file, and their pages; null for a document without a layout.
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
    """Returns a chunk's id, 32 hex digits: a hash of the document's id, where the chunk begins, and its text."""
    return digest128(f"{document}\n{start}\n{text}")


def asked(title: str, sections: Sequence[str]) -> str:
    r"""Returns what a chunk stands under, a line each: the document's title, then the headings above its body.

    >>> asked("Manual", ["Manual", "Doors"])
    'Manual\nDoors'
    """
    return "\n".join([*([title] if title and title not in sections[:1] else []), *sections])


def rendered(headings: Sequence[str], text: str) -> str:
    r"""Returns a chunk as a model reads it: its headings, a line each, a blank line, its text.

    >>> rendered(["Manual", "Doors"], "They open.")
    'Manual\nDoors\n\nThey open.'
    """
    return "\n".join([*headings, "", text]) if headings else text
