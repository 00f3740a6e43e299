"""The numbers of a plan: the cost of failures equals that of simulated runs; the rest follows from FLOPs."""

import random

import pytest

from tasks.trainer.config import ModelConfig, TrainConfig
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.planning.config import PlanConfig
from tasks.trainer.planning.estimate import best_interval, estimate, lost_share

HOUR = 3600.0
DELAY, RESTART = 30.0, 300.0


def simulated(interval: float, mtbf: float, work: float, seed: int) -> float:
    """Seconds lost per second of work in a run with random failures that resumes from its last checkpoint."""
    draw = random.Random(seed)
    clock = done = 0.0
    failure = draw.expovariate(1 / mtbf)
    while done < work:
        if clock + interval + DELAY <= failure:
            clock += interval + DELAY
            done += interval
        else:
            clock = failure + RESTART
            failure = clock + draw.expovariate(1 / mtbf)
    return clock / done - 1


@pytest.mark.parametrize("hours", [2, 12])
def test_the_share_lost_to_failures_matches_a_simulation_and_is_least_at_the_best_interval(hours: int) -> None:
    mtbf = hours * HOUR
    best = best_interval(DELAY, mtbf)
    lost = {}
    for factor in (0.25, 1, 4):
        lost[factor] = sum(simulated(factor * best, mtbf, 1e7, seed) for seed in range(4)) / 4
        # Young's formula is first-order: its error grows with the interval relative to the time between failures.
        assert lost_share(factor * best, DELAY, RESTART, mtbf) == pytest.approx(lost[factor], rel=0.25)
    assert lost[1] < min(lost[0.25], lost[4])


def test_time_money_and_carbon_follow_from_flops_and_the_region() -> None:
    region = {"price_per_gpu_hour": 2.0, "gco2_per_kwh": 50.0, "pue": 1.2}
    plan = PlanConfig.model_validate({"gpu": "H100", "mfu": 0.4, "region": "north", "regions": {"north": region}})
    run = TrainConfig.model_validate({"steps": 1_000, "batch_size": 512, "mixture": {"web": 1.0}, "milestones": 2})
    model = ModelConfig(layers=16, dim=2048, heads=16, kv_heads=16)
    found = estimate(plan, run, ModelShape.of(model, 32_000), 2048, None, 8)
    time, cost, saving = found["time"], found["cost"], found["checkpoints"]
    assert time["tokens"] == 1_000 * 512 * 2048
    assert time["step_seconds"] == pytest.approx(time["flops"] / (989e12 * 0.4 * 8), rel=0.01)
    assert time["wall_seconds"] == pytest.approx(time["step_seconds"] * (1 + saving["lost_share"]))
    assert time["gpu_days"] == pytest.approx(8 * time["wall_seconds"] / 86_400)
    assert cost["price"] == pytest.approx(2 * 24 * time["gpu_days"])
    assert cost["kwh"] == pytest.approx(24 * time["gpu_days"] * 0.7 * 1.2)
    assert cost["kg_co2"] == pytest.approx(cost["kwh"] * 0.05)
    weights = found["model"]["parameters"]
    assert saving["bytes"] == 12 * weights, "weights and two moments in fp32"
    assert saving["artifact_gb"] == pytest.approx(2 * saving["bytes"] / 1e9)
