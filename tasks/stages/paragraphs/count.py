"""Second step, per range of hashes: in how many documents and domains each paragraph occurs.

Reads the range from the `runs/` of all parts (`tasks.formats.dedup.sorted_runs`). Writes

    counts/<range>.parquet  the repeated paragraphs (COUNTS), sorted by hash
    top/<range>.parquet     the most repeated ones, sorted by `most`
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part
from tasks.formats.dedup import document_ids, sorted_runs
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.stages.paragraphs.config import ParagraphsConfig
from tasks.stages.paragraphs.scan import RUN

COUNTS = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),  # distinct ones with the paragraph
        pa.field("texts", pa.int64(), nullable=False),  # distinct normalised texts of these
        pa.field("domains", pa.int64(), nullable=False),  # registered domains of these
        pa.field("text", pa.uint64(), nullable=False),  # the first text, by (fetched_at, id): it keeps the paragraph
        pa.field("id", pa.string(), nullable=False),  # the first document
    ]
)
FOLDER, TOP = "counts", "top"
MOST = 100
"""Paragraphs in the report."""


def count_part(
    config: ParagraphsConfig, own: ArtifactFolder, runs: Buckets, made: Buckets, part: Part, number: int
) -> None:
    """Writes one range of hashes; runs on a worker.

    Args:
        config: the stage's settings.
        own: its own artifact.
        runs: names of its runs.
        made: names of the files that are written.
        part: receives them.
        number: of the range.
    """
    distinct, found = counted(config, sorted_runs.read_bucket(own, runs.paths(), RUN, number, made.count))
    for table, paths in ((found, made), (most([found]), made.beside(TOP))):
        with part.file(paths.path(number, "parquet"), rows=table.num_rows) as file:
            pq.write_table(table, file, compression="zstd", compression_level=3, store_schema=True)
    part.metric("distinct", distinct)
    part.metric("repeated", found.num_rows)


def counted(config: ParagraphsConfig, runs: NDArray[np.void]) -> tuple[int, pa.Table]:
    """Counts paragraphs.

    Args:
        config: the stage's settings.
        runs: records of RUN: each paragraph once for each document with it.

    Returns:
        number of distinct paragraphs, and COUNTS of those that count as repeated, sorted by hash.
    """
    runs = runs[np.lexsort((runs["id"][:, 1], runs["id"][:, 0], runs["fetched"], runs["key"]))]
    known, first, sizes = np.unique(runs["key"], return_index=True, return_counts=True)
    group = np.repeat(np.arange(len(known)), sizes)
    texts, domains = (_distinct(group, runs[name], len(known)) for name in ("text", "domain"))
    again = repeated(config, texts, domains)
    firsts = runs[first[again]]
    numbers = (values[again] for values in (known, sizes, texts, domains))
    return len(known), pa.table([*numbers, firsts["text"], document_ids.unpack(firsts["id"])], schema=COUNTS)


def _distinct(group: NDArray[np.int64], values: NDArray[np.uint64], groups: int) -> NDArray[np.int64]:
    """Returns the number of distinct values of each group, shape (groups,)."""
    order = np.lexsort((values, group))
    group, values = group[order], values[order]
    new = np.ones(len(group), np.bool_)
    new[1:] = (np.diff(group) != 0) | (values[1:] != values[:-1])
    found: NDArray[np.int64] = np.bincount(group[new], minlength=groups)
    return found


def repeated(config: ParagraphsConfig, texts: NDArray[np.int64], domains: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns which paragraphs count as repeated, by the texts and domains with each, shape (paragraphs,)."""
    found: NDArray[np.bool_] = (texts >= config.min_documents) & (domains >= config.min_domains)
    return found & (domains <= config.max_domains) if config.max_domains else found


def most(tables: Sequence[pa.Table]) -> pa.Table:
    """Returns the MOST rows of several COUNTS with most documents; of equal numbers most domains, lowest hash."""
    order = [("documents", "descending"), ("domains", "descending"), ("hash", "ascending")]
    return pa.concat_tables(tables).sort_by(order).slice(0, MOST).combine_chunks()
