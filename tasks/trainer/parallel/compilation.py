"""Whether and how the layers of a model are compiled.

Every layer is compiled on its own, with the same code, so one graph serves all of them and compilation takes as long
as that of one layer. Collectives of FSDP are between the graphs, where they overlap with computation.
"""

import importlib.util
import logging
import os
import shutil
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import torch
from torch import nn

from tasks.trainer.parallel.fit import compile_reasons
from tasks.trainer.place import Layout

BACKEND = "inductor"
RECOMPILE_LIMIT = 64
"""Maximum number of graphs per layer. torch's default, 8, would end a run whose batches differ in their number of
sequences, in the capacity of their document bounds, and in whether gradients are needed."""
log = logging.getLogger(__name__)


class Decision(NamedTuple):
    """Whether something is done, and why."""

    on: bool
    reason: str


def decide(layout: Layout, device: torch.device) -> Decision:
    """Decides whether the layers are compiled.

    Args:
        layout: with `compile`; None there: on a GPU, if the compiler and what it calls are installed.
        device: of the model.
    """
    if layout.compile is not None:
        return Decision(layout.compile, f"compile = {str(layout.compile).lower()} in [place.train.layout]")
    if device.type != "cuda":
        return Decision(False, "on a CPU it takes longer than it saves")
    if reasons := compile_reasons(layout):
        return Decision(False, reasons[0])
    if importlib.util.find_spec("triton") is None:
        return Decision(False, "the package triton is missing: install torch with its dependencies")
    if not any(map(shutil.which, (os.environ.get("CC") or "cc", "gcc", "clang"))):
        return Decision(False, "triton calls a C compiler, and there is none: install gcc, or set CC")
    return Decision(True, "on a GPU")


def compile_layers(layers: Iterable[nn.Module], layout: Layout, device: torch.device) -> Decision:
    """Compiles layers in place if `decide` says so; logs its decision, and returns it.

    A part that cannot be compiled is an error: it would divide the graph, and the layer would run slower without
    anyone noticing.
    """
    decision = decide(layout, device)
    _report(decision)
    if not decision.on:
        return decision
    torch._dynamo.config.recompile_limit = max(RECOMPILE_LIMIT, torch._dynamo.config.recompile_limit)
    for layer in layers:
        layer.compile(backend=BACKEND, fullgraph=True)
    return decision


@cache
def _report(decision: Decision) -> None:
    """Logs a decision once, also if a rank has several chunks of the model."""
    log.info("layers are %s: %s", "compiled" if decision.on else "not compiled", decision.reason)
