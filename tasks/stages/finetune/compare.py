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
from typing import Any

from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.pages import table
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.documents.examples import HELDOUT, Examples, has_heldout
from tasks.formats.hooks import Hooks
from tasks.formats.tokens.exposure import origin_of
from tasks.stages.finetune import COMPARISON, TunedConfig
from tasks.trainer.evaluation.comparison import (
    Contender,
    compare,
    compare_responses,
    in_equal_context,
    learned_documents,
    row_cells,
    row_metrics,
    unlearned_texts,
)
from tasks.trainer.evaluation.items import external_of

VERSION = 2
BASE, TUNED = "base", "tuned"
TABLE = "comparison.md"


def external(config: TunedConfig) -> dict[str, list[str]]:
    """Returns the files of the tasks; their bytes are in the fingerprint."""
    return external_of(config.evaluate.tasks if config.evaluate else ())


HOOKS = Hooks(external=external)


def run(config: TunedConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Compares the models; raises InputError if one is missing or cannot be loaded, or a task cannot be scored."""
    assert config.evaluate is not None, "the recipe sets it for a whole model"
    tuned, tokenizer = inputs["finetuned"], inputs["tokenizer"]
    base = origin_of(tuned)
    assert base is not None, "a fine-tuning has a base"
    pair = (Contender.of_artifact(BASE, base, tokenizer), Contender.of_artifact(TUNED, tuned, tokenizer))
    first, second = in_equal_context(*pair)
    learned = learned_documents(inputs["examples"])
    texts, left_out = unlearned_texts(tuned, tokenizer, config.evaluate.max_tokens, learned)
    rows = compare(first, second, texts, config.evaluate, output)
    if has_heldout(inputs["examples"]):
        examples, batch_tokens = Examples(inputs["examples"], HELDOUT), config.evaluate.task_batch_tokens
        rows += compare_responses(first, second, examples, batch_tokens, output)
    if not rows:
        raise InputError(
            f"there is nothing to compare {tuned.address} with its base on",
            "raise examples.heldout_share, or name [[evaluate.tasks]]",
        )
    comparison: dict[str, Any] = {
        "base": str(base.address),
        "tuned": str(tuned.address),
        "confidence": config.confidence,
        "context": first.context,
        "learned_documents": left_out,
        "rows": [row.row(config.confidence) for row in rows],
    }
    text = markdown(comparison).encode()
    if COMPARISON not in output.committed:
        with output.part(COMPARISON, conserved=False) as part:
            files = {COMPARISON: json.dumps(comparison, indent=1, sort_keys=True).encode(), TABLE: text}
            for name, content in files.items():
                with part.file(name) as file:
                    file.write(content)
    output.log_file(TABLE, text)
    return Report(metrics=comparison_metrics(comparison["rows"]), note=comparison_note(comparison["rows"]))


def markdown(content: dict[str, Any]) -> str:
    """Returns the content of COMPARISON as a table for people."""
    head = ["", "metric", "items", "base", "tuned", "better by", f"{content['confidence']:.0%} interval"]
    lines = [
        f"# {content['tuned']} and its base",
        "",
        f"Base: `{content['base']}`. Both have scored the same documents, items and examples, in a context of "
        f"{content['context']:,} tokens; a positive difference is an improvement. bpb: bits per byte, of documents, of "
        "right answers, or of responses.",
        "",
        *table(head, map(row_cells, content["rows"])),
    ]
    if count := content["learned_documents"]:
        lines += ["", f"{count:,} held-out documents were learned as examples and do not count."]
    return "\n".join([*lines, ""])


def comparison_metrics(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns the metrics for the tracker from the rows of COMPARISON."""
    metrics: dict[str, float] = {}
    for row in rows:
        name = f"{row['kind']}/{row['name']}"
        metrics |= {f"{name}/base": row["first"], f"{name}/tuned": row["second"], **row_metrics(row, name)}
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
