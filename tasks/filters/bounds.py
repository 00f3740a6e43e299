"""Limits on scores whose names only the recipe knows: the base of the filters over models.

In a file of its own, because the catalogue takes the filter that a file holds.
"""

from typing import ClassVar

from tasks.filters.base import Filter, Measured, Reasons


class Bounds(Filter):
    """Limits on several scores; the base of filters over models, whose names only the recipe knows.

    A score that is not a number meets no limit, and the document goes: a gate that cannot measure does not stand open.
    Such scores come from a broken model, since these models score every text. (What is gold is held to the same: it
    must reach its marks.)
    """

    at_least: dict[str, float] = {}
    """Per model the least score that a document must have, as `quality = 0.02`."""
    at_most: dict[str, float] = {}
    """Per model the greatest score that a document may have, as `toxicity = 0.9`."""

    name: ClassVar[str]

    def reasons(self, measured: Measured) -> Reasons:
        """See `Filter.reasons`; that each model was asked is checked before (`ConsolidateConfig.unmeasured`)."""
        for model, limit in sorted(self.at_least.items()):
            yield f"{self.name}_{model}_low", ~(measured[model] >= limit)
        for model, limit in sorted(self.at_most.items()):
            yield f"{self.name}_{model}_high", ~(measured[model] <= limit)
