"""Floating-point operations of a model per token, for MFU: their share of the peak rate of the devices.

Model FLOPs utilisation (Chowdhery et al. 2022, PaLM, arXiv 2204.02311, appendix B) is the share of the peak that a
machine without any overhead would need for the same tokens per second. Forward and backward pass count, recomputation
does not:

    FLOPs per token = 6 * N + 12 * layers * width of attention * attended length

N is the number of weights that a token is multiplied with: those of the layers and of the output head, not the look-up
in the embedding. The attended length is the sequence length by convention, also where attention is causal: so the
figures of PaLM and llm-foundry are computed, and the ones here compare with them. `attended_length` has what causal
attention within documents needs, which is less.
"""

import numpy as np
from numpy.typing import ArrayLike

from tasks.trainer.model.shape import Shape


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
