"""Stage variants: the settings of each arm of a cycle whose arms are settings (`[[canary.settings]]`).

Reads `plan`, which ties a cycle to its tokens, and if it exists the `previous` decision. Writes `variants.json`:
{variants: [{name, set}, ...], the current settings first; weights: the current mixture, or null for the natural one}.
Returns the names: the stages of documents and tokens run once for each of them, with its settings over those of the
recipe, and write artifacts of the version `<version>.<name>`. Those whose settings and inputs are the same are adopted.

The current settings are those that earlier cycles accepted, over the recipe's.

`first` makes the arms once the tokens of the variants exist: an arm for each, all with the same mixture. A variant
without a mixture of its own (`canary.current`) has the current one, as far as it has its sources; the natural mixture
is that of its own tokens, since a run with these settings would read it. So are the shares within the groups that the
recipe names; a previous decision has a weight for each component, the same in all arms.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tasks.core.engine import Engine
from tasks.core.errors import RecipeError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.tokens.components import JOINT, group_names
from tasks.formats.tokens.labels import SOURCE
from tasks.formats.tokens.mixture import grid_weights
from tasks.stages.canary import CURRENT, MIXTURE_OF_ARM, REPEATED, CanaryConfig
from tasks.stages.canary.cost import CycleCost
from tasks.stages.canary.decision import Decision
from tasks.stages.canary.registration import (
    CURRENT_OF_RECIPE,
    Arm,
    Cycle,
    begin,
    continues,
    in_components,
    require_repetition,
    rules,
    write,
)

VERSION = 1
VARIANTS = "variants.json"

Variant = Mapping[str, Any]
"""A row of `variants.json`."""


def run(config: CanaryConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the variants."""
    previous = inputs.get("previous") if config.reuse else None
    decision = Decision.read(previous) if previous else None
    rows = variants(config, decision.settings or {} if decision else {})
    weights = (decision.weights if decision and continues(config, previous) else None) or config.current or None
    write(output, {VARIANTS: json.dumps({"variants": rows, "weights": weights}, indent=2).encode() + b"\n"})
    names = tuple(variant["name"] for variant in rows)
    return Report(metrics={"variants": len(names)}, members=names, note=f"settings of {', '.join(names)}")


def variants(config: CanaryConfig, accepted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns name and settings of each variant, the current one first.

    Args:
        config: settings of the cycle.
        accepted: settings by dotted path that earlier cycles accepted.
    """
    rows = [{"name": CURRENT, "set": dict(accepted)}]
    for variant in config.settings:
        kept = {path: value for path, value in accepted.items() if not _is_set(path, variant.set)}
        rows.append({"name": variant.name, "set": {**kept, **variant.set}})
    return rows


def _is_set(path: str, changed: Mapping[str, Any]) -> bool:
    """Returns whether a change sets a path, a table that contains it, or a part of it."""
    return any(f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.") for other in changed)


def first(
    config: CanaryConfig,
    variants: Sequence[Variant],
    sequences: Sequence[Mapping[str, int]],
    weights: Mapping[str, float] | None,
    left_out: Sequence[str],
    cost: CycleCost,
    by: str = SOURCE,
) -> Cycle:
    """Returns a cycle with its only round.

    Args:
        config: settings of the cycle.
        variants: the variants, the current one first.
        sequences: of each variant, the number of sequences by source, all above 0.
        weights: the current mixture; None: the natural one.
        left_out: ids of held-out documents that are not measured.
        cost: of the cycle.
        by: the columns whose values are the sources (`[pack] by`) of the current settings.

    Raises:
        RecipeError: a mixture is not possible, or the budget does not pay for all arms.
    """
    arms = _arms(config, variants, sequences, weights, by)
    for arm in arms:
        arm |= {"left_out": list(left_out)} if left_out else {}
    cost.require(len(arms) * len(config.seeds))
    return begin(config, arms, [*_rules(arms, len(left_out)), *rules(config, cost, len(arms))[1:]], sequences[0])


def _arms(
    config: CanaryConfig,
    variants: Sequence[Variant],
    sequences: Sequence[Mapping[str, int]],
    weights: Mapping[str, float] | None,
    by: str,
) -> list[Arm]:
    """Returns the arms, numbered like the variants; a variant that is accepted already is none."""
    of_recipe = (weights or {}) == config.current
    arms: list[Arm] = []
    for number, (variant, counts) in enumerate(zip(variants, sequences, strict=True)):
        if number and variant["set"] == variants[0]["set"]:
            continue
        name, changed = variant["name"], dict(variant["set"])
        from_recipe = of_recipe and not changed.get(MIXTURE_OF_ARM)
        current = _of_recipe(config, name, counts, sequences[0], by) if from_recipe else weights
        mixed = _weights(config, variant, counts, current, sequences[0], by)
        require_repetition(config, mixed, counts, f'the arm "{name}"')
        arm = {"arm": f"arm-{number}", "kind": name, "weights": mixed, "set": changed}
        arms.append(arm)
        if name == CURRENT:
            arms.append({**arm, "arm": "arm-0-again", "kind": REPEATED, "again": True})
    return arms


def _of_recipe(
    config: CanaryConfig, name: str, sequences: Mapping[str, int], known: Collection[str], by: str
) -> dict[str, float]:
    """Returns the recipe's mixture for a variant, its groups divided by the variant's own numbers of sequences."""
    weights = config.current
    if weights and name != CURRENT:
        groups = {source: [group for group in group_names(source) if group in weights] for source in sequences}
        if added := sorted(source for source, names in groups.items() if not names and source not in known):
            raise _without_weight(name, added[0])
        common = {names[0]: weights[names[0]] for names in groups.values() if names}
        if not any(common.values()):
            raise _without_source(name)
        weights = {group: weight / math.fsum(common.values()) for group, weight in common.items()}
    return in_components(config, weights, sequences, by, CURRENT_OF_RECIPE)


def _weights(
    config: CanaryConfig,
    variant: Variant,
    sequences: Mapping[str, int],
    current: Mapping[str, float] | None,
    known: Collection[str],
    by: str,
) -> dict[str, float]:
    """Returns the mixture of a variant; sources in `known`, those of the current variant, may have no weight."""
    name, own = variant["name"], variant["set"].get(MIXTURE_OF_ARM)
    if own:
        mixed = in_components(config, own, sequences, by, f'{MIXTURE_OF_ARM} of the arm "{name}"')
        own = mixed if JOINT in by else own
    weights = own or current
    if not weights:
        return grid_weights(sequences)
    if added := sorted(set(sequences) - set(weights) - set(known)):
        raise _without_weight(name, added[0])
    common = {source: weights.get(source, 0.0) for source in sequences}
    if not any(common.values()):
        raise _without_source(name)
    return grid_weights(common)


_REMEDY = f"set {MIXTURE_OF_ARM} in this arm"


def _without_weight(arm: str, source: str) -> RecipeError:
    return RecipeError(f'the arm "{arm}" has the source "{source}", which has no weight in its mixture', _REMEDY)


def _without_source(arm: str) -> RecipeError:
    return RecipeError(f'the arm "{arm}" has no source of the current mixture', _REMEDY)


def _rules(arms: Sequence[Arm], left_out: int) -> list[str]:
    others = [arm for arm in arms if arm["kind"] not in (CURRENT, REPEATED)]
    changed = "; ".join(f"{arm['kind']} ({', '.join(sorted(arm['set']))})" for arm in others) or "none"
    return [
        f"One round. The arms are the current settings and {changed}. Each is trained on tokens of its own, which the "
        "same stages make with its settings, for the same number of steps.",
        "Every arm is measured on the held-out documents of the current settings, encoded with its own tokenizer, in "
        f"bits per byte. {left_out} of them are left out, because an arm is trained on them or on a duplicate.",
    ]
