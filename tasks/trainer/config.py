"""Settings of the trainer, and the specification of one run.

Imports only pydantic, so that the Airflow dag-processor can load it.

The defaults suit two CPU cores and a corpus of a few million tokens: 1.26 M parameters, 1.2 M tokens, 6,300 tokens per
CPU-second. At 105 CPU-seconds per run on Python's documentation and source, held-out bits per byte fell below the
unigram model's by 39 % (8 sequences per step, lr 4e-3); 38 % with 4 sequences, 34 % with 16, 38 % at 2.5e-3, 36 % at
8e-3, 38 % with two layers of 160.
"""

import math
import re
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from tasks.core.config import OPERATION, Config, Problems
from tasks.core.errors import InputError
from tasks.formats.tokens.components import Alpha
from tasks.formats.tokens.mixture import Anneal, check_weights
from tasks.trainer.interchange.address import check_model_name
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.place import TrainPlace
from tasks.trainer.sizes import defaults_of

Target = Literal["wq", "wk", "wv", "wo", "w1", "w2", "w3"]
TARGETS: tuple[Target, ...] = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")
_CHECKPOINT = re.compile(r"[a-z][a-z0-9_-]*/checkpoint@[A-Za-z0-9][A-Za-z0-9._-]*")
_CHECKPOINT_FORM = 'the id of a checkpoint is <recipe>/checkpoint@<version>, as in "demo/checkpoint@2026.10"'
PREVIOUS, CHAMPION = "previous", "champion"
"""In `TrainConfig.init_from`: the newest other version of the same recipe, and the version of its champion."""


class OptimConfig(Config):
    """The optimizer and its learning-rate schedule."""

    name: Literal["adamw", "muon"] = Field(default="adamw", exclude_if=lambda name: name == "adamw")
    """`muon`: Muon for the matrices of the layers, AdamW for embedding, head and norms. The updates of both have the
    same RMS, so the other settings apply to both."""
    lr: float = Field(default=4e-3, gt=0)
    """Peak learning rate. In `[train]` and `[canary]` the default is that of the model's size (`sizes`)."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of AdamW's first and second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled weight decay of the matrices; norms and the token embedding are not decayed."""
    warmup_steps: int = Field(default=30, ge=0)
    """Steps of linear warm-up. A recipe that sets more than the run has is refused; a run that is shorter than the
    default ends in its warm-up, below the peak learning rate."""
    schedule: Literal["cosine", "wsd"] = "wsd"
    """`cosine` decays from the end of the warm-up; `wsd` (warm-up, stable, decay) decays linearly at the end."""
    decay_share: float = Field(default=0.4, gt=0, le=1)
    """Share of all steps in which `wsd` decays."""
    min_lr_share: float = Field(default=0.05, ge=0, le=1)
    """Learning rate of the last step as a share of `lr`."""
    clip: float = Field(default=1.0, gt=0)
    """Upper bound of the global gradient norm."""

    def decay_from(self, steps: int) -> int:
        """Returns the first of `steps` steps at which the learning rate falls; until then the peak is constant."""
        if self.schedule == "cosine":
            return min(self.warmup_steps, steps - 1)
        return max(self.warmup_steps, round(steps * (1 - self.decay_share)))


class InitConfig(Config):
    """Random initial weights; the defaults are those of `transformer.initial_weight`."""

    std: float = Field(default=0.0, ge=0)
    """Standard deviation of all matrices, with embedding and head: 0.02 in GPT-2 and OLMo 2, 0.006 in DeepSeek LLM and
    V3. 0: 1 / sqrt(fan in) of the layers' matrices, and a head of zeros."""
    scale_outputs: bool = True
    """Divides that of the matrices that write to the residual stream by sqrt(2 layers), as GPT-2 and Megatron do;
    OLMo 2 does not."""
    truncate: float = Field(default=0.0, ge=0)
    """Standard deviations beyond which nothing is drawn: 3 in OLMo 2. 0: no limit."""
    base_width: int = Field(default=0, ge=0, exclude_if=lambda width: width == 0)
    """muP: the `dim` of the model at which learning rate and deviations were chosen; this one has those that fit its
    own `dim` (`mup`), with AdamW and a separate head. 0: the standard parametrization."""
    base_head_width: int = Field(default=0, ge=0, exclude_if=lambda width: width == 0)
    """With `base_width`: width of a head of that model, if this one has wider heads instead of more."""

    def base_of(self, model: ModelConfig) -> ModelConfig:
        """Returns the model whose learning rate a run has: `model`, or with muP the one of the base width."""
        if not self.base_width:
            return model
        heads = max(1, round(model.heads * self.base_width / model.dim))
        inner = {"dim": self.base_width, "ffn_width": 0, "head_width": model.head_dim}
        return model.model_copy(update={**inner, "heads": heads, "kv_heads": min(heads, model.kv_heads)})


STANDARD = InitConfig()
"""The initial weights of a run that sets nothing about them."""


def with_default_lr(optim: OptimConfig, model: ModelConfig, init: InitConfig = STANDARD) -> OptimConfig:
    """Returns the settings with the learning rate of the size of a model, or of its muP base, unless they set one."""
    if "lr" in optim.model_fields_set:
        return optim
    return optim.model_copy(update={"lr": defaults_of(init.base_of(model).layer_weights).lr})


class EmaConfig(Config):
    """Exponential mean of the weights over the steps, in fp32 (`optim.Averaged`); set `decay` or `horizon`."""

    decay: float = Field(default=0.0, ge=0, lt=1)
    """Share of the mean that a step keeps."""
    horizon: int = Field(default=0, ge=0)
    """Steps that it covers: a decay of 1 - 1 / horizon."""
    weights: Literal["ema", "raw"] = "ema"
    """The weights that are evaluated, registered, exported and fine-tuned: the mean, or those of the last step. Another
    training starts from the latter in any case."""

    @model_validator(mode="after")
    def _one_length(self) -> "EmaConfig":
        if (self.decay > 0) == (self.horizon > 0):
            raise Problems([".horizon: set either horizon, in steps, or decay"])
        return self

    @property
    def keep(self) -> float:
        """Share of the mean that a step keeps."""
        return self.decay or 1 - 1 / self.horizon


class AnnealConfig(Config):
    """The second stage of the mixture: other weights in the last steps."""

    share: float = Field(default=0.4, gt=0, lt=1)
    """The stage's share of all steps. The default equals that of `[train.optim] decay_share`; with equal shares both
    begin at the same step."""
    mixture: dict[str, float] = Field(min_length=1)
    """Source -> share of the sequences of a batch; sums to 1."""

    @field_validator("mixture")
    @classmethod
    def _shares(cls, weights: dict[str, float]) -> dict[str, float]:
        check_weights(weights)
        return weights


EARLIER = "earlier"
"""In `ReplayConfig.old`: all months before the newest one."""


class ReplayConfig(Config):
    """Replay: the share of every batch that repeats data of earlier runs."""

    share: float | None = Field(default=None, ge=0.001, le=0.999)
    """Share of the sequences of every batch, in both stages, that is drawn from the old sources. None: by the number of
    new sequences per old one (`tasks.trainer.spec.replay_share`)."""
    old: tuple[str, ...] = Field(default=(EARLIER,), min_length=1)
    """The old sources; every other source is new. With `[pack] by = "fetched_at"`, "earlier" stands for all months
    before the newest one, and documents without a time; in the first month there are none. Within the old and within
    the new sources, the ratio of the weights is kept. If the mixture gives none of them a weight, they are weighted by
    their number of sequences."""


class ContinualConfig(Config):
    """A later month: a run that continues the model of an earlier version (`init_from`), for a part of its compute.

    The first month, for which `init_from` finds no version, is trained by `[train]` alone and without replay.
    """

    start: Literal["stable", "last"] = "stable"
    """`stable`: from the checkpoint before the decay of the earlier run, which every run then keeps as a milestone.
    `last`: from its last one."""
    peak_share: float = Field(default=1.0, gt=0, le=1)
    """Peak learning rate of the second month, as a share of `[train.optim] lr`. Weights from before a decay have not
    left the peak. 1/10 to 1/30 was best for weights after one in TiC-LM (arXiv 2504.02107), and far too low in small
    models with few steps."""
    fall: float = Field(default=0.5, ge=0, le=1)
    """How the peak falls over the months: that of month n is `peak_share` / (n - 1)^`fall`; 0: it stays."""
    warmup_steps: int = Field(default=10, ge=0)
    """Steps of linear warm-up of a later month."""
    steps: int = Field(default=0, ge=0)
    """Steps of a later month; 0: those of `[train]`."""


class ForkConfig(Config):
    """A run that goes on from a checkpoint of another one, with its optimizer's state and its log.

    Its weights are those of a run that was planned so from the start. So both must agree in everything that the steps
    before the checkpoint depend on: a longer run, or an earlier decay, agree during the stable phase of `wsd`.
    """

    of: str
    """Id of the checkpoint of the other run, such as "demo/checkpoint@2026.10"."""
    step: int = Field(ge=1)
    """Completed steps of its checkpoint: one of its milestones (`checkpoint_steps` in its `run.json`)."""

    @field_validator("of")
    @classmethod
    def _checkpoint(cls, name: str) -> str:
        check_model_name(name, _CHECKPOINT, _CHECKPOINT_FORM)
        return name


class RampConfig(Config):
    """A stage of batch-size warm-up."""

    batch_size: int = Field(ge=1)
    """Sequences per step; it grows from stage to stage, up to that of `[train]`."""
    steps: int = Field(ge=1)
    """Steps of the stage: tokens / (`batch_size` x `[pack] seq_len`)."""


class HeldoutConfig(Config):
    """Measurement of bits per byte of held-out text during the run."""

    every: Annotated[int, OPERATION] = Field(ge=1)
    """Steps between two measurements; the last step is measured as well. An operational setting."""
    max_tokens: int = Field(default=10_000, ge=1)
    """Maximum number of held-out tokens per source, in whole documents (at least one)."""


class BestConfig(Config):
    """The checkpoint with the lowest bits per byte of the documents of `[train.heldout]`, and an early end.

    It is kept beside the others, becomes part of the artifact, and is named in its `run.json`.
    """

    every: int = Field(ge=1)
    """Steps between two measurements that count; the last step counts as well. A lower value is saved at once."""
    patience: int = Field(default=0, ge=0)
    """Number of measurements in a row without an improvement after which the run ends; 0: it has all steps."""
    min_delta: float = Field(default=0.0, ge=0)
    """Bits per byte by which a value must be lower than the last improvement to be the next one; for `patience`."""


class Bf16Compression(Config):
    """Gradients are sent in bf16 and added in fp32, which halves the traffic."""

    kind: Literal["bf16"]


class PowerSgdCompression(Config):
    """PowerSGD: gradient matrices are sent as products of two low-rank factors."""

    kind: Literal["powersgd"]
    rank: int = Field(default=4, ge=1)
    """Columns of each factor: (rows + columns) x rank numbers are sent instead of rows x columns."""


class TrainConfig(Config):
    """Settings of the stage `train`: everything that affects the result, except the mixture and the input files."""

    model: ModelConfig = ModelConfig()
    """Shape of the model."""
    optim: OptimConfig = OptimConfig()
    """Optimizer and schedule."""
    steps: int = Field(default=600, ge=1)
    """Optimizer steps."""
    batch_size: int = Field(default=8, ge=1)
    """Sequences per step, summed over all ranks. In a recipe the default has the tokens of the model's size
    (`sizes`), with `[pack] seq_len`."""
    ramp: tuple[RampConfig, ...] = Field(default=(), exclude_if=lambda ramp: not ramp)
    """Batch-size warm-up: the stages before steps of `batch_size`. Llama 3 405B began with 4 M tokens, for 252 M, and
    went on with 8 M up to 2.87 T, then with 16 M (arXiv 2407.21783, section 3.4.1). Later months have none."""
    microbatch: int = Field(default=4, ge=1)
    """Sequences per forward and backward pass. Gradients are summed over microbatches in an order that does not
    depend on the number of ranks, so the rounding depends on this setting and not on the number of ranks."""
    precision: Literal["fp32", "bf16", "fp8"] = "fp32"
    """Arithmetic of the forward and backward pass; weights, moments and sums are fp32. `fp8`: matrix products of the
    layers in fp8, everything else in bf16; needs a GPU with SM 8.9 or later. On a CPU without bf16 instructions, `bf16`
    is slower than `fp32`. The default is that of the model's size: `bf16` from 30 M weights on (`sizes`)."""
    compression: Annotated[Bf16Compression | PowerSgdCompression, Field(discriminator="kind")] | None = Field(
        default=None, exclude_if=lambda compression: compression is None
    )
    """Compression of the gradients that data-parallel ranks exchange, for slow networks; None: fp32. With compression
    the result depends on the number of ranks."""
    z_loss: float = Field(default=0.0, ge=0, exclude_if=lambda weight: weight == 0)
    """Coefficient of z-loss, c (log Z)^2 per token, which keeps logits from drifting (`model.loss`): 1e-4 in PaLM, 1e-5
    in OLMo 2. It is in the gradient and logged as `z_loss`, and not in the loss. 0: none."""
    init: InitConfig = Field(default=STANDARD, exclude_if=lambda init: init == STANDARD)
    """Distribution of random initial weights."""
    ema: EmaConfig | None = Field(default=None, exclude_if=lambda ema: ema is None)
    """Mean of the weights over the steps; None: there is none."""
    threads: int = Field(default=1, ge=1)
    """CPU threads per rank. Part of the identity of the run, because the number can change how sums are split."""
    init_seed: int = Field(default=0, ge=0)
    """Seed of random initial weights."""
    init_from: str = Field(default="", exclude_if=lambda name: not name)
    """Checkpoint whose last weights are the initial weights ("demo/checkpoint@2026.10"), of the same model and
    tokenizer. "demo/checkpoint@previous" is the newest other version when the run started, "previous" that of the same
    recipe, and "champion" the one that its last decision names; if there is none, the weights are random. A model from
    elsewhere ("hf://owner/name@revision", a folder, its URL) is imported first. Optimizer, steps and learning rate
    start from scratch, with the warm-up. Empty: random weights."""
    continual: ContinualConfig | None = Field(default=None, exclude_if=lambda continual: continual is None)
    """Where in the earlier run a later month begins, and its learning rate and steps; None: from the last weights, with
    the settings of `[train]`."""
    fork: ForkConfig | None = Field(default=None, exclude_if=lambda fork: fork is None)
    """The checkpoint of another run from which this one goes on: a prolonged run, or one that decays earlier; None: the
    run begins at step 0."""
    seed: int = Field(default=0, ge=0)
    """Seed of the order of sequences."""
    checkpoint_every: Annotated[int, OPERATION] = Field(default=100, ge=1)
    """Steps between checkpoints that a restart resumes from. As an operational setting, it may change during a run."""
    keep_checkpoints: Annotated[int, OPERATION] = 2
    """Newest checkpoints kept in scratch in addition to the milestones; a rollback needs at least 2."""
    resume_from: Annotated[str, OPERATION] = Field(
        default="", pattern=r"^([1-9]\d{0,7}(#\w+)?)?$", exclude_if=lambda request: not request
    )
    """Step of an earlier checkpoint of this run to which it goes back, once: "400". What came after it is abandoned, as
    after a bad node or bad data. "400#2" goes back there a second time. An operational setting."""
    milestones: int = Field(default=3, ge=1)
    """Evenly spaced checkpoints that become part of the artifact; the last one is the trained model."""
    mixture: dict[str, float] = {}
    """Without canaries: source -> share of the sequences of a batch; sums to 1. Empty: each source in proportion to its
    number of sequences. With several columns in `[pack] by`, a name is that of a component (`web+ja`) or of a group of
    them (`web`), see `tasks.formats.tokens.components`."""
    alpha: Alpha = Field(default={}, exclude_if=lambda alpha: not alpha)
    """Where the mixtures of both stages name no component: by column of `[pack] by`, the exponent of the sizes of its
    values, 0 .. 1. `{ language = 0.3 }` raises small languages as XLM-R does; 1 is natural, 0 gives equal shares. Such
    weights also keep to `repetition_cap`, if it is set: what is beyond it goes to the others (UniMax)."""
    anneal: AnnealConfig | None = None
    """Another mixture in the last steps; also applies after a mixture chosen by canaries."""
    replay: ReplayConfig | None = None
    """Share of old data in every batch."""
    repetition_cap: float | None = Field(default=None, gt=0)
    """Maximum number of epochs of one source; a run that needs more is refused. Repeated text is worth about as much as
    new text up to four epochs (Muennighoff et al. 2023, "Scaling Data-Constrained Language Models")."""

    heldout: HeldoutConfig | None = Field(default=None, exclude_if=lambda heldout: heldout is None)
    """Measures held-out text during training; None: only the stage `evaluate` measures it. The weights are the same
    either way."""
    best: BestConfig | None = Field(default=None, exclude_if=lambda best: best is None)
    """Keeps the checkpoint with the lowest loss on this text, and ends a run that becomes no better; None: neither."""

    @field_validator("init_from")
    @classmethod
    def _checkpoint(cls, name: str) -> str:
        if name in (PREVIOUS, CHAMPION):
            return name
        check_model_name(name, _CHECKPOINT, _CHECKPOINT_FORM)
        return name

    @field_validator("mixture")
    @classmethod
    def _shares(cls, weights: dict[str, float]) -> dict[str, float]:
        if weights:
            check_weights(weights)
        return weights

    @model_validator(mode="after")
    def _fill_in(self) -> "TrainConfig":
        self.__dict__["optim"] = with_default_lr(self.optim, self.model, self.init)
        if "precision" not in self.model_fields_set:
            self.__dict__["precision"] = defaults_of(self.model.layer_weights).precision
        return self

    @model_validator(mode="after")
    def _steps_fit(self) -> "TrainConfig":
        # A recipe without a batch_size sets that of the model's size afterwards, and checks it then.
        problems = self.batch_problems() if "batch_size" in self.model_fields_set else []
        if self.ramp and sum(stage.steps for stage in self.ramp) >= self.steps:
            problems.append(f".ramp: its stages leave nothing of {self.steps} steps: make them shorter")
        if self.milestones > self.steps:
            problems.append(f"{self.milestones} milestones do not fit into {self.steps} steps")
        if self.keep_checkpoints < 2:
            problems.append(
                f".keep_checkpoints: {self.keep_checkpoints} is too few: if the step after the newest checkpoint is "
                "refused, a rollback needs the one before it; set 2 or more"
            )
        if self.anneal and not 0 < self.anneal_from < self.steps:
            problems.append(
                f".anneal.share: a share of {self.anneal.share:g} of {self.steps} steps leaves one of the two stages "
                "without a step: take one nearer to 0.5, or train more steps"
            )
        if self.best and self.heldout is None:
            problems.append(".best: no held-out text is measured: set [train.heldout] every, or leave out train.best")
        if self.first_step >= self.steps:
            problems.append(f".fork.step: {self.first_step} leaves nothing of {self.steps} steps: raise train.steps")
        problems += [*self._continual_problems(), *self._mup_problems()]
        if problems:
            raise Problems(problems)
        return self

    def _mup_problems(self) -> list[str]:
        init, problems = self.init, []
        if init.base_head_width and not init.base_width:
            problems.append(".init.base_head_width: set base_width, too")
        if init.base_width and self.model.tie_embeddings:
            problems.append(".init.base_width: muP needs a separate head: set model.tie_embeddings = false")
        if init.base_width and self.optim.name != "adamw":
            problems.append('.init.base_width: its rates are those of AdamW: set optim.name = "adamw"')
        if init.base_head_width and self.model.qk_norm:
            problems.append(
                ".init.base_head_width: norms of queries undo it: leave it out, or set model.qk_norm = false"
            )
        return problems

    def batch_problems(self) -> list[str]:
        """Returns why steps cannot have the batches of `batch_size` and `ramp`; none if they can."""
        problems, sizes = [], [*(stage.batch_size for stage in self.ramp), self.batch_size]
        if self.batch_size % self.microbatch:
            problems.append(f"batch_size {self.batch_size} must be a multiple of microbatch {self.microbatch}")
        if any(size % self.microbatch for size in sizes[:-1]):
            problems.append(f".ramp: every batch_size must be a multiple of microbatch {self.microbatch}")
        if sorted({*sizes}) != sizes:
            problems.append(f".ramp: the batch must grow from stage to stage, up to batch_size = {self.batch_size}")
        return problems

    def samples(self, steps: int) -> int:
        """Returns the number of sequences in the first `steps` steps."""
        total = 0
        for stage in self.ramp:
            own = min(steps, stage.steps)
            total, steps = total + own * stage.batch_size, steps - own
        return total + steps * self.batch_size

    @property
    def common_batch(self) -> int:
        """The largest number of sequences that divides the batch of every step; ranks share it equally."""
        return math.gcd(self.batch_size, *(stage.batch_size for stage in self.ramp))

    @property
    def ramp_steps(self) -> tuple[int, ...]:
        """The steps at which the batch grows, ascending."""
        return tuple(accumulate(stage.steps for stage in self.ramp))

    def _continual_problems(self) -> list[str]:
        if self.continual is None:
            return []
        problems, steps = [], self.continual.steps or self.steps
        if not self.init_from:
            problems.append(f'.continual: nothing to continue: set [train] init_from = "{PREVIOUS}"')
        has_phases = self.optim.schedule == "wsd" and all(
            0 < run.stable_step < run.steps for run in (self, self.of_month(2))
        )
        if self.continual.start == "stable" and not has_phases:
            problems.append(
                '.continual.start: the schedule has no stable phase before a decay: set [train.optim] schedule = "wsd" '
                'with decay_share below 1 and fewer warmup_steps than steps, or start = "last"'
            )
        if self.fork and self.continual.start == "stable" and self.stable_step <= self.first_step:
            problems.append(
                f".fork.step: the next month begins from the checkpoint of step {self.stable_step}, before the decay, "
                f'which a fork of step {self.first_step} does not have: name an earlier step, or set start = "last"'
            )
        if self.milestones > steps:
            problems.append(f".continual.steps: {self.milestones} milestones do not fit into {steps} steps")
        if self.continual.warmup_steps >= steps:
            problems.append(f".continual.warmup_steps: {self.continual.warmup_steps} leave nothing of {steps} steps")
        return problems

    def of_month(self, month: int) -> "TrainConfig":
        """Returns the settings of the run of a month; 1 is the first, which continues no model."""
        if self.continual is None:
            return self
        if month == 1:
            return self.model_copy(update={"replay": None})
        peak = self.optim.lr * self.continual.peak_share * (month - 1) ** -self.continual.fall
        optim = self.optim.model_copy(update={"lr": peak, "warmup_steps": self.continual.warmup_steps})
        return self.model_copy(update={"optim": optim, "steps": self.continual.steps or self.steps, "ramp": ()})

    @property
    def first_step(self) -> int:
        """The first step that the run trains: 0, or for a fork the number of steps of the other run."""
        return self.fork.step if self.fork else 0

    @property
    def stable_step(self) -> int:
        """Number of completed steps when the learning rate begins to fall."""
        return self.optim.decay_from(self.steps)

    @property
    def anneal_from(self) -> int:
        """The first step of the second stage; `steps` if there is only one stage."""
        return round(self.steps * (1 - self.anneal.share)) if self.anneal else self.steps

    @property
    def milestone_steps(self) -> tuple[int, ...]:
        """Steps whose checkpoints are kept permanently, ascending; the last is `steps`.

        A run that a later month may continue also keeps the one before its decay. A fork has none up to its first step.
        """
        steps = {self.steps * index // self.milestones for index in range(1, self.milestones + 1)}
        if self.continual and self.continual.start == "stable":
            steps.add(self.stable_step)
        return tuple(sorted(step for step in steps if step > self.first_step))


class LoraConfig(Config):
    """Low-rank adaptation (Hu et al. 2021, arXiv 2106.09685): W x + (alpha / rank) B A x, with W frozen."""

    rank: int = Field(default=8, ge=1)
    """Rows of A and columns of B."""
    alpha: float = Field(default=16.0, gt=0)
    """Numerator of the scale."""
    targets: tuple[Target, ...] = Field(default=TARGETS, min_length=1)
    """Projections of every layer that get an adapter; default: all, as in QLoRA."""
    base: Literal["fp32", "nf4"] = "fp32"
    """Storage of the frozen projections of the layers: unchanged, or in 4 bits (QLoRA)."""
    merge: bool = True
    """Whether the artifact also contains a whole model, with B A added to the frozen matrices."""

    @field_validator("targets")
    @classmethod
    def _once(cls, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        if len(set(targets)) < len(targets):
            raise ValueError("a target is named twice: name each once")
        return targets


class TuningSpec(Config):
    """Settings of a fine-tuning that a rank needs in addition to those of the loop."""

    loss: Literal["sft", "dpo"]
    """`sft`: cross-entropy of the learned tokens; `dpo`: see `tasks.trainer.tuning.model`."""
    beta: float = Field(default=0.1, gt=0)
    """Of `dpo`: strength of the regularization toward the reference."""
    lora: LoraConfig | None = None
    """None: all weights are trained."""
    vocab_size: int
    """Tokens of the vocabulary."""
    eos_id: int
    """End-of-text token."""
    seq_len: int
    """Positions of a packed sequence."""


class CopySpec(Config):
    """A location to which the nodes of a run copy their files of a checkpoint, and from which they fetch others."""

    store: str
    """Local folder or URL."""
    folder: str
    """Folder of the copies, relative to the store."""
    every: int
    """Minimum number of steps between two copies; 0: every checkpoint."""
    required: bool
    """Whether this is the store of the artifact: its folder contains that of the copies, and there the files of
    milestones are collected."""


class ArtifactSpec(Config):
    """Location of an artifact of which ranks read ranges (`spec.open_artifact`)."""

    store: str
    """Local folder or URL of the store."""
    artifact: str
    """Name and version of the artifact."""
    content: str
    """Content hash of the artifact, from its record."""


class ForkSpec(Config):
    """Location of the checkpoint from which a run goes on."""

    run: ArtifactSpec
    """The other run."""
    step: int
    """Its completed steps."""


class InitialSpec(Config):
    """Location of a run's initial weights."""

    artifact: str
    """Name and version of the checkpoint."""
    file: str
    """Local `model.safetensors`."""
    sha256: str
    """SHA-256 of that file (hex); part of the identity of the run."""


class TrainSpec(Config):
    """Specification of one run, as `python -m tasks.trainer` reads it from `--spec`."""

    run: TrainConfig
    """Settings of the training."""
    weights: dict[str, float]
    """Share of each source in a batch; with `anneal`, in the batches of the first stage."""
    anneal: Anneal | None = None
    """The second stage."""
    shards: ArtifactSpec
    """The token shards that the plan names."""
    initial: InitialSpec | None = None
    """The initial weights; None: random ones of `run.init_seed`."""
    fork: ForkSpec | None = None
    """The checkpoint of another run that is loaded if this one has none of its own."""
    heldout: str = ""
    """Local file with the held-out documents to measure (`run.heldout`); "": none."""
    tasks: str = ""
    """Local file with the items of tasks to score after the last step, in addition to `heldout`, without a layout that
    divides sequences or layers; "": none."""
    tuning: TuningSpec | None = None
    """Set for a fine-tuning: `shards` are then examples, there is no `plan`, and `initial` is the base model."""
    plan: ArtifactSpec | None
    """The plan of the sequences."""
    out: str
    """Local folder for checkpoints, metrics and logs; only one run writes to it at a time."""
    place: TrainPlace = TrainPlace()
    """How ranks share the work and wait for one another; no part of the run's identity. Without a layout, the result is
    bit-identical to that of one rank."""
    copies: tuple[CopySpec, ...] = ()
    """Where the nodes of a gang copy their files of checkpoints to; none on a single node."""

    @classmethod
    def read(cls, path: Path) -> "TrainSpec":
        """Reads the JSON file of a spec; raises InputError if it is none."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not a training spec ({error})") from None

    @property
    def data_changes(self) -> tuple[int, ...]:
        """Steps from which the data is planned to differ, so that losses before and after do not compare.

        They are those of `anneal` and, since noise and gradient norm depend on the batch, of `ramp`. A new sequence
        length, other sources or an earlier model begin a run of their own, at step 0.
        """
        return (*self.run.ramp_steps, *((self.anneal.from_step,) if self.anneal else ()))
