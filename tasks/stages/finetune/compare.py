"""Stage `evaluate_tuned`: a fine-tuned model beside its base, on the same text, tasks and held-out examples.

Reads `finetuned` and what its record leads to: its base, and the held-out documents of the shards that this was trained
on; `examples` and `tokenizer`. Documents whose chunks were learned do not count. Both models read the same context: the
shorter one of the two. Writes the scores of documents, items and examples (`tasks.trainer.evaluation.comparison`),
`comparison.json` {base, tuned, confidence, context, learned_documents, rows} and `comparison.md`, the
table for people, which goes to the tracker. A difference above 0 is an improvement; its interval is that of paired
differences.
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
    """Compares; raises InputError where the base is gone, a model cannot be loaded or a task cannot be scored."""
    assert config.evaluate is not None, "the recipe fills it in where there is a whole model"
    tuned, tokenizer = inputs["finetuned"], inputs["tokenizer"]
    base = origin_of(tuned)
    assert base is not None, "a fine-tuning has a base"
    pair = (Contender.of_artifact(BASE, base, tokenizer), Contender.of_artifact(TUNED, tuned, tokenizer))
    context = min(json.loads(one.description.read_text())["seq_len"] for one in pair)
    first, second = (_within(one, context, Path(output.scratch)) for one in pair)
    learned = _learned(inputs["examples"])
    texts, left_out = _texts(tuned, tokenizer, config.evaluate.max_tokens, learned)
    rows = compare(first, second, texts, config.evaluate, output)
    if has_heldout(inputs["examples"]):
        examples, batch_tokens = Examples(inputs["examples"], HELDOUT), config.evaluate.task_batch_tokens
        rows += compare_responses(first, second, examples, context, batch_tokens, output)
    if not rows:
        raise InputError(
            f"there is nothing to compare {tuned.address} with its base on",
            "raise examples.heldout_share, or name [[evaluate.tasks]]",
        )
    found = {
        "base": str(base.address),
        "tuned": str(tuned.address),
        "confidence": config.confidence,
        "context": context,
        "learned_documents": left_out,
        "rows": [row.row(config.confidence) for row in rows],
    }
    table = markdown(found).encode()
    if COMPARISON not in output.committed:
        with output.part(COMPARISON, conserved=False) as part:
            for name, content in ((COMPARISON, json.dumps(found, indent=1, sort_keys=True).encode()), (TABLE, table)):
                with part.file(name) as file:
                    file.write(content)
    output.log_file(TABLE, table)
    return Report(metrics=metrics_of(found["rows"]), note=note_of(found["rows"]))


def _within(contender: Contender, context: int, folder: Path) -> Contender:
    """Returns a model that reads at most so many tokens."""
    content = json.loads(contender.description.read_text()) | {"seq_len": context}
    path = folder / contender.label / model_file.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return replace(contender, description=path)


def _learned(examples: Artifact) -> set[str]:
    """Returns the ids of the documents whose chunks were learned."""
    found: set[str] = set()

    def note(rows: pa.Table) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        found.update(rows.column("id").to_pylist())
        return np.zeros(rows.num_rows, np.bool_)

    Examples(examples).where(note)
    return found


def _texts(
    tuned: Artifact, tokenizer: Artifact, max_tokens: int, learned: set[str]
) -> tuple[dict[str, list[HeldoutText]], int]:
    """Returns the held-out documents by source that were not learned, and how many were."""
    shards = _shards(tuned)
    if shards is None or not any(shards.n_documents(source, SPLIT) for source in shards.sources):
        return {}, 0
    every = texts_of(shards, tokenizer.read(TOKENIZER).decode(), max_tokens)
    found = {source: [one for one in some if one.uid.hex() not in learned] for source, some in every.items()}
    left_out = sum(map(len, every.values())) - sum(map(len, found.values()))
    return {source: some for source, some in found.items() if some}, left_out


def _shards(model: Artifact) -> ShardSet | None:
    """Opens the shards that the first model of all was trained on; None where they, or it, are gone."""
    at: Artifact | None = model
    while at:
        ref = next((ref for ref in at.record.inputs if ref.role == "shards"), None)
        if ref:
            found = Artifact.find(at.store, ArtifactId.parse(ref.address))
            same = found is not None and found.record.content == ref.content
            return ShardSet.open(found) if found and same else None
        at = origin_of(at)
    return None


def markdown(found: dict[str, Any]) -> str:
    """Returns the table for people, of the content of COMPARISON."""
    sure = f"{found['confidence']:.0%}"
    lines = [
        f"# {found['tuned']} and its base",
        "",
        f"Base: `{found['base']}`. Both have scored the same documents, items and examples, in a context of "
        f"{found['context']:,} tokens; a positive difference is an improvement. bpb: bits per byte, of documents, of "
        "right answers, or of responses.",
        "",
        f"| | metric | items | base | tuned | better by | {sure} interval |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(_cells(row))} |" for row in found["rows"]]
    if count := found["learned_documents"]:
        lines += ["", f"{count:,} held-out documents were learned as examples and do not count."]
    return "\n".join([*lines, ""])


def _cells(row: dict[str, Any]) -> list[str]:
    low, high = row["interval"]
    interval = "none" if low is None else f"{low:+.4f} .. {high:+.4f}"
    values = [f"{row[name]:.4f}" for name in ("first", "second")]
    named = f"{row['kind']} {row['name']}"
    return [named, row["metric"], f"{row['items']:,}", *values, f"{row['difference']:+.4f}", interval]


def metrics_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns what the tracker is given of the rows of COMPARISON."""
    metrics: dict[str, float] = {}
    for row in rows:
        name = f"{row['kind']}/{row['name']}"
        edges = dict(zip(("low", "high"), row["interval"], strict=True))
        values = {"base": row["first"], "tuned": row["second"], "difference": row["difference"], **edges}
        metrics |= {f"{name}/{key}": value for key, value in values.items() if value is not None}
    return metrics


def note_of(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the rows of COMPARISON in a sentence."""
    told = []
    for row in rows:
        low, high = row["interval"]
        sure = "" if low is None else f", {low:+.3f} .. {high:+.3f}"
        told.append(f"{row['kind']} {row['name']} {row['first']:.3f} -> {row['second']:.3f} {row['metric']}{sure}")
    return "; ".join(told)
