"""A sweep of widths: real small runs beside a cycle, and whether the best learning rate of a width fits another."""

import json
from pathlib import Path

import pytest

from operators.pods.disk import planned_bytes
from tasks.core.artifact import Artifact
from tasks.core.config import canonical_json, parse
from tasks.core.errors import InputError, RecipeError
from tasks.run.place import KubernetesPlace
from tasks.run.recipe import find_recipe
from tasks.stages.canary import CanaryConfig, variant_of
from tasks.stages.canary.cost import CycleCost
from tasks.stages.canary.decision import Decision, Sweep
from tasks.stages.canary.widths import WidthsConfig
from tests.conftest import run_stage_in
from tests.corpora import tokens_in
from tests.tasks.trainer.in_process import training_in_process

SETTINGS = {
    "arms": 0, "anchors": [], "rounds": 2, "steps": 2, "batch_size": 4, "microbatch": 4,
    "optim": {"lr": 0.01, "warmup_steps": 1},
    "model": {"layers": 1, "dim": 16, "heads": 2, "kv_heads": 1, "tie_embeddings": False},
}  # fmt: skip
WIDTHS = {"dims": [16, 32], "lr": [1e-4, 0.01]}


def config(**changes: object) -> CanaryConfig:
    return parse(CanaryConfig, {**SETTINGS, **changes}, "mine.toml")


def cycle(folder: Path, config: CanaryConfig) -> tuple[list[Artifact], Artifact]:
    """A cycle of the stages, with real runs; returns these and the decision."""
    made = tokens_in(folder)
    read = {"plan": made.plan, "shards": made.shards}
    arms = run_stage_in(folder, "tasks.stages.canary.arms", config, read, member="round-1", kind="arms")
    with training_in_process():
        runs = [
            run_stage_in(folder, "tasks.stages.canary.run", config, {**read, "arms": arms}, member=member, kind="runs")
            for member in arms.record.members
        ]
    before = {**read, "before": arms, "canaries": runs}
    last = run_stage_in(folder, "tasks.stages.canary.arms", config, before, member="round-2", kind="last")
    assert last.record.members == ()
    screened = {"plan": made.plan, "arms": last, "canaries": []}
    finalist = run_stage_in(folder, "tasks.stages.canary.finalist", config, screened, kind="finalist")
    decided = {"plan": made.plan, "finalist": finalist, "confirmations": []}
    return runs, run_stage_in(folder, "tasks.stages.canary.decide", config, decided, kind="mixture")


def test_a_cycle_trains_every_width_at_every_rate_and_says_whether_the_best_rate_stays(tmp_path: Path) -> None:
    swept = config(widths=WIDTHS)
    runs, mixture = cycle(tmp_path, swept)
    assert len(runs) == swept.runs_at_once - 1 == 6, "the current mixture, A/A, and 2 x 2 of the sweep; no proposal"
    results = [json.loads(run.read("result.json")) for run in runs]
    plain, at_base = results[0], next(one for one in results if (one.get("dim"), one.get("lr")) == (16, 0.01))
    assert plain["bpb"] == at_base["bpb"], "muP changes nothing at its base, so this run is that of the current mixture"
    assert plain["loss_curve"] == at_base["loss_curve"]
    bits = {(one["dim"], one["lr"]): one["target_bpb"] for one in results if "dim" in one}
    assert len(set(bits.values())) == 4
    decision = Decision.read(mixture)
    assert decision.sweep
    assert [row.bpb for row in decision.sweep.widths] == [
        tuple(bits[dim, lr] for lr in WIDTHS["lr"]) for dim in WIDTHS["dims"]
    ]
    best = {dim: min(WIDTHS["lr"], key=lambda lr: bits[dim, lr]) for dim in WIDTHS["dims"]}
    metrics = mixture.record.metrics
    assert {dim: metrics[f"best_lr/{dim}"] for dim in best} == best
    assert metrics["lr_transfers"] == float(decision.sweep.transfers)
    assert decision.sweep.recommendation in mixture.read("report.md").decode()
    assert (decision.promoted, [arm.arm for arm in decision.arms]) == (False, ["arm-0", "arm-0-again"])
    assert decision.runs == 2


def sweep(*bits: tuple[float, ...]) -> Sweep:
    """What runs of two widths with these bits at each rate show."""
    rates = [0.001 * 2**step for step in range(len(bits[0]))]
    widths = WidthsConfig(dims=(16, 64), lr=tuple(rates))
    rows = [
        {"dim": dim, "lr": lr, "target_bpb": value}
        for dim, row in zip(widths.dims, bits, strict=True)
        for lr, value in zip(rates, row, strict=True)
    ]
    return Sweep.of(widths, rows)


def test_a_rate_may_be_used_if_the_optimum_is_inside_the_grid_and_moves_by_at_most_one_step() -> None:
    stays = sweep((2.3, 2.1, 2.0, 2.2), (2.2, 1.8, 1.9, 2.0))
    assert (stays.transfers, stays.moved, stays.lost) == (True, -1, 0.1)
    assert "0.004, may be used for the large one, with [train.init] base_width = 16" in stays.recommendation
    moves = sweep((2.4, 2.3, 2.2, 2.0, 2.1), (2.2, 1.8, 1.9, 2.1, 2.5))
    assert (moves.transfers, moves.moved, moves.lost) == (False, -2, 0.3)
    assert "do not use" in moves.recommendation
    outside = sweep((2.3, 2.1, 2.0), (2.2, 1.9, 1.8))
    assert (outside.stays, outside.transfers, outside.at_end) == (True, False, (16, 64))
    assert "add rates beyond it" in outside.recommendation
    with pytest.raises(InputError, match=r"no result of dim 64 at lr 0\.002"):
        Sweep.of(
            WidthsConfig(dims=(16, 64), lr=(0.001, 0.002)),
            [{"dim": dim, "lr": lr, "target_bpb": 2.0} for dim, lr in [(16, 0.001), (16, 0.002), (64, 0.001)]],
        )


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"widths": {**WIDTHS, "dims": [16, 24]}}, "widths.dims: 24 is not a multiple of 16, so that its heads cannot"),
        ({"widths": {**WIDTHS, "dims": [32, 16]}}, "widths.dims: must ascend, without repeats"),
        ({"widths": {**WIDTHS, "lr": [0.01, 0.01]}}, "widths.lr: must ascend, without repeats"),
        ({"widths": {**WIDTHS, "lr": [0.01]}}, "widths.lr"),
        ({"widths": WIDTHS, "model": {"dim": 16, "heads": 2}}, "widths.mup: muP needs a separate head"),
        ({"widths": WIDTHS, "optim": {"name": "muon"}}, "widths.mup: its rates are those of AdamW"),
    ],
)
def test_widths_and_rates_that_cannot_be_compared_are_refused_by_name(changes: dict, cause: str) -> None:
    with pytest.raises(RecipeError) as caught:
        config(**changes)
    assert cause in str(caught.value)


def test_the_budget_the_pool_and_the_disk_count_the_sweep_and_without_it_nothing_changes() -> None:
    assert "widths" not in canonical_json(config())
    swept = config(widths={"dims": [16, 64], "lr": [0.01, 0.02, 0.03]}, budget={"runs": 300}, seeds=[0, 1])
    one, plain = CycleCost(swept, 300, 32), CycleCost(swept.model_copy(update={"widths": None}), 300, 32)
    assert swept.runs_at_once == plain.config.runs_at_once + 2 * 3 * 2
    with_settings = config(widths=WIDTHS, settings=[{"name": "strict", "set": {"extract.min_chars": 9}}])
    assert variant_of("round-1-arm-0-dim-64-lr-2-seed-1", with_settings) == "current"
    wide = swept.model.model_copy(update={"dim": 64, "heads": 8, "kv_heads": 4})
    assert swept.training(0, {"dim": 64, "lr": 0.02}).model == wide
    assert one.swept == pytest.approx(6 * (1 + plain.flops(wide) / plain.flops(swept.model)))
    assert one.limit == pytest.approx(plain.limit - one.swept)
    demo, place = find_recipe("demo"), KubernetesPlace()
    wider = demo.override({
        "canary.model.tie_embeddings": False, "canary.widths": {"dims": [64, 512], "lr": [0.01, 0.02]}
    })  # fmt: skip
    assert planned_bytes(wider, place, "canary") > 2 * planned_bytes(demo, place, "canary")
