"""Stage arms: selection of the mixtures of a canary cycle.

Reads `plan` (sequences per source) and, if it exists, the `previous` decision; writes `arms.json`, a list of
{arm, kind, weights}, and returns the members of the mapped stage canary: "arm-<k>-seed-<s>", one per arm and seed.

`arm-0` is the current mixture, the control of all comparisons: the decision of the previous cycle, unless the recipe's
mixture has changed since; else the recipe's, else the natural one. The other arms are the proposal of the previous
cycle's fit, the anchors, and mixtures sampled from Dirichlet distributions around the natural one, with concentrations
from 5 (close) to 0.5 (distant), as in RegMix (Liu et al. 2024, arXiv 2407.01492). A sampled mixture that would repeat a
source more than `repetition_cap` times is drawn again.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tasks.core.engine import Engine
from tasks.core.errors import InputError, RecipeError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.tokens.mixture import Mixture, grid_weights, repetitions
from tasks.formats.tokens.plan import Plan
from tasks.stages.canary import CanaryConfig

VERSION = 2
ARMS = "arms.json"
RESULT = "result.json"
"""File of the result of each member."""

CURRENT = "current"
SAMPLED = "sampled"
_TRIES = 10_000
_SAME = 0.005
"""L1 distance below which two mixtures count as the same arm."""

Arm = dict[str, Any]


def run(config: CanaryConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Selects the arms; raises RecipeError if the current mixture or the target is invalid."""
    plan = Plan.open(inputs["plan"])
    targets(config, plan.summary)
    previous = inputs.get("previous")
    decision = json.loads(previous.read("mixture.json")) if previous else None
    overridden = previous is not None and previous.record.config.get("current") != config.current
    arms = choose(config, {source: plan.sequences[source] for source in plan.sources}, decision, overridden=overridden)
    if ARMS not in output.committed:
        with output.part(ARMS, conserved=False) as part, part.file(ARMS) as file:
            file.write(json.dumps(arms, indent=2, sort_keys=True).encode() + b"\n")
    members = tuple(f"{arm['arm']}-seed-{seed}" for arm in arms for seed in config.seeds)
    kinds = [arm["kind"] for arm in arms]
    note = (
        f"{len(arms)} arms ({', '.join(kinds)}) x {len(config.seeds)} seeds; then, if one looks better, "
        f"{2 * config.confirmations} runs to confirm it"
    )
    return Report(metrics={"arms": len(arms), "runs": len(members)}, members=members, note=note)


def parse_member(member: str) -> tuple[str, int]:
    """Returns (arm, seed) of a member's name.

    >>> parse_member("arm-2-seed-1")
    ('arm-2', 1)
    """
    arm, _, seed = member.rpartition("-seed-")
    return arm, int(seed)


def targets(config: CanaryConfig, summary: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Returns the weight of each source's held-out bits per byte in the target.

    Raises:
        RecipeError: a source of the target is unknown or has no held-out document.
    """
    measurable = [source for source, count in sorted(summary["heldout_documents"].items()) if count]
    if not measurable:
        raise RecipeError("no source has a held-out document", "raise [encode] heldout_share or heldout_min")
    if not config.target:
        return {source: 1 / len(measurable) for source in measurable}
    return Mixture(weights=config.target).over(measurable, "[canary] target").weights


def choose(
    config: CanaryConfig,
    sequences: Mapping[str, int],
    previous: Mapping[str, Any] | None = None,
    *,
    overridden: bool = False,
) -> list[Arm]:
    """Returns the arms, the current mixture first; deterministic.

    Args:
        config: settings of the cycle.
        sequences: number of sequences by source, all above 0.
        previous: decision of the previous cycle, the content of its `mixture.json`.
        overridden: the recipe's current mixture has changed since the previous cycle and takes precedence.

    Raises:
        RecipeError: the current mixture names an unknown source, or repeats a source too often.
        InputError: no sampled mixture satisfies the repetition cap.
    """
    natural = grid_weights(sequences)
    current = _current(config, sequences, natural, None if overridden else previous)
    _check_repetition(config, current, sequences)
    arms: list[Arm] = []
    candidates = [(CURRENT, current), *_proposed(sequences, previous), *_anchors(config, current, natural)]
    for kind, weights in candidates:
        if _fits(config, weights, sequences) and not _is_duplicate(weights, arms):
            arms.append({"arm": f"arm-{len(arms)}", "kind": kind, "weights": weights})
    if len(sequences) > 1:
        sampler = _samples(config, natural)
        for _ in range(config.arms):
            weights = _next_sample(sampler, config, sequences, arms)
            arms.append({"arm": f"arm-{len(arms)}", "kind": SAMPLED, "weights": weights})
    return arms


def _current(
    config: CanaryConfig,
    sequences: Mapping[str, int],
    natural: dict[str, float],
    previous: Mapping[str, Any] | None,
) -> dict[str, float]:
    if previous is not None and (weights := _restrict(previous["weights"], sequences)):
        return weights
    if not config.current:
        return natural
    Mixture(weights=config.current).over(sequences, "[canary] current, among the sources with a whole sequence")
    return grid_weights({source: config.current.get(source, 0.0) for source in sequences})


def _proposed(
    sequences: Mapping[str, int], previous: Mapping[str, Any] | None
) -> Iterator[tuple[str, dict[str, float]]]:
    fit = previous and previous["response"]
    if fit and (weights := _restrict(fit["proposed_weights"], sequences)):
        yield "proposed", weights


def _restrict(weights: Mapping[str, float], sequences: Mapping[str, int]) -> dict[str, float] | None:
    """Returns the weights of an earlier corpus for the sources of this one; None if they have no common source."""
    common = {source: weights.get(source, 0.0) for source in sequences}
    return grid_weights(common) if any(common.values()) else None


def _check_repetition(config: CanaryConfig, current: Mapping[str, float], sequences: Mapping[str, int]) -> None:
    needed = repetitions(current, sequences, config.steps * config.batch_size)
    source, epochs = max(needed.items(), key=lambda item: item[1])
    if epochs > config.repetition_cap:
        raise RecipeError(
            f'the current mixture reads "{source}" {epochs:.1f} times, above [canary] repetition_cap = '
            f"{config.repetition_cap:g}",
            "lower its weight or [canary] steps, raise the cap, or add text of the source",
        )


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


def _samples(config: CanaryConfig, natural: Mapping[str, float]) -> Iterator[dict[str, float]]:
    rng = np.random.default_rng(config.sample_seed)
    sources, shares = list(natural), np.array(list(natural.values()))
    low, high = np.log(config.spread)
    while True:
        concentration = float(np.exp(rng.uniform(low, high))) * len(sources)
        sample = rng.dirichlet(np.maximum(concentration * shares, 1e-3))
        # Three decimals are readable in a table; smaller shares are irrelevant.
        rounded = np.round(sample, 3)
        yield grid_weights(dict(zip(sources, rounded.tolist(), strict=True)))


def _next_sample(
    sampler: Iterator[dict[str, float]], config: CanaryConfig, sequences: Mapping[str, int], arms: list[Arm]
) -> dict[str, float]:
    for _ in range(_TRIES):
        weights = next(sampler)
        if _fits(config, weights, sequences) and not _is_duplicate(weights, arms):
            return weights
    raise InputError(
        f"no further mixture of {', '.join(sequences)} satisfies [canary] repetition_cap = {config.repetition_cap:g}",
        "lower [canary] steps or arms, raise the cap, or add text",
    )


def _fits(config: CanaryConfig, weights: Mapping[str, float], sequences: Mapping[str, int]) -> bool:
    needed = repetitions(weights, sequences, config.steps * config.batch_size)
    return max(needed.values()) <= config.repetition_cap


def _is_duplicate(weights: Mapping[str, float], arms: list[Arm]) -> bool:
    return any(sum(abs(weights[source] - arm["weights"][source]) for source in weights) < _SAME for arm in arms)
