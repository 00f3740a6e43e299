"""Markdown tables and figures of task scores and of held-out text over a training; metrics of tasks.

Task scores are flagged with the number of evaluation items that the model has read: the matches of `contamination` are
combined with the documents that the run was trained on, or earlier runs whose weights it started from
(`tasks.formats.tokens.exposure`).

For held-out text, reads the measurements of the run (`steps/` of the checkpoint, if `[train.heldout]` is set), and the
scores of the last milestone with their spread over seeds (`seeds`).
"""

import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.core.artifact import Artifact
from tasks.core.pages import table
from tasks.formats.documents.document import MATCHES, SETS_FILE
from tasks.formats.documents.tombstones import Tombstones
from tasks.formats.tokens.exposure import checkpoint_exposure
from tasks.trainer.evaluation.items import CUT

Score = Mapping[str, Any]
"""An entry of `tasks` in `scores.json`."""

Curve = Mapping[str, Sequence[tuple[int, float]]]
"""(steps, bits per byte) by source, ascending."""

_WIDTH, _HEIGHT, _DPI = 7.5, 2.6, 110

_ROWS = 20
"""Maximum number of steps in the table; the figure has all."""

_FIELD = "bpb/"


def task_metrics(scores: Sequence[Score], prefix: str = "task") -> Iterator[tuple[str, float]]:
    """Yields name and value of every metric of one step."""
    for score in scores:
        for name, metric in sorted(score["metrics"].items()):
            yield f"{prefix}/{score['task']}/{name}", metric["value"]


def task_table(scores: Sequence[Score], seeds: Score | None = None) -> str:
    """Returns a table of all steps and tasks; the decision metric is bold.

    Args:
        scores: scores of all steps.
        seeds: spread over seeds at the last step (`seeds.spread`), if there is one.
    """
    rows = [
        [f"{score['step']:,}", score["task"], f"{score['items']:,}", str(score["shots"]), _values(score), flag(score)]
        for score in scores
    ]
    lines = [
        "# Tasks",
        "",
        "Value ± standard error over items. Bold: the metric to compare models of this size by.",
        "",
        *table(["step", "task", "items", "shots", "scores", "read in training"], rows),
    ]
    if cuts := [f"{score[CUT]:,} of {score['task']} (step {score['step']:,})" for score in scores if CUT in score]:
        lines += ["", f"Prompts longer than the context, cut at their beginning: {', '.join(cuts)}."]
    if seeds:
        lines += ["", *_over_seeds(scores, seeds["rows"])]
    return "\n".join([*lines, ""])


def flag(score: Score) -> str:
    """Returns the contamination flag: how many items are in documents that the model was trained on."""
    contamination = score["contamination"]
    if contamination is None:
        return "not looked for"
    return f"{contamination['items']:,} items" if contamination["items"] else "none found"


def _over_seeds(scores: Sequence[Score], spread: Sequence[Score]) -> list[str]:
    """Returns the table of the spread over seeds, with the standard error over items of this training."""
    last = max(score["step"] for score in scores)
    scores_by_task = {score["task"]: score for score in scores if score["step"] == last}
    rows = []
    for row in [row for row in spread if row["kind"] == "task"]:
        error = scores_by_task[row["name"]]["metrics"][row["metric"]]["stderr"]
        bold = "**" * (scores_by_task[row["name"]]["decision_metric"] == row["metric"])
        rows.append([row["name"], f"{bold}{row['metric']}{bold}", f"{row['mean']:.4f}",
                     "" if error is None else f"{error:.4f}", f"{row['sd']:.4f}", str(len(row["values"]))])  # fmt: skip
    head = ["task", "metric", "mean", "standard error over items", "sd over seeds", "n"]
    return [f"Over trainings that differ in their seeds alone, after step {last:,}:", "", *table(head, rows)]


def _values(score: Score) -> str:
    texts = []
    for name, metric in score["metrics"].items():
        error = "" if metric["stderr"] is None else f" ± {metric['stderr']:.4f}"
        text = f"{name} {metric['value']:.4f}{error}"
        texts.append(f"**{text}**" if name == score["decision_metric"] else text)
    return ", ".join(texts)


def draw_tasks(scores: Sequence[Score], title: str, seeds: Score | None = None) -> bytes:
    """Plots the decision metric of each task over steps, with standard error and spread over seeds, as a PNG."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(score["task"] for score in scores))
    # Without pyplot: no display, no global state.
    figure = Figure(figsize=(_WIDTH, _HEIGHT * len(names)), layout="constrained")
    for axes, name in zip(figure.subplots(len(names), 1, squeeze=False)[:, 0], names, strict=True):
        of_task = [score for score in scores if score["task"] == name]
        decisive = of_task[0]["decision_metric"]
        metrics = [score["metrics"][decisive] for score in of_task]
        errors = [metric["stderr"] or 0.0 for metric in metrics]
        axes.errorbar(
            [score["step"] for score in of_task], [metric["value"] for metric in metrics], errors, marker="o", capsize=3
        )
        for row in seeds["rows"] if seeds else ():
            if (row["kind"], row["name"], row["metric"]) == ("task", name, decisive):
                label = f"mean ± sd of {len(row['values'])} seeds"
                last = of_task[-1]["step"]
                axes.errorbar(last, row["mean"], row["sd"], fmt="o", color="#b58900", capsize=6, label=label)
                axes.legend(fontsize=7)
        axes.set_title(name, parse_math=False)
        axes.set_ylabel(decisive)
    axes.set_xlabel("step")
    # Otherwise a "$" in a name would start a formula.
    figure.suptitle(title, parse_math=False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI)
    return file.getvalue()


def contamination_counts(contamination: Artifact, checkpoint: Artifact) -> dict[str, Any]:
    """Returns how many items of each evaluation set are in documents that the model was trained on.

    Returns:
        {contaminated, sets: {set: {items, documents}}, problem}. A set without matches has zeros. `problem` is the
        reason if the documents of the model are not completely known, else "".

    Raises:
        InputError: the plan or the shards of the run are missing.
    """
    matches = [
        (row["set"], row["item"], row["id"])
        for path in contamination.files(f"{MATCHES}/")
        for row in contamination.table(path, columns=["set", "item", "id"]).to_pylist()
    ]
    exposure = checkpoint_exposure(checkpoint, Tombstones(documents=frozenset(uid for _, _, uid in matches)))
    trained_ids = {row["id"] for row in exposure.rows}
    items, documents = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for group, item, uid in matches:
        if uid in trained_ids:
            items[group].add(item)
            documents[group].add(uid)
    names = contamination.table(SETS_FILE, columns=["set"]).column("set").to_pylist()
    sets = {name: {"items": len(items[name]), "documents": len(documents[name])} for name in names}
    return {"contaminated": bool(trained_ids), "sets": sets, "problem": exposure.problem}


def heldout_curve(checkpoint: Artifact) -> Curve:
    """Returns the bits per byte that a run measured during training; {} if it did not."""
    curve: dict[str, list[tuple[int, float]]] = {}
    if not checkpoint.record.config.get("heldout"):
        return {}
    for path in checkpoint.files("steps/"):
        for text in checkpoint.read(path).splitlines():
            line = json.loads(text)
            for name in [name for name in line if name.startswith(_FIELD) and line[name] is not None]:
                curve.setdefault(name.removeprefix(_FIELD), []).append((line["step"] + 1, line[name]))
    return curve


def heldout_table(scores: Mapping[str, Any], curve: Curve) -> str:
    """Returns a table with a row per source with its score and spread, and a table of the curve at some steps."""
    seeds = _seeds_of(scores)
    rows = []
    for source, score in scores["sources"].items():
        row = seeds.get(source)
        spread = [f"{row['mean']:.4f}", f"{row['sd']:.4f}", str(len(row["values"]))] if row else []
        rows.append([source, f"{score['documents']:,}", f"{score['bpb']:.4f}", *spread])
    over = ["mean over seeds", "sd", "n"] if seeds else []
    head = ["source", "documents", f"after step {scores['step']:,}", *over]
    lines = ["# Held-out text", "", "Bits per byte.", "", *table(head, rows, padded=True)]
    if curve:
        values = {source: dict(points) for source, points in curve.items()}
        steps = sorted({step for points in values.values() for step in points})
        selected = steps[:: -(-len(steps) // _ROWS)]
        measured = (
            [f"{step:,}", *(f"{one[step]:.4f}" if step in one else "" for one in values.values())]
            for step in sorted({*selected, steps[-1]})
        )
        lines += [
            "",
            "Measured while training, on fewer documents:",
            "",
            *table(["step", *values], measured, padded=True),
        ]
    return "\n".join([*lines, ""])


def draw_heldout(scores: Mapping[str, Any], curve: Curve, title: str) -> bytes:
    """Plots the curve of each source, its score, and the standard deviation over seeds, as a PNG."""
    from matplotlib.figure import Figure

    seeds, sources = _seeds_of(scores), list(scores["sources"])
    # Without pyplot: no display, no global state.
    figure = Figure(figsize=(_WIDTH, _HEIGHT * len(sources)), layout="constrained")
    for axes, source in zip(figure.subplots(len(sources), 1, squeeze=False, sharex=True)[:, 0], sources, strict=True):
        points = curve.get(source, ())
        axes.plot([step for step, _ in points], [value for _, value in points], marker=".", label="while training")
        axes.plot(scores["step"], scores["sources"][source]["bpb"], "s", color="#333333", label="evaluated")
        if row := seeds.get(source):
            label = f"mean ± sd of {len(row['values'])} seeds"
            axes.errorbar(scores["step"], row["mean"], row["sd"], fmt="o", color="#b58900", capsize=4, label=label)
        axes.set_title(source, parse_math=False)
        axes.set_ylabel("bits per byte")
        axes.legend(fontsize=7)
    axes.set_xlabel("step")
    # Otherwise a "$" in a name would start a formula.
    figure.suptitle(title, parse_math=False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI)
    return file.getvalue()


def _seeds_of(scores: Mapping[str, Any]) -> dict[str, Any]:
    rows = scores.get("seeds", {}).get("rows", ())
    return {row["name"]: row for row in rows if row["kind"] == "source"}
