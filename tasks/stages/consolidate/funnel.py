"""Funnel: number of documents by source, language, step and reason, from capture to kept; as tables, a figure and CSV.

Pure functions that compute the tables of parts and their sums. Each capture is counted in exactly one row, so the sum
over all rows of a source is its number of captures.
"""

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from tasks.filters.base import fields
from tasks.filters.language import is_close
from tasks.formats.documents.languages import language_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes


EXTRACT, LANGUAGE, QUALITY, DECONTAMINATE, DEDUP, KEPT = STEPS = (
    *("extract", "language", "quality", "decontaminate", "dedup", "kept"),
)

FUNNEL = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("language", pa.string(), nullable=False),  # "" if there is no text
        pa.field("step", pa.string(), nullable=False),  # one of STEPS: the last step of these documents
        pa.field("reason", pa.string(), nullable=False),  # first reason; "" if kept
        pa.field("tier", pa.string(), nullable=False),  # "silver" or "gold" if kept, else ""
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64()),  # UTF-8 bytes of extracted text; null if there is no text
    ]
)

HOSTS = pa.schema(
    [
        pa.field("host", pa.string(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("kept", pa.int64(), nullable=False),
        pa.field("kept_bytes", pa.int64(), nullable=False),
    ]
)

PAIRS = pa.schema(
    [
        pa.field("language", pa.string(), nullable=False),
        pa.field("second", pa.string(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("kept", pa.int64(), nullable=False),
    ]
)
"""Documents whose second language is nearly as probable as their language (`tasks.filters.language.is_close`)."""

_KEYS = FUNNEL.names[:-2]

UNCHANGED = "revisit"
"""Reason of a page that was captured again with the same bytes."""

MOST_LOST = 0.9
"""Share of a source's documents that filters drop, above which its limits are probably wrong."""

OUTCOME = pa.schema([FUNNEL.field(name) for name in (*_KEYS, "bytes")])
"""One row per capture: its outcome."""

_MOST = 12
"""Maximum number of bars of a panel; the table has all rows."""

# Inches. MLflow shows figures about 600 pixels wide; the panels are stacked, so that text is readable.
_WIDTH, _BAR = 7.5, 0.28

_AROUND = 2.5  # room for a panel's title and scale, in bars


def count(outcomes: pa.Table) -> pa.Table:
    """Counts rows of OUTCOME; returns a table of FUNNEL, sorted by source, language, step, reason and tier."""
    return add([outcomes.append_column("documents", pa.array([1] * outcomes.num_rows, pa.int64()))])


def add(tables: Iterable[pa.Table]) -> pa.Table:
    """Returns the sum of several funnels."""
    rows = pa.concat_tables([FUNNEL.empty_table(), *(table.select(FUNNEL.names).cast(FUNNEL) for table in tables)])
    summed = rows.group_by(_KEYS).aggregate([("documents", "sum"), ("bytes", "sum")])
    summed = summed.rename_columns(FUNNEL.names)
    order = pc.index_in(summed.column("step"), pa.array(STEPS))
    ordered = summed.append_column("order", order).sort_by(
        [(name, "ascending") for name in ("source", "language", "order", "reason", "tier")]
    )
    return ordered.select(FUNNEL.names).cast(FUNNEL).combine_chunks()


def count_hosts(hosts: pa.ChunkedArray, kept: pa.Array, sizes: pa.Array) -> pa.Table:
    """Counts documents, kept documents and their bytes per host; returns a table of HOSTS."""
    ones = pa.array([1] * len(hosts), pa.int64())
    is_kept = kept.cast(pa.int64())
    return add_hosts([pa.table([hosts, ones, is_kept, pc.multiply(is_kept, sizes.cast(pa.int64()))], HOSTS.names)])


def add_hosts(tables: Iterable[pa.Table]) -> pa.Table:
    """Returns the sum of several tables of HOSTS, sorted by descending documents, then by host."""
    rows = pa.concat_tables([HOSTS.empty_table(), *(table.cast(HOSTS) for table in tables)])
    summed = rows.group_by("host").aggregate([(name, "sum") for name in HOSTS.names[1:]])
    renamed = summed.rename_columns(HOSTS.names).cast(HOSTS)
    return renamed.sort_by([("documents", "descending"), ("host", "ascending")]).combine_chunks()


def count_pairs(language: pa.StructArray, kept: pa.Array) -> pa.Table:
    """Counts documents whose second language is close; returns a table of PAIRS.

    Args:
        language: the column of the annotator `language`; null where it failed.
        kept: whether each document is kept.
    """
    known = language.is_valid()
    measured, is_kept = fields(language.filter(known)), kept.filter(known).cast(pa.int64())
    rows = pa.array(np.flatnonzero(is_close(measured)), pa.int64())
    columns = [pa.array(measured[name], pa.string()).take(rows) for name in ("label", "second")]
    return add_pairs([pa.table([*columns, pa.array([1] * len(rows), pa.int64()), is_kept.take(rows)], PAIRS.names)])


def add_pairs(tables: Iterable[pa.Table]) -> pa.Table:
    """Returns the sum of several tables of PAIRS, sorted by descending documents, then by language."""
    rows = pa.concat_tables([PAIRS.empty_table(), *(table.cast(PAIRS) for table in tables)])
    summed = rows.group_by(PAIRS.names[:2]).aggregate([(name, "sum") for name in PAIRS.names[2:]])
    renamed = summed.rename_columns(PAIRS.names).cast(PAIRS)
    order = [("documents", "descending"), ("language", "ascending"), ("second", "ascending")]
    return renamed.sort_by(order).combine_chunks()


def totals(funnel: pa.Table, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the sums of documents and bytes by `keys`, sorted by `keys`, with steps in the order of STEPS."""
    summed = funnel.group_by(list(keys)).aggregate([("documents", "sum"), ("bytes", "sum")])
    rows: list[dict[str, Any]] = summed.rename_columns([*keys, "documents", "bytes"]).to_pylist()
    return sorted(rows, key=lambda row: [STEPS.index(row[key]) if key == "step" else row[key] for key in keys])


def filter_losses(funnel: pa.Table) -> dict[str, tuple[int, Counter[str]]]:
    """Returns, by source, the number of documents and the numbers that are dropped before dedup, by reason."""
    losses: dict[str, tuple[int, Counter[str]]] = {}
    for row in totals(funnel, ["source", "step", "reason"]):
        if row["step"] == EXTRACT:
            continue
        documents, reasons = losses.get(row["source"], (0, Counter()))
        if row["step"] in (LANGUAGE, QUALITY, DECONTAMINATE):
            reasons[row["reason"]] += row["documents"]
        losses[row["source"]] = (documents + row["documents"], reasons)
    return losses


def left_after_steps(funnel: pa.Table) -> dict[str, list[int]]:
    """Returns, for every source, the number of captures and the numbers of documents left after each step.

    The steps are extract, language, quality, decontaminate and dedup, after which the documents are the kept ones.
    """
    lost: dict[str, dict[str, int]] = {}
    for row in funnel.to_pylist():
        steps = lost.setdefault(row["source"], dict.fromkeys(STEPS, 0))
        steps[row["step"]] += row["documents"]
    left = {}
    for source, steps in lost.items():
        counts = [sum(steps.values())]
        for step in STEPS[:-1]:
            counts.append(counts[-1] - steps[step])
        left[source] = counts
    return left


def draw(funnel: pa.Table, title: str) -> bytes:
    """Returns a figure (PNG) of documents left after each step by source, dropped by reason, and kept by language."""
    from matplotlib.figure import Figure

    lost = _largest({row["reason"]: row["documents"] for row in totals(funnel, ["reason"]) if row["reason"]})
    kept = [row for row in totals(funnel, ["language", "step"]) if row["step"] == KEPT]
    by_language = _largest({language_name(row["language"]): row["documents"] for row in kept})
    # Heights of panels are proportional to their number of bars, so that all bars have the same thickness.
    labels = step_labels(funnel)
    rows = [len(labels) + _AROUND, len(lost) + _AROUND, len(by_language) + _AROUND]
    # pyplot would use a display and global state.
    figure = Figure(figsize=(_WIDTH, _BAR * sum(rows) + _AROUND * _BAR), layout="constrained")
    steps, reasons, languages = figure.subplots(3, 1, height_ratios=rows)
    _steps(steps, funnel, labels)
    _bars(reasons, lost, "documents gone, by first reason", "tab:red")
    _bars(languages, by_language, "documents kept, by language", "tab:green")
    # Without this, a "$" in a name would begin a formula.
    figure.suptitle(title, parse_math=False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def step_labels(funnel: pa.Table) -> dict[int, str]:
    """Returns the labels of bars by index in `left_after_steps`; decontamination has a bar if it dropped documents."""
    labels = dict(enumerate(("captures", *(f"after {step}" for step in STEPS[:-2]), "kept (after dedup)")))
    if DECONTAMINATE not in funnel.column("step").to_pylist():
        del labels[STEPS.index(DECONTAMINATE) + 1]
    return labels


def _steps(axes: "Axes", funnel: pa.Table, labels: Mapping[int, str]) -> None:
    bars = range(len(labels))
    begin = [0] * len(labels)
    for source, counts in sorted(left_after_steps(funnel).items()):
        numbers = [counts[index] for index in labels]
        axes.barh(bars, numbers, left=begin, label=source, height=0.7)
        begin = [before + number for before, number in zip(begin, numbers, strict=True)]
    _label(axes, list(labels.values()), begin, "documents left")
    axes.set_xlim(0, max([*begin, 1]) * 1.5)  # room for the legend
    for text in axes.legend(loc="lower right").get_texts():
        text.set_parse_math(False)


def csv_of(funnel: pa.Table) -> bytes:
    """Returns the funnel as CSV, which MLflow shows as a table."""
    file = io.BytesIO()
    pa_csv.write_csv(funnel, file)
    return file.getvalue()


def _largest(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda row: (-row[1], row[0]))[:_MOST]


def _bars(axes: "Axes", counts: list[tuple[str, int]], title: str, color: str) -> None:
    names, numbers = [name for name, _ in counts], [number for _, number in counts]
    axes.barh(range(len(counts)), numbers, color=color, height=0.7)
    _label(axes, names, numbers, title)


def _label(axes: "Axes", names: list[str], numbers: list[int], title: str) -> None:
    for index, number in enumerate(numbers):
        axes.annotate(f" {number:,}", (number, index), va="center")
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, max([*numbers, 1]) * 1.2)
    axes.set_title(title)
