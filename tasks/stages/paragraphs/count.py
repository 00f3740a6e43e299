"""Second step, per range of hashes: in how many documents and domains each paragraph occurs.

Reads the range from the `runs/` of all parts, which are sorted by hash. Writes

    counts/<range>.parquet  the repeated paragraphs (COUNTS), sorted by hash
    top/<range>.parquet     the most repeated ones, sorted by `most`
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.stage import Part
from tasks.core.store import Store
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
MOST = 100
"""Paragraphs in the report."""


def bounds(count: int) -> list[tuple[int, int]]:
    """Returns `count` ranges of 64-bit hashes, first and last inclusive, that have every hash once.

    >>> bounds(2) == [(0, 2**63 - 1), (2**63, 2**64 - 1)]
    True
    """
    cuts = [(index << 64) // count for index in range(count + 1)]
    return [(first, after - 1) for first, after in pairwise(cuts)]


def count_part(
    config: ParagraphsConfig, store: Store, folder: str, names: Sequence[str], part: Part, hashes: tuple[int, int]
) -> None:
    """Writes one range; runs on a worker."""
    first, last = (pa.scalar(one, pa.uint64()) for one in hashes)
    inside = (pc.field("hash") >= first) & (pc.field("hash") <= last)
    runs = (parquet.read(store.local(f"{folder}/runs/{name}.parquet"), filters=inside) for name in names)
    counts = counted(pa.concat_tables([RUN.empty_table(), *runs]))
    found = counts.filter(pa.array(repeated(config, counts)))
    part.table("counts", found.combine_chunks())
    part.table("top", most([found]))
    part.metric("distinct", counts.num_rows)
    part.metric("repeated", found.num_rows)


def counted(runs: pa.Table) -> pa.Table:
    """Returns COUNTS of all paragraphs of some rows of RUN (distinct paragraph and document), sorted by hash."""
    rows = runs.sort_by([(name, "ascending") for name in ("hash", "fetched", "id")])
    hashes = rows.column("hash").to_numpy()
    known, first, sizes = np.unique(hashes, return_index=True, return_counts=True)
    group = np.repeat(np.arange(len(known)), sizes)
    texts, domains = (_distinct(group, rows.column(name).to_numpy(), len(known)) for name in ("text", "domain"))
    of_first = rows.select(["text", "id"]).take(pa.array(first))
    return pa.table([known, sizes, texts, domains, *of_first.columns], schema=COUNTS)


def _distinct(group: NDArray[np.int64], values: NDArray[np.uint64], groups: int) -> NDArray[np.int64]:
    """Returns the number of distinct values of each group, shape (groups,)."""
    order = np.lexsort((values, group))
    group, values = group[order], values[order]
    new = np.ones(len(group), np.bool_)
    new[1:] = (np.diff(group) != 0) | (values[1:] != values[:-1])
    found: NDArray[np.int64] = np.bincount(group[new], minlength=groups)
    return found


def repeated(config: ParagraphsConfig, counts: pa.Table) -> NDArray[np.bool_]:
    """Returns which paragraphs count as repeated, shape (paragraphs,)."""
    texts, domains = (counts.column(name).to_numpy() for name in ("texts", "domains"))
    found: NDArray[np.bool_] = (texts >= config.min_documents) & (domains >= config.min_domains)
    return found & (domains <= config.max_domains) if config.max_domains else found


def most(tables: Sequence[pa.Table]) -> pa.Table:
    """Returns the MOST rows of several COUNTS with most documents; of equal numbers most domains, lowest hash."""
    order = [("documents", "descending"), ("domains", "descending"), ("hash", "ascending")]
    return pa.concat_tables(tables).sort_by(order).slice(0, MOST).combine_chunks()
