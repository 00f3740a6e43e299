"""The funnel as a picture, for MLflow. Used by `stage`; matplotlib is imported when a picture is drawn."""

import io

import pyarrow as pa

from tasks.consolidate.funnel import left_after

_LABELS = ("captures", "after extract", "after language", "after quality", "kept (after dedup)")


def draw(funnel: pa.Table, title: str) -> bytes:
    """Draws how many documents are left after each step, one colour per source; returns a PNG."""
    from matplotlib.figure import Figure

    left = left_after(funnel)
    figure = Figure(figsize=(8, 3.5), layout="constrained")  # without pyplot: no display, no global state
    axes = figure.subplots()
    places = range(len(_LABELS))
    begin = [0] * len(_LABELS)
    for source, numbers in sorted(left.items()):
        axes.barh(places, numbers, left=begin, label=source, height=0.7)
        begin = [before + number for before, number in zip(begin, numbers, strict=True)]
    for place, total in zip(places, begin, strict=True):
        axes.annotate(f" {total:,}", (total, place), va="center")
    axes.set_yticks(places, _LABELS)
    axes.invert_yaxis()
    axes.set_xlabel("documents")
    axes.set_xlim(0, max([*begin, 1]) * 1.15)
    axes.set_title(title)
    figure.legend(loc="outside right upper")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()
