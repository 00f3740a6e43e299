"""Stage finalist: results of the screening -> the mixture to confirm, if any looks better than the current one.

Reads `arms` and `canaries` (every arm's `result.json`). Writes `screening.json`: {arms: a row per arm, target,
finalist, response}, and `arms.json`, the current mixture and the finalist, or an empty list. Returns the members of
the mapped stage confirm: "arm-<k>-seed-<s>" for these two and every fresh seed.

The finalist is the arm with the lowest mean on the target, if it is lower than that of the current mixture. An arm that
makes a guarded source worse by more than `guard_share` cannot be the finalist.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.tokens.mixture import grid_weights
from tasks.stages.canary import CanaryConfig, statistics
from tasks.stages.canary.arms import ARMS, RESULT, Arm
from tasks.stages.canary.statistics import Floats

VERSION = 1
SCREENING = "screening.json"


def run(config: CanaryConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the finalist; raises InputError if the result of a member is missing."""
    arms = json.loads(inputs["arms"].read(ARMS))
    screening = screen(config, arms, [json.loads(member.read(RESULT)) for member in inputs.many("canaries")])
    names = [arms[0]["arm"], screening["finalist"]] if screening["finalist"] else []
    pair = [arm for arm in arms if arm["arm"] in names]
    if SCREENING not in output.committed:
        with output.part(SCREENING, conserved=False) as part:
            for name, content in ((SCREENING, screening), (ARMS, pair)):
                with part.file(name) as file:
                    file.write(json.dumps(content, indent=2, sort_keys=True).encode() + b"\n")
    members = tuple(f"{name}-seed-{seed}" for name in names for seed in config.fresh_seeds)
    note = (
        f"{names[1]} looks better than {names[0]}: both are trained with {config.confirmations} fresh seeds"
        if names
        else f"no arm looks better than {arms[0]['arm']}: there is nothing to confirm"
    )
    return Report(metrics={"runs": len(members)}, members=members, note=note)


def screen(config: CanaryConfig, arms: Sequence[Arm], results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the content of `screening.json`.

    Args:
        config: settings of the cycle.
        arms: content of `arms.json`; the first is the current mixture.
        results: content of every `result.json` of the screening.

    Raises:
        InputError: a result is missing, or has other weights than its arm.
    """
    sources, bpb = bpb_of(arms, config.seeds, results)
    target = config.target or dict.fromkeys(sources, 1 / len(sources))
    goal, means = weights_of(target, sources), bpb.mean(1)
    guarded = config.guarded or tuple(sources)
    worse = [statistics.regressions(row, means[0], sources, guarded, config.guard_share) for row in means]
    best = statistics.finalist(bpb @ goal, {arm for arm, shares in enumerate(worse) if shares})
    scores = means @ goal
    rows = [
        {
            **{key: arm[key] for key in ("arm", "kind", "weights")},
            "target_bpb": round(float(scores[index]), 6),
            "bpb": {source: round(float(value), 6) for source, value in zip(sources, means[index], strict=True)},
            "difference": round(float(scores[0] - scores[index]), 6),
            "regressions": {source: round(share, 6) for source, share in sorted(worse[index].items())},
        }
        for index, arm in enumerate(arms)
    ]
    return {
        "arms": rows,
        "target": {source: round(weight, 6) for source, weight in sorted(target.items())},
        "finalist": None if best is None else arms[best]["arm"],
        "response": _response(arms, means, sources, target),
    }


def weights_of(target: Mapping[str, float], sources: Sequence[str]) -> Floats:
    """Returns the weight of each source in the target, shape (sources,)."""
    return np.array([target.get(source, 0.0) for source in sources])


def bpb_of(arms: Sequence[Arm], seeds: Sequence[int], results: Sequence[Mapping[str, Any]]) -> tuple[list[str], Floats]:
    """Returns the sources and their bits per byte, shape (arms, seeds, sources).

    Raises:
        InputError: a result is missing, or has other weights than its arm.
    """
    by_run = {(result["arm"], result["seed"]): result for result in results}
    missing = [f"{arm['arm']}-seed-{s}" for arm in arms for s in seeds if (arm["arm"], s) not in by_run]
    if missing:
        raise InputError(f"no result of {', '.join(missing)}", "run the stages canary and confirm for these members")
    for arm in arms:
        for seed in seeds:
            if by_run[arm["arm"], seed]["weights"] != arm["weights"]:
                raise InputError(
                    f"{arm['arm']}-seed-{seed} was trained with other weights than {arm['arm']} has now",
                    "run the stages canary and confirm again",
                )
    sources = sorted(by_run[arms[0]["arm"], seeds[0]]["bpb"])
    rows = [[[by_run[arm["arm"], s]["bpb"][source] for source in sources] for s in seeds] for arm in arms]
    return sources, np.array(rows, dtype=np.float64)


def _response(
    arms: Sequence[Arm],
    bpb: Floats,
    sources: Sequence[str],
    target: Mapping[str, float],
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
