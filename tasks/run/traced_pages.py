"""Pages of a file that a stretch of a document's tokens stands on.

Reads of `extracted` the layout of the document and the text that it is of, of `documents` the kept text, and the
document's tokens up to the end of the stretch.
"""

from tasks.core.parquet_ranges import rows_with
from tasks.formats.tokens.index import Entry
from tasks.run.chain import Chain
from tasks.stages.chunks.pages import Pages


def pages_read(chain: Chain, entry: Entry, start: int, length: int) -> list[int]:
    """Returns the numbers of the pages that `length` tokens of a document from `start` on stand on, in order.

    Empty for a document without pages. A token that is a part of a letter counts as all of it.
    """
    pages = _pages(chain, entry)
    if pages is None:
        return []
    index, plan = chain.index, chain.plan
    assert index is not None
    assert plan is not None
    (tokens,) = index.tokens([(entry.shard, entry.offset, start + length)], plan.format.dtype)
    begin, end = (len(chain.tokenizer.decode(tokens[:count].tolist())) for count in (start, start + length))
    return sorted({box["page"] for box in pages.boxes(begin, end)})


def _pages(chain: Chain, entry: Entry) -> Pages | None:
    """Returns where the kept text of a document stands; None where it has no layout."""
    extracted, documents = chain.artifacts.get("extracted"), chain.artifacts.get("documents")
    path = f"layout/{entry.part}.parquet"
    if extracted is None or documents is None or path not in extracted.files("layout/"):
        return None
    ids = [entry.uid.hex()]
    found = rows_with(extracted, path, "id", ids, ["layout"]).to_pylist()
    before = rows_with(extracted, f"documents/{entry.part}.parquet", "id", ids, ["text"]).to_pylist()
    kept = rows_with(documents, f"kept/{entry.part}.parquet", "id", ids, ["text"]).to_pylist()
    if not (found and before and kept):
        return None
    return Pages(before[0]["text"], kept[0]["text"], found[0]["layout"])
