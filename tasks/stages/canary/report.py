"""Report of a cycle: `report.md`, plain words first, and the figure `response.png`, both from the decision alone."""

import io
import json
from collections.abc import Mapping
from typing import Any

from tasks.core.pages import table
from tasks.stages.canary import REPEATED
from tasks.stages.canary.decision import Backtest, Decision, Earlier, Measured, Signal, Sweep, TaskMetrics, listed

_DPI = 110
_SIGNAL = ("signal", "noise", "ratio", "at most", "weight in the target")


def markdown(decision: Decision) -> str:
    """Returns the report in Markdown: first in plain words, then the figures, and the rules as registered."""
    return "\n".join(
        [
            "# Canary settings" if decision.settings is not None else "# Canary mixtures",
            "",
            *_plain(decision),
            *_confirmed(decision),
            *_screening(decision),
            *_sources(decision),
            *_fit(decision),
            "",
            *_earlier(decision.earlier),
            *(_sweep(decision.sweep) if decision.sweep else []),
            "## Registered before the first run",
            "",
            *(f"- {rule}" for rule in decision.registered.rules),
            "",
        ]
    )


def _plain(decision: Decision) -> list[str]:
    """Returns decision, certainty, cost and what would change the decision, in sentences."""
    lines = [*_headline(decision), "", f"{decision.reason}.", "", f"- *How sure:* {_certainty(decision)}"]
    if decision.settings is not None:
        lines.insert(-1, _settings(decision))
    lines += [f"- *Cost:* {decision.cost}.", f"- *What would change it:* {_change(decision)}"]
    if cycles := decision.earlier.cycles:
        used = "not used" if decision.earlier.used in (None, "alone") else "used"
        lines.append(
            f"- *Earlier cycles:* {sum(cycle.runs for cycle in cycles)} arms of {len(cycles)} were {used} in the "
            "fit; see below how well they predicted this one."
        )
    if decision.small_models:
        lines.append(
            f"- *These models are too small to rank mixtures for a large one:* {decision.parameters:,} weights; "
            "from about 15 M weights on, small models rank as large ones do. The cycle shows the process."
        )
    return [*lines, ""]


def _settings(decision: Decision) -> str:
    accepted = sorted((decision.settings or {}).items())
    changed = "; ".join(f"`{path}` = `{json.dumps(value)}`" for path, value in accepted)
    if not changed:
        return "- *Settings:* those of the recipe."
    return (
        f"- *Settings:* {changed}. The training starts with them, on the tokens of the version "
        f"`<version>.{decision.variant}`, and so does the next cycle."
    )


def _headline(decision: Decision) -> list[str]:
    """Returns in a sentence each what to train on, and what the small models gained by it."""
    before, after = decision.arms[0].weights, sorted(decision.weights.items())
    of_settings = decision.settings is not None
    confirmed = decision.confirmation
    if not decision.promoted or not confirmed:
        what = "settings" if of_settings else f"mixture: {', '.join(f'{name} {share:.1%}' for name, share in after)}"
        return [f"**Keep the {what}.** No other {'ones are' if of_settings else 'one is'} surely better."]
    changes = ", ".join(f"{name} {share:.1%} (was {before.get(name, 0):.1%})" for name, share in after)
    what = f"the settings of {decision.variant}" if of_settings else f"a new mixture: {changes}"
    old, new = confirmed.target_bpb
    predicted = "held-out text and right answers" if decision.tasks else "held-out text"
    return [
        f"**Use {what}.** Small models that read it predict {predicted} with {new:.4f} instead of "
        f"{old:.4f} {decision.unit}, {1 - new / old:.1%} fewer."
    ]


def _certainty(decision: Decision) -> str:
    again = next(row for row in decision.arms if row.kind == REPEATED)
    same = f"The same mixture with other data was {again.difference:+.4f} {decision.unit} from it in the screening"
    confirmed, checks = decision.confirmation, decision.checks
    if not confirmed or not checks.again:
        return f"{same}. Nothing was confirmed, so there is no interval."
    low, high = confirmed.interval
    passed = "would not have been promoted" if checks.again.passed else "would have been promoted"
    rate = "The learning rate was not varied."
    if low_rate := checks.low_rate:
        rate = (
            f"At one fifth of the learning rate the difference is {low_rate.difference:+.4f} on "
            f"{len(low_rate.seeds)} seeds."
        )
    return (
        f"{confirmed.difference:+.4f} {decision.unit}, {decision.confidence:.0%} interval {low:+.4f} to {high:+.4f}. "
        f"{same}, and {checks.again.difference:+.4f} on the fresh seeds, which {passed}. {rate}"
    )


def _change(decision: Decision) -> str:
    confirmed = decision.confirmation
    if not confirmed:
        return "an arm that is lower than the current mixture in the screening: more arms or rounds, or other anchors."
    low, high = confirmed.interval
    needed = (high - low) / 2
    if decision.promoted:
        return (
            f"a mean difference below {needed:.4f} on these seeds, a guarded source that becomes worse, or another "
            "sign at the low learning rate."
        )
    if low <= 0:
        return f"a mean difference above {needed:.4f} on these seeds, or more confirmations, which narrow the interval."
    return "a finalist that passes the check which stopped this one."


def _confirmed(decision: Decision) -> list[str]:
    """Returns the section of the confirmation; empty without one."""
    confirmed = decision.confirmation
    if not confirmed:
        return []
    low, high = confirmed.interval
    checks = decision.checks
    named = {"lower than current by": confirmed, "A/A": checks.again, "low learning rate": checks.low_rate}
    columns = {name: dict(zip(one.seeds, one.differences, strict=True)) for name, one in named.items() if one}
    rows = [
        [str(seed), *(f"{column[seed]:+.4f}" if seed in column else "" for column in columns.values())]
        for seed in confirmed.seeds
    ]
    return [
        "## Confirmation",
        "",
        f"{confirmed.arm} ({confirmed.kind}) has the weights {listed(confirmed.weights)}.",
        "",
        f"{decision.current} and {confirmed.arm} with the same fresh seeds: lower by "
        f"{confirmed.difference:+.4f}, {decision.confidence:.0%} interval {low:+.4f} to {high:+.4f} "
        f"{decision.unit} (Student's, of the paired differences, which holds for any noise of the two arms). With "
        f"these seeds a mean difference of {(high - low) / 2:.4f} would have been enough.",
        "",
        *table(["seed", *columns], rows, padded=True),
        "",
    ]


def _screening(decision: Decision) -> list[str]:
    sources = sorted(decision.arms[0].weights)
    bpb_sources = sorted(decision.arms[0].bpb)
    head = ["arm", "kind", *(f"weight of {source}" for source in sources), "target bpb", "lower than current by"]
    measured = [f"{'bits' if name in decision.tasks else 'bpb'} of {name}" for name in bpb_sources]
    head += ["predicted", *measured, "verdict"]
    rounds = [
        f"Round {row.round}: {row.stopped or ', '.join(row.arms)}"
        + ("" if row.probability is None else f" (best lower than current: {row.probability:.1%})")
        for row in decision.rounds
    ]
    left_out = decision.response.left_out_bpb if decision.response else {}
    rows = [
        [
            row.arm,
            row.kind,
            *(f"{row.weights[source]:.3f}" for source in sources),
            f"{row.target_bpb:.4f}",
            "" if row.arm == decision.current else f"{row.difference:+.4f}",
            f"{left_out[row.arm]:.4f}" if row.arm in left_out else "",
            *(f"{row.bpb[source]:.4f}" for source in bpb_sources),
            decision.verdict(row),
        ]
        for row in sorted(decision.arms, key=lambda arm: (arm.target_bpb, arm.arm))
    ]
    return [
        "## Screening",
        "",
        "bpb: bits per byte of held-out text. Lower is better; a positive difference is an improvement. Predicted: by "
        "the response fitted to all other arms. The differences select the finalist and have no interval: the lowest "
        "of several arms is low by chance.",
        "",
        *(f"- {line}" for line in rounds),
        "",
        *table(head, rows, padded=True),
        "",
    ]


def _sources(decision: Decision) -> list[str]:
    """Returns the section on what each source's held-out text can tell."""
    rows = [
        [source, *_figures(signal), _vote(decision, source)]
        for source, signal in sorted(decision.signals.items())
        if source not in decision.tasks
    ]
    return [
        "## Target",
        "",
        "Every source is measured by bits per byte of its held-out text: continuous, so that small models differ in it "
        "long before they answer a question, and the same for every tokenizer. Signal: standard deviation between "
        "arms; noise: between repeats of an arm. A source whose ratio of variances is surely below the floor has no "
        "vote.",
        "",
        *table(["source", *_SIGNAL], rows, padded=True),
        "",
        *(_tasks(decision) if decision.tasks else []),
    ]


def _figures(signal: Signal) -> list[str]:
    ratios = ["" if value is None else f"{value:.3g}" for value in (signal.ratio, signal.upper)]
    return [f"{signal.between:.4f}", f"{signal.noise:.4f}", *ratios]


def _vote(decision: Decision, name: str) -> str:
    weight = decision.target.get(name, 0.0)
    return f"{weight:.3f}" if decision.signals[name].votes else "does not vote"


def _tasks(decision: Decision) -> list[str]:
    """Returns the table of the tasks: the metric of each, and why it is that one."""
    rows = [
        [task, about.metric, *_figures(about.signal), _vote(decision, task), _why(about)]
        for task, about in sorted(decision.tasks.items())
    ]
    return [
        "Tasks are measured in bits, too, lower is better: *answer*, bits per byte of the right answer, and of tasks "
        "with choices *choice*, -log2 of the mean over items of the probability of the right choice over the sum of "
        "all choices', each to the power of 1 / bytes. The metric with the larger ratio is used; a task votes only if "
        "that ratio is not below the floor.",
        "",
        *table(["task", "metric", *_SIGNAL, "why this metric"], rows, padded=True),
        "",
    ]


def _why(about: TaskMetrics) -> str:
    """Returns why a task is measured by its metric, and why it does not vote if it does not."""
    below = "" if about.signal.votes else "; below the floor, so the task does not vote"
    if len(about.metrics) == 1:
        return f"the task has no choices{below}"
    ratios = {name: "without noise" if one.ratio is None else f"{one.ratio:.3g}" for name, one in about.metrics.items()}
    [other] = about.metrics.keys() - {about.metric}
    return f"its ratio is {ratios[about.metric]}, that of {other} {ratios[other]}{below}"


def _fit(decision: Decision) -> list[str]:
    fit = decision.response
    if fit is None and decision.settings is not None:
        return []
    if fit is None:
        return ["No response is fitted: there are fewer than three arms or two sources, or no source votes."]
    agreement = fit.rank_agreement
    ranks = "is not defined" if agreement is None else f"is {agreement:.2f}"
    used = "selects the finalist" if fit.selects else "does not select the finalist: the measurements do"
    return [
        "## Response",
        "",
        f"A fit of the bits per byte over the weights (form: {fit.form}) proposes {listed(fit.proposed_weights)}, "
        f"predicting {fit.proposed_bpb:.4f} bits per byte. The rank correlation of its predictions with the "
        f"measurements, each arm left out in turn, {ranks}; {fit.accuracy:.0%} of pairs are ordered as measured. The "
        f"fifth of the arms that it puts first turned out {abs(fit.optimism):.4f} bits per byte "
        f"{'worse' if fit.optimism > 0 else 'better'} than predicted (its optimism: what is chosen for a low "
        f"prediction is predicted too low). It {used}. It is evidence, not a decision: only a mixture that was trained "
        "with fresh seeds can be promoted.",
        *(_worth(fit.worth) if fit.worth else []),
    ]


def _worth(worth: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Returns the table of the worth of tokens of one source for another."""
    columns = list(next(iter(worth.values())))
    rows = [[source, *(f"{row[name]:.3f}" for name in columns)] for source, row in sorted(worth.items())]
    return [
        "",
        "What a token of each column is worth for predicting the source of the row, in tokens of its own:",
        "",
        *table(["for", *columns], rows, padded=True),
    ]


def _earlier(earlier: Earlier) -> list[str]:
    """Returns the section on the runs of earlier cycles, and how well they predicted later ones; [] without any."""
    if not earlier.cycles:
        return []
    lines = ["## Earlier cycles", "", earlier.note, ""]
    if used := earlier.used:
        ranks = ", ".join(
            f"{name} {'undefined' if one.rank_agreement is None else format(one.rank_agreement, '.2f')}"
            for name, one in earlier.tried.items()
        )
        how = "not used: without" if used == "alone" else f"used, by the {used} of their sources: with"
        lines += [
            f"They were {how} them the fit predicts left-out arms of this cycle better. Rank correlation on left-out "
            f"arms: {ranks}.",
            "",
        ]
    tested = [(cycle.artifact, cycle.backtest) for cycle in earlier.cycles]
    rows = [[name, *_backtest(one)] for name, one in (*tested, ("this cycle", earlier.backtest)) if one]
    if not rows:
        return lines
    return [
        *lines,
        "How well the cycles before each cycle predicted it. Regret: by how much the arm that they put first was worse "
        "than the lowest, in bits per byte.",
        "",
        *table(
            ["cycle", "its arms", "earlier arms", "rank correlation", "pairs ordered as measured", "regret"],
            rows,
            padded=True,
        ),
        "",
    ]


def _sweep(sweep: Sweep) -> list[str]:
    """Returns the section of the sweep of widths."""
    rows = [[str(row.dim), *(f"{value:.4f}" for value in row.bpb), f"{sweep.best(row):g}"] for row in sweep.widths]
    by = f"those of dim {sweep.base_width}, transferred by muP" if sweep.base_width else "those of every width"
    return [
        "## Widths",
        "",
        f"{sweep.recommendation}. No mixture depends on it.",
        "",
        f"Bits on the target by learning rate, on the same sequences; the rates are {by}.",
        "",
        *table(["dim", *(f"lr {lr:g}" for lr in sweep.lr), "best lr"], rows, padded=True),
        "",
    ]


def _backtest(one: Backtest) -> list[str]:
    rank = "" if one.rank_agreement is None else f"{one.rank_agreement:.2f}"
    return [str(one.arms), str(one.runs), rank, f"{one.accuracy:.0%}", f"{one.regret:.4f}"]


def figure(decision: Decision) -> bytes:
    """Returns a PNG plot: differences of arms, that of the confirmation with its interval, and target by weight."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sources = sorted(decision.arms[0].weights)
    picture = Figure(figsize=(4.5 + 2.6 * len(sources), 4.2), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(picture)
    ratios = [1.6, *([1.0] * len(sources))]
    first, *others = picture.subplots(1, 1 + len(sources), width_ratios=ratios)
    _draw_differences(first, decision)
    for index, (axes, source) in enumerate(zip(others, sources, strict=True)):
        _draw_source(axes, decision, source)
        axes.set_ylabel("target, bits per byte" if index == 0 else "")
    picture.suptitle(decision.reason, fontsize=10)
    data = io.BytesIO()
    picture.savefig(data, format="png")
    return data.getvalue()


def _color(row: Measured, decision: Decision) -> str:
    if row.arm == decision.current:
        return "#333333"
    if decision.confirmation and row.arm == decision.confirmation.arm:
        return "#1a7f37" if decision.promoted else "#b58900"
    return "#8aa4c8"


def _draw_differences(axes: Any, decision: Decision) -> None:
    rows = sorted(decision.arms, key=lambda arm: (-arm.target_bpb, arm.arm))
    for y, row in enumerate(rows):
        axes.plot(row.difference, y, "o", color=_color(row, decision))
    labels = [f"{row.arm} ({row.kind})" for row in rows]
    if confirmed := decision.confirmation:
        color = _color(confirmed, decision)
        axes.plot(confirmed.interval, [len(rows)] * 2, color=color, linewidth=2)
        axes.plot(confirmed.difference, len(rows), "o", color=color)
        labels.append(f"{confirmed.arm}, {len(confirmed.seeds)} fresh seeds")
    axes.axvline(0, color="#333333", linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_xlabel("lower than current by, bits per byte")


def _draw_source(axes: Any, decision: Decision, source: str) -> None:
    for row in decision.arms:
        axes.plot(row.weights[source], row.target_bpb, "o", color=_color(row, decision))
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel(f"weight of {source}")
    axes.tick_params(labelsize=8)
