"""Stage `compare`: compares the new model with the champion on the held-out text and the tasks of this version.

Reads `model` (this version's), `shards` and `tokenizer` (held-out documents), and the last decision, which names the
champion; without a champion, nothing is scored. If there is a `merged_model` of the same run, it is the challenger
instead of the model if it is better by the rule for a new champion. Also reads `model/lineage.json` of both models: it
contains the `scores.json` of the registration, with contamination counts and the values of other seeds.

Writes the scores of both models per document and item (see `tasks.trainer.evaluation.comparison`), `comparison.json`
{champion, challenger, merged, promoted, reason, confidence, score, rows} and `report.md`, and logs the report and
`comparison.png` to the tracker, which gives the model the alias "challenger". `promoted` is the verdict, which the
stage `promote` applies.
"""

import io
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.pages import table
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.hooks import Hooks
from tasks.formats.tokens.shard import ShardSet
from tasks.stages.registry import PromoteConfig, verdict
from tasks.stages.registry.promote import CHALLENGER, CHAMPION, COMPARISON, as_json, champion_of, model_ref
from tasks.stages.registry.verdict import Seeds
from tasks.trainer.evaluation.comparison import (
    Comparison,
    Contender,
    compare,
    interval_cell,
    row_cells,
    row_metrics,
    texts_of,
)
from tasks.trainer.evaluation.items import TOKENIZER, external_of

VERSION = 2
MERGED = "merged"
REPORT = "report.md"
_DPI = 110
_HEAD = ("", "metric", "items", "champion", "challenger", "better by", "read in training", "")


def external(config: PromoteConfig) -> dict[str, list[str]]:
    """Returns the files of the tasks; their bytes are in the fingerprint."""
    return external_of(config.evaluate.tasks if config.evaluate else ())


HOOKS = Hooks(external=external)


def run(config: PromoteConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the comparison; raises InputError if the champion is gone, or one of the models cannot be scored."""
    score = partial(_scored, config, inputs, output)
    return decide(config, inputs, output, score, inputs.get("merged"))


def decide(
    config: PromoteConfig,
    inputs: Inputs,
    output: Output,
    score: Callable[[Artifact, Artifact], list[Comparison]],
    merged: Artifact | None = None,
) -> Report:
    """Compares `inputs["model"]` with the champion of the last decision, if there is one; writes and logs the verdict.

    Args:
        config: settings.
        inputs: `model`, and `decided` after a decision.
        output: receives the comparison.
        score: compares two models, the first of which is the champion or, if the second is `merged`, the model.
        merged: the merged model of the same run, which may be the challenger instead of the model.
    """
    challenger, choice = _challenger(config, score, inputs["model"], merged)
    champion = champion_of(inputs["decided"]) if "decided" in inputs else None
    comparison: dict[str, Any] = {
        CHALLENGER: model_ref(challenger),
        CHAMPION: model_ref(champion) if champion else None,
        **choice,
    }
    if champion:
        comparison |= _judged(config, score(champion, challenger), champion, challenger)
    else:
        comparison |= _first(challenger)
    text = markdown(comparison).encode()
    if COMPARISON not in output.committed:
        with output.part(COMPARISON, conserved=False) as part:
            for name, content in ((COMPARISON, as_json(comparison)), (REPORT, text)):
                with part.file(name) as file:
                    file.write(content)
    output.log_file(REPORT, text)
    if champion:
        output.log_file("comparison.png", partial(figure, comparison))
    output.alias(CHALLENGER, challenger.address)
    return Report(metrics=_metrics(comparison), note=comparison["reason"])


def _challenger(
    config: PromoteConfig,
    score: Callable[[Artifact, Artifact], list[Comparison]],
    model: Artifact,
    merged: Artifact | None,
) -> tuple[Artifact, dict[str, Any]]:
    """Returns the challenger, and what the comparison says about the merged model; {} if there is none."""
    if merged is None:
        return model, {}
    read = read_in_training(model)
    result = verdict.judge(score(model, merged), read, ({}, {}), config.confidence, config.guarded, config.guard_share)
    interval = list(result.score.bounds(result.confidence))
    outcome = {"chosen": result.promoted, "difference": result.score.value, "interval": interval}
    return merged if result.promoted else model, {MERGED: {**model_ref(merged), **outcome}}


def _first(challenger: Artifact) -> dict[str, Any]:
    reason = f"{challenger.address} becomes champion: it is the first, there was none to compare it with"
    return {"promoted": True, "reason": reason, "score": None, "rows": []}


def _scored(
    config: PromoteConfig, inputs: Inputs, output: Output, champion: Artifact, challenger: Artifact
) -> list[Comparison]:
    """Compares two models on held-out documents and tasks; the files of a model are named by its role."""
    assert config.evaluate is not None, "the recipe fills it in where the comparison is enabled"
    shards, settings = ShardSet.open(inputs["shards"]), config.evaluate
    texts = texts_of(shards, inputs["tokenizer"].read(TOKENIZER).decode(), settings.max_tokens)
    verdict.check_names(config.guarded, [*texts, *(task.name for task in settings.tasks)])
    roles = {inputs[role].address: label for role, label in ((MERGED, MERGED), ("model", CHALLENGER)) if role in inputs}
    first, second = (Contender.of_artifact(roles.get(one.address, CHAMPION), one) for one in (champion, challenger))
    return compare(first, second, texts, settings, output)


def _judged(
    config: PromoteConfig, rows: Sequence[Comparison], champion: Artifact, challenger: Artifact
) -> dict[str, Any]:
    contamination = {name: read_in_training(model) for name, model in ((CHAMPION, champion), (CHALLENGER, challenger))}
    seeds = seeds_of(challenger), seeds_of(champion)
    result = verdict.judge(
        rows, contamination[CHALLENGER], seeds, config.confidence, config.guarded, config.guard_share
    )
    return {
        "promoted": result.promoted,
        "reason": verdict.reason(result, str(champion.address), str(challenger.address)),
        "confidence": config.confidence,
        "score": {
            "of": result.of,
            "names": list(result.names),
            "unit": result.unit,
            "difference": result.score.value,
            "interval": list(result.score.bounds(result.confidence)),
            "seeds": dict(zip((CHALLENGER, CHAMPION), result.seeds, strict=True)),
        },
        "rows": [
            {
                **row.row(config.confidence),
                "counts": row in result.rows_that_count,
                "guarded": not config.guarded or row.name in config.guarded,
                "worse": row.name in result.worse,
                "read_in_training": {name: flags.get(row.name) for name, flags in contamination.items()}
                if row.kind == "task"
                else None,
            }
            for row in result.rows
        ],
    }


def _metrics(comparison: dict[str, Any]) -> dict[str, float]:
    metrics = {"promoted": float(comparison["promoted"])}
    metrics |= row_metrics(comparison["score"], "score") if comparison["score"] else {}
    for row in comparison["rows"]:
        metrics |= row_metrics(row, f"{row['kind']}/{row['name']}")
    return metrics


def read_in_training(model: Artifact) -> dict[str, dict[str, int] | None]:
    """Returns {items, documents} in the model's training data for each task; None if this was not checked."""
    scores = _scores(model)
    return {task["task"]: task["contamination"] for task in scores.get("tasks", ()) if task["step"] == scores["step"]}


def seeds_of(model: Artifact) -> Seeds:
    """Returns the values over seeds by (kind, name, metric); {} for a model trained with a single seed."""
    rows = _scores(model).get("seeds", {}).get("rows", ())
    return {(row["kind"], row["name"], row["metric"]): row["values"] for row in rows}


def _scores(model: Artifact) -> dict[str, Any]:
    scores: dict[str, Any] = json.loads(model.read("model/lineage.json"))["scores"]
    return scores


def markdown(comparison: dict[str, Any]) -> str:
    """Returns the report in Markdown: the decision in a sentence, a row for the score, and a row per comparison."""
    lines = ["# Champion and challenger", "", f"**{comparison['reason']}.**", ""]
    if merged := comparison.get(MERGED):
        said = "is the challenger" if merged["chosen"] else "is not the challenger"
        lines += [f"`{merged['artifact']}`, the mean of checkpoints before the decay, {said}: better than the last "
                  f"checkpoint by {interval_cell(merged)} bits per byte or of the items.", ""]  # fmt: skip
    if not comparison["rows"]:
        return "\n".join(lines)
    champion, challenger = (comparison[name]["artifact"] for name in ("champion", "challenger"))
    lines += [
        f"Champion: `{champion}`. Challenger: `{challenger}`. Both have scored the same documents and items; a "
        f"positive difference is an improvement. {_seeds(comparison['score'])}",
        "",
    ]
    head = [*_HEAD[:6], f"{comparison['confidence']:.0%} interval", *_HEAD[6:]]
    score = comparison["score"]
    whole = [f"**score: mean over {verdict.counted(score['of'], score['names'])}**", score["unit"], "", "", ""]
    outcome = "promoted" if comparison["promoted"] else "stays"
    mean = [*whole, f"**{score['difference']:+.4f}**", f"**{interval_cell(score)}**", "", outcome]
    return "\n".join([*lines, *table(head, [mean, *map(_cells, comparison["rows"])], padded=True), ""])


def _seeds(score: dict[str, Any]) -> str:
    several = {name: count for name, count in score["seeds"].items() if count > 1}
    if not several:
        return "The intervals are over documents and items: what another seed would give is not in them."
    counted = " and ".join(f"{count} of the {name}" for name, count in several.items())
    return f"The intervals have the variance over seeds in them ({counted})."


def _cells(row: dict[str, Any]) -> list[str]:
    return [*row_cells(row), _read(row["read_in_training"]), _remark(row)]


def _read(flags: dict[str, Any] | None) -> str:
    if flags is None:
        return ""
    counts = {name: None if flag is None else flag["items"] for name, flag in flags.items()}
    if not any(counts.values()):
        return "not looked for" if None in counts.values() else "none found"
    return ", ".join(f"{name} {count:,} items" for name, count in counts.items() if count)


def _remark(row: dict[str, Any]) -> str:
    remarks = [*(["does not count: the challenger has read its items"] if _is_contaminated(row) else [])]
    remarks += ["surely worse"] if row["worse"] else []
    remarks += [] if row["guarded"] else ["not guarded"]
    return "; ".join(remarks)


def _is_contaminated(row: dict[str, Any]) -> bool:
    flags = row["read_in_training"]
    return bool(flags and flags["challenger"] and flags["challenger"]["items"])


def figure(comparison: dict[str, Any]) -> bytes:
    """Returns a PNG plot: the differences of the score and of each row with their intervals, grouped by unit."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = [[row for row in comparison["rows"] if (row["metric"] == "bpb") == bits] for bits in (True, False)]
    groups = [group for group in groups if group]
    picture = Figure(figsize=(7.5, 1.4 + 0.35 * (len(comparison["rows"]) + 1) + 0.4 * len(groups)), dpi=_DPI,
                     layout="constrained")  # fmt: skip
    FigureCanvasAgg(picture)
    heights = [len(group) + 1 for group in groups]
    panels = picture.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, group in zip(panels, groups, strict=True):
        _draw(axes, group, comparison["score"])
    picture.suptitle(comparison["reason"], fontsize=8, parse_math=False, wrap=True)
    data = io.BytesIO()
    picture.savefig(data, format="png")
    return data.getvalue()


def _draw(axes: Any, rows: list[dict[str, Any]], score: dict[str, Any]) -> None:
    unit = "bits per byte" if rows[0]["metric"] == "bpb" else "of the items"
    bars = [*([("score", score, "#333333")] if score["unit"] == unit else [])]
    bars += [(f"{row['kind']} {row['name']}", row, "#b3261e" if row["worse"] else "#8aa4c8") for row in rows]
    for y, (_, row, color) in enumerate(reversed(bars)):
        low, high = row["interval"]
        if low is not None:
            axes.plot([low, high], [y, y], color=color, linewidth=2)
        axes.plot(row["difference"], y, "o", color=color)
    axes.axvline(0, color="#333333", linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(bars)), [name for name, _, _ in reversed(bars)], fontsize=8, parse_math=False)
    axes.set_xlabel(f"challenger better by, {unit}")
