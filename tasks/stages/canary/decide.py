"""Stage decide: results of the confirmation -> the mixture for training, and the reason.

Reads `finalist`, and of `confirmations` the `result.json` of every arm and fresh seed; writes `mixture.json` {weights,
winner, current, promoted, reason, confidence, target, arms, confirmation, checks, response, ...}, `report.md` and
`evidence.json`, the runs of this cycle and earlier ones for the next (`evidence`); logs `response.png` to the tracker.

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
from tasks.stages.canary.evidence import EVIDENCE
from tasks.stages.canary.finalist import SCREENING, seeds_of
from tasks.stages.canary.registration import ARMS, RESULT, Arm
from tasks.stages.canary.report import figure, markdown, shares, unit
from tasks.stages.canary.screening import bpb_of, guarded_of, selected, weights_of

VERSION = 4
MIXTURE = "mixture.json"
REPORT = "report.md"
_FROM_SCREENING = ("arms", "target", "signals", "tasks", "lead", "response", "earlier", "rounds", "registered")
SMALL_WEIGHTS = 15_000_000
"""Weights below which small models do not rank mixtures as large ones do (Olmix, arXiv 2602.12237)."""


def run(config: CanaryConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the decision; raises InputError if the result of a member is missing."""
    screening, arms = (json.loads(inputs["finalist"].read(name)) for name in (SCREENING, ARMS))
    results = [json.loads(member.read(RESULT)) for member in inputs.many("confirmations")]
    plan = Plan.open(inputs["plan"])
    decision = decide(config, screening, arms, results, CycleCost(config, plan.format.vocab_size, plan.seq_len))
    if MIXTURE not in output.committed:
        with output.part(MIXTURE, conserved=False) as part:
            with part.file(MIXTURE) as file:
                file.write(json.dumps(decision, indent=2, sort_keys=True).encode() + b"\n")
            with part.file(REPORT) as file:
                file.write(markdown(decision).encode())
            with part.file(EVIDENCE) as file:
                file.write(json.dumps({"cycles": screening["evidence"]}, indent=1, sort_keys=True).encode() + b"\n")
    output.log_file("response.png", partial(figure, decision))
    metrics = {"promoted": float(decision["promoted"]), "winner_bpb": _score_of(decision, decision["winner"])}
    metrics |= {"current_bpb": _score_of(decision, decision["current"]), "runs": decision["runs"]}
    if confirmed := decision["confirmation"]:
        metrics["difference_low"], metrics["difference_high"] = confirmed["interval"]
    return Report(metrics=metrics, note=decision["reason"])


def decide(
    config: CanaryConfig,
    screening: Mapping[str, Any],
    arms: Sequence[Arm],
    results: Sequence[Mapping[str, Any]],
    cost: CycleCost,
) -> dict[str, Any]:
    """Returns the decision, the content of `mixture.json`.

    Args:
        config: settings of the cycle.
        screening: content of `screening.json`.
        arms: arms of the confirmation, see `finalist.confirming`; empty: no arm looked better.
        results: content of every `result.json` of the confirmation.
        cost: of the cycle.

    Raises:
        InputError: a result is missing, or has other weights than its arm.
    """
    current = screening["arms"][0]
    confirmed = _comparison(config, screening, arms[:2], results) if arms else None
    checks = _checks(config, screening, arms, results)
    promoted = confirmed is not None and _is_better(confirmed) and all(check["passed"] for check in checks.values())
    runs = screening["runs"] + len(results) * cost.confirming
    winner = arms[1] if promoted else current
    return {
        "weights": winner["weights"],
        "winner": winner["arm"],
        "current": current["arm"],
        "promoted": promoted,
        "reason": _reason(config, screening, confirmed, checks),
        "confidence": config.confidence,
        "confirmation": confirmed,
        "checks": checks,
        "runs": runs,
        "cost": cost.text(runs),
        "small_models": cost.parameters < SMALL_WEIGHTS,
        "parameters": cost.parameters,
        **({"settings": winner["set"], "variant": winner["kind"]} if "set" in winner else {}),
        **{key: screening[key] for key in _FROM_SCREENING if key in screening},
    }


def _comparison(
    config: CanaryConfig, screening: Mapping[str, Any], pair: Sequence[Arm], results: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the comparison of two arms on their fresh seeds; differences are first minus second."""
    seeds = seeds_of(config, pair[-1])
    metrics = {task: about["metric"] for task, about in screening.get("tasks", {}).items()}
    columns, measured = bpb_of(pair, seeds, results)
    sources, bpb = selected(columns, measured, metrics)
    scores, means = bpb @ weights_of(screening["target"], sources), bpb.mean(1)
    differences = scores[0] - scores[1]
    worse = statistics.regressions(means[1], means[0], sources, guarded_of(config, sources), config.guard_share)
    interval = statistics.confirm(differences, config.confidence) if len(seeds) > 1 else None
    return {
        "arm": pair[1]["arm"],
        "kind": pair[1]["kind"],
        "weights": pair[1]["weights"],
        "seeds": list(seeds),
        "target_bpb": [round(float(score), 6) for score in scores.mean(1)],
        "differences": [round(float(difference), 6) for difference in differences],
        "difference": round(float(differences.mean()), 6),
        "interval": interval and [round(edge, 6) for edge in interval],
        "regressions": {source: round(share, 6) for source, share in sorted(worse.items())},
    }


def _is_better(compared: Mapping[str, Any]) -> bool:
    return bool(compared["interval"][0] > 0) and not compared["regressions"]


def _checks(
    config: CanaryConfig, screening: Mapping[str, Any], arms: Sequence[Arm], results: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Returns the comparisons that a promotion needs in addition: `again` (A/A), and `low_rate` unless it is off."""
    if not arms:
        return {}
    again = _comparison(config, screening, [arms[0], arms[2]], results)
    checks = {"again": {**again, "passed": not _is_better(again)}}
    if low := arms[3:]:
        compared = _comparison(config, screening, low, results)
        checks["low_rate"] = {**compared, "passed": compared["difference"] > 0}
    elif config.lr_check:
        checks["low_rate"] = {"seeds": [], "difference": None, "passed": False}
    return checks


def _score_of(decision: Mapping[str, Any], arm: str) -> float:
    """Returns the target's bits per byte of an arm: on the fresh seeds if there are any, else in the screening."""
    if confirmed := decision["confirmation"]:
        return float(confirmed["target_bpb"][arm == confirmed["arm"]])
    return float(next(row["target_bpb"] for row in decision["arms"] if row["arm"] == arm))


def _reason(
    config: CanaryConfig,
    screening: Mapping[str, Any],
    confirmed: Mapping[str, Any] | None,
    checks: Mapping[str, Mapping[str, Any]],
) -> str:
    current = screening["arms"][0]["arm"]
    if confirmed is None:
        return f"{current} stays: {_nothing_to_confirm(screening)}"
    name, (low, high) = confirmed["arm"], confirmed["interval"]
    seeds = f"on {len(confirmed['seeds'])} fresh seeds, {config.confidence:.0%} sure"
    if confirmed["regressions"]:
        return f"{current} stays: {name} makes {_guarded(screening)} worse ({shares(confirmed['regressions'])})"
    if low <= 0:
        return f"{current} stays: {name} is not surely better, {low:.4f} to {high:.4f} {unit(screening)} {seeds}"
    if not checks["again"]["passed"]:
        return (
            f"{current} stays, the decision on {name} is withheld: the same mixture with other data (A/A) would have "
            f"been promoted, by {checks['again']['difference']:.4f} {unit(screening)}"
        )
    if (rate := checks.get("low_rate")) and not rate["passed"]:
        return f"{current} stays: {name} is not better at one fifth of the learning rate ({rate['difference']:+.4f})"
    return f"{name} replaces {current}: lower by {low:.4f} to {high:.4f} {unit(screening)} {seeds}"


def _nothing_to_confirm(screening: Mapping[str, Any]) -> str:
    others = [row for row in screening["arms"][1:] if row["kind"] != REPEATED]
    if not others:
        return "there was no other arm"
    if not screening["target"]:
        measured = "source and no task" if "tasks" in screening else "source"
        return f"no {measured} tells the arms apart from noise, so none votes"
    if lower := [row for row in others if row["difference"] > 0 and row["regressions"]]:
        worse = shares(max(lower, key=lambda row: float(row["difference"]))["regressions"])
        return f"arms better on the target make {_guarded(screening)} worse ({worse})"
    return "no arm was better in the screening"


def _guarded(screening: Mapping[str, Any]) -> str:
    return "guarded sources or tasks" if "tasks" in screening else "guarded sources"
