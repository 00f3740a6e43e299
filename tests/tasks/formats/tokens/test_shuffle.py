"""The keyed permutation shuffles like a drawn one: three statistics over many keys, beside numpy's permutation.

Each statistic is standard normal, or chi-square, under a permutation drawn at random; the sum of squares over the keys
is compared with the quantile that a true permutation exceeds once in 10,000 sets of keys. The keys are fixed, so that
the result is the same in every run.
"""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.formats.tokens.order import Order, Permutation

N, KEYS, BINS, FALSE_POSITIVES = 3001, 60, 50, 1e-4
Items = NDArray[np.int64]


def serial_rank_correlation(items: Items) -> float:
    """Of items read one after the other: sqrt(n) * r is standard normal (Wald and Wolfowitz 1943)."""
    # Of a permutation the items are their ranks.
    return float(np.corrcoef(items[:-1], items[1:])[0, 1] * np.sqrt(len(items)))


def ascents(items: Items) -> float:
    """Number of ascents (runs test): mean (n - 1) / 2, variance (n + 1) / 12 (Eulerian numbers)."""
    n = len(items)
    return float((np.count_nonzero(np.diff(items) > 0) - (n - 1) / 2) / np.sqrt((n + 1) / 12))


def displacement(items: Items) -> float:
    """How far items are from their own place, modulo n: chi-square of equal bins, as a standard normal variable."""
    n = len(items)
    counts = np.bincount((items - np.arange(n)) % n * BINS // n, minlength=BINS)
    sizes = np.bincount(np.arange(n) * BINS // n, minlength=BINS)
    found = float(((counts - sizes) ** 2 / sizes).sum())
    return (found - (BINS - 1)) / np.sqrt(2 * (BINS - 1))


def keyed(key: int) -> Items:
    return Permutation(N, f"{key}/web/0").apply(np.arange(N))


def as_read(key: int) -> Items:
    order = Order({"web": N}, {"web": 1.0}, N, key)
    return np.array([sequence for _, sequence, _ in order.batch(0)])


def between_epochs(key: int) -> Items:
    """The second epoch in terms of the first."""
    first, second = (Permutation(N, f"{key}/web/{epoch}") for epoch in (0, 1))
    return second.invert(first.apply(np.arange(N)))


def drawn(key: int) -> Items:
    return np.random.default_rng(key).permutation(N)


def multiplied(key: int) -> Items:
    return np.arange(N) * (1000 + key) % N


def shifted(key: int) -> Items:
    return (np.arange(N) + key) % N


STATISTICS = (serial_rank_correlation, ascents, displacement)


def deviates(permutation: Callable[[int], Items], statistic: Callable[[Items], float]) -> bool:
    from scipy.stats import chi2  # here: half a second that other tests need not pay

    total = sum(statistic(permutation(key)) ** 2 for key in range(KEYS))
    return bool(total > chi2.isf(FALSE_POSITIVES, KEYS))


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("permutation", [keyed, as_read, between_epochs, drawn])
def test_nothing_tells_the_order_from_a_drawn_permutation(
    permutation: Callable[[int], Items], statistic: Callable[[Items], float]
) -> None:
    assert not deviates(permutation, statistic)


@pytest.mark.parametrize("permutation", [multiplied, shifted])
def test_an_order_that_only_looks_shuffled_is_told_apart(permutation: Callable[[int], Items]) -> None:
    assert any(deviates(permutation, statistic) for statistic in STATISTICS)
