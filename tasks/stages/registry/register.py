"""Stage `register`: packs the checkpoint that was scored, its tokenizer and its lineage into one model folder.

Reads `checkpoint`, `scores`, `tokenizer` and `mixture`; writes the artifact `model` (`model/model.safetensors`,
`config.json`, `generation_config.json`, `tokenizer_config.json`, `tokenizer.json`, `model.json`, `lineage.json`, all in
`model/`) and registers it in MLflow through the tracker. The folder has the Hugging Face format, in the layout of the
first family that has the model; if none has it, only `model.json`, tokenizer and weights under Sluice's own names.
The lineage names the checkpoint with the run's initial weights ("initial"), if there is one.
"""

import json
import logging
from collections.abc import Callable

from tasks.core.config import canonical_json
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.tokens.exposure import origin_ref
from tasks.stages.registry import RegisterConfig
from tasks.trainer.interchange.huggingface import TOKENIZER, names_in, small_files
from tasks.trainer.interchange.weights import copy_renamed
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.model_file import weights_path

VERSION = 2

log = logging.getLogger(__name__)


def run(config: RegisterConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Packs and registers the model; raises InputError if `checkpoint` has not the one that was scored."""
    checkpoint = inputs["checkpoint"]
    scores = json.loads(inputs["scores"].read("scores.json"))
    weights = weights_path(checkpoint, scores["step"])
    scored = weights.rpartition("/")[0]
    if not checkpoint.files(weights):
        raise InputError(f"{checkpoint.address} has no {scored}, which was scored", "run the stage evaluate again")
    description = checkpoint.read("model.json")
    described = json.loads(description)
    tokenizer = inputs["tokenizer"].read(TOKENIZER).decode()
    rename: Callable[[str], str] = names_in(ModelConfig.model_validate(described["model"]))
    try:
        files = small_files(described, tokenizer)
    except InputError as error:  # no layout of `transformers` has the model, which `model.json` describes
        log.warning("%s is registered with Sluice's own names of weights: %s", checkpoint.address, error.cause)
        files, rename = {TOKENIZER: tokenizer.encode()}, str
    files["model.json"] = description
    with output.part("model", conserved=False) as part:
        with checkpoint.open(weights) as source, part.file("model/model.safetensors") as target:
            copy_renamed(source, target, rename)
        for name, content in files.items():
            part.write(f"model/{name}", content)
        part.write("model/lineage.json", canonical_json(_lineage(inputs, scored, scores)).encode())
    output.register_model("model", config.model)
    return Report(metrics={"bpb": float(scores["bpb"])})


def _lineage(inputs: Inputs, scored: str, scores: dict[str, object]) -> dict[str, object]:
    checkpoint = inputs["checkpoint"]
    run, initial = json.loads(checkpoint.read("run.json")), origin_ref(checkpoint)
    return {
        **({"initial": {"artifact": initial.address, "fingerprint": initial.fingerprint}} if initial else {}),
        "inputs": {role: {"fingerprint": inputs[role].record.fingerprint} for role in sorted(inputs)},
        "checkpoint": scored,
        "weights": run["weights"],
        "steps": run["steps"],
        "scores": scores,
    }
