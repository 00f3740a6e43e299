"""Schedules: cron expressions and presets as Airflow reads them, their time zones, and the versions of their runs.

A recipe has up to three: its own, that of `[cycle]` and that of `[place.retention]`. What Airflow would refuse when it
makes the DAG is refused when the recipe is read, because an error in a DAG file stops the DAGs of all recipes. Imported
where DAG files are parsed, so it imports no heavy library; croniter is what Airflow reads cron expressions with.
"""

from datetime import datetime
from difflib import get_close_matches
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

from croniter import CroniterBadDateError, CroniterError, croniter
from pydantic import AfterValidator, Field

from tasks.core.config import Problems, nearest

UTC = "UTC"

MONTH = "%Y-%m"
"""Version of a run that is due once a month, from its date: 2026-12."""

MOMENT = "%Y.%m.%d-%H%M"
"""Version of a run that is due more often: 2026.11.21-0300."""

AGAIN = "b"
"""End of the version of a run that Airflow repeats in the hour that a clock repeats: 2026.10.25-0230b."""

_MONTHLY = ("@monthly", "@quarterly", "@yearly", "@annually")
PRESETS = ("@once", "@continuous", "@hourly", "@daily", "@midnight", "@weekly", *_MONTHLY)
"""What Airflow accepts in place of a cron expression."""

_FIELDS = ("minute", "hour", "day of the month", "month", "day of the week")
_WRITE = 'write minute, hour, day of the month, month and day of the week, such as "0 3 * * *", or a preset like @daily'
_FROM = datetime(2024, 1, 1)
"""Fixed, so that a recipe is valid on every day or on none."""


def _valid_schedule(expression: str) -> str:
    if expression in PRESETS:
        return expression
    fields = expression.split()
    if len(fields) == 1:
        raise Problems([f'"{expression}" is not a schedule: {nearest(expression, PRESETS)}'])
    if len(fields) != len(_FIELDS):  # Airflow also reads seconds and years, but versions have minutes
        raise Problems([f'the cron expression "{expression}" has {len(fields)} fields instead of five: {_WRITE}'])
    wrong = [f'{name} "{field}"' for name, field in zip(_FIELDS, fields, strict=True) if not _readable(name, field)]
    try:
        if not wrong:
            croniter(expression, _FROM).get_next()
    except CroniterBadDateError:
        raise Problems([f'the cron expression "{expression}" is never due: {_WRITE}']) from None
    except CroniterError:
        wrong = ["combination of fields"]
    if wrong:
        raise Problems([f'the cron expression "{expression}" has an unusable {" and ".join(wrong)}: {_WRITE}'])
    return expression


def _readable(name: str, field: str) -> bool:
    """Returns whether a field of a cron expression can be read beside fields that are all "*".

    "R", a random time, is not read: every process of Airflow would draw another one.
    """
    return not field.lower().startswith("r") and croniter.is_valid(
        " ".join(field if one == name else "*" for one in _FIELDS)
    )


def _valid_or_empty(expression: str) -> str:
    return _valid_schedule(expression) if expression else ""


def _valid_timezone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, outside the database, or a folder of it
        zones = {zone.lower(): zone for zone in available_timezones()}
        close = get_close_matches(name.lower(), zones, n=1)
        any_one = 'write a name of the IANA database, such as "Europe/Berlin"'
        remedy = f'did you mean "{zones[close[0]]}"?' if close else any_one
        raise Problems([f'there is no time zone "{name}": {remedy}']) from None
    return name


Schedule = Annotated[str, AfterValidator(_valid_schedule)]
"""A cron expression of five fields, or one of `PRESETS`."""

ScheduleOrRequest = Annotated[str, AfterValidator(_valid_or_empty)]
"""A schedule; "": only on request."""

Timezone = Annotated[str, AfterValidator(_valid_timezone), Field(exclude_if=lambda zone: zone == UTC)]
"""Name of a time zone in the IANA database. Recipes had none before, so the default is not in the text of a recipe."""


def version_of(schedule: str, moment: datetime, timezone: str = UTC) -> str:
    """Returns the version of the run of a schedule at a moment: its month, or the moment if it is due more often.

    Args:
        schedule: cron expression, preset, or "".
        moment: the time at which the run is due, with a time zone.
        timezone: zone of the schedule, whose clock the version shows.

    >>> from datetime import UTC
    >>> version_of("@monthly", datetime(2026, 12, 1, tzinfo=UTC))
    '2026-12'
    >>> version_of("0 3 * * 0", datetime(2026, 12, 6, 2, tzinfo=UTC), "Europe/Berlin")
    '2026.12.06-0300'
    """
    if is_monthly(schedule):
        return moment.astimezone(ZoneInfo(timezone)).strftime(MONTH)
    return version_at(schedule, moment, timezone)


def version_at(schedule: str, moment: datetime, timezone: str) -> str:
    """Returns the moment as the version of a run; see `version_of`.

    In the hour that a clock repeats, Airflow repeats the runs of schedules that are due in every hour, and no others.

    >>> from datetime import UTC
    >>> twice = [datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1)]
    >>> [version_at("30 * * * *", moment, "Europe/Berlin") for moment in twice]
    ['2026.10.25-0230', '2026.10.25-0230b']
    >>> version_at("30 2 * * *", twice[1], "Europe/Berlin")
    '2026.10.25-0230'
    """
    local = moment.astimezone(ZoneInfo(timezone))
    return local.strftime(MOMENT) + (AGAIN if local.fold and _is_hourly(schedule) else "")


def _is_hourly(schedule: str) -> bool:
    """Returns whether a schedule is due in every hour of its days, as Airflow decides it."""
    if schedule in ("", "@once", "@continuous"):
        return schedule == "@continuous"
    return bool(croniter(schedule).expanded[1] == ["*"])


def is_monthly(schedule: str) -> bool:
    """Returns whether a cron expression is due at most once a month; "" never is.

    >>> is_monthly("30 4 2 * *"), is_monthly("0 0 1,15 * *"), is_monthly("0 0 1 * 1")
    (True, False, False)
    """
    if schedule in ("", *_MONTHLY):
        return True
    fields = schedule.split()
    return len(fields) == 5 and all(field.isdecimal() for field in fields[:3]) and fields[4] == "*"
