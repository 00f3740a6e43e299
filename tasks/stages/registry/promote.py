"""Stage `promote`: puts the verdict of a comparison into effect.

Reads `comparison`, and the last decision; writes `champion.json` {champion, promoted, reason, comparison}: the decision
that the next comparison begins from. The tracker gives the champion the alias "champion" in the registry. Where people
must approve, this stage stands behind their approval: what they reject leaves no decision, and the last one stays.

Imports no torch, because it runs where there is none.
"""

import json
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.stages.registry import PromoteConfig

VERSION = 1
COMPARISON = "comparison.json"
DECISION = "champion.json"
CHALLENGER = "challenger"
CHAMPION = "champion"


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


def champion_of(decision: Artifact) -> Artifact:
    """Opens the model that a decision names as champion; raises InputError if it is gone or is another one now."""
    said = json.loads(decision.read(DECISION))[CHAMPION]
    found = Artifact.find(decision.store, ArtifactId.parse(said["artifact"]))
    if found is None or found.record.content != said["content"]:
        raise InputError(
            f"{decision.address} names {said['artifact']} as champion, which is gone or has been made again",
            f"restore it; or remove {decision.store.url(decision.address.path)}, so that the decision before it counts",
        )
    return found


def named(model: Artifact) -> dict[str, str]:
    """Returns what identifies a model in a decision."""
    record = model.record
    return {"artifact": str(model.address), "fingerprint": record.fingerprint, "content": record.content}


def as_json(content: Any) -> bytes:
    """Returns the bytes of a file."""
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"
