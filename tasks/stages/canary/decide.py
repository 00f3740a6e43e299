"""Stage decide: results of the arms -> the mixture for training, and the reason.

Reads `arms` and `canaries` (every arm's `result.json`); writes `mixture.json` {weights, winner, current, interval,
promoted, reason, confidence, target, arms, response} and `report.md`, a table of the arms, and logs `response.png` to
the tracker.

An arm is promoted only if the interval of its paired difference is above 0 and no guarded source regresses. Otherwise
the current mixture is kept. See `statistics` for the intervals and the fit.
"""

import io
import json
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.tokens.mixture import grid_weights
from tasks.stages.canary import CanaryConfig, statistics
from tasks.stages.canary.arms import ARMS, RESULT

VERSION = 1
MIXTURE = "mixture.json"
REPORT = "report.md"
_DPI = 110


def run(config: CanaryConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the decision; raises InputError if the result of a member is missing."""
    arms = json.loads(inputs["arms"].read(ARMS))
    results = [json.loads(member.read(RESULT)) for member in inputs.many("canaries")]
    decision = decide(config, arms, results)
    if MIXTURE not in output.committed:
        with output.part(MIXTURE, conserved=False) as part:
            with part.file(MIXTURE) as file:
                file.write(json.dumps(decision, indent=2, sort_keys=True).encode() + b"\n")
            with part.file(REPORT) as file:
                file.write(markdown(decision).encode())
    output.log_file("response.png", partial(figure, decision))
    low, high = decision["interval"]
    scores = {row["arm"]: row["target_bpb"] for row in decision["arms"]}
    metrics = {
        "promoted": float(decision["promoted"]),
        "current_bpb": scores[decision["current"]],
        "winner_bpb": scores[decision["winner"]],
        "difference_low": low,
        "difference_high": high,
    }
    return Report(metrics=metrics, note=decision["reason"])


def decide(config: CanaryConfig, arms: list[dict[str, Any]], results: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the decision, the content of `mixture.json`.

    Args:
        config: settings of the cycle.
        arms: content of `arms.json`; the first is the current mixture.
        results: content of every `result.json`.

    Raises:
        InputError: a result is missing, or has other weights than its arm.
    """
    names = [arm["arm"] for arm in arms]
    sources, bpb = _table(arms, config.seeds, results)
    target = config.target or dict.fromkeys(sources, 1 / len(sources))
    guarded = config.guarded or tuple(sources)
    comparisons: list[statistics.Comparison] = []
    if len(arms) > 1:
        comparisons = statistics.compare(bpb, names, sources, target, config.confidence, config.guard_share, guarded)
    promoted = statistics.winner(comparisons)
    best = promoted or min(comparisons, key=lambda comparison: (comparison.mean, comparison.arm), default=None)
    winner = best.arm if best else names[0]
    selected = promoted.arm if promoted else names[0]
    goal = np.array([target.get(source, 0.0) for source in sources])
    return {
        "weights": next(arm["weights"] for arm in arms if arm["arm"] == selected),
        "winner": winner,
        "current": names[0],
        "interval": [round(edge, 6) for edge in best.interval] if best else [0.0, 0.0],
        "promoted": promoted is not None,
        "reason": _reason(promoted, best, names[0], config),
        "confidence": config.confidence,
        "target": {source: round(weight, 6) for source, weight in sorted(target.items())},
        "arms": _rows(arms, bpb, sources, bpb.mean(1) @ goal, comparisons),
        "response": _response(config, arms, bpb.mean(1), sources, target),
    }


def _table(
    arms: list[dict[str, Any]], seeds: tuple[int, ...], results: list[dict[str, Any]]
) -> tuple[list[str], NDArray[np.float64]]:
    """Returns the sources and their bits per byte, shape (arms, seeds, sources)."""
    by_run = {(result["arm"], result["seed"]): result for result in results}
    missing = [f"{arm['arm']}-seed-{s}" for arm in arms for s in seeds if (arm["arm"], s) not in by_run]
    if missing:
        raise InputError(f"no result of {', '.join(missing)}", "run the stage canary for these members")
    for arm in arms:
        for seed in seeds:
            if by_run[arm["arm"], seed]["weights"] != arm["weights"]:
                raise InputError(
                    f"{arm['arm']}-seed-{seed} was trained with other weights than {arm['arm']} has now",
                    "run the stage canary again",
                )
    sources = sorted(by_run[arms[0]["arm"], seeds[0]]["bpb"])
    rows = [[[by_run[arm["arm"], s]["bpb"][source] for source in sources] for s in seeds] for arm in arms]
    return sources, np.array(rows, dtype=np.float64)


def _reason(
    promoted: statistics.Comparison | None, best: statistics.Comparison | None, current: str, config: CanaryConfig
) -> str:
    confidence = f"{config.confidence:.0%}"
    if promoted:
        low, high = promoted.interval
        return f"{promoted.arm} replaces {current}: lower by {low:.4f} to {high:.4f} bits per byte, {confidence} sure"
    if best is None:
        return f"{current} stays: there was no other arm"
    low, high = best.interval
    if best.better:
        regressions = ", ".join(f"{source} {share:+.1%}" for source, share in sorted(best.regressions.items()))
        return f"{current} stays: {best.arm} is better on the target, but guarded sources pay for it ({regressions})"
    return f"{current} stays: {best.arm} is not surely better, {low:.4f} to {high:.4f} bits per byte, {confidence} sure"


def _rows(
    arms: list[dict[str, Any]],
    bpb: NDArray[np.float64],
    sources: list[str],
    scores: NDArray[np.float64],
    comparisons: list[statistics.Comparison],
) -> list[dict[str, Any]]:
    by_arm = {comparison.arm: comparison for comparison in comparisons}
    rows = []
    for index, arm in enumerate(arms):
        comparison = by_arm.get(arm["arm"])
        regressions = comparison.regressions if comparison else {}
        means = bpb[index].mean(0)
        rows.append(
            {
                **{key: arm[key] for key in ("arm", "kind", "weights")},
                "target_bpb": round(float(scores[index]), 6),
                "bpb": {source: round(float(value), 6) for source, value in zip(sources, means, strict=True)},
                "difference": round(comparison.difference, 6) if comparison else 0.0,
                "interval": [round(edge, 6) for edge in comparison.interval] if comparison else [0.0, 0.0],
                "regressions": {source: round(share, 6) for source, share in sorted(regressions.items())},
            }
        )
    return rows


def _response(
    config: CanaryConfig,
    arms: list[dict[str, Any]],
    bpb: NDArray[np.float64],
    sources: list[str],
    target: dict[str, float],
) -> dict[str, Any] | None:
    """Returns the summary of the fit, or None without one.

    There is none for too few arms or sources, nor if the arms weight another column (`[pack] by`) than the source, by
    which they are measured.
    """
    weights = np.array([[arm["weights"].get(source, 0.0) for source in sources] for arm in arms])
    if len(arms) < 3 or len(sources) < 2 or not weights.any():
        return None
    response = statistics.fit(weights, bpb, sources, target)
    # Bounded by the largest share of each source in any arm: the fit must not extrapolate.
    best = response.best(weights.max(0))
    return {
        "rank_agreement": None if response.rank_agreement is None else round(response.rank_agreement, 4),
        "proposed_weights": grid_weights(dict(zip(sources, np.round(best, 3).tolist(), strict=True))),
        "proposed_bpb": round(float(response.predict(best[None])[0]), 6),
        "forms": dict(zip(sources, response.forms, strict=True)),
        "worth": {
            source: None if row is None else dict(zip(sources, np.round(row, 4).tolist(), strict=True))
            for source, row in zip(sources, response.worth, strict=True)
        },
        "left_out_bpb": {arm["arm"]: round(float(x), 6) for arm, x in zip(arms, response.left_out, strict=True)},
    }


def markdown(decision: dict[str, Any]) -> str:
    """Returns the report in Markdown: the decision in a sentence, a row per arm, and a summary of the fit."""
    sources = sorted(decision["arms"][0]["weights"])
    bpb_sources = sorted(decision["arms"][0]["bpb"])
    confidence = f"{decision['confidence']:.0%}"
    head = [
        "arm",
        "kind",
        *sources,
        "target bpb",
        "lower than current by",
        f"{confidence} interval",
        *bpb_sources,
        "verdict",
    ]
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
        lines.append(_row(_cells(row, decision, sources, bpb_sources)))
    lines += ["", *_fit(decision), ""]
    return "\n".join(lines)


def _cells(row: dict[str, Any], decision: dict[str, Any], sources: list[str], bpb_sources: list[str]) -> list[str]:
    is_current = row["arm"] == decision["current"]
    low, high = row["interval"]
    return [
        row["arm"],
        row["kind"],
        *(f"{row['weights'][source]:.3f}" for source in sources),
        f"{row['target_bpb']:.4f}",
        "" if is_current else f"{row['difference']:+.4f}",
        "" if is_current else f"{low:+.4f} .. {high:+.4f}",
        *(f"{row['bpb'][source]:.4f}" for source in bpb_sources),
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


def figure(decision: dict[str, Any]) -> bytes:
    """Returns a PNG plot: each arm's difference with its interval, and the target against each source's weight."""
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


def _color(row: dict[str, Any], decision: dict[str, Any]) -> str:
    if row["arm"] == decision["current"]:
        return "#333333"
    if row["arm"] == decision["winner"]:
        return "#1a7f37" if decision["promoted"] else "#b58900"
    return "#8aa4c8"


def _draw_differences(axes: Any, decision: dict[str, Any]) -> None:
    rows = sorted(decision["arms"], key=lambda arm: (-arm["target_bpb"], arm["arm"]))
    for y, row in enumerate(rows):
        low, high = row["interval"]
        axes.plot([low, high], [y, y], color=_color(row, decision), linewidth=2)
        axes.plot(row["difference"], y, "o", color=_color(row, decision))
    axes.axvline(0, color="#333333", linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(rows)), [f"{row['arm']} ({row['kind']})" for row in rows], fontsize=8)
    axes.set_xlabel("lower than current by, bits per byte")


def _draw_source(axes: Any, decision: dict[str, Any], source: str) -> None:
    for row in decision["arms"]:
        axes.plot(row["weights"][source], row["target_bpb"], "o", color=_color(row, decision))
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel(f"weight of {source}")
    axes.tick_params(labelsize=8)
