"""The decision as an artifact: promotion or not, with a report of the reasons."""

import json

import numpy as np
import pytest

from tasks.core.errors import InputError
from tasks.stages.canary import CanaryConfig
from tasks.stages.canary.decide import decide, figure, markdown

WEIGHTS = [
    {"code": 0.5, "web": 0.5}, {"code": 0.3, "web": 0.7}, {"code": 0.8, "web": 0.2}, {"code": 0.1, "web": 0.9},
]  # fmt: skip
ARMS = [
    {"arm": f"arm-{index}", "kind": "current" if index == 0 else "sampled", "weights": weights}
    for index, weights in enumerate(WEIGHTS)
]


def results(gain: list[float], noise: float = 0.002, seeds: tuple[int, ...] = (0, 1)) -> list[dict]:
    rng = np.random.default_rng(0)
    luck = {seed: rng.normal(0, 0.01) for seed in seeds}
    return [
        {
            **arm,
            "seed": seed,
            "bpb": {source: 2 - gain[index] + luck[seed] + rng.normal(0, noise) for source in ("code", "web")},
        }
        for index, arm in enumerate(ARMS)
        for seed in seeds
    ]


def test_a_significantly_better_arm_is_promoted_with_its_weights() -> None:
    decision = decide(CanaryConfig(), ARMS, results([0, 0, 0.1, 0]))
    assert decision["promoted"]
    assert decision["winner"] == "arm-2"
    assert decision["weights"] == WEIGHTS[2]
    assert decision["interval"][0] > 0.05
    assert decision["reason"].startswith("arm-2 replaces arm-0: lower by 0.0")


def test_without_a_significant_improvement_the_current_mixture_is_kept() -> None:
    decision = decide(CanaryConfig(), ARMS, results([0, 0, 0.001, 0], noise=0.01))
    assert not decision["promoted"]
    assert decision["weights"] == WEIGHTS[0]
    assert decision["interval"][0] < 0
    assert "arm-0 stays" in decision["reason"]


def test_the_target_weights_the_sources() -> None:
    rows = results([0, 0, 0, 0])
    for row in rows:
        row["bpb"]["code"] -= 0.2 if row["arm"] == "arm-1" else 0
    assert decide(CanaryConfig(target={"web": 1.0}), ARMS, rows)["promoted"] is False
    assert decide(CanaryConfig(target={"code": 1.0}), ARMS, rows)["winner"] == "arm-1"


def test_an_arm_that_hurts_a_guarded_source_is_reported_but_not_promoted() -> None:
    rows = results([0, 0, 0.3, 0])
    for row in rows:
        row["bpb"]["web"] += 0.4 if row["arm"] == "arm-2" else 0
    config = CanaryConfig(target={"code": 1.0})
    decision = decide(config, ARMS, rows)
    assert not decision["promoted"]
    assert "guarded sources pay for it (web +5" in decision["reason"]
    assert decide(config.model_copy(update={"guarded": ("code",)}), ARMS, rows)["promoted"]


def test_a_missing_run_is_named() -> None:
    with pytest.raises(InputError, match="no result of arm-3-seed-1"):
        decide(CanaryConfig(), ARMS, results([0] * 4)[:-1])


def test_a_run_with_other_weights_is_refused() -> None:
    rows = results([0] * 4)
    rows[3]["weights"] = {"code": 1.0, "web": 0.0}
    with pytest.raises(InputError, match="arm-1-seed-1 was trained with other weights"):
        decide(CanaryConfig(), ARMS, rows)


def test_a_single_arm_is_kept() -> None:
    decision = decide(CanaryConfig(), ARMS[:1], results([0] * 4)[:2])
    assert decision["promoted"] is False
    assert decision["reason"] == "arm-0 stays: there was no other arm"
    assert figure(decision)[:4] == b"\x89PNG"


def test_the_decision_does_not_depend_on_the_order_of_the_runs() -> None:
    rows = results([0, 0.1, 0.1, 0])
    assert json.dumps(decide(CanaryConfig(), ARMS, rows)) == json.dumps(decide(CanaryConfig(), ARMS, rows[::-1]))


def test_the_report_has_a_row_per_arm_and_the_picture_is_a_png() -> None:
    decision = decide(CanaryConfig(), ARMS, results([0, 0, 0.1, 0]))
    report = markdown(decision)
    assert report.count("\n| arm-") == 4
    assert "promoted |" in report
    assert "replaced |" in report
    assert "proposes" in report
    assert figure(decision)[:4] == b"\x89PNG"


def test_arms_by_another_column_are_compared_without_a_response_surface() -> None:
    tiers = [{**arm, "weights": {"gold": arm["weights"]["code"], "silver": arm["weights"]["web"]}} for arm in ARMS]
    rows = [{**row, "weights": tiers[int(row["arm"][-1])]["weights"]} for row in results([0, 0, 0.1, 0])]
    decision = decide(CanaryConfig(target={"web": 1.0}), tiers, rows)
    assert decision["promoted"]
    assert decision["weights"] == {"gold": 0.8, "silver": 0.2}
    assert decision["response"] is None
    assert "or the arms weight another column than the source" in markdown(decision)
    assert figure(decision)
