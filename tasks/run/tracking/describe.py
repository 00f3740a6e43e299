"""What MLflow's pages show: descriptions of experiments, runs of DAGs and runs of stages, and the names of metrics.

MLflow (3.17) sorts charts by the name of the metric, in sections by what precedes its last "/": sections by name, then
the metrics without one ("Model metrics", here the numbers of the record), then "system/" ("System metrics", over time
instead of steps). So the series of a training are in `loss`, `loss_by_source`, `optimizer` and `speed`, and the machine
and alerts in `system`.

Descriptions: reads a recipe, records of artifacts and tags of experiments and runs; writes deterministic Markdown to
the tag `mlflow.note.content`. Descriptions written by people are kept: they differ from the digest of the last one
written here, which is in another tag. The outcome of each stage is a separate tag, so if several stages end at the same
time, the last one writes a description with all outcomes.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tasks.core.artifact import Artifact, ArtifactRecord
from tasks.core.digest import sha256_of
from tasks.run.catalogue import STAGES
from tasks.run.recipe import Recipe
from tasks.run.tracking import SHELL
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.extract.config import ExtractConfig

NEWEST = "sluice.newest."
"""Prefix of tags of an experiment: the outcome of the newest run of each stage."""

STAGE = "sluice.came_to."
"""Prefix of tags of a DAG run: the outcome of each of its stages, by stage and member."""

HEADLINES = ("publish", "consolidate", "pack", "decide", "evaluate")
"""Stages whose newest result is shown on the page of the experiment: pages, funnel, tokens, mixture, scores."""

SUMMARY: Mapping[str, Mapping[str, str]] = {
    "publish": {"rows_out": "pages"},
    "consolidate": {"kept": "documents", "kept_share": "documents_kept_share"},
    "encode": {"tokens": "tokens"},
    "decide": {"winner_bpb": "canary_bits_per_byte"},
    "estimate": {"price": "planned_price", "gpu_hours": "planned_gpu_hours"},
    "train": {"loss": "loss"},
    "evaluate": {"bpb": "bits_per_byte"},
    "promote": {"promoted": "promoted"},
}
"""Metrics of the run of a DAG, by stage and metric of the stage's artifact. The scores of tasks are added to these."""

SECONDS = "seconds_by_stage/"
"""Prefix of metrics of the run of a DAG: the time of each of its stages that made something."""

SYSTEM = "system"
"""MLflow's own section for metrics of machines, the last one."""

_SERIES: Mapping[str, str] = {
    "loss": "loss/train",
    "bpb": "loss/heldout_bpb",
    "grad_norm": "optimizer/grad_norm",
    "lr": "optimizer/lr",
    "tokens": "optimizer/tokens",
    "tokens_per_s": "speed/tokens_per_s",
    "step_s": "speed/step_s",
    "data_wait": "speed/data_wait",
    "mfu": "speed/mfu",
    "z_loss": "optimizer/z_loss",
    "heldout_s": "speed/heldout_s",
    "memory_gib": f"{SYSTEM}/memory_gib",
}
"""Metrics of the steps of a training, by their name in its log."""

_FAMILIES: Mapping[str, str] = {
    "bpb": "loss_by_source/heldout_bpb.",
    "step_s": "speed/step_s.",
    "gpu": f"{SYSTEM}/gpu.",
    "alert": f"{SYSTEM}/alert.",
    "profile": "speed/profiled.",
    "layer": "optimizer/layers.",
    "experts": "optimizer/experts.",
}
"""The same for names with a "/", by what precedes it."""

_FAULTS = ("alerts", "faults")
"""Families of a record that count what went wrong."""

LONGEST = 4500
"""Longest description in characters; MLflow limits tags of experiments to 5,000."""

_LONGEST_LIST = 4
_ADOPTED = "adopted from"

NOTE = "mlflow.note.content"
_DIGEST = "sluice.note"


def series_name(name: str) -> str:
    """Returns the name in MLflow of a metric that has a value for each step.

    >>> series_name("loss"), series_name("bpb/web"), series_name("alert/slow"), series_name("task_by_step/quiz/acc")
    ('loss/train', 'loss_by_source/heldout_bpb.web', 'system/alert.slow', 'task_by_step/quiz/acc')
    """
    family, slash, rest = name.partition("/")
    if not slash:
        return _SERIES.get(name, name)
    return _FAMILIES[family] + rest.replace("/", ".") if family in _FAMILIES else name


def number_name(name: str) -> str:
    """Returns the name in MLflow of a metric of a record, which has one value.

    >>> number_name("loss"), number_name("alerts/slow"), number_name("score/high")
    ('loss', 'system/alerts.slow', 'score/high')
    """
    family, slash, rest = name.partition("/")
    return f"{SYSTEM}/{family}.{rest}" if slash and family in _FAULTS else name


def summary(name: str, artifact: Artifact) -> dict[str, float]:
    """Returns the metrics that the stage `name`, with its member, adds to the run of its DAG."""
    record = artifact.record
    values = {"rows_out": float(record.rows_out), **record.metrics}
    found = {metric: values[own] for own, metric in SUMMARY.get(record.stage, {}).items() if own in values}
    if record.stage == "evaluate":
        found |= {metric: value for metric, value in record.metrics.items() if metric.startswith("task/")}
    if record.stage == "reconcile":
        real = {row["name"]: row["real"] for row in json.loads(artifact.read("reconciled.json"))}
        titles = {"price": "price", "GPU-hours": "gpu_hours"}
        found |= {metric: real[title] for title, metric in titles.items() if real.get(title) is not None}
    if not record.adopted_from:
        found[SECONDS + name.replace(" ", ".")] = (record.finished - record.started).total_seconds()
    return found


def totals(run: Any) -> dict[str, float]:
    """Returns the sums over the stages of the run of a DAG so far, from the data of its MLflow run."""
    seconds = [value for metric, value in run.metrics.items() if metric.startswith(SECONDS)]
    outcomes = (text for tag, text in run.tags.items() if tag.startswith(STAGE))
    adopted = sum(text.startswith(_ADOPTED) for text in outcomes)
    return {"stage_seconds": sum(seconds), "stages_made": float(len(seconds)), "stages_adopted": float(adopted)}


def on_run(client: Any, run_id: str, text: str) -> None:
    """Writes the description of the run of a stage."""
    _write(client.get_run(run_id).data.tags, text, partial(client.set_tag, run_id))


def on_dag_run(client: Any, run_id: str, key: str, name: str, outcome: str) -> None:
    """Writes the description of the run of a DAG, identified by `key`, with the outcome of the stage `name`."""
    client.set_tag(run_id, STAGE + name, outcome)
    tags = client.get_run(run_id).data.tags
    _write(tags, dag_run(key, tags), partial(client.set_tag, run_id))


def on_experiment(client: Any, experiment_id: str, description: str, record: ArtifactRecord | None = None) -> None:
    """Writes the description of an experiment; `record` is that of a stage's newest artifact, if there is one."""
    if record and record.stage in HEADLINES:
        newest = f"`{record.artifact}`: {outcome(record)}"
        client.set_experiment_tag(experiment_id, NEWEST + record.stage, newest)
    tags = client.get_experiment(experiment_id).tags
    _write(tags, experiment(description, tags), partial(client.set_experiment_tag, experiment_id))


def recipe(config: Recipe) -> str:
    """Returns the description of a recipe: its sources, and the structure of its runs."""
    crawl, files = config.of(CrawlConfig), config.of(ExtractConfig).files
    sources = []
    if crawl.enabled:
        seeds = [*crawl.seeds, *crawl.seed_files]
        sources.append(f"a crawl from {_enumerate([f'`{seed}`' for seed in seeds])}" if seeds else "a crawl")
    sources += [f"`{source.name}` ({source.kind}: `{source.path}`)" for source in files]
    return (
        f"The recipe **{config.name}** of Sluice: from {_enumerate(sources) or 'no source yet'} to documents, tokens "
        "and a trained language model.\n\n"
        "One run for each run of a DAG, and under it one for each stage: its inputs as datasets, its settings as "
        "parameters, its row counts and measurements as metrics, its pictures and pages as artifacts."
    )


def experiment(description: str, tags: Mapping[str, str]) -> str:
    """Returns the description of an experiment: that of its recipe (`recipe`), and the newest results from its tags."""
    lines = [f"- **{stage}** {tags[NEWEST + stage]}" for stage in HEADLINES if NEWEST + stage in tags]
    return _cut("\n".join([description, *(["", "Newest results:", "", *lines] if lines else [])]))


def dag_run(key: str, tags: Mapping[str, str]) -> str:
    """Returns the description of a DAG run ("<dag id>/<run id>"): the outcomes of its stages so far, from its tags."""
    dag, _, run = key.partition("/")
    whole = (
        f"The run `{run}` of the DAG `{dag}`" if dag != SHELL else f"Stages of version `{run}` that were run in a shell"
    )
    outcomes = {name.removeprefix(STAGE): text for name, text in tags.items() if name.startswith(STAGE)}
    order = {stage: number for number, stage in enumerate(STAGES)}
    names = sorted(outcomes, key=lambda name: (order.get(name.split()[0], len(order)), name))
    lines = [f"- **{name}** {outcomes[name]}" for name in names]
    return _cut("\n".join([f"{whole}; its stages are the runs under it.", "", *lines]))


def stage(about: str, record: ArtifactRecord | None) -> str:
    """Returns the description of the run of a stage.

    Args:
        about: purpose of the stage, in one sentence.
        record: record of its artifact; None while it runs.
    """
    if record is None:
        return about
    made_from = _enumerate([f"`{ref.address}`" for ref in record.inputs])
    made = f"Made `{record.artifact}`{f' from {made_from}' if made_from else ''}."
    if record.adopted_from:
        source = f"`{record.adopted_from}`"
        made = f"`{record.artifact}` is adopted from {source}: same settings and inputs. Times are those of {source}."
    return _cut("\n".join([about, "", made, "", _came_to(record)]))


def outcome(record: ArtifactRecord) -> str:
    """Returns the outcome of a stage in one line: whether it was adopted, its note and its row counts."""
    adopted = f"{_ADOPTED} `{record.adopted_from}`: " if record.adopted_from else ""
    return f"{adopted}{_came_to(record)}"


def _came_to(record: ArtifactRecord) -> str:
    return "; ".join(part for part in (record.note, counts(record)) if part) or "done"


def counts(record: ArtifactRecord) -> str:
    """Returns the numbers of rows in one line, with those that were rejected; "" for a stage that has no rows."""
    if not (record.rows_in or record.rows_out or record.rejected):
        return ""
    by_count = sorted(record.rejected.items(), key=lambda item: (-item[1], item[0]))
    reasons = _enumerate([f"{reason} {count:,}" for reason, count in by_count])
    rejected = f", {sum(record.rejected.values()):,} rejected ({reasons})" if by_count else ""
    return f"{record.rows_in:,} rows in, {record.rows_out:,} out{rejected}"


def _enumerate(items: list[str]) -> str:
    """Returns "a, b and c", or the first items and the number of further ones."""
    more = [f"{len(items) - _LONGEST_LIST} more"] if len(items) > _LONGEST_LIST else []
    *several, last = [*items[:_LONGEST_LIST], *more] or [""]
    return f"{', '.join(several)} and {last}" if several else last


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def _write(tags: Mapping[str, str], text: str, set_tag: Callable[[str, str], None]) -> None:
    current = tags.get(NOTE, "")
    if text in ("", current) or (current and tags.get(_DIGEST) != _digest(current)):
        return
    set_tag(_DIGEST, _digest(text))
    set_tag(NOTE, text)


def _digest(text: str) -> str:
    return sha256_of(text.encode())[:16]
