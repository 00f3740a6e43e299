"""Stage `compare`: the new model beside the champion, on the held-out text and the tasks of this version.

Reads `model` (this version's), `shards` and `tokenizer` (held-out documents), and the last decision, which names the
champion; without one there is none, and nothing is scored. Writes the documents and items of both models (see
`tasks.trainer.evaluation.comparison`), `comparison.json` {champion, challenger, promoted, reason, confidence, score,
rows} and `report.md`, and logs the report and `comparison.png` to the tracker, which gives the model the alias
"challenger". `promoted` is the verdict; the stage `promote` puts it into effect.

Of a registered model, `model/lineage.json` is read, too: it has the content of the `scores.json` that it was registered

with, with the items that it has read and other seeds.
"""

import json
import math
from typing import Any

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.tokens.shard_set import ShardSet
from tasks.stages.promote import verdict
from tasks.stages.promote.config import PromoteConfig
from tasks.stages.promote.decision import CHALLENGER, CHAMPION, COMPARISON, as_json, champion_of, named
from tasks.stages.promote.report import figure, markdown
from tasks.stages.promote.verdict import Seeds
from tasks.trainer.evaluation.comparison import compare, texts_of
from tasks.trainer.evaluation.contender import TOKENIZER, Contender
from tasks.trainer.evaluation.items import files_of

VERSION = 1

REPORT = "report.md"


def external(config: PromoteConfig) -> dict[str, list[str]]:
    """Returns the files of the tasks, as local paths, by role `task:<name>`; their bytes are in the fingerprint."""
    tasks = config.evaluate.tasks if config.evaluate else ()
    return {f"task:{task.name}": [file.local() for file in files_of(task)] for task in tasks}


def run(config: PromoteConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Compares; raises InputError if the champion is gone, or one of the two cannot be scored."""
    challenger = inputs["model"]
    champion = champion_of(inputs["decided"]) if "decided" in inputs else None
    found: dict[str, Any] = {CHALLENGER: named(challenger), CHAMPION: named(champion) if champion else None}
    found |= _compared(config, inputs, output, champion, challenger) if champion else _first(challenger)
    text = markdown(found).encode()
    if COMPARISON not in output.committed:
        with output.part(COMPARISON, conserved=False) as part:
            for name, content in ((COMPARISON, as_json(found)), (REPORT, text)):
                with part.file(name) as file:
                    file.write(content)
    output.log_file(REPORT, text)
    if champion:
        output.log_file("comparison.png", figure(found))
    output.alias(CHALLENGER, challenger.address)
    return Report(metrics=_metrics(found), note=found["reason"])


def _first(challenger: Artifact) -> dict[str, Any]:
    why = f"{challenger.address} becomes champion: it is the first, there was none to compare it with"
    return {"promoted": True, "reason": why, "score": None, "rows": []}


def _compared(
    config: PromoteConfig, inputs: Inputs, output: Output, champion: Artifact, challenger: Artifact
) -> dict[str, Any]:
    assert config.evaluate is not None, "the recipe fills it in where the comparison is enabled"
    shards, settings = ShardSet.open(inputs["shards"]), config.evaluate
    texts = texts_of(shards, inputs["tokenizer"].read(TOKENIZER).decode(), settings.max_tokens)
    verdict.check_names(config.guarded, [*texts, *(task.name for task in settings.tasks)])
    first, second = Contender.of_artifact(CHAMPION, champion), Contender.of_artifact(CHALLENGER, challenger)
    rows = compare(first, second, texts, settings, output)
    read = {name: read_in_training(model) for name, model in ((CHAMPION, champion), (CHALLENGER, challenger))}
    seeds = seeds_of(challenger), seeds_of(champion)
    judged = verdict.judge(rows, read[CHALLENGER], seeds, config.confidence, config.guarded, config.guard_share)
    low, high = _edges(judged.score.interval(judged.confidence))
    return {
        "promoted": judged.promoted,
        "reason": verdict.reason(judged, str(champion.address), str(challenger.address)),
        "confidence": config.confidence,
        "score": {
            "of": judged.of,
            "names": list(judged.names),
            "unit": judged.unit,
            "difference": judged.score.value,
            "interval": [low, high],
            "seeds": dict(zip((CHALLENGER, CHAMPION), judged.seeds, strict=True)),
        },
        "rows": [
            {
                **row.row(config.confidence),
                "counts": row in judged.rows_that_count,
                "guarded": not config.guarded or row.name in config.guarded,
                "worse": row.name in judged.worse,
                "read_in_training": {name: flags.get(row.name) for name, flags in read.items()}
                if row.kind == "task"
                else None,
            }
            for row in judged.rows
        ],
    }


def _edges(interval: tuple[float, float]) -> tuple[float | None, ...]:
    return tuple(edge if math.isfinite(edge) else None for edge in interval)


def _metrics(found: dict[str, Any]) -> dict[str, float]:
    metrics = {"promoted": float(found["promoted"])}
    for name, one in [("score", found["score"]), *((f"{row['kind']}/{row['name']}", row) for row in found["rows"])]:
        if one:
            edges = zip(("low", "high"), one["interval"], strict=True)
            metrics[f"{name}/difference"] = one["difference"]
            metrics |= {f"{name}/{edge}": value for edge, value in edges if value is not None}
    return metrics


def read_in_training(model: Artifact) -> dict[str, dict[str, int] | None]:
    """Returns for each task {items, documents} that the model has learned from; None where it was not looked for."""
    scores = _scores(model)
    return {task["task"]: task["contamination"] for task in scores.get("tasks", ()) if task["step"] == scores["step"]}


def seeds_of(model: Artifact) -> Seeds:
    """Returns the values over seeds by (kind, name, metric); {} where the model was trained with one."""
    rows = _scores(model).get("seeds", {}).get("rows", ())
    return {(row["kind"], row["name"], row["metric"]): row["values"] for row in rows}


def _scores(model: Artifact) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(model.read("model/lineage.json"))["scores"]
    return found
