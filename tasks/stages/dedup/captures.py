"""Captures of one page: documents with one address, of this version and of the index.

Reads the runs `captures/` of all parts, one bucket of pages at a time. Writes `recaptured/<bucket>.bin`, a run of
RECAPTURED: the documents whose page has another capture. Which of them stands for the page is decided where it is known
which of them pass the filters.
"""

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats import sorted_runs
from tasks.formats.canonical_url import canonical
from tasks.formats.dedup_index import CAPTURE, CAPTURES
from tasks.formats.row_ids import row_ids_of
from tasks.formats.sorted_runs import Buckets
from tasks.formats.url import bare
from tasks.stages.dedup.records import RECAPTURED, packed
from tasks.stages.dedup.workspace import Workspace


def capture_records(urls: pa.ChunkedArray, warc_files: pa.ChunkedArray, part: int) -> NDArray[np.void]:
    """Returns a record (dtype CAPTURE) for each document of a part that is from a crawl; files have no page."""
    rows = np.flatnonzero(warc_files.to_numpy() != "")
    keys = np.fromiter((page_key(url) for url in urls.take(pa.array(rows)).to_pylist()), np.uint64, len(rows))
    return packed(CAPTURE, key=keys, row_id=row_ids_of(part, rows))


def page_key(url: str) -> int:
    """Returns the hash of the page at a URL: XXH3 of its canonical form without scheme and "www.", 64 bits."""
    return int(xxhash.xxh3_64_intdigest(bare((canonical(url) or url).partition("://")[2]).encode()))


def recaptured_part(work: Workspace, made: Buckets, part: Part, number: int) -> None:
    """Finds the documents of one bucket of `made`; runs on a worker."""
    captures = work.bucket_of_documents(CAPTURES, number, made.count)
    captures = captures[np.lexsort((captures["row_id"], captures["key"]))]
    same = captures["key"][1:] == captures["key"][:-1]
    several = captures[np.append(False, same)[: len(captures)] | np.append(same, False)[: len(captures)]]
    part.metric("recaptured", len(several))
    found = packed(RECAPTURED, key=several["row_id"], page=several["key"])
    sorted_runs.write(part, made.path(number), [sorted_runs.by_key(found)])
