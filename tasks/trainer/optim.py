"""The optimizer of a run: AdamW or Muon, the learning-rate schedule, and gradient clipping."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from tasks.trainer.checkpoints.checkpoint import EMA
from tasks.trainer.config import EmaConfig, OptimConfig, TrainConfig
from tasks.trainer.mup import rate_share

MOMENTUM = 0.95
"""Decay of the Nesterov momentum; Jordan's value, which later work uses as well."""
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of a x + b x^3 + c x^5, chosen by Jordan for a steep slope at 0; singular values end at 0.7 to 1.2."""
ITERATIONS = 5
UPDATE_RMS = 0.2
"""Root mean square of AdamW's updates before the learning rate (Liu et al. 2025, arXiv 2502.16982, section 2.2)."""


class Optimizer(Protocol):
    """What a step, checkpoints and integrity use of an optimizer."""

    steps_taken: int
    """Number of steps taken; not part of `state`."""
    divisor: float
    """What a step divides the gradients by."""

    def step(self, lr: float) -> None:
        """Applies the gradients in `.grad` of the parameters with learning rate `lr`."""

    def state(self) -> dict[str, Tensor]:
        """Returns the state as `<kind>.<parameter>`; the tensors are not copied."""


class AdamW:
    """AdamW over named parameters; the state is fp32 and sharded like the parameters.

    The algorithm is that of Loshchilov & Hutter 2019 (arXiv 1711.05101), as in torch.optim. It is implemented here for
    two reasons: the state is plain named tensors, which a checkpoint stores without pickle; and torch.optim imports
    torch._dynamo when an optimizer is constructed, which takes 1.4 s in every rank and every canary.

    Args:
        params: name -> parameter; of a DTensor, each rank updates its local shard.
        config: settings.
        rates: name -> factor of the learning rate, but not of weight decay; 1 of all others.
    """

    def __init__(
        self, params: Mapping[str, Tensor], config: OptimConfig, rates: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        self.config = config
        self.rates = {name: rates.get(name, 1.0) for name in params}
        self.steps_taken = 0
        """Number of steps taken, for the bias correction. Not part of `state`: the caller that loads the state sets
        it."""
        self.divisor = 1.0
        """What a step divides the gradients by, as it reads them: a pass of its own would read and write all of
        them."""
        self.params = dict(params)
        self.decay = {name: config.weight_decay if decayed(name, p) else 0.0 for name, p in self.params.items()}
        self.first = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in self.params.items()}
        self.second = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in self.params.items()}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Applies the gradients in `.grad` of the parameters with learning rate `lr`."""
        self.steps_taken += 1
        if any(local(param).is_cuda for param in self.params.values()):
            self._fused(lr)
        else:
            self._plain(lr)

    def _plain(self, lr: float) -> None:
        """Updates one parameter after the other; bit-identical on CPUs of the same kind."""
        beta1, beta2 = self.config.betas
        size = lr / (1 - beta1**self.steps_taken)
        root = math.sqrt(1 - beta2**self.steps_taken)
        for name, param in self.params.items():
            assert param.grad is not None, name
            grad, weight = divided(param.grad, self.divisor), local(param)
            first, second = local(self.first[name]), local(self.second[name])
            first.lerp_(grad, 1 - beta1)
            second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            weight.mul_(1 - lr * self.decay[name])
            weight.addcdiv_(first, second.sqrt().div_(root).add_(self.config.eps), value=-size * self.rates[name])

    def _fused(self, lr: float) -> None:
        """Updates all parameters with one kernel per weight decay and rate, that of torch.optim.AdamW(fused=True)."""
        beta1, beta2 = self.config.betas
        groups = {name: (self.decay[name], self.rates[name]) for name in self.params}
        for decay, rate in sorted(set(groups.values())):
            # A rank can have no rows of a small parameter.
            names = [name for name, own in groups.items() if own == (decay, rate) and local(self.params[name]).numel()]
            if not names:
                continue
            grads = [self.params[name].grad for name in names]
            weights = [local(self.params[name]) for name in names]
            # Filled on the device: a copy from the CPU would wait for the kernels before it.
            steps, divisor = (
                torch.full((), value, dtype=torch.float32, device=weights[0].device)
                for value in (float(self.steps_taken), self.divisor)
            )
            torch._fused_adamw_(
                weights,
                [local(grad).float() for grad in grads if grad is not None],
                [local(self.first[name]) for name in names],
                [local(self.second[name]) for name in names],
                [],
                [steps] * len(names),
                lr=lr * rate,
                beta1=beta1,
                beta2=beta2,
                weight_decay=decay / rate,
                eps=self.config.eps,
                amsgrad=False,
                maximize=False,
                grad_scale=None if self.divisor == 1 else divisor,
            )

    def state(self) -> dict[str, Tensor]:
        """Returns the moments as `first.<parameter>` and `second.<parameter>`; the tensors are not copied."""
        moments = {f"first.{name}": tensor for name, tensor in self.first.items()}
        return moments | {f"second.{name}": tensor for name, tensor in self.second.items()}


class _Around:
    """An optimizer around another one, which counts the steps and has the divisor.

    Attributes:
        inner: the other one.
    """

    inner: "AdamW | Muon"

    @property
    def steps_taken(self) -> int:
        """Number of steps taken, as in `AdamW`; not part of `state`."""
        return self.inner.steps_taken

    @steps_taken.setter
    def steps_taken(self, steps: int) -> None:
        self.inner.steps_taken = steps

    @property
    def divisor(self) -> float:
        """What a step divides the gradients by, as in `AdamW`."""
        return self.inner.divisor

    @divisor.setter
    def divisor(self, divisor: float) -> None:
        self.inner.divisor = divisor


class Muon(_Around):
    """Muon for the matrices of the layers, AdamW for the rest; the state is fp32 and sharded like the parameters.

    Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) moves a matrix along the semi-orthogonal
    matrix nearest to its momentum: U V^T of the singular value decomposition, approximated by a Newton-Schulz
    iteration. Embedding, head and norms are updated by AdamW, as its authors recommend. torch.optim.Muon iterates in
    bf16 on the local shard of a rank; here the dtype is an argument, and the matrix is whole on one of its ranks
    (`SharedMatrices`).

    Updates have the same root mean square as those of AdamW, so one learning rate and one weight decay apply to both.

    Args:
        params: name -> parameter; of a DTensor, each rank updates its local shard. Ranks that share a parameter must
            have the same names, because all of them exchange parts.
        config: settings; `betas` and `eps` are AdamW's.
        dtype: of the Newton-Schulz iteration. In fp32, ranks that share a matrix take the same step as a single rank
            up to rounding; in bf16 the weights differed by 4.8e-3 after five steps.
    """

    def __init__(self, params: Mapping[str, Tensor], config: OptimConfig, dtype: torch.dtype) -> None:
        self.config, self.dtype = config, dtype
        self.matrices = {name: param for name, param in params.items() if is_hidden(name, param)}
        self.inner = AdamW({name: param for name, param in params.items() if name not in self.matrices}, config)
        self.momentum = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in self.matrices.items()}
        self._shared = shared_matrices({name: matrix for name, matrix in self.matrices.items() if matrix.ndim == 2})
        self._stacks = [name for name, matrix in self.matrices.items() if matrix.ndim > 2]
        """Matrices of experts: a rank has whole ones, because they are divided along their first dimension."""

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Applies the gradients in `.grad` of the parameters with learning rate `lr`."""
        self.inner.step(lr)
        for shared in self._shared:
            for names in shared.rounds:
                updates = shared.orthogonalize([self._direction(name) for name in names], names, self.dtype)
                for name, update in zip(names, updates, strict=True):
                    self._apply(name, update, lr)
        for name in self._stacks:
            self._apply(name, orthogonalize(self._direction(name), self.dtype), lr)

    def _direction(self, name: str) -> Tensor:
        """Adds a gradient to its momentum; returns this rank's part of what to orthogonalize, fp32."""
        grad = self.matrices[name].grad
        assert grad is not None, name
        grad, momentum = divided(grad, self.divisor), local(self.momentum[name])
        momentum.lerp_(grad, 1 - MOMENTUM)
        return torch.lerp(grad, momentum, MOMENTUM)

    def _apply(self, name: str, update: Tensor, lr: float) -> None:
        weight = local(self.matrices[name])
        weight.mul_(1 - lr * self.config.weight_decay)
        weight.add_(update, alpha=-lr * UPDATE_RMS * math.sqrt(max(self.matrices[name].shape[-2:])))

    def state(self) -> dict[str, Tensor]:
        """Returns `momentum.<parameter>` of the matrices and AdamW's moments of the rest; they are not copied."""
        return {f"momentum.{name}": tensor for name, tensor in self.momentum.items()} | self.inner.state()


Slices = tuple[slice, ...]
"""Rows and columns of a part of a matrix."""


class SharedMatrices:
    """Matrices of which the same ranks have parts; each rank orthogonalizes some of them.

    In a round each rank gets the parts of one matrix, orthogonalizes it, and sends the parts of the result (compare the
    distributed Muon of Liu et al. 2025, arXiv 2502.16982, section 2.3). Matrices of a round have similar sizes, so that
    no rank waits for a larger one. With n ranks, a rank computes 1/n of the products, and receives 2/n of what it would
    if each rank gathered each matrix. Replicas do not share this work: they are on different nodes.

    Args:
        parts: of the matrices by name, in the order of `ranks`: which part each rank has.
        ranks: global ranks, ascending; all of them create this at the same time.
    """

    def __init__(self, parts: Mapping[str, Sequence[Slices]], ranks: Sequence[int]) -> None:
        self.parts = parts
        self.group = dist.new_group(ranks, use_local_synchronization=True) if len(ranks) > 1 else None
        size = {name: sum(map(_numel, of_ranks)) for name, of_ranks in parts.items()}
        names = sorted(parts, key=lambda name: (-size[name], name))
        self.rounds = [names[first : first + len(ranks)] for first in range(0, len(names), len(ranks))]

    def orthogonalize(self, directions: Sequence[Tensor], names: Sequence[str], dtype: torch.dtype) -> Sequence[Tensor]:
        """Returns this rank's part of each orthogonalized matrix of a round.

        Args:
            directions: this rank's parts of the matrices, fp32.
            names: of the matrices; the first rank computes the first one, and so on.
            dtype: of the iteration, and of what is returned on several ranks.
        """
        if self.group is None:
            return [orthogonalize(direction, dtype) for direction in directions]
        own = self.parts[names[self.group.rank()]] if self.group.rank() < len(names) else []
        there = [direction.numel() for direction in directions] + [0] * (self.group.size() - len(names))
        back = [_numel(part) for part in own] or [0] * self.group.size()
        sent = torch.cat([direction.flatten() for direction in directions])
        received = sent.new_empty(sum(back))
        dist.all_to_all_single(received, sent, back, there, group=self.group)
        result = self._orthogonalized(torch.split(received, back), own, dtype) if own else received.to(dtype)
        updates = result.new_empty(len(sent))
        dist.all_to_all_single(updates, result, there, back, group=self.group)
        return [
            update.view_as(direction)
            for update, direction in zip(torch.split(updates, there), directions, strict=False)
        ]

    def _orthogonalized(self, pieces: Sequence[Tensor], own: Sequence[Slices], dtype: torch.dtype) -> Tensor:
        """Returns the parts of an orthogonalized matrix, of `dtype`, one after the other in the order of the ranks."""
        matrix = pieces[0].new_empty([max(part[dim].stop for part in own) for dim in range(2)])
        for part, piece in zip(own, pieces, strict=True):
            matrix[part] = piece.view(matrix[part].shape)
        result = orthogonalize(matrix, dtype).to(dtype)
        return torch.cat([result[part].flatten() for part in own])


def shared_matrices(matrices: Mapping[str, Tensor]) -> list[SharedMatrices]:
    """Returns matrices by the ranks that share them; whole ones have only this rank."""
    groups: dict[tuple[int, ...], dict[str, Sequence[Slices]]] = {}
    for name, matrix in matrices.items():
        parts = _slices_of(matrix) if hasattr(matrix, "placements") else {0: _whole(matrix.shape)}
        groups.setdefault(tuple(sorted(parts)), {})[name] = [parts[rank] for rank in sorted(parts)]
    return [SharedMatrices(parts, ranks) for ranks, parts in groups.items()]


def _slices_of(matrix: Tensor) -> dict[int, Slices]:
    """Returns the parts of a DTensor by rank, without those of other replicas."""
    from torch.distributed.tensor import DTensor  # imports torch._dynamo: 1.5 CPU-seconds
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

    assert isinstance(matrix, DTensor)
    mesh, placements, here = matrix.device_mesh, matrix.placements, matrix.device_mesh.get_coordinate()
    assert here is not None
    along = (
        [here[dim]] if placement.is_replicate() else range(mesh.size(dim)) for dim, placement in enumerate(placements)
    )
    parts = {}
    for at in product(*along):
        sizes, offsets = _compute_local_shape_and_global_offset(matrix.shape, mesh.shape, list(at), placements)
        parts[int(mesh.mesh[at])] = tuple(
            slice(first, first + size) for first, size in zip(offsets, sizes, strict=True)
        )
    return parts


def _whole(shape: Sequence[int]) -> Slices:
    return tuple(slice(0, length) for length in shape)


def _numel(part: Slices) -> int:
    return math.prod(rows.stop - rows.start for rows in part)


class Averaged(_Around):
    """An optimizer that also keeps the mean of the parameters after its steps (`[train.ema]`).

    The mean is a part of its state: fp32, sharded like the parameters, in every checkpoint, readable in any layout.

    The mean after step t is d m + (1 - d) w with d = min(decay, 1 - 1 / t): until the horizon it is the plain mean of
    the weights so far, so it has no weight on the random initial ones. A refused step changes nothing. Of each number
    it is a function of that number alone, so its bits are those of any layout with the same weights.

    Args:
        optimizer: of the parameters.
        params: name -> parameter; of a DTensor, each rank averages its local shard.
        config: settings.
    """

    def __init__(self, optimizer: AdamW | Muon, params: Mapping[str, Tensor], config: EmaConfig) -> None:
        self.inner, self.params, self.keep = optimizer, dict(params), config.keep
        self.mean = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in self.params.items()}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Takes a step of the optimizer with learning rate `lr`, and adds its weights to the mean."""
        self.inner.step(lr)
        added = max(1 - self.keep, 1 / self.steps_taken)
        for name, param in self.params.items():
            local(self.mean[name]).lerp_(local(param).float(), added)

    def state(self) -> dict[str, Tensor]:
        """Returns the state of the optimizer and `ema.<parameter>`; the tensors are not copied."""
        return self.inner.state() | {f"{EMA}{name}": tensor for name, tensor in self.mean.items()}


def build_optimizer(params: Mapping[str, Tensor], run: TrainConfig) -> Optimizer:
    """Returns the optimizer that `[train.optim] name` selects, for named parameters; Muon iterates in `precision`."""
    if run.optim.name == "adamw":
        rates = {name: rate_share(run.model, run.init, name, param.ndim) for name, param in params.items()}
        optimizer: AdamW | Muon = AdamW(params, run.optim, rates)
    else:
        optimizer = Muon(params, run.optim, torch.float32 if run.precision == "fp32" else torch.bfloat16)
    if run.ema is None:
        return optimizer
    return Averaged(optimizer, params, run.ema)


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Tensor]) -> None:
    """Copies a state, as `optimizer.state()` returns it, into an optimizer; raises KeyError if a tensor is missing."""
    for name, tensor in optimizer.state().items():
        tensor.copy_(state[name])


def learning_rate(config: OptimConfig, step: int, steps: int) -> float:
    """Returns the learning rate of `step` (0-based) of `steps`.

    Linear warm-up from lr / warmup_steps; then cosine (arXiv 1608.03983) or warm-up, stable, decay (arXiv 2404.06395),
    both ending at lr * min_lr_share.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    start = config.decay_from(steps)
    progress = min(1.0, max(0.0, (step + 1 - start) / max(1, steps - start)))
    shape = (1 + math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else 1 - progress
    return config.lr * (config.min_lr_share + (1 - config.min_lr_share) * shape)


def clip(gradient: Tensor, limit: float) -> float:
    """Scales `gradient` in place so that its Euclidean norm is at most `limit`.

    Returns:
        The norm before clipping, computed in float64. If it is NaN or infinite, the gradient is unchanged.
    """
    norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    if limit < norm < math.inf:
        gradient.mul_(limit / norm)
    return norm


def sum_of_squares(shards: Sequence[Tensor], parts: Tensor, ranks: int) -> Tensor:
    """Returns this rank's contribution to the square of the Euclidean norm of a sharded gradient, float64 scalar.

    On a GPU the norms take one kernel for many tensors. The sum is cumulative and so in order: on a CPU every bit is
    that of one addition after the other.

    Args:
        shards: of this rank; a shard can be empty.
        parts: float64 [shards], number of parts of each tensor; a part is on `ranks / parts` ranks, each of which
            contributes its share.
        ranks: number of ranks.
    """
    norms = torch.stack(torch._foreach_norm(list(shards), 2, dtype=torch.float64))
    return (norms.square() * parts / ranks).cumsum(0)[-1]


def divided(gradient: Tensor, divisor: float) -> Tensor:
    """Returns this rank's shard of a gradient in fp32, over `divisor`; not a copy if neither changes it."""
    shard = local(gradient).float()
    return shard if divisor == 1 else shard / divisor


def decayed(name: str, weight: Tensor) -> bool:
    """Whether weight decay applies: to matrices except the embedding, where it would shrink rare tokens."""
    return weight.ndim > 1 and not name.startswith("embedding.") and not name.endswith(".bias")


def is_hidden(name: str, weight: Tensor) -> bool:
    """Whether a parameter is a matrix of a layer."""
    return weight.ndim > 1 and name.startswith("layers.") and not name.endswith(".bias")


def orthogonalize(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a matrix with the singular vectors of `matrix` and singular values near 1, fp32, of the same shape.

    Args:
        matrix: [rows, columns], or several [experts, rows, columns]; a zero matrix is returned unchanged.
        dtype: of the iteration.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    wide = matrix.mT if is_tall else matrix
    # The Frobenius norm bounds the largest singular value, which must be at most 1.
    norm = wide.norm() if matrix.ndim == 2 else torch.linalg.vector_norm(wide, dim=(-2, -1), keepdim=True)
    add: Callable[..., Tensor] = torch.addmm if matrix.ndim == 2 else torch.baddbmm
    x = (wide / norm.clamp(min=1e-12)).to(dtype)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = add(x, add(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    result: Tensor = x.mT if is_tall else x
    return result.float()


def parts_of(parameter: Tensor) -> int:
    """Returns the number of parts into which a DTensor is divided, each on one rank or more; 1 for any other tensor."""
    if not hasattr(parameter, "placements"):
        return 1
    mesh = parameter.device_mesh  # type: ignore[attr-defined]
    places = enumerate(parameter.placements)
    return math.prod(mesh.size(dim) for dim, place in places if not place.is_replicate())


def local(tensor: Tensor) -> Tensor:
    """Returns the local shard of a DTensor, without copying it, or the tensor itself."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part
