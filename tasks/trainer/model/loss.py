"""Cross-entropy of the next token without storing the logits.

The head and the loss are one operation that processes the positions in chunks and computes its gradients during the
forward pass, so that at most `LOSS_ROWS x vocabulary` logits exist at a time. On a CPU, with 2,048 positions and a
vocabulary of 4,096, this saves 96 MB and takes no more time than two separate operations.

With a vocabulary sharded over ranks, each rank computes its part, and the ranks exchange for each position the largest
logit, the sum of exponentials and the logit of the label (Shoeybi et al. 2019, arXiv 1909.08053, section 3).

z-loss adds c (log Z)^2 of each position, Z the sum of the exponentials of its logits, which keeps logits from drifting
(PaLM, arXiv 2204.02311, section 5: c = 1e-4). Its gradient of logit j is 2 c p_j log Z. It is in the gradient and not
in the loss that is returned; `ZLoss` has its sum.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from tasks.trainer.model.attention import soft_capped
from tasks.trainer.model.shape import LOSS_ROWS

IGNORED = -100
"""Label of a position without a next token; torch's convention."""
LossOfRows = Callable[
    [Tensor, Tensor, Tensor, int, dist.ProcessGroup | None, float], tuple[Tensor, Tensor | None, Tensor]
]
"""`loss_of_rows`, or the same compiled."""


class ZLoss:
    """The z-loss of a model: its coefficient, and its sum in nats over the positions of forward passes with gradients.

    Args:
        coefficient: c; 0: there is no z-loss.
    """

    def __init__(self, coefficient: float) -> None:
        self.coefficient = coefficient
        self._total: Tensor | None = None

    def add(self, amount: Tensor) -> None:
        """Adds the sum of some positions, a float32 scalar."""
        self._total = amount.double() if self._total is None else self._total + amount

    def take(self) -> Tensor:
        """Returns the sum since the last call, a float64 scalar; 0 on a rank without the head."""
        total, self._total = self._total, None
        return torch.zeros((), dtype=torch.float64) if total is None else total


class HeadCrossEntropy(torch.autograd.Function):
    """Sum over positions of -log softmax(hidden @ weight.T)[label]."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        tokens: int,
        group: dist.ProcessGroup | None,
        chunk: int,
        of_rows: LossOfRows,
        z: ZLoss | None,
    ) -> Tensor:
        """Returns the sum in nats, float32 scalar, over positions whose label is not IGNORED.

        Args:
            ctx: stores the two gradients for `backward`.
            hidden: float [positions, dim].
            weight: float [rows, dim], or the rows of this rank of `group`.
            labels: int64 [positions].
            tokens: number of the first rows (of all ranks) that are tokens; others are in no sum, and get no gradient.
            group: ranks over which the vocabulary is sharded, in equal parts in rank order; each computes the same sum,
                and its contribution to the gradient of `hidden`.
            chunk: positions whose logits exist at a time.
            of_rows: computes a chunk.
            z: the z-loss, which is added to the gradients only; None: there is none.
        """
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(hidden)
        # A frozen head needs no gradient, which would have the size of the vocabulary.
        trained = ctx.needs_input_grad[1]
        grad_weight = torch.zeros(weight.shape if trained else (), dtype=torch.float32, device=weight.device)
        for start in range(0, hidden.shape[0], chunk):
            rows, expected = hidden[start : start + chunk], labels[start : start + chunk]
            loss, penalty, grad = of_rows(rows, weight, expected, tokens, group, z.coefficient if z else 0.0)
            total += loss
            if z and penalty is not None:
                z.add(penalty)
            grad_hidden[start : start + chunk] = grad @ weight
            if trained:
                grad_weight += grad.T @ rows  # cast as it is added, and not to a tensor of the vocabulary's size
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Multiplies the gradients from `forward` by the gradient of the sum."""
        grad_hidden, grad_weight = ctx.saved_tensors
        of_weight = grad_weight * grads[0] if ctx.needs_input_grad[1] else None
        return grad_hidden * grads[0], of_weight, *(None,) * 6


def loss_of_rows(
    rows: Tensor,
    weight: Tensor,
    labels: Tensor,
    tokens: int,
    group: dist.ProcessGroup | None,
    z: float = 0.0,
    cap: float = 0.0,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Returns the summed loss and z-loss of some positions, and the gradient of both of this rank's logits.

    Args:
        rows: float [positions, dim], the hidden state.
        weight: see `HeadCrossEntropy`, like the other arguments.
        labels: see `weight`.
        tokens: see `weight`.
        group: see `weight`.
        z: coefficient of the z-loss; 0: there is none, and the second value is None.
        cap: bound of the logits (`attention.soft_capped`); 0: none.
    """
    if group:
        return _sharded(rows, weight, labels, tokens, group, z, cap)
    return _whole(rows, weight, labels, tokens, z, cap)


def _whole(
    rows: Tensor, weight: Tensor, labels: Tensor, tokens: int, z: float, cap: float
) -> tuple[Tensor, Tensor | None, Tensor]:
    """As `loss_of_rows` on one rank; the gradient is in the dtype of `rows`."""
    counted = labels != IGNORED
    target = torch.where(counted, labels, 0)[:, None]
    logits = _logits(rows, weight, tokens, cap)
    slope = _slope(logits, cap) if cap else None
    log_p = torch.log_softmax(logits, dim=-1)
    of_labels = log_p.gather(1, target)[:, 0]
    log_sums = logits.gather(1, target)[:, 0] - of_labels if z else None
    loss = -(of_labels * counted).sum()
    penalty, p = _penalized(log_p.exp_(), log_sums, counted, z)
    grad = _add_at(target, p, torch.full_like(target, -1, dtype=torch.float32))
    grad = grad if slope is None else grad * slope
    return loss, penalty, (grad * counted[:, None]).to(rows.dtype)


def _penalized(p: Tensor, log_sums: Tensor | None, counted: Tensor, z: float) -> tuple[Tensor | None, Tensor]:
    """Returns the summed z-loss, and its gradient added to probabilities [positions, columns], which may change."""
    if log_sums is None:
        return None, p
    return z * (log_sums.square() * counted).sum(), p.mul_(1 + 2 * z * log_sums[:, None])


def _logits(rows: Tensor, weight: Tensor, tokens: int, cap: float) -> Tensor:
    """Returns the logits of some positions, float32 [positions, rows of weight]; -inf from the column `tokens` on."""
    logits = (rows @ weight.T).float()
    if cap:
        logits = soft_capped(logits, cap)
    if tokens < len(weight):
        logits[:, max(tokens, 0) :] = -torch.inf
    return logits


def _slope(capped: Tensor, cap: float) -> Tensor:
    """Returns the derivative of capped logits with respect to those before the cap; 0 where they are -inf."""
    return 1 - (capped.clamp(min=-cap) / cap).square()


def _sharded(
    rows: Tensor, weight: Tensor, labels: Tensor, tokens: int, group: dist.ProcessGroup, z: float, cap: float
) -> tuple[Tensor, Tensor | None, Tensor]:
    """As `_whole` with a sharded vocabulary: returns the total losses, and the gradient of this rank's columns."""
    counted = labels != IGNORED
    first = group.rank() * weight.shape[0]
    target = labels - first
    is_local = (counted & (target >= 0) & (target < weight.shape[0]))[:, None]
    target = torch.where(is_local[:, 0], target, 0)[:, None]
    logits = _logits(rows, weight, tokens - first, cap)
    slope = _slope(logits, cap) if cap else None
    largest = logits.amax(dim=-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    exponents = logits.sub_(largest[:, None])
    label_logits = torch.where(is_local[:, 0], exponents.gather(1, target)[:, 0], 0)
    exponents = exponents.exp_()
    sums = torch.stack((exponents.sum(dim=-1), label_logits))
    dist.all_reduce(sums, group=group)
    loss = ((sums[0].log() - sums[1]) * counted).sum()
    log_sums = sums[0].log() + largest if z else None
    penalty, p = _penalized(exponents.div_(sums[0][:, None]), log_sums, counted, z)
    grad = _add_at(target, p, -is_local.float())
    grad = grad if slope is None else grad * slope
    return loss, penalty, (grad * counted[:, None]).to(rows.dtype)


def _add_at(target: Tensor, values: Tensor, added: Tensor) -> Tensor:
    """Returns `values` [positions, columns] with `added` in column `target`, both [positions, 1]; may change `values`.

    Compiled, it is in one kernel with what is before and after it; a scatter would be between two kernels.
    """
    if not torch.compiler.is_compiling():
        return values.scatter_add_(1, target, added)
    columns = torch.arange(values.shape[1], device=values.device)
    return values + torch.where(columns == target, added, 0)


def count_labels(labels: Tensor) -> int:
    """Returns the number of positions with a label, of a tensor on the CPU.

    Counted there, because reading a count from a GPU would wait for all of its queued work.
    """
    return int(np.count_nonzero(labels.numpy() != IGNORED))


def head_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    tokens: int | None = None,
    group: dist.ProcessGroup | None = None,
    chunk: int | None = None,
    of_rows: LossOfRows = loss_of_rows,
    z: ZLoss | None = None,
) -> Tensor:
    """Returns the summed cross-entropy in nats (float32 scalar) of `labels` under the head `weight`.

    Args:
        hidden: float [..., dim], output of the last norm.
        weight: float [rows, dim], cast to the dtype of `hidden`.
        labels: int64 [...]; IGNORED positions do not count.
        tokens: number of the first rows that are tokens; the others are padding. None: all of `weight`.
        group: ranks over which the vocabulary is sharded (see `HeadCrossEntropy`).
        chunk: positions whose logits exist at a time; None: `LOSS_ROWS` of the device.
        of_rows: computes a chunk.
        z: the z-loss; it counts only where gradients do.
    """
    if not (z and z.coefficient and torch.is_grad_enabled()):
        z = None
    chunk = chunk or LOSS_ROWS["cuda" if hidden.is_cuda else "cpu"]
    total: Tensor = HeadCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden.flatten(0, -2),
        weight.to(hidden.dtype),
        labels.flatten(),
        len(weight) if tokens is None else tokens,
        group,
        chunk,
        of_rows,
        z,
    )
    return total
