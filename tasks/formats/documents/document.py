"""Documents as rows of Parquet files, and the tables aligned with them, part by part.

Reads and writes, in the artifacts of several stages:

    documents/<part>.parquet      one row per document: its text and provenance (DOCUMENT)
    rejected/<part>.parquet       one row per input row that produced no document (REJECTED)
    layout/<part>.parquet         one row per document with a layout, sorted by id (LAYOUT)
    pages/<part>.parquet          one row per page of every paged file that was opened, sorted by URL, source and page
    contamination/<part>.parquet  one row per document, in the same order: TOP_ITEM, or null
    matches/<part>.parquet        one row per document and evaluation item that it contains (ITEM_MATCH)
    sets.parquet                  one row per evaluation set: its name as `set`, and counts
    paragraphs/<part>.parquet     one row per document, in the same order: REPEATED_SPANS, or null
    repeats/<part>.parquet        one row per document and repeated paragraph in it (REPEAT)
    boilerplate.parquet           the most repeated paragraphs of the corpus

Shares of evaluation items count their distinct n-grams, except those that are common in the corpus. A paragraph is a
line of text with at least one word, stripped of surrounding whitespace. Offsets are code points of the document's text,
end exclusive.

A hash selects the held-out documents and examples. The choice is the same in every version, in pretraining and in
fine-tuning, and a larger share always includes the keys of a smaller one.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.errors import InputError
from tasks.formats.documents.layout import LayoutSpan
from tasks.formats.documents.text import hash64, hashes64

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
        pa.field("form", pa.string()),  # "markdown": the text has marks (`structure`); "plain" or null: it has none
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
"""An input row that produced no document."""

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
"""Where each stretch of a paged file's text is on its pages; see `layout`."""

PAGES = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("page", pa.int32(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
        pa.field("needs_ocr", pa.bool_(), nullable=False),
    ]
)
"""How much a page needs OCR (0 to 1), and whether it was omitted for that reason."""

READ_PAGES = PAGES.append(pa.field("confidence", pa.float32())).append(pa.field("unread", pa.string(), nullable=False))
"""PAGES of a recipe with OCR: also the mean confidence (0 to 1) of the letters of a page that it has read, and why it
has given no text of another."""

CONTAMINATION = "contamination"
"""Kind of the artifact, its role as an input, and the folder with one row per document."""
MATCHES = "matches"
SETS_FILE = "sets.parquet"
CONTAMINATED = "contaminated"
"""Rejection reason of a contaminated document, and the name of the column of TOP_ITEM."""

_ITEM = [
    pa.field("set", pa.string(), nullable=False),  # name of the evaluation set
    pa.field("item", pa.string(), nullable=False),  # id of the item in it
    pa.field("share", pa.float32(), nullable=False),  # share of the item's n-grams that the document contains
    pa.field("ngrams", pa.int32(), nullable=False),  # number of n-grams in that share
    # The longest run of the document's words that are in the item: its code points, extended to whole words, and its
    # number of words.
    pa.field("begin", pa.int32(), nullable=False),
    pa.field("end", pa.int32(), nullable=False),
    pa.field("words", pa.int32(), nullable=False),
]
TOP_ITEM = pa.struct([*_ITEM, pa.field("items", pa.int32(), nullable=False)])
"""The evaluation item with the largest share in a document, and the number of items in that document."""

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
"""Rejection reason of a document with too many repeated paragraphs, and the name of the column of REPEATED_SPANS."""

_SPAN = pa.struct([pa.field("begin", pa.int32(), nullable=False), pa.field("end", pa.int32(), nullable=False)])
REPEATED_SPANS = pa.struct(
    [
        pa.field("share", pa.float32(), nullable=False),  # of the characters of all paragraphs
        pa.field("words_left", pa.int32(), nullable=False),  # words of the other paragraphs
        pa.field("spans", pa.list_(_SPAN), nullable=False),  # of the repeated paragraphs, in the order of the text
    ]
)
"""The repeated paragraphs of a document."""

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
    """Returns the names of the parts of an artifact of documents; raises InputError if there are none."""
    names = extracted.names("documents/")
    if not names:
        raise InputError(f"{extracted.address} holds no documents", "look at its rejected/ for the reasons")
    return names


def document_id(url: str, payload_digest: str) -> str:
    """Returns the document's id: 32 hex digits of blake2b-128 over url, newline and payload digest.

    A page with unchanged bytes keeps its id across crawl cycles; changed bytes give a new id.
    """
    return hashlib.blake2b(f"{url}\n{payload_digest}".encode(), digest_size=16).hexdigest()


def ids_digest(ids: pa.ChunkedArray) -> bytes:
    """Returns a hash of document ids in order (blake2b-128, hex)."""
    return hashlib.blake2b("\n".join(ids.to_pylist()).encode(), digest_size=16).hexdigest().encode()


def with_ids_digest(table: pa.Table, ids: pa.ChunkedArray) -> pa.Table:
    """Returns the table with the `ids_digest` of the documents of its rows in the schema metadata."""
    return table.replace_schema_metadata({_IDS: ids_digest(ids)})


def check_ids_digest(digest: bytes, table: pa.Table, where: str) -> None:
    """Raises InputError if the `ids_digest` stored in a table differs from `digest`."""
    if (table.schema.metadata or {}).get(_IDS) != digest:
        raise _misfit(where)


def check_same_ids(left: pa.Table, right: pa.Table, where: str) -> None:
    """Raises InputError unless two co-partitioned tables have the same ids in the same order."""
    if not left.column("id").equals(right.column("id")):
        raise _misfit(where)


def _misfit(where: str) -> InputError:
    return InputError(
        f"{where}: the tables do not hold the same documents in the same order", "run the stages that made them again"
    )


def layout_row(document: str, layout: Sequence[LayoutSpan]) -> dict[str, Any]:
    """Returns the row of `LAYOUT` for the document with this id."""
    names = ("x0", "y0", "x1", "y1")
    return {
        "id": document,
        "layout": [
            {
                "start": span.start,
                "end": span.end,
                "kind": span.kind,
                "page": span.page,
                **dict(zip(names, span.box, strict=True)),
            }
            for span in layout
        ],
    }


def contamination_column(contamination: ArtifactFolder, part: str, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Reads the column of TOP_ITEM of one part; raises InputError unless it belongs to the documents with these ids."""
    return _aligned_table(contamination, CONTAMINATION, part, ids).column(CONTAMINATED)


def repeats_column(paragraphs: ArtifactFolder, part: str, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Reads the column of REPEATED_SPANS of one part; raises InputError unless it belongs to these documents."""
    return _aligned_table(paragraphs, PARAGRAPHS, part, ids).column(REPEATED)


def _aligned_table(artifact: ArtifactFolder, folder: str, part: str, ids: pa.ChunkedArray) -> pa.Table:
    table = artifact.table(f"{folder}/{part}.parquet")
    check_ids_digest(ids_digest(ids), table, f"{artifact.address}, {part}")
    return table


def heldout_draw(key: str) -> int:
    """Returns a uniform 64-bit integer for a key, such as a document's id; keys below a limit are held out."""
    return hash64(f"heldout/{key}")


def heldout_draws(keys: Iterable[str]) -> list[int]:
    """Returns `heldout_draw` of each key."""
    return hashes64("heldout/", keys)


def is_heldout(key: str, share: float) -> bool:
    """Returns whether a key belongs to the held-out share."""
    return heldout_draw(key) < round(share * _HASHES)
