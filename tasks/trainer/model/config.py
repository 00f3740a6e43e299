"""Settings of a decoder, `[train.model]`: its shape, its features, its experts. Does not import torch."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.core.config import Config, Problems
from tasks.core.errors import RecipeError


class LinearRope(Config):
    """Divides positions by a factor (position interpolation); the model needs some training with it."""

    kind: Literal["linear"]
    factor: float = Field(gt=1)
    """Maximum ratio of the new to the original sequence length."""


class Llama3Rope(Config):
    """Stretches long wavelengths and keeps short ones, as in Llama 3.1."""

    kind: Literal["llama3"]
    factor: float = Field(gt=1)
    """Maximum ratio of the new to the original sequence length."""
    original_length: int = Field(ge=2)
    """Sequence length of the original training, in positions."""
    low_freq_factor: float = Field(default=1.0, gt=0)
    """Wavelengths that fit into the original length at most this many times are stretched by the factor."""
    high_freq_factor: float = Field(default=4.0, gt=0)
    """Wavelengths that fit into it at least this many times are kept."""

    @model_validator(mode="after")
    def _ordered(self) -> "Llama3Rope":
        if self.low_freq_factor >= self.high_freq_factor:
            raise Problems([f".low_freq_factor: must be below high_freq_factor {self.high_freq_factor:g}"])
        return self


class YarnRope(Config):
    """YaRN: like `Llama3Rope`, with a different ramp between the two and a lower attention temperature."""

    kind: Literal["yarn"]
    factor: float = Field(gt=1)
    """Maximum ratio of the new to the original sequence length."""
    original_length: int = Field(ge=2)
    """Sequence length of the original training, in positions."""
    beta_slow: float = Field(default=1.0, gt=0)
    """Wavelengths that fit into the original length at most this many times are stretched by the factor."""
    beta_fast: float = Field(default=32.0, gt=0)
    """Wavelengths that fit into it at least this many times are kept."""
    truncate: bool = Field(default=True, exclude_if=lambda rounds: rounds)
    """Whether the ends of the ramp are rounded outward to whole pairs; gpt-oss does not round them."""

    @model_validator(mode="after")
    def _ordered(self) -> "YarnRope":
        if self.beta_slow >= self.beta_fast:
            raise Problems([f".beta_slow: must be below beta_fast {self.beta_fast:g}"])
        return self


class ExpertsConfig(Config):
    """Experts in place of the SwiGLU of every layer; no token is dropped (`tasks.trainer.model.experts`)."""

    count: int = Field(ge=2)
    """Experts of a layer."""
    per_token: int = Field(ge=1)
    """Experts that compute a token."""
    width: int = Field(ge=1)
    """Inner width of an expert."""
    shared_width: int = Field(default=0, ge=0)
    """Inner width of a SwiGLU that computes every token in addition; 0: none."""
    router: Literal["softmax", "chosen", "sigmoid"] = "softmax"
    """Weights of the chosen experts: shares of a softmax over all experts (Qwen 3, Mixtral), of one over the chosen
    ones (gpt-oss), or the sigmoid of each score (DeepSeek-V3)."""
    normalize: bool = True
    """Whether the weights of a token are divided by their sum; those of `chosen` always sum to 1."""
    bias: bool = Field(default=False, exclude_if=lambda biases: not biases)
    """Adds a bias to the scores of the router and to every matrix of an expert, as in gpt-oss."""
    clamp: float = Field(default=0.0, ge=0, exclude_if=lambda limit: limit == 0)
    """Above 0: the gated unit of gpt-oss, (up + 1) * gate * sigmoid(1.702 gate), with both clamped to this limit."""
    balance: Literal["loss", "bias", "none"] = "loss"
    """What equalizes the load of the experts. `loss`: a loss (arXiv 2101.03961). `bias`: a bias that only affects the
    choice, raised for experts with less than the mean load of a step and lowered for others (arXiv 2408.15664); no
    layout of an export has it."""
    bias_rate: float = Field(default=1e-3, gt=0)
    """Of `bias`: change in a step."""
    loss_weight: float = Field(default=1e-2, ge=0)
    """Of `loss`: its weight, where balance has the loss 1 in each layer."""
    z_loss: float = Field(default=0.0, ge=0)
    """Weight of the mean square of ln sum exp of the router's scores, which keeps them small (arXiv 2202.08906)."""

    @model_validator(mode="after")
    def _fits(self) -> "ExpertsConfig":
        if self.per_token > self.count:
            raise Problems([f".per_token: {self.per_token} of {self.count} experts cannot compute a token"])
        return self


class ModelConfig(Config):
    """Shape of a decoder: that of Llama, changed by features of others that do not depend on each other."""

    layers: int = Field(default=4, ge=1)
    """Transformer blocks."""
    dim: int = Field(default=128, ge=8)
    """Width of the residual stream."""
    heads: int = Field(default=4, ge=1)
    """Query heads; `dim / heads` is the width of a head and must be even for the rotary embedding."""
    head_width: int = Field(default=0, ge=0, exclude_if=lambda width: width == 0)
    """Width of a head that is not `dim / heads`, as in Qwen 3; even. 0: `dim / heads`."""
    kv_heads: int = Field(default=2, ge=1)
    """Key and value heads, each shared by `heads / kv_heads` query heads."""
    qkv_bias: bool = Field(default=False, exclude_if=lambda biases: not biases)
    """Adds a bias to queries, keys and values, as in Qwen 2."""
    output_bias: bool = Field(default=False, exclude_if=lambda bias: not bias)
    """Adds a bias to what attention adds to the residual stream, as in gpt-oss."""
    attention_sinks: bool = Field(default=False, exclude_if=lambda sinks: not sinks)
    """A learned score per head that every query also has, of no key: its share of the softmax is of nothing, so that
    a head can attend to less than one key (gpt-oss, arXiv 2508.10925)."""
    qk_norm: bool | Literal["projection"] = Field(default=False, exclude_if=lambda norms: not norms)
    """Normalizes the queries and keys of each head (RMSNorm) before they are rotated, as in Qwen 3; `projection`: all
    heads together, as in OLMo 2."""
    norm_place: Literal["pre", "post", "both"] = Field(default="pre", exclude_if=lambda place: place == "pre")
    """Where attention and feed-forward have a norm: of what they read, of what they add to the residual stream (OLMo
    2), or of both (Gemma 2)."""
    norm_weight: Literal["plain", "offset", "none"] = Field(default="plain", exclude_if=lambda kind: kind == "plain")
    """Factor of a normalized vector: its weight, one more than its weight (Gemma), or none (nanochat)."""
    activation: Literal["silu", "gelu_tanh", "relu2"] = Field(default="silu", exclude_if=lambda name: name == "silu")
    """Activation of the feed-forward layer; `gelu_tanh` is GELU by its tanh formula, `relu2` the square of ReLU."""
    gated: bool = Field(default=True, exclude_if=lambda gated: gated)
    """Whether the activation is multiplied with a third matrix, as in SwiGLU."""
    embedding_scale: Literal["none", "sqrt_dim", "rms"] = Field(default="none", exclude_if=lambda kind: kind == "none")
    """Factor of the embedded tokens: the root of `dim` (Gemma), or one over their RMS (nanochat)."""
    window: int = Field(default=0, ge=0, exclude_if=lambda window: window == 0)
    """Keys that a query attends to in a layer with a window, the last ones up to its own; 0: all."""
    window_pattern: str = Field(default="w", pattern="^[wf]+$", exclude_if=lambda pattern: pattern == "w")
    """A letter per layer, repeated over the layers: `w` with the window, `f` full attention; `wwwf` as in OLMo 3."""
    window_rope_theta: float = Field(default=0.0, ge=0, exclude_if=lambda theta: theta == 0)
    """Base of the rotary wavelengths in layers with a window, which are then not scaled; 0: as in the others."""
    rope_pattern: str = Field(default="r", pattern="^[rn]+$", exclude_if=lambda pattern: pattern == "r")
    """A letter per layer, repeated over the layers: `r` rotary positions, `n` none; `rrrn` as in SmolLM3."""
    rope_reversed: bool = Field(default=False, exclude_if=lambda reverse: not reverse)
    """Rotates queries and keys in the other direction, as nanochat does."""
    attention_scalar: float = Field(default=0.0, ge=0, exclude_if=lambda scalar: scalar == 0)
    """Scores of attention are divided by the root of this number; 0: of the width of a head."""
    attention_cap: float = Field(default=0.0, ge=0, exclude_if=lambda cap: cap == 0)
    """Bound c of the scores of attention, which become c tanh(score / c), as in Gemma 2; 0: none."""
    logit_cap: float = Field(default=0.0, ge=0, exclude_if=lambda cap: cap == 0)
    """The same of the logits, in training and inference."""
    ffn_multiple: float = Field(default=8 / 3, gt=0)
    """Inner width of the feed-forward layer as a multiple of `dim`, rounded up to a multiple of 32."""
    ffn_width: int = Field(default=0, ge=0, exclude_if=lambda width: width == 0)
    """Inner width of the feed-forward layer, for one that is not a multiple of 32; 0: that of `ffn_multiple`."""
    experts: ExpertsConfig | None = Field(default=None, exclude_if=lambda experts: experts is None)
    """A mixture of experts in place of the feed-forward layer of every block; None: none."""
    rope_theta: float = Field(default=10_000.0, gt=1)
    """Base of the rotary wavelengths."""
    rope_scaling: Annotated[LinearRope | Llama3Rope | YarnRope, Field(discriminator="kind")] | None = Field(
        default=None, exclude_if=lambda scaling: scaling is None
    )
    """Scaling of the wavelengths, for sequences longer than those that the initial weights were trained on."""
    tie_embeddings: bool = True
    """One matrix serves as token embedding and output head."""
    vocab_rows: int = Field(default=0, ge=0, exclude_if=lambda rows: rows == 0)
    """Rows of embedding and head, for more than the tokens of the vocabulary (for example a multiple that ranks can
    divide); the other rows are in no softmax. 0: a row for each token."""
    norm_eps: float = Field(default=1e-5, gt=0)
    """Added to the mean square in RMSNorm."""

    @model_validator(mode="after")
    def _heads_fit(self) -> "ModelConfig":
        if not self.head_width and self.dim % (2 * self.heads):
            raise ValueError(f"dim {self.dim} must be an even multiple of heads {self.heads}")
        if self.head_width % 2:
            raise ValueError(f"head_width {self.head_width} must be even")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        if not self.window and (self.window_pattern != "w" or self.window_rope_theta):
            raise ValueError("window_pattern and window_rope_theta apply to layers with a window: set window, too")
        return self

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.head_width or self.dim // self.heads

    @property
    def ffn_dim(self) -> int:
        """Inner width of the feed-forward layer."""
        return self.ffn_width or -(-int(self.dim * self.ffn_multiple) // 32) * 32

    def window_of(self, layer: int) -> int:
        """Returns the window of a layer by its number; 0: none."""
        return self.window if self.window_pattern[layer % len(self.window_pattern)] == "w" else 0

    def has_rope(self, layer: int) -> bool:
        """Returns whether a layer has rotary positions."""
        return self.rope_pattern[layer % len(self.rope_pattern)] == "r"

    @property
    def layer_weights(self) -> int:
        """Weights in matrices of the layers that compute a token; they choose the defaults of a size (`sizes`)."""
        attention = self.dim * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        width, gated = self.ffn_dim, self.gated
        if self.experts:
            width, gated = self.experts.per_token * self.experts.width + self.experts.shared_width, True
        return self.layers * (attention + (3 if gated else 2) * self.dim * width)

    def embedding_rows(self, tokens: int) -> int:
        """Returns the rows of embedding and head for a vocabulary; raises RecipeError if it has more tokens."""
        if 0 < self.vocab_rows < tokens:
            raise RecipeError(
                f"[train.model] vocab_rows = {self.vocab_rows:,}, and the vocabulary has {tokens:,} tokens",
                f"set vocab_rows to {tokens:,} or more, or leave it out",
            )
        return self.vocab_rows or tokens
