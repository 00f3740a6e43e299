"""Stage `evaluate`: bits per byte of the trained model on held-out text, compared with a unigram model; task scores.

Reads the last or the best checkpoint of `checkpoint`, the held-out and training shards of `shards`, and the
`tokenizer`. Writes `documents/<source>.parquet` (document id, bytes, tokens, bits, bits of the unigram model),
`scores.json` {bpb, unigram_bpb, gain, step, sources {source: {bpb, unigram_bpb, documents, bytes}}} and `samples.json`
(continuations of the first tokens of held-out documents). `bpb` is the unweighted mean over sources; `gain` is 1 - bpb
/ unigram_bpb.

If the recipe searches for evaluation sets, also reads `contamination`, and adds to `scores.json` the number of their
items that the model has read (`reports.contamination_counts`).

If the recipe has tasks, scores the last milestones on them (`scoring`), and adds to `scores.json` `tasks`
[{task, kind, step, shots, items, metrics {metric: {value, stderr}}, decision_metric, contamination}], by step and task;
`contamination` is {items, documents}, or null if the items were not searched for. `tasks.md` is the table for people;
it is sent to MLflow with `tasks.png` and each metric by step.

If the recipe has replicas, reads their scores and adds `seeds` (`seeds.spread`). With replicas, or if the run has
measured held-out text, `heldout.md` is the table for people; it is sent to MLflow with `heldout.png`.
"""

import json
import math
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.core.artifact import Artifact, PartRecord
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Part, Report
from tasks.formats.hooks import Hooks
from tasks.formats.tokens.shard import TRAIN, ShardSet
from tasks.stages.evaluate.reports import (
    Curve,
    contamination_counts,
    draw_heldout,
    draw_tasks,
    heldout_curve,
    heldout_table,
    task_metrics,
    task_table,
)
from tasks.stages.evaluate.seeds import contents, spread
from tasks.trainer.data.heldout import HeldoutDocument, heldout_by_source
from tasks.trainer.evaluation.bpb import document_bits, use_threads
from tasks.trainer.evaluation.config import EvaluateConfig
from tasks.trainer.evaluation.items import external_of, matching_tokenizer
from tasks.trainer.evaluation.scoring import decisive, score_tasks
from tasks.trainer.inference import Sampling, Scorer, continuation
from tasks.trainer.model import model_file
from tasks.trainer.model.transformer import Transformer

VERSION = 2

PROMPT_TOKENS, SAMPLE_TOKENS = 24, 48


def external(config: EvaluateConfig) -> dict[str, list[str]]:
    """Returns the files of the tasks; their bytes are in the fingerprint."""
    return external_of(config.tasks)


HOOKS = Hooks(external=external)


def run(config: EvaluateConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Scores every source with held-out documents; raises InputError if there are none, or a task cannot be scored."""
    use_threads(config.threads)
    checkpoint, shards = inputs["checkpoint"], ShardSet.open(inputs["shards"])
    step = model_file.step_of(checkpoint, config.checkpoint, "[evaluate] checkpoint")
    model, described = load(checkpoint, step)
    tokenizer = Tokenizer.from_str(matching_tokenizer(inputs["tokenizer"], described))
    documents, unigram = heldout_by_source(shards, config.max_tokens), unigram_bits(shards)
    for number, source in enumerate(documents):
        output.progress(number, len(documents), f"scoring {len(documents[source])} documents of {source}")
        if source not in output.committed:
            with output.part(source) as part:
                bits = document_bits(
                    model, documents[source], described["eos_id"], described["seq_len"], config.batch_windows
                )
                _write(part, documents[source], bits, unigram)
    scores = summarize({source: output.committed[source] for source in documents}, step)
    if model_file.weights_path(checkpoint, step).startswith(f"{model_file.AVERAGED}/"):
        scores["weights"] = model_file.AVERAGED
    if "contamination" in inputs:
        scores["contamination"] = contamination_counts(inputs["contamination"], checkpoint)
    if config.tasks:
        sets = scores.get("contamination", {}).get("sets", {})
        scores["tasks"] = _tasks(config, checkpoint, step, tokenizer, sets, output)
    if config.replicas:
        other_inputs = contents([inputs[role].ref(role) for role in ("shards", "tokenizer")])
        other_inputs |= contents(inputs.external.values())
        scores["seeds"] = spread(scores, inputs.many("replicas"), config, other_inputs, checkpoint)
    curve = heldout_curve(checkpoint)
    tables = _tables(config, scores, curve)
    if "scores" not in output.committed:
        with output.part("scores", conserved=False) as part:
            _write_json(part, "scores.json", scores)
            _write_json(part, "samples.json", _samples(model, described, tokenizer, documents))
            for name, content in tables.items():
                with part.file(name) as file:
                    file.write(content)
    _send_to_tracker(scores, curve, tables, output)
    return _report(scores)


def _tables(config: EvaluateConfig, scores: dict[str, Any], curve: Curve) -> dict[str, bytes]:
    """Returns the tables for people, by file name."""
    tables = {}
    if config.tasks:
        tables["tasks.md"] = task_table(scores["tasks"], scores.get("seeds")).encode()
    if curve or config.replicas:
        tables["heldout.md"] = heldout_table(scores, curve).encode()
    return tables


def milestones(checkpoint: Artifact) -> list[int]:
    """Returns the steps of the milestones, ascending."""
    return sorted(json.loads(checkpoint.read("run.json"))["checkpoint_steps"])


def load(checkpoint: Artifact, step: int) -> tuple[Transformer, dict[str, Any]]:
    """Returns the model of a milestone, and the content of its `model.json`."""
    weights = checkpoint.local(model_file.weights_path(checkpoint, step))
    return model_file.load_model(Path(checkpoint.local(model_file.FILE)), Path(weights))


def _tasks(
    config: EvaluateConfig, checkpoint: Artifact, last: int, tokenizer: Tokenizer, sets: dict[str, Any], output: Output
) -> list[dict[str, Any]]:
    """Returns the scores of checkpoints up to `last` on all tasks, each with its contamination and decision metric.

    `sets` has the contamination by evaluation set (`reports.contamination_counts`).
    """

    def scorer(step: int) -> Scorer:
        model, described = load(checkpoint, step)
        return Scorer.of(model, described, tokenizer, config.task_batch_tokens)

    parameters = json.loads(checkpoint.read(model_file.FILE))["parameters"]["total"]
    steps = [*(step for step in milestones(checkpoint) if step < last), last][-config.task_milestones :]
    scores = score_tasks(config.tasks, steps, scorer, output)
    names = {task.name: task.evaluation_set or task.name for task in config.tasks}
    return [
        {
            **score,
            "decision_metric": decisive(score["kind"], parameters),
            "contamination": sets.get(names[score["task"]]),
        }
        for score in scores
    ]


def _send_to_tracker(scores: dict[str, Any], curve: Curve, tables: dict[str, bytes], output: Output) -> None:
    """Sends tables, figures and the metrics of every step to the tracker."""
    tasks, title = scores.get("tasks", []), str(output.address)
    for step in sorted({score["step"] for score in tasks}):
        of_step = [score for score in tasks if score["step"] == step]
        output.log_metrics(step, dict(task_metrics(of_step, "task_by_step")))
    for name, content in tables.items():
        output.log_file(name, content)
    if tasks:
        output.log_file("tasks.png", partial(draw_tasks, tasks, title, scores.get("seeds")))
    if "heldout.md" in tables:
        output.log_file("heldout.png", partial(draw_heldout, scores, curve, title))


def summarize(records: dict[str, PartRecord], step: int) -> dict[str, Any]:
    """Returns the content of `scores.json` from the metrics of the parts."""
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


def _write(part: Part, documents: list[HeldoutDocument], bits: list[float], unigram: NDArray[np.float64]) -> None:
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
    model: Transformer, described: dict[str, Any], tokenizer: Tokenizer, documents: dict[str, list[HeldoutDocument]]
) -> list[dict[str, str]]:
    """Returns for each source the start of a held-out document and the model's continuation."""
    prompts = {source: of_source[0].tokens[:PROMPT_TOKENS].tolist() for source, of_source in documents.items()}
    sampling = Sampling(max_tokens=SAMPLE_TOKENS)
    samples = []
    for source, prompt in prompts.items():
        stop = model_file.stop_ids(described)
        generated = continuation(model, prompt, described["eos_id"], described["seq_len"], sampling, stop)
        samples.append(
            {"source": source, "prompt": tokenizer.decode(prompt), "continuation": tokenizer.decode(generated)}
        )
    return samples


def _report(scores: dict[str, Any]) -> Report:
    metrics = {name: scores[name] for name in ("bpb", "unigram_bpb", "gain")}
    for source, score in scores["sources"].items():
        metrics[f"bpb/{source}"] = score["bpb"]
    for row in scores.get("seeds", {}).get("rows", ()):
        metrics[f"sd_over_seeds/{row['kind']}/{row['name']}/{row['metric']}"] = row["sd"]
    metrics |= task_metrics([score for score in scores.get("tasks", []) if score["step"] == scores["step"]])
    note = f"{scores['bpb']:.3f} bits per byte, {scores['gain']:.0%} below the unigram model"
    for name, count in scores.get("contamination", {}).get("sets", {}).items():
        metrics[f"contaminated_items/{name}"] = count["items"]
        note += f"; has read {count['items']:,} items of {name}" if count["items"] else ""
    return Report(metrics=metrics, note=note)


def unigram_bits(shards: ShardSet) -> NDArray[np.float64]:
    """Returns -log2 p of each token, float64 [vocab_size], from counts over all training shards plus one (Laplace)."""
    size = shards.format.vocab_size
    counts = np.ones(size, dtype=np.int64)
    for source in shards.sources:
        for name in shards.names(source, TRAIN):
            shard = shards.shard(name)
            for row, length in enumerate(shard.lengths.tolist()):
                counts += np.bincount(shard.slice(row, 0, length), minlength=size)
    bits: NDArray[np.float64] = np.log2(counts.sum()) - np.log2(counts)
    return bits
