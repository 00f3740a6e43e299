"""The training of a version: curves, what needs attention, and one step with the documents that it read.

A step's documents come from the trace, and their losses are computed on request from the weights of a milestone
(`tasks.trainer.answering`), in a process of its own.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from sluice_ui import charts
from sluice_ui.access import At, Name, User, VersionName, readable, respond, router
from sluice_ui.answers import trace_link
from sluice_ui.frame import Address, Version, external_link, page
from sluice_ui.run_log import BEFORE, KINDS, RunLog, smoothed
from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.core.terminal import duration
from tasks.run.recipe import Recipe
from tasks.run.runner import mlflow_url, open_store
from tasks.run.trace.answer import StepTrace, TunedStepTrace
from tasks.run.trace.graph import LineageReader
from tasks.run.trace.trace import MOST_SEQUENCES, trace_step, trace_tuned
from tasks.trainer import answering
from tasks.trainer.monitoring.layer_map import maps
from tasks.trainer.monitoring.profiled_steps import FAMILY, OPERATION
from tasks.trainer.planning.estimate import RunPerformance

RISES = 10
"""Largest rises of the loss that are listed."""

SKIPPED = 500
"""Skipped steps that are listed."""

PROFILE = {
    "computing": ("Computing", "of a profiled step, rank 0"),
    "exposed": ("Exposed communication", "while nothing computes"),
    "hidden": ("Hidden communication", "beside computation"),
    "data_wait": ("Waiting for data", "the step's own batch"),
    "idle": ("Idle", "neither of these on the device"),
    "host_gap": ("Host gaps", "idle, and nothing is queued"),
}
"""Figure of profiled steps -> title and note of its card."""

Losses = list[list[dict[str, Any]]]

_computed: OrderedDict[tuple[str, str, int, int], Losses] = OrderedDict()
"""Newest results of `answering.step_losses`, which are the same whenever they are computed."""
_KEPT = 64


def training(recipe: Recipe, version: str, at: Address) -> str:
    """Returns the page of a training, or of a fine-tuning where the address has `run=finetuned`.

    The query has `step`, a step whose documents are shown, and `weights`, the milestone that computes their losses.

    Raises:
        InputError: the version has no run.
    """
    store = open_store(recipe)
    logs = {kind: log for kind in KINDS if (log := RunLog.find(store, recipe.name, version, kind))}
    if not logs:
        raise InputError(f"nothing was trained as {recipe.name}@{version}", "open another version, or run its DAG")
    log = logs.get(at.query.get("run", "")) or next(iter(logs.values()))
    of = Version(recipe.name, version, "training", "crawl" in recipe.parts)
    return page(
        "training",
        f"{recipe.name} {version}: {'fine-tuning' if log.kind == 'finetuned' else 'training'}",
        at,
        of,
        sentence=_sentence(log),
        runs=[(kind, at.href(run=kind, step=None, weights=None), kind == log.kind) for kind in logs],
        cards=_cards(log),
        mlflow=external_link("its MLflow run", url) if log.artifact and (url := mlflow_url(log.artifact)) else "",
        step=_step(store, recipe, version, log, at, of),
        query={**of.query, "run": log.kind},
        charts=_charts(log),
        profile=_profile(log),
        operations=_operations(log),
        layers=maps(log.layers),
        rises=_rises(log, at),
        skipped=_skipped(log, at),
        alerts=[[alert["kind"], _step_link(at, alert["step"]), alert["what"], alert["do"]] for alert in log.alerts],
        withheld=_withheld(log, at),
        milestones=_milestones(log),
        before=BEFORE,
    )


def _sentence(log: RunLog) -> str:
    """Returns the result of the run in a sentence."""
    losses = log.columns["loss"][~np.isnan(log.columns["loss"])]
    if not len(losses):
        return "No step is recorded: the model was imported, or its training has not reached a milestone."
    part = max(1, len(losses) // 20)
    first, last = losses[:part].mean(), losses[-part:].mean()
    change = f"The loss {'fell' if last < first else 'rose'} from {first:.3f} to {last:.3f} nats per token"
    if log.artifact is None:
        return f"{change} up to the newest milestone, step {int(log.columns['step'][-1]):,}. The run is not complete."
    attention = [f"{name.replace('/', ': ')} {count:,.0f}" for name, count in _counts(log.artifact).items()]
    notes = f"Look at: {', '.join(attention)}." if attention else "No alert, no skipped step, no fault."
    return f"{change} in {len(log.columns['step']):,} steps (means over the first and last twentieth). {notes}"


def _counts(artifact: Artifact) -> dict[str, float]:
    """Returns the numbers of alerts, faults and skipped steps that are not 0."""
    metrics = artifact.record.metrics
    counts = {name: value for name, value in sorted(metrics.items()) if name.startswith(("alerts/", "faults/"))}
    counts["skipped steps"] = metrics.get("skipped_steps", 0.0)
    return {name: value for name, value in counts.items() if value}


def _cards(log: RunLog) -> list[tuple[str, str, str]]:
    steps = log.columns["step"]
    if not len(steps):
        return []
    cards = [("Steps", f"{len(steps):,}", f"of {log.run['steps']:,}" if log.run else "in milestones so far")]
    known = log.columns["loss"][~np.isnan(log.columns["loss"])]
    if len(known):
        cards.append(("Loss", f"{known[-max(1, len(known) // 20) :].mean():.3f}", "nats per token, last twentieth"))
    if "mean" in log.heldout:
        cards.append(("Bits per byte", f"{log.heldout['mean'][1][-1]:.3f}", "held-out text, mean over sources"))
    cards.append(("Tokens", f"{log.columns['tokens'][-1]:,.0f}", "trained on, without padding"))
    if log.artifact and (speed := RunPerformance.of(log.artifact.record.metrics)):
        rate = speed.tokens / speed.step_seconds if speed.step_seconds else 0.0
        cards.append(("Speed", f"{rate:,.0f}", "tokens per second, mean of all ranks together"))
        cards.append(("Step time", duration(speed.step_seconds), f"of all steps, ranks: {speed.ranks:.0f}"))
        if speed.peak_flops and (mfu := speed.mfu(speed.peak_flops)) is not None:
            cards.append(("MFU", f"{mfu:.1%}", "of the peak of all devices"))
        cards.append(("Memory", f"{speed.memory_gib:.2f} GiB", "peak of rank 0"))
    return cards


def _charts(log: RunLog) -> list[tuple[str, str]]:
    """Returns label and figure of each chart that has values."""
    columns, steps = log.columns, log.columns["step"]
    if not len(steps):
        return []
    shown = []
    loss = columns["loss"]
    series = [("each step", steps, loss), ("moving mean", steps, smoothed(loss))]
    shown.append(("Loss, nats per token", charts.lines(series, "step", "nats per token")))
    if log.heldout:
        curves = [(name, *values) for name, values in sorted(log.heldout.items())]
        shown.append(("Held-out text, bits per byte", charts.lines(curves, "step", "bits per byte")))
    norm = charts.lines([("norm", steps, columns["grad_norm"])], "step", "norm, logarithmic", log=True)
    shown.append(("Gradient norm before clipping", norm))
    shown.append(("Learning rate", charts.lines([("rate", steps, columns["lr"])], "step", "learning rate")))
    return shown


def _profile(log: RunLog) -> list[tuple[str, str, str]]:
    """Returns the figures of the profiled steps as cards; [] if none was profiled."""
    metrics = log.artifact.record.metrics if log.artifact else {}
    return [
        (title, f"{metrics[name]:.1%}", note)
        for figure, (title, note) in PROFILE.items()
        if (name := f"{FAMILY}{figure}") in metrics
    ]


def _operations(log: RunLog) -> list[list[object]]:
    """Returns a row per operation of the newest profiled step, the longest first."""
    metrics = log.artifact.record.metrics if log.artifact else {}
    shares = {name.removeprefix(OPERATION): value for name, value in metrics.items() if name.startswith(OPERATION)}
    return [[name, round(100 * share, 1)] for name, share in sorted(shares.items(), key=lambda one: -one[1])]


def _rises(log: RunLog, at: Address) -> list[list[object]]:
    """Returns a row per step whose loss rose most above the mean of the steps before it, the largest first."""
    rises, columns = log.rises, log.columns
    order = np.argsort(np.where(np.isnan(rises), -np.inf, rises))[::-1][:RISES]
    return [
        [_step_link(at, int(columns["step"][index])), round(float(rises[index]), 4), _value(columns["loss"][index]),
         _value(columns["grad_norm"][index])]
        for index in order
        if rises[index] > 0
    ]  # fmt: skip


def _skipped(log: RunLog, at: Address) -> list[list[object]]:
    return [
        [_step_link(at, line["step"]), line.get("reason", ""), _number(line.get("loss")),
         _number(line.get("grad_norm")), line["documents"]]
        for line in log.skipped[:SKIPPED]
    ]  # fmt: skip


def _withheld(log: RunLog, at: Address) -> list[list[object]]:
    """Returns a row per step from which on documents were blank."""
    return [
        [_step_link(at, min(mark.step, len(log.columns["step"]) - 1)), sum(map(len, mark.rows.values())),
         len(mark.shards), mark.reason or ", ".join(mark.takedowns)]
        for mark in log.marks
    ]  # fmt: skip


def _milestones(log: RunLog) -> list[list[object]]:
    if log.artifact is None:
        return []
    rows: list[list[object]] = []
    for part in log.artifact.parts:
        if not part.name.startswith("step-"):
            continue
        count = int(part.name.removeprefix("step-"))
        tokens = log.columns["tokens"]
        read = int(tokens[count - 1]) if 0 < count <= len(tokens) else None
        rows.append([count, read, round(sum(entry.bytes for entry in part.files) / 1e6, 2)])
    return rows


def _step(store: Store, recipe: Recipe, version: str, log: RunLog, at: Address, of: Version) -> dict[str, Any] | None:
    """Returns the step that the address names: its figures, documents and neighbors; None without one."""
    text = at.query.get("step", "").strip().removeprefix("step:").removeprefix("tuned:")
    if not text:
        return None
    try:
        if not text.isdecimal() or len(text) > 15:
            raise InputError(f'"{text}" is not a step', "write its number, from 0 on")
        number = int(text)
        log.check(number)
        if log.artifact is None:
            raise InputError("the documents of a step are known when the run is complete", "open the page again then")
        shown = _pretrained if log.kind == "checkpoint" else _tuned
        found = shown(store, recipe.name, version, log, number, at, of)
    except InputError as error:
        return {"problem": str(error), "number": text}
    last = int(log.columns["step"][-1])
    around = [
        (label, at.href(step=str(other), weights=None))
        for label, other in (("Previous step", number - 1), ("Next step", number + 1))
        if 0 <= other <= last
    ]
    return {"problem": "", "number": f"{number:,}", "facts": _facts(log, number), "around": around, **found}


def _facts(log: RunLog, step: int) -> list[tuple[str, str, str]]:
    row = int(np.searchsorted(log.columns["step"], step))
    loss, rise = log.columns["loss"][row], log.rises[row]
    reason = next((line.get("reason", "") for line in log.skipped if line["step"] == step), "")
    facts = [("Loss", "skipped" if np.isnan(loss) else f"{loss:.4f}", reason or "nats per token")]
    if not np.isnan(rise):
        facts.append(("Above the steps before", f"{rise:+.4f}", f"the mean of {BEFORE} steps"))
    facts.append(("Gradient norm", _value(log.columns["grad_norm"][row]) or "none", "before clipping"))
    facts.append(("Learning rate", f"{log.columns['lr'][row]:.3g}", ""))
    facts.append(("Tokens", f"{log.columns['tokens'][row]:,.0f}", "trained on after the step"))
    return facts


def _pretrained(
    store: Store, recipe: str, version: str, log: RunLog, number: int, at: Address, of: Version
) -> dict[str, Any]:
    """Returns the documents of a step in the order in which it read them, with their losses if the address asks."""
    found = trace_step(store, recipe, version, number)
    assert log.artifact is not None
    milestones = log.run["checkpoint_steps"]
    problem, losses, weights = "", None, at.query.get("weights", "")
    small = answering.weights_bytes(log.artifact) <= answering.MOST_WEIGHTS
    if weights and int(weights if weights.isdecimal() and len(weights) < 15 else 0) not in milestones:
        problem = f"There is no milestone {weights}."
    elif weights:
        try:
            losses = _losses(LineageReader.follow(store, recipe, version), log.artifact, number, int(weights))
        except InputError as error:
            problem = str(error)
    chosen = int(weights) if losses else log.weights_before(number)
    learned = found.first_checkpoint
    return {
        "rows": _document_rows(found, losses, of),
        "more": max(0, len(found.sequences) - MOST_SEQUENCES),
        "learned": "" if learned is None else f"The first milestone that has read the step is {learned:,}.",
        "skipped": found.skipped,
        "losses": losses is not None,
        "loss_problem": problem,
        "milestones": [(count, count == chosen) for count in milestones] if small else [],
        "read": int(weights) > number if losses else None,
        "weights": chosen,
    }


def _losses(reader: LineageReader, checkpoint: Artifact, step: int, milestone: int) -> Losses:
    key = (checkpoint.store.root, checkpoint.record.content, step, milestone)
    if key not in _computed:
        shards, plan = reader.artifacts["shards"], reader.artifacts["plan"]
        _computed[key] = answering.step_losses(checkpoint, shards, plan, step, milestone)
        while len(_computed) > _KEPT:
            _computed.popitem(last=False)
    return _computed[key]


def _document_rows(found: StepTrace, losses: Losses | None, of: Version) -> list[list[object]]:
    """Returns a row per part of a document that a step read, in the order of reading."""
    rows: list[list[object]] = []
    for number, sequence in enumerate(found.sequences):
        for at, part in enumerate(sequence.slices or ()):
            text = "withheld" if part.withheld else " ".join(part.text.split())[:200]
            document = trace_link(part.url or part.id, part.id, of)
            row = [number + 1, sequence.source, sequence.epoch, document, part.start, part.length]
            if losses is not None:
                row.append(None if part.withheld else _number(losses[number][at]["loss"]))
            rows.append([*row, text])
    return rows


def _tuned(
    store: Store, recipe: str, version: str, log: RunLog, number: int, at: Address, of: Version
) -> dict[str, Any]:
    """Returns the examples of a step of a fine-tuning in the order of the batch."""
    found: TunedStepTrace = trace_tuned(store, recipe, version, number)
    rows: list[list[object]] = []
    for row in found.rows:
        source: Mapping[str, Any] = row.source
        document = source.get("document")
        of_base = Version(found.bases[0].partition("/")[0], found.bases[0].partition("@")[2]) if found.bases else of
        label = source.get("url") or f"{source.get('file', '')}, line {source.get('line', '')}"
        shown = trace_link(label, document, of_base) if document else label
        pages = ", ".join(map(str, source.get("pages", ())))
        rows.append([row.sequence, shown, source.get("chunk") or source.get("id") or "", pages,
                     "withheld" if row.withheld else ""])  # fmt: skip
    return {"examples": rows, "skipped": found.skipped}


def _step_link(at: Address, step: int) -> Markup:
    return Markup('<a href="{}#step">{}</a>').format(at.href(step=str(step), weights=None), f"{step:,}")


def _value(value: float) -> str | None:
    return None if np.isnan(value) else f"{value:.4g}"


def _number(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)


routes = router()


@routes.get("/training")
def training_page(recipe: Name, version: VersionName, user: User, at: At) -> HTMLResponse:
    """The training of a version."""
    return respond(lambda: training(readable(recipe, user), version, at))
