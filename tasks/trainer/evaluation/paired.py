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

_PRECISION, _MOST_STEPS = 1e-14, 100
"""Of the angle of a quantile: relative size of the last step, and the largest number of steps."""

_FRACTIONS = 100
"""Terms of the continued fraction, of which it needs a number of the order of the root of its larger parameter."""


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
        reach = student_quantile((1 + confidence) / 2, self.freedom) * self.stderr
        return self.value - reach, self.value + reach


def student_quantile(probability: float, freedom: float) -> float:
    """Returns the quantile of Student's distribution.

    The angle arctan(t / sqrt(freedom)) is found by Newton's method, from 0 on: the distribution is concave in it, so no
    step is too long. scipy has the quantile, too; its import takes a second and 55 MB, also of Airflow's API server.

    Args:
        probability: at least 0.5 and below 1.
        freedom: degrees of freedom, at least 1.

    >>> round(student_quantile(0.975, 7), 4), round(student_quantile(0.975, 1e6), 4)
    (2.3646, 1.96)
    """
    at_zero = math.exp(-_log_beta(freedom / 2, 0.5))
    angle = 0.0
    for _ in range(_MOST_STEPS):
        above = _beta_share(freedom / 2, 0.5, math.cos(angle) ** 2) / 2
        step = (above - (1 - probability)) / (at_zero * math.cos(angle) ** (freedom - 1))
        angle += step
        if abs(step) <= _PRECISION * angle:
            break
    return math.sqrt(freedom) * math.tan(angle)


def _beta_share(a: float, b: float, x: float) -> float:
    """Returns the regularized incomplete beta function by its continued fraction (DLMF 8.17.22), from its end on."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_share(b, a, 1 - x)
    if x <= 0:
        return 0.0
    fraction = 1.0
    for m in range(round(_FRACTIONS + 2 * math.sqrt(max(a, b))), -1, -1):
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        fraction = 1 + odd / fraction
        if m:
            fraction = 1 + m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)) / fraction
    return math.exp(a * math.log(x) + b * math.log1p(-x) - _log_beta(a, b)) / (a * fraction)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


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
