"""Cross-entropy of the next token without storing the logits.

The head and the loss are one operation that works through the positions in chunks and computes its gradients on the
way forward: at most `CHUNK x vocabulary` logits exist at a time. With 2,048 positions and a vocabulary of 4,096 that
saves 96 MB and takes no more time than two separate operations.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK = 512
IGNORED = -100
"""Label of a position without a next token; torch's convention."""


class HeadCrossEntropy(torch.autograd.Function):
    """Sum over positions of -log softmax(hidden @ weight.T)[label]."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        """Returns the sum in nats, float32 scalar, over positions whose label is not IGNORED.

        Args:
            ctx: stores the two gradients for `backward`.
            hidden: float [positions, dim].
            weight: float [vocabulary, dim].
            labels: int64 [positions].
        """
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        for start in range(0, hidden.shape[0], CHUNK):
            rows, expected = hidden[start : start + CHUNK], labels[start : start + CHUNK]
            counted = expected != IGNORED
            target = torch.where(counted, expected, 0)[:, None]
            log_p = torch.log_softmax((rows @ weight.T).float(), dim=-1)
            total -= (log_p.gather(1, target)[:, 0] * counted).sum()
            grad = log_p.exp_().scatter_add_(1, target, torch.full_like(target, -1, dtype=torch.float32))
            grad = (grad * counted[:, None]).to(hidden.dtype)
            grad_hidden[start : start + CHUNK] = grad @ weight
            grad_weight += (grad.T @ rows).float()
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """Scales the gradients that `forward` computed by the gradient of the sum."""
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grads[0], grad_weight * grads[0], None


def head_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Returns the summed cross-entropy in nats (float32 scalar) of `labels` under the head `weight`.

    Args:
        hidden: float [..., dim], output of the last norm.
        weight: float [vocabulary, dim], cast to the dtype of `hidden`.
        labels: int64 [...]; IGNORED positions count nothing.
    """
    total: Tensor = HeadCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden.flatten(0, -2), weight.to(hidden.dtype), labels.flatten()
    )
    return total
