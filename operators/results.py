"""Result of a stage in Airflow: a task's XCom (`tasks.run.result`), the `extra` of an asset event, an asset's state."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from operators.connections import use_store
from operators.recipes import STATES, asset
from operators.runs import RunSettings
from tasks.run.catalogue import STAGES
from tasks.run.recipe import Recipe
from tasks.run.result import StageResult

log = logging.getLogger("sluice.results")

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


def mirror(context: Any, recipe: Recipe, stage: str) -> None:
    """Copies what is in force after a stage into the state of its asset, which Airflow's page and REST API show.

    That is the newest crawl, the offsets that the newest version has read of each stream, or the champion; an old
    version that is run again does not change them. The store remains the truth and nothing reads the copy, so a failure
    is a warning.
    """
    if stage not in STATES:
        return
    try:
        state = context["asset_state_store"][asset(recipe.name, STATES[stage])]
        for key, value in _in_force(recipe, stage).items():
            state.set(key, value)
    except Exception as error:  # whatever it is: the artifact is committed
        log.warning("Airflow's state of %s/%s was not written: %s", recipe.name, STATES[stage], error)


def _in_force(recipe: Recipe, stage: str) -> dict[str, Any]:
    from tasks.core.ledger import newest
    from tasks.run.runner import open_store
    from tasks.stages.extract.stream import ranges_of

    artifact = newest(open_store(recipe), f"{recipe.name}/{STAGES[stage].output}")
    assert artifact
    about = {"version": artifact.address.version, "finished": artifact.record.finished.isoformat()}
    if stage == "publish":
        return {"watermark": about}
    if stage == "promote":
        return {"champion": {"model": json.loads(artifact.read("champion.json"))["champion"]["artifact"], **about}}
    state: dict[str, Any] = {}
    for (name, topic), ranges in sorted(ranges_of(artifact.record.metrics).items()):
        offsets = {str(partition): end for partition, (_, end) in ranges.items()}
        state[f"{name}/{topic}"] = {"next_offsets": offsets, **about}
    return state
