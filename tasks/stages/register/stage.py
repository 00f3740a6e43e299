"""Stage `register`: packs the last checkpoint, its tokenizer and its lineage as one model folder.

Reads `checkpoint`, `scores`, `tokenizer` and `mixture`; writes the artifact `model` (`model/model.safetensors`,
`model/model.json`, `model/tokenizer.json`, `model/lineage.json`) and registers it in MLflow through the tracker.
The lineage names the checkpoint from whose weights the run began ("initial"), where there is one.
"""

import json
import shutil

from tasks.core.artifact import Artifact
from tasks.core.config import canonical_json
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Part, Report
from tasks.formats.tokens.origin import origin_ref
from tasks.stages.register.config import RegisterConfig

VERSION = 1


def run(config: RegisterConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Packs and registers the model; raises InputError if `checkpoint` has no milestone."""
    checkpoint = inputs["checkpoint"]
    last = _last_checkpoint(checkpoint)
    scores = json.loads(inputs["scores"].read("scores.json"))
    with output.part("model", conserved=False) as part:
        _copy(part, checkpoint, f"{last}/model.safetensors", "model/model.safetensors")
        _copy(part, checkpoint, "model.json", "model/model.json")
        _copy(part, inputs["tokenizer"], "tokenizer.json", "model/tokenizer.json")
        with part.file("model/lineage.json") as file:
            file.write(canonical_json(_lineage(inputs, last, scores)).encode())
    output.register_model("model", config.model)
    return Report(metrics={"bpb": float(scores["bpb"])})


def _last_checkpoint(checkpoint: Artifact) -> str:
    folders = {
        path.rpartition("/")[0] for path in checkpoint.files("checkpoints/") if path.endswith("model.safetensors")
    }
    if not folders:
        raise InputError(f"{checkpoint.address} holds no checkpoint", "run the stage train again")
    return max(folders)


def _copy(part: Part, source: Artifact, path: str, target: str) -> None:
    with source.open(path) as read, part.file(target) as write:
        shutil.copyfileobj(read, write, 1 << 20)


def _lineage(inputs: Inputs, last: str, scores: dict[str, object]) -> dict[str, object]:
    checkpoint = inputs["checkpoint"]
    run, initial = json.loads(checkpoint.read("run.json")), origin_ref(checkpoint)
    began = {"artifact": initial.address, "fingerprint": initial.fingerprint} if initial else None
    return {
        **({"initial": began} if began else {}),
        "inputs": {role: {"fingerprint": inputs[role].record.fingerprint} for role in sorted(inputs)},
        "checkpoint": last,
        "weights": run["weights"],
        "steps": run["steps"],
        "scores": scores,
    }
