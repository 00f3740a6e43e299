"""Settings of `[cycle]`. Imported where DAG files are parsed, so it imports no heavy library.

A recipe with this section has the DAG `<recipe>.cycle`, which starts its other DAGs one after the other, all at one
version. These have no schedule of their own then.
"""

from pydantic import Field

from tasks.core.config import Config
from tasks.run.schedule import UTC, ScheduleOrRequest, Timezone

GATED = "tokens"
"""The DAG after which a month may end for want of new tokens."""


class Cycle(Config):
    """When a month runs, when it is worth a training, and what its report calls a change. In no fingerprint."""

    schedule: ScheduleOrRequest = "@monthly"
    """Cron expression of the DAG `<recipe>.cycle`; "": only on request."""

    timezone: Timezone = UTC
    """Time zone of the schedule, and of the months after which versions are named."""

    min_new_tokens: int = Field(default=0, ge=0)
    """New training tokens since the newest model, below which a month ends after its tokens; they count in the next."""

    months: int = Field(default=3, ge=1)
    """Earlier months that a month is compared with."""

    drift: float = Field(default=0.25, gt=0)
    """Population stability index above which a distribution has changed. 0.25 is the usual threshold."""
