"""Report of the decision: a Markdown table and a figure."""

import io
from typing import Any

_DPI = 110


def markdown(decision: dict[str, Any]) -> str:
    """Returns the report: the decision in a sentence, a row for every arm, and a summary of the fit over the arms."""
    sources = sorted(decision["arms"][0]["weights"])
    measured = sorted(decision["arms"][0]["bpb"])
    sure = f"{decision['confidence']:.0%}"
    head = ["arm", "kind", *sources, "target bpb", "lower than current by", f"{sure} interval", *measured, "verdict"]
    lines = [
        "# Canary mixtures",
        "",
        f"**{decision['reason']}.**",
        "",
        "Columns named after a source: left of the target its weight, right of it the bits per byte of its held-out "
        "text. The intervals hold for all arms together (Dunnett). Lower is better; a positive difference is an "
        "improvement.",
        "",
        _row(head),
        _row(["---"] * len(head)),
    ]
    for row in sorted(decision["arms"], key=lambda arm: (arm["target_bpb"], arm["arm"])):
        lines.append(_row(_cells(row, decision, sources, measured)))
    lines += ["", *_fit(decision), ""]
    return "\n".join(lines)


def _cells(row: dict[str, Any], decision: dict[str, Any], sources: list[str], measured: list[str]) -> list[str]:
    is_current = row["arm"] == decision["current"]
    low, high = row["interval"]
    return [
        row["arm"],
        row["kind"],
        *(f"{row['weights'][source]:.3f}" for source in sources),
        f"{row['target_bpb']:.4f}",
        "" if is_current else f"{row['difference']:+.4f}",
        "" if is_current else f"{low:+.4f} .. {high:+.4f}",
        *(f"{row['bpb'][source]:.4f}" for source in measured),
        _verdict(row, decision),
    ]


def _verdict(row: dict[str, Any], decision: dict[str, Any]) -> str:
    if row["arm"] == decision["winner"] and decision["promoted"]:
        return "promoted"
    if row["arm"] == decision["current"]:
        return "replaced" if decision["promoted"] else "stays"
    if row["interval"][0] > 0:
        return f"worse on {', '.join(row['regressions'])}" if row["regressions"] else "better"
    return "worse" if row["interval"][1] < 0 else "not distinguishable"


def _fit(decision: dict[str, Any]) -> list[str]:
    fit = decision["response"]
    if fit is None:
        return [
            "No response is fitted: there are too few arms or sources, or the arms weight another column than the "
            "source, by which they are measured."
        ]
    weights = ", ".join(f"{source} {share:.3f}" for source, share in sorted(fit["proposed_weights"].items()))
    agreement = fit["rank_agreement"]
    ranks = "is not defined" if agreement is None else f"is {agreement:.2f}"
    return [
        "## Response",
        "",
        f"A fit of log(bpb) over the weights proposes {weights}, predicting {fit['proposed_bpb']:.4f} bits per byte. "
        f"The rank correlation of its leave-one-out predictions with the measurements {ranks}. "
        "It is evidence, not a decision: only an arm that was trained can be promoted.",
        *_worth(fit["worth"]),
    ]


def _worth(worth: dict[str, dict[str, float] | None]) -> list[str]:
    """Returns the table of the worth of a token of one source to another; empty if no source has the power form."""
    rows = {source: row for source, row in sorted(worth.items()) if row is not None}
    if not rows:
        return []
    sources = sorted(worth)
    lines = [
        "",
        "What a token of each column is worth for predicting the source of the row, in tokens of its own:",
        "",
        _row(["for", *sources]),
        _row(["---"] * (len(sources) + 1)),
    ]
    return [*lines, *(_row([source, *(f"{row[other]:.3f}" for other in sources)]) for source, row in rows.items())]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def figure(decision: dict[str, Any]) -> bytes:
    """Returns a PNG: each arm's difference with its interval, and the target against the weight of each source."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sources = sorted(decision["arms"][0]["weights"])
    picture = Figure(figsize=(4.5 + 2.6 * len(sources), 4.2), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(picture)
    ratios = [1.6, *([1.0] * len(sources))]
    first, *others = picture.subplots(1, 1 + len(sources), width_ratios=ratios)
    _draw_differences(first, decision)
    for index, (axes, source) in enumerate(zip(others, sources, strict=True)):
        _draw_source(axes, decision, source)
        axes.set_ylabel("target, bits per byte" if index == 0 else "")
    picture.suptitle(decision["reason"], fontsize=10)
    data = io.BytesIO()
    picture.savefig(data, format="png")
    return data.getvalue()


def _colour(row: dict[str, Any], decision: dict[str, Any]) -> str:
    if row["arm"] == decision["current"]:
        return "#333333"
    if row["arm"] == decision["winner"]:
        return "#1a7f37" if decision["promoted"] else "#b58900"
    return "#8aa4c8"


def _draw_differences(axes: Any, decision: dict[str, Any]) -> None:
    rows = sorted(decision["arms"], key=lambda arm: (-arm["target_bpb"], arm["arm"]))
    for y, row in enumerate(rows):
        low, high = row["interval"]
        axes.plot([low, high], [y, y], color=_colour(row, decision), linewidth=2)
        axes.plot(row["difference"], y, "o", color=_colour(row, decision))
    axes.axvline(0, color="#333333", linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(rows)), [f"{row['arm']} ({row['kind']})" for row in rows], fontsize=8)
    axes.set_xlabel("lower than current by, bits per byte")


def _draw_source(axes: Any, decision: dict[str, Any], source: str) -> None:
    for row in decision["arms"]:
        axes.plot(row["weights"][source], row["target_bpb"], "o", color=_colour(row, decision))
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel(f"weight of {source}")
    axes.tick_params(labelsize=8)
