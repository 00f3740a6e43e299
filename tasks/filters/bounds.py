"""Base class of filters over model scores, whose names are given by the recipe.

In a file of its own, because the catalogue expects at most one filter per file.
"""

from typing import ClassVar

from tasks.filters.base import Filter, Measured, Reasons


class Bounds(Filter):
    """Limits on several model scores, whose names are given by the recipe.

    A document whose score is NaN is dropped: no limit counts as met. Such scores come from a broken model, since these
    models score every text. The same rule applies to the marks of the gold tier.
    """

    at_least: dict[str, float] = {}
    """Per model the least score that a document must have, as `quality = 0.02`."""
    at_most: dict[str, float] = {}
    """Per model the greatest score that a document may have, as `toxicity = 0.9`."""

    name: ClassVar[str]

    def reasons(self, measured: Measured) -> Reasons:
        """See `Filter.reasons`; that each score exists is checked before (`ConsolidateConfig.unmeasured`)."""
        for model, limit in sorted(self.at_least.items()):
            yield f"{self.name}_{model}_low", ~(measured[model] >= limit)
        for model, limit in sorted(self.at_most.items()):
            yield f"{self.name}_{model}_high", ~(measured[model] <= limit)
