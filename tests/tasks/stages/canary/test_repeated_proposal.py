"""A proposal that a round before has trained is not trained again."""

from benchmarks.canaries import World
from tasks.stages.canary.arms import following
from tests.tasks.stages.canary.test_rounds import CONFIG, cost_of, two_rounds


def test_a_proposal_within_a_half_percent_of_an_arm_gives_its_place_to_a_sampled_mixture() -> None:
    config, world = CONFIG.model_copy(update={"sure": 1.0, "forms": ("power",)}), World.planted(3, 1)
    second = two_rounds(config, world)
    added = [arm for arm in second["arms"] if arm["arm"] in second["rounds"][1]["arms"]]
    third = following(config, second, [world.run(arm, seed) for arm in added for seed in config.seeds], cost_of(config))
    again = third["rounds"][2]
    [proposed] = [arm["weights"] for arm in added if arm["kind"] == "proposed"]
    assert 0 < sum(abs(proposed[source] - share) for source, share in again["proposed"].items()) < 0.005
    assert [arm["kind"] for arm in third["arms"] if arm["arm"] in again["arms"]] == ["sampled"] * 4
