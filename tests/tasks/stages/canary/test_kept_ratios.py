"""Sources of the decision before keep their ratios if one is added to at least two of them."""

import pytest

from tasks.stages.canary import CanaryConfig
from tasks.stages.canary.arms import kept_ratios

MANY = {"web": 600_000, "code": 300_000, "books": 100_000}


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ({"web": 0.6, "code": 0.4}, {"web": 0.6, "code": 0.4}),
        ({"web": 0.5, "code": 0.25, "gone": 0.25}, {"web": 0.66667, "code": 0.33333}),
        ({"web": 1.0}, {}),
        ({"web": 1.0, "code": 0.0}, {}),
        ({"web": 0.5, "code": 0.3, "books": 0.2}, {}),
    ],
    ids=["two and one more", "one of three is gone", "one", "one, and one that is not read", "none is added"],
)
def test_ratios_are_kept_if_a_source_is_added_to_at_least_two(before: dict, kept: dict) -> None:
    assert kept_ratios(CanaryConfig(), MANY, before) == pytest.approx(kept)


def test_nothing_is_kept_in_a_first_cycle_or_without_reuse_or_sampled_arms() -> None:
    before = {"web": 0.6, "code": 0.4}
    assert kept_ratios(CanaryConfig(), MANY, None) == {}
    assert kept_ratios(CanaryConfig(reuse=False), MANY, before) == {}
    assert kept_ratios(CanaryConfig(arms=0), MANY, before) == {}
