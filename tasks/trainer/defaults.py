"""Learning rate, batch and precision that a recipe gets by the size of its model, and where they come from.

A model has the size of `shape.SIZES` whose layers have the nearest number of weights, by ratio. N are the weights in
the matrices of the layers, without embedding and head. The sources of the values:

measured  In this repository, on two CPU cores (`tasks.trainer.config`).
DeepSeek  With C = 6 N x 20 N FLOPs, which is 20 tokens per weight: lr = 0.3118 C^-0.125, and a batch of
          0.2920 C^0.3271 tokens, rounded to a power of two (DeepSeek LLM, arXiv 2401.02954, section 3.1; its fit ends
          at 2e19 FLOPs, and C of `3b` is 8e20). A run with more tokens per weight is safer with less: OLMo 2 1B, with
          4 T tokens, had 4e-4.
Llama 3   Peak learning rates of 8B and 70B (arXiv 2407.21783, table 3); batches of OLMo 2, of 4,096 tokens x 1,024 (7B,
          also at 3e-4) and x 2,048 (32B, at 6e-4) (arXiv 2501.00656; allenai/OLMo-core, src/scripts/official/OLMo2).

Muon's updates have the root mean square of AdamW's (`optim`), so both have the same learning rate. nanochat, whose Muon
is scaled differently, has 0.02 for all depths and batches of 2^19 tokens, within a factor of two of those here.
"""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, NamedTuple

from tasks.trainer.config import STANDARD, InitConfig, ModelConfig, OptimConfig, TrainConfig
from tasks.trainer.model.shape import SIZES, ModelShape

TOKENS_PER_WEIGHT = 20
"""Of a compute-optimal run (Hoffmann et al. 2022, arXiv 2203.15556)."""
DIVERGES_AT = 3.0
"""Multiple of the default learning rate from which on a run is warned of: losses of published sweeps rise from about
four times the best one (DeepSeek LLM, figure 2)."""
RECIPE = "the recipe"


class SizeDefaults(NamedTuple):
    """Defaults of a size."""

    size: str
    """Name in `SIZES`."""
    lr: float
    """Peak learning rate."""
    batch_tokens: int
    """Tokens of a step."""
    precision: Literal["fp32", "bf16"]
    """fp32 for sizes that CPUs train; a result depends on it, so it is not that of the device."""
    source: str
    """Heading in the docstring of this module."""


@cache
def _weights(model: ModelConfig) -> int:
    return model.layers * ModelShape.of(model, model.vocab_rows or 1).layer_matrices


def law(size: str) -> tuple[float, int]:
    """Returns learning rate (two digits) and tokens of a batch (a power of two) of a size by DeepSeek's law."""
    flops = 6 * TOKENS_PER_WEIGHT * _weights(SIZES[size].model) ** 2
    return float(f"{0.3118 * flops**-0.125:.1e}"), 1 << round(math.log2(0.2920 * flops**0.3271))


DEFAULTS = (
    SizeDefaults("1m", 4e-3, 2048, "fp32", "measured"),
    SizeDefaults("10m", *law("10m"), "fp32", "DeepSeek"),
    *(SizeDefaults(size, *law(size), "bf16", "DeepSeek") for size in ("30m", "125m", "350m", "760m", "1.3b", "3b")),
    SizeDefaults("8b", 3e-4, 1 << 22, "bf16", "Llama 3"),
    SizeDefaults("70b", 1.5e-4, 1 << 23, "bf16", "Llama 3"),
)


def defaults_of(model: ModelConfig) -> SizeDefaults:
    """Returns the defaults of the size that is nearest to a model.

    >>> defaults_of(ModelConfig(layers=20, dim=2048, heads=16, kv_heads=16)).size
    '1.3b'
    """
    weights = _weights(model)
    return min(DEFAULTS, key=lambda one: abs(math.log(_weights(SIZES[one.size].model) / weights)))


def _at_base(model: ModelConfig, init: InitConfig) -> ModelConfig:
    """Returns the model whose learning rate a run has: with muP, the one of the base width."""
    if not init.base_width:
        return model
    inner = {"dim": init.base_width, "ffn_width": 0, "head_width": model.head_dim}
    heads = max(1, round(model.heads * init.base_width / model.dim))
    return model.model_copy(update={**inner, "heads": heads, "kv_heads": min(heads, model.kv_heads)})


def default_batch(run: TrainConfig, seq_len: int) -> int:
    """Returns the sequences of a step that have the tokens of the size, a multiple of `microbatch`."""
    return max(1, round(defaults_of(run.model).batch_tokens / (seq_len * run.microbatch))) * run.microbatch


def with_default_lr(optim: OptimConfig, model: ModelConfig, init: InitConfig = STANDARD) -> OptimConfig:
    """Returns the settings with the learning rate of the size of a model, or of its muP base, unless they set one."""
    if "lr" in optim.model_fields_set:
        return optim
    return optim.model_copy(update={"lr": defaults_of(_at_base(model, init)).lr})


def drop_defaults(settings: dict[str, Any], run: TrainConfig, seq_len: int) -> None:
    """Removes the values of `[train]` that its size has by default, so that another size gets its own."""
    default = defaults_of(run.model)
    if run.optim.lr == defaults_of(_at_base(run.model, run.init)).lr:
        del settings["optim"]["lr"]
    if run.precision == default.precision:
        settings.pop("precision", None)
    if run.batch_size == default_batch(run, seq_len):
        settings.pop("batch_size", None)


def origins(run: TrainConfig, seq_len: int) -> dict[str, dict[str, Any]]:
    """Returns `value` and `from` of learning rate, batch in sequences and precision, for plan and record."""
    default, base = defaults_of(run.model), defaults_of(_at_base(run.model, run.init))
    rows = {
        "lr": (run.optim.lr, base.lr, base),
        "batch_size": (run.batch_size, default_batch(run, seq_len), default),
        "precision": (run.precision, default.precision, default),
    }
    return {
        name: {"value": own, "from": f"default of {of.size} ({of.source})" if own == usual else RECIPE}
        for name, (own, usual, of) in rows.items()
    }


def doubts(run: TrainConfig, gpu: bool) -> Iterator[str]:
    """Yields warnings about a run; `gpu`: whether it is on GPUs."""
    default = defaults_of(_at_base(run.model, run.init))
    if run.optim.lr > DIVERGES_AT * default.lr:
        yield (
            f"optim.lr = {run.optim.lr:g} is likely to diverge: models of about {default.size} train at "
            f"{default.lr:g} ({default.source}); lower it, or leave it out"
        )
    if gpu and run.precision == "fp32":
        yield 'precision is fp32 on a GPU, several times as slow as bf16: set [train] precision = "bf16"'
