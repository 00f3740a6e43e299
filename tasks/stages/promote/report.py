"""Report of a comparison: a Markdown table and a figure, of the content of `comparison.json`."""

import io
from typing import Any

_DPI = 110
_HEAD = ("", "metric", "items", "champion", "challenger", "better by", "read in training", "")


def markdown(found: dict[str, Any]) -> str:
    """Returns the report: the decision in a sentence, and a row for the score and for all that was compared."""
    lines = ["# Champion and challenger", "", f"**{found['reason']}.**", ""]
    if not found["rows"]:
        return "\n".join(lines)
    champion, challenger = (found[name]["artifact"] for name in ("champion", "challenger"))
    sure = f"{found['confidence']:.0%}"
    lines += [
        f"Champion: `{champion}`. Challenger: `{challenger}`. Both have scored the same documents and items; a "
        f"positive difference is an improvement. {_seeds(found['score'])}",
        "",
        _row([*_HEAD[:6], f"{sure} interval", *_HEAD[6:]]),
        _row(["---"] * (len(_HEAD) + 1)),
    ]
    score = found["score"]
    whole = [f"**score: mean over {len(score['names'])} {score['of']}**", score["unit"], "", "", ""]
    verdict = "promoted" if found["promoted"] else "stays"
    lines.append(_row([*whole, f"**{score['difference']:+.4f}**", f"**{_interval(score)}**", "", verdict]))
    lines += [_row(_cells(row)) for row in found["rows"]]
    return "\n".join([*lines, ""])


def _seeds(score: dict[str, Any]) -> str:
    several = {name: count for name, count in score["seeds"].items() if count > 1}
    if not several:
        return "The intervals are over documents and items: what another seed would give is not in them."
    counted = " and ".join(f"{count} of the {name}" for name, count in several.items())
    return f"The intervals have the variance over seeds in them ({counted})."


def _cells(row: dict[str, Any]) -> list[str]:
    values = [f"{row[name]:.4f}" for name in ("first", "second")]
    name = f"{row['kind']} {row['name']}"
    return [name, row["metric"], f"{row['items']:,}", *values, f"{row['difference']:+.4f}", _interval(row),
            _read(row["read_in_training"]), _remark(row)]  # fmt: skip


def _interval(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return "none" if low is None else f"{low:+.4f} .. {high:+.4f}"


def _read(flags: dict[str, Any] | None) -> str:
    if flags is None:
        return ""
    counts = {name: None if flag is None else flag["items"] for name, flag in flags.items()}
    if not any(counts.values()):
        return "not looked for" if None in counts.values() else "none found"
    return ", ".join(f"{name} {count:,} items" for name, count in counts.items() if count)


def _remark(row: dict[str, Any]) -> str:
    said = [*(["does not count: the challenger has read its items"] if _spoilt(row) else [])]
    said += ["surely worse"] if row["worse"] else []
    said += [] if row["guarded"] else ["not guarded"]
    return "; ".join(said)


def _spoilt(row: dict[str, Any]) -> bool:
    flags = row["read_in_training"]
    return bool(flags and flags["challenger"] and flags["challenger"]["items"])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def figure(found: dict[str, Any]) -> bytes:
    """Returns a PNG: the difference of the score and of each row, with its interval, by unit."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = [[row for row in found["rows"] if (row["metric"] == "bpb") == bits] for bits in (True, False)]
    groups = [group for group in groups if group]
    picture = Figure(figsize=(7.5, 1.4 + 0.35 * (len(found["rows"]) + 1) + 0.4 * len(groups)), dpi=_DPI,
                     layout="constrained")  # fmt: skip
    FigureCanvasAgg(picture)
    heights = [len(group) + 1 for group in groups]
    panels = picture.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, group in zip(panels, groups, strict=True):
        _draw(axes, group, found["score"])
    picture.suptitle(found["reason"], fontsize=8, parse_math=False, wrap=True)
    data = io.BytesIO()
    picture.savefig(data, format="png")
    return data.getvalue()


def _draw(axes: Any, rows: list[dict[str, Any]], score: dict[str, Any]) -> None:
    unit = "bits per byte" if rows[0]["metric"] == "bpb" else "of the items"
    shown = [*([("score", score, "#333333")] if score["unit"] == unit else [])]
    shown += [(f"{row['kind']} {row['name']}", row, "#b3261e" if row["worse"] else "#8aa4c8") for row in rows]
    for y, (_, row, colour) in enumerate(reversed(shown)):
        low, high = row["interval"]
        if low is not None:
            axes.plot([low, high], [y, y], color=colour, linewidth=2)
        axes.plot(row["difference"], y, "o", color=colour)
    axes.axvline(0, color="#333333", linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(shown)), [name for name, _, _ in reversed(shown)], fontsize=8, parse_math=False)
    axes.set_xlabel(f"challenger better by, {unit}")
