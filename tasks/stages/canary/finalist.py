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

from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.tokens.plan import Plan
from tasks.stages.canary import CanaryConfig
from tasks.stages.canary.arms import CYCLE, PROPOSED, with_results
from tasks.stages.canary.cost import CycleCost
from tasks.stages.canary.decision import Screened, encoded
from tasks.stages.canary.registration import ARMS, RESULT, Arm, Cycle, seeds_of, write
from tasks.stages.canary.statistics import screen

VERSION = 3
LR_SHARE = 0.2
"""Share of the learning rate at which the sign of the difference is checked."""
LOW_RATE = "-low-lr"
"""Ending of the names of the arms that are trained at `LR_SHARE`."""


def run(config: CanaryConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the finalist; raises InputError if the result of a member is missing."""
    results = [json.loads(member.read(RESULT)) for member in inputs.many("canaries")]
    cycle = with_results(json.loads(inputs["arms"].read(CYCLE)), results)
    plan = Plan.open(inputs["plan"])
    cost = CycleCost(config, plan.format.vocab_size, plan.seq_len)
    screening = screen(config, cycle, cost)
    arms = confirming(config, cycle, screening)
    write(output, {Screened.FILE: screening.content(), ARMS: encoded(arms)})
    members = tuple(f"{arm['arm']}-seed-{seed}" for arm in arms for seed in seeds_of(config, arm))
    finalist, current = screening.finalist, screening.arms[0].arm
    note = (
        f"{finalist} looks better than {current}: {len(members)} runs with fresh seeds"
        if finalist
        else f"no arm looks better than {current}: there is nothing to confirm"
    )
    return Report(metrics={"runs": len(members)}, members=members, note=note)


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
