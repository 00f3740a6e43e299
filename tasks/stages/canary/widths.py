"""The sweep of widths of a cycle, `[canary.widths]`: the current mixture at several widths and learning rates.

Reads and writes nothing. `arms` lists its arms beside those of the first round, the stage canary trains them like any
other, and `finalist` and `decide` write what they show (`decision.Sweep`): whether a learning rate that is best for a
narrow model is best for a wide one. No mixture depends on it.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator

from tasks.core.config import Config
from tasks.trainer.config import STANDARD, InitConfig, OptimConfig
from tasks.trainer.model.config import ModelConfig

SWEPT = "width"
"""Kind of the arms of a sweep."""


class WidthsConfig(Config):
    """A sweep of widths and learning rates, on the same sequences and with the seeds of the screening."""

    dims: tuple[Annotated[int, Field(ge=8)], ...] = Field(min_length=2)
    """Widths (`dim`), ascending. Heads stay as wide as those of `[canary.model]`, so a wider model has more."""
    lr: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=2)
    """Learning rates at each width, ascending. Three or more can show a lowest loss between two others."""
    mup: bool = True
    """Whether the rates are those of the narrowest model, `[train.init] base_width`, transferred by muP; it needs a
    separate head and AdamW. Without it every width has the rate as it is."""

    @field_validator("dims", "lr")
    @classmethod
    def _ascending(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if list(values) != sorted(set(values)):
            raise ValueError("must ascend, without repeats")
        return values

    @property
    def init(self) -> InitConfig:
        """Initial weights of the runs."""
        return InitConfig(base_width=self.dims[0]) if self.mup else STANDARD

    def model_of(self, model: ModelConfig, dim: int) -> ModelConfig:
        """Returns a model at another width: as deep, with as wide heads and the same ratio of inner width and heads."""
        scaled = {name: round(getattr(model, name) * dim / model.dim) for name in ("heads", "kv_heads", "ffn_width")}
        return model.model_copy(update={"dim": dim, **scaled})

    def problems(self, model: ModelConfig, optim: OptimConfig) -> list[str]:
        """Returns why these widths of a model cannot be trained; [] if they can."""
        unit = model.dim // math.gcd(model.dim, model.kv_heads)
        found = [
            f".dims: {dim} is not a multiple of {unit}, so that its heads cannot be as wide as those of [canary.model] "
            f"(dim {model.dim}, {model.heads} heads, {model.kv_heads} kv_heads): choose other widths, or other heads"
            for dim in self.dims
            if dim % unit
        ]
        if model.experts:
            found.append(".dims: experts of [canary.model] do not widen with it: sweep a model without them")
        if self.mup and model.tie_embeddings:
            found.append(".mup: muP needs a separate head: set [canary.model] tie_embeddings = false, or mup = false")
        if self.mup and optim.name != "adamw":
            found.append('.mup: its rates are those of AdamW: set [canary.optim] name = "adamw", or mup = false')
        return found

    def arms(self, current: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Returns the arms of the sweep: the current one at every width (`dim`) and learning rate (`lr`)."""
        return [
            {**current, "arm": f"{current['arm']}-dim-{dim}-lr-{number}", "kind": SWEPT, "dim": dim, "lr": lr}
            for dim in self.dims
            for number, lr in enumerate(self.lr, 1)
        ]
