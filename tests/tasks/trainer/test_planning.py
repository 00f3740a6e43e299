"""The numbers of a plan: the cost of failures equals that of simulated runs; the rest follows from FLOPs."""

import random

import pytest

from tasks.trainer.config import ModelConfig, TrainConfig
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.parallel.fit import layout_reasons, layout_warnings, memory_per_rank
from tasks.trainer.place import Layout
from tasks.trainer.planning.config import PlanConfig
from tasks.trainer.planning.estimate import best_interval, estimate, layout_that_fits, lost_share, nodes_of
from tasks.trainer.planning.traffic import traffic
from tasks.trainer.tuning.memory import Workload

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
    found = estimate(plan, run, ModelShape.of(model, 32_000), 2048, None, 8, 8)
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


def test_what_the_planner_proposes_is_accepted_and_fits() -> None:
    draw = random.Random(0)
    proposed, across = 0, 0
    for _ in range(1_000):
        heads = 2 ** draw.randint(2, 7)
        model = ModelConfig(
            layers=draw.choice((2, 7, 16, 32, 61, 80, 126)),
            dim=heads * draw.choice((64, 96, 128)),
            heads=heads,
            kv_heads=2 ** draw.randint(0, heads.bit_length() - 1),
            ffn_multiple=draw.choice((8 / 3, 3.25, 3.5, 4.0)),
            tie_embeddings=draw.random() < 0.3,
        )
        settings = {"model": model, "precision": draw.choice(("fp32", "bf16"))}
        run = TrainConfig.model_validate(
            {**settings, "batch_size": draw.choice((8, 96, 512, 2048)), "microbatch": draw.choice((1, 2, 4))}
        )
        shape = ModelShape.of(model, draw.choice((32_000, 50_304, 128_256, 50_257)))
        seq_len, per_node = draw.choice((1024, 4096, 8192, 3000)), draw.choice((1, 2, 4, 6, 8))
        memory, ranks = draw.choice((22e9, 72e9, 127e9)), draw.choice((1, 2, 8, 12, 64, 1024))
        found = layout_that_fits(Workload(run, shape, seq_len), memory, ranks, per_node)
        if found is None:
            continue
        proposed += 1
        across += found.ranks > per_node
        nodes, here = nodes_of(found.ranks, per_node)
        assert found.ranks >= ranks
        assert layout_reasons(found, run, shape.vocab_size, seq_len, nodes, here) == []
        assert layout_warnings(found, nodes, here) == []
        assert sum(memory_per_rank(found, run, shape, seq_len).values()) <= memory
    assert proposed > 500
    assert across > 300


def test_collectives_across_nodes_take_the_network() -> None:
    model = ModelConfig(layers=16, dim=4096, heads=32, kv_heads=8, tie_embeddings=False)
    run = TrainConfig(model=model, precision="bf16", batch_size=64, microbatch=1)
    shape = ModelShape.of(model, 32_000)
    inside, across = (traffic(Layout(shard=4, tensor=8), run, shape, 4096, gpus, 450e9, 50e9) for gpus in (32, 8))
    assert (inside.across, inside.inside) == (0, pytest.approx(across.inside + across.across))
    assert across.exposed == inside.exposed, "tensor parallelism stays inside a node"
    # A GPU of each node takes part in a group of FSDP, so each sends all of its bytes over its own port.
    assert across.hideable == pytest.approx(9 * inside.hideable)
    split = traffic(Layout(shard=4, tensor=8), run, shape, 4096, 4, 450e9, 50e9)
    assert split.inside == 0
    assert split.exposed > across.exposed
    # Four GPUs of a node share a ring over two nodes.
    assert split.exposed == pytest.approx(450 / (50 * 4) * across.exposed)
