"""Canaries: small models trained on candidate mixtures, and the statistical decision between the mixtures.

In rounds: arms (select the mixtures of the round) -> canary (one small model per mixture and seed). Then finalist (the
best mixture, if it looks better than the current one) -> confirm (fresh seeds of these two) -> decide (promote, or keep
the current one).

With `[[canary.settings]]` the arms are other settings of the recipe, not mixtures: variants (the settings of each arm)
-> the stages of documents and tokens with each of these -> arms -> canary, and so on, in one round.

With `[canary.widths]` the first round also trains the current mixture at several widths and learning rates (`widths`).
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from tasks.core.config import (
    Config,
    Problems,
    SectionCopy,
    assign,
    canonical_json,
    duplicates,
    field_errors,
    nearest,
    validate_strict,
)
from tasks.core.stage_spec import MOST_MEMBERS, Input, PreviousInput, StageSpec
from tasks.formats.tokens.components import Alpha
from tasks.formats.tokens.mixture import check_weights
from tasks.stages.canary.widths import WidthsConfig
from tasks.trainer.config import STANDARD, AnnealConfig, OptimConfig, ReplayConfig, TrainConfig, with_default_lr
from tasks.trainer.evaluation.config import TaskConfig
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.planning.config import PEAKS

AGAIN = 1_000_000
"""Added to the seed of the data order in the A/A arm: the current mixture again, with other data."""


CURRENT = "current"
"""Kind of the arm with the current mixture and settings; name of the variant with the current settings."""
REPEATED = "A/A"
"""Kind of the arm that is the current one again, with other data."""

MIXTURE_OF_ARM = "canary.current"
"""Setting of an arm with its mixture."""

SCHEDULE = ("anneal", "replay")
"""Tables of [train] that an arm may set; its runs then follow them."""


class VariantConfig(Config):
    """An arm that is the recipe with other settings."""

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    """Name of the arm; its artifacts have the version `<version>.<name>`."""
    set: dict[str, Any] = Field(min_length=1)
    """Settings by dotted path, as in `--set`: of the sections of documents and tokens, `train.anneal`, `train.replay`,
    and `canary.current`, the mixture of this arm; necessary if it adds a source to a mixture that is set."""


class BudgetConfig(Config):
    """The most that a cycle may cost; 0 is no limit. What the confirmation needs is reserved before the first run."""

    runs: float = Field(default=0, ge=0)
    """Runs of the small model; a run of another size counts by its FLOPs."""
    gpu_hours: float = Field(default=0, ge=0)
    """Hours of one GPU, as planned: FLOPs of the runs / (peak rate of `gpu` * `mfu`)."""
    money: float = Field(default=0, ge=0)
    """GPU hours times `price_per_gpu_hour`."""
    gpu: str = "H100"
    """One of `tasks.trainer.planning.config.PEAKS`."""
    mfu: float = Field(default=0.2, gt=0, le=1)
    """Model FLOPs utilization; small models reach less than large ones."""
    price_per_gpu_hour: float = Field(default=3.0, ge=0)
    """In any currency. The default is about the on-demand price of an H100 in USD."""

    @field_validator("gpu")
    @classmethod
    def _known(cls, gpu: str) -> str:
        if gpu not in PEAKS:
            raise ValueError(f'"{gpu}" is unknown: {nearest(gpu, PEAKS)}')
        return gpu


class CanaryConfig(Config):
    """Settings of one cycle of canaries."""

    current: dict[str, float] = {}
    """The current mixture: share of the sequences of a batch by source; sums to 1. An arm replaces it only if it is
    significantly better. Empty: the natural mixture, each source by its number of sequences. A later cycle starts from
    the decision of the previous one, until this setting changes. With several columns in `[pack] by`, a name is that of
    a component or of a group of them, as in `[train] mixture`."""
    alpha: Alpha = Field(default={}, exclude_if=lambda alpha: not alpha)
    """Where `current` names no component: by column of `[pack] by`, the exponent of the sizes of its values, as in
    `[train] alpha`; within `repetition_cap`."""
    rounds: int = Field(default=3, ge=1, le=9)
    """The most rounds of screening. A round is skipped if an earlier one was sure enough, or the budget is spent."""
    arms: int = Field(default=4, ge=0)
    """New mixtures of every round, in addition to the current one and the anchors. Those of the first round are chosen
    to determine the response of the bits per byte best (D-optimal); later rounds begin with its proposal."""
    sure: float = Field(default=0.95, gt=0.5, le=1)
    """No further round starts if the best mixture is lower than the current one with more than this probability, by
    the response fitted to all rounds. 1: all rounds run."""
    max_kl: float = Field(default=1.0, gt=0)
    """Maximum Kullback-Leibler divergence of a chosen or proposed mixture from the natural one, in nats."""
    budget: BudgetConfig = BudgetConfig()
    """The most that a cycle may cost."""
    reuse: bool = True
    """Whether the sources of the previous decision keep their ratios if only new sources were added; the cycle then has
    a quarter of the arms."""
    forms: tuple[Literal["log-linear", "power", "exposures"], ...] = ("log-linear", "power", "exposures")
    """Forms of the response, of which the one is kept that predicts arms best that it has not seen."""
    anchors: tuple[Literal["natural", "uniform", "drop_one"], ...] = ("natural", "uniform")
    """Mixtures in every cycle: natural, uniform, and the current one without each of its sources in turn."""
    spread: tuple[float, float] = (0.5, 5.0)
    """Range of the concentration of the candidates, among which the new mixtures are chosen: each candidate is
    Dirichlet(s * sources * natural) with log(s) drawn uniformly between the logarithms of these values. Small values
    give extreme mixtures."""
    repetition_cap: float = Field(default=4.0, gt=0)
    """Maximum number of epochs of one source in an arm; beyond four, repetition has little value (Muennighoff et al.
    2023, "Scaling Data-Constrained Language Models")."""
    sample_seed: int = Field(default=0, ge=0)
    """Seed of the candidates."""

    seeds: tuple[int, ...] = (0,)
    """Seeds of the screening: each arm is trained once per seed, which determines initial weights and data order."""
    confirmations: int = Field(default=5, ge=3, le=20)
    """Number of fresh seeds, those after the largest of `seeds`, with which the finalist and the current mixture are
    trained again. Only these runs decide (`statistics`)."""
    confirm_model: ModelConfig | None = None
    """The model of the confirmation, if it is to be larger than that of the screening."""
    lr_check: bool = True
    """Whether the finalist and the current mixture are also trained at one fifth of the learning rate, with as many of
    the fresh seeds as the budget allows. Rankings of small models can flip with their learning rate, and a small one
    ranks as large models do (arXiv 2512.24503): a promotion needs a difference of the same sign there."""
    signal_floor: float = Field(default=1.0, ge=0)
    """Sources whose signal-to-noise ratio is below this do not vote in the target: variance between mixtures over the
    variance between repeats of a mixture. 0: all vote."""
    steps: int = Field(default=120, ge=1)
    """Optimizer steps of each small run."""
    batch_size: int = Field(default=16, ge=1)
    """Sequences per step."""
    microbatch: int = Field(default=8, ge=1)
    """Sequences per forward and backward pass."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of each small run."""
    model: ModelConfig = ModelConfig(layers=2, dim=64, heads=4, kv_heads=2)
    """The small model."""
    optim: OptimConfig = OptimConfig(warmup_steps=10)
    """Optimizer of the small model."""
    heldout_tokens: int = Field(default=200_000, ge=1)
    """Maximum number of held-out tokens per source on which an arm is scored."""

    tasks: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """Names of [[evaluate.tasks]] that are measured beside the held-out text, each by the continuous metric that tells
    the arms apart best (`screening.chosen_metrics`)."""
    target: dict[str, float] = {}
    """The objective: weight of the held-out bits per byte by source, regardless of `[pack] by`, and of the bits of
    tasks; sums to 1. Empty: equal weights."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence of the interval that must exclude 0, on the seeds of the confirmation."""
    guard_share: float = Field(default=0.02, ge=0)
    """Tolerated relative increase of the bits of a guarded source or task over the current mixture."""
    guarded: tuple[str, ...] = ()
    """Sources of documents, regardless of `[pack] by`, and tasks that must not regress; empty: all sources."""

    widths: WidthsConfig | None = Field(default=None, exclude_if=lambda widths: widths is None)
    """Trains the current mixture at several widths and learning rates, too, to see whether the best rate stays."""

    settings: tuple[VariantConfig, ...] = Field(default=(), exclude_if=lambda variants: not variants)
    """Arms that are other settings of the recipe, instead of mixtures. All of them change the same settings, or they
    are all combinations of several changes (factorial). Later cycles start from the accepted ones, unless `reuse` is
    false."""
    anneal: AnnealConfig | None = Field(default=None, exclude_if=lambda anneal: anneal is None)
    """With `settings`: that of [train], which the recipe fills in."""
    replay: ReplayConfig | None = Field(default=None, exclude_if=lambda replay: replay is None)
    """With `settings`: that of [train], which the recipe fills in."""
    scored: tuple[TaskConfig, ...] | None = Field(default=None, exclude_if=lambda scored: scored is None)
    """With `tasks`: their settings, which the recipe fills in."""

    COPIED = {
        **{name: SectionCopy(f"train.{name}", when="canary.settings") for name in SCHEDULE},
        "scored": SectionCopy("evaluate.tasks", when="canary.tasks", named=True),
    }

    @field_validator("settings")
    @classmethod
    def _one_factor(cls, variants: tuple[VariantConfig, ...]) -> tuple[VariantConfig, ...]:
        names = [variant.name for variant in variants]
        if taken := [*duplicates(names), *(name for name in names if name == CURRENT)]:
            raise ValueError(f'the arm "{taken[0]}" exists already: give it another name')
        check_factors([variant.set for variant in variants])
        return variants

    @field_validator("current", "target")
    @classmethod
    def _shares(cls, weights: dict[str, float]) -> dict[str, float]:
        if weights:
            check_weights(weights)
        return weights

    @field_validator("tasks")
    @classmethod
    def _distinct_tasks(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if twice := duplicates(names):
            raise ValueError(f'"{twice[0]}" is named twice: leave one out')
        return names

    @field_validator("seeds")
    @classmethod
    def _distinct_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if not seeds or len(set(seeds)) < len(seeds):
            raise ValueError("name at least one seed, and none twice")
        return seeds

    @field_validator("spread")
    @classmethod
    def _range(cls, spread: tuple[float, float]) -> tuple[float, float]:
        if not 0 < spread[0] <= spread[1]:
            raise ValueError("spread is a lowest and a highest concentration, both above 0")
        return spread

    @model_validator(mode="after")
    def _run_fits(self) -> "CanaryConfig":
        self.__dict__["optim"] = with_default_lr(self.optim, self.model)
        if self.widths and (problems := self.widths.problems(self.model, self.optim)):
            raise Problems(f".widths{problem}" for problem in problems)
        try:
            self.training(self.seeds[0])
        except ValidationError as error:
            raise Problems(": ".join(filter(None, fault)) for fault in field_errors(error)) from None
        return self

    @model_validator(mode="after")
    def _mappable(self) -> "CanaryConfig":
        seeds, runs = len(self.seeds), self.runs_at_once
        if runs > MOST_MEMBERS:
            cause = f"a round would have {runs // seeds:,} arms x {seeds:,} seeds = {runs:,} runs at one time"
            raise Problems(
                [f"{cause}, of which at most {MOST_MEMBERS:,} are possible: lower arms, or name fewer seeds"]
            )
        return self

    @property
    def runs_at_once(self) -> int:
        """The most runs of a round, by the settings: the current mixture, its A/A arm, that of the last cycle, others.

        An anchor for each source counts once, because the sources are known only with the tokens.
        """
        others = len(self.settings) or 1 + len(self.anchors) + self.arms
        runs = (2 + others) * len(self.seeds)
        return (min(runs, int(self.budget.runs)) if self.budget.runs else runs) + self.swept_runs

    @property
    def swept_runs(self) -> int:
        """Runs of the sweep of widths, in the first round; 0 without one."""
        return len(self.widths.dims) * len(self.widths.lr) * len(self.seeds) if self.widths else 0

    @property
    def confirming_runs(self) -> int:
        """The most runs of the confirmation: finalist, current mixture, its A/A arm, and two at a low learning rate."""
        return (3 + 2 * self.lr_check) * self.confirmations

    @property
    def fresh_seeds(self) -> tuple[int, ...]:
        """The seeds of the confirmation."""
        first = max(self.seeds) + 1
        return tuple(range(first, first + self.confirmations))

    def training(self, seed: int, arm: Mapping[str, Any] = MappingProxyType({})) -> TrainConfig:
        """Returns the settings of one small run of an arm; see `arms` for its fields."""
        optim = self.optim
        if lr_share := arm.get("lr_share"):
            optim = optim.model_copy(update={"lr": optim.lr * lr_share})
        model, init = (arm.get("confirms") and self.confirm_model) or self.model, STANDARD
        if self.widths and "dim" in arm:
            optim = optim.model_copy(update={"lr": arm["lr"]})
            model, init = self.widths.model_of(model, arm["dim"]), self.widths.init
        return TrainConfig(
            model=model,
            optim=optim,
            init=init,
            steps=self.steps,
            batch_size=self.batch_size,
            microbatch=self.microbatch,
            threads=self.threads,
            init_seed=seed,
            seed=seed + AGAIN if arm.get("again") else seed,
            checkpoint_every=max(1, self.steps // 4),
            milestones=1,
            **self._schedule(arm.get("set", {})),
        )

    @property
    def screenings(self) -> int:
        """The most rounds of screening: one, if the arms are given."""
        return 1 if self.settings else self.rounds

    def _schedule(self, changed: Mapping[str, Any]) -> dict[str, Any]:
        """Returns `anneal` and `replay` of a run with some settings of [train] changed."""
        tables = {name: getattr(self, name) for name in SCHEDULE}
        own = {path: value for path, value in changed.items() if path.startswith(_SCHEDULED)}
        if not own:
            return tables
        settings = {"train": {name: table.model_dump(mode="json") for name, table in tables.items() if table}}
        assign(settings, own)
        train = validate_strict(TrainConfig, settings["train"])
        return {name: getattr(train, name) for name in SCHEDULE}


_SCHEDULED = tuple(f"train.{name}" for name in SCHEDULE)
ARM_SETTINGS = (*_SCHEDULED, MIXTURE_OF_ARM)
"""Settings that an arm may set in addition to those of documents and tokens."""


def check_factors(changes: Sequence[Mapping[str, Any]]) -> None:
    """Raises ValueError unless arms change one factor, or are all combinations of the changes of several ones.

    Settings that are always changed together are one factor.
    """
    distinct = {canonical_json(change) for change in changes}
    if len(distinct) < len(changes):
        raise ValueError("two arms have the same settings: leave one out")
    factors: dict[tuple[bool, ...], list[str]] = {}
    for path in sorted({path for change in changes for path in change} - {MIXTURE_OF_ARM}):
        factors.setdefault(tuple(path in change for change in changes), []).append(path)
    levels = [
        {canonical_json([change[path] for path in paths]) for change in changes if paths[0] in change}
        for paths in factors.values()
    ]
    # The current settings are one more level of each factor, and together one more combination.
    if changes and math.prod(len(values) + 1 for values in levels) != len(changes) + 1:
        raise ValueError(
            "the arms change different settings, so that no difference is that of one: let all change the same ones, "
            "or add an arm for every combination"
        )


_PLAN = Input("plan", files=("plan/",))
"""Only the content counts: a plan packed again after a takedown of other documents is the same plan."""


def round_of(member: str, _: Config) -> str:
    """Returns the round of a member of `canary`.

    >>> round_of("round-2-arm-3-seed-0", CanaryConfig())
    'round-2'
    """
    return "-".join(member.split("-")[:2])


def round_before(member: str, _: Config) -> str:
    """Returns the round before a round; "" before the first.

    >>> round_before("round-2", CanaryConfig()), round_before("round-1", CanaryConfig())
    ('round-1', '')
    """
    number = int(member.rpartition("-")[2])
    return f"round-{number - 1}" if number > 1 else ""


def last_round(_: str, config: CanaryConfig) -> str:
    """Returns the last round of a cycle, which ran or was skipped."""
    return f"round-{config.screenings}"


def arm_of(member: str) -> str:
    """Returns the arm of a member's name, with or without its round.

    >>> arm_of("round-1-arm-0-again-seed-4")
    'arm-0-again'
    """
    arm = member.rpartition("-seed-")[0]
    return arm[arm.index("arm-") :]


def variant_of(member: str, config: CanaryConfig) -> str:
    """Returns the variant of a member of `canary` or `confirm`; "" if the arms are mixtures.

    >>> config = CanaryConfig(settings=({"name": "strict", "set": {"extract.min_chars": 9}},))
    >>> variant_of("round-1-arm-0-again-seed-4", config), variant_of("arm-1-low-lr-seed-4", config)
    ('current', 'strict')
    """
    number = int(arm_of(member).split("-")[1])
    return ("", *variants_of(member, config)[1:])[number] or CURRENT if config.settings else ""


def variants_of(_: str, config: CanaryConfig) -> tuple[str, ...]:
    """Returns the variants of a cycle, the current one first; () if the arms are mixtures."""
    return (CURRENT, *(variant.name for variant in config.settings)) if config.settings else ()


def measured_variant(_: str, config: CanaryConfig) -> str | tuple[str, ...]:
    """Returns the variant on whose held-out text all arms are measured; () if the arms are mixtures."""
    return CURRENT if config.settings else ()


def _tokenizer_if_read(member: str, config: CanaryConfig) -> str | tuple[str, ...]:
    """Returns the variant whose tokenizer encodes held-out text or tasks; () if the shards have all that is read."""
    return variant_of(member, config) or ("" if config.tasks else ())


def _small_runs(name: str, output: str, arms: Input) -> StageSpec:
    return StageSpec(
        name,
        dag="canary",
        output=output,
        config=CanaryConfig,
        section="canary",
        module="run",
        inputs={
            "arms": arms,
            "shards": Input("shards", variant=variant_of),
            "plan": Input("plan", files=("plan/",), variant=variant_of),
            "tokenizer": Input("tokenizer", variant=_tokenizer_if_read),
            "heldout": Input("shards", variant=measured_variant),
            "heldout_tokenizer": Input("tokenizer", variant=measured_variant),
        },
        mapped=True,
    )


STAGES = (
    StageSpec(
        "variants",
        dag="canary",
        output="variants",
        config=CanaryConfig,
        section="canary",
        module="variants",
        inputs={"plan": _PLAN},
        previous={"previous": PreviousInput("mixture", completed_by="mixture")},
        when="canary.settings",
    ),
    StageSpec(
        "arms",
        dag="canary",
        output="arms",
        config=CanaryConfig,
        section="canary",
        module="arms",
        inputs={
            "plan": _PLAN,
            "shards": Input("shards"),
            "before": Input("arms", member=round_before, earlier=True),
            "canaries": Input("canary", members_of="arms", member=round_before, earlier=True),
            "variants": Input("variants", optional=True),
            "plans": Input("plan", files=("plan/",), variant=variants_of),
            "encoded": Input("shards", variant=variants_of),
            "documents": Input("documents", files=("rejected/",), variant=variants_of),
        },
        previous={
            "previous": PreviousInput("mixture", completed_by="mixture", unless="rejected"),
            "earlier": PreviousInput("mixture", completed_by="mixture"),
        },
        decided_by="before",
        mapped=True,
    ),
    _small_runs("canary", "canary", Input("arms", member=round_of)),
    StageSpec(
        "finalist",
        dag="canary",
        output="finalist",
        config=CanaryConfig,
        section="canary",
        module="finalist",
        inputs={
            "plan": _PLAN,
            "arms": Input("arms", member=last_round),
            "canaries": Input("canary", members_of="arms", member=last_round),
        },
    ),
    _small_runs("confirm", "confirmation", Input("finalist")),
    StageSpec(
        "decide",
        dag="canary",
        output="mixture",
        config=CanaryConfig,
        section="canary",
        module="decide",
        asset="mixture",
        inputs={
            "plan": _PLAN,
            "finalist": Input("finalist"),
            "confirmations": Input("confirmation", members_of="finalist"),
        },
    ),
)
