"""Intervals of differences: the quantile of Student's distribution."""

import math

import pytest
from scipy.stats import t

from tasks.trainer.evaluation.paired import student_quantile


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 3.7, 7, 29.5, 1_000, 1e5])
def test_the_quantile_is_that_of_scipy(freedom: float) -> None:
    probabilities = [0.6, 0.75, 0.9, 0.975, 0.995, 0.99999]
    expected = [float(t.ppf(one, freedom)) for one in probabilities]
    assert [student_quantile(one, freedom) for one in probabilities] == pytest.approx(expected, rel=1e-9)


def test_the_median_is_zero_and_one_degree_of_freedom_has_the_tails_of_cauchy() -> None:
    assert student_quantile(0.5, 3) == pytest.approx(0, abs=1e-12)
    assert student_quantile(0.9995, 1) == pytest.approx(math.tan(math.pi * 0.4995), rel=1e-9)
