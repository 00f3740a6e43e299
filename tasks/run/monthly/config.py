"""Settings of `[cycle]`, and the version of a run. Imported where DAG files are parsed, so it imports no heavy library.

A recipe with this section has the DAG `<recipe>.cycle`, which starts its other DAGs one after the other, all at one
version. These have no schedule of their own then.
"""

from datetime import datetime

from pydantic import Field

from tasks.core.config import Config

MONTH = "%Y-%m"
"""Version of a run that is due once a month, from its date: 2026-12."""

MOMENT = "%Y.%m.%d-%H%M"
"""Version of a run that is due more often: 2026.11.21-0300."""

GATED = "tokens"
"""The DAG after which a month may end for want of new tokens."""

_MONTHLY = ("@monthly", "@quarterly", "@yearly", "@annually")


class Cycle(Config):
    """When a month runs, when it is worth a training, and what its report calls a change. In no fingerprint."""

    schedule: str = "@monthly"
    """Cron expression of the DAG `<recipe>.cycle`; "": only on request."""

    min_new_tokens: int = Field(default=0, ge=0)
    """New training tokens since the newest model, below which a month ends after its tokens; they count in the next."""

    months: int = Field(default=3, ge=1)
    """Earlier months that a month is compared with."""

    drift: float = Field(default=0.25, gt=0)
    """Population stability index above which a distribution has changed. 0.25 is the usual threshold."""


def version_of(schedule: str, moment: datetime) -> str:
    """Returns the version of the run of a schedule at a moment: its month, or the moment if it is due more often.

    >>> version_of("@monthly", datetime(2026, 12, 1)), version_of("0 3 * * 0", datetime(2026, 12, 6, 3))
    ('2026-12', '2026.12.06-0300')
    """
    return moment.strftime(MONTH if is_monthly(schedule) else MOMENT)


def is_monthly(schedule: str) -> bool:
    """Returns whether a cron expression is due at most once a month; "" never is.

    >>> is_monthly("30 4 2 * *"), is_monthly("0 0 1,15 * *"), is_monthly("0 0 1 * 1")
    (True, False, False)
    """
    if schedule in ("", *_MONTHLY):
        return True
    fields = schedule.split()
    return len(fields) == 5 and all(field.isdecimal() for field in fields[:3]) and fields[4] == "*"
