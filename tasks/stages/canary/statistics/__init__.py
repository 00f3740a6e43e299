"""Statistics of a cycle: `screen` says what the screening found, and `decide` whether its finalist is promoted.

Both read values only, and return the records that the stages write. The modules of the package are theirs alone:
`screening` collects the results, `comparison` has intervals and signals, `response` fits the bits per byte over the
mixture, by the `forms`, and `pooled` adds the runs of earlier cycles to that fit.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from tasks.stages.canary import REPEATED, CanaryConfig
from tasks.stages.canary.cost import CycleCost
from tasks.stages.canary.decision import (
    Check,
    Checks,
    Comparison,
    Confirmation,
    Decision,
    Earlier,
    EarlierRuns,
    Findings,
    Fit,
    Lead,
    Record,
    Screened,
    ScreenedArm,
    Sweep,
    TaskMetrics,
)
from tasks.stages.canary.registration import Arm, Cycle, seeds_of
from tasks.stages.canary.statistics import comparison, pooled
from tasks.stages.canary.statistics.screening import Screening, bpb_of, selected, weights_of, worse

SMALL_WEIGHTS = 15_000_000
"""Weights below which small models do not rank mixtures as large ones do (Olmix, arXiv 2602.12237)."""

R = TypeVar("R", bound=Record)


def screen(config: CanaryConfig, cycle: Cycle, cost: CycleCost) -> Screened:
    """Returns what the screening found.

    Args:
        config: settings of the cycle.
        cycle: content of `cycle.json`, with the results of all rounds.
        cost: of the cycle.

    Raises:
        InputError: a result is missing, or has other weights than its arm.
    """
    found = Screening.of(config, cycle)
    lead, runs, earlier = found.lead, len(cycle["results"]), _earlier(found)
    return Screened(
        arms=_rows(found, cycle["arms"]),
        target={source: round(weight, 6) for source, weight in sorted(found.target.items())},
        signals={source: _rounded(signal) for source, signal in found.signals.items()},
        tasks={
            task: TaskMetrics(
                metric=found.metrics[task], metrics={name: _rounded(signal) for name, signal in by_metric.items()}
            )
            for task, by_metric in found.tasks.items()
        },
        finalist=_name(lead, cycle["arms"]),
        lead=lead and _rounded(lead),
        response=_response(found),
        earlier=earlier,
        evidence=_evidence(found, cycle, earlier),
        rounds=cycle["rounds"],
        registered=cycle["registered"],
        runs=runs,
        low_rate_pairs=cost.low_rate_pairs(runs),
        cost=cost.text(runs),
        sweep=Sweep.of(config.widths, cycle.get("swept", ())) if config.widths else None,
    )


def _name(lead: Lead | None, arms: Sequence[Arm]) -> str | None:
    """Returns the name of the leading arm, a new one for a mixture that has not been trained."""
    if lead is None:
        return None
    return lead.arm or f"arm-{sum(not arm.get('again') for arm in arms)}"


def _rows(found: Screening, arms: Sequence[Arm]) -> list[ScreenedArm]:
    """Returns a row for every arm, in their order; that of the A/A arm has no regressions."""
    means, rows, number = found.bpb.mean(1), [], 0
    score = float(means[0] @ found.goal)
    for arm in arms:
        bpb = found.again.mean(0) if arm.get("again") else means[number]
        regressions = {} if arm.get("again") else found.regressions[number]
        number += not arm.get("again")
        rows.append(
            ScreenedArm(
                arm=arm["arm"],
                kind=arm["kind"],
                weights=arm["weights"],
                set=arm.get("set"),
                target_bpb=round(float(bpb @ found.goal), 6),
                bpb={source: round(float(value), 6) for source, value in zip(found.sources, bpb, strict=True)},
                difference=round(score - float(bpb @ found.goal), 6),
                regressions={source: round(share, 6) for source, share in sorted(regressions.items())},
            )
        )
    return rows


def _response(found: Screening) -> Fit | None:
    """Returns the summary of the fit, or None without one."""
    if found.fitted is None or found.proposal is None:
        return None
    response, judged = found.fitted.response, found.fitted.response.judgement
    left_out = judged.predicted[-found.scores.size :].reshape(len(found.arms), -1).mean(1).tolist()
    worth = None if response.worth is None else np.round(response.worth, 4).tolist()
    return Fit(
        form=response.form,
        rank_agreement=None if judged.rank_agreement is None else round(judged.rank_agreement, 4),
        accuracy=round(judged.accuracy, 4),
        error=round(judged.error, 6),
        optimism=round(judged.optimism, 6),
        selects=found.selects,
        proposed_weights=found.space.mixture(found.proposal),
        proposed_bpb=round(float(response.predict(found.proposal[None])[0]), 6),
        worth=worth
        and {
            source: dict(zip(found.fitted.features or found.space.names, row, strict=True))
            for source, row in zip(found.sources, worth, strict=True)
        },
        left_out_bpb={arm["arm"]: round(x, 6) for arm, x in zip(found.arms, left_out, strict=True)},
    )


def _earlier(found: Screening) -> Earlier:
    """Returns what earlier cycles said about this one, without their runs."""
    goal = found.goal if found.target else np.zeros(len(found.sources))
    return Earlier(
        note=found.evidence.get("note", "There is no earlier cycle."),
        cycles=tuple(EarlierRuns(**{**cycle, "runs": len(cycle["runs"])}) for cycle in found.earlier),
        used=found.fitted and found.fitted.used,
        tried=found.fitted.tried if found.fitted else {},
        backtest=pooled.backtest(found.runs(mean=True), found.earlier, goal, found.columns, found.config.forms),
    )


def _evidence(found: Screening, cycle: Cycle, about_earlier: Earlier) -> list[dict[str, Any]]:
    """Returns the cycles of `evidence.json` (`evidence.EarlierCycle`): those registered, and this one of mixtures."""
    names = ("artifact", "by", "flops", "epochs", "content", "runs", "backtest")
    earlier = [{name: one[name] for name in names} for one in found.evidence.get("cycles", ())]
    if found.config.settings or not found.evidence:
        return earlier
    samples = found.config.steps * found.config.batch_size
    columns, bpb = bpb_of(cycle["arms"], found.config.seeds, cycle["results"])
    runs = [
        {
            "weights": arm["weights"],
            "bpb": {name: round(float(value), 6) for name, value in zip(columns, means, strict=True)},
            "seeds": len(found.config.seeds),
        }
        for arm, means in zip(cycle["arms"], bpb.mean(1), strict=True)
    ]
    own = {
        "artifact": "",
        "by": found.evidence["by"],
        "flops": found.evidence["flops"],
        "epochs": {source: round(samples / count, 6) for source, count in cycle["registered"]["sequences"].items()},
        "content": found.evidence["content"],
        "runs": runs,
        "backtest": about_earlier.backtest and about_earlier.backtest.model_dump(),
    }
    return [*earlier, own]


def _rounded(record: R) -> R:
    """Returns a record with six decimals."""
    return record.model_copy(update={name: round(value, 6) for name, value in record if isinstance(value, float)})


def decide(
    config: CanaryConfig,
    screening: Screened,
    arms: Sequence[Arm],
    results: Sequence[Mapping[str, Any]],
    cost: CycleCost,
) -> Decision:
    """Returns the decision.

    Args:
        config: settings of the cycle.
        screening: what the screening found.
        arms: arms of the confirmation, see `finalist.confirming`; empty: no arm looked better.
        results: content of every `result.json` of the confirmation.
        cost: of the cycle.

    Raises:
        InputError: a result is missing, or has other weights than its arm.
    """
    current = screening.arms[0]
    confirmed, checks = None, Checks()
    if arms:
        compare = partial(_comparison, config, screening, results)
        confirmed = Confirmation(**vars(compare(arms[:2])))
        again, low = compare([arms[0], arms[2]]), compare(arms[3:]) if arms[3:] else None
        checks = Checks(
            again=Check(**vars(again), passed=not again.is_better),
            low_rate=low and Check(**vars(low), passed=low.difference > 0),
        )
    promoted = confirmed is not None and confirmed.is_better and checks.passed
    runs = screening.runs + len(results) * cost.confirming
    winner = arms[1] if promoted else current.model_dump()
    return Decision(
        weights=winner["weights"],
        winner=winner["arm"],
        current=current.arm,
        promoted=promoted,
        reason=_reason(config, screening, confirmed, checks),
        confidence=config.confidence,
        confirmation=confirmed,
        checks=checks,
        runs=runs,
        cost=cost.text(runs),
        small_models=cost.parameters < SMALL_WEIGHTS,
        parameters=cost.parameters,
        settings=winner.get("set"),
        variant=winner["kind"] if "set" in winner else None,
        **{name: getattr(screening, name) for name in Findings.model_fields if name != "cost"},
    )


def _comparison(
    config: CanaryConfig, screening: Screened, results: Sequence[Mapping[str, Any]], pair: Sequence[Arm]
) -> Comparison:
    """Returns the comparison of two arms on their fresh seeds; differences are first minus second."""
    seeds = seeds_of(config, pair[-1])
    metrics = {task: about.metric for task, about in screening.tasks.items()}
    sources, bpb = selected(*bpb_of(pair, seeds, results), metrics)
    scores, by_source = bpb @ weights_of(screening.target, sources), bpb.mean(1)
    means, differences = scores.mean(1), scores[0] - scores[1]
    regressions = worse(config, sources, by_source[1], by_source[0])
    interval = comparison.confirm(differences, config.confidence) if len(seeds) > 1 else None
    return Comparison(
        arm=pair[1]["arm"],
        kind=pair[1]["kind"],
        weights=pair[1]["weights"],
        seeds=seeds,
        target_bpb=(round(float(means[0]), 6), round(float(means[1]), 6)),
        differences=tuple(round(float(difference), 6) for difference in differences),
        difference=round(float(differences.mean()), 6),
        interval=interval and (round(interval[0], 6), round(interval[1], 6)),
        regressions={source: round(share, 6) for source, share in sorted(regressions.items())},
    )


def _reason(config: CanaryConfig, screening: Screened, confirmed: Confirmation | None, checks: Checks) -> str:
    current, unit = screening.arms[0].arm, screening.unit
    if confirmed is None:
        return f"{current} stays: {_nothing_to_confirm(screening)}"
    name, (low, high) = confirmed.arm, confirmed.interval
    seeds = f"on {len(confirmed.seeds)} fresh seeds, {config.confidence:.0%} sure"
    if confirmed.regressions:
        return f"{current} stays: {name} makes {_guarded(screening)} worse ({confirmed.worse})"
    if low <= 0:
        found = "surely worse" if high < 0 else "not surely better"
        return f"{current} stays: {name} is {found}, {low:.4f} to {high:.4f} {unit} {seeds}"
    if checks.again and not checks.again.passed:
        return (
            f"{current} stays, the decision on {name} is withheld: the same mixture with other data (A/A) would have "
            f"been promoted, by {checks.again.difference:.4f} {unit}"
        )
    if checks.low_rate and not checks.low_rate.passed:
        difference = f"{checks.low_rate.difference:+.4f}"
        return f"{current} stays: {name} is not better at one fifth of the learning rate ({difference})"
    return f"{name} replaces {current}: lower by {low:.4f} to {high:.4f} {unit} {seeds}"


def _nothing_to_confirm(screening: Screened) -> str:
    others = [row for row in screening.arms[1:] if row.kind != REPEATED]
    if not others:
        return "there was no other arm"
    if not screening.target:
        measured = "source and no task" if screening.tasks else "source"
        return f"no {measured} tells the arms apart from noise, so none votes"
    if lower := [row for row in others if row.difference > 0 and row.regressions]:
        best = max(lower, key=lambda row: row.difference)
        return f"arms better on the target make {_guarded(screening)} worse ({best.worse})"
    return "no arm was better in the screening"


def _guarded(screening: Screened) -> str:
    return "guarded sources or tasks" if screening.tasks else "guarded sources"
