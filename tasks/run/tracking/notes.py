"""Writes descriptions onto the pages of MLflow: of a stage's run, of the run of its DAG, and of the experiment.

Reads and writes tags through an MLflow client. A description that a person has written stays: what was written here is
known by its digest, a tag beside it. Of several stages that end at once the last one writes for all, since what each of
them came to is a tag of its own.
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
    """Describes the run of a stage."""
    _write(client.get_run(run_id).data.tags, text, partial(client.set_tag, run_id))


def on_dag_run(client: Any, run_id: str, key: str, name: str, came_to: str) -> None:
    """Describes the run of a DAG, known by `key`, of which the stage called `name` has come to something."""
    client.set_tag(run_id, describe.STAGE + name, came_to)
    held = client.get_run(run_id).data.tags
    _write(held, describe.dag_run(key, held), partial(client.set_tag, run_id))


def on_experiment(client: Any, experiment: str, description: str, record: Record | None = None) -> None:
    """Describes an experiment; `record` is the newest artifact of a stage, where there is one."""
    if record and record.stage in describe.HEADLINES:
        newest = f"`{record.artifact}`: {describe.outcome(record)}"
        client.set_experiment_tag(experiment, describe.NEWEST + record.stage, newest)
    held = client.get_experiment(experiment).tags
    _write(held, describe.experiment(description, held), partial(client.set_experiment_tag, experiment))


def _write(held: Mapping[str, str], text: str, set_tag: Callable[[str, str], None]) -> None:
    now = held.get(NOTE, "")
    if text in ("", now) or (now and held.get(_OURS) != _digest(now)):
        return
    set_tag(_OURS, _digest(text))
    set_tag(NOTE, text)


def _digest(text: str) -> str:
    return sha256_of(text.encode())[:16]
