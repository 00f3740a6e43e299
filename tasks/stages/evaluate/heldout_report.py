"""Held-out text over a training, for people: a Markdown table and a figure.

Reads what the run has measured itself (`steps/` of the checkpoint, where `[train.heldout]` is set), and the scores of
the last milestone with their spread over seeds (`seeds`).
"""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.core.artifact import Artifact

Curve = Mapping[str, Sequence[tuple[int, float]]]
"""(steps, bits per byte) by source, ascending."""

_WIDTH, _HEIGHT, _DPI = 7.5, 2.6, 110
_ROWS = 20
"""Steps in the table at most; the figure has all."""
_FIELD = "bpb/"


def curve_of(checkpoint: Artifact) -> Curve:
    """Returns what a run has measured while it trained; {} where it has not."""
    found: dict[str, list[tuple[int, float]]] = {}
    if not checkpoint.record.config.get("heldout"):
        return {}
    for path in checkpoint.files("steps/"):
        for text in checkpoint.read(path).splitlines():
            line = json.loads(text)
            for name in [name for name in line if name.startswith(_FIELD) and line[name] is not None]:
                found.setdefault(name.removeprefix(_FIELD), []).append((line["step"] + 1, line[name]))
    return found


def markdown(scores: Mapping[str, Any], curve: Curve) -> str:
    """Returns the table: a row per source with its score and spread, then the curve at some of its steps."""
    seeds = _seeds(scores)
    lines = ["# Held-out text", "", "Bits per byte.", ""]
    over = ["mean over seeds", "sd", "n"] if seeds else []
    lines += [_row(["source", "documents", f"after step {scores['step']:,}", *over]), _row(["---"] * (3 + len(over)))]
    for source, found in scores["sources"].items():
        row = seeds.get(source)
        spread = [f"{row['mean']:.4f}", f"{row['sd']:.4f}", str(len(row["values"]))] if row else []
        lines.append(_row([source, f"{found['documents']:,}", f"{found['bpb']:.4f}", *spread]))
    if curve:
        values = {source: dict(points) for source, points in curve.items()}
        steps = sorted({step for points in values.values() for step in points})
        shown = steps[:: -(-len(steps) // _ROWS)]
        lines += ["", "Measured while training, on fewer documents:", "", _row(["step", *values]),
                  _row(["---"] * (1 + len(values)))]  # fmt: skip
        for step in sorted({*shown, steps[-1]}):
            cells = [f"{found[step]:.4f}" if step in found else "" for found in values.values()]
            lines.append(_row([f"{step:,}", *cells]))
    return "\n".join([*lines, ""])


def draw(scores: Mapping[str, Any], curve: Curve, title: str) -> bytes:
    """Draws the curve of each source, its score, and the deviation over seeds, as a PNG."""
    from matplotlib.figure import Figure

    seeds, sources = _seeds(scores), list(scores["sources"])
    # Without pyplot: no display, no global state.
    figure = Figure(figsize=(_WIDTH, _HEIGHT * len(sources)), layout="constrained")
    for axes, source in zip(figure.subplots(len(sources), 1, squeeze=False, sharex=True)[:, 0], sources, strict=True):
        points = curve.get(source, ())
        axes.plot([step for step, _ in points], [value for _, value in points], marker=".", label="while training")
        axes.plot(scores["step"], scores["sources"][source]["bpb"], "s", color="#333333", label="evaluated")
        if row := seeds.get(source):
            label = f"mean ± sd of {len(row['values'])} seeds"
            axes.errorbar(scores["step"], row["mean"], row["sd"], fmt="o", color="#b58900", capsize=4, label=label)
        axes.set_title(source, parse_math=False)
        axes.set_ylabel("bits per byte")
        axes.legend(fontsize=7)
    axes.set_xlabel("step")
    # A "$" in a name would begin a formula.
    figure.suptitle(title, parse_math=False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI)
    return file.getvalue()


def _seeds(scores: Mapping[str, Any]) -> dict[str, Any]:
    rows = scores.get("seeds", {}).get("rows", ())
    return {row["name"]: row for row in rows if row["kind"] == "source"}


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
