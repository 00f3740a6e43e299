"""Documents as rows of Parquet files, and the tables that stand beside them, part by part.

Reads and writes, in artifacts of the stages that make them:

    documents/<part>.parquet      one row per document: its text and where it comes from (DOCUMENT)
    rejected/<part>.parquet       one row per row of the input that gave none (REJECTED)
    layout/<part>.parquet         one row per document with a layout, sorted by id (LAYOUT)
    pages/<part>.parquet          one row per page of every paged file that was opened, sorted by URL, source and page
    contamination/<part>.parquet  one row per document, in their order: ITEM_FOUND, null where nothing was found
    matches/<part>.parquet        one row per document and evaluation item found in it (ITEM_MATCH)
    sets.parquet                  one row per evaluation set: its name as `set`, and counts
    paragraphs/<part>.parquet     one row per document, in their order: REPEATS_FOUND, null where nothing is repeated
    repeats/<part>.parquet        one row per document and repeated paragraph in it (REPEAT)
    boilerplate.parquet           the most repeated paragraphs of the corpus

Shares of evaluation items are of their n-grams: the distinct ones, without those that are common in the corpus. A
paragraph is a line of text with a word in it, without the white space around it. Places are code points of the
document's text, end exclusive.

What is held out of learning is drawn by a hash, the same in every version, in pretraining and in fine-tuning. Of the
same keys a larger share holds out all that a smaller one does.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.errors import InputError
from tasks.formats.documents.layout import Piece
from tasks.formats.documents.text import hash64

DOCUMENT = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),  # see document_id
        pa.field("record_id", pa.string(), nullable=False),  # WARC-Record-ID; "" where no WARC was involved
        pa.field("url", pa.string(), nullable=False),
        pa.field("host", pa.string(), nullable=False),
        pa.field("fetched_at", pa.timestamp("ms", tz="UTC")),
        pa.field("title", pa.string(), nullable=False),
        pa.field("language_hint", pa.string(), nullable=False),
        # Metadata stated by the page; null where it states none.
        pa.field("published", pa.timestamp("ms", tz="UTC")),
        pa.field("canonical", pa.string()),  # the page's rel="canonical" link
        pa.field("licence", pa.string()),  # URL or name of the licence as stated: a hint, not a right
        # A JSON object: other fields of a row of a dump, or `author` and `site` of a page that states them; else null.
        pa.field("metadata", pa.string()),
        pa.field("text", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),  # "web", or the name of a file source
        pa.field("payload_digest", pa.string(), nullable=False),  # "sha1:BASE32" of the payload as received
        pa.field("warc_file", pa.string(), nullable=False),
        pa.field("warc_offset", pa.int64()),
    ]
)

REJECTED = pa.schema(
    [
        pa.field("record_id", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
"""A row of the input that gave no document."""

_IDS = b"ids"

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
"""Where the blocks of a paged file stand in the text of its document; see `layout`."""

PAGES = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("page", pa.int32(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
        pa.field("needs_ocr", pa.bool_(), nullable=False),
    ]
)
"""How much a page needs OCR (0 to 1), and whether it was left out for it."""

CONTAMINATION = "contamination"
"""Kind of the artifact, its role as an input, and the folder with one row per document."""
MATCHES = "matches"
SETS_FILE = "sets.parquet"
CONTAMINATED = "contaminated"
"""The reason of a document that goes, and the name of the column ITEM_FOUND."""

_ITEM = [
    pa.field("set", pa.string(), nullable=False),  # name of the evaluation set
    pa.field("item", pa.string(), nullable=False),  # id of the item in it
    pa.field("share", pa.float32(), nullable=False),  # share of the item's n-grams that the document contains
    pa.field("ngrams", pa.int32(), nullable=False),  # their number
    # The longest run of words in the document that are in the item: characters of its text, whole words, and words.
    pa.field("begin", pa.int32(), nullable=False),
    pa.field("end", pa.int32(), nullable=False),
    pa.field("words", pa.int32(), nullable=False),
]
ITEM_FOUND = pa.struct([*_ITEM, pa.field("items", pa.int32(), nullable=False)])
"""Of one document the item with the largest share, and the number of all items found in it."""

ITEM_MATCH = pa.schema(
    [
        *_ITEM[:2],
        pa.field("id", pa.string(), nullable=False),  # of the document
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        *_ITEM[2:],
    ]
)

PARAGRAPHS = "paragraphs"
"""Kind of the artifact, its role as an input, and the folder with one row per document."""
REPEATS = "repeats"
REPEATED = "repeated_paragraphs"
"""The reason of a document that goes, and the name of the column REPEATS_FOUND."""

_SPAN = pa.struct([pa.field("begin", pa.int32(), nullable=False), pa.field("end", pa.int32(), nullable=False)])
REPEATS_FOUND = pa.struct(
    [
        pa.field("share", pa.float32(), nullable=False),  # of the characters of all its paragraphs
        pa.field("words_left", pa.int32(), nullable=False),  # words of its other paragraphs
        pa.field("spans", pa.list_(_SPAN), nullable=False),  # of the repeated paragraphs, in the order of the text
    ]
)
"""Of one document its repeated paragraphs."""

REPEAT = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),  # of the document
        pa.field("begin", pa.int32(), nullable=False),
        pa.field("end", pa.int32(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),  # in which the paragraph occurs
        pa.field("domains", pa.int64(), nullable=False),  # registered domains of these documents
    ]
)

_HASHES = 2**64


def parts_of(extracted: Artifact) -> list[str]:
    """Returns the names of the parts of an artifact of documents; raises InputError where there is none."""
    names = extracted.names("documents/")
    if not names:
        raise InputError(f"{extracted.address} holds no documents", "look at its rejected/ for the reasons")
    return names


def document_id(url: str, payload_digest: str) -> str:
    """Returns the document's id: 32 hex digits of blake2b-128 over url, newline and payload digest.

    The same page with the same bytes keeps its id over crawl cycles; changed bytes make another document.
    """
    return hashlib.blake2b(f"{url}\n{payload_digest}".encode(), digest_size=16).hexdigest()


def mark_of(ids: pa.ChunkedArray) -> bytes:
    """Returns a hash of document ids in their order (blake2b-128, hex)."""
    return hashlib.blake2b("\n".join(ids.to_pylist()).encode(), digest_size=16).hexdigest().encode()


def marked(table: pa.Table, ids: pa.ChunkedArray) -> pa.Table:
    """Returns a table without ids, with the mark of the documents of its rows in the schema metadata."""
    return table.replace_schema_metadata({_IDS: mark_of(ids)})


def same_mark(mark: bytes, table: pa.Table, where: str) -> None:
    """Checks that the rows of a table belong to the documents of a mark; raises InputError."""
    if (table.schema.metadata or {}).get(_IDS) != mark:
        raise _misfit(where)


def same_rows(left: pa.Table, right: pa.Table, where: str) -> None:
    """Checks that two co-partitioned tables have the same ids in the same order; raises InputError."""
    if not left.column("id").equals(right.column("id")):
        raise _misfit(where)


def _misfit(where: str) -> InputError:
    return InputError(
        f"{where}: the tables do not hold the same documents in the same order", "run the stages that made them again"
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


def found_in(contamination: ArtifactFolder, part: str, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Reads the column ITEM_FOUND of one part; raises InputError where it is not of the documents with these ids."""
    return _beside(contamination, CONTAMINATION, part, ids).column(CONTAMINATED)


def repeated_in(paragraphs: ArtifactFolder, part: str, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Reads the column REPEATS_FOUND of one part; raises InputError where it is not of the documents with these ids."""
    return _beside(paragraphs, PARAGRAPHS, part, ids).column(REPEATED)


def _beside(artifact: ArtifactFolder, folder: str, part: str, ids: pa.ChunkedArray) -> pa.Table:
    table = artifact.table(f"{folder}/{part}.parquet")
    same_mark(mark_of(ids), table, f"{artifact.address}, {part}")
    return table


def heldout_draw(key: str) -> int:
    """Returns a uniform 64-bit integer of a key, such as a document's id; what is below some limit is held out."""
    return hash64(f"heldout/{key}")


def is_heldout(key: str, share: float) -> bool:
    """Returns whether a key is among the share that is held out."""
    return heldout_draw(key) < round(share * _HASHES)
