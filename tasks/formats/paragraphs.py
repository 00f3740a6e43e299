"""Repeated paragraphs: which parts of a document stand in other documents, too.

The files of an artifact `paragraphs`, row by row and part by part beside the documents that were looked at:

    paragraphs/<part>.parquet  one row per document, in their order: the struct REPEATS_FOUND, null where nothing is repeated
    repeats/<part>.parquet     one row per document and repeated paragraph in it (REPEAT)
    boilerplate.parquet        the most repeated paragraphs of the corpus

A paragraph is a line of text with a word in it, without the white space around it. Places are code points of the
document's text, end exclusive.
"""

import pyarrow as pa

from tasks.core.artifact import ArtifactFolder
from tasks.formats.documents.document import mark_of, same_mark

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


def repeated_in(paragraphs: ArtifactFolder, part: str, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Reads the column REPEATS_FOUND of one part; raises InputError where it is not of the documents with these ids."""
    table = paragraphs.table(f"{PARAGRAPHS}/{part}.parquet")
    same_mark(mark_of(ids), table, f"{paragraphs.address}, {part}")
    return table.column(REPEATED)
