"""Stage `promote`: applies the verdict of a comparison.

Reads `comparison` and the last decision; writes `champion.json` {champion, promoted, reason, comparison}, the decision
that the next comparison reads. The tracker gives the champion the alias "champion" in the registry. If approval is
required, this stage runs after it: a rejection leaves no new decision, and the last one remains in force.

Must not import torch, because it also runs in environments without torch.
"""

import json
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.stages.registry import PromoteConfig

VERSION = 2
COMPARISON = "comparison.json"
DECISION = "champion.json"
CHALLENGER = "challenger"
CHAMPION = "champion"


def run(config: PromoteConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the decision; raises InputError if the champion has changed since the comparison."""
    comparison = inputs["comparison"]
    verdict = json.loads(comparison.read(COMPARISON))
    current = model_ref(champion_of(inputs["decided"])) if "decided" in inputs else None
    if current != verdict[CHAMPION]:
        raise InputError(
            f"{comparison.address} is with {_name(verdict[CHAMPION])}, but the champion is {_name(current)} now",
            "give the run another version, which is compared with the current champion",
        )
    champion = verdict[CHALLENGER] if verdict["promoted"] else verdict[CHAMPION]
    decision = {CHAMPION: champion, "promoted": verdict["promoted"], "reason": verdict["reason"],
                "comparison": str(comparison.address)}  # fmt: skip
    if DECISION not in output.committed:
        with output.part(DECISION, conserved=False) as part, part.file(DECISION) as file:
            file.write(as_json(decision))
    output.alias(CHAMPION, ArtifactId.parse(champion["artifact"]))
    return Report(metrics={"promoted": float(verdict["promoted"])}, note=verdict["reason"])


def _name(model: dict[str, str] | None) -> str:
    return model["artifact"] if model else "none"


def champion_of(decision: Artifact) -> Artifact:
    """Opens the model that a decision names as champion; raises InputError if it is gone or has been made again."""
    ref = json.loads(decision.read(DECISION))[CHAMPION]
    model = Artifact.find(decision.store, ArtifactId.parse(ref["artifact"]))
    if model is None or model.record.content != ref["content"]:
        raise InputError(
            f"{decision.address} names {ref['artifact']} as champion, which is gone or has been made again",
            f"restore it, or remove {decision.store.url(decision.address.path)}, so that the previous decision applies",
        )
    return model


def model_ref(model: Artifact) -> dict[str, str]:
    """Returns the reference to a model in a decision."""
    record = model.record
    return {"artifact": str(model.address), "fingerprint": record.fingerprint, "content": record.content}


def as_json(content: Any) -> bytes:
    """Returns the bytes of a JSON file."""
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"
