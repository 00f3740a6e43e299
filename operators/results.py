"""Result of a stage in Airflow: a task's XCom (`tasks.run.result`), and the `extra` of an asset event."""

from collections.abc import Sequence
from typing import Any

from operators.aws import use_connection
from operators.runs import RunSettings
from tasks.run.catalogue import STAGES
from tasks.run.recipe import Recipe
from tasks.run.result import StageResult


def read_result(recipe: Recipe, stage: str, version: str, member: str = "") -> StageResult:
    """Returns the result of a stage that ran elsewhere, read from its artifact; an adopted one counts as skipped.

    Raises:
        InputError: the artifact is missing: the stage reported success but did not commit to this store.
    """
    # Imported here, because artifacts bring pyarrow and DAG files import this module.
    from tasks.core.artifact import Artifact, ArtifactId
    from tasks.run.runner import open_store, result_of

    use_connection(recipe)
    kind = STAGES[stage].output
    name = f"{recipe.name}/{kind}/{member}" if member else f"{recipe.name}/{kind}"
    artifact = Artifact.open_at(open_store(recipe), ArtifactId(name, version))
    return result_of(artifact, version, skipped=bool(artifact.record.adopted_from))


def announce(context: Any, outlets: Sequence[Any], result: StageResult, run: RunSettings) -> None:
    """Adds the identity of the artifact and the settings of the run to the event of each outlet."""
    extra = {"address": result.address, "fingerprint": result.fingerprint, "content": result.content}
    for outlet in outlets:
        context["outlet_events"][outlet].extra = {**extra, **run.event_fields}
