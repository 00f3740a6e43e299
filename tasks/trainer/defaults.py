"""What a recipe leaves out: the defaults of its model's size (`sizes`), where values come from, and warnings."""

from collections.abc import Iterator
from typing import Any

from tasks.trainer.config import TrainConfig
from tasks.trainer.sizes import defaults_of

DIVERGES_AT = 3.0
"""Multiple of the default learning rate from which on a run is warned of."""
RECIPE = "the recipe"


def default_batch(run: TrainConfig, seq_len: int) -> int:
    """Returns the sequences of a step that have the tokens of the size, a multiple of `microbatch`."""
    return (
        max(1, round(defaults_of(run.model.layer_weights).batch_tokens / (seq_len * run.microbatch))) * run.microbatch
    )


def drop_defaults(settings: dict[str, Any], run: TrainConfig, seq_len: int) -> None:
    """Removes the values of `[train]` that its size has by default, so that another size gets its own."""
    default = defaults_of(run.model.layer_weights)
    if run.optim.lr == defaults_of(run.init.base_of(run.model).layer_weights).lr:
        del settings["optim"]["lr"]
    if run.precision == default.precision:
        settings.pop("precision", None)
    if run.batch_size == default_batch(run, seq_len):
        settings.pop("batch_size", None)


def origins(run: TrainConfig, seq_len: int) -> dict[str, dict[str, Any]]:
    """Returns `value` and `from` of learning rate, batch in sequences and precision, for plan and record."""
    default, base = defaults_of(run.model.layer_weights), defaults_of(run.init.base_of(run.model).layer_weights)
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
    default = defaults_of(run.init.base_of(run.model).layer_weights)
    if run.optim.lr > DIVERGES_AT * default.lr:
        yield (
            f"optim.lr = {run.optim.lr:g} is likely to diverge: models of about {default.size} train at "
            f"{default.lr:g} ({default.source}); lower it, or leave it out"
        )
    if gpu and run.precision == "fp32":
        yield 'precision is fp32 on a GPU, several times as slow as bf16: set [train] precision = "bf16"'
