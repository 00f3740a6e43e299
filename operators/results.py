"""What a stage came to, as it travels through Airflow: a task's XCom, and the `extra` of an asset event.

Small and plain JSON: addresses and numbers, never data.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from operators.aws import use_connection
from operators.runs import Run
from tasks.run.catalogue import STAGES
from tasks.run.recipe import Recipe


def result_of(made: Any, version: str) -> dict[str, Any]:
    """Returns the XCom of a stage run (`tasks.run.runner.StageResult`)."""
    return {**asdict(made), "members": list(made.members), "version": version}


def committed(recipe: Recipe, stage: str, version: str, member: str = "") -> dict[str, Any]:
    """Returns the XCom of a stage that ran elsewhere, read from its artifact.

    Raises:
        InputError: the artifact is not there: the stage said it was done but has not committed into this store.
    """
    # Imported here, because artifacts bring pyarrow and DAG files import this module.
    from tasks.core.artifact import Artifact, ArtifactId
    from tasks.run.runner import TRACKING, open_store

    use_connection(recipe)
    kind = STAGES[stage].output
    name = f"{recipe.name}/{kind}/{member}" if member else f"{recipe.name}/{kind}"
    artifact = Artifact.open_at(open_store(recipe), ArtifactId(name, version))
    record = artifact.record
    tracked = artifact.store.exists(f"{artifact.folder}/{TRACKING}")
    return {
        "address": record.artifact,
        "fingerprint": record.fingerprint,
        "content": record.content,
        "skipped": False,
        "members": list(record.members),
        "metrics": record.metrics,
        "rows": {"in": record.rows_in, "out": record.rows_out, **record.rejected},
        "mlflow_run_url": json.loads(artifact.read(TRACKING))["url"] if tracked else "",
        "version": version,
    }


def announce(context: Any, outlets: Sequence[Any], result: dict[str, Any], run: Run) -> None:
    """Puts the artifact's identity, and the run's, on the event of each outlet."""
    extra = {name: result[name] for name in ("address", "fingerprint", "content")}
    for outlet in outlets:
        context["outlet_events"][outlet].extra = {**extra, **run.handed_down}
