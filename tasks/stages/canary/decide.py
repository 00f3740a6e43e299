"""Stage decide: results of the confirmation -> the mixture for training, and the reason.

Reads `finalist`, and of `confirmations` the `result.json` of every arm and fresh seed; writes `mixture.json`
(`decision.Decision`), `report.md` and `evidence.json`, the runs of this cycle and earlier ones for the next
(`evidence`); logs `response.png` to the tracker.

The finalist is promoted only if the interval of its paired differences is above 0, no guarded source regresses, the A/A
arm would not have been promoted by the same rule, and the difference has the same sign at one fifth of the learning
rate. Otherwise the current mixture is kept. See `statistics` for the interval and the fit.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.tokens.plan import Plan
from tasks.stages.canary import REPEATED, CanaryConfig, statistics
from tasks.stages.canary.cost import CycleCost
from tasks.stages.canary.decision import Check, Checks, Comparison, Confirmation, Decision, Findings, Screened
from tasks.stages.canary.evidence import EVIDENCE
from tasks.stages.canary.registration import ARMS, RESULT, Arm, seeds_of
from tasks.stages.canary.report import figure, markdown
from tasks.stages.canary.screening import bpb_of, guarded_of, selected, weights_of

VERSION = 4
REPORT = "report.md"
SMALL_WEIGHTS = 15_000_000
"""Weights below which small models do not rank mixtures as large ones do (Olmix, arXiv 2602.12237)."""


def run(config: CanaryConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the decision; raises InputError if the result of a member is missing."""
    screening, arms = Screened.read(inputs["finalist"]), json.loads(inputs["finalist"].read(ARMS))
    results = [json.loads(member.read(RESULT)) for member in inputs.many("confirmations")]
    plan = Plan.open(inputs["plan"])
    decision = decide(config, screening, arms, results, CycleCost(config, plan.format.vocab_size, plan.seq_len))
    if Decision.FILE not in output.committed:
        evidence = json.dumps({"cycles": screening.evidence}, indent=1, sort_keys=True).encode() + b"\n"
        with output.part(Decision.FILE, conserved=False) as part:
            for name, content in (
                (Decision.FILE, decision.content()), (REPORT, markdown(decision).encode()), (EVIDENCE, evidence)
            ):  # fmt: skip
                with part.file(name) as file:
                    file.write(content)
    output.log_file("response.png", partial(figure, decision))
    metrics = {"promoted": float(decision.promoted), "winner_bpb": decision.scored(decision.winner)}
    metrics |= {"current_bpb": decision.scored(decision.current), "runs": decision.runs}
    if confirmed := decision.confirmation:
        metrics["difference_low"], metrics["difference_high"] = confirmed.interval
    return Report(metrics=metrics, note=decision.reason)


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
        confirmed = Confirmation(**vars(_comparison(config, screening, arms[:2], results)))
        checks = _checks(config, screening, arms, results)
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
    config: CanaryConfig, screening: Screened, pair: Sequence[Arm], results: Sequence[Mapping[str, Any]]
) -> Comparison:
    """Returns the comparison of two arms on their fresh seeds; differences are first minus second."""
    seeds = seeds_of(config, pair[-1])
    metrics = {task: about.metric for task, about in screening.tasks.items()}
    sources, bpb = selected(*bpb_of(pair, seeds, results), metrics)
    scores, by_source = bpb @ weights_of(screening.target, sources), bpb.mean(1)
    means, differences = scores.mean(1), scores[0] - scores[1]
    guarded = guarded_of(config, sources)
    worse = statistics.regressions(by_source[1], by_source[0], sources, guarded, config.guard_share)
    interval = statistics.confirm(differences, config.confidence) if len(seeds) > 1 else None
    return Comparison(
        arm=pair[1]["arm"],
        kind=pair[1]["kind"],
        weights=pair[1]["weights"],
        seeds=seeds,
        target_bpb=(round(float(means[0]), 6), round(float(means[1]), 6)),
        differences=tuple(round(float(difference), 6) for difference in differences),
        difference=round(float(differences.mean()), 6),
        interval=interval and (round(interval[0], 6), round(interval[1], 6)),
        regressions={source: round(share, 6) for source, share in sorted(worse.items())},
    )


def _checks(
    config: CanaryConfig, screening: Screened, arms: Sequence[Arm], results: Sequence[Mapping[str, Any]]
) -> Checks:
    """Returns the further comparisons that a promotion needs: A/A, and at the low rate unless that is off."""
    again = _comparison(config, screening, [arms[0], arms[2]], results)
    low = _comparison(config, screening, arms[3:], results) if arms[3:] else None
    return Checks(
        again=Check(**vars(again), passed=not again.is_better),
        low_rate=low and Check(**vars(low), passed=low.difference > 0),
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
        return f"{current} stays: {name} is not surely better, {low:.4f} to {high:.4f} {unit} {seeds}"
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
