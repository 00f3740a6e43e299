"""How often a canary cycle of equal arms promotes one, and how often it promotes a better one: simulated.

    python -m benchmarks.canaries [--cycles N]

A run's score is the effect of its arm, plus that of its seed (paired), plus normal noise of its own; in one arm, or in
the current mixture, the noise is up to 25 times as large. Every cycle is decided by two rules:

- `confirmed`: the rule of the product (`tasks.stages.canary.statistics`): screening, finalist, fresh seeds.
- `pooled`: intervals for all arms together, from one variance pooled over the arms, with Dunnett's quantile.

`equal`: percentage of cycles that promote an arm although all are equal, by number of arms (with the current mixture),
seeds of the screening and of the confirmation, and ratio of the noise; nominal are at most 2.5 %. `power`: percentage
that promote the one better arm, by its advantage in standard deviations of a run, at equal numbers of runs. Writes
`canaries.json`; takes a minute.
"""

import argparse
from itertools import product
from typing import Any

import numpy as np

from benchmarks.harness import keep, parser
from tasks.stages.canary.statistics import Floats, confirm, finalist

CONFIDENCE = 0.95
SEED_EFFECT = 5.0
"""Standard deviation of a seed's effect on all arms, in those of a run."""


def scores(rng: np.random.Generator, effects: Floats, noise: Floats, seeds: int) -> Floats:
    """Returns simulated bits per byte around 0, shape (arms, seeds), for effects and noise of shape (arms,)."""
    own = rng.normal(size=(len(effects), seeds)) * noise[:, None]
    return rng.normal(0, SEED_EFFECT, seeds) - effects[:, None] + own


def confirmed(rng: np.random.Generator, effects: Floats, noise: Floats, seeds: int, fresh: int) -> int:
    """Returns the arm that the product promotes, 0 for none."""
    best = finalist(scores(rng, effects, noise, seeds))
    if best is None:
        return 0
    current, other = scores(rng, effects[[0, best]], noise[[0, best]], fresh)
    return best if confirm(current - other, CONFIDENCE)[0] > 0 else 0


def statistic(rows: Floats) -> Floats:
    """Returns each arm's paired difference to arm 0 over its pooled standard error, shape (arms - 1,)."""
    arms, seeds = rows.shape
    residual = rows - rows.mean(1, keepdims=True) - rows.mean(0) + rows.mean()
    variance = float((residual**2).sum()) / ((arms - 1) * (seeds - 1))
    return np.array((rows[0] - rows[1:]).mean(1) / np.sqrt(2 * variance / seeds))


def quantile(arms: int, seeds: int, draws: int = 20_000) -> float:
    """Returns Dunnett's two-sided quantile, from simulated arms of equal noise."""
    rng = np.random.default_rng(arms * 100 + seeds)
    flat = np.zeros(arms)
    return float(
        np.quantile([abs(statistic(scores(rng, flat, flat + 1, seeds))).max() for _ in range(draws)], CONFIDENCE)
    )


def pooled(rng: np.random.Generator, effects: Floats, noise: Floats, seeds: int, reach: float) -> int:
    """Returns the arm that intervals with a pooled variance promote, 0 for none."""
    found = statistic(scores(rng, effects, noise, seeds))
    return int(found.argmax()) + 1 if found.max() > reach else 0


def of_equal_arms(cycles: int) -> list[dict[str, Any]]:
    """Returns a row for each number of arms, seeds, noisy arm and ratio."""
    rows = []
    for arms, seeds in product((2, 4, 8, 16), (2, 3, 5)):
        reach, flat = quantile(arms, seeds), np.zeros(arms)
        for ratio, noisy in ((1.0, 0), (5.0, 0), (25.0, 0), (5.0, 1), (25.0, 1)):
            noise = flat + 1
            noise[noisy] = ratio
            rng = np.random.default_rng([arms, seeds, int(ratio), noisy])
            fresh = max(3, seeds)
            new = [confirmed(rng, flat, noise, seeds, fresh) > 0 for _ in range(cycles)]
            old = [pooled(rng, flat, noise, seeds, reach) > 0 for _ in range(cycles)]
            rows.append(
                {
                    "arms": arms,
                    "seeds": seeds,
                    "fresh_seeds": fresh,
                    "noisy": "none" if ratio == 1 else "one arm" if noisy else "current mixture",
                    "ratio": ratio,
                    "confirmed": round(100 * float(np.mean(new)), 2),
                    "pooled": round(100 * float(np.mean(old)), 2),
                }
            )
    return rows


def of_a_better_arm(cycles: int) -> list[dict[str, Any]]:
    """Returns a row for each advantage of one of eight arms: 24 runs by either rule, equal noise."""
    rows = []
    for advantage in (1.0, 2.0, 3.0, 4.0, 6.0):
        effects, noise = np.zeros(8), np.ones(8)
        effects[5] = advantage
        rng = np.random.default_rng([int(advantage * 10), 8])
        row: dict[str, Any] = {"advantage": advantage, "runs": 24}
        for name, seeds, fresh in (("confirmed", 1, 8), ("confirmed_two_seeds", 2, 4)):
            found = [confirmed(rng, effects, noise, seeds, fresh) for _ in range(cycles)]
            row[name] = round(100 * float(np.mean(np.array(found) == 5)), 1)
        reach = quantile(8, 3)
        promoted = [pooled(rng, effects, noise, 3, reach) for _ in range(cycles)]
        row["pooled"] = round(100 * float(np.mean(np.array(promoted) == 5)), 1)
        rows.append(row)
    return rows


def measure(options: argparse.Namespace) -> None:
    """Simulates both tables, prints and keeps them."""
    equal, power = of_equal_arms(options.cycles), of_a_better_arm(options.cycles)
    for row in (*equal, *power):
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    largest = {rule: max(row[rule] for row in equal) for rule in ("confirmed", "pooled")}
    keep("canaries", {"cycles": options.cycles, "largest": largest, "equal": equal, "power": power})


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--cycles", type=int, default=2_000, help="simulated cycles of each row")
    measure(options.parse_args())
