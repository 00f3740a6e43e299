"""Maximal update parametrization (muP): a learning rate that is best at one width is best at others.

With `[train.init] base_width` = d0, a model of width d has m = d / d0 (Yang et al. 2022, "Tensor Programs V",
arXiv 2203.03466, table 3, for Adam; at d = d0 nothing changes):

    parameter                      variance at the start   learning rate
    matrices of the layers         as 1 / fan in           1 / m
    head                           as 1 / fan in^2         1 / m
    embedding, norms, biases       the same                1
    query projection, in addition  times c^2               times c

c is the root of base_head_width / head_dim: queries times c give attention of 1 / d instead of 1 / sqrt(d) when heads
are wider than those of the base. The multipliers of logits and attention that other forms of muP have are in these
variances and rates (lemma J.1 of the paper), so the model itself is the same, and so is its export. A tied head has no
such form. Weight decay per step is that of the unscaled learning rate: it would else vanish with the width.
"""

import math

from tasks.trainer.config import InitConfig
from tasks.trainer.model.config import ModelConfig

QUERY = ".wq."


def width_ratio(model: ModelConfig, init: InitConfig) -> float:
    """Returns m; 1.0 without muP."""
    return model.dim / init.base_width if init.base_width else 1.0


def rate_share(model: ModelConfig, init: InitConfig, name: str, dimensions: int) -> float:
    """Returns the factor of a parameter's learning rate; `dimensions` of its tensor."""
    hidden = dimensions > 1 and not name.startswith("embedding.") and not name.endswith(".bias")
    return (1 / width_ratio(model, init) if hidden else 1.0) * _query_share(model, init, name)


def deviation_share(model: ModelConfig, init: InitConfig, name: str) -> float:
    """Returns the factor of the standard deviation of a matrix at the start, if its layers' have `init.std`.

    Without `init.std` the layers' have 1 / sqrt(fan in) already, and only that of the queries changes.
    """
    share = _query_share(model, init, name)
    if not init.std or name.startswith("embedding."):
        return share
    ratio = width_ratio(model, init)
    return share / (ratio if name.startswith("head.") else math.sqrt(ratio))


def _query_share(model: ModelConfig, init: InitConfig, name: str) -> float:
    if not (init.base_width and init.base_head_width and QUERY in name):
        return 1.0
    return math.sqrt(init.base_head_width / model.head_dim)
