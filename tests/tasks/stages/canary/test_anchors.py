"""Anchors: mixtures that are arms of every cycle, beside the sampled ones."""

from tasks.stages.canary import CanaryConfig
from tasks.stages.canary.arms import choose

PLENTY = {"web": 600_000, "code": 300_000, "books": 100_000}


def test_an_arm_without_a_source_reads_nothing_of_it_and_keeps_the_ratios_of_the_others() -> None:
    config = CanaryConfig(current={"web": 0.6, "code": 0.2, "books": 0.2}, arms=0, anchors=("drop_one",))
    weights = {arm["kind"]: arm["weights"] for arm in choose(config, PLENTY)[2:]}
    assert weights == {
        "without books": {"books": 0.0, "code": 0.25, "web": 0.75},
        "without code": {"books": 0.25, "code": 0.0, "web": 0.75},
        "without web": {"books": 0.5, "code": 0.5, "web": 0.0},
    }
