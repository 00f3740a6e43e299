"""Result of a stage in Airflow: a task's XCom (`tasks.run.result`), and the `extra` of an asset event."""

from collections.abc import Mapping, Sequence
from typing import Any

from operators.connections import use_store
from operators.runs import RunSettings
from tasks.run.catalogue import STAGES
from tasks.run.recipe import Recipe
from tasks.run.result import StageResult

FIGURES: Mapping[str, Mapping[str, str]] = {
    "warc": {"pages": "pages"},
    "documents": {"kept": "documents"},
    "plan": {"tokens": "tokens", "sequences": "sequences"},
    "mixture": {"winner_bpb": "bits_per_byte"},
    "checkpoint": {"loss": "loss", "tokens": "tokens"},
}
"""Metrics in the events of assets, by kind of the artifact: name of the metric, and in the event."""


def read_result(recipe: Recipe, stage: str, version: str, member: str = "") -> StageResult:
    """Returns the result of a stage that ran elsewhere, read from its artifact; an adopted one counts as skipped.

    Raises:
        InputError: the artifact is missing: the stage reported success but did not commit to this store.
    """
    # Imported here, because artifacts bring pyarrow and DAG files import this module.
    from tasks.core.artifact import Artifact, ArtifactId
    from tasks.run.runner import open_store, result_of

    use_store(recipe)
    kind = STAGES[stage].output
    name = f"{recipe.name}/{kind}/{member}" if member else f"{recipe.name}/{kind}"
    artifact = Artifact.open_at(open_store(recipe), ArtifactId(name, version))
    return result_of(artifact, version, skipped=bool(artifact.record.adopted_from))


def announce(context: Any, outlets: Sequence[Any], result: StageResult, run: RunSettings) -> None:
    """Adds the settings of the run, the identity of the artifact and its main figures to the event of each outlet.

    Airflow shows these fields on the page of the asset. `outcome` is "made", or from which artifact it was adopted.
    """
    kind = result.address.partition("@")[0].partition("/")[2]
    figures = {
        name: result.metrics[metric] for metric, name in FIGURES.get(kind, {}).items() if metric in result.metrics
    }
    extra = {
        **run.event_fields,
        "address": result.address,
        "outcome": f"adopted from {result.adopted_from}" if result.adopted_from else "made",
        **{name: int(value) if float(value).is_integer() else value for name, value in figures.items()},
        "fingerprint": result.fingerprint,
        "content": result.content,
    }
    for outlet in outlets:
        context["outlet_events"][outlet].extra = extra
