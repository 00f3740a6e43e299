"""Stage finalist: results of the screening -> the mixture to confirm, if any looks better than the current one.

Reads `arms` of the last round, and its `canaries`. Writes `screening.json` (`decision.Screened`), and `arms.json`, the
arms of the confirmation, or an empty list: the current mixture, the finalist, the A/A arm, and both mixtures at one
fifth of the learning rate.
Returns the members of the mapped stage confirm: "arm-<k>-seed-<s>" for these and the fresh seeds.

The finalist is the mixture with the lowest predicted target among the arms and the proposal of the response, or, if the
response does not rank arms that it has not seen, the arm with the lowest mean; in any case only if it is lower than the
current mixture. An arm that makes a guarded source worse by more than `guard_share` cannot be the finalist.
"""

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.tokens.plan import Plan
from tasks.stages.canary import CanaryConfig, evidence
from tasks.stages.canary.arms import CYCLE, PROPOSED, screening_of, with_results
from tasks.stages.canary.cost import CycleCost
from tasks.stages.canary.decision import Earlier, EarlierRuns, Fit, Lead, Record, Screened, ScreenedArm, TaskMetrics
from tasks.stages.canary.registration import ARMS, RESULT, Arm, Cycle, seeds_of
from tasks.stages.canary.screening import Screening, bpb_of

VERSION = 3
LR_SHARE = 0.2
"""Share of the learning rate at which the sign of the difference is checked."""
LOW_RATE = "-low-lr"
"""Ending of the names of the arms that are trained at `LR_SHARE`."""

R = TypeVar("R", bound=Record)


def run(config: CanaryConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the finalist; raises InputError if the result of a member is missing."""
    results = [json.loads(member.read(RESULT)) for member in inputs.many("canaries")]
    cycle = with_results(json.loads(inputs["arms"].read(CYCLE)), results)
    plan = Plan.open(inputs["plan"])
    cost = CycleCost(config, plan.format.vocab_size, plan.seq_len)
    screening = screen(config, cycle, cost)
    arms = confirming(config, cycle, screening)
    if Screened.FILE not in output.committed:
        with output.part(Screened.FILE, conserved=False) as part:
            with part.file(Screened.FILE) as file:
                file.write(screening.content())
            with part.file(ARMS) as file:
                file.write(json.dumps(arms, indent=2, sort_keys=True).encode() + b"\n")
    members = tuple(f"{arm['arm']}-seed-{seed}" for arm in arms for seed in seeds_of(config, arm))
    finalist, current = screening.finalist, screening.arms[0].arm
    note = (
        f"{finalist} looks better than {current}: {len(members)} runs with fresh seeds"
        if finalist
        else f"no arm looks better than {current}: there is nothing to confirm"
    )
    return Report(metrics={"runs": len(members)}, members=members, note=note)


def screen(config: CanaryConfig, cycle: Cycle, cost: CycleCost) -> Screened:
    """Returns what the screening found.

    Args:
        config: settings of the cycle.
        cycle: content of `cycle.json`, with the results of all rounds.
        cost: of the cycle.

    Raises:
        InputError: a result is missing, or has other weights than its arm.
    """
    found = screening_of(config, cycle)
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
    )


def confirming(config: CanaryConfig, cycle: Cycle, screening: Screened) -> list[Arm]:
    """Returns the arms of the confirmation, the current mixture and the finalist first; [] without a finalist."""
    if not screening.finalist or not screening.lead:
        return []
    known = {arm["arm"]: arm for arm in cycle["arms"]}
    proposed = {"arm": screening.finalist, "kind": PROPOSED, "weights": screening.lead.weights}
    pair = [cycle["arms"][0], known.get(screening.finalist, proposed)]
    again = next(arm for arm in cycle["arms"] if arm.get("again"))
    arms = [*pair, again]
    if pairs := screening.low_rate_pairs:
        arms += [{**arm, "arm": arm["arm"] + LOW_RATE, "lr_share": LR_SHARE, "seeds": pairs} for arm in pair]
    return [{**arm, "confirms": True} for arm in arms] if config.confirm_model else arms


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
        worse = {} if arm.get("again") else found.regressions[number]
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
                regressions={source: round(share, 6) for source, share in sorted(worse.items())},
            )
        )
    return rows


def _response(found: Screening) -> Fit | None:
    """Returns the summary of the fit, or None without one."""
    response, proposal = found.response, found.proposal
    if found.fitted is None or response is None or proposal is None:
        return None
    judged = response.judgements[response.form]
    left_out = judged.predicted[-found.scores.size :].reshape(len(found.arms), -1).mean(1).tolist()
    worth = None if response.worth is None else np.round(response.worth, 4).tolist()
    return Fit(
        form=response.form,
        rank_agreement=None if response.rank_agreement is None else round(response.rank_agreement, 4),
        accuracy=round(judged.accuracy, 4),
        error=round(judged.error, 6),
        optimism=round(response.optimism, 6),
        selects=found.selects,
        proposed_weights=found.space.mixture(proposal),
        proposed_bpb=round(float(response.predict(proposal[None])[0]), 6),
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
        backtest=evidence.backtest(found.runs(mean=True), found.earlier, goal, found.columns, found.config.forms),
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
