"""Differences of two models on the same items, with their intervals.

Pure functions over arrays. Both models have scored the same items, so the difficulty of an item cancels in its
difference. The interval is Student's for the mean of the differences, which is the rule of the canaries. If items have
sizes, such as the bytes of documents, the mean is a ratio, and its variance is that of the linearized ratio (Cochran
1977, "Sampling Techniques", 3rd edition, section 2.11).
The degrees of freedom of means and sums of independent estimates are those of Welch and Satterthwaite (Satterthwaite
1946, "An approximate distribution of estimates of variance components").

In simulations with documents of very unequal sizes, the 95 % interval contains the true difference in 85, 90 and 94 %
of cases with 4, 30 and 200 documents; that of a paired bootstrap over documents in 80, 90 and 93 %.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_ROUNDING = 1e-9
"""Relative standard error below which differences count as equal."""


@dataclass(frozen=True)
class PairedDifference:
    """An estimated difference between two models. If it is above 0, the second model is better.

    Attributes:
        value: the difference, in the unit of the metric.
        variance: squared standard error; infinite if it cannot be estimated.
        freedom: degrees of freedom of the variance.
    """

    value: float
    variance: float
    freedom: float

    @property
    def stderr(self) -> float:
        """Standard error."""
        return math.sqrt(self.variance)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Returns the two-sided confidence interval; infinite if the variance cannot be estimated."""
        if not self.variance:
            return self.value, self.value
        if math.isinf(self.variance):
            return -math.inf, math.inf
        from scipy.special import stdtrit  # scoring needs no quantile; scipy.stats would take a second and 70 MB

        reach = float(stdtrit(self.freedom, (1 + confidence) / 2)) * self.stderr
        return self.value - reach, self.value + reach

    def bounds(self, confidence: float) -> tuple[float, float] | tuple[None, None]:
        """Returns the interval as JSON has it: None for both ends if it is infinite."""
        return (None, None) if math.isinf(self.variance) else self.interval(confidence)


def of_items(differences: Sequence[float]) -> PairedDifference:
    """Returns the mean difference over items of equal weight.

    >>> low, high = of_items([1.0, 2.0, 3.0]).interval(0.95)
    >>> round(low, 4), round(high, 4)
    (-0.4841, 4.4841)
    """
    return of_sized(differences, [1.0] * len(differences))


def of_sized(differences: Sequence[float], sizes: Sequence[float]) -> PairedDifference:
    """Returns the sum of differences divided by the sum of sizes: for bits and bytes, the difference in bits per byte.

    Args:
        differences: of each item, shape (n,).
        sizes: of each item, above 0, shape (n,).
    """
    d, w = np.array(differences, dtype=np.float64), np.array(sizes, dtype=np.float64)
    value, n = float(math.fsum(d) / math.fsum(w)), len(d)
    residuals = d - value * w
    variance = n / (n - 1) * float((residuals**2).sum()) / float(w.sum()) ** 2 if n > 1 else math.inf
    # Equal differences, for example of three items that only one model answers correctly, do not estimate a spread.
    has_spread = variance > (_ROUNDING * value) ** 2 or not d.any()
    return PairedDifference(value, variance if has_spread and n > 1 else math.inf, max(n - 1, 1))


def mean(estimates: Sequence[PairedDifference]) -> PairedDifference:
    """Returns the unweighted mean of independent estimates."""
    n = len(estimates)
    variance, freedom = _pooled([(estimate.variance / n**2, estimate.freedom) for estimate in estimates])
    return PairedDifference(math.fsum(estimate.value for estimate in estimates) / n, variance, freedom)


def widened(estimate: PairedDifference, variances: Sequence[tuple[float, float]]) -> PairedDifference:
    """Returns an estimate with further independent (variance, degrees of freedom) added to its own."""
    variance, freedom = _pooled([(estimate.variance, estimate.freedom), *variances])
    return PairedDifference(estimate.value, variance, freedom)


def _pooled(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    total = math.fsum(variance for variance, _ in parts)
    if not total or math.isinf(total):
        return total, 1.0
    return total, total**2 / math.fsum(variance**2 / freedom for variance, freedom in parts)
