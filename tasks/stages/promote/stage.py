"""Stage `promote`: puts the verdict of a comparison into effect.

Reads `comparison`, and the last decision; writes `champion.json` {champion, promoted, reason, comparison}: the decision
that the next comparison begins from. The tracker gives the champion the alias "champion" in the registry. Where people
must approve, this stage stands behind their approval: what they reject leaves no decision, and the last one stays.
"""

import json

from tasks.core.artifact import ArtifactId
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.stages.promote.compare import CHALLENGER, CHAMPION, COMPARISON, DECISION, as_json, champion_of, named
from tasks.stages.promote.config import PromoteConfig

VERSION = 1


def run(config: PromoteConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Decides; raises InputError if another champion was decided on since the comparison."""
    comparison = inputs["comparison"]
    found = json.loads(comparison.read(COMPARISON))
    now = named(champion_of(inputs["decided"])) if "decided" in inputs else None
    if now != found[CHAMPION]:
        raise InputError(
            f"{comparison.address} is with {_name(found[CHAMPION])}, and the champion is {_name(now)} by now",
            "give the run another version, which is compared with that one",
        )
    champion = found[CHALLENGER] if found["promoted"] else found[CHAMPION]
    decision = {CHAMPION: champion, "promoted": found["promoted"], "reason": found["reason"],
                "comparison": str(comparison.address)}  # fmt: skip
    if DECISION not in output.committed:
        with output.part(DECISION, conserved=False) as part, part.file(DECISION) as file:
            file.write(as_json(decision))
    output.alias(CHAMPION, ArtifactId.parse(champion["artifact"]))
    return Report(metrics={"promoted": float(found["promoted"])}, note=found["reason"])


def _name(model: dict[str, str] | None) -> str:
    return model["artifact"] if model else "none"
