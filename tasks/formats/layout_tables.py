"""Tables of layouts and pages, beside the documents of a part.

`layout/<part>.parquet` has a row per document with a layout, sorted by id; `pages/<part>.parquet` a row per page of
every file that was opened, sorted by URL, source and page. Documents themselves stay as they are without paged files.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tasks.formats.documents.layout import Piece

LAYOUT = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field(
            "layout",
            pa.list_(
                pa.struct(
                    [
                        *(pa.field(name, pa.int32(), nullable=False) for name in ("start", "end")),
                        pa.field("kind", pa.string(), nullable=False),
                        pa.field("page", pa.int32(), nullable=False),
                        *(pa.field(name, pa.float32(), nullable=False) for name in ("x0", "y0", "x1", "y1")),
                    ]
                )
            ),
            nullable=False,
        ),
    ]
)
PAGES = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("page", pa.int32(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
        pa.field("needs_ocr", pa.bool_(), nullable=False),
    ]
)


def layout_row(document: str, pieces: Sequence[Piece]) -> dict[str, Any]:
    """Returns the row of `LAYOUT` of the document with that id."""
    names = ("x0", "y0", "x1", "y1")
    return {
        "id": document,
        "layout": [
            {
                "start": one.start,
                "end": one.end,
                "kind": one.kind,
                "page": one.page,
                **dict(zip(names, one.box, strict=True)),
            }
            for one in pieces
        ],
    }
