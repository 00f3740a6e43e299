"""Self-test of the ranks: a fixed problem, whose result must have the bits of the other ranks with equal devices."""

import platform
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from tasks.trainer.parallel.ranks import Ranks

BITS = 52
"""Bits of a hash: an integer that float64 has exactly."""


def hash_of(tensors: Iterable[Tensor]) -> Tensor:
    """Returns the sum of the words of tensors modulo 2**BITS, int64 scalar; any flipped bit changes it.

    Words are of 4 bytes, or bytes where the elements of a tensor have another size.
    """
    sums = []
    for tensor in tensors:
        words = torch.int32 if tensor.element_size() == 4 else torch.uint8
        sums.append(tensor.detach().reshape(-1).view(words).sum(dtype=torch.int64))
    return torch.stack(sums).sum().bitwise_and(2**BITS - 1)


def minority(hashes: Mapping[int, float]) -> list[int]:
    """Returns the ranks whose hash most of the others do not have; all of them where no hash has a majority.

    >>> minority({0: 7.0, 1: 7.0, 2: 9.0}), minority({0: 1.0, 1: 2.0}), minority({0: 1.0, 1: 1.0})
    ([2], [0, 1], [])
    """
    usual, count = Counter(hashes.values()).most_common(1)[0]
    if 2 * count <= len(hashes):
        return sorted(hashes)
    return sorted(rank for rank, value in hashes.items() if value != usual)


def self_test(device: torch.device) -> int:
    """Returns the hash of a fixed problem, forward and backward; equal on equal devices."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(96, 96, generator=generator).to(device).requires_grad_() for _ in range(3)]
    x = torch.randn(64, 96, generator=generator).to(device)
    for weight in weights:
        x = torch.softmax(x @ weight, dim=-1) + torch.nn.functional.silu(x)
    x.square().sum().backward()  # type: ignore[no-untyped-call]
    return int(hash_of([x, *(weight.grad for weight in weights if weight.grad is not None)]))


def failed_self_test(ranks: Ranks, kind: str) -> list[int]:
    """Returns the ranks whose self-test differs from most of those on the same kind of device.

    Args:
        ranks: the process group; every rank calls this.
        kind: name of the device, or of the processor.
    """
    results = gathered(ranks, f"{kind} {self_test(ranks.device)}")
    groups: dict[str, dict[int, float]] = {}
    for rank, result in enumerate(results):
        name, _, value = result.rpartition(" ")
        groups.setdefault(name, {})[rank] = float(value)
    return sorted(rank for group in groups.values() for rank in minority(group))


def processor() -> str:
    """Returns the model of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def gathered(ranks: Ranks, text: str, size: int = 256) -> list[str]:
    """Returns the text of every rank, at most `size` bytes of each, on every rank."""
    table = torch.zeros((ranks.world, size), dtype=torch.int32, device=ranks.device)
    data = text.encode()[:size]
    table[ranks.rank, : len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(table)
    ranks.sum([table])
    return [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in table.tolist()]


def named(ranks: Ranks) -> list[str]:
    """Returns "rank 3 on node-7" for every rank, in their order."""
    return [f"rank {rank} on {host}" for rank, host in enumerate(gathered(ranks, socket.gethostname()))]
