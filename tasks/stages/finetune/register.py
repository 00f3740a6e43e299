"""Stage `register_tuned`: a fine-tuned model, its tokenizer, chat template and lineage as one model folder for MLflow.

Reads `finetuned`, `examples`, `tokenizer` and `tuned_scores`; writes the artifact `tuned_model`, a Hugging Face folder
`model/` in the Llama layout with `model.json` and `lineage.json`, and registers it through the tracker. The lineage
contains the base, the examples, and the chunks and documents that the examples were made from.
"""

import json
from pathlib import Path
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.config import canonical_json
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.documents.chunks import KIND as CHUNKS
from tasks.formats.tokens.exposure import origin_refs, source_files
from tasks.stages.finetune import COMPARISON, TunedConfig
from tasks.trainer.interchange.huggingface import names_in, small_files
from tasks.trainer.interchange.weights import WEIGHTS, copy_renamed
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.model_file import last_weights

VERSION = 2
FOLDER = "model"


def run(config: TunedConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Packs and registers the model; raises InputError if it has only adapters."""
    model = inputs["finetuned"]
    described, initial = last_weights(model, "register")
    rename = names_in(ModelConfig.model_validate(described["model"]))
    template = json.loads(model.read("run.json"))["template"]
    tokenizer = inputs["tokenizer"].read("tokenizer.json").decode()
    sources = _sources(inputs["examples"])
    files = small_files(described, tokenizer, template, source_files(model))
    files["model.json"] = (canonical_json(described | {"template": template}) + "\n").encode()
    files["lineage.json"] = canonical_json(_lineage(inputs, sources)).encode()
    if FOLDER not in output.committed:
        with output.part(FOLDER, conserved=False) as part:
            with Path(initial.file).open("rb") as source, part.file(f"{FOLDER}/{WEIGHTS}") as target:
                copy_renamed(source, target, rename)
            for name, content in files.items():
                part.write(f"{FOLDER}/{name}", content)
    name = config.model or f"{output.address.name.partition('/')[0]}-tuned"
    output.register_model(FOLDER, name)
    return Report(note=f"registered as {name}", inputs=sources)


def _sources(examples: Artifact) -> tuple[InputRef, ...]:
    """Returns references to the chunks that became examples, and to their documents if they still exist."""
    refs: list[InputRef] = []
    for ref in examples.record.inputs:
        if ref.address.partition("@")[0].partition("/")[2] == CHUNKS:
            refs.append(ref.model_copy(update={"role": CHUNKS}))
            chunks = Artifact.find(examples.store, ArtifactId.parse(ref.address))
            refs += [source for source in chunks.record.inputs if source.role == "documents"] if chunks else []
    return tuple(refs)


def _lineage(inputs: Inputs, sources: tuple[InputRef, ...]) -> dict[str, Any]:
    model = inputs["finetuned"]
    bases = [{"artifact": ref.address, "fingerprint": ref.fingerprint} for ref in origin_refs(model)]
    return {
        "initial": bases[0],
        "bases": bases,
        "inputs": {role: {"fingerprint": inputs[role].record.fingerprint} for role in sorted(inputs)},
        "made_from": {ref.role: {"artifact": ref.address, "fingerprint": ref.fingerprint} for ref in sources},
        "scores": json.loads(inputs["tuned_scores"].read(COMPARISON)),
    }
