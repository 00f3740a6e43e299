"""Drift: the distributions of a month's documents against those of the months before, and what deserves an alert.

The measure is the population stability index, PSI = sum over categories of (p - q) ln(p / q), with the shares p of
the month and q of the earlier months. Without any change it is distributed as (1/n + 1/m) times chi-square with one
degree of freedom less than categories (Yurdakul 2018, "Statistical Properties of Population Stability Index"). An
alert needs both a PSI above the threshold of the recipe and above the 99.9 % quantile of that, so that a month with
few documents does not ring for nothing.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import chi2

from tasks.run.monthly.figures import OTHER, Counts

CATEGORIES = 20
"""Categories of a distribution that are compared: those with the largest share in either; the others together."""

NEW_SHARE = 0.01
"""Share of the kept documents from which a language that no earlier month had is an alert."""

SURE = 0.999
"""Quantile of what chance gives, which an alert must exceed."""

_PRIOR = 0.5
"""Documents added to each category, so that an empty one has a finite logarithm (Jeffreys)."""


@dataclass(frozen=True)
class Drift:
    """One distribution of a month beside the same of earlier months.

    Attributes:
        name: the distribution, such as "domains".
        psi: the population stability index.
        needed: value that it must exceed for an alert.
        moved: (category, earlier share, share) of the categories that contribute most, at most three.
    """

    name: str
    psi: float
    needed: float
    moved: list[tuple[str, float, float]]

    @property
    def alert(self) -> bool:
        """Whether the distribution has changed."""
        return self.psi > self.needed

    def text(self) -> str:
        """Returns the change in a line."""
        moved = ", ".join(f"{name} {before:.0%} to {now:.0%}" for name, before, now in self.moved)
        return f"{self.name} changed: PSI {self.psi:.2f} (above {self.needed:.2f}); {moved}"


def compare(month: Mapping[str, Counts], before: Sequence[Mapping[str, Counts]], threshold: float) -> list[Drift]:
    """Compares every distribution of a month with the sum of those before.

    Args:
        month: distributions of the month, by name (`figures.profile_of`).
        before: those of earlier months; [] for none, which gives no comparison.
        threshold: PSI above which a distribution has changed.
    """
    found = []
    for name, counts in month.items():
        earlier: Counter[str] = Counter()
        for profile in before:
            earlier.update(profile.get(name, {}))
        if counts and earlier:
            found.append(_drift(name, counts, dict(earlier), threshold))
    return found


def _drift(name: str, counts: Counts, earlier: Counts, threshold: float) -> Drift:
    now, before = _top(counts, earlier)
    categories = sorted({*now, *before})
    shares, references = _shares(now, categories), _shares(before, categories)
    parts = {
        category: (share - reference) * math.log(share / reference)
        for category, share, reference in zip(categories, shares, references, strict=True)
    }
    n, m = sum(now.values()), sum(before.values())
    noise = (1 / n + 1 / m) * float(chi2.ppf(SURE, len(categories) - 1)) if len(categories) > 1 else 0.0
    most = sorted(categories, key=lambda category: (-parts[category], category))[:3]
    moved = [(category, before.get(category, 0) / m, now.get(category, 0) / n) for category in most]
    return Drift(name, sum(parts.values()), max(threshold, noise), moved)


def _top(counts: Counts, earlier: Counts) -> tuple[Counts, Counts]:
    """Returns both distributions over the same, largest categories."""
    n, m = sum(counts.values()), sum(earlier.values())
    size = {name: counts.get(name, 0) / n + earlier.get(name, 0) / m for name in {*counts, *earlier} - {OTHER}}
    kept = {*sorted(size, key=lambda name: (-size[name], name))[:CATEGORIES]}
    found = []
    for one in (counts, earlier):
        rest = sum(count for name, count in one.items() if name not in kept)
        found.append(
            {**{name: count for name, count in one.items() if name in kept}, **({OTHER: rest} if rest else {})}
        )
    return found[0], found[1]


def _shares(counts: Counts, categories: Sequence[str]) -> list[float]:
    whole = sum(counts.values()) + _PRIOR * len(categories)
    return [(counts.get(category, 0) + _PRIOR) / whole for category in categories]


def new_languages(month: Mapping[str, Counts], before: Sequence[Mapping[str, Counts]]) -> list[tuple[str, float]]:
    """Returns the languages that no earlier month had, with their shares of the kept documents, if large enough."""
    known = {language for profile in before for language in profile.get("languages", {})}
    counts = month.get("languages", {})
    whole = sum(counts.values())
    new = [(name, count / whole) for name, count in counts.items() if name not in known]
    return sorted((name, share) for name, share in new if before and share >= NEW_SHARE)


def vanished(crawled: Mapping[str, Sequence[int]], before: Sequence[Mapping[str, Sequence[int]]]) -> list[str]:
    """Returns the domains that had pages when they were last crawled, and of which no request of this month gave one.

    Args:
        crawled: pages and failed requests of each domain this month (`figures.crawled_domains`).
        before: the same of earlier months, oldest first.
    """
    newest: dict[str, int] = {}
    for cycle in before:
        newest.update({domain: pages for domain, (pages, _) in cycle.items()})
    return sorted(domain for domain, (pages, failed) in crawled.items() if not pages and failed and newest.get(domain))
