"""Stage `evaluate_tuned`: compares a fine-tuned model with its base on held-out text, tasks and held-out examples.

Reads `finetuned`, its base, the held-out documents of the shards that the base was trained on (found through the
records of the artifacts), `examples` and `tokenizer`. Documents with learned chunks are excluded. Both models use the
same context, the shorter one of the two. Writes the scores of documents, items and examples
(`tasks.trainer.evaluation.comparison`), `comparison.json` {base, tuned, confidence, context, learned_documents, rows}
and `comparison.md`, the table for people, which is also sent to the tracker. A difference above 0 is an improvement;
the intervals are those of paired differences.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.documents.examples import HELDOUT, Examples, has_heldout
from tasks.formats.tokens.exposure import origin_of
from tasks.formats.tokens.shard import HELDOUT as SPLIT
from tasks.formats.tokens.shard import ShardSet
from tasks.stages.finetune import COMPARISON, TunedConfig
from tasks.trainer.evaluation.comparison import TOKENIZER, Contender, HeldoutText, compare, compare_responses, texts_of
from tasks.trainer.evaluation.items import files_of
from tasks.trainer.model import model_file

VERSION = 1
BASE, TUNED = "base", "tuned"
TABLE = "comparison.md"


def external(config: TunedConfig) -> dict[str, list[str]]:
    """Returns the files of the tasks, as local paths, by role `task:<name>`; their bytes are in the fingerprint."""
    tasks = config.evaluate.tasks if config.evaluate else ()
    return {f"task:{task.name}": [file.local() for file in files_of(task)] for task in tasks}


def run(config: TunedConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Compares the models; raises InputError if one is missing or cannot be loaded, or a task cannot be scored."""
    assert config.evaluate is not None, "the recipe sets it for a whole model"
    tuned, tokenizer = inputs["finetuned"], inputs["tokenizer"]
    base = origin_of(tuned)
    assert base is not None, "a fine-tuning has a base"
    pair = (Contender.of_artifact(BASE, base, tokenizer), Contender.of_artifact(TUNED, tuned, tokenizer))
    context = min(json.loads(contender.description.read_text())["seq_len"] for contender in pair)
    first, second = (_limit_context(contender, context, Path(output.scratch)) for contender in pair)
    learned_ids = _learned(inputs["examples"])
    texts, left_out = _texts(tuned, tokenizer, config.evaluate.max_tokens, learned_ids)
    rows = compare(first, second, texts, config.evaluate, output)
    if has_heldout(inputs["examples"]):
        examples, batch_tokens = Examples(inputs["examples"], HELDOUT), config.evaluate.task_batch_tokens
        rows += compare_responses(first, second, examples, context, batch_tokens, output)
    if not rows:
        raise InputError(
            f"there is nothing to compare {tuned.address} with its base on",
            "raise examples.heldout_share, or name [[evaluate.tasks]]",
        )
    comparison = {
        "base": str(base.address),
        "tuned": str(tuned.address),
        "confidence": config.confidence,
        "context": context,
        "learned_documents": left_out,
        "rows": [row.row(config.confidence) for row in rows],
    }
    table = markdown(comparison).encode()
    if COMPARISON not in output.committed:
        with output.part(COMPARISON, conserved=False) as part:
            files = {COMPARISON: json.dumps(comparison, indent=1, sort_keys=True).encode(), TABLE: table}
            for name, content in files.items():
                with part.file(name) as file:
                    file.write(content)
    output.log_file(TABLE, table)
    return Report(metrics=comparison_metrics(comparison["rows"]), note=comparison_note(comparison["rows"]))


def _limit_context(contender: Contender, context: int, folder: Path) -> Contender:
    """Returns a model whose context is limited to a number of tokens."""
    content = json.loads(contender.description.read_text()) | {"seq_len": context}
    path = folder / contender.label / model_file.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return replace(contender, description=path)


def _learned(examples: Artifact) -> set[str]:
    """Returns the ids of the documents with learned chunks."""
    ids: set[str] = set()

    def collect(rows: pa.Table) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        ids.update(rows.column("id").to_pylist())
        return np.zeros(rows.num_rows, np.bool_)

    Examples(examples).where(collect)
    return ids


def _texts(
    tuned: Artifact, tokenizer: Artifact, max_tokens: int, learned: set[str]
) -> tuple[dict[str, list[HeldoutText]], int]:
    """Returns the held-out documents without learned ones, by source, and the number of learned ones."""
    shards = _shards(tuned)
    if shards is None or not any(shards.n_documents(source, SPLIT) for source in shards.sources):
        return {}, 0
    all_texts = texts_of(shards, tokenizer.read(TOKENIZER).decode(), max_tokens)
    texts = {
        source: [document for document in documents if document.uid.hex() not in learned]
        for source, documents in all_texts.items()
    }
    left_out = sum(map(len, all_texts.values())) - sum(map(len, texts.values()))
    return {source: documents for source, documents in texts.items() if documents}, left_out


def _shards(model: Artifact) -> ShardSet | None:
    """Opens the shards of the original pretraining; None if they, or a model in between, are missing."""
    checkpoint: Artifact | None = model
    while checkpoint:
        ref = next((ref for ref in checkpoint.record.inputs if ref.role == "shards"), None)
        if ref:
            artifact = Artifact.find(checkpoint.store, ArtifactId.parse(ref.address))
            unchanged = artifact is not None and artifact.record.content == ref.content
            return ShardSet.open(artifact) if artifact and unchanged else None
        checkpoint = origin_of(checkpoint)
    return None


def markdown(content: dict[str, Any]) -> str:
    """Returns the content of COMPARISON as a table for people."""
    confidence = f"{content['confidence']:.0%}"
    lines = [
        f"# {content['tuned']} and its base",
        "",
        f"Base: `{content['base']}`. Both have scored the same documents, items and examples, in a context of "
        f"{content['context']:,} tokens; a positive difference is an improvement. bpb: bits per byte, of documents, of "
        "right answers, or of responses.",
        "",
        f"| | metric | items | base | tuned | better by | {confidence} interval |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(_cells(row))} |" for row in content["rows"]]
    if count := content["learned_documents"]:
        lines += ["", f"{count:,} held-out documents were learned as examples and do not count."]
    return "\n".join([*lines, ""])


def _cells(row: dict[str, Any]) -> list[str]:
    low, high = row["interval"]
    interval = "none" if low is None else f"{low:+.4f} .. {high:+.4f}"
    values = [f"{row[name]:.4f}" for name in ("first", "second")]
    named = f"{row['kind']} {row['name']}"
    return [named, row["metric"], f"{row['items']:,}", *values, f"{row['difference']:+.4f}", interval]


def comparison_metrics(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns the metrics for the tracker from the rows of COMPARISON."""
    metrics: dict[str, float] = {}
    for row in rows:
        name = f"{row['kind']}/{row['name']}"
        edges = dict(zip(("low", "high"), row["interval"], strict=True))
        values = {"base": row["first"], "tuned": row["second"], "difference": row["difference"], **edges}
        metrics |= {f"{name}/{key}": value for key, value in values.items() if value is not None}
    return metrics


def comparison_note(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the rows of COMPARISON as a note."""
    clauses = []
    for row in rows:
        low, high = row["interval"]
        interval = "" if low is None else f", {low:+.3f} .. {high:+.3f}"
        clauses.append(
            f"{row['kind']} {row['name']} {row['first']:.3f} -> {row['second']:.3f} {row['metric']}{interval}"
        )
    return "; ".join(clauses)
