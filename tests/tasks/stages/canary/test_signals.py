"""Signal and noise of a source: the limits of their ratio."""

import numpy as np
import pytest

from tasks.stages.canary.statistics.comparison import signals


@pytest.mark.parametrize(("arms", "seeds"), [(4, 2), (10, 3)])
def test_nine_of_ten_upper_limits_are_above_the_real_ratio(arms: int, seeds: int) -> None:
    rng, sources, ratio = np.random.default_rng(0), 2_000, 0.5
    of_arms, of_seeds = rng.normal(0, ratio**0.5, (arms, 1, sources)), rng.normal(0, 3, (1, seeds, sources))
    bpb = 2 + of_arms + of_seeds + rng.normal(0, 1, (arms, seeds, sources))
    again = 2 + of_arms[0] + of_seeds[0] + rng.normal(0, 1, (seeds, sources))
    found = signals(bpb, again, 1.0)
    above = np.mean([one.upper is not None and one.upper >= ratio for one in found])
    assert 0.88 <= above <= 0.92  # 0.9 +- 3 standard errors


def test_without_noise_a_source_votes_if_its_arms_differ() -> None:
    bpb = np.ones((3, 2, 2))
    bpb[1, :, 0] += 0.125
    differs, equal = signals(bpb, bpb[0], 1.0)
    assert (differs.votes, differs.ratio, differs.strength) == (True, None, np.inf)
    assert (equal.votes, equal.ratio, equal.strength) == (False, None, 0)
