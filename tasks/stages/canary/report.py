"""Report of a cycle: `report.md`, plain words first, and the figure `response.png`.

Both are made from the decision alone (`decide.decide`).
"""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.stages.canary import REPEATED

_DPI = 110


def markdown(decision: Mapping[str, Any]) -> str:
    """Returns the report in Markdown: first in plain words, then the figures, and the rules as registered."""
    return "\n".join(
        [
            "# Canary settings" if "settings" in decision else "# Canary mixtures",
            "",
            *_plain(decision),
            *_confirmed(decision),
            *_screening(decision),
            *_sources(decision),
            *_fit(decision),
            "",
            *_earlier(decision["earlier"]),
            "## Registered before the first run",
            "",
            *(f"- {rule}" for rule in decision["registered"]["rules"]),
            "",
        ]
    )


def _plain(decision: Mapping[str, Any]) -> list[str]:
    """Returns decision, certainty, cost and what would change the decision, in sentences."""
    lines = [*_headline(decision), "", f"{decision['reason']}.", "", f"- *How sure:* {_certainty(decision)}"]
    if "settings" in decision:
        lines.insert(-1, _settings(decision))
    lines += [f"- *Cost:* {decision['cost']}.", f"- *What would change it:* {_change(decision)}"]
    if cycles := decision["earlier"]["cycles"]:
        used = "not used" if decision["earlier"]["used"] in (None, "alone") else "used"
        lines.append(
            f"- *Earlier cycles:* {sum(cycle['runs'] for cycle in cycles)} arms of {len(cycles)} were {used} in the "
            "fit; see below how well they predicted this one."
        )
    if decision["small_models"]:
        lines.append(
            f"- *These models are too small to rank mixtures for a large one:* {decision['parameters']:,} weights; "
            "from about 15 M weights on, small models rank as large ones do. The cycle shows the process."
        )
    return [*lines, ""]


def _settings(decision: Mapping[str, Any]) -> str:
    changed = "; ".join(f"`{path}` = `{json.dumps(value)}`" for path, value in sorted(decision["settings"].items()))
    if not changed:
        return "- *Settings:* those of the recipe."
    return (
        f"- *Settings:* {changed}. The training starts with them, on the tokens of the version "
        f"`<version>.{decision['variant']}`, and so does the next cycle."
    )


def _headline(decision: Mapping[str, Any]) -> list[str]:
    """Returns in a sentence each what to train on, and what the small models gained by it."""
    before, after = decision["arms"][0]["weights"], sorted(decision["weights"].items())
    of_settings = "settings" in decision
    if not decision["promoted"]:
        what = "settings" if of_settings else f"mixture: {', '.join(f'{name} {share:.1%}' for name, share in after)}"
        return [f"**Keep the {what}.** No other {'ones are' if of_settings else 'one is'} surely better."]
    changes = ", ".join(f"{name} {share:.1%} (was {before.get(name, 0):.1%})" for name, share in after)
    what = f"the settings of {decision['variant']}" if of_settings else f"a new mixture: {changes}"
    old, new = decision["confirmation"]["target_bpb"]
    predicted = "held-out text and right answers" if "tasks" in decision else "held-out text"
    return [
        f"**Use {what}.** Small models that read it predict {predicted} with {new:.4f} instead of "
        f"{old:.4f} {unit(decision)}, {1 - new / old:.1%} fewer."
    ]


def _certainty(decision: Mapping[str, Any]) -> str:
    again = next(row for row in decision["arms"] if row["kind"] == REPEATED)
    same = f"The same mixture with other data was {again['difference']:+.4f} {unit(decision)} from it in the screening"
    confirmed, checks = decision["confirmation"], decision["checks"]
    if not confirmed:
        return f"{same}. Nothing was confirmed, so there is no interval."
    low, high = confirmed["interval"]
    parts = [
        f"{confirmed['difference']:+.4f} {unit(decision)}, {decision['confidence']:.0%} interval {low:+.4f} to "
        f"{high:+.4f}."
    ]
    parts.append(f"{same}, and {checks['again']['difference']:+.4f} on the fresh seeds")
    parts[-1] += (
        ", which would not have been promoted." if checks["again"]["passed"] else ", which would have been promoted."
    )
    if rate := checks.get("low_rate"):
        parts.append(
            f"At one fifth of the learning rate the difference is {rate['difference']:+.4f} on {len(rate['seeds'])} "
            "seeds."
            if rate["seeds"]
            else "The budget did not pay for the check at one fifth of the learning rate."
        )
    else:
        parts.append("The learning rate was not varied.")
    return " ".join(parts)


def _change(decision: Mapping[str, Any]) -> str:
    confirmed = decision["confirmation"]
    if not confirmed:
        return "an arm that is lower than the current mixture in the screening: more arms or rounds, or other anchors."
    low, high = confirmed["interval"]
    needed = (high - low) / 2
    if decision["promoted"]:
        return (
            f"a mean difference below {needed:.4f} on these seeds, a guarded source that becomes worse, or another "
            "sign at the low learning rate."
        )
    if low <= 0:
        return f"a mean difference above {needed:.4f} on these seeds, or more confirmations, which narrow the interval."
    return "a finalist that passes the check which stopped this one."


def _confirmed(decision: Mapping[str, Any]) -> list[str]:
    """Returns the section of the confirmation; empty without one."""
    confirmed = decision["confirmation"]
    if not confirmed:
        return []
    low, high = confirmed["interval"]
    named = {
        "lower than current by": confirmed,
        "A/A": decision["checks"].get("again", {}),
        "low learning rate": decision["checks"].get("low_rate", {}),
    }
    columns = {
        name: dict(zip(one["seeds"], one["differences"], strict=True))
        for name, one in named.items()
        if one.get("seeds")
    }
    rows = [
        _row([str(seed), *(f"{column[seed]:+.4f}" if seed in column else "" for column in columns.values())])
        for seed in confirmed["seeds"]
    ]
    weights = ", ".join(f"{source} {share:.3f}" for source, share in sorted(confirmed["weights"].items()))
    return [
        "## Confirmation",
        "",
        f"{confirmed['arm']} ({confirmed['kind']}) has the weights {weights}.",
        "",
        f"{decision['current']} and {confirmed['arm']} with the same fresh seeds: lower by "
        f"{confirmed['difference']:+.4f}, {decision['confidence']:.0%} interval {low:+.4f} to {high:+.4f} "
        f"{unit(decision)} (Student's, of the paired differences, which holds for any noise of the two arms). With "
        f"these seeds a mean difference of {(high - low) / 2:.4f} would have been enough.",
        "",
        _row(["seed", *columns]),
        _row(["---"] * (1 + len(columns))),
        *rows,
        "",
    ]


def _screening(decision: Mapping[str, Any]) -> list[str]:
    sources = sorted(decision["arms"][0]["weights"])
    bpb_sources = sorted(decision["arms"][0]["bpb"])
    head = ["arm", "kind", *(f"weight of {source}" for source in sources), "target bpb", "lower than current by"]
    tasks = decision.get("tasks", {})
    measured = [f"{'bits' if name in tasks else 'bpb'} of {name}" for name in bpb_sources]
    head += ["predicted", *measured, "verdict"]
    rounds = [
        f"Round {row['round']}: {row['stopped'] or ', '.join(row['arms'])}"
        + ("" if row["probability"] is None else f" (best lower than current: {row['probability']:.1%})")
        for row in decision["rounds"]
    ]
    arms = sorted(decision["arms"], key=lambda arm: (arm["target_bpb"], arm["arm"]))
    return [
        "## Screening",
        "",
        "bpb: bits per byte of held-out text. Lower is better; a positive difference is an improvement. Predicted: by "
        "the response fitted to all other arms. The differences select the finalist and have no interval: the lowest "
        "of several arms is low by chance.",
        "",
        *(f"- {line}" for line in rounds),
        "",
        _row(head),
        _row(["---"] * len(head)),
        *(_row(_cells(row, decision, sources, bpb_sources)) for row in arms),
        "",
    ]


def _sources(decision: Mapping[str, Any]) -> list[str]:
    """Returns the section on what each source's held-out text can tell."""
    lines = [
        "## Target",
        "",
        "Every source is measured by bits per byte of its held-out text: continuous, so that small models differ in it "
        "long before they answer a question, and the same for every tokenizer. Signal: standard deviation between "
        "arms; noise: between repeats of an arm. A source whose ratio of variances is surely below the floor has no "
        "vote.",
        "",
        _row(["source", "signal", "noise", "ratio", "at most", "weight in the target"]),
        _row(["---"] * 6),
    ]
    tasks = decision.get("tasks", {})
    for source, signal in sorted(decision["signals"].items()):
        if source not in tasks:
            lines.append(_row([source, *_figures(signal), _vote(decision, source)]))
    return [*lines, "", *(_tasks(decision) if tasks else [])]


def _figures(signal: Mapping[str, Any]) -> list[str]:
    ratios = ["" if signal[key] is None else f"{signal[key]:.3g}" for key in ("ratio", "upper")]
    return [f"{signal['between']:.4f}", f"{signal['noise']:.4f}", *ratios]


def _vote(decision: Mapping[str, Any], name: str) -> str:
    weight = decision["target"].get(name, 0.0)
    return f"{weight:.3f}" if decision["signals"][name]["votes"] else "does not vote"


def _tasks(decision: Mapping[str, Any]) -> list[str]:
    """Returns the table of the tasks: the metric of each, and why it is that one."""
    lines = [
        "Tasks are measured in bits, too, lower is better: *answer*, bits per byte of the right answer, and of tasks "
        "with choices *choice*, -log2 of the mean over items of the probability of the right choice over the sum of "
        "all choices', each to the power of 1 / bytes. The metric with the larger ratio is used; a task votes only if "
        "that ratio is not below the floor.",
        "",
        _row(["task", "metric", "signal", "noise", "ratio", "at most", "weight in the target", "why this metric"]),
        _row(["---"] * 8),
    ]
    for task, about in sorted(decision["tasks"].items()):
        signal = about["metrics"][about["metric"]]
        lines.append(_row([task, about["metric"], *_figures(signal), _vote(decision, task), _why(about)]))
    return [*lines, ""]


def _why(about: Mapping[str, Any]) -> str:
    """Returns why a task is measured by its metric, and why it does not vote if it does not."""
    below = "" if about["metrics"][about["metric"]]["votes"] else "; below the floor, so the task does not vote"
    if len(about["metrics"]) == 1:
        return f"the task has no choices{below}"
    ratios = {
        name: "without noise" if one["ratio"] is None else f"{one['ratio']:.3g}"
        for name, one in about["metrics"].items()
    }
    [other] = about["metrics"].keys() - {about["metric"]}
    return f"its ratio is {ratios[about['metric']]}, that of {other} {ratios[other]}{below}"


def _cells(
    row: Mapping[str, Any], decision: Mapping[str, Any], sources: Sequence[str], bpb_sources: Sequence[str]
) -> list[str]:
    return [
        row["arm"],
        row["kind"],
        *(f"{row['weights'][source]:.3f}" for source in sources),
        f"{row['target_bpb']:.4f}",
        "" if row["arm"] == decision["current"] else f"{row['difference']:+.4f}",
        _predicted(row, decision),
        *(f"{row['bpb'][source]:.4f}" for source in bpb_sources),
        _verdict(row, decision),
    ]


def _predicted(row: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    left_out = (decision["response"] or {}).get("left_out_bpb", {})
    return f"{left_out[row['arm']]:.4f}" if row["arm"] in left_out else ""


def _verdict(row: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    if row["arm"] == decision["current"]:
        return "replaced" if decision["promoted"] else "stays"
    if decision["confirmation"] and row["arm"] == decision["confirmation"]["arm"]:
        return "promoted" if decision["promoted"] else "finalist, not confirmed"
    return f"worse on {', '.join(row['regressions'])}" if row["regressions"] else ""


def _fit(decision: Mapping[str, Any]) -> list[str]:
    fit = decision["response"]
    if fit is None and "settings" in decision:
        return []
    if fit is None:
        return ["No response is fitted: there are fewer than three arms or two sources, or no source votes."]
    weights = ", ".join(f"{source} {share:.3f}" for source, share in sorted(fit["proposed_weights"].items()))
    agreement = fit["rank_agreement"]
    ranks = "is not defined" if agreement is None else f"is {agreement:.2f}"
    used = "selects the finalist" if fit["selects"] else "does not select the finalist: the measurements do"
    return [
        "## Response",
        "",
        f"A fit of the bits per byte over the weights (form: {fit['form']}) proposes {weights}, predicting "
        f"{fit['proposed_bpb']:.4f} bits per byte. The rank correlation of its predictions with the measurements, each "
        f"arm left out in turn, {ranks}; {fit['accuracy']:.0%} of pairs are ordered as measured. The fifth of the arms "
        f"that it puts first turned out {abs(fit['optimism']):.4f} bits per byte "
        f"{'worse' if fit['optimism'] > 0 else 'better'} than predicted (its optimism: what is chosen for a low "
        f"prediction is predicted too low). It {used}. It is evidence, not a decision: only a mixture that was trained "
        "with fresh seeds can be promoted.",
        *_worth(fit["worth"] or {}),
    ]


def _worth(worth: dict[str, dict[str, float]]) -> list[str]:
    """Returns the table of the worth of tokens of one source for another; empty in a form without it."""
    if not worth:
        return []
    columns = list(next(iter(worth.values())))
    lines = [
        "",
        "What a token of each column is worth for predicting the source of the row, in tokens of its own:",
        "",
        _row(["for", *columns]),
        _row(["---"] * (len(columns) + 1)),
    ]
    return [
        *lines,
        *(_row([source, *(f"{row[name]:.3f}" for name in columns)]) for source, row in sorted(worth.items())),
    ]


_USED = {
    "alone": "They were not used: without them the fit predicts left-out arms of this cycle better.",
    "names": "They were used, by the names of their sources: with them the fit predicts left-out arms of this cycle "
    "better.",
    "content": "They were used, by the content of their sources: with them the fit predicts left-out arms of this "
    "cycle better.",
}


def _earlier(earlier: Mapping[str, Any]) -> list[str]:
    """Returns the section on the runs of earlier cycles, and how well they predicted later ones; [] without any."""
    if not earlier["cycles"]:
        return []
    lines = ["## Earlier cycles", "", earlier["note"], ""]
    if used := earlier["used"]:
        ranks = ", ".join(
            f"{name} {'undefined' if one['rank_agreement'] is None else format(one['rank_agreement'], '.2f')}"
            for name, one in earlier["tried"].items()
        )
        lines += [f"{_USED[used]} Rank correlation on left-out arms: {ranks}.", ""]
    tested = [(cycle["artifact"], cycle["backtest"]) for cycle in earlier["cycles"]]
    tested = [(name, one) for name, one in (*tested, ("this cycle", earlier["backtest"])) if one]
    if not tested:
        return lines
    return [
        *lines,
        "How well the cycles before each cycle predicted it. Regret: by how much the arm that they put first was worse "
        "than the lowest, in bits per byte.",
        "",
        _row(["cycle", "its arms", "earlier arms", "rank correlation", "pairs ordered as measured", "regret"]),
        _row(["---"] * 6),
        *(_row([name, *_backtest(one)]) for name, one in tested),
        "",
    ]


def _backtest(one: Mapping[str, Any]) -> list[str]:
    rank = "" if one["rank_agreement"] is None else f"{one['rank_agreement']:.2f}"
    return [str(one["arms"]), str(one["runs"]), rank, f"{one['accuracy']:.0%}", f"{one['regret']:.4f}"]


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


def unit(decision: Mapping[str, Any]) -> str:
    """Returns the unit of the target, of a decision or a screening."""
    return "bits of the target" if "tasks" in decision else "bits per byte"


def shares(regressions: Mapping[str, float]) -> str:
    """Returns relative increases by source as text."""
    return ", ".join(f"{source} {share:+.1%}" for source, share in sorted(regressions.items()))
