"""The audit of duplicates as a figure, for MLflow: sizes of clusters, and where the duplicates are."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.formats.duplicate_audit import DuplicateAudit, Loss

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 12
"""Maximum number of bars of a panel; `domains.parquet` has all."""
# Inches. MLflow shows figures about 600 pixels wide: the panels are stacked, so that text is readable.
_WIDTH, _BAR = 7.5, 0.28
_AROUND = 2.5  # room for a panel's title and scale, in bars


def draw(audit: DuplicateAudit, title: str) -> bytes:
    """Draws clusters by size, and the share of duplicates of the sources and domains with the most of them.

    Returns:
        the figure as a PNG.
    """
    from matplotlib.figure import Figure

    sources = sorted(audit.sources, key=lambda one: (-one.duplicates, one.name))[:_MOST]
    domains = audit.domains[:_MOST]
    rows = [len(panel) + _AROUND for panel in (audit.sizes, sources, domains)]
    # Without pyplot: no display, no global state.
    figure = Figure(figsize=(_WIDTH, _BAR * sum(rows) + _AROUND * _BAR), layout="constrained")
    of_sizes, of_sources, of_domains = figure.subplots(3, 1, height_ratios=rows)
    labels = [f" {one.clusters:,}, with {one.documents:,} documents" for one in audit.sizes]
    counts = [one.clusters for one in audit.sizes]
    _bars(of_sizes, [one.name for one in audit.sizes], counts, labels, "clusters by number of documents")
    of_sizes.set_xscale("symlog")
    _losses(of_sources, sources, "share of duplicates, by source")
    _losses(of_domains, domains, "share of duplicates, of the domains with the most")
    # A "$" in a name would begin a formula.
    figure.suptitle(title, parse_math=False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def _losses(axes: "Axes", losses: Sequence[Loss], title: str) -> None:
    labels = [f" {one.duplicates:,} of {one.documents:,}" for one in losses]
    _bars(axes, [one.name[:40] for one in losses], [one.share for one in losses], labels, title)
    axes.set_xlim(0, 1.3)


def _bars(axes: "Axes", names: list[str], numbers: Sequence[float], labels: list[str], title: str) -> None:
    axes.barh(range(len(names)), numbers, height=0.7)
    for place, (number, label) in enumerate(zip(numbers, labels, strict=True)):
        axes.annotate(label, (number, place), va="center")
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, max([*numbers, 1]) * 10)
    axes.set_title(title)
