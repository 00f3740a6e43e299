"""Verification of candidate pairs by the Jaccard similarity of their texts.

Reads the candidate pairs of this stage (`candidates/<part>.parquet`: better, worse, row numbers in the whole corpus)
and the texts of these documents from `extracted`. Writes `verified/<part>.parquet`: better, worse, jaccard, for the
pairs that reach the threshold.

Only verified pairs are duplicates. Bands alone have many false positives: in one published case unverified MinHash with
connected components removed a median of 76 % of the documents of a source.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.artifact import ArtifactFolder
from tasks.core.part import Part
from tasks.core.store import Store
from tasks.formats.text import normalise
from tasks.stages.dedup.config import DedupConfig
from tasks.stages.dedup.shingle import batches as runs
from tasks.stages.dedup.shingle import shingle

VERIFIED = pa.schema(
    [
        pa.field("better", pa.int64(), nullable=False),
        pa.field("worse", pa.int64(), nullable=False),
        pa.field("jaccard", pa.float32(), nullable=False),
    ]
)


def shingle_sets(texts: Sequence[str], size: int) -> list[NDArray[np.uint64]]:
    """Returns the distinct shingles of each text, sorted."""
    found: list[NDArray[np.uint64]] = []
    for batch in runs(texts):
        hashes, counts = shingle([normalise(text) for text in batch], size)
        found += [np.unique(of_text) for of_text in np.split(hashes, np.cumsum(counts)[:-1])]
    return found


def jaccard(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> float:
    """Returns the size of the intersection over that of the union of two sorted sets; 0 for two empty ones."""
    if len(left) > len(right):
        left, right = right, left
    if len(left) == 0:
        return 0.0
    places = np.searchsorted(right, left)
    places[places == len(right)] = 0  # beyond the end: any index serves, the values differ
    common = int(np.count_nonzero(right[places] == left))
    return common / (len(left) + len(right) - common)


@dataclass(frozen=True)
class Texts:
    """The documents of `extracted`, indexed by row number in the whole corpus.

    `files` are the parts in name order; `starts` the row number of each part's first document, followed by the total.
    """

    extracted: ArtifactFolder
    files: tuple[str, ...]
    starts: tuple[int, ...]

    def shingle_sets(self, rows: NDArray[np.int64], size: int) -> dict[int, NDArray[np.uint64]]:
        """Reads the texts at `rows` (sorted, distinct) part by part; returns their shingle sets by row."""
        found: dict[int, NDArray[np.uint64]] = {}
        for file, start, end in zip(self.files, self.starts, self.starts[1:], strict=False):
            in_part = rows[np.searchsorted(rows, start) : np.searchsorted(rows, end)]
            if len(in_part) == 0:
                continue
            texts = self.extracted.table(file, columns=["text"]).column("text").take(pa.array(in_part - start))
            found.update(zip(in_part.tolist(), shingle_sets(texts.to_pylist(), size), strict=True))
        return found

    def part_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the number of the part of each row."""
        return np.searchsorted(self.starts, rows, side="right") - 1


def batches(pairs: NDArray[np.int64], texts: Texts, size: int) -> Sequence[NDArray[np.int64]]:
    """Splits the pairs into batches of at most `size`, each of which reads few parts.

    Pairs are sorted by the parts of their two texts: P parts are then read at most about P / 2 times each, instead of
    once per pair.
    """
    left, right = texts.part_of(pairs[:, 0]), texts.part_of(pairs[:, 1])
    ordered = pairs[np.lexsort((pairs[:, 1], pairs[:, 0], np.maximum(left, right), np.minimum(left, right)))]
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def verify(pairs: NDArray[np.int64], texts: Texts, size: int, threshold: float) -> pa.Table:
    """Returns the pairs whose similarity is at least `threshold`, in input order (schema VERIFIED)."""
    sets = texts.shingle_sets(np.unique(pairs), size)
    shares = np.fromiter((jaccard(sets[a], sets[b]) for a, b in pairs.tolist()), dtype=np.float64, count=len(pairs))
    passed = shares >= threshold
    columns = [pairs[passed, 0], pairs[passed, 1], shares[passed].astype(np.float32)]
    return pa.table(columns, schema=VERIFIED)


def verify_part(config: DedupConfig, texts: Texts, store: Store, folder: str, part: Part, path: str) -> None:
    """Verifies one file of candidate pairs; runs on a worker.

    Args:
        config: the stage's settings.
        texts: the documents.
        store: store of this stage's artifact.
        folder: the artifact's folder in the store.
        part: the part to write.
        path: the file of pairs, relative to the artifact: `candidates/<part>.parquet`.
    """
    table = parquet.read(store.local(f"{folder}/{path}"))
    pairs = np.stack([table.column("better").to_numpy(), table.column("worse").to_numpy()], axis=1)
    passed = verify(pairs, texts, config.minhash.shingle, config.jaccard)
    part.metric("verified_pairs", passed.num_rows)
    with part.file(path.replace("candidates/", "verified/"), rows=passed.num_rows) as file:
        pq.write_table(passed, file, compression="zstd", compression_level=3)
