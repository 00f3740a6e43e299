"""Stage decide: results of the confirmation -> the mixture for training, and the reason.

Reads `finalist`, and of `confirmations` the `result.json` of the finalist and the current mixture for every fresh seed;
writes `mixture.json` {weights, winner, current, promoted, reason, confidence, target, arms, confirmation, response} and
`report.md`, and logs `response.png` to the tracker.

The finalist is promoted only if the interval of its paired differences is above 0 and no guarded source regresses.
Otherwise the current mixture is kept. See `statistics` for the interval and the fit.
"""

import io
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.stages.canary import CanaryConfig, statistics
from tasks.stages.canary.arms import ARMS, RESULT, Arm
from tasks.stages.canary.finalist import SCREENING, bpb_of, weights_of

VERSION = 2
MIXTURE = "mixture.json"
REPORT = "report.md"
_DPI = 110


def run(config: CanaryConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the decision; raises InputError if the result of a member is missing."""
    screening, pair = (json.loads(inputs["finalist"].read(name)) for name in (SCREENING, ARMS))
    results = [json.loads(member.read(RESULT)) for member in inputs.many("confirmations")]
    decision = decide(config, screening, pair, results)
    if MIXTURE not in output.committed:
        with output.part(MIXTURE, conserved=False) as part:
            with part.file(MIXTURE) as file:
                file.write(json.dumps(decision, indent=2, sort_keys=True).encode() + b"\n")
            with part.file(REPORT) as file:
                file.write(markdown(decision).encode())
    output.log_file("response.png", partial(figure, decision))
    metrics = {"promoted": float(decision["promoted"]), "winner_bpb": _score_of(decision, decision["winner"])}
    metrics["current_bpb"] = _score_of(decision, decision["current"])
    if confirmed := decision["confirmation"]:
        metrics["difference_low"], metrics["difference_high"] = confirmed["interval"]
    return Report(metrics=metrics, note=decision["reason"])


def decide(
    config: CanaryConfig, screening: Mapping[str, Any], pair: Sequence[Arm], results: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the decision, the content of `mixture.json`.

    Args:
        config: settings of the cycle.
        screening: content of `screening.json`.
        pair: the current mixture and the finalist; empty: no arm looked better.
        results: content of every `result.json` of the confirmation.

    Raises:
        InputError: a result is missing, or has other weights than its arm.
    """
    current = screening["arms"][0]
    confirmed = _confirmation(config, screening["target"], pair, results) if pair else None
    promoted = confirmed is not None and confirmed["interval"][0] > 0 and not confirmed["regressions"]
    return {
        "weights": pair[1]["weights"] if promoted else current["weights"],
        "winner": pair[1]["arm"] if promoted else current["arm"],
        "current": current["arm"],
        "promoted": promoted,
        "reason": _reason(config, screening, confirmed, promoted),
        "confidence": config.confidence,
        "confirmation": confirmed,
        **{key: screening[key] for key in ("arms", "target", "response")},
    }


def _confirmation(
    config: CanaryConfig, target: Mapping[str, float], pair: Sequence[Arm], results: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the comparison on fresh seeds; differences are current minus finalist."""
    sources, bpb = bpb_of(pair, config.fresh_seeds, results)
    scores, means = bpb @ weights_of(target, sources), bpb.mean(1)
    differences = scores[0] - scores[1]
    guarded = config.guarded or tuple(sources)
    worse = statistics.regressions(means[1], means[0], sources, guarded, config.guard_share)
    return {
        "arm": pair[1]["arm"],
        "seeds": list(config.fresh_seeds),
        "target_bpb": [round(float(score), 6) for score in scores.mean(1)],
        "differences": [round(float(difference), 6) for difference in differences],
        "difference": round(float(differences.mean()), 6),
        "interval": [round(edge, 6) for edge in statistics.confirm(differences, config.confidence)],
        "regressions": {source: round(share, 6) for source, share in sorted(worse.items())},
    }


def _score_of(decision: Mapping[str, Any], arm: str) -> float:
    """Returns the target's bits per byte of an arm: on the fresh seeds if there are any, else in the screening."""
    if confirmed := decision["confirmation"]:
        return float(confirmed["target_bpb"][arm == confirmed["arm"]])
    return float(next(row["target_bpb"] for row in decision["arms"] if row["arm"] == arm))


def _reason(
    config: CanaryConfig, screening: Mapping[str, Any], confirmed: Mapping[str, Any] | None, promoted: bool
) -> str:
    current, others = screening["arms"][0], screening["arms"][1:]
    if confirmed is None:
        lower = [row for row in others if row["difference"] > 0]
        if not others:
            return f"{current['arm']} stays: there was no other arm"
        if lower:
            worse = _shares(max(lower, key=lambda row: float(row["difference"]))["regressions"])
            return f"{current['arm']} stays: arms better on the target make guarded sources worse ({worse})"
        return f"{current['arm']} stays: no arm was better in the screening"
    name, (low, high) = confirmed["arm"], confirmed["interval"]
    seeds = f"on {len(confirmed['seeds'])} fresh seeds, {config.confidence:.0%} sure"
    if promoted:
        return f"{name} replaces {current['arm']}: lower by {low:.4f} to {high:.4f} bits per byte {seeds}"
    if confirmed["regressions"]:
        worse = _shares(confirmed["regressions"])
        return f"{current['arm']} stays: {name} makes guarded sources worse ({worse})"
    return f"{current['arm']} stays: {name} is not surely better, {low:.4f} to {high:.4f} bits per byte {seeds}"


def _shares(regressions: Mapping[str, float]) -> str:
    return ", ".join(f"{source} {share:+.1%}" for source, share in sorted(regressions.items()))


def markdown(decision: Mapping[str, Any]) -> str:
    """Returns the report in Markdown: decision, confirmation, a row per arm, and a summary of the fit."""
    sources = sorted(decision["arms"][0]["weights"])
    bpb_sources = sorted(decision["arms"][0]["bpb"])
    head = ["arm", "kind", *sources, "target bpb", "lower than current by", *bpb_sources, "verdict"]
    lines = [
        "# Canary mixtures",
        "",
        f"**{decision['reason']}.**",
        "",
        *_confirmed(decision),
        "## Screening",
        "",
        "Columns named after a source: left of the target its weight, right of it the bits per byte of its held-out "
        "text. Lower is better; a positive difference is an improvement. The differences select the finalist and have "
        "no interval: the lowest of several arms is low by chance.",
        "",
        _row(head),
        _row(["---"] * len(head)),
    ]
    for row in sorted(decision["arms"], key=lambda arm: (arm["target_bpb"], arm["arm"])):
        lines.append(_row(_cells(row, decision, sources, bpb_sources)))
    lines += ["", *_fit(decision), ""]
    return "\n".join(lines)


def _confirmed(decision: Mapping[str, Any]) -> list[str]:
    """Returns the section of the confirmation; empty without one."""
    confirmed = decision["confirmation"]
    if not confirmed:
        return []
    low, high = confirmed["interval"]
    rows = [
        _row([str(seed), f"{difference:+.4f}"])
        for seed, difference in zip(confirmed["seeds"], confirmed["differences"], strict=True)
    ]
    return [
        "## Confirmation",
        "",
        f"{decision['current']} and {confirmed['arm']} with the same fresh seeds: lower by "
        f"{confirmed['difference']:+.4f}, {decision['confidence']:.0%} interval {low:+.4f} to {high:+.4f} bits "
        "per byte (Student's, of the paired differences, which holds for any noise of the two arms). With these seeds "
        f"a mean difference of {(high - low) / 2:.4f} would have been enough.",
        "",
        _row(["seed", "lower than current by"]),
        _row(["---"] * 2),
        *rows,
        "",
    ]


def _cells(
    row: Mapping[str, Any], decision: Mapping[str, Any], sources: Sequence[str], bpb_sources: Sequence[str]
) -> list[str]:
    return [
        row["arm"],
        row["kind"],
        *(f"{row['weights'][source]:.3f}" for source in sources),
        f"{row['target_bpb']:.4f}",
        "" if row["arm"] == decision["current"] else f"{row['difference']:+.4f}",
        *(f"{row['bpb'][source]:.4f}" for source in bpb_sources),
        _verdict(row, decision),
    ]


def _verdict(row: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    if row["arm"] == decision["current"]:
        return "replaced" if decision["promoted"] else "stays"
    if decision["confirmation"] and row["arm"] == decision["confirmation"]["arm"]:
        return "promoted" if decision["promoted"] else "finalist, not confirmed"
    return f"worse on {', '.join(row['regressions'])}" if row["regressions"] else ""


def _fit(decision: Mapping[str, Any]) -> list[str]:
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
    """Returns the table of the worth of tokens of one source for another; empty if no source has the power form."""
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


def figure(decision: Mapping[str, Any]) -> bytes:
    """Returns a PNG plot: differences of arms, that of the confirmation with its interval, and target by weight."""
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


def _color(row: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    if row["arm"] == decision["current"]:
        return "#333333"
    if decision["confirmation"] and row["arm"] == decision["confirmation"]["arm"]:
        return "#1a7f37" if decision["promoted"] else "#b58900"
    return "#8aa4c8"


def _draw_differences(axes: Any, decision: Mapping[str, Any]) -> None:
    rows = sorted(decision["arms"], key=lambda arm: (-arm["target_bpb"], arm["arm"]))
    for y, row in enumerate(rows):
        axes.plot(row["difference"], y, "o", color=_color(row, decision))
    labels = [f"{row['arm']} ({row['kind']})" for row in rows]
    if confirmed := decision["confirmation"]:
        color = _color(confirmed, decision)
        axes.plot(confirmed["interval"], [len(rows)] * 2, color=color, linewidth=2)
        axes.plot(confirmed["difference"], len(rows), "o", color=color)
        labels.append(f"{confirmed['arm']}, {len(confirmed['seeds'])} fresh seeds")
    axes.axvline(0, color="#333333", linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_xlabel("lower than current by, bits per byte")


def _draw_source(axes: Any, decision: Mapping[str, Any], source: str) -> None:
    for row in decision["arms"]:
        axes.plot(row["weights"][source], row["target_bpb"], "o", color=_color(row, decision))
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel(f"weight of {source}")
    axes.tick_params(labelsize=8)
