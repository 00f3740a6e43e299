"""Stage prioritize: the decided mixture and the kept documents -> proposed priorities of the crawled hosts.

A proposal: no crawl reads it unless a person names it in the recipe (`crawl.priorities`).
"""

from pydantic import Field

from tasks.core.config import Config
from tasks.core.stage_spec import Input, StageSpec


class PrioritiesConfig(Config):
    """Settings of the proposal."""

    enabled: bool = False
    """Proposes priorities of hosts after each decision about the mixture."""
    largest: float = Field(default=4.0, gt=1.0)
    """Largest factor of a host; the smallest is its reciprocal. A front queue of the crawl is a factor of two."""
    prior: int = Field(default=10, ge=0)
    """Documents of an average host that are added to those of each, so that a few documents move a host little."""

    @property
    def active(self) -> bool:
        """Whether the stage runs."""
        return self.enabled


STAGES = (
    StageSpec(
        "prioritize",
        dag="canary",
        output="priorities",
        config=PrioritiesConfig,
        section="priorities",
        inputs={
            "documents": Input("documents", files=("kept/",)),
            "plan": Input("plan", files=("plan/summary.json",)),
            "mixture": Input("mixture", files=("mixture.json",)),
        },
    ),
)
