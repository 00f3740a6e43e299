"""Floating-point operations of a model per token, peak rates of GPUs, and their quotient, MFU.

Model FLOPs utilisation (Chowdhery et al. 2022, PaLM, arXiv 2204.02311, appendix B) is the share of the peak that a
machine without any overhead would need for the same tokens per second. Forward and backward pass count, recomputation
does not:

    FLOPs per token = 6 * N + 12 * layers * width of attention * attended length

N is the number of weights that a token is multiplied with: those of the layers and of the output head, not the look-up
in the embedding. The attended length is the sequence length by convention, also where attention is causal: so the
figures of PaLM and llm-foundry are computed, and the ones here compare with them. `attended_length` has what causal
attention within documents needs, which is less.
"""

import re

import numpy as np
from numpy.typing import ArrayLike

from tasks.trainer.shape import Shape

PEAKS = {
    "A100": 312e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L4": 121e12,
    "L40": 181e12,
    "L40S": 362e12,
    "H100": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200": 989e12,
    "H200 NVL": 835e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "GB200": 2500e12,
}
"""FLOP/s of bf16 on tensor cores, dense, by words of the name that CUDA reports ("NVIDIA H100 80GB HBM3"); a name
without "PCIe" or "NVL" is that of the SXM module. NVIDIA's data sheets have, in TFLOP/s, dense | with sparsity, which
is twice as much (-: not stated):

NVIDIA A100 Tensor Core GPU                    312 | 624, both forms
NVIDIA A10; A10G, product brief for AWS        125 | 250; 70 | 140
NVIDIA L4; L40; L40S                           - | 242; 181 | 362; 362 | 733
NVIDIA H100 Tensor Core GPU                    - | 1,979 SXM, 1,671 NVL; 1,513 PCIe (edition of 2022)
NVIDIA H200 Tensor Core GPU                    - | 1,979 SXM, 1,671 NVL
NVIDIA GH200 Grace Hopper Superchip            990 | 1,979
NVIDIA Blackwell: HGX B200; GB200 NVL72        - | 4,500; 5,000, per GPU
"""


def peak_flops(device: str) -> float | None:
    """Returns the dense bf16 FLOP/s of a GPU by its name.

    None where it is not known: that of a CPU, of other cards, and of a part of a card (MIG).

    >>> peak_flops("NVIDIA H200"), peak_flops("NVIDIA H100 PCIe"), peak_flops("AMD EPYC")
    (989000000000000.0, 756000000000000.0, None)
    """
    words = set(re.split(r"[\s-]+", device))
    fitting = [name for name in PEAKS if set(name.split()) <= words and "MIG" not in words]
    return PEAKS[max(fitting, key=len)] if fitting else None


def flops_per_token(shape: Shape, attended: float) -> float:
    """Returns the FLOPs of forward and backward pass per token.

    Args:
        shape: of the model.
        attended: mean number of keys that a query is compared with; the sequence length by convention.
    """
    return 6 * shape.matmul_weights + 12 * shape.layers * shape.heads * shape.head_dim * attended


def attended_length(lengths: ArrayLike) -> float:
    """Returns the mean number of keys of a query under causal attention within documents.

    Args:
        lengths: tokens of each document's run in a sequence, integers of shape (runs,); their sum is above 0.

    >>> attended_length([4]), attended_length([2, 2])
    (2.5, 1.5)
    """
    runs = np.asarray(lengths, dtype=np.float64)
    return float((runs * (runs + 1)).sum() / 2 / runs.sum())
