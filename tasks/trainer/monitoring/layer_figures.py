"""Figures of each layer at some steps: norms of gradient, weights and update, and sizes of its activations.

On the step after which they are taken, the gradient is measured before the update, the weights before and after it, and
the activations by one more forward pass of a microbatch, without gradients: hooks are there during this pass only, and
the step itself computes what it always does. In a layout every rank adds its part. Without one, rank 0 has everything
and measures alone, so that the figures do not depend on the number of ranks.

A layer has a name, "embedding", its number, "norm" or "head", and these figures:

    grad          Euclidean norm of its part of the gradient, before clipping
    weight        norm of its weights before the update
    update        norm of their change, with weight decay
    ratio         update / weight: of healthy matrices about the learning rate, or a few thousandths of the peak
    rms, max      root mean square and largest size of what the layer adds up to, the residual stream behind it
    inner_rms, inner_max    the same of the inner values of its feed-forward part
    inner_zeros   share of these that are below `NEAR_ZERO` of their root mean square: units that are switched off

The last five are those of the layers with a number. A figure that is not finite is null.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tasks.trainer.data.batches import Batch
from tasks.trainer.optim import local, parts_of
from tasks.trainer.parallel.replica import Replica

NEAR_ZERO = 0.01
"""Share of the root mean square below which an inner value counts as zero."""

_GRADIENT, _WEIGHT, _UPDATE = range(3)
_COUNT, _SQUARES, _ZEROS = range(3)
_RESIDUAL, _INNER = range(2)
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")

Figures = dict[str, dict[str, float | None]]


class LayerFigures:
    """Takes the figures of the layers of a run; all ranks call it at the same steps.

    Args:
        replica: the model.
        layers: number of its layers, over all ranks.
        clip: maximum norm of a gradient.
        every: steps between two that are measured; 0: none.
    """

    def __init__(self, replica: Replica, layers: int, clip: float, every: int) -> None:
        self._replica, self._clip, self._every = replica, clip, every
        self._names = ["embedding", *map(str, range(layers)), "norm", "head"]
        self._on = replica.layout is not None or replica.ranks.rank == 0

    @contextmanager
    def around_update(self, step: int, norm: float, parts: Mapping[int, Batch]) -> Iterator[Figures]:
        """Context manager for the update of a step (0-based); yields a dict that has the figures afterwards.

        Args:
            step: the step.
            norm: of its gradient, before clipping.
            parts: its microbatches on this rank.
        """
        found: Figures = {}
        if not self._every or (step + 1) % self._every or not self._on:
            yield found
            return
        device = self._replica.ranks.device
        squares = torch.zeros(len(self._names), 3, dtype=torch.float64, device=device)
        values = torch.zeros(len(self._names), 2, 3, dtype=torch.float64, device=device)
        largest = torch.zeros(len(self._names), 2, dtype=torch.float64, device=device)
        self._measure_activations(next(iter(parts.values())), values, largest)
        before = {}
        for name, parameter, row, share in self._parameters():
            # `Replicated` has divided and clipped the gradient; of `Sharded` the optimizer will.
            clipped = max(1.0, norm / self._clip) if math.isfinite(norm) else 1.0
            scale = (clipped / self._replica.optimizer.divisor) ** 2
            assert parameter.grad is not None, name
            squares[row, _GRADIENT] += _square(local(parameter.grad)) * share * scale
            squares[row, _WEIGHT] += _square(local(parameter)) * share
            before[name] = local(parameter).detach().to("cpu", copy=True)  # there may be no room on the device
        yield found
        for name, parameter, row, share in self._parameters():
            squares[row, _UPDATE] += _square(local(parameter).detach() - before[name].to(device)) * share
        if self._replica.layout is not None:
            self._replica.ranks.sum([squares, values])
            self._replica.ranks.maximum(largest)
        found |= self._figures(squares.sqrt().tolist(), values.tolist(), largest.tolist())

    def _parameters(self) -> Iterator[tuple[str, Tensor, int, float]]:
        """Yields name, parameter, row of its layer, and the share of its squares that this rank contributes."""
        layout = self._replica.layout
        ranks = layout.ranks // layout.pipeline if layout else 1
        for chunk in self._replica.chunks:
            for name, parameter in chunk.named_parameters():
                if parameter.requires_grad:
                    yield name, parameter, self._names.index(layer_of(name)), parts_of(parameter) / ranks

    def _measure_activations(self, part: Batch, values: Tensor, largest: Tensor) -> None:
        """Adds the sums and maxima of a forward pass of a microbatch."""

        def tap(row: int, place: int) -> Callable[[Tensor], None]:
            def add(output: Tensor) -> None:
                size = local(output).detach().abs().double()
                if size.numel():
                    count, squares = size.numel(), size.square().sum()
                    values[row, place, _COUNT] += count
                    values[row, place, _SQUARES] += squares
                    values[row, place, _ZEROS] += (size < NEAR_ZERO * (squares / count).sqrt()).sum()
                    largest[row, place] = torch.maximum(largest[row, place], size.max())

            return add

        with ExitStack() as hooks:
            for chunk in self._replica.chunks:
                for name, layer in chunk.layers.items():
                    row = self._names.index(name)
                    residual, inner = tap(row, _RESIDUAL), tap(row, _INNER)
                    hooks.enter_context(_eager(layer))
                    hooks.enter_context(_hook(layer.register_forward_hook(lambda _m, _i, out, add=residual: add(out))))
                    if (last := getattr(getattr(layer, "ffn", None), "w2", None)) is not None:
                        handle = last.register_forward_pre_hook(lambda _m, inputs, add=inner: add(inputs[0]))
                        hooks.enter_context(_hook(handle))
            self._replica.probe([part])

    def _figures(self, norms: list[Any], values: list[Any], largest: list[Any]) -> Figures:
        found: Figures = {}
        for name, norm, value, most in zip(self._names, norms, values, largest, strict=True):
            if not norm[_WEIGHT] and not norm[_GRADIENT] and not value[_RESIDUAL][_COUNT]:
                continue  # tied to the embedding, or frozen
            ratio = norm[_UPDATE] / norm[_WEIGHT] if norm[_WEIGHT] else math.nan
            row = {"grad": norm[_GRADIENT], "weight": norm[_WEIGHT], "update": norm[_UPDATE], "ratio": ratio}
            for prefix, place in (("", _RESIDUAL), ("inner_", _INNER)):
                if count := value[place][_COUNT]:
                    row[f"{prefix}rms"] = math.sqrt(value[place][_SQUARES] / count)
                    row[f"{prefix}max"] = most[place]
            if count := value[_INNER][_COUNT]:
                row["inner_zeros"] = value[_INNER][_ZEROS] / count
            found[name] = {key: float(f"{one:.6g}") if math.isfinite(one) else None for key, one in row.items()}
        return found


def layer_of(name: str) -> str:
    """Returns the layer of a parameter.

    >>> [layer_of(name) for name in ("layers.3.ffn.w1.weight", "embedding.weight", "norm.weight", "head.weight")]
    ['3', 'embedding', 'norm', 'head']
    """
    if match := _LAYER.search(name):
        return match[1]
    return next((part for part in name.split(".") if part in ("embedding", "norm", "head")), "head")


def _square(tensor: Tensor) -> Tensor:
    """Returns the sum of the squares of a tensor, float64 scalar."""
    square: Tensor = torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64).square()
    return square


@contextmanager
def _hook(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _eager(layer: nn.Module) -> Iterator[None]:
    """Within the block a compiled layer is computed without its graph, which has no hooks."""
    compiled, layer._compiled_call_impl = layer._compiled_call_impl, None
    try:
        yield
    finally:
        layer._compiled_call_impl = compiled
