"""Scores for people: Markdown tables and figures of tasks, and of held-out text over a training; and metrics of tasks.

Scores of tasks are flagged by the evaluation items that the model has read: from the matches of `contamination`, and
which of these documents the steps of the run learned from, or of the runs from whose weights it began
(`tasks.formats.tokens.exposure`).

Of held-out text reads what the run has measured itself (`steps/` of the checkpoint, where `[train.heldout]` is set),
and the scores of the last milestone with their spread over seeds (`seeds`).
"""

import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.core.artifact import Artifact
from tasks.formats.documents.document import MATCHES, SETS_FILE
from tasks.formats.documents.tombstones import Tombstones
from tasks.formats.tokens.exposure import checkpoint_exposure

Score = Mapping[str, Any]
"""An entry of `tasks` in `scores.json`."""

Curve = Mapping[str, Sequence[tuple[int, float]]]
"""(steps, bits per byte) by source, ascending."""

_WIDTH, _HEIGHT, _DPI = 7.5, 2.6, 110

_ROWS = 20
"""Steps in the table at most; the figure has all."""

_FIELD = "bpb/"


def task_metrics(scores: Sequence[Score], prefix: str = "task") -> Iterator[tuple[str, float]]:
    """Yields name and value of every metric of one step."""
    for score in scores:
        for name, found in sorted(score["metrics"].items()):
            yield f"{prefix}/{score['task']}/{name}", found["value"]


def task_table(scores: Sequence[Score], seeds: Score | None = None) -> str:
    """Returns a table of all steps and tasks; the metric to decide by is bold.

    Args:
        scores: of all steps.
        seeds: spread over seeds at the last step (`seeds.spread`), where there is one.
    """
    lines = [
        "# Tasks",
        "",
        "Value ± standard error over items. Bold: the metric to compare models of this size by.",
        "",
        "| step | task | items | shots | scores | read in training |",
        "|---|---|---|---|---|---|",
    ]
    for score in scores:
        cells = [f"{score['step']:,}", score["task"], f"{score['items']:,}", str(score["shots"]), _values(score)]
        lines.append(f"| {' | '.join([*cells, flag(score)])} |")
    if seeds:
        lines += ["", *_over_seeds(scores, seeds)]
    return "\n".join([*lines, ""])


def flag(score: Score) -> str:
    """Returns what is known of items that stand in the documents that the model has learned from."""
    found = score["contamination"]
    if found is None:
        return "not looked for"
    return f"{found['items']:,} items" if found["items"] else "none found"


def _over_seeds(scores: Sequence[Score], seeds: Score) -> Iterator[str]:
    """Yields the table of the spread over seeds, beside the error over items of this training."""
    last = max(score["step"] for score in scores)
    found = {score["task"]: score for score in scores if score["step"] == last}
    yield f"Over trainings that differ in their seeds alone, after step {last:,}:"
    yield ""
    yield "| task | metric | mean | standard error over items | sd over seeds | n |"
    yield "|---|---|---|---|---|---|"
    for row in seeds["rows"]:
        if row["kind"] == "task":
            error = found[row["name"]]["metrics"][row["metric"]]["stderr"]
            bold = "**" * (found[row["name"]]["decision_metric"] == row["metric"])
            cells = [row["name"], f"{bold}{row['metric']}{bold}", f"{row['mean']:.4f}",
                     "" if error is None else f"{error:.4f}", f"{row['sd']:.4f}", str(len(row["values"]))]  # fmt: skip
            yield f"| {' | '.join(cells)} |"


def _values(score: Score) -> str:
    texts = []
    for name, found in score["metrics"].items():
        error = "" if found["stderr"] is None else f" ± {found['stderr']:.4f}"
        text = f"{name} {found['value']:.4f}{error}"
        texts.append(f"**{text}**" if name == score["decision_metric"] else text)
    return ", ".join(texts)


def draw_tasks(scores: Sequence[Score], title: str, seeds: Score | None = None) -> bytes:
    """Draws each task's metric to decide by over steps, with its standard error and its spread over seeds, as a PNG."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(score["task"] for score in scores))
    # Without pyplot: no display, no global state.
    figure = Figure(figsize=(_WIDTH, _HEIGHT * len(names)), layout="constrained")
    for axes, name in zip(figure.subplots(len(names), 1, squeeze=False)[:, 0], names, strict=True):
        mine = [score for score in scores if score["task"] == name]
        decisive = mine[0]["decision_metric"]
        found = [score["metrics"][decisive] for score in mine]
        errors = [one["stderr"] or 0.0 for one in found]
        axes.errorbar([score["step"] for score in mine], [one["value"] for one in found], errors, marker="o", capsize=3)
        for row in seeds["rows"] if seeds else ():
            if (row["kind"], row["name"], row["metric"]) == ("task", name, decisive):
                label = f"mean ± sd of {len(row['values'])} seeds"
                last = mine[-1]["step"]
                axes.errorbar(last, row["mean"], row["sd"], fmt="o", color="#b58900", capsize=6, label=label)
                axes.legend(fontsize=7)
        axes.set_title(name, parse_math=False)
        axes.set_ylabel(decisive)
    axes.set_xlabel("step")
    # A "$" in a name would begin a formula.
    figure.suptitle(title, parse_math=False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI)
    return file.getvalue()


def learned(contamination: Artifact, checkpoint: Artifact) -> dict[str, Any]:
    """Returns how many items of each evaluation set stand in documents that the model has learned from.

    Returns:
        {contaminated, sets: {set: {items, documents}}, problem}. A set of which nothing was read has zeros: it was
        looked for. `problem` says why not all that the model has read can be known, or "".

    Raises:
        InputError: the plan or the shards of the run are gone.
    """
    matches = [
        (row["set"], row["item"], row["id"])
        for path in contamination.files(f"{MATCHES}/")
        for row in contamination.table(path, columns=["set", "item", "id"]).to_pylist()
    ]
    exposure = checkpoint_exposure(checkpoint, Tombstones(documents=frozenset(uid for _, _, uid in matches)))
    read = {row["id"] for row in exposure.rows}
    items, documents = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for group, item, uid in matches:
        if uid in read:
            items[group].add(item)
            documents[group].add(uid)
    names = contamination.table(SETS_FILE, columns=["set"]).column("set").to_pylist()
    sets = {name: {"items": len(items[name]), "documents": len(documents[name])} for name in names}
    return {"contaminated": bool(read), "sets": sets, "problem": exposure.problem}


def curve_of(checkpoint: Artifact) -> Curve:
    """Returns what a run has measured while it trained; {} where it has not."""
    found: dict[str, list[tuple[int, float]]] = {}
    if not checkpoint.record.config.get("heldout"):
        return {}
    for path in checkpoint.files("steps/"):
        for text in checkpoint.read(path).splitlines():
            line = json.loads(text)
            for name in [name for name in line if name.startswith(_FIELD) and line[name] is not None]:
                found.setdefault(name.removeprefix(_FIELD), []).append((line["step"] + 1, line[name]))
    return found


def heldout_table(scores: Mapping[str, Any], curve: Curve) -> str:
    """Returns the table: a row per source with its score and spread, then the curve at some of its steps."""
    seeds = _seeds_of(scores)
    lines = ["# Held-out text", "", "Bits per byte.", ""]
    over = ["mean over seeds", "sd", "n"] if seeds else []
    lines += [_row(["source", "documents", f"after step {scores['step']:,}", *over]), _row(["---"] * (3 + len(over)))]
    for source, found in scores["sources"].items():
        row = seeds.get(source)
        spread = [f"{row['mean']:.4f}", f"{row['sd']:.4f}", str(len(row["values"]))] if row else []
        lines.append(_row([source, f"{found['documents']:,}", f"{found['bpb']:.4f}", *spread]))
    if curve:
        values = {source: dict(points) for source, points in curve.items()}
        steps = sorted({step for points in values.values() for step in points})
        shown = steps[:: -(-len(steps) // _ROWS)]
        lines += ["", "Measured while training, on fewer documents:", "", _row(["step", *values]),
                  _row(["---"] * (1 + len(values)))]  # fmt: skip
        for step in sorted({*shown, steps[-1]}):
            cells = [f"{found[step]:.4f}" if step in found else "" for found in values.values()]
            lines.append(_row([f"{step:,}", *cells]))
    return "\n".join([*lines, ""])


def draw_heldout(scores: Mapping[str, Any], curve: Curve, title: str) -> bytes:
    """Draws the curve of each source, its score, and the deviation over seeds, as a PNG."""
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
    # A "$" in a name would begin a formula.
    figure.suptitle(title, parse_math=False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI)
    return file.getvalue()


def _seeds_of(scores: Mapping[str, Any]) -> dict[str, Any]:
    rows = scores.get("seeds", {}).get("rows", ())
    return {row["name"]: row for row in rows if row["kind"] == "source"}


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
