"""The fit of the power form: the minimum of squared errors and penalties."""

import numpy as np
import pytest
from scipy.optimize import minimize

from tasks.stages.canary.statistics.forms import Floats, Measured, Mixtures, Power, fit_power
from tests.tasks.stages.canary.test_response import noisy, power_law

PENALTY = 3e-3
EXPONENT, WORTH = np.log(0.1), np.log(0.05)
"""What the penalties draw the logarithms of exponent and worth to."""


@pytest.mark.parametrize("source", [0, 1, 2])
def test_no_other_parameters_have_a_smaller_sum_of_squares(source: int) -> None:
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(3), 12)
    mixtures = Mixtures(weights, np.zeros_like(weights))
    bpb = noisy(power_law, weights, rng, 0.01).T[[source]]
    found = fit_power(Measured(mixtures, bpb, np.ones_like(bpb), np.eye(3), (source,)))
    others = [2 + other for other in range(3) if other != source]
    free = [0, 1, *others]

    def cost(values: Floats) -> float:
        """Squared errors of log(bpb), and penalties of all but the level."""
        parameters = found.parameters.copy()
        parameters[0, free] = values
        errors = np.log(bpb) - Power(np.eye(3), False, parameters, found.gain).log_bpb(mixtures, parameters)
        away = [parameters[0, 1] - EXPONENT, *(parameters[0, others] - WORTH)]
        return float((errors**2).sum() + PENALTY**2 * np.square(away).sum())

    values = found.parameters[0, free]
    best = minimize(cost, values, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-14, "maxiter": 8000})
    assert cost(values) == pytest.approx(best.fun, rel=1e-6)
