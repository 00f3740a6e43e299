"""The decision as an artifact: promotion or not, with a report of the reasons."""

import re

import numpy as np
import pytest

from tasks.core.errors import InputError
from tasks.stages.canary import BudgetConfig, CanaryConfig
from tasks.stages.canary.cost import CycleCost
from tasks.stages.canary.decision import Decision
from tasks.stages.canary.finalist import confirming
from tasks.stages.canary.registration import rules, seeds_of
from tasks.stages.canary.report import figure, markdown
from tasks.stages.canary.statistics import decide, screen

WEIGHTS = [
    {"code": 0.5, "web": 0.5}, {"code": 0.3, "web": 0.7}, {"code": 0.8, "web": 0.2}, {"code": 0.1, "web": 0.9},
]  # fmt: skip
ARMS = [
    {"arm": f"arm-{index}", "kind": "current" if index == 0 else "sampled", "weights": weights}
    for index, weights in enumerate(WEIGHTS)
]
CONFIG = CanaryConfig(confirmations=3, signal_floor=0)


def results(gain: list[float], noise: float = 0.002, config: CanaryConfig = CONFIG, arms: list[dict] = ARMS) -> list:
    """Results of all arms and seeds, of the screening and fresh ones, also of the A/A arm and at the low rate."""
    seeds = (*config.seeds, *config.fresh_seeds)
    rng = np.random.default_rng(0)
    luck = {seed: rng.normal(0, 0.01) for seed in seeds}
    rows = [
        {
            **arm,
            "seed": seed,
            "bpb": {source: 2 - gain[index] + luck[seed] + rng.normal(0, noise) for source in ("code", "web")},
        }
        for index, arm in enumerate(arms)
        for seed in seeds
    ]
    slower = [{**row, "arm": f"{row['arm']}-low-lr"} for row in rows]
    again = [
        {**row, "arm": "arm-0-again", "bpb": {key: value + rng.normal(0, noise) for key, value in row["bpb"].items()}}
        for row in rows[: len(seeds)]
    ]
    return [*rows, *slower, *again]


def decided(config: CanaryConfig, rows: list[dict], arms: list[dict] = ARMS) -> Decision:
    """Both stages: the finalist of the screening, and the decision on its fresh seeds."""
    cost = CycleCost(config, 256, 32)
    again = {"arm": "arm-0-again", "kind": "A/A", "weights": arms[0]["weights"], "again": True}
    cycle = {
        "registered": {
            "sequences": dict.fromkeys(arms[0]["weights"], 1_000_000),
            "kept": {},
            "most_arms": None,
            "rules": rules(config, cost, 5),
            "settings": {},
        },
        "arms": [arms[0], again, *arms[1:]],
        "results": [row for row in rows if row["seed"] in config.seeds and not row["arm"].endswith("low-lr")],
        "rounds": [
            {"round": 1, "arms": [arm["arm"] for arm in arms], "probability": None, "proposed": None, "stopped": None}
        ],
    }
    screening = screen(config, cycle, cost)
    runs = confirming(config, cycle, screening)
    wanted = {(arm["arm"], seed) for arm in runs for seed in seeds_of(config, arm)}
    return decide(config, screening, runs, [row for row in rows if (row["arm"], row["seed"]) in wanted], cost)


def test_a_significantly_better_arm_is_promoted_with_its_weights() -> None:
    decision = decided(CONFIG, results([0, 0, 0.1, 0]))
    assert decision.promoted
    assert decision.winner == "arm-2"
    assert decision.weights == WEIGHTS[2]
    assert decision.confirmation.seeds == (1, 2, 3)
    assert decision.confirmation.interval[0] > 0.05
    assert decision.reason.startswith("arm-2 replaces arm-0: lower by 0.0")
    assert decision.reason.endswith("bits per byte on 3 fresh seeds, 95% sure")


def test_a_finalist_that_fresh_seeds_do_not_confirm_is_not_promoted() -> None:
    rows = results([0] * 4)
    for row in rows:
        row["bpb"]["web"] -= 0.5 if (row["arm"], row["seed"]) == ("arm-3", 0) else 0  # luck of the screening
    decision = decided(CONFIG, rows)
    assert decision.confirmation.arm == "arm-3"
    assert not decision.promoted
    assert decision.winner == "arm-0"
    assert decision.weights == WEIGHTS[0]
    assert "arm-0 stays: arm-3 is not surely better" in decision.reason
    assert "finalist, not confirmed |" in markdown(decision)


def test_without_a_better_arm_in_the_screening_nothing_is_confirmed() -> None:
    decision = decided(CONFIG, results([0.1, 0, 0, 0]))
    assert decision.confirmation is None
    assert decision.reason == "arm-0 stays: no arm was better in the screening"
    assert "## Confirmation" not in markdown(decision)
    assert figure(decision)[:4] == b"\x89PNG"


def test_the_target_weights_the_sources() -> None:
    rows = results([0, 0, 0, 0])
    for row in rows:
        row["bpb"]["code"] -= 0.2 if row["arm"] == "arm-1" else 0
    assert decided(CONFIG.model_copy(update={"target": {"web": 1.0}}), rows).winner == "arm-0"
    assert decided(CONFIG.model_copy(update={"target": {"code": 1.0}}), rows).winner == "arm-1"


def test_an_arm_that_hurts_a_guarded_source_is_not_confirmed() -> None:
    rows = results([0, -0.1, 0.3, 0.1])
    for row in rows:
        row["bpb"]["web"] += 0.4 if row["arm"] == "arm-2" else 0
    config = CONFIG.model_copy(update={"target": {"code": 1.0}})
    assert decided(config, rows).winner == "arm-3"
    assert decided(config.model_copy(update={"guarded": ("code",)}), rows).winner == "arm-2"
    decision = decided(config, rows, ARMS[:3])
    assert decision.winner == "arm-0"
    assert "arms better on the target make guarded sources worse (web +5" in decision.reason


def test_a_finalist_that_hurts_a_guarded_source_on_fresh_seeds_is_not_promoted() -> None:
    rows = results([0, 0, 0.3, 0])
    for row in rows:
        row["bpb"]["web"] += 0.4 if row["arm"] == "arm-2" and row["seed"] else 0
    decision = decided(CONFIG.model_copy(update={"target": {"code": 1.0}}), rows)
    assert decision.confirmation.interval[0] > 0
    assert not decision.promoted
    assert "arm-0 stays: arm-2 makes guarded sources worse (web +5" in decision.reason


def test_a_missing_run_is_named() -> None:
    rows = results([0, 0, 0, 0.1])
    with pytest.raises(InputError, match="no result of arm-3-seed-3"):
        decided(CONFIG, [row for row in rows if (row["arm"], row["seed"]) != ("arm-3", 3)])
    with pytest.raises(InputError, match="no result of arm-0-seed-0"):
        decided(CONFIG, rows[1:])


def test_a_run_with_other_weights_is_refused() -> None:
    rows = results([0] * 4)
    rows[4]["weights"] = {"code": 1.0, "web": 0.0}
    with pytest.raises(InputError, match="arm-1-seed-0 was trained with other weights"):
        decided(CONFIG, rows)


def test_a_single_arm_is_kept() -> None:
    decision = decided(CONFIG, results([0] * 4), ARMS[:1])
    assert decision.promoted is False
    assert decision.reason == "arm-0 stays: there was no other arm"
    assert figure(decision)[:4] == b"\x89PNG"


def test_the_decision_does_not_depend_on_the_order_of_the_runs() -> None:
    rows = results([0, 0.1, 0.1, 0])
    assert decided(CONFIG, rows).content() == decided(CONFIG, rows[::-1]).content()


def test_the_report_has_a_row_per_arm_and_the_picture_is_a_png() -> None:
    decision = decided(CONFIG, results([0, 0, 0.1, 0]))
    report = markdown(decision)
    assert report.count("\n| arm-") == 5
    assert "promoted |" in report
    assert "replaced |" in report
    assert "arm-0 and arm-2 with the same fresh seeds: lower by +0.1" in report
    assert "would have been enough" in report
    assert "proposes" in report
    optimism = decision.response.optimism
    assert f"turned out {abs(optimism):.4f} bits per byte {'worse' if optimism > 0 else 'better'} than" in report
    assert figure(decision)[:4] == b"\x89PNG"


def test_arms_by_another_column_have_a_response_measured_by_source() -> None:
    tiers = [{**arm, "weights": {"gold": arm["weights"]["code"], "silver": arm["weights"]["web"]}} for arm in ARMS]
    decision = decided(CONFIG.model_copy(update={"target": {"web": 1.0}}), results([0, 0, 0.1, 0], arms=tiers), tiers)
    assert decision.promoted
    assert decision.weights == {"gold": 0.8, "silver": 0.2}
    assert set(decision.response.proposed_weights) == {"gold", "silver"}
    assert figure(decision)


def changed(rows: list[dict], arm: str, by: float, seeds: tuple[int, ...] = (1, 2, 3)) -> list[dict]:
    """The rows with other bits per byte of an arm on some seeds."""
    return [
        {**row, "bpb": {source: value + by for source, value in row["bpb"].items()}}
        if row["arm"] == arm and row["seed"] in seeds
        else row
        for row in rows
    ]


def test_a_decision_is_withheld_if_the_same_mixture_with_other_data_would_have_been_promoted() -> None:
    decision = decided(CONFIG, changed(results([0, 0, 0.1, 0]), "arm-0-again", -0.05))
    assert (decision.promoted, decision.winner) == (False, "arm-0")
    assert decision.weights == WEIGHTS[0]
    assert decision.checks.again.interval[0] > 0
    assert "arm-0 stays, the decision on arm-2 is withheld: the same mixture with other data" in decision.reason
    assert "on the fresh seeds, which would have been promoted" in markdown(decision)


def test_the_report_says_how_far_the_same_mixture_with_other_data_was_in_every_cycle() -> None:
    report = markdown(decided(CONFIG, changed(results([0.1, 0, 0, 0]), "arm-0-again", 0.0123, (0,))))
    assert re.search(r"The same mixture with other data was -0\.01\d\d bits per byte from it in the screening", report)


def test_a_promotion_needs_the_same_sign_at_one_fifth_of_the_learning_rate() -> None:
    decision = decided(CONFIG, changed(results([0, 0, 0.1, 0]), "arm-2-low-lr", 0.2))
    assert not decision.promoted
    assert "arm-2 is not better at one fifth of the learning rate (-0." in decision.reason
    assert decision.checks.low_rate.seeds == (1, 2, 3)
    without = decided(
        CONFIG.model_copy(update={"lr_check": False}), changed(results([0, 0, 0.1, 0]), "arm-2-low-lr", 0.2)
    )
    assert without.promoted
    assert "The learning rate was not varied" in markdown(without)


def test_the_budget_pays_for_as_many_seeds_at_the_low_rate_as_it_has_left() -> None:
    # 5 runs of the screening, 9 of the confirmation, and 4 at the low rate.
    decision = decided(CONFIG.model_copy(update={"budget": BudgetConfig(runs=19)}), results([0, 0, 0.1, 0]))
    assert decision.promoted
    assert decision.checks.low_rate.seeds == (1, 2)
    assert decision.runs == 18


def test_a_source_that_is_surely_only_noise_has_no_vote_and_the_report_says_so() -> None:
    config = CanaryConfig(confirmations=3, seeds=(0, 1), guard_share=1.0)
    rows = results([0, 0.02, 0.1, 0.05], 0.001, config)
    noise = {"arm-0": 0.1, "arm-0-again": -0.1, "arm-1": 0.2, "arm-2": -0.2, "arm-3": 0.05}
    for row in rows:  # in `web`, the runs of an arm differ, and the means of the arms do not
        row["bpb"]["web"] = 2 + (-1) ** row["seed"] * noise[row["arm"].removesuffix("-low-lr")]
    decision = decided(config, rows)
    assert decision.target == {"code": 1.0}
    assert decision.signals["web"].upper < 1 < decision.signals["code"].ratio
    assert decision.winner == "arm-2"
    assert re.search(r"\| web \|.*\| does not vote \|", markdown(decision))


def test_if_no_source_tells_arms_from_noise_nothing_is_confirmed() -> None:
    config = CanaryConfig(confirmations=3, seeds=(0, 1))
    rows = results([0] * 4, 0.0, config)
    for row in rows:
        row["bpb"] = dict.fromkeys(row["bpb"], 2 + 0.1 * (-1) ** (row["seed"] + int(row["arm"][4])))
    decision = decided(config, rows)
    assert decision.target == {}
    assert decision.reason == "arm-0 stays: no source tells the arms apart from noise, so none votes"
    assert markdown(decision)


def test_the_report_states_in_plain_words_first_decision_certainty_cost_and_what_would_change_it() -> None:
    report = markdown(decided(CONFIG, results([0, 0, 0.1, 0])))
    head = report.partition("\n## ")[0]
    assert "**Use a new mixture: code 80.0% (was 50.0%), web 20.0% (was 50.0%).** Small models that read it" in head
    assert "**Keep the mixture: code 50.0%, web 50.0%.**" in markdown(decided(CONFIG, results([0.1, 0, 0, 0])))
    for part in ("arm-2 replaces arm-0", "*How sure:*", "*Cost:* 20 runs x", "*What would change it:*"):
        assert part in head
    assert "These models are too small to rank mixtures for a large one" in head
    assert "- At one fifth of the learning rate, the mean difference must have the same sign." in report


SEEDS = (0, 1, 2)
QUIZ = CanaryConfig(confirmations=3, seeds=SEEDS, guard_share=0.05, tasks=("quiz",), target={"quiz": 1.0})
NOISE = {"arm-0": 0.1, "arm-0-again": -0.1, "arm-1": 0.2, "arm-2": -0.2, "arm-3": 0.05}


def quizzed(
    rows: list[dict], choice: dict[str, float], answer: dict[str, float] | None = None, quiet: float = 1e-3
) -> list[dict]:
    """The rows with a task: bits of its choice and its answer by arm, and some noise; without them, only noise."""
    for row in rows:
        arm, noise = (
            row["arm"].removesuffix("-low-lr"),
            (0.0, 1.0, -1.0)[row["seed"] % 3] * NOISE[row["arm"].removesuffix("-low-lr")],
        )
        for metric, gain in (("choice", choice), ("answer", answer or {})):
            level = gain.get(arm, 0.0) + quiet * noise if gain else noise
            row["bpb"][f"quiz/{metric}"] = 1.5 + level
    return rows


def test_a_task_is_measured_by_the_metric_that_tells_the_arms_apart_and_the_fresh_seeds_by_the_same_one() -> None:
    better = {"arm-1": 0.02, "arm-2": -0.1, "arm-3": -0.03}
    decision = decided(QUIZ, quizzed(results([0] * 4, config=QUIZ), choice=better))
    about = decision.tasks["quiz"]
    assert about.metric == "choice"
    assert about.metrics["answer"].ratio < 1 < about.metrics["choice"].ratio
    assert decision.target["quiz"] == 1
    assert (decision.winner, decision.confirmation.difference) == ("arm-2", pytest.approx(0.1, abs=1e-3))
    assert decision.reason.endswith("bits of the target on 3 fresh seeds, 95% sure")
    assert re.search(r"\| quiz \| choice \|.*\| 1\.000 \| its ratio is .+, that of answer 0 \|", markdown(decision))
    assert figure(decision)[:4] == b"\x89PNG"
    opposite = decided(QUIZ, quizzed(results([0] * 4, config=QUIZ), choice={}, answer=better))
    assert (opposite.tasks["quiz"].metric, opposite.winner) == ("answer", "arm-2")


def test_a_task_that_is_noise_by_both_metrics_has_no_vote_and_the_report_says_why() -> None:
    config = QUIZ.model_copy(update={"target": {"quiz": 0.5, "code": 0.5}})
    decision = decided(config, quizzed(results([0, 0, 0.1, 0], config=config), choice={}))
    assert decision.target == {"code": 1.0, "web": 0.0}
    assert decision.winner == "arm-2"
    assert re.search(r"\| quiz \| answer \|.*\| does not vote \|.*; below the floor, so the task", markdown(decision))
    # A source would vote: that its ratio is below the floor is not sure.
    unsure = decided(config, quizzed(results([0, 0, 0.1, 0], config=config), choice={"arm-2": -0.3}, quiet=1.0))
    assert 0 < unsure.signals["quiz"].ratio < 1 < unsure.signals["quiz"].upper
    assert unsure.target == {"code": 1.0, "web": 0.0}
    alone = decided(QUIZ, quizzed(results([0, 0, 0.1, 0], config=QUIZ), choice={}))
    assert alone.reason == "arm-0 stays: no source and no task tells the arms apart from noise, so none votes"


def test_a_task_without_choices_has_a_single_metric() -> None:
    rows = quizzed(results([0] * 4, config=QUIZ), choice={}, answer={"arm-2": -0.1})
    for row in rows:
        row["bpb"].pop("quiz/choice", None)  # two rows have the same values
    decision = decided(QUIZ, rows)
    assert decision.winner == "arm-2"
    assert "| the task has no choices |" in markdown(decision)


def test_a_guarded_task_that_becomes_worse_blocks_the_promotion() -> None:
    config = QUIZ.model_copy(update={"target": {"code": 1.0}, "guarded": ("quiz",)})
    worse = {"arm-2": 0.2}
    rows = quizzed(results([0, -0.1, 0.3, -0.1], config=config), choice=worse)
    assert decided(config.model_copy(update={"guarded": ()}), rows).winner == "arm-2"
    assert "arms better on the target make guarded sources or tasks worse (quiz +13" in decided(config, rows).reason
    for row in rows:  # now on the fresh seeds only
        if (row["arm"], row["seed"]) in {("arm-2", seed) for seed in SEEDS}:
            row["bpb"]["quiz/choice"] = 1.45
    decision = decided(config, rows)
    assert decision.confirmation.interval[0] > 0
    assert decision.reason.startswith("arm-0 stays: arm-2 makes guarded sources or tasks worse (quiz +13")


def test_the_rule_for_the_metrics_of_tasks_is_registered_and_a_cycle_without_tasks_states_nothing_of_it() -> None:
    cost = CycleCost(CONFIG, 256, 32)
    [added] = [rule for rule in rules(QUIZ, cost, 5) if "The tasks quiz are measured" in rule]
    assert "the larger signal-to-noise ratio in all runs of the screening" in added
    assert "only if this ratio is at least 1" in added
    plain = decided(CONFIG, results([0, 0, 0.1, 0]))
    assert "task" not in plain.content().decode() + markdown(plain)
