"""The decision as an artifact: promotion or not, with a report of the reasons."""

import json

import numpy as np
import pytest

from tasks.core.errors import InputError
from tasks.stages.canary import CanaryConfig
from tasks.stages.canary.decide import decide, figure, markdown
from tasks.stages.canary.finalist import screen

WEIGHTS = [
    {"code": 0.5, "web": 0.5}, {"code": 0.3, "web": 0.7}, {"code": 0.8, "web": 0.2}, {"code": 0.1, "web": 0.9},
]  # fmt: skip
ARMS = [
    {"arm": f"arm-{index}", "kind": "current" if index == 0 else "sampled", "weights": weights}
    for index, weights in enumerate(WEIGHTS)
]
CONFIG = CanaryConfig(confirmations=3)


def results(gain: list[float], noise: float = 0.002, config: CanaryConfig = CONFIG, arms: list[dict] = ARMS) -> list:
    """Results of all seeds: of the screening, and fresh ones."""
    seeds = (*config.seeds, *config.fresh_seeds)
    rng = np.random.default_rng(0)
    luck = {seed: rng.normal(0, 0.01) for seed in seeds}
    return [
        {
            **arm,
            "seed": seed,
            "bpb": {source: 2 - gain[index] + luck[seed] + rng.normal(0, noise) for source in ("code", "web")},
        }
        for index, arm in enumerate(arms)
        for seed in seeds
    ]


def decided(config: CanaryConfig, rows: list[dict], arms: list[dict] = ARMS) -> dict:
    """Both stages: the finalist of the screening, and the decision on its fresh seeds."""
    screening = screen(config, arms, rows)
    pair = (
        [arm for arm in arms if arm["arm"] in (arms[0]["arm"], screening["finalist"])] if screening["finalist"] else []
    )
    return decide(config, screening, pair, rows)


def test_a_significantly_better_arm_is_promoted_with_its_weights() -> None:
    decision = decided(CONFIG, results([0, 0, 0.1, 0]))
    assert decision["promoted"]
    assert decision["winner"] == "arm-2"
    assert decision["weights"] == WEIGHTS[2]
    assert decision["confirmation"]["seeds"] == [1, 2, 3]
    assert decision["confirmation"]["interval"][0] > 0.05
    assert decision["reason"].startswith("arm-2 replaces arm-0: lower by 0.0")
    assert decision["reason"].endswith("bits per byte on 3 fresh seeds, 95% sure")


def test_a_finalist_that_fresh_seeds_do_not_confirm_is_not_promoted() -> None:
    rows = results([0] * 4)
    for row in rows:
        row["bpb"]["web"] -= 0.5 if (row["arm"], row["seed"]) == ("arm-3", 0) else 0  # luck of the screening
    decision = decided(CONFIG, rows)
    assert decision["confirmation"]["arm"] == "arm-3"
    assert not decision["promoted"]
    assert decision["winner"] == "arm-0"
    assert decision["weights"] == WEIGHTS[0]
    assert "arm-0 stays: arm-3 is not surely better" in decision["reason"]
    assert "finalist, not confirmed |" in markdown(decision)


def test_without_a_better_arm_in_the_screening_nothing_is_confirmed() -> None:
    decision = decided(CONFIG, results([0.1, 0, 0, 0]))
    assert decision["confirmation"] is None
    assert decision["reason"] == "arm-0 stays: no arm was better in the screening"
    assert "## Confirmation" not in markdown(decision)
    assert figure(decision)[:4] == b"\x89PNG"


def test_the_target_weights_the_sources() -> None:
    rows = results([0, 0, 0, 0])
    for row in rows:
        row["bpb"]["code"] -= 0.2 if row["arm"] == "arm-1" else 0
    assert decided(CanaryConfig(confirmations=3, target={"web": 1.0}), rows)["winner"] == "arm-0"
    assert decided(CanaryConfig(confirmations=3, target={"code": 1.0}), rows)["winner"] == "arm-1"


def test_an_arm_that_hurts_a_guarded_source_is_not_confirmed() -> None:
    rows = results([0, -0.1, 0.3, 0.1])
    for row in rows:
        row["bpb"]["web"] += 0.4 if row["arm"] == "arm-2" else 0
    config = CanaryConfig(confirmations=3, target={"code": 1.0})
    assert decided(config, rows)["winner"] == "arm-3"
    assert decided(config.model_copy(update={"guarded": ("code",)}), rows)["winner"] == "arm-2"
    decision = decided(config, rows[:12], ARMS[:3])
    assert decision["winner"] == "arm-0"
    assert "arms better on the target make guarded sources worse (web +5" in decision["reason"]


def test_a_finalist_that_hurts_a_guarded_source_on_fresh_seeds_is_not_promoted() -> None:
    rows = results([0, 0, 0.3, 0])
    for row in rows:
        row["bpb"]["web"] += 0.4 if row["arm"] == "arm-2" and row["seed"] else 0
    decision = decided(CanaryConfig(confirmations=3, target={"code": 1.0}), rows)
    assert decision["confirmation"]["interval"][0] > 0
    assert not decision["promoted"]
    assert "arm-0 stays: arm-2 makes guarded sources worse (web +5" in decision["reason"]


def test_a_missing_run_is_named() -> None:
    rows = results([0, 0, 0, 0.1])
    with pytest.raises(InputError, match="no result of arm-3-seed-3"):
        decided(CONFIG, rows[:-1])
    with pytest.raises(InputError, match="no result of arm-0-seed-0"):
        decided(CONFIG, rows[1:])


def test_a_run_with_other_weights_is_refused() -> None:
    rows = results([0] * 4)
    rows[4]["weights"] = {"code": 1.0, "web": 0.0}
    with pytest.raises(InputError, match="arm-1-seed-0 was trained with other weights"):
        decided(CONFIG, rows)


def test_a_single_arm_is_kept() -> None:
    decision = decided(CONFIG, results([0] * 4)[:4], ARMS[:1])
    assert decision["promoted"] is False
    assert decision["reason"] == "arm-0 stays: there was no other arm"
    assert figure(decision)[:4] == b"\x89PNG"


def test_the_decision_does_not_depend_on_the_order_of_the_runs() -> None:
    rows = results([0, 0.1, 0.1, 0])
    assert json.dumps(decided(CONFIG, rows)) == json.dumps(decided(CONFIG, rows[::-1]))


def test_the_report_has_a_row_per_arm_and_the_picture_is_a_png() -> None:
    decision = decided(CONFIG, results([0, 0, 0.1, 0]))
    report = markdown(decision)
    assert report.count("\n| arm-") == 4
    assert "promoted |" in report
    assert "replaced |" in report
    assert "arm-0 and arm-2 with the same fresh seeds: lower by +0.1" in report
    assert "would have been enough" in report
    assert "proposes" in report
    assert figure(decision)[:4] == b"\x89PNG"


def test_arms_by_another_column_are_compared_without_a_response_surface() -> None:
    tiers = [{**arm, "weights": {"gold": arm["weights"]["code"], "silver": arm["weights"]["web"]}} for arm in ARMS]
    decision = decided(CanaryConfig(confirmations=3, target={"web": 1.0}), results([0, 0, 0.1, 0], arms=tiers), tiers)
    assert decision["promoted"]
    assert decision["weights"] == {"gold": 0.8, "silver": 0.2}
    assert decision["response"] is None
    assert "or the arms weight another column than the source" in markdown(decision)
    assert figure(decision)
