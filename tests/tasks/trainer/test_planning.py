"""The numbers of a plan: the cost of failures equals that of simulated runs; the rest follows from FLOPs."""

import random
from dataclasses import replace

import pytest

from benchmarks.fake_ranks import LLAMA_405B
from tasks.trainer.config import TrainConfig
from tasks.trainer.model.config import ExpertsConfig, ModelConfig
from tasks.trainer.model.shape import SIZES, ModelShape
from tasks.trainer.parallel.fit import layout_reasons, layout_warnings, memory_per_rank
from tasks.trainer.parallel.start import Device, default_layout, start_of
from tasks.trainer.place import Layout
from tasks.trainer.planning.config import PlanConfig
from tasks.trainer.planning.estimate import RunPerformance, best_interval, estimate, lost_share, planned_start
from tasks.trainer.planning.proposals import ALIKE, nodes_of, proposals
from tasks.trainer.planning.step import Machine, step_time
from tasks.trainer.planning.tables import plan_text
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
    load = Workload(run, ModelShape.of(model, 32_000), 2048)
    found = estimate(plan, load, planned_start(plan, load, None, 1, 8))
    time, cost, saving = found["time"], found["cost"], found["checkpoints"]
    assert time["tokens"] == 1_000 * 512 * 2048
    assert time["step_seconds"] == pytest.approx(time["flops"] / (989e12 / 2 * 0.4 * 8), rel=0.01), "TF32"
    assert time["wall_seconds"] == pytest.approx(time["step_seconds"] * (1 + saving["lost_share"]))
    assert time["gpu_days"] == pytest.approx(8 * time["wall_seconds"] / 86_400)
    assert cost["price"] == pytest.approx(2 * 24 * time["gpu_days"])
    assert cost["kwh"] == pytest.approx(24 * time["gpu_days"] * 0.7 * 1.2)
    assert cost["kg_co2"] == pytest.approx(cost["kwh"] * 0.05)
    weights = found["model"]["parameters"]
    assert saving["bytes"] == 12 * weights, "weights and two moments in fp32"
    assert saving["artifact_gb"] == pytest.approx(2 * saving["bytes"] / 1e9)


def test_what_the_planner_proposes_is_accepted_and_fits_and_nothing_that_it_tried_is_faster() -> None:
    draw = random.Random(0)
    proposed, across = 0, 0
    for _ in range(6):
        heads = 2 ** draw.randint(2, 7)
        model = ModelConfig(
            layers=draw.choice((2, 7, 16, 32, 61, 80, 126)),
            dim=heads * draw.choice((64, 96, 128)),
            heads=heads,
            kv_heads=2 ** draw.randint(0, heads.bit_length() - 1),
            ffn_multiple=draw.choice((8 / 3, 3.25, 3.5, 4.0)),
            tie_embeddings=draw.random() < 0.3,
        )
        settings = {"model": model, "precision": draw.choice(("fp32", "bf16", "fp8"))}
        run = TrainConfig.model_validate(
            {**settings, "batch_size": draw.choice((8, 96, 512, 2048)), "microbatch": draw.choice((1, 2, 4))}
        )
        shape = ModelShape.of(model, draw.choice((32_000, 50_304, 128_256, 50_257)))
        seq_len, per_node = draw.choice((1024, 4096, 8192, 3000)), draw.choice((1, 2, 4, 6, 8))
        memory, ranks = draw.choice((22e9, 72e9, 127e9)), draw.choice((1, 2, 8, 12, 64, 256))
        machine, load = Machine(4e14, per_node, 450e9, 50e9), Workload(run, shape, seq_len)
        found = proposals(load, memory, ranks, per_node, machine)
        proposed += bool(found)
        for one in found:
            nodes, here = nodes_of(one.layout.ranks, per_node)
            across += nodes > 1
            smaller = run.model_copy(update={"microbatch": one.microbatch})
            assert one.layout.ranks >= ranks
            assert layout_reasons(one.layout, smaller, shape, seq_len, nodes, here) == []
            assert layout_warnings(one.layout, nodes, here) == []
            assert one.memory == sum(memory_per_rank(one.layout, smaller, shape, seq_len).values()) <= memory
            assert one.time == step_time(Workload(smaller, shape, seq_len), one.layout, one.layout.ranks, machine)
            assert found[0].time.total <= ALIKE * one.time.total
    assert proposed > 2
    assert across > 2


@pytest.mark.parametrize(("layers", "dim", "width", "ranks"), [(48, 2048, 768, 8), (94, 4096, 1536, 64)])
def test_experts_are_divided_where_a_step_fits_or_is_faster_only_so(
    layers: int, dim: int, width: int, ranks: int
) -> None:
    memory = 72e9
    experts = ExpertsConfig(count=128, per_token=8, width=width, balance="bias")
    model = ModelConfig(layers=layers, dim=dim, heads=dim // 64, kv_heads=4, tie_embeddings=False, experts=experts)
    run = TrainConfig(model=model, precision="bf16", batch_size=16 * ranks, microbatch=1)
    load, machine = Workload(run, ModelShape.of(model, 151_936), 4096), Machine(4e14, 8, 450e9, 50e9)
    found = proposals(load, memory, ranks, 8, machine)
    for one in found:
        smaller, (nodes, here) = run.model_copy(update={"microbatch": one.microbatch}), nodes_of(one.layout.ranks, 8)
        start_of(one.layout, smaller, load.shape, load.seq_len, nodes, here, Device("H100", (9, 0))).check()
        assert one.memory == sum(memory_per_rank(one.layout, smaller, load.shape, load.seq_len).values()) <= memory
    best = found[0].layout
    assert (best.ranks, best.expert > 1) == (ranks, True)
    whole = best.model_copy(update={"expert": 1})
    without = sum(load.memory_per_rank(whole, ranks).values())
    assert without > memory or step_time(load, whole, ranks, machine).total > 1.5 * found[0].time.total


def test_the_bubble_of_a_pipeline_is_that_of_its_schedule() -> None:
    model = ModelConfig(layers=64, dim=4096, heads=32, kv_heads=8, tie_embeddings=False)
    run = TrainConfig(model=model, precision="bf16", batch_size=64, microbatch=1)
    load, machine = Workload(run, ModelShape.of(model, 512), 4096), Machine(4e14, 8, 450e9, 50e9)
    for settings, chunks in (({}, 1), ({"schedule": "interleaved", "chunks": 4}, 4)):
        layout = Layout(shard=8, pipeline=8, **settings)
        time = step_time(load, layout, 64, machine)
        # 8 microbatches of a rank; the head is small.
        assert time.bubble / time.busy == pytest.approx(7 / (8 * chunks + 7), rel=0.02)
    uneven = step_time(load, Layout(shard=8, pipeline=6), 48, machine)
    assert uneven.bubble / uneven.compute == pytest.approx((11 * 6 / 64) * (8 + 5) / 8 - 1, rel=0.02)


def test_layouts_for_405b_have_less_traffic_than_computation() -> None:
    run = TrainConfig(model=LLAMA_405B, precision="bf16", batch_size=2048, microbatch=1)
    load = Workload(run, ModelShape.of(LLAMA_405B, 128_256), 8192)
    found = proposals(load, 72e9, 16_384, 8, Machine(0.4 * 989e12, 8, 450e9, 50e9))
    assert any(one.layout.context > 1 and one.layout.pipeline > 1 for one in found)
    for one in found:
        assert one.time.exposed < 0.2 * one.time.compute
        assert one.time.total < 1.3 * one.time.compute


def test_the_default_layout_and_the_number_of_ranks_of_a_plan_are_those_of_the_run() -> None:
    llama = SIZES["8b"]
    run = TrainConfig(model=llama.model, precision="bf16", batch_size=16, microbatch=1)
    plan, load = PlanConfig(), Workload(run, ModelShape.of(llama.model, llama.vocab_size), 4096)
    start = planned_start(plan, load, None, 2, 8)
    assert start.layout == default_layout(None, 2, 8, gpu=True) == Layout(replicate=2, shard=8)
    found = estimate(plan, load, start)
    assert found["memory"]["needed_gib"] < 60
    few = load.run.model_copy(update={"batch_size": 8, "microbatch": 4})
    start = planned_start(plan, replace(load, run=few), None, 1, 8)
    found = estimate(plan, replace(load, run=few), start)
    assert (found["time"]["gpus"], found["time"]["idle"], start.layout) == (2, 6, Layout(shard=2))
    assert found["warnings"] == [
        "only 2 of 8 ranks start, because more cannot share 2 microbatches a step (batch_size 8 / microbatch 4) "
        "equally: set [train] batch_size to a multiple of 32 or microbatch = 1"
    ]


def test_a_refused_run_has_a_plan_with_its_reasons_and_what_would_train_it() -> None:
    llama = SIZES["8b"]
    run = TrainConfig(model=llama.model, precision="bf16", batch_size=8, microbatch=1)
    load = Workload(run, ModelShape.of(llama.model, llama.vocab_size), 4096)
    plan = PlanConfig()
    found = estimate(plan, load, planned_start(plan, load, Layout(shard=16), 2, 8))
    assert found["refused"] == [
        "replicate x shard = 16 ranks cannot share 8 microbatches (batch_size / microbatch) equally"
    ]
    assert "It is refused: replicate x shard = 16 ranks" in (text := plan_text(found))
    assert "| what would | nodes = 2, nproc = 8, " in text
    assert "microbatch" not in found["proposals"][0]


def test_a_measured_mfu_is_that_of_whole_steps_and_proposals_are_as_slow() -> None:
    llama = SIZES["8b"]
    run = TrainConfig(model=llama.model, precision="bf16", batch_size=64, microbatch=1)
    load = Workload(run, ModelShape.of(llama.model, llama.vocab_size), 4096)
    plan, layout = PlanConfig(), Layout(shard=4, pipeline=8, recompute="full")
    start = planned_start(plan, load, layout, 4, 8)
    flops = 64 * 4096 * load.flops_per_token
    before = RunPerformance(flops / (989e12 * 32 * 0.2), 1, flops, 32, 0, 989e12, 1)
    found = estimate(plan, load, start, before, "measured")
    step = found["step"]
    assert found["time"]["mfu"] == pytest.approx(0.2)
    parts = step["compute_s"], step["recompute_s"], step["bubble_s"], step["exposed_s"]
    assert sum(parts) == pytest.approx(step["seconds"])
    unwaited = estimate(plan.model_copy(update={"mfu": 1.0}), load, start)["step"]
    assert step["bubble_s"] / step["compute_s"] == pytest.approx(unwaited["bubble_s"] / unwaited["compute_s"])
    best = found["proposals"][0]
    assert best["layout"] != layout.model_dump(exclude_defaults=True)
    assert best["mfu"] == pytest.approx(0.2 * step["seconds"] / step["compute_s"], rel=0.1), "they do not wait"


def test_the_peak_is_that_of_the_precision() -> None:
    model = SIZES["1.3b"].model
    seconds, plan = {}, PlanConfig()
    for precision in ("fp32", "bf16", "fp8"):
        run = TrainConfig.model_validate({"model": model, "precision": precision, "batch_size": 8, "microbatch": 1})
        load = Workload(run, ModelShape.of(model, 50_304), 2048)
        seconds[precision] = estimate(plan, load, planned_start(plan, load, None, 1, 1))["step"]["seconds"]
    assert seconds["fp32"] == pytest.approx(2 * seconds["bf16"], rel=0.01), "TF32"
    assert 1.2 < seconds["bf16"] / seconds["fp8"] < 1.45


def test_a_gpu_without_fp8_and_an_uneven_number_of_positions_are_refused_as_on_a_rank() -> None:
    model = ModelConfig(layers=2, dim=64, heads=4, kv_heads=2)
    run = TrainConfig(model=model, precision="fp8", batch_size=8, microbatch=1)
    load = Workload(run, ModelShape.of(model, 256), 40)
    start = planned_start(PlanConfig(gpu="A100"), load, None, 1, 8)
    assert start.reasons == (
        "40 positions of a microbatch cannot be multiplied in fp8: make microbatch x seq_len (over the ranks that "
        "share it) a multiple of 16",
        "A100 (SM 8.0) cannot multiply in fp8: train in bf16, or on a GPU from SM 8.9 (Ada, Hopper, Blackwell)",
    )
    assert not planned_start(PlanConfig(gpu="L4"), replace(load, seq_len=48), None, 1, 8).reasons


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
