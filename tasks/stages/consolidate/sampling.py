"""Some parts of a large version as a sample of its documents: which parts, their copies, and estimates with intervals.

Parts are drawn by a hash of their names, so that a version has the same sample each time. Documents of a part have more
in common than documents of different parts (a file, an archive), so the interval is that of the variation between
parts: the ratio estimator of a cluster sample (Cochran, Sampling Techniques, 1977, 2.11 and 6.7).
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.artifact import Artifact
from tasks.formats.documents.text import hash64
from tasks.stages.consolidate.resolve import COPIES
from tasks.stages.consolidate.rules import DUPLICATE

FEWEST_PARTS = 8
"""Fewer parts show too little of the variation between parts."""

# Two-sided 95 % quantiles of Student's t for 7 and more degrees of freedom.
_T95 = (2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074,
        2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip


class Estimate(NamedTuple):
    """A number of documents of a version; `low` and `high` are the ends of its 95 % interval, equal if it is exact."""

    number: int
    low: int
    high: int


def sample_of(extracted: Artifact, most: int) -> list[str] | None:
    """Returns the parts of a sample of about `most` documents, at least FEWEST_PARTS; None if all are to be read.

    Args:
        extracted: the documents of a version.
        most: number of documents above which a sample is taken.
    """
    rows = extracted.parts.rows_out()
    names = extracted.names("documents/")
    if sum(rows.get(name, 0) for name in names) <= most:
        return None
    chosen: list[str] = []
    for name in sorted(names, key=lambda name: hash64(f"sample/{name}")):
        if len(chosen) >= FEWEST_PARTS and sum(rows.get(name, 0) for name in chosen) >= most:
            break
        chosen.append(name)
    return None if len(chosen) == len(names) else sorted(chosen)


def copies_of(documents: Artifact, names: Sequence[str]) -> dict[str, pa.Table]:
    """Returns the documents of some parts that are copies, by part (schema `resolve.COPIES`).

    Args:
        documents: the version's documents, whose rejected ones name the document that they duplicate.
        names: the parts.
    """
    return {
        name: _copies(documents.table(f"rejected/{name}.parquet", ["id", "reasons", "duplicate_of"])) for name in names
    }


def _copies(rejected: pa.Table) -> pa.Table:
    rows = rejected.filter(rejected.column("duplicate_of").is_valid())
    kinds = [reasons[-1].removeprefix(DUPLICATE) for reasons in rows.column("reasons").to_pylist()]
    columns: Mapping[str, object] = {
        "id": rows.column("id"),
        "duplicate_of": rows.column("duplicate_of"),
        "kind": pa.array(kinds, pa.string()),
        "jaccard": pc.cast(pa.repeat(0, len(kinds)), pa.float32()),
    }
    return pa.table(columns).cast(COPIES)


def estimate(counts: Sequence[float], sizes: Sequence[int], total: int, parts: int) -> Estimate:
    """Returns the estimate for a version from the counts of some of its parts; exact if these are all parts.

    Args:
        counts: number of documents in question of each part of the sample, or its estimate.
        sizes: number of documents of each of these parts.
        total: number of documents of the version.
        parts: number of its parts.

    >>> estimate([5, 3], [10, 10], 20, 2)
    Estimate(number=8, low=8, high=8)
    >>> estimate([5, 5, 5, 5, 5, 5, 5, 6], [10] * 8, 1000, 100)
    Estimate(number=512, low=484, high=541)
    """
    drawn, size = len(counts), sum(sizes)
    if drawn == parts or not size:
        return Estimate(*[round(sum(counts))] * 3)
    ratio = sum(counts) / size
    residuals = sum((count - ratio * of) ** 2 for count, of in zip(counts, sizes, strict=True)) / max(1, drawn - 1)
    error = total * math.sqrt((1 - drawn / parts) * residuals / drawn) / (size / drawn)
    margin = _T95[min(max(drawn - 8, 0), len(_T95) - 1)] * error
    return Estimate(
        round(total * ratio), max(0, round(total * ratio - margin)), min(total, round(total * ratio + margin))
    )
