"""Stage variants: the settings of each arm of a cycle whose arms are settings (`[[canary.settings]]`).

Reads `plan`, which ties a cycle to its tokens, and if it exists the `previous` decision. Writes `variants.json`:
{variants: [{name, set}, ...], the current settings first; weights: the current mixture, or null for the natural one}.
Returns the names: the stages of documents and tokens run once for each of them, with its settings over those of the
recipe, and write artifacts of the version `<version>.<name>`. Those whose settings and inputs are the same are adopted.

The current settings are those that earlier cycles accepted, over the recipe's.
"""

import json
from collections.abc import Mapping
from typing import Any

from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.stages.canary import CURRENT, CanaryConfig

VERSION = 1
VARIANTS = "variants.json"
MIXTURE = "mixture.json"


def run(config: CanaryConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the variants."""
    previous = inputs.get("previous") if config.reuse else None
    decision = json.loads(previous.read(MIXTURE)) if previous else {}
    is_changed = previous is not None and previous.record.config.get("current") != config.current
    rows = variants(config, decision.get("settings", {}))
    weights = (None if is_changed else decision.get("weights")) or config.current or None
    if VARIANTS not in output.committed:
        with output.part(VARIANTS, conserved=False) as part, part.file(VARIANTS) as file:
            file.write(json.dumps({"variants": rows, "weights": weights}, indent=2).encode() + b"\n")
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
