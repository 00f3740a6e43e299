"""Canary cycles, simulated: how often equal mixtures are promoted, and how near the planted optimum a cycle ends.

    python -m benchmarks.canaries [--cycles N] [--share S]

Six tables. The first two simulate the rule of the confirmation alone, many times; the others run the functions of the
stages (arms of every round, screening, finalist, confirmation, decision) on planted responses.

`equal`: percentage of cycles that promote an arm although all are equal, by number of arms (with the current mixture),
seeds of the screening and of the confirmation, and noise: in one arm, or in the current mixture, it is up to 25 times
as large. Rules: `confirmed`, that of the product, and `pooled`, intervals with one variance pooled over the arms and
Dunnett's quantile. Nominal are at most 2.5 %. `power`: percentage that promote the one better arm, by its advantage in
standard deviations of a run, at equal numbers of runs.

`again`: the same with the whole loop of the product: equal mixtures of three sources, 2 to 16 arms, 2 to 5 seeds, noise
ratios 1 to 25. `planted`: cycles of at most 32 screening runs on responses with a known optimum of 3 to 10 sources (a
power of each source's own text and a little of the others', noise of 0.2 %): L1 distance of the mixture that the cycle
selects from the optimum; its regret@1, in bits per byte of the target; and whether it is better than the lowest of a
grid, of a stratified sample (Sobol) and of a random search with as many runs. `added`: a source is added after a
finished cycle; a cycle that keeps the ratios of the old sources, with a quarter of the runs, against a whole one:
both decide alike if both keep or both promote, and its mixture is not worse by more than one run's noise.
`remembered`: a cycle of 8 runs with and without the 23 runs of an earlier one, of another size: regret of the mixture
that it selects, where both cycles have one response, and where the earlier one had another, so that its runs mislead.

Writes `canaries.json`.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.stats import qmc

from benchmarks.harness import keep, last, parser
from tasks.stages.canary import CanaryConfig
from tasks.stages.canary.arms import first, following, with_results
from tasks.stages.canary.cost import CycleCost
from tasks.stages.canary.decision import Decision, Screened
from tasks.stages.canary.evidence import entering
from tasks.stages.canary.finalist import confirming
from tasks.stages.canary.registration import seeds_of
from tasks.stages.canary.statistics import decide, screen
from tasks.stages.canary.statistics.comparison import Floats, confirm, finalist

CONFIDENCE = 0.95
SEED_EFFECT = 5.0
"""Standard deviation of a seed's effect on all arms, in those of a run."""
NOISE = 0.002
"""Standard deviation of log(bpb) of a run on a planted response."""
RUNS = 32
"""The most runs of a screening on a planted response."""


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


@dataclass
class World:
    """A planted response: log(bpb) of source i is level_i - exponent_i * log(sum_j worth_ij w_j + 0.01).

    Attributes:
        sequences: by source.
        level: shape (sources,).
        exponent: shape (sources,).
        worth: shape (sources, sources), 1 on the diagonal.
        seed: of the noise of its runs.
        ratio: how many times as noisy the runs of the arm `noisy` are.
        noisy: name of an arm.
        content: share of each label in each source, as recorded in `evidence.json`.
    """

    sequences: dict[str, int]
    level: Floats
    exponent: Floats
    worth: Floats
    seed: int
    ratio: float = 1.0
    noisy: str = ""
    content: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def planted(cls, sources: int, seed: int) -> "World":
        """Returns a world of some sources; every seed has another optimum."""
        rng = np.random.default_rng([seed, sources])
        worth = np.where(rng.random((sources, sources)) < 0.3, rng.uniform(0, 0.2, (sources, sources)), 0.0)
        np.fill_diagonal(worth, 1.0)
        counts = np.maximum(rng.dirichlet(np.full(sources, 2.0)), 0.02) * 10_000_000
        names = [f"s{index}" for index in range(sources)]
        sequences = dict(zip(names, counts.astype(int).tolist(), strict=True))
        return cls(sequences, rng.uniform(-0.2, 0.3, sources), rng.uniform(0.05, 0.15, sources), worth, seed)

    def without_the_last(self) -> "World":
        """Returns the world before its last source was added."""
        count = len(self.level) - 1
        sequences = dict(list(self.sequences.items())[:count])
        return World(
            sequences, self.level[:count], self.exponent[:count], self.worth[:count, :count], self.seed + 1_000_000
        )

    def bpb(self, weights: Floats) -> Floats:
        """Returns the bits per byte of each source without noise, shape (n, sources)."""
        return np.asarray(np.exp(self.level - self.exponent * np.log(weights @ self.worth.T + 0.01)))

    def target(self, weights: Floats) -> Floats:
        """Returns the target without noise, shape (n,), for weights of shape (n, sources)."""
        return np.asarray(self.bpb(weights).mean(1))

    def optimum(self) -> Floats:
        """Returns the best mixture, shape (sources,); the response is convex."""
        count = len(self.level)
        found = minimize(
            lambda weights: float(self.target(weights[None])[0]),
            np.full(count, 1 / count),
            bounds=[(0.0, 1.0)] * count,
            constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-12, "maxiter": 500},
        )
        return np.asarray(found.x / found.x.sum())

    def vector(self, weights: dict[str, float]) -> Floats:
        """Returns weights by name as an array."""
        return np.array([weights[source] for source in self.sequences])

    def run(self, arm: dict[str, Any], seed: int) -> dict[str, Any]:
        """Returns the result of a run: an effect of the seed on all arms, and noise of its own."""
        names = sorted(self.sequences)
        order = [list(self.sequences).index(name) for name in names]
        common = np.random.default_rng([self.seed, seed]).normal(0, SEED_EFFECT * NOISE)
        noise = NOISE * (self.ratio if arm["arm"] == self.noisy else 1.0)
        key = [self.seed, seed, *arm["arm"].encode()]
        own = np.random.default_rng(key).normal(0, noise, len(names))
        bpb = self.bpb(self.vector(arm["weights"])[None])[0][order] * np.exp(common + own)
        rounded = {name: round(float(value), 6) for name, value in zip(names, bpb, strict=True)}
        return {"arm": arm["arm"], "seed": seed, "weights": arm["weights"], "bpb": rounded}


@dataclass(frozen=True)
class Simulated:
    """A whole cycle."""

    screened: Screened
    decision: Decision

    @property
    def selected(self) -> dict[str, float]:
        """The mixture that looked best in the screening."""
        return self.screened.lead.weights if self.screened.lead else self.screened.arms[0].weights


def cycle_in(
    world: World,
    config: CanaryConfig,
    previous: Decision | None = None,
    earlier: Sequence[Mapping[str, Any]] | None = None,
) -> Simulated:
    """Returns a whole cycle by the functions of the stages.

    Args:
        world: the planted response.
        config: settings of the cycle.
        previous: decision of the cycle before.
        earlier: `evidence` of the cycle before, whose runs enter the fit; the result has it with this cycle's. None:
            no evidence is kept.
    """
    cost = CycleCost(config, vocab_size=4096, seq_len=256)
    accepted = previous.weights if previous else None
    proposed = previous.response.proposed_weights if previous and previous.response else None
    cycle = first(config, world.sequences, cost, accepted, proposed)
    if earlier is not None:
        flops = cost.flops(config.model)
        known = entering(earlier, "before", "source", flops)
        cycle = {**cycle, "evidence": {**known, "by": "source", "flops": flops, "content": world.content}}
    for number in range(1, config.rounds + 1):
        names = cycle["rounds"][-1]["arms"]
        results = [world.run(arm, seed) for arm in cycle["arms"] if arm["arm"] in names for seed in config.seeds]
        cycle = following(config, cycle, results, cost) if number < config.rounds else with_results(cycle, results)
    screened = screen(config, cycle, cost)
    arms = confirming(config, cycle, screened)
    fresh = [world.run(arm, seed) for arm in arms for seed in seeds_of(config, arm)]
    return Simulated(screened, decide(config, screened, arms, fresh, cost))


def of_equal_mixtures(cycles: int) -> dict[str, Any]:
    """Returns the percentage of whole cycles that promote one of equal mixtures of three sources."""
    settings = list(product((2, 4, 8, 16), (2, 3, 5), ((1, 0), (5, 0), (25, 0), (5, 1), (25, 1))))
    promoted = withheld = 0
    for number in range(cycles):
        arms, seeds, (ratio, noisy) = settings[number % len(settings)]
        world = World.planted(3, number)
        world.exponent, world.ratio, world.noisy = np.zeros(3), float(ratio), "arm-1" if noisy else "arm-0"
        # In two rounds; the current mixture is one of the arms, the A/A arm is not.
        later = (arms - 1) // 2
        config = CanaryConfig(
            anchors=(),
            arms=arms - 1 - later,
            rounds=2 if later else 1,
            seeds=tuple(range(seeds)),
            confirmations=max(3, seeds),
            signal_floor=0,
            guard_share=10,
            lr_check=False,
            forms=("log-linear",),
        )
        decision = cycle_in(world, config).decision
        promoted += decision.promoted
        withheld += "withheld" in decision.reason
    share = round(100 * promoted / cycles, 2)
    return {"cycles": cycles, "promoted": share, "withheld": round(100 * withheld / cycles, 2)}


def planted_config(sources: int) -> CanaryConfig:
    """Returns settings for at most `RUNS` runs in three rounds: current, A/A and uniform, and nine new arms a round."""
    return CanaryConfig(
        anchors=("uniform",),
        arms=(RUNS - 3) // 3,
        rounds=3,
        sure=1.0,
        max_kl=5.0,
        guard_share=10,
        forms=("power",),
        steps=100,
        batch_size=16,
        lr_check=False,
        confirmations=3,
        sample_seed=sources,
    )


def grid(sources: int, count: int) -> Floats:
    """Returns the finest regular grid of mixtures of at most `count` points, with the uniform mixture."""
    best = np.eye(sources)
    for parts in range(2, 50):
        chosen = list(combinations_with_replacement(range(sources), parts))
        if len(chosen) >= count:
            break
        best = np.array([np.bincount(one, minlength=sources) / parts for one in chosen])
    return np.concatenate([np.full((1, sources), 1 / sources), best])[:count]


def rivals(world: World, count: int, seed: int) -> dict[str, float]:
    """Returns the target, without noise, of the mixture that each other method selects with `count` runs."""
    sources = len(world.level)
    rng = np.random.default_rng([seed, 7])
    cubes = qmc.Sobol(sources, seed=np.random.default_rng([seed, 8])).random(64)[:count]
    spacings = -np.log(np.clip(cubes, 1e-9, 1))
    designs = {
        "grid": grid(sources, count),
        "stratified": spacings / spacings.sum(1, keepdims=True),
        "random": rng.dirichlet(np.ones(sources), count),
    }
    found = {}
    for name, design in designs.items():
        measured = (world.bpb(design) * np.exp(rng.normal(0, NOISE, (len(design), sources)))).mean(1)
        found[name] = float(world.target(design[[int(measured.argmin())]])[0])
    return found


def of_planted_optima(cycles: int) -> dict[str, Any]:
    """Returns distance from the optimum, regret and comparisons, by number of sources and over all cycles."""
    rows = []
    for number in range(cycles):
        sources = (3, 4, 6, 8, 10)[number % 5]
        world = World.planted(sources, number)
        cycle = cycle_in(world, planted_config(sources))
        selected, optimum = world.vector(cycle.selected), world.optimum()
        reached, lowest = (float(world.target(weights[None])[0]) for weights in (selected, optimum))
        others = rivals(world, cycle.screened.runs, number)
        rows.append(
            {
                "sources": sources,
                "runs": cycle.screened.runs,
                "l1": float(np.abs(selected - optimum).sum()),
                "regret": reached - lowest,
                "promoted": cycle.decision.promoted,
                **{f"better_than_{name}": reached < value for name, value in others.items()},
            }
        )
    return {"cycles": cycles, "all": _summary(rows)} | {
        f"{sources}_sources": _summary([row for row in rows if row["sources"] == sources])
        for sources in (3, 4, 6, 8, 10)
        if any(row["sources"] == sources for row in rows)
    }


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    distances, regrets = [row["l1"] for row in rows], [row["regret"] for row in rows]
    shares = {key: [row[key] for row in rows] for key in rows[0] if key.startswith("better") or key == "promoted"}
    return {
        "most_runs": max(row["runs"] for row in rows),
        "l1_median": round(float(np.median(distances)), 4),
        "l1_within_0.10": round(100 * float(np.mean(np.array(distances) <= 0.10)), 1),
        "l1_90_percent": round(float(np.quantile(distances, 0.9)), 4),
        "regret_at_1_median": round(float(np.median(regrets)), 6),
        "regret_at_1_90_percent": round(float(np.quantile(regrets, 0.9)), 6),
        **{key: round(100 * float(np.mean(values)), 1) for key, values in shares.items()},
    }


def of_added_sources(cases: int) -> dict[str, Any]:
    """Returns how often a cycle that reuses the old sources' ratios decides as a whole one."""
    alike, runs, whole_runs, worse = 0, 0, 0, []
    for number in range(cases):
        sources = (3, 4, 5, 6)[number % 4]
        world, config = World.planted(sources, 10_000 + number), planted_config(sources)
        before = cycle_in(world.without_the_last(), config).decision
        reused, whole = (
            cycle_in(world, config, before),
            cycle_in(world, config.model_copy(update={"reuse": False}), before),
        )
        ours, full = (float(world.target(world.vector(one.decision.weights)[None])[0]) for one in (reused, whole))
        worse.append(ours / full - 1)
        alike += reused.decision.promoted == whole.decision.promoted and worse[-1] <= NOISE
        runs, whole_runs = max(runs, reused.screened.runs), max(whole_runs, whole.screened.runs)
    return {
        "cases": cases,
        "alike": round(100 * alike / cases, 1),
        "most_runs": runs,
        "whole_runs": whole_runs,
        "worse_by_median": round(float(np.median(worse)), 5),
    }


def of_remembered_runs(cases: int) -> dict[str, Any]:
    """Returns what the runs of an earlier cycle add to one of 8 runs, where the response is the same or another."""
    table: dict[str, Any] = {"cases": cases}
    for kind in ("same", "another"):
        rows = []
        for number in range(cases):
            sources = (3, 4, 5, 6)[number % 4]
            world, config = World.planted(sources, 20_000 + number), planted_config(sources)
            known = cycle_in(world, config.model_copy(update={"rounds": 1, "arms": 20}), earlier=[]).screened.evidence
            # Another size: higher bits per byte that depend less on the mixture; and other noise.
            later = replace(world, level=world.level + 0.1, exponent=world.exponent * 0.8, seed=world.seed + 1)
            if kind == "another":
                later = replace(World.planted(sources, 30_000 + number), sequences=world.sequences)
            small = config.model_copy(update={"rounds": 1, "arms": 5})
            lowest = float(later.target(later.optimum()[None])[0])
            found: dict[str, Any] = {}
            for name, earlier in (("with", known), ("without", ())):
                cycle = cycle_in(later, small, earlier=earlier)
                found[name] = float(later.target(later.vector(cycle.selected)[None])[0]) - lowest
                if earlier:
                    found["used"] = cycle.screened.earlier.used != "alone"
                    backtest = cycle.screened.earlier.backtest
                    found["rank"] = backtest and backtest.rank_agreement
            rows.append(found)
        table[kind] = {
            **{
                f"regret_{name}": round(float(np.median([row[name] for row in rows])), 5)
                for name in ("with", "without")
            },
            "better": round(100 * float(np.mean([row["with"] < row["without"] for row in rows])), 1),
            "worse": round(100 * float(np.mean([row["with"] > row["without"] for row in rows])), 1),
            "used": round(100 * float(np.mean([row["used"] for row in rows])), 1),
            "backtest_rank_median": round(float(np.median([row["rank"] for row in rows])), 2),
        }
    return table


def measure(options: argparse.Namespace) -> None:
    """Simulates all tables, prints and keeps them."""
    share = options.share
    if options.only_remembered:
        table = of_remembered_runs(max(4, int(100 * share)))
        print(table)
        keep("canaries", {**last("canaries"), "remembered": table})
        return
    tables: dict[str, Any] = {
        "planted": of_planted_optima(max(5, int(200 * share))),
        "added": of_added_sources(max(4, int(100 * share))),
        "again": of_equal_mixtures(max(60, int(2_000 * share))),
        "remembered": of_remembered_runs(max(4, int(100 * share))),
    }
    for name, table in tables.items():
        print(name, table, flush=True)
    equal, power = of_equal_arms(options.cycles), of_a_better_arm(options.cycles)
    for row in (*equal, *power):
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    largest = {rule: max(row[rule] for row in equal) for rule in ("confirmed", "pooled")}
    keep("canaries", {"cycles": options.cycles, "largest": largest, **tables, "equal": equal, "power": power})


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--cycles", type=int, default=2_000, help="simulated cycles of each row of equal and power")
    options.add_argument("--only-remembered", action="store_true", help="only that table")
    options.add_argument("--share", type=float, default=1.0, help="share of the cycles of the other tables")
    measure(options.parse_args())
