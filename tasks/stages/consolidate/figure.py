"""The funnel as a figure and a CSV table, for MLflow."""

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pa_csv

from tasks.stages.consolidate.funnel import DECONTAMINATE, KEPT, STEPS, left_after, totals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 12
"""Maximum number of bars of a panel; the table has all."""
# Inches. MLflow shows figures about 600 pixels wide: the panels are stacked, so that text is readable.
_WIDTH, _BAR = 7.5, 0.28
_AROUND = 2.5  # room for a panel's title and scale, in bars


def draw(funnel: pa.Table, title: str) -> bytes:
    """Draws the documents left after each step by source, dropped by reason, and kept by language.

    Returns:
        the figure as a PNG.
    """
    from matplotlib.figure import Figure

    lost = _largest({row["reason"]: row["documents"] for row in totals(funnel, ["reason"]) if row["reason"]})
    kept = [row for row in totals(funnel, ["language", "step"]) if row["step"] == KEPT]
    by_language = _largest({row["language"]: row["documents"] for row in kept})
    # Heights are proportional to the number of bars, so that bars have the same thickness in each panel.
    places = _places(funnel)
    rows = [len(places) + _AROUND, len(lost) + _AROUND, len(by_language) + _AROUND]
    # Without pyplot: no display, no global state.
    figure = Figure(figsize=(_WIDTH, _BAR * sum(rows) + _AROUND * _BAR), layout="constrained")
    steps, reasons, languages = figure.subplots(3, 1, height_ratios=rows)
    _steps(steps, funnel, places)
    _bars(reasons, lost, "documents gone, by first reason", "tab:red")
    _bars(languages, by_language, "documents kept, by language", "tab:green")
    # A "$" in a name would begin a formula.
    figure.suptitle(title, parse_math=False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def _places(funnel: pa.Table) -> dict[int, str]:
    """Returns the labels of the bars by their place in `left_after`; decontamination is a bar where it took any."""
    labels = dict(enumerate(("captures", *(f"after {step}" for step in STEPS[:-2]), "kept (after dedup)")))
    if DECONTAMINATE not in funnel.column("step").to_pylist():
        del labels[STEPS.index(DECONTAMINATE) + 1]
    return labels


def _steps(axes: "Axes", funnel: pa.Table, labels: Mapping[int, str]) -> None:
    bars = range(len(labels))
    begin = [0] * len(labels)
    for source, left in sorted(left_after(funnel).items()):
        numbers = [left[place] for place in labels]
        axes.barh(bars, numbers, left=begin, label=source, height=0.7)
        begin = [before + number for before, number in zip(begin, numbers, strict=True)]
    _label(axes, list(labels.values()), begin, "documents left")
    axes.set_xlim(0, max([*begin, 1]) * 1.5)  # room for the legend
    for text in axes.legend(loc="lower right").get_texts():
        text.set_parse_math(False)


def table(funnel: pa.Table) -> bytes:
    """Returns the rows of the funnel as CSV, which MLflow shows as a table."""
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
    for place, number in enumerate(numbers):
        axes.annotate(f" {number:,}", (number, place), va="center")
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, max([*numbers, 1]) * 1.2)
    axes.set_title(title)
