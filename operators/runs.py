"""Which version a DAG run makes, which it reads and with which overrides: one answer for all tasks of the run.

The order is: what a person typed into the form, what the asset event that started the run says, the calendar (for
scheduled runs), the recipe. Events hand version, source version and overrides down the chain, so one crawl run ends in
one consistent set of artifacts, however many DAGs it passes through.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from tasks.core.errors import RecipeError, SluiceError
from tasks.run.recipe import Recipe

VERSION = r"[A-Za-z0-9][A-Za-z0-9._\-]*"
"""Pattern of a version; it becomes a folder of the store."""

OVERRIDABLE = re.compile(r"(?!place\.|crawl\.(?:hosts_file|allow_hosts)(?:\.|$))[a-z_]+(\.[a-z_0-9]+)+")
"""What a run may override: fields of the sections that say what is made, not the recipe's name, nor [place], nor which
credentials are sent and which inside hosts are reached."""

CALENDAR = "%Y.%m.%d-%H%M"
"""Version of a scheduled run, from its logical date: 2026.11.21-0300."""

_CALENDAR_RUNS = ("scheduled", "backfill")


@dataclass(frozen=True)
class Run:
    """What one DAG run is about.

    Args:
        version: version of the artifacts that the run makes.
        source_version: version to read where an input is missing at `version`, and to adopt from what would be made
            again; None: no other.
        overrides: recipe fields by dotted path, as typed by a person or handed down by an event.
    """

    version: str
    source_version: str | None = None
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def handed_down(self) -> dict[str, Any]:
        """What the event of an asset says of the run, for the runs that it starts."""
        return {"version": self.version, "source_version": self.source_version, "overrides": self.overrides}

    def recipe(self, recipe: Recipe) -> Recipe:
        """Returns the recipe of this run; raises RecipeError for an override that does not fit or may not be.

        Where things run and are kept stays in the recipe's file, and so does what the crawl may reach inside: who may
        trigger a DAG must not thereby name another store, image or server, or send credentials somewhere.
        """
        moved = sorted(path for path in self.overrides if not OVERRIDABLE.fullmatch(path))
        if moved:
            raise RecipeError(f'"{moved[0]}" cannot be overridden', "change the recipe's file, or make another recipe")
        return recipe.override(self.overrides) if self.overrides else recipe


def run_of(recipe: Recipe, context: Mapping[str, Any]) -> Run:
    """Reads the run from an Airflow task context.

    Raises:
        RecipeError: the event that started the run carries no usable version or overrides.
    """
    params = {name: value for name, value in context.get("params", {}).items() if value is not None}
    event = newest_event(context.get("triggering_asset_events") or {})
    typed = {**params.get("overrides", {}), **{name: value for name, value in params.items() if "." in name}}
    version = _checked(params.get("version") or event.get("version") or _calendar(context) or recipe.version)
    source_version = params.get("source_version") or _source_of(event, version)
    return Run(version, source_version, {**_overrides_of(event), **typed})


def newest_event(events: Mapping[Any, Iterable[Any]]) -> dict[str, Any]:
    """Returns the `extra` of the newest event that started the run, or {}.

    A DAG that was paused wakes up to one run for many events. The newest stands for all: each event names a whole
    artifact, not a piece of one.
    """
    found = [event for several in events.values() for event in several]
    return dict(max(found, key=lambda event: event.timestamp).extra or {}) if found else {}


def parent_key(context: Mapping[str, Any]) -> str:
    """Returns the key under which MLflow gathers the runs of one DAG run."""
    return f"{context['ti'].dag_id}/{context['run_id']}"


@contextmanager
def fails_at_once() -> Iterator[None]:
    """Turns a permanent error into a failure without retry, told in one line; other errors are left to the retries."""
    try:
        yield
    except SluiceError as error:
        if not error.permanent:
            raise
        raise AirflowFailException(str(error)) from None


def _calendar(context: Mapping[str, Any]) -> str:
    date = context.get("logical_date")
    run = context.get("dag_run")
    kind = getattr(getattr(run, "run_type", ""), "value", getattr(run, "run_type", ""))
    return date.strftime(CALENDAR) if date is not None and kind in _CALENDAR_RUNS else ""


def _source_of(event: Mapping[str, Any], version: str) -> str | None:
    """Returns the version that the event is about, or, where that is made here, the one it was made at itself."""
    source = event.get("version")
    if source == version:
        source = event.get("source_version")
    return _checked(source) if source else None


def _overrides_of(event: Mapping[str, Any]) -> dict[str, Any]:
    overrides = event.get("overrides") or {}
    if not isinstance(overrides, dict):
        raise RecipeError(f"the asset event says overrides = {overrides!r}", 'write {"section.field": value}')
    return overrides


def _checked(version: Any) -> str:
    # The form's schema has checked what a person typed; an event may come from any client of the REST API.
    if not isinstance(version, str) or not re.fullmatch(VERSION, version):
        raise RecipeError(f"{version!r} is not a version", "use letters, digits, '.', '_' and '-'")
    return version
