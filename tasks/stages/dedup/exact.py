"""Exact duplicates: texts that are equal after normalisation of case, punctuation and layout.

Reads the runs `texts/` of all parts, one bucket of hashes at a time. Writes `equal/<bucket>.bin`, a run of LINK: each
text that several documents have, and the others of these. A text without words has no hash, so that empty texts are
not duplicates of one another.
"""

import numpy as np
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats import sorted_runs
from tasks.formats.dedup_index import TEXTS
from tasks.formats.mix import mix
from tasks.formats.sorted_runs import Buckets
from tasks.formats.text import digest128
from tasks.stages.dedup.records import LINK, packed
from tasks.stages.dedup.workspace import Workspace


def text_key(normalised: str) -> bytes | None:
    """Returns the 16-byte hash of a normalised text, or None for a text without words."""
    return bytes.fromhex(digest128(normalised)) if normalised else None


def equal_links(texts: NDArray[np.void]) -> NDArray[np.void]:
    """Returns the links (dtype LINK) from the first document of each text to the others with it.

    Args:
        texts: dtype TEXT, in any order.
    """
    texts = texts[np.lexsort((texts["row_id"], texts["low"], texts["key"]))]
    repeats = (texts["key"][1:] == texts["key"][:-1]) & (texts["low"][1:] == texts["low"][:-1])
    again = np.flatnonzero(repeats) + 1
    starts = np.arange(len(texts))
    starts[again] = 0
    first = np.maximum.accumulate(starts)[again]
    left = texts["row_id"][first]
    jaccard, equal = np.ones(len(again), np.float32), np.ones(len(again), np.uint8)
    return packed(LINK, key=mix(left), left=left, right=texts["row_id"][again], jaccard=jaccard, equal=equal)


def equal_part(work: Workspace, made: Buckets, part: Part, number: int) -> None:
    """Links the equal texts of one bucket of `made`; runs on a worker."""
    links = equal_links(work.bucket_of_documents(TEXTS, number, made.count))
    part.metric("links", len(links))
    sorted_runs.write(part, made.path(number), [sorted_runs.by_key(links)])
