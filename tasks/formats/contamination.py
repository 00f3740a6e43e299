"""Contamination: which documents contain text of evaluation items.

The files of an artifact `contamination`, row by row and part by part beside the documents that were looked at:

    contamination/<part>.parquet  one row per document, in their order: the struct ITEM_FOUND, null where nothing was found
    matches/<part>.parquet        one row per document and item found in it (ITEM_MATCH)
    sets.parquet                  one row per evaluation set: its name as `set`, and counts

Shares are of an item's n-grams: the distinct ones, without those that are common in the corpus.
"""

import pyarrow as pa

from tasks.core.artifact import ArtifactFolder
from tasks.formats.documents.document import mark_of, same_mark

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


def found_in(contamination: ArtifactFolder, part: str, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Reads the column ITEM_FOUND of one part; raises InputError where it is not of the documents with these ids."""
    table = contamination.table(f"{CONTAMINATION}/{part}.parquet")
    same_mark(mark_of(ids), table, f"{contamination.address}, {part}")
    return table.column(CONTAMINATED)
