"""Version, source version and overrides of a DAG run, the same for all tasks of the run.

Precedence: the trigger form, the asset event that started the run, the calendar (for scheduled runs), the recipe. The
calendar is the time at which a run is due, the end of its data interval: the logical date is that only by Airflow's
default, and with `[scheduler] create_cron_data_intervals` the start of the interval. Events pass version, source
version and overrides down the chain, so one crawl run leads to one consistent set of artifacts, however many DAGs it
passes through.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from tasks.core.config import nearest
from tasks.core.errors import RecipeError, SluiceError
from tasks.run.monthly.config import Cycle
from tasks.run.recipe import VERSION, Recipe
from tasks.run.schedule import version_at, version_of
from tasks.stages.takedown import VERSION_FORMAT, dated

OVERRIDABLE = re.compile(r"(?!place\.|crawl\.(?:hosts_file|allow_hosts|signature)(?:\.|$))[a-z_]+(\.[a-z_0-9]+)+")
"""Settings that a run may override: fields in sections that determine results. Excluded are the recipe's name, [place],
the hosts file and signature (credentials), and allow_hosts (hosts of private networks)."""

FORM_KEYS = ("version", "source_version", "overrides")
"""Keys of the conf of a DAG run; every other key is a recipe field by its dotted path."""

_CALENDAR_RUNS = ("scheduled", "backfill")


@dataclass(frozen=True)
class RunSettings:
    """Settings of one DAG run.

    Args:
        version: version of the artifacts that the run creates.
        source_version: version to read where an input is missing at `version`, and to adopt results from; None: none.
        overrides: recipe fields by dotted path, from the form or an event.
    """

    version: str
    source_version: str | None = None
    overrides: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        source = f", source version {self.source_version}" if self.source_version else ""
        return f"version {self.version}{source}"

    @property
    def event_fields(self) -> dict[str, Any]:
        """Fields of an asset event that pass the settings on to the runs that it starts."""
        return {"version": self.version, "source_version": self.source_version, "overrides": self.overrides}

    def recipe(self, recipe: Recipe) -> Recipe:
        """Returns the recipe with the overrides of this run; raises RecipeError for an invalid or forbidden override.

        Place, credentials and access to private hosts are read from the recipe's file only: the right to trigger a DAG
        must not include the right to choose another store, image or server, or to send credentials somewhere.
        """
        forbidden = sorted(path for path in self.overrides if not OVERRIDABLE.fullmatch(path))
        if forbidden:
            raise RecipeError(
                f'"{forbidden[0]}" cannot be overridden', "change the recipe's file, or create another recipe"
            )
        return recipe.override(self.overrides) if self.overrides else recipe


def run_of(recipe: Recipe, context: Mapping[str, Any]) -> RunSettings:
    """Returns the settings of the DAG run of an Airflow task context.

    Raises:
        RecipeError: the conf has an unknown key, or it or the event that started the run has no usable version or
            overrides.
    """
    params = {name: value for name, value in _known(context.get("params", {})).items() if value is not None}
    event = newest_event(context.get("triggering_asset_events") or {})
    fields = {name: value for name, value in params.items() if name not in FORM_KEYS}
    form_overrides = {**_overrides_of(params, "the conf of the run"), **fields}
    version = _valid_version(
        params.get("version") or event.get("version") or _calendar(recipe, context["dag_run"]) or recipe.version
    )
    typed = params.get("source_version")
    source_version = _valid_version(typed) if typed else _source_of(event, version)
    return RunSettings(version, source_version, {**_overrides_of(event, "the asset event"), **form_overrides})


def month_of(recipe: Recipe, context: Mapping[str, Any]) -> RunSettings:
    """Returns the settings of a run of the cycle, whose version is that of the form, or the month of the run.

    The month is that of the time at which the run was due, or, of a run that a person started, of its date.

    Raises:
        RecipeError: as `run_of`.
    """
    run, dag_run, cycle = run_of(recipe, context), context["dag_run"], recipe.cycle or Cycle()
    # A run triggered through the API may have no logical date.
    typed = None if _is_scheduled(dag_run) else context.get("logical_date")
    version = context["params"].get("version") or version_of(cycle.schedule, typed or dag_run.run_after, cycle.timezone)
    return RunSettings(version, run.source_version, run.overrides)


def request_of(recipe: Recipe, context: Mapping[str, Any]) -> RunSettings:
    """Returns the settings of a run of the takedown DAG: version and date of the request are those of the run.

    Raises:
        RecipeError: as `run_of`.
    """
    run = run_of(recipe, context)
    # A run triggered through the API may have no logical date.
    moment = context.get("logical_date") or context["dag_run"].run_after
    version = context["params"].get("version") or moment.strftime(VERSION_FORMAT)
    return RunSettings(version, None, {**run.overrides, **dated(moment)})


def _known(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the parameters of a run, which include its whole conf; raises RecipeError for an unknown key.

    Airflow accepts any key of a run that is triggered with a conf, and the run would use the default instead.
    """
    for name in params:
        if name not in FORM_KEYS and "." not in name:
            cause = f'the conf of the run has the unknown key "{name}" (recipe fields are written as section.field)'
            raise RecipeError(cause, nearest(name, FORM_KEYS))
    return params


def newest_event(events: Mapping[Any, Iterable[Any]]) -> dict[str, Any]:
    """Returns the `extra` of the newest event that started the run, or {}; of a watcher's event, what it has sent.

    A DAG that was paused gets one run for many events. Only the newest is used: each event names a complete artifact.
    """
    all_events = [event for asset_events in events.values() for event in asset_events]
    extra = max(all_events, key=lambda event: event.timestamp).extra or {} if all_events else {}
    return dict(extra["payload"] if extra.get("from_trigger") else extra)


def parent_key(context: Mapping[str, Any]) -> str:
    """Returns the key of the MLflow parent run of one DAG run."""
    return f"{context['ti'].dag_id}/{context['run_id']}"


@contextmanager
def fails_at_once() -> Iterator[None]:
    """Converts a permanent SluiceError into a failure without retries, with a one-line message; others pass through."""
    try:
        yield
    except SluiceError as error:
        if not error.permanent:
            raise
        raise AirflowFailException(str(error)) from None


def _calendar(recipe: Recipe, run: Any) -> str:
    return version_at(recipe.schedule or "", run.run_after, recipe.timezone) if _is_scheduled(run) else ""


def _is_scheduled(run: Any) -> bool:
    """Returns whether a run was due at its time, instead of being started by a person, an event or another DAG."""
    kind = getattr(run, "run_type", "")
    return getattr(kind, "value", kind) in _CALENDAR_RUNS


def _source_of(event: Mapping[str, Any], version: str) -> str | None:
    """Returns the event's version, or its source version where this run creates the event's version itself."""
    source = event.get("version")
    if source == version:
        source = event.get("source_version")
    return _valid_version(source) if source else None


def _overrides_of(settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    overrides = settings.get("overrides") or {}
    if not isinstance(overrides, dict):
        raise RecipeError(f"{where} has overrides = {overrides!r}", 'write {"section.field": value}')
    return overrides


def _valid_version(version: Any) -> str:
    # The form's schema validates its input, but a conf and an event may come from any client of the REST API.
    if not isinstance(version, str) or not re.fullmatch(VERSION, version):
        raise RecipeError(f"{version!r} is not a version", "use letters, digits, '.', '_' and '-', at most 100")
    return version
