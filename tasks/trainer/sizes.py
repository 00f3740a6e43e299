"""Learning rate, batch and precision by the size of a model, and their sources.

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
from typing import Literal, NamedTuple

TOKENS_PER_WEIGHT = 20
"""Of a compute-optimal run (Hoffmann et al. 2022, arXiv 2203.15556)."""


class SizeDefaults(NamedTuple):
    """Defaults of a size."""

    size: str
    """Name in `SIZES`."""
    weights: int
    """N, of its layers."""
    lr: float
    """Peak learning rate."""
    batch_tokens: int
    """Tokens of a step."""
    precision: Literal["fp32", "bf16"]
    """fp32 for sizes that CPUs train; a result depends on it, so it is not that of the device."""
    source: str
    """Heading in the docstring of this module."""


def by_law(size: str, weights: int, precision: Literal["fp32", "bf16"]) -> SizeDefaults:
    """Returns the defaults by DeepSeek's law: a rate of two digits, and a power of two for the batch."""
    flops = 6 * TOKENS_PER_WEIGHT * weights**2
    lr, batch = float(f"{0.3118 * flops**-0.125:.1e}"), 1 << round(math.log2(0.2920 * flops**0.3271))
    return SizeDefaults(size, weights, lr, batch, precision, "DeepSeek")


DEFAULTS = (
    SizeDefaults("1m", 580_608, 4e-3, 2048, "fp32", "measured"),
    by_law("10m", 7_434_240, "fp32"),
    by_law("30m", 25_296_896, "bf16"),
    by_law("125m", 84_934_656, "bf16"),
    by_law("350m", 303_562_752, "bf16"),
    by_law("760m", 679_477_248, "bf16"),
    by_law("1.3b", 1_209_532_416, "bf16"),
    by_law("3b", 2_617_245_696, "bf16"),
    SizeDefaults("8b", 6_979_321_856, 3e-4, 1 << 22, "bf16", "Llama 3"),
    SizeDefaults("70b", 68_451_041_280, 1.5e-4, 1 << 23, "bf16", "Llama 3"),
)


def defaults_of(weights: int) -> SizeDefaults:
    """Returns the defaults of the size that is nearest to a model with this number of weights in its layers.

    >>> defaults_of(1_000_000_000).size
    '1.3b'
    """
    return min(DEFAULTS, key=lambda one: abs(math.log(one.weights / weights)))
