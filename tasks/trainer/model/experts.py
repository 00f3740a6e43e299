"""A mixture of experts in place of the feed-forward part of a layer, and the load of its experts.

A router chooses `per_token` of `count` experts for every token (Shazeer et al. 2017, arXiv 1701.06538). Rows are
sorted by expert and multiplied in groups, as in MegaBlocks (arXiv 2211.15841): no expert has a capacity, and no token
is dropped. All sums are in a fixed order, so a step is repeatable.

Loads are counted in the backward pass, which runs once for every microbatch, with recomputation, too; passes without
gradients are not counted. The gradients of the balance loss and of the z-loss begin there as well, so that
`Transformer.loss` stays the cross-entropy. Both are means over the positions of a microbatch, padding included, and
count as often as it has positions.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.trainer.model.config import ExpertsConfig, ModelConfig

ALPHA = 1.702
"""Of the gated unit of gpt-oss, as in the sigmoid approximation of GELU."""
DROPPED, LOAD, ENTROPY, DEAD = "experts/dropped", "experts/load", "experts/entropy", "experts/dead"


class Compute(Protocol):
    """Computes rows that are sorted by expert."""

    def __call__(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Maps float [rows, dim], of which `counts` (int64 [experts]) belong to each expert, to the same shape."""


class Matrices(nn.Module):
    """A matrix per expert, [count, outputs, inputs], and optionally a bias; undefined until initialized or loaded."""

    def __init__(self, count: int, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(count, outputs)) if bias else None

    def product(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Multiplies rows that are sorted by expert; see `Compute`."""
        weight = _local(self.weight)
        if torch.is_autocast_enabled(rows.device.type):
            dtype = torch.get_autocast_dtype(rows.device.type)
            rows, weight = rows.to(dtype), weight.to(dtype)
        out = grouped_product(rows, weight, counts)
        if self.bias is None:
            return out
        return out + _local(self.bias).to(out.dtype).repeat_interleave(counts, dim=0, output_size=len(rows))


class Experts(nn.Module):
    """SwiGLU experts, or those of gpt-oss; a `Compute`. With expert parallelism a rank has some of them."""

    def __init__(self, dim: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.clamp = config.clamp
        self.w1 = Matrices(config.count, dim, config.width, config.bias)
        self.w2 = Matrices(config.count, config.width, dim, config.bias)
        self.w3 = Matrices(config.count, dim, config.width, config.bias)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Maps rows; see `Compute`."""
        gate, up = self.w1.product(rows, counts), self.w3.product(rows, counts)
        if not self.clamp:
            return self.w2.product(F.silu(gate) * up, counts)
        gate, up = gate.clamp(max=self.clamp), up.clamp(-self.clamp, self.clamp)
        return self.w2.product((up + 1) * gate * torch.sigmoid(ALPHA * gate), counts)


class Routing(NamedTuple):
    """The experts of each token."""

    choice: Tensor
    """int64 [tokens, per_token]."""
    weights: Tensor
    """float32 [tokens, per_token]."""
    shares: Tensor
    """float32 [tokens, count]: the scores of all experts, which sum to 1."""
    scores: Tensor
    """float32 [tokens, count], before softmax or sigmoid."""


class Router(nn.Module):
    """Chooses experts; computed in fp32, because rounded scores would choose others."""

    def __init__(self, dim: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.count, dim))
        self.bias = nn.Parameter(torch.empty(config.count)) if config.bias else None
        self.choice_bias: Tensor | None
        self.register_buffer("choice_bias", torch.zeros(config.count) if config.balance == "bias" else None)

    def forward(self, x: Tensor) -> Routing:
        """Returns the experts of `x`, float [tokens, dim]."""
        with torch.autocast(x.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            scores = F.linear(x.float(), self.weight.float(), bias)
        sigmoid = self.config.router == "sigmoid"
        values = scores.sigmoid() if sigmoid else scores.softmax(dim=-1)
        shares = values / values.sum(dim=-1, keepdim=True) if sigmoid else values
        ranked = scores if self.config.router == "chosen" else values
        ranked = ranked.detach() if self.choice_bias is None else ranked.detach() + self.choice_bias
        # Stable, so that of equal scores the first expert is chosen on every device.
        choice = ranked.sort(dim=-1, descending=True, stable=True).indices[:, : self.config.per_token]
        if self.config.router == "chosen":
            return Routing(choice, scores.gather(1, choice).softmax(dim=-1), shares, scores)
        weights = values.gather(1, choice)
        weights = weights / weights.sum(dim=-1, keepdim=True) if self.config.normalize else weights
        return Routing(choice, weights, shares, scores)


class Mixture(nn.Module):
    """The feed-forward part of a layer: experts, and optionally a part `shared` that computes every token."""

    def __init__(self, dim: int, config: ExpertsConfig, shared: nn.Module | None) -> None:
        super().__init__()
        self.config = config
        self.router, self.experts, self.shared = Router(dim, config), Experts(dim, config), shared
        self.compute: Compute = self.experts.__call__
        """Computes the rows of all experts, here or on other ranks."""
        self.load: Tensor | None = None
        """float64 [count + 1]: tokens of each expert since `Loads.take`, and the summed entropy of `shares`."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, positions, dim] to the same shape."""
        flat = x.flatten(0, -2)
        routing = self.router(flat)
        active, chosen = self.config.per_token, routing.choice.flatten()
        counts = chosen.new_zeros(self.config.count).scatter_add_(0, chosen, torch.ones_like(chosen))
        order = chosen.argsort(stable=True)
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        rows = flat[:, None].expand(-1, active, -1).flatten(0, 1)
        computed = self.compute(Permuted.apply(rows, order, inverse), counts)  # type: ignore[no-untyped-call]
        by_token = Permuted.apply(computed, inverse, order).unflatten(0, (-1, active))  # type: ignore[no-untyped-call]
        out: Tensor = (by_token * routing.weights.to(by_token.dtype)[..., None]).sum(dim=1)
        if self.shared is not None:
            out = out + self.shared(flat)
        if out.requires_grad:
            out = _Noted.apply(out, self._losses(routing, counts), self, _measured(routing, counts))  # type: ignore[no-untyped-call]
        return out.view_as(x)

    def _losses(self, routing: Routing, counts: Tensor) -> Tensor:
        """Returns balance loss and z-loss with their weights, summed over positions; float32 scalar."""
        total, tokens = routing.scores.new_zeros(()), len(routing.scores)
        if self.config.balance == "loss" and self.config.loss_weight:
            # Fedus et al. 2021, arXiv 2101.03961, equation 4: count x sum of (share of tokens x mean share of scores).
            spread = (counts / counts.sum() * routing.shares.mean(dim=0)).sum() * self.config.count
            total = total + self.config.loss_weight * tokens * spread
        if self.config.z_loss:
            total = total + self.config.z_loss * routing.scores.logsumexp(dim=-1).square().sum()
        return total


@torch.no_grad()
def _measured(routing: Routing, counts: Tensor) -> Tensor:
    entropy = torch.special.entr(routing.shares).sum(dtype=torch.float64)
    return torch.cat((counts.double(), entropy[None]))


def _local(parameter: Tensor) -> Tensor:
    """Returns this rank's experts of a parameter that is divided over ranks, or all of them."""
    part: Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return part


def grouped_product(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Returns the products of rows, [rows, inputs] sorted by expert, with the matrices [experts, outputs, inputs].

    On a GPU in bf16 with one kernel, which needs rows of whole 16 bytes; elsewhere with one product per expert.
    """
    aligned = all(size * weight.element_size() % 16 == 0 for size in weight.shape[1:])
    if rows.is_cuda and rows.dtype == torch.bfloat16 and aligned:
        return F.grouped_mm(rows, weight.mT, offs=counts.cumsum(0, dtype=torch.int32))
    parts = zip(torch.split(rows, counts.tolist()), weight.unbind(), strict=True)
    return torch.cat([F.linear(part, matrix) for part, matrix in parts])


class Permuted(torch.autograd.Function):
    """x[order]; its gradient is permuted by `inverse`, where that of indexing would add rows in any order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        """Returns x[order], for an order int64 [rows] and its inverse."""
        ctx.save_for_backward(inverse)
        return x[order]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Returns the gradient of x."""
        (inverse,) = ctx.saved_tensors
        return grads[0][inverse], None, None


class _Noted(torch.autograd.Function):
    """Returns x; its backward pass adds to the load of a mixture, and gives the losses the gradient 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, losses: Tensor, mixture: Mixture, measured: Tensor) -> Tensor:
        ctx.mixture, ctx.measured, ctx.losses = mixture, measured, torch.ones_like(losses)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        before = ctx.mixture.load
        ctx.mixture.load = ctx.measured if before is None else before + ctx.measured
        return grads[0], ctx.losses, None, None


class Loads:
    """The load of all experts in the last gradient of a run, over all ranks, and the biases that equalize it.

    Args:
        model: settings of the model; without experts there are no loads, and nothing happens.
        layers: mixtures of this rank by layer.
    """

    def __init__(self, model: ModelConfig, layers: Iterable[tuple[str, nn.Module]]) -> None:
        self.config, self.layers = model.experts, model.layers
        self.mixtures = {int(name): mixture for name, mixture in _mixtures(layers)}
        self.table: Tensor | None = None
        """float64 [layers, count + 1] on the CPU: tokens of each expert, and the summed entropy of the shares."""

    def take(self) -> Tensor:
        """Returns the loads on this rank since the last call, float64 [layers x (count + 1)], zero for other layers."""
        if self.config is None:
            return torch.zeros(0, dtype=torch.float64)
        found = {layer: mixture.load for layer, mixture in self.mixtures.items() if mixture.load is not None}
        device = next((load.device for load in found.values()), None)
        own = torch.zeros((self.layers, self.config.count + 1), dtype=torch.float64, device=device)
        for layer, load in found.items():
            own[layer] = load
        for mixture in self.mixtures.values():
            mixture.load = None
        return own.flatten()

    def set(self, sums: Sequence[float]) -> None:
        """Sets the loads of a gradient to the sums over all ranks of what `take` returned."""
        if self.config is not None:
            self.table = torch.tensor(sums, dtype=torch.float64).view(self.layers, -1)

    @torch.no_grad()
    def update(self) -> None:
        """Changes the biases by the loads of the last gradient; called after each optimizer step."""
        if self.config is None or self.config.balance != "bias" or self.table is None:
            return
        for layer, mixture in self.mixtures.items():
            counts, bias = self.table[layer, :-1], mixture.router.choice_bias
            assert bias is not None
            direction = torch.sign(counts.sum() - counts * len(counts))
            bias += (self.config.bias_rate * direction).to(bias)

    def after_step(self, step: int, line: dict[str, Any]) -> None:
        """Adds `metrics` to the line of a step."""
        line |= self.metrics()

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the last gradient, {} without experts.

        Returns:
            experts/load: largest load of an expert divided by the mean, in the worst layer; experts/load/3: in layer 3.
            experts/entropy: mean entropy of a token's shares, divided by that of equal shares, in the lowest layer.
            experts/dead: experts without a token, of all layers. experts/dropped: tokens without an expert, always 0.
        """
        if self.config is None or self.table is None or not self.table.any():
            return {}
        counts, entropy = self.table[:, :-1], self.table[:, -1]
        loads = (counts.amax(dim=1) / counts.mean(dim=1)).tolist()
        tokens = counts.sum(dim=1) / self.config.per_token
        lowest = float((entropy / tokens).min()) / math.log(self.config.count)
        totals = {LOAD: max(loads), ENTROPY: lowest, DEAD: int((counts == 0).sum()), DROPPED: 0}
        by_layer = {f"{LOAD}/{layer}": load for layer, load in enumerate(loads)}
        return {name: round(value, 4) for name, value in (totals | by_layer).items()}


def _mixtures(layers: Iterable[tuple[str, nn.Module]]) -> Iterable[tuple[str, Mixture]]:
    for name, layer in layers:
        part = getattr(layer, "ffn", None)
        if isinstance(part, Mixture):
            yield name, part


def choice_biases(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """Returns the biases of the choice of experts by name, which are no parameters."""
    return ((name, buffer) for name, buffer in model.named_buffers() if name.endswith(".choice_bias"))
