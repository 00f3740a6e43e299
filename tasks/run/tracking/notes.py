"""Descriptions on the pages of MLflow: of a stage's run, of the run of its DAG, and of the experiment.

Reads and writes tags through an MLflow client. A description that a person has written is kept: a tag with the digest
of the last description written here distinguishes them. Of several stages that end at the same time the last one writes
for all, since the outcome of each is a tag of its own.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tasks.core.artifact import Record
from tasks.core.digest import sha256_of
from tasks.run.tracking import describe

NOTE = "mlflow.note.content"
_OURS = "sluice.note"


def on_run(client: Any, run_id: str, text: str) -> None:
    """Writes the description of the run of a stage."""
    _write(client.get_run(run_id).data.tags, text, partial(client.set_tag, run_id))


def on_dag_run(client: Any, run_id: str, key: str, name: str, outcome: str) -> None:
    """Writes the description of the run of a DAG, identified by `key`, with the outcome of the stage `name`."""
    client.set_tag(run_id, describe.STAGE + name, outcome)
    tags = client.get_run(run_id).data.tags
    _write(tags, describe.dag_run(key, tags), partial(client.set_tag, run_id))


def on_experiment(client: Any, experiment: str, description: str, record: Record | None = None) -> None:
    """Writes the description of an experiment; `record` is that of a stage's newest artifact, if there is one."""
    if record and record.stage in describe.HEADLINES:
        newest = f"`{record.artifact}`: {describe.outcome(record)}"
        client.set_experiment_tag(experiment, describe.NEWEST + record.stage, newest)
    tags = client.get_experiment(experiment).tags
    _write(tags, describe.experiment(description, tags), partial(client.set_experiment_tag, experiment))


def _write(tags: Mapping[str, str], text: str, set_tag: Callable[[str, str], None]) -> None:
    current = tags.get(NOTE, "")
    if text in ("", current) or (current and tags.get(_OURS) != _digest(current)):
        return
    set_tag(_OURS, _digest(text))
    set_tag(NOTE, text)


def _digest(text: str) -> str:
    return sha256_of(text.encode())[:16]
