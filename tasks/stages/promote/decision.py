"""What a comparison and a decision say, and of which models.

Reads `champion.json` of a decision. Imports no torch: the decision is put into effect where there is none.
"""

import json
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError

COMPARISON = "comparison.json"
DECISION = "champion.json"
CHALLENGER = "challenger"
CHAMPION = "champion"


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
