"""Stage arms: the mixtures of one round of a canary cycle. Its members are the rounds, "round-<k>".

Reads `plan` (sequences per source), label columns of `shards` and, if they exist, the `previous` decision that was not
rejected and the `earlier` one, of the cycle before, with its runs; from the second round on, the round
`before` it and that round's `canaries`. Writes `arms.json`, the arms of the round (`registration.Arm`), and
`cycle.json`: {registered: the rules and the budget, and evidence: the runs of earlier cycles (`evidence`), both written
before the first run; arms and results: of all rounds so far; rounds; swept: the results of a sweep of widths}.
Returns the members of the mapped stage canary: "round-<k>-arm-<n>-seed-<s>"; none if no further round is needed.

The files of tasks are inputs, so that their hashes are registered, too.

`arm-0` is the current mixture, the control of all comparisons: the decision of the previous cycle, unless the recipe's
mixture has changed since; else the recipe's, else the natural one. `arm-0-again` is the same mixture with other data,
the A/A arm. The other arms of the first round are the proposal of the previous cycle, the anchors, and mixtures that
determine the response best (`design`). A later round has the proposal of the response to all rounds before it, and
further mixtures around it.

If the previous cycle decided on other sources and new ones were added, its sources keep the ratios of its decision, as
one group (`design.Space`), and the cycle has a quarter of the arms: only the shares of the group and of the new sources
are varied.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.tokens.labels import SOURCE
from tasks.formats.tokens.mixture import grid_weights, repetitions
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.shard import ShardSet
from tasks.stages.canary import CURRENT, REPEATED, CanaryConfig, design, evidence, heldout, variants
from tasks.stages.canary.cost import CycleCost
from tasks.stages.canary.decision import Decision, encoded
from tasks.stages.canary.design import Space
from tasks.stages.canary.registration import (
    ARMS,
    CURRENT_OF_RECIPE,
    HOOKS,
    RESULT,
    Arm,
    Cycle,
    begin,
    continues,
    in_components,
    require_repetition,
    rules,
    targets,
    write,
)
from tasks.stages.canary.statistics import screen
from tasks.stages.canary.widths import SWEPT

__all__ = ["HOOKS", "VERSION", "run"]
VERSION = 4
CYCLE = "cycle.json"

SAMPLED = "sampled"
PROPOSED = "proposed"
_CANDIDATES = 4_000
_SAME = 0.005
"""L1 distance below which two mixtures count as the same arm."""


def run(config: CanaryConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Selects the arms of a round; raises RecipeError if the current mixture, the target or the budget is invalid."""
    plan = Plan.open(inputs["plan"])
    cost = CycleCost(config, plan.format.vocab_size, plan.seq_len)
    if config.settings:
        kept = evidence.registered(inputs.get("earlier"), plan.summary["by"], cost.flops(config.model))
        note = "Settings have no response. The runs of earlier cycles of mixtures are kept for the next such cycle."
        cycle = {**_of_settings(config, inputs, cost), "evidence": {**kept, "note": note}}
    elif "before" in inputs:
        results = [json.loads(member.read(RESULT)) for member in inputs.many("canaries")]
        cycle = following(config, json.loads(inputs["before"].read(CYCLE)), results, cost)
    else:
        previous = inputs.get("previous")
        decision = Decision.read(previous) if previous else None
        accepted = decision.weights if decision and continues(config, previous) else None
        proposed = decision.response.proposed_weights if decision and decision.response else None
        targets(config, plan.summary["heldout_documents"])
        sequences = {source: plan.sequences[source] for source in plan.sources}
        cycle = first(config, sequences, cost, accepted, proposed, plan.summary["by"])
        cycle = {**cycle, "evidence": _evidence(inputs, plan.summary["by"], cost)}
        cycle["registered"]["rules"] += [_start(config, inputs), cycle["evidence"]["note"]]
    this = cycle["rounds"][-1]
    arms = [arm for arm in cycle["arms"] if arm["arm"] in this["arms"]]
    if config.widths and this["round"] == 1:
        arms += config.widths.arms(cycle["arms"][0])
    write(output, {CYCLE: encoded(cycle), ARMS: encoded(arms)})
    members = tuple(f"{output.member}-{arm['arm']}-seed-{seed}" for arm in arms for seed in config.seeds)
    kinds = [arm["kind"] for arm in arms if arm["kind"] != SWEPT]
    kinds += ["widths"] if len(kinds) < len(arms) else []
    note = this["stopped"] or f"{len(arms)} arms ({', '.join(kinds)}) x {len(config.seeds)} seeds"
    return Report(metrics={"arms": len(arms), "runs": len(members)}, members=members, note=note)


def _evidence(inputs: Inputs, by: str, cost: CycleCost) -> dict[str, Any]:
    """Returns the runs of earlier cycles, and what this one records for later cycles beside its runs."""
    flops = cost.flops(cost.config.model)
    content = evidence.content_of(inputs["shards"], by) if "shards" in inputs else {}
    return {**evidence.registered(inputs.get("earlier"), by, flops), "by": by, "flops": flops, "content": content}


def _start(config: CanaryConfig, inputs: Inputs) -> str:
    """Returns in words where the current mixture comes from."""
    newest, accepted = inputs.get("earlier"), inputs.get("previous")
    rejected = (
        f"{newest.address} was rejected. " if newest and newest.address != (accepted and accepted.address) else ""
    )
    if accepted and continues(config, accepted):
        return f"{rejected}The current mixture is the decision of {accepted.address}."
    return f"{rejected}The current mixture is that of the recipe."


def _of_settings(config: CanaryConfig, inputs: Inputs, cost: CycleCost) -> Cycle:
    content = json.loads(inputs["variants"].read(variants.VARIANTS))
    plans = [Plan.open(artifact) for artifact in inputs.many("plans")]
    targets(config, plans[0].summary["heldout_documents"])
    encoded, limit = inputs.many("encoded"), config.heldout_tokens
    left_out = heldout.trained_on(ShardSet.open(encoded[0]), limit, encoded, inputs.many("documents"))
    sequences = [{source: plan.sequences[source] for source in plan.sources} for plan in plans]
    by = plans[0].summary["by"]
    return variants.first(config, content["variants"], sequences, content["weights"], left_out, cost, by)


def kept_ratios(
    config: CanaryConfig, sequences: Mapping[str, int], accepted: Mapping[str, float] | None
) -> dict[str, float]:
    """Returns the ratios that sources of the previous decision keep; {} if no source was added to at least two."""
    if not (config.reuse and config.arms) or accepted is None or not set(sequences) - set(accepted):
        return {}
    weights = {source: weight for source, weight in accepted.items() if source in sequences}
    return grid_weights(weights) if sum(weight > 0 for weight in weights.values()) > 1 else {}


def first(
    config: CanaryConfig,
    sequences: Mapping[str, int],
    cost: CycleCost,
    accepted: Mapping[str, float] | None = None,
    proposed: Mapping[str, float] | None = None,
    by: str = SOURCE,
) -> Cycle:
    """Returns a cycle with its first round; see `choose`. Raises RecipeError if the budget is too small."""
    seeds = len(config.seeds)
    cost.require(3 * seeds)
    kept = kept_ratios(config, sequences, accepted)
    arms = choose(config, sequences, accepted, proposed, by)[: cost.affordable(0) // seeds]
    most = _quarter(config) if kept else None
    return begin(config, arms, rules(config, cost, len(arms)), sequences, kept, most)


def following(config: CanaryConfig, cycle: Cycle, results: Sequence[Mapping[str, Any]], cost: CycleCost) -> Cycle:
    """Returns a cycle with its next round, which has no arms if the cycle has stopped.

    Args:
        config: settings of the cycle.
        cycle: the cycle so far.
        results: content of every `result.json` of its last round.
        cost: of the cycle.

    Raises:
        InputError: a result is missing, or has other weights than its arm.
    """
    cycle = with_results(cycle, results)
    number = len(cycle["rounds"]) + 1
    row: dict[str, Any] = {"round": number, "arms": [], "probability": None, "proposed": None}
    if stopped := cycle["rounds"][-1]["stopped"]:
        return {**cycle, "rounds": [*cycle["rounds"], {**row, "stopped": stopped}]}
    screened = screen(config, cycle, cost)
    row["probability"] = screened.lead and screened.lead.probability
    row["proposed"] = screened.response and screened.response.proposed_weights
    room = min(config.arms, cost.affordable(len(cycle["results"])) // len(config.seeds))
    if (most := cycle["registered"]["most_arms"]) is not None:
        room = min(room, most - len(cycle["arms"]))
    row["stopped"] = _stop(config, row["probability"], room, number)
    added = [] if row["stopped"] else _further(config, cycle, row["proposed"], room, number)
    if not added:
        row["stopped"] = row["stopped"] or f"no round {number}: no further mixture is feasible"
    row["arms"] = [arm["arm"] for arm in added]
    return {**cycle, "arms": [*cycle["arms"], *added], "rounds": [*cycle["rounds"], row]}


def with_results(cycle: Cycle, results: Sequence[Mapping[str, Any]]) -> Cycle:
    """Returns a cycle with the results of its last round, without their loss curves; those of a sweep apart."""
    kept = [
        {key: result[key] for key in ("arm", "seed", "weights", "bpb")} for result in results if "dim" not in result
    ]
    swept = [{key: result[key] for key in ("dim", "lr", "seed", "target_bpb")} for result in results if "dim" in result]
    cycle = {**cycle, "results": [*cycle["results"], *kept]}
    return {**cycle, "swept": swept} if swept else cycle


def _stop(config: CanaryConfig, probability: float | None, room: int, number: int) -> str | None:
    if probability is not None and probability > config.sure:
        return (
            f"no round {number}: the best mixture is lower than the current one with a probability of "
            f"{probability:.3f}, above {config.sure:g}"
        )
    if not config.arms:
        return f"no round {number}: [canary] arms = 0"
    return None if room > 0 else f"no round {number}: the budget is spent"


def _further(
    config: CanaryConfig, cycle: Cycle, proposed: Mapping[str, float] | None, room: int, number: int
) -> list[Arm]:
    """Returns the arms of a later round: the proposal, and mixtures around it that determine the response best."""
    arms: list[Arm] = list(cycle["arms"])
    known = len(arms)
    if proposed and not _is_duplicate(proposed, arms):
        arms.append({"arm": _next_name(arms), "kind": PROPOSED, "weights": dict(proposed)})
    space = Space.of(config, cycle["registered"]["sequences"], cycle["registered"]["kept"])
    center = space.shares(proposed) if proposed else space.region.natural
    arms += _chosen(config, space, center, arms, room - (len(arms) - known), config.sample_seed + number)
    return arms[known:]


def _quarter(config: CanaryConfig) -> int:
    """Returns the arms of a cycle in which sources keep their ratios: a quarter of those of a whole one, at least 6."""
    return max(6, (2 + len(config.anchors) + config.rounds * config.arms) // 4)


def _next_name(arms: Sequence[Arm]) -> str:
    return f"arm-{sum(not arm.get('again') for arm in arms)}"


def choose(
    config: CanaryConfig,
    sequences: Mapping[str, int],
    accepted: Mapping[str, float] | None = None,
    proposed: Mapping[str, float] | None = None,
    by: str = SOURCE,
) -> list[Arm]:
    """Returns the arms of the first round, the current mixture first; deterministic.

    Args:
        config: settings of the cycle.
        sequences: number of sequences by source, all above 0.
        accepted: the mixture that the previous cycle decided for; None if the recipe's has changed since.
        proposed: the proposal of the previous cycle's response.
        by: the columns whose values are the sources (`[pack] by`).

    Raises:
        RecipeError: the current mixture names an unknown source, or repeats a source too often.
        InputError: too few mixtures are feasible.
    """
    natural = grid_weights(sequences)
    kept = kept_ratios(config, sequences, accepted)
    space = Space.of(config, sequences, kept)
    current = _current(config, sequences, by, accepted)
    require_repetition(config, current, sequences, "the current mixture")
    arms: list[Arm] = [
        {"arm": "arm-0", "kind": CURRENT, "weights": current},
        {"arm": "arm-0-again", "kind": REPEATED, "weights": current, "again": True},
    ]
    proposal = _restrict(proposed, sequences) if proposed else None
    others = () if kept else (*([(PROPOSED, proposal)] if proposal else ()), *_anchors(config, current, natural))
    for kind, weights in others:
        if _fits(config, weights, sequences) and not _is_duplicate(weights, arms):
            arms.append({"arm": _next_name(arms), "kind": kind, "weights": weights})
    if len(sequences) > 1:
        # Of a quarter, half of the arms are for later rounds.
        count = min(config.arms, _quarter(config) // 2) if kept else config.arms
        chosen = _chosen(config, space, space.region.natural, arms, count, config.sample_seed)
        if len(chosen) < count:
            raise InputError(
                f"no further mixture of {', '.join(sequences)} satisfies [canary] repetition_cap = "
                f"{config.repetition_cap:g} and max_kl = {config.max_kl:g}",
                "lower [canary] steps or arms, raise the cap or max_kl, or add text",
            )
        arms += chosen
    return arms


def _chosen(
    config: CanaryConfig, space: Space, center: design.Floats, arms: Sequence[Arm], count: int, seed: int
) -> list[Arm]:
    """Returns up to `count` further arms among candidates with shares around `center`."""
    existing = np.array([space.shares(arm["weights"]) for arm in arms])
    found = design.candidates(space.region, center, config.spread, _CANDIDATES, seed)
    chosen: list[Arm] = []
    for index in design.d_optimal(found, existing, min(len(found), 4 * count)):
        weights = space.mixture(found[index])
        if len(chosen) < count and not _is_duplicate(weights, [*arms, *chosen]):
            chosen.append({"arm": _next_name([*arms, *chosen]), "kind": SAMPLED, "weights": weights})
    return chosen


def _current(
    config: CanaryConfig, sequences: Mapping[str, int], by: str, accepted: Mapping[str, float] | None
) -> dict[str, float]:
    if accepted and (weights := _restrict(accepted, sequences)):
        return weights
    return in_components(config, config.current, sequences, by, CURRENT_OF_RECIPE)


def _restrict(weights: Mapping[str, float], sequences: Mapping[str, int]) -> dict[str, float] | None:
    """Returns the weights of an earlier corpus for the sources of this one; None if they have no common source."""
    common = {source: weights.get(source, 0.0) for source in sequences}
    return grid_weights(common) if any(common.values()) else None


def _anchors(
    config: CanaryConfig, current: Mapping[str, float], natural: dict[str, float]
) -> Iterator[tuple[str, dict[str, float]]]:
    if "natural" in config.anchors:
        yield "natural", natural
    if "uniform" in config.anchors:
        yield "uniform", grid_weights(dict.fromkeys(natural, 1.0))
    if "drop_one" in config.anchors:
        for dropped in sorted(source for source, weight in current.items() if weight):
            rest = {source: 0.0 if source == dropped else weight for source, weight in current.items()}
            if any(rest.values()):
                yield f"without {dropped}", grid_weights(rest)


def _fits(config: CanaryConfig, weights: Mapping[str, float], sequences: Mapping[str, int]) -> bool:
    needed = repetitions(weights, sequences, config.steps * config.batch_size)
    return max(needed.values()) <= config.repetition_cap


def _is_duplicate(weights: Mapping[str, float], arms: Sequence[Arm]) -> bool:
    return any(sum(abs(weights[source] - arm["weights"][source]) for source in weights) < _SAME for arm in arms)
