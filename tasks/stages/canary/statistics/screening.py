"""The screening so far: bits per byte of every arm, which sources vote in the target, response and leading mixture.

Reads the arms of all rounds and the content of their `result.json`. Both the next round and the finalist come from it.
A task is measured like one more source, by the metric that tells the arms apart best; that choice is no fresh look at
the runs that decide, which have other seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tasks.core.errors import InputError
from tasks.stages.canary import CanaryConfig
from tasks.stages.canary.decision import Lead, Signal
from tasks.stages.canary.design import Floats, Space
from tasks.stages.canary.registration import Arm, Cycle, column
from tasks.stages.canary.statistics import comparison
from tasks.stages.canary.statistics.pooled import Fitted, Runs, with_evidence
from tasks.stages.canary.statistics.response import Response, fit

_DRAWS = 400
_USEFUL = 0.5
"""Rank correlation of the response's left-out predictions from which on it selects; below it, measurements do."""
_RANKED = 5
_GUARD_STEPS = 20


@dataclass(frozen=True)
class Screening:
    """Results of the screening.

    Attributes:
        config: settings of the cycle.
        arms: the arms without the A/A arm; the first is the current mixture.
        sources: sources that have held-out text, then the tasks.
        bpb: bits per byte, or bits of a task, shape (arms, seeds, sources).
        again: that of the A/A arm, shape (seeds, sources).
        space: the mixtures among which the cycle looks.
        evidence: registered cycles before this one, and the content of its sources (`arms`); {} without.
        tasks: signal and noise of each task by each of its metrics.
    """

    config: CanaryConfig
    arms: Sequence[Arm]
    sources: Sequence[str]
    bpb: Floats
    again: Floats
    space: Space
    evidence: Mapping[str, Any]
    tasks: Mapping[str, Mapping[str, Signal]]

    @classmethod
    def of(cls, config: CanaryConfig, cycle: Cycle) -> "Screening":
        """Collects the results of all rounds; raises InputError if one is missing or has other weights than its arm."""
        arms, registered = cycle["arms"], cycle["registered"]
        space = Space.of(config, registered["sequences"], registered["kept"])
        columns, bpb = bpb_of(arms, config.seeds, cycle["results"])
        again = next(index for index, arm in enumerate(arms) if arm.get("again"))
        rest = [index for index in range(len(arms)) if index != again]
        found = comparison.signals(bpb[rest], bpb[again], config.signal_floor, surely=False)
        tasks = _by_task(config.tasks, dict(zip(columns, found, strict=True)))
        sources, bpb = selected(columns, bpb, chosen_metrics(tasks))
        among = [arms[index] for index in rest]
        return cls(config, among, sources, bpb[rest], bpb[again], space, cycle.get("evidence", {}), tasks)

    @cached_property
    def metrics(self) -> dict[str, str]:
        """The metric by which each task is measured."""
        return chosen_metrics(self.tasks)

    @property
    def columns(self) -> list[str]:
        """The names of `sources` in results and evidence, where tasks have one for each metric."""
        return [column(name, self.metrics[name]) if name in self.metrics else name for name in self.sources]

    @cached_property
    def signals(self) -> dict[str, Signal]:
        """The signal and noise of each source and task, and whether it votes."""
        found = comparison.signals(self.bpb, self.again, self.config.signal_floor)
        of_tasks = {task: self.tasks[task][metric] for task, metric in self.metrics.items()}
        return dict(zip(self.sources, found, strict=True)) | of_tasks

    @cached_property
    def target(self) -> dict[str, float]:
        """Weight of each voting source in the target; {} if none votes."""
        asked = self.config.target or dict.fromkeys(self.sources, 1.0)
        voting = {source: asked.get(source, 0.0) for source, signal in self.signals.items() if signal.votes}
        whole = sum(voting.values())
        return {source: weight / whole for source, weight in voting.items()} if whole else {}

    @cached_property
    def goal(self) -> Floats:
        """Weight of each source in the target, shape (sources,). If none votes, that of the settings."""
        return weights_of(self.target or self.config.target or dict.fromkeys(self.sources, 1.0), self.sources)

    @property
    def scores(self) -> Floats:
        """Bits per byte of the target, shape (arms, seeds)."""
        return np.asarray(self.bpb @ self.goal)

    @cached_property
    def regressions(self) -> list[dict[str, float]]:
        """Guarded sources that an arm makes worse than the current mixture by more than the guard, by arm."""
        means = self.bpb.mean(1)
        return [worse(self.config, self.sources, row, means[0]) for row in means]

    @cached_property
    def shares(self) -> Floats:
        """Shares of the groups in the arms, shape (arms, groups)."""
        return np.array([self.space.shares(arm["weights"]) for arm in self.arms])

    @property
    def response(self) -> Response | None:
        """The response of the target to the shares of the groups; None for too few arms or groups, or for settings."""
        return self.fitted.response if self.fitted else None

    @cached_property
    def fitted(self) -> Fitted | None:
        """The response, with the runs of earlier cycles if these improve it."""
        if self.config.settings or len(self.arms) < 3 or self.shares.shape[1] < 2 or not self.target:
            return None
        number = dict(zip(self.space.sources, self.space.group, strict=True))
        runs = self.runs(mean=False)
        alone = fit(
            runs.shares,
            runs.bpb,
            self.goal,
            # Arms that weight another column (`[pack] by`) are measured by source nevertheless.
            own=[number.get(source) for source in self.sources],
            epochs=self.space.epochs,
            forms=self.config.forms,
        )
        return with_evidence(alone, runs, self.earlier, self.goal, self.columns, self.config.forms)

    @property
    def earlier(self) -> Sequence[Mapping[str, Any]]:
        """The registered cycles before this one (`evidence.EarlierCycle`); none for settings, which fit no response."""
        cycles: Sequence[Mapping[str, Any]] = () if self.config.settings else self.evidence.get("cycles", ())
        return cycles

    def runs(self, *, mean: bool) -> Runs:
        """Returns the runs of this cycle for the fit: one for each arm (`mean`), or for each arm and seed."""
        columns: list[dict[str, float]] = [{} for _ in range(self.shares.shape[1])]
        for source, group, ratio in zip(self.space.sources, self.space.group, self.space.ratios.tolist(), strict=True):
            columns[group][source] = ratio
        bpb = self.bpb.mean(1) if mean else self.bpb.reshape(-1, len(self.sources))
        shares = np.repeat(self.shares, len(bpb) // len(self.arms), axis=0)
        content = self.evidence.get("content", {})
        return Runs(columns, self.space.epochs, content, shares, bpb, np.ones(len(bpb)))

    @property
    def selects(self) -> bool:
        """Whether the response ranks arms that it has not seen well enough to select a mixture.

        A fit to at most two arms for each group, of this cycle and earlier ones that are used, is hardly determined,
        and a rank correlation of fewer than `_RANKED` arms says little.
        """
        agreement = self.response.judgement.rank_agreement if self.response else None
        arms = len(self.arms) + (self.fitted.earlier_arms if self.fitted else 0)
        enough = len(self.arms) >= _RANKED and arms > 2 * self.shares.shape[1]
        return agreement is not None and agreement >= _USEFUL and enough

    @cached_property
    def proposal(self) -> Floats | None:
        """The feasible shares with the lowest predicted target, shape (groups,); None without a response.

        Moved towards the current mixture until no guarded source is predicted to become too much worse.
        """
        if self.response is None:
            return None
        upper = self.space.region.upper
        best = self.space.region.nearest(self.response.best(np.zeros_like(upper), upper))
        current = mixed = self.shares[0]
        for step in range(_GUARD_STEPS):
            mixed = best + (current - best) * step / _GUARD_STEPS
            predicted = self.response.predict_sources(np.stack([mixed, current]))
            if not worse(self.config, self.sources, predicted[0], predicted[1]):
                break
            mixed = current
        rounded = np.round(mixed, 3)
        return self.space.region.nearest(np.asarray(rounded / rounded.sum()))

    @cached_property
    def lead(self) -> Lead | None:
        """The best mixture that regresses on no guarded source; None if none is lower than the current one."""
        if not self.target:
            return None
        if self.response is None or self.proposal is None or not self.selects:
            excluded = {index for index, regressions in enumerate(self.regressions) if regressions}
            best = comparison.finalist(self.scores, excluded)
            return None if best is None else self._lead_of(best, float(self.scores[best].mean()))
        predicted = self.response.predict(np.concatenate([self.shares, self.proposal[None]]))
        order = np.argsort(np.round(predicted, 9), kind="stable").tolist()
        first = next(index for index in order if index == len(self.arms) or not self.regressions[index])
        return self._lead_of(first, float(predicted[first])) if predicted[first] < predicted[0] else None

    def _lead_of(self, index: int, bpb: float) -> Lead:
        """Returns the lead of an arm; after the last one comes the proposal."""
        if index < len(self.arms):
            arm = self.arms[index]
            probability = self._probability(self.shares[index])
            return Lead(weights=arm["weights"], arm=arm["arm"], probability=probability, bpb=bpb)
        assert self.proposal is not None
        probability = self._probability(self.proposal)
        return Lead(weights=self.space.mixture(self.proposal), arm="", probability=probability, bpb=bpb)

    def _probability(self, shares: Floats) -> float | None:
        """Returns the probability that shares are lower than the current mixture, by the response."""
        if self.response is None:
            return None
        drawn = self.response.samples(np.stack([shares, self.shares[0]]), _DRAWS, np.random.default_rng(0))
        return float((drawn[:, 0] < drawn[:, 1]).mean())


def weights_of(target: Mapping[str, float], sources: Sequence[str]) -> Floats:
    """Returns the share of each source in the target, shape (sources,)."""
    weights = np.array([target.get(source, 0.0) for source in sources])
    return np.asarray(weights / weights.sum())


def worse(config: CanaryConfig, sources: Sequence[str], bpb: Floats, current: Floats) -> dict[str, float]:
    """Returns the regressions of bits per byte, of shape (sources,), on the guarded ones of the sources and tasks."""
    guarded = config.guarded or tuple(source for source in sources if source not in config.tasks)
    return comparison.regressions(bpb, current, sources, guarded, config.guard_share)


def _by_task(tasks: Sequence[str], signals: Mapping[str, Signal]) -> dict[str, dict[str, Signal]]:
    """Returns the signals of each task by metric, from those by column."""
    found: dict[str, dict[str, Signal]] = {task: {} for task in tasks}
    for name, signal in signals.items():
        task, _, metric = name.partition("/")
        if metric:
            found[task][metric] = signal
    return found


def chosen_metrics(tasks: Mapping[str, Mapping[str, Signal]]) -> dict[str, str]:
    """Returns the metric of each task with the largest signal-to-noise ratio, the first of equal ones."""
    return {task: max(found, key=lambda metric: found[metric].strength) for task, found in tasks.items()}


def selected(columns: Sequence[str], bpb: Floats, metrics: Mapping[str, str]) -> tuple[list[str], Floats]:
    """Returns the names and values of the sources, and of each task by its metric.

    Args:
        columns: of a result, see `registration.column`.
        bpb: their values, shape (..., columns).
        metrics: the metric of each task.
    """
    names = {name: name for name in columns if "/" not in name}
    names |= {task: column(task, metric) for task, metric in sorted(metrics.items())}
    return list(names), np.take(bpb, [columns.index(name) for name in names.values()], axis=-1)


def bpb_of(arms: Sequence[Arm], seeds: Sequence[int], results: Sequence[Mapping[str, Any]]) -> tuple[list[str], Floats]:
    """Returns the columns of the results, sources and metrics of tasks, and their bits, shape (arms, seeds, columns).

    Raises:
        InputError: a result is missing, or has other weights than its arm.
    """
    by_run = {(result["arm"], result["seed"]): result for result in results}
    missing = [f"{arm['arm']}-seed-{s}" for arm in arms for s in seeds if (arm["arm"], s) not in by_run]
    if missing:
        raise InputError(f"no result of {', '.join(missing)}", "run the stages canary and confirm for these members")
    for arm in arms:
        for seed in seeds:
            if by_run[arm["arm"], seed]["weights"] != arm["weights"]:
                raise InputError(
                    f"{arm['arm']}-seed-{seed} was trained with other weights than {arm['arm']} has now",
                    "run the stages canary and confirm again",
                )
    sources = sorted(by_run[arms[0]["arm"], seeds[0]]["bpb"])
    rows = [[[by_run[arm["arm"], s]["bpb"][source] for source in sources] for s in seeds] for arm in arms]
    return sources, np.array(rows, dtype=np.float64)
