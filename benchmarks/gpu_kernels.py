"""Attention kernels beside the reference: outputs, gradients, leaks between documents, and times."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import attention

from tasks.trainer.model.attention import Kernel, activate_flash, sdpa_mask
from tasks.trainer.model.flex import flex
from tasks.trainer.model.varlen import varlen

TOLERANCE = 0.02
"""Largest difference from the reference in fp32, over its norm, that rounding to bf16 explains."""


def documents_of(sequences: int, seq_len: int, mean: float, seed: int) -> Tensor:
    """Returns numbers of documents, int64 [sequences, seq_len], of log-normal lengths (sigma 1) cut as they come."""
    generator = np.random.default_rng(seed)
    total = sequences * seq_len
    lengths = np.maximum(1, generator.lognormal(np.log(mean) - 0.5, 1.0, 8 + int(8 * total / mean)).astype(np.int64))
    numbers = np.repeat(np.arange(len(lengths)), lengths)[:total]
    return torch.from_numpy(numbers.reshape(sequences, seq_len))


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(device: torch.device, call: Callable[[], object], repeats: int) -> float:
    """Returns the median time of a call, after one that is not counted."""
    taken = []
    for _ in range(repeats + 1):
        synchronise(device)
        started = time.perf_counter()
        call()
        synchronise(device)
        taken.append(time.perf_counter() - started)
    return float(np.median(taken[1:]))


class Case:
    """Random queries, keys and values over packed documents.

    Args:
        device: to compute on; on a CPU in fp32 and forward alone, as `flex` does there.
        sequences: how many.
        seq_len: positions of each.
        heads: query heads; half as many heads of keys and values.
        width: of a head.
    """

    def __init__(self, device: torch.device, sequences: int, seq_len: int, heads: int, width: int) -> None:
        torch.manual_seed(0)
        self.device, self.backward = device, device.type == "cuda"
        self.dtype = torch.bfloat16 if self.backward else torch.float32
        self.documents = documents_of(sequences, seq_len, min(700, seq_len / 3), 0).to(device)
        self.inputs = [
            torch.randn(sequences, count, seq_len, width, device=device, dtype=self.dtype)
            for count in (heads, heads // 2, heads // 2)
        ]
        self.weights = torch.randn_like(self.inputs[0])

    def passes(self, kernel: Kernel, documents: Tensor, inputs: list[Tensor]) -> list[Tensor]:
        """Returns the output, and where there is a backward pass the gradients of queries, keys and values."""
        leaves = [tensor.detach().requires_grad_(self.backward) for tensor in inputs]
        out = kernel(documents, None)(*leaves)
        grads = torch.autograd.grad((out * self.weights).sum(), leaves) if self.backward else ()
        return [out.detach(), *grads]

    def reference(self) -> list[Tensor]:
        """Returns what `passes` does, of the reference in fp32."""
        return self.passes(sdpa_mask, self.documents, [tensor.float() for tensor in self.inputs])

    def leak(self, kernel: Kernel) -> float:
        """Returns how much a change of one document changes the outputs of the others at most."""
        middle = self.documents[0, self.documents.shape[1] // 2]
        changed = (self.documents == middle)[:, None, :, None]
        before = self.passes(kernel, self.documents, self.inputs)[0]
        after = self.passes(kernel, self.documents, [tensor + 10 * changed for tensor in self.inputs])[0]
        return float(torch.where(changed, 0, before - after).abs().max())

    def figures(self, kernel: Kernel, reference: list[Tensor], repeats: int) -> dict[str, Any]:
        """Returns differences from the reference, over its norm; the leak; and times with and without documents."""
        found = self.passes(kernel, self.documents, self.inputs)
        errors = [float((a.float() - b).norm() / b.norm()) for a, b in zip(found, reference, strict=True)]
        whole = torch.zeros_like(self.documents)
        times = {
            name: seconds(self.device, lambda d=documents: self.passes(kernel, d, self.inputs), repeats)
            for name, documents in (("documents", self.documents), ("plain_causal", whole))
        }
        return {
            "errors": dict(zip(("out", "dq", "dk", "dv"), (round(error, 6) for error in errors), strict=False)),
            "leak": self.leak(kernel),
            "equal": max(errors) < TOLERANCE,
            "ms": {name: round(1e3 * value, 3) for name, value in times.items()},
        }


def parity(device: torch.device, shape: tuple[int, int, int, int], repeats: int) -> dict[str, Any]:
    """Returns figures of each kernel of the device, and the flash attention that is left active, the fastest equal one.

    Args:
        device: to compute on.
        shape: sequences, positions, heads, width of a head.
        repeats: of each time.
    """
    case = Case(device, *shape)
    reference = case.reference()
    kernels: dict[str, Any] = {"flex": _tried(case, flex, reference, repeats)}
    flash = "none"
    if device.type == "cuda":
        flash = "FA2"
        kernels["varlen FA2"] = _tried(case, varlen, reference, repeats)
        newest = activate_flash(device)
        if newest != "FA2":
            figures = kernels[f"varlen {newest}"] = _tried(case, varlen, reference, repeats)
            if figures.get("equal") and figures["ms"]["documents"] < kernels["varlen FA2"]["ms"]["documents"]:
                flash = newest
            else:
                attention.restore_flash_attention_impl()
    named = dict(zip(("sequences", "seq_len", "heads", "width"), shape, strict=True))
    return {"shape": {**named, "kv_heads": shape[2] // 2}, "kernels": kernels, "flash": flash}


def _tried(case: Case, kernel: Kernel, reference: list[Tensor], repeats: int) -> dict[str, Any]:
    try:
        return case.figures(kernel, reference, repeats)
    except Exception as error:  # a kernel that fails on this card is a result
        return {"failed": f"{type(error).__name__}: {error}"[:500]}
