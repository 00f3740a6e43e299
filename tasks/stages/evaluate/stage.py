"""Stage `evaluate`: bits per byte of the trained model on held-out text, compared with a unigram model.

Reads the last milestone of `checkpoint`, the held-out and training shards of `shards`, and the `tokenizer`. Writes
`documents/<source>.parquet` (document id, bytes, tokens, bits, bits of the unigram model), `scores.json`
{bpb, unigram_bpb, gain, step, sources {source: {bpb, unigram_bpb, documents, bytes}}} and `samples.json` (continuations
of the first tokens of held-out documents). `bpb` is the unweighted mean over sources; `gain` is 1 - bpb / unigram_bpb.
Where the recipe looks for evaluation sets, reads `contamination`, too, and adds to `scores.json` which of their items
the model has read (`contamination.learned`).
"""

import json
import math
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.core.artifact import Artifact, PartRecord
from tasks.core.digest import sha256_of
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Part, Report
from tasks.formats.tokens.shard import HELDOUT
from tasks.formats.tokens.shard_set import ShardSet
from tasks.stages.evaluate.config import EvaluateConfig
from tasks.stages.evaluate.contamination import learned
from tasks.stages.evaluate.unigram import unigram_bits
from tasks.trainer import model_file
from tasks.trainer.bpb import Heldout, document_bits, heldout, use_threads
from tasks.trainer.checkpoint import MODEL, name_of
from tasks.trainer.generate import Sampling, continuation
from tasks.trainer.model import Transformer

VERSION = 1

PROMPT_TOKENS, SAMPLE_TOKENS = 24, 48


def run(config: EvaluateConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Scores every source that has held-out documents; raises InputError if none has."""
    use_threads(config.threads)
    checkpoint, shards = inputs["checkpoint"], ShardSet.open(inputs["shards"])
    model, described, step = load_last(checkpoint)
    tokenizer = _matching_tokenizer(inputs["tokenizer"], described)
    sources = [source for source in shards.sources if shards.n_documents(source, HELDOUT)]
    if not sources:
        raise InputError(f"{inputs['shards'].address} has no held-out document", "raise encode.heldout_share")
    unigram = unigram_bits(shards)
    documents = {source: heldout(shards, source, config.max_tokens) for source in sources}
    for number, source in enumerate(sources):
        output.progress(number, len(sources), f"scoring {len(documents[source])} documents of {source}")
        if source not in output.committed:
            with output.part(source) as part:
                bits = document_bits(
                    model, documents[source], described["eos_id"], described["seq_len"], config.batch_windows
                )
                _write(part, documents[source], bits, unigram)
    scores = summarise({source: output.committed[source] for source in sources}, step)
    if "contamination" in inputs:
        scores["contamination"] = learned(inputs["contamination"], checkpoint)
    if "scores" not in output.committed:
        with output.part("scores", conserved=False) as part:
            _write_json(part, "scores.json", scores)
            _write_json(part, "samples.json", _samples(model, described, tokenizer, documents))
    return _report(scores)


def load_last(checkpoint: Artifact) -> tuple[Transformer, dict[str, Any], int]:
    """Returns the model of the last milestone, the content of its `model.json`, and its step."""
    step = max(json.loads(checkpoint.read("run.json"))["checkpoint_steps"])
    weights = checkpoint.local(f"checkpoints/{name_of(step)}/{MODEL}")
    model, described = model_file.load_model(Path(checkpoint.local(model_file.FILE)), Path(weights))
    return model, described, step


def summarise(records: dict[str, PartRecord], step: int) -> dict[str, Any]:
    """Returns the content of `scores.json` from the sums in the parts' metrics."""
    sources = {
        source: {
            "bpb": record.metrics["bits"] / record.metrics["bytes"],
            "unigram_bpb": record.metrics["unigram_bits"] / record.metrics["bytes"],
            "documents": record.rows_out,
            "bytes": int(record.metrics["bytes"]),
        }
        for source, record in records.items()
    }
    bpb, unigram = (fmean(score[name] for score in sources.values()) for name in ("bpb", "unigram_bpb"))
    return {"bpb": bpb, "unigram_bpb": unigram, "gain": 1 - bpb / unigram, "step": step, "sources": sources}


def _write(part: Part, documents: list[Heldout], bits: list[float], unigram: NDArray[np.float64]) -> None:
    columns: dict[str, list[Any]] = {
        "id": [document.uid.hex() for document in documents],
        "bytes": [document.n_bytes for document in documents],
        "tokens": [len(document.tokens) for document in documents],
        "bits": bits,
        "unigram_bits": [float(unigram[document.tokens].sum()) for document in documents],
    }
    part.count_in(len(documents))
    part.table("documents", pa.table(columns))
    for name in ("bytes", "bits", "unigram_bits"):
        part.metric(name, math.fsum(columns[name]))


def _write_json(part: Part, name: str, content: Any) -> None:
    with part.file(name) as file:
        file.write(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n")


def _samples(
    model: Transformer, described: dict[str, Any], tokenizer: Tokenizer, documents: dict[str, list[Heldout]]
) -> list[dict[str, str]]:
    """Returns for each source the first tokens of a held-out document and the model's continuation."""
    prompts = {source: some[0].tokens[:PROMPT_TOKENS].tolist() for source, some in documents.items()}
    sampling = Sampling(max_tokens=SAMPLE_TOKENS)
    samples = []
    for source, prompt in prompts.items():
        more = continuation(model, prompt, described["eos_id"], described["seq_len"], sampling)
        samples.append({"source": source, "prompt": tokenizer.decode(prompt), "continuation": tokenizer.decode(more)})
    return samples


def _matching_tokenizer(artifact: Artifact, described: dict[str, Any]) -> Tokenizer:
    data = artifact.read("tokenizer.json")
    if sha256_of(data) != described["tokenizer_sha256"]:
        raise InputError(
            f"{artifact.address} is not the tokenizer the checkpoint was trained with",
            "evaluate with the tokenizer that the shards were encoded with",
        )
    return Tokenizer.from_str(data.decode())


def _report(scores: dict[str, Any]) -> Report:
    metrics = {name: scores[name] for name in ("bpb", "unigram_bpb", "gain")}
    for source, score in scores["sources"].items():
        metrics[f"bpb/{source}"] = score["bpb"]
    note = f"{scores['bpb']:.3f} bits per byte, {scores['gain']:.0%} below the unigram model"
    for name, count in scores.get("contamination", {}).get("sets", {}).items():
        metrics[f"contaminated_items/{name}"] = count["items"]
        note += f"; has read {count['items']:,} items of {name}" if count["items"] else ""
    return Report(metrics=metrics, note=note)
