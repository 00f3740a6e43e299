"""What a cycle found and decided: `Screened`, the content of `screening.json`, and `Decision`, that of `mixture.json`.

Bits are bits per byte of held-out text, or those of a task; lower is better. A difference is the current mixture minus
the other one: above 0 is an improvement. Figures have six decimals.

Imports neither numpy nor torch: pages, the gate and the command line read decisions.
"""

import json
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.core.errors import InputError

if TYPE_CHECKING:
    from tasks.core.artifact import Artifact
    from tasks.stages.canary.widths import WidthsConfig

Weights = dict[str, float]
"""Share of each source."""


def listed(weights: Mapping[str, float]) -> str:
    """Returns weights as text.

    >>> listed({"web": 0.75, "code": 0.25})
    'code 0.250, web 0.750'
    """
    return ", ".join(f"{source} {share:.3f}" for source, share in sorted(weights.items()))


def encoded(content: Any) -> bytes:
    """Returns the JSON of a file, with sorted keys."""
    return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"


class Record(BaseModel):
    """A frozen part of a decision; keys of another version of the stage are left out."""

    model_config = ConfigDict(frozen=True)


class Signal(Record):
    """How well the held-out text of one source, or a metric of a task, tells mixtures apart."""

    between: float
    """Standard deviation of the arms' means, in bits."""
    noise: float
    """Standard deviation of one run among repeats, in bits."""
    ratio: float | None
    """Variance between the arms beyond the noise, over that of the noise; None if the noise is 0."""
    upper: float | None
    """Upper limit of the ratio (90 % one-sided); None if the noise is 0."""
    votes: bool
    """Whether the source, or the task by this metric, votes in the target."""

    @property
    def strength(self) -> float:
        """The ratio; without noise infinite, or 0 if the arms do not differ either."""
        return (math.inf if self.between else 0.0) if self.ratio is None else self.ratio


class TaskMetrics(Record):
    """A task and the metric by which it is measured."""

    metric: str
    """The metric that tells the arms apart best."""
    metrics: dict[str, Signal]
    """Signal and noise by each of its metrics."""

    @property
    def signal(self) -> Signal:
        """Signal and noise by the metric."""
        return self.metrics[self.metric]


class Measured(Record):
    """An arm, compared with the current mixture."""

    arm: str
    kind: str
    weights: Weights
    difference: float
    """Bits of the current mixture minus those of the arm, on the target: the mean over the seeds."""
    regressions: dict[str, float]
    """Relative increase in bits of each guarded source or task that becomes worse by more than `guard_share`."""

    @property
    def worse(self) -> str:
        """The regressions as text: "code +3.1%, web +5.0%"."""
        return ", ".join(f"{source} {share:+.1%}" for source, share in sorted(self.regressions.items()))


class ScreenedArm(Measured):
    """An arm of the screening."""

    set: dict[str, Any] | None = Field(default=None, exclude_if=lambda changed: changed is None)
    """Settings of an arm of settings, by dotted path."""
    target_bpb: float
    bpb: dict[str, float]
    """Bits of each source and task: means over the seeds."""


class Lead(Record):
    """The mixture that looks best."""

    weights: Weights
    arm: str
    """Name of the arm that has these weights; "" if none has been trained with them."""
    probability: float | None
    """That it is lower than the current mixture, by the response; None without one."""
    bpb: float
    """Of the target, predicted by the response, or measured without one."""


class Fit(Record):
    """The response of the target to the mixture (`response`), and the mixture that it proposes."""

    form: str
    rank_agreement: float | None
    """Spearman's correlation of predictions and measurements of left-out mixtures; None if undefined."""
    accuracy: float
    """Share of pairs of these mixtures that are ordered as measured."""
    error: float
    """Root of the mean squared difference over these mixtures, in bits."""
    optimism: float
    """Mean of measured minus predicted bits in the fifth of these mixtures that is predicted to be best."""
    selects: bool
    """Whether it ranks mixtures well enough to select the finalist."""
    proposed_weights: Weights
    proposed_bpb: float
    """Predicted bits of the proposal, on the target."""
    worth: dict[str, dict[str, float]] | None
    """Worth of a token of each feature for each source or task, in tokens of its own; None in a form without it."""
    left_out_bpb: dict[str, float]
    """Bits of each arm on the target, predicted by the fit to all other arms."""


class Backtest(Record):
    """How the fit to the cycles before a cycle ranks its arms."""

    arms: int
    """Arms of the cycle."""
    runs: int
    """Arms of the cycles before it."""
    features: str
    form: str
    rank_agreement: float | None
    accuracy: float
    regret: float
    """By how much the arm that the fit puts first is worse than the lowest, in bits."""


class Tried(Record):
    """A fit with or without earlier cycles, on left-out mixtures of this one; see `Fit`."""

    rank_agreement: float | None
    error: float


class EarlierRuns(Record):
    """A registered cycle before this one."""

    artifact: str
    age: int
    """In cycles; 1 for the last one."""
    size: float
    """FLOPs of one of its runs over those of a run of this cycle."""
    importance: float
    """Weight of each of its runs in the fit."""
    runs: int
    """Its arms."""
    sha256: str
    backtest: Backtest | None


class Earlier(Record):
    """What the cycles before this one said about it."""

    note: str
    cycles: tuple[EarlierRuns, ...]
    used: str | None
    """"alone", "names" or "content": the fit that predicts left-out arms best; None without a fit."""
    tried: dict[str, Tried]
    backtest: Backtest | None
    """Of this cycle."""


class Round(Record):
    """A round of the screening."""

    round: int
    arms: tuple[str, ...]
    """Names of the arms that it adds."""
    probability: float | None
    """That the best mixture so far is lower than the current one."""
    proposed: Weights | None
    """Proposal of the response to the rounds before it."""
    stopped: str | None
    """Why it has no arms."""


class Registered(Record):
    """What was stated before the first run."""

    sequences: dict[str, int]
    """By source."""
    kept: Weights
    """Ratios of the sources that form one group."""
    most_arms: int | None
    """The most arms of a cycle in which sources keep their ratios."""
    rules: tuple[str, ...]
    settings: dict[str, Any]


_NEAR = 1
"""Steps of the grid by which the best rate may move between the narrowest and the widest model of a sweep."""


class Width(Record):
    """One width of a sweep."""

    dim: int
    bpb: tuple[float, ...]
    """Bits on the target at each learning rate of the sweep: means over the seeds."""


class Sweep(Record):
    """The sweep of widths (`widths`): where the best learning rate is at each width."""

    base_width: int
    """Width whose rates these are, by muP; 0: every width has them as they are."""
    lr: tuple[float, ...]
    widths: tuple[Width, ...]
    """From the narrowest to the widest."""
    moved: int
    """Steps of the grid from the best rate of the narrowest to that of the widest."""
    lost: float
    """Bits on the target that the widest loses at the best rate of the narrowest."""
    at_end: tuple[int, ...]
    """Widths whose best rate is the first or the last of the grid, so that a better one may be outside."""
    stays: bool
    """Whether the best rate moves by at most one step of the grid."""

    @classmethod
    def of(cls, config: "WidthsConfig", results: Sequence[Mapping[str, Any]]) -> Self:
        """Returns what the results of a sweep show; raises InputError if one is missing.

        Args:
            config: the sweep.
            results: of every arm and seed, with dim, lr and target_bpb.
        """
        rows = [Width(dim=dim, bpb=tuple(_mean(results, dim, lr) for lr in config.lr)) for dim in config.dims]
        best = [row.bpb.index(min(row.bpb)) for row in rows]
        widest, moved = rows[-1].bpb, best[-1] - best[0]
        ends = {0, len(config.lr) - 1}
        return cls(
            base_width=config.init.base_width,
            lr=config.lr,
            widths=tuple(rows),
            moved=moved,
            lost=round(widest[best[0]] - min(widest), 6),
            at_end=tuple(row.dim for row, index in zip(rows, best, strict=True) if index in ends),
            stays=abs(moved) <= _NEAR,
        )

    def best(self, row: Width) -> float:
        """Returns the learning rate with the lowest bits at a width."""
        return self.lr[row.bpb.index(min(row.bpb))]

    @property
    def transfers(self) -> bool:
        """Whether the best rate of the narrowest model may be used for the widest: it stays, and both are inside."""
        return self.stays and not {self.widths[0].dim, self.widths[-1].dim} & set(self.at_end)

    @property
    def recommendation(self) -> str:
        """What follows for the learning rate, in a sentence."""
        small, large = self.widths[0], self.widths[-1]
        best = ", ".join(f"{self.best(row):g} at dim {row.dim}" for row in self.widths)
        moves = f"from dim {small.dim} to {large.dim} it moves by {self.moved:+d} on the grid of rates"
        base = f", with [train.init] base_width = {self.base_width}" if self.base_width else ""
        if self.transfers:
            what = f"the rate of the small model, {self.best(small):g}, may be used for the large one{base}"
        elif self.stays:
            ends = ", ".join(map(str, self.at_end))
            what = f"the best rate of dim {ends} is at an end of the grid: add rates beyond it before you use one"
        else:
            what = f"do not use the rate of the small model for the large one, which loses {self.lost:.4f} by it"
        return f"Lowest loss with lr {best}; {moves}: {what}"


def _mean(results: Sequence[Mapping[str, Any]], dim: int, lr: float) -> float:
    """Returns the mean over the seeds of the bits of one width and rate."""
    bits = [row["target_bpb"] for row in results if (row["dim"], row["lr"]) == (dim, lr)]
    if not bits:
        raise InputError(f"the sweep of widths has no result of dim {dim} at lr {lr:g}", "run the stage canary for it")
    return round(fmean(bits), 6)


class Findings(Record):
    """What the screening found."""

    FILE: ClassVar[str]
    """Name of the file in the artifact."""

    arms: tuple[ScreenedArm, ...]
    """The current mixture first; with the A/A arm."""
    target: dict[str, float]
    """Weight of each source and task that votes; {} if none does."""
    signals: dict[str, Signal]
    """By source and task."""
    tasks: dict[str, TaskMetrics] = Field(default={}, exclude_if=lambda tasks: not tasks)
    lead: Lead | None
    """None if no mixture is lower than the current one."""
    response: Fit | None
    """None for too few arms or sources, if none votes, or for arms of settings."""
    earlier: Earlier
    rounds: tuple[Round, ...]
    registered: Registered
    cost: str
    """Of the runs so far, in words."""
    sweep: Sweep | None = Field(default=None, exclude_if=lambda sweep: sweep is None)
    """Of widths and learning rates; None without `[canary.widths]`."""

    @classmethod
    def read(cls, artifact: "Artifact") -> Self:
        """Reads the file of an artifact; raises InputError if it is gone, or another version of the stage wrote it."""
        try:
            return cls.model_validate_json(artifact.read(cls.FILE))
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            cause = f"{artifact.address} has a {cls.FILE} that this version cannot read: {place}"
            raise InputError(cause, "run the stage again at another version") from None

    def content(self) -> bytes:
        """Returns the content of the file."""
        return encoded(self.model_dump())

    @property
    def unit(self) -> str:
        """Unit of the target."""
        return "bits of the target" if self.tasks else "bits per byte"


class Screened(Findings):
    """The screening, and what is to be confirmed."""

    FILE = "screening.json"

    finalist: str | None
    """Name of the arm to confirm; a new name for a mixture that has not been trained."""
    evidence: tuple[Mapping[str, Any], ...]
    """Runs of this cycle and earlier ones for later cycles (`evidence.EarlierCycle`)."""
    runs: int
    """Runs of the screening."""
    low_rate_pairs: int
    """With how many fresh seeds the low learning rate is checked."""


class Comparison(Measured):
    """Two arms with the same seeds."""

    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    """By seed, on the target."""
    target_bpb: tuple[float, float]
    """Of the current mixture and the other one: means over the seeds."""
    interval: tuple[float, float] | None
    """Of the mean difference; None for one seed."""

    @property
    def is_better(self) -> bool:
        """Whether the second is surely better, and worse on no guarded source."""
        return self.interval is not None and self.interval[0] > 0 and not self.regressions


class Confirmation(Comparison):
    """The finalist and the current mixture, on the fresh seeds."""

    interval: tuple[float, float]


class Check(Comparison):
    """A further comparison that a promotion needs."""

    passed: bool


class Checks(Record):
    """The further comparisons that a promotion needs; none without a finalist."""

    again: Check | None = Field(default=None, exclude_if=lambda check: check is None)
    """The current mixture with other data (A/A): passed if it would not have been promoted."""
    low_rate: Check | None = Field(default=None, exclude_if=lambda check: check is None)
    """Both mixtures at one fifth of the learning rate; None if that check is off."""

    @property
    def passed(self) -> bool:
        """Whether none failed."""
        return all(check is None or check.passed for check in (self.again, self.low_rate))


class Decision(Findings):
    """The mixture for training, and the reason."""

    FILE = "mixture.json"

    weights: Weights
    winner: str
    """Name of the arm that has these weights."""
    current: str
    """Name of the arm with the current mixture."""
    promoted: bool
    reason: str
    confidence: float
    """Of the interval."""
    confirmation: Confirmation | None
    """None without a finalist."""
    checks: Checks
    runs: float
    """Runs of the screening and the confirmation, in runs of the small model."""
    parameters: int
    """Weights of the model that decided."""
    small_models: bool
    """Whether it is too small to rank mixtures as a large one does."""
    settings: dict[str, Any] | None = Field(default=None, exclude_if=lambda settings: settings is None)
    """Accepted settings by dotted path; None in a cycle of mixtures."""
    variant: str | None = Field(default=None, exclude_if=lambda variant: variant is None)
    """Variant with the accepted settings; None in a cycle of mixtures."""

    def verdict(self, arm: ScreenedArm) -> str:
        """Returns what became of an arm: "promoted", "stays", "worse on web"; "" for most."""
        if arm.arm == self.current:
            return "replaced" if self.promoted else "stays"
        if self.confirmation and arm.arm == self.confirmation.arm:
            return "promoted" if self.promoted else "finalist, not confirmed"
        return f"worse on {', '.join(arm.regressions)}" if arm.regressions else ""

    def scored(self, arm: str) -> float:
        """Returns the bits of an arm on the target: on the fresh seeds if there are any, else in the screening."""
        if confirmed := self.confirmation:
            return confirmed.target_bpb[arm == confirmed.arm]
        return next(row.target_bpb for row in self.arms if row.arm == arm)
