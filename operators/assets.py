"""Airflow Assets: one per recipe and kind of artifact that another DAG waits for.

An event's `extra` contains {address, fingerprint, content, version, source_version, overrides}: enough for the consumer
to find and check the artifact.
"""

from airflow.sdk import Asset

from tasks.run.catalogue import ASSETS, STAGES


def asset(recipe: str, kind: str) -> Asset:
    """Returns the asset `<recipe>/<kind>`.

    The scheme begins with "x-", which Airflow keeps for users: any other makes it look through all providers for a
    handler (0.16 CPU-seconds in each task process) and reserves the name for a package with one.
    """
    if kind not in ASSETS:
        raise ValueError(f'no asset kind "{kind}": known are {", ".join(ASSETS)}')
    return Asset(name=f"{recipe}/{kind}", uri=f"x-sluice://{recipe}/{kind}", group="sluice")


def outlets_of(recipe: str, stage: str) -> list[Asset]:
    """Returns the asset that a stage completes, as the outlets of its task; [] where it completes none."""
    completed = STAGES[stage].asset
    return [asset(recipe, completed)] if completed else []
