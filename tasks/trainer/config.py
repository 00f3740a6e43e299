"""Settings of the trainer, and the specification of one run.

Imports pydantic only, so that the Airflow dag-processor can load it.

The defaults suit two CPU cores and a corpus of some million tokens: 1.26 M parameters, 1.2 M tokens, 6,300 tokens per
CPU-second. At 105 CPU-seconds per run on Python's documentation and source, held-out bits per byte fell below the
unigram model's by 39 % (8 sequences per step, lr 4e-3); 38 % with 4 sequences, 34 % with 16, 38 % at 2.5e-3, 36 % at
8e-3, 38 % with two layers of 160.
"""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from tasks.core.config import Config, Problems
from tasks.formats.tokens.mixture import Anneal, check_weights
from tasks.trainer.place import CHECK_EVERY, Layout

Target = Literal["wq", "wk", "wv", "wo", "w1", "w2", "w3"]
TARGETS: tuple[Target, ...] = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")
_CHECKPOINT = re.compile(r"[a-z][a-z0-9_-]*/checkpoint@[A-Za-z0-9][A-Za-z0-9._-]*")


class LinearRope(Config):
    """Positions divided by a factor; a model needs some training with it."""

    kind: Literal["linear"]
    factor: float = Field(gt=1)
    """How many times longer sequences may be."""


class Llama3Rope(Config):
    """Long wavelengths stretched, short ones kept: the scaling of Llama 3.1."""

    kind: Literal["llama3"]
    factor: float = Field(gt=1)
    """How many times longer sequences may be."""
    original_length: int = Field(ge=2)
    """Positions of the sequences trained on before."""
    low_freq_factor: float = Field(default=1.0, gt=0)
    """Wavelengths that fit into the original length at most so many times are stretched by the factor."""
    high_freq_factor: float = Field(default=4.0, gt=0)
    """Wavelengths that fit into it at least so many times are kept."""

    @model_validator(mode="after")
    def _ordered(self) -> "Llama3Rope":
        if self.low_freq_factor >= self.high_freq_factor:
            raise Problems([f".low_freq_factor: must be below high_freq_factor {self.high_freq_factor:g}"])
        return self


class YarnRope(Config):
    """As `Llama3Rope`, with another ramp between both and sharper attention: YaRN."""

    kind: Literal["yarn"]
    factor: float = Field(gt=1)
    """How many times longer sequences may be."""
    original_length: int = Field(ge=2)
    """Positions of the sequences trained on before."""
    beta_slow: float = Field(default=1.0, gt=0)
    """Wavelengths that fit into the original length at most so many times are stretched by the factor."""
    beta_fast: float = Field(default=32.0, gt=0)
    """Wavelengths that fit into it at least so many times are kept."""

    @model_validator(mode="after")
    def _ordered(self) -> "YarnRope":
        if self.beta_slow >= self.beta_fast:
            raise Problems([f".beta_slow: must be below beta_fast {self.beta_fast:g}"])
        return self


class ModelConfig(Config):
    """Shape of a Llama-type decoder."""

    layers: int = Field(default=4, ge=1)
    """Transformer blocks."""
    dim: int = Field(default=128, ge=8)
    """Width of the residual stream."""
    heads: int = Field(default=4, ge=1)
    """Query heads; `dim / heads` is the width of a head and must be even for the rotary embedding."""
    kv_heads: int = Field(default=2, ge=1)
    """Key and value heads, each shared by `heads / kv_heads` query heads."""
    ffn_multiple: float = Field(default=8 / 3, gt=0)
    """Inner width of the SwiGLU layer as a multiple of `dim`, rounded up to a multiple of 32."""
    rope_theta: float = Field(default=10_000.0, gt=1)
    """Base of the rotary wavelengths."""
    rope_scaling: Annotated[LinearRope | Llama3Rope | YarnRope, Field(discriminator="kind")] | None = Field(
        default=None, exclude_if=lambda scaling: scaling is None
    )
    """Longer wavelengths, for sequences longer than those of the training that initial weights come from."""
    tie_embeddings: bool = True
    """One matrix serves as token embedding and output head."""
    norm_eps: float = Field(default=1e-5, gt=0)
    """Added to the mean square in RMSNorm."""

    @model_validator(mode="after")
    def _heads_fit(self) -> "ModelConfig":
        if self.dim % (2 * self.heads):
            raise ValueError(f"dim {self.dim} must be an even multiple of heads {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        return self

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.heads

    @property
    def ffn_dim(self) -> int:
        """Inner width of the SwiGLU layer."""
        return -(-int(self.dim * self.ffn_multiple) // 32) * 32


class OptimConfig(Config):
    """The optimizer and its learning-rate schedule."""

    name: Literal["adamw", "muon"] = Field(default="adamw", exclude_if=lambda name: name == "adamw")
    """`muon`: Muon for the matrices of the layers, AdamW for embedding, head and norms. Updates of both have the same
    size, so the other settings serve both."""
    lr: float = Field(default=4e-3, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of AdamW's first and second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled decay of the matrices; norms and the token embedding are not decayed."""
    warmup_steps: int = Field(default=30, ge=0)
    """Steps of linear warm-up."""
    schedule: Literal["cosine", "wsd"] = "wsd"
    """`cosine` falls from the end of the warm-up; `wsd` stays at the peak and falls linearly at the end."""
    decay_share: float = Field(default=0.4, gt=0, le=1)
    """Share of all steps in which `wsd` falls."""
    min_lr_share: float = Field(default=0.05, ge=0, le=1)
    """Learning rate of the last step as a share of `lr`."""
    clip: float = Field(default=1.0, gt=0)
    """Upper bound of the global gradient norm."""


class AnnealConfig(Config):
    """The second stage of the mixture: other weights in the last steps."""

    share: float = Field(default=0.4, gt=0, lt=1)
    """Share of all steps that it has. As in `[train.optim] decay_share`, whose default is the same: equal shares begin
    at the same step."""
    mixture: dict[str, float] = Field(min_length=1)
    """Source -> share of the sequences of a batch; sums to 1."""

    @field_validator("mixture")
    @classmethod
    def _shares(cls, weights: dict[str, float]) -> dict[str, float]:
        check_weights(weights)
        return weights


class ReplayConfig(Config):
    """Old material beside new: how much of every batch repeats what earlier runs have read."""

    share: float = Field(ge=0.001, le=0.999)
    """Share of the sequences of every batch, in both stages, that is drawn from the old sources."""
    old: tuple[str, ...] = Field(min_length=1)
    """The old sources; every other source is new. On both sides sources keep the ratio of their weights, and are
    weighted by their sequences where the mixture gives none of them a weight."""


class HeldoutConfig(Config):
    """Bits per byte of held-out text during the run."""

    every: int = Field(ge=1)
    """Steps between two measurements; the last step has one, too."""
    max_tokens: int = Field(default=10_000, ge=1)
    """Held-out tokens of each source at most, in whole documents (at least one)."""


class Bf16Compression(Config):
    """Gradients are sent in bf16 and added in fp32: half of the bytes."""

    kind: Literal["bf16"]


class PowerSgdCompression(Config):
    """Matrices of the gradient are sent as products of two narrow ones: PowerSGD."""

    kind: Literal["powersgd"]
    rank: int = Field(default=4, ge=1)
    """Columns of the two: (rows + columns) x rank numbers are sent for rows x columns."""


class TrainConfig(Config):
    """Settings of the stage `train`: everything that changes the result, except the mixture and the input files."""

    model: ModelConfig = ModelConfig()
    """Shape of the model."""
    optim: OptimConfig = OptimConfig()
    """Optimizer and schedule."""
    steps: int = Field(default=600, ge=1)
    """Optimizer steps."""
    batch_size: int = Field(default=8, ge=1)
    """Sequences per step, over all ranks."""
    microbatch: int = Field(default=4, ge=1)
    """Sequences per forward and backward pass. Gradients are summed over microbatches in an order that does not
    depend on the number of ranks, so the rounding depends on this setting and not on the number of ranks."""
    precision: Literal["fp32", "bf16", "fp8"] = "fp32"
    """Arithmetic of the forward and backward pass; weights, moments and sums stay fp32. `fp8`: matrix products of the
    layers in fp8, all else in bf16; for GPUs from SM 8.9. On a processor without bf16 instructions `bf16` is slower
    than `fp32`."""
    compression: Annotated[Bf16Compression | PowerSgdCompression, Field(discriminator="kind")] | None = Field(
        default=None, exclude_if=lambda compression: compression is None
    )
    """How gradients are sent between ranks with a copy of the model each, where the network is slow; None: in fp32.
    With it the result depends on the number of ranks."""
    threads: int = Field(default=1, ge=1)
    """CPU threads per rank. Part of the identity: another number may split a sum differently."""
    init_seed: int = Field(default=0, ge=0)
    """Seed of the initial weights, where they are random."""
    init_from: str = Field(default="", exclude_if=lambda name: not name)
    """Checkpoint whose last weights are the initial ones ("demo/checkpoint@2026.10"), of the same model and tokenizer;
    "demo/checkpoint@previous" is the newest other one when the run began, and random weights where there is none.
    Optimizer, steps and learning rate begin anew, with the warm-up. Empty: random weights."""
    seed: int = Field(default=0, ge=0)
    """Seed of the order of sequences."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Steps between checkpoints that a restart resumes from."""
    keep_checkpoints: int = 2
    """Newest checkpoints kept in scratch beside the milestones; at least 2, which a rollback needs."""
    milestones: int = Field(default=3, ge=1)
    """Evenly spaced checkpoints that become part of the artifact; the last one is the trained model."""
    mixture: dict[str, float] = {}
    """Without canaries: source -> share of the sequences of a batch; sums to 1. Empty: the natural one, each
    source by its number of sequences."""
    anneal: AnnealConfig | None = None
    """Another mixture in the last steps, also after one that canaries have decided on."""
    replay: ReplayConfig | None = None
    """Share of old material in every batch."""
    repetition_cap: float | None = Field(default=None, gt=0)
    """Largest number of epochs of one source; a run that needs more is refused. Repeated text is worth about as much as
    new text up to four epochs (Muennighoff et al. 2023, "Scaling Data-Constrained Language Models")."""

    heldout: HeldoutConfig | None = Field(default=None, exclude_if=lambda heldout: heldout is None)
    """Measure held-out text while training; None: only the stage `evaluate` does. The weights are the same either
    way."""

    @field_validator("init_from")
    @classmethod
    def _checkpoint(cls, name: str) -> str:
        if name and not _CHECKPOINT.fullmatch(name):
            raise ValueError('the id of a checkpoint is <recipe>/checkpoint@<version>, as in "demo/checkpoint@2026.10"')
        return name

    @field_validator("mixture")
    @classmethod
    def _shares(cls, weights: dict[str, float]) -> dict[str, float]:
        if weights:
            check_weights(weights)
        return weights

    @model_validator(mode="after")
    def _steps_fit(self) -> "TrainConfig":
        wrong = []
        if self.batch_size % self.microbatch:
            wrong.append(f"batch_size {self.batch_size} must be a multiple of microbatch {self.microbatch}")
        if self.milestones > self.steps:
            wrong.append(f"{self.milestones} milestones do not fit into {self.steps} steps")
        if self.keep_checkpoints < 2:
            wrong.append(
                f".keep_checkpoints: {self.keep_checkpoints} is too few: where the step after the newest checkpoint is "
                "refused, a rollback goes to the one before it; set 2 or more"
            )
        if self.anneal and not 0 < self.anneal_from < self.steps:
            wrong.append(
                f".anneal.share: a share of {self.anneal.share:g} of {self.steps} steps leaves one of the two stages "
                "without a step: take one nearer to 0.5, or train more steps"
            )
        if wrong:
            raise Problems(wrong)
        return self

    @property
    def anneal_from(self) -> int:
        """The first step of the second stage; `steps` where there is one stage."""
        return round(self.steps * (1 - self.anneal.share)) if self.anneal else self.steps

    @property
    def milestone_steps(self) -> tuple[int, ...]:
        """Steps whose checkpoints are kept for good, ascending; the last is `steps`."""
        return tuple(self.steps * index // self.milestones for index in range(1, self.milestones + 1))


class LoraConfig(Config):
    """Low-rank adaptation (Hu et al. 2021, arXiv 2106.09685): W x + (alpha / rank) B A x, with W frozen."""

    rank: int = Field(default=8, ge=1)
    """Rows of A and columns of B."""
    alpha: float = Field(default=16.0, gt=0)
    """Numerator of the scale."""
    targets: tuple[Target, ...] = Field(default=TARGETS, min_length=1)
    """Projections of every layer that get an adapter; default: all, as in QLoRA."""
    base: Literal["fp32", "nf4"] = "fp32"
    """How the frozen projections of the layers are kept: as they are, or in 4 bits (QLoRA)."""
    merge: bool = True
    """Whether the artifact gets a whole model beside the adapters, B A added to the frozen matrices."""

    @field_validator("targets")
    @classmethod
    def _once(cls, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        if len(set(targets)) < len(targets):
            raise ValueError("a target is named twice: name each once")
        return targets


class TuningSpec(Config):
    """Fine-tuning as a rank needs it, beside the settings of the loop."""

    loss: Literal["sft", "dpo"]
    """`sft`: cross-entropy of the tokens to learn; `dpo`: see `tasks.trainer.tuning.model`."""
    beta: float = Field(default=0.1, gt=0)
    """Of `dpo`: how strongly the model is held to the reference."""
    lora: LoraConfig | None = None
    """None: all weights are trained."""
    vocab_size: int
    """Tokens of the vocabulary."""
    eos_id: int
    """End-of-text token."""
    seq_len: int
    """Positions of a packed sequence."""


class ShardsSpec(Config):
    """Where the token shards of a run are; ranks read ranges of them."""

    store: str
    """Local folder or URL of the store."""
    artifact: str
    """Name and version of the artifact."""
    content: str
    """Identity of its bytes, as its record has it."""


class InitialSpec(Config):
    """Where the initial weights of a run are."""

    artifact: str
    """Name and version of the checkpoint."""
    file: str
    """Local `model.safetensors`."""
    sha256: str
    """Of that file (hex); part of the identity of the run."""


class TrainSpec(Config):
    """Specification of one run, as `python -m tasks.trainer` reads it from `--spec`."""

    run: TrainConfig
    """What is trained and how."""
    weights: dict[str, float]
    """Share of each source in a batch; with `anneal`, in those of the first stage."""
    anneal: Anneal | None = None
    """The second stage."""
    shards: ShardsSpec
    """The token shards that the plan names."""
    initial: InitialSpec | None = None
    """The initial weights; None: random ones of `run.init_seed`."""
    heldout: str = ""
    """Local file with the documents that `run.heldout` measures; "": none."""
    tuning: TuningSpec | None = None
    """What makes it a fine-tuning: `shards` are then examples, `plan` is empty, `initial` is the base."""
    plan: str
    """Local folder with `summary.json` and the files of its parts."""
    out: str
    """Local folder for checkpoints, metrics and logs; only one run writes to it at a time."""
    layout: Layout | None = None
    """How ranks share the work; None: each has all of the model and some of the microbatches, with the bits of one."""
    check_every: int = CHECK_EVERY
    """Steps between two checks of the ranks' shares of the gradient (`integrity.corruption`); 0: on suspicion only."""
    keep_every: int = 0
    """Checkpoints of steps that are multiples of it are kept in scratch, too; 0: none."""
