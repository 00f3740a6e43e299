"""The funnel as a picture, for MLflow. Used by `stage`; matplotlib is imported when a picture is drawn."""

import io
from typing import TYPE_CHECKING

import pyarrow as pa

from tasks.consolidate.funnel import KEPT, left_after, totals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LABELS = ("captures", "after extract", "after language", "after quality", "kept (after dedup)")
_MOST = 12
"""Bars of a panel; what comes after is left to the table."""


def draw(funnel: pa.Table, title: str) -> bytes:
    """Draws what is left after each step by source, what went for which reason, and what is kept by language.

    Returns:
        a PNG.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 4.5), layout="constrained")  # without pyplot: no display, no global state
    steps, reasons, languages = figure.subplots(1, 3)
    _steps(steps, funnel)
    lost = [(row["reason"], row["documents"]) for row in totals(funnel, ["reason"]) if row["reason"]]
    _bars(reasons, lost, "documents gone, by first reason", "tab:red")
    kept = [row for row in totals(funnel, ["language", "step"]) if row["step"] == KEPT]
    _bars(languages, [(row["language"], row["documents"]) for row in kept], "documents kept, by language", "tab:green")
    figure.suptitle(title)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def _steps(axes: "Axes", funnel: pa.Table) -> None:
    places = range(len(_LABELS))
    begin = [0] * len(_LABELS)
    for source, numbers in sorted(left_after(funnel).items()):
        axes.barh(places, numbers, left=begin, label=source, height=0.7)
        begin = [before + number for before, number in zip(begin, numbers, strict=True)]
    _label(axes, list(_LABELS), begin, "documents left")
    axes.set_xlim(0, max([*begin, 1]) * 1.5)  # room for the legend
    axes.legend(loc="lower right")


def _bars(axes: "Axes", counts: list[tuple[str, int]], title: str, color: str) -> None:
    largest = sorted(counts, key=lambda row: (-row[1], row[0]))[:_MOST]
    names, numbers = [name for name, _ in largest], [number for _, number in largest]
    axes.barh(range(len(largest)), numbers, color=color, height=0.7)
    _label(axes, names, numbers, title)


def _label(axes: "Axes", names: list[str], numbers: list[int], title: str) -> None:
    for place, number in enumerate(numbers):
        axes.annotate(f" {number:,}", (number, place), va="center")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, max([*numbers, 1]) * 1.2)
    axes.set_title(title)
