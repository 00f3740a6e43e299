"""Silent corruption: ranks that compute or keep something else than they should, found by comparison and named.

Weights. Ranks with copies of the same exchange a hash of theirs at every step, in the sum that the step takes anyway,
and of all their state before a checkpoint. Where they differ the run cannot know who is right: it ends, so that all
ranks begin again with the newest checkpoint, and names the rank when it has repeated the step (`Suspects`).

Gradients. What a rank adds to a sum has no copy. Where loss or norm look wrong, and at an interval, every rank computes
the share of the next rank and then its own again, and both must be what that rank and itself have found. A flip that
came once gives itself away when it does not come again, a device that always computes wrong when another one does it.

Devices. At the start, and when a rank is found to differ, all ranks compute a fixed problem (`self_test`), whose result
has the same bits on equal devices.

Gradients and self-test need results to be equal when they are computed again: to the bit on a CPU, for gradients to a
tolerance on a GPU. Silent errors are a matter of fact in large fleets: Dixit et al. 2021, arXiv 2102.11245.
"""

import json
import math
import platform
import socket
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from tasks.core.errors import TransientError
from tasks.trainer.data.batches import Batch
from tasks.trainer.hooks import Gradient
from tasks.trainer.logs import CORRUPTION, Faults
from tasks.trainer.parallel.ranks import Ranks

FAR = 10.0
"""A norm that is so many times the median of the norms before is computed again."""
RECENT, SOME = 64, 8
"""Norms that are compared with, at most and at least."""
ATTEMPTS = 3
"""Rounds of computing again, in one of which all ranks must agree."""
_DO = "take the node of this rank out of the pool and test its hardware if it is named again"
FILE = "suspects.json"
BITS = 52
"""Bits of a hash: an integer that float64 has exactly."""
GPU_TOLERANCE = 0.01
"""Relative difference of two norms of one share of a gradient on a GPU, whose kernels add in no fixed order."""


@dataclass(frozen=True)
class RankCopies:
    """Something that several ranks have."""

    name: str
    """What it is a part of: "" for all that a rank has, "norms"."""
    holders: str
    """Whose copies these are, in the plural."""
    groups: Sequence[Sequence[int]]
    """The ranks with equal copies; each rank is in one group."""

    def of(self, what: str) -> str:
        """Returns the words for weights or state of these copies.

        >>> RankCopies("norms", "ranks", [[0, 1]]).of("state"), RankCopies("", "replicas", [[0, 1]]).of("state")
        ('state of norms', 'state')
        """
        return f"{what} of {self.name}" if self.name else what

    def differing(self, hashes: Sequence[float]) -> list[int]:
        """Returns the ranks whose hash is not that of most in their group; all of a group without a majority.

        >>> RankCopies("", "replicas", [[0, 2], [1, 3]]).differing([5.0, 7.0, 5.0, 8.0])
        [1, 3]
        """
        return sorted(rank for group in self.groups for rank in minority({one: hashes[one] for one in group}))


class Replica(Protocol):
    """The part of a model that a rank computes."""

    copies: list[RankCopies]
    """What this rank has copies of."""
    hashes: list[list[float]]
    """For each of `copies` the hash of every rank's weights when it began the last gradient."""
    peers: list[int]
    """The ranks that compute the same as this one of other microbatches, itself included."""
    share: float
    """Fingerprint of what this rank added to the last gradient."""
    share_tolerance: float
    """Relative difference of two fingerprints of the same share; 0: they have the same bits."""

    def state_hashes(self) -> list[Tensor]:
        """Returns for each of `copies` the hash of weights and optimizer state, int64 scalar."""


class Recomputing(Protocol):
    """The loop, as far as it computes the gradient of a step again."""

    def forward_backward(self, parts: Mapping[int, Batch]) -> Gradient:
        """Computes the clipped gradient of microbatches, on all ranks."""

    def parts_of(self, shift: int) -> Mapping[int, Batch]:
        """Returns the microbatches of the rank so many places further in `peers`, as that rank trains on them."""


class Integrity:
    """Checks the ranks of a run; every rank does the same at the same time.

    Args:
        out: folder of the run.
        ranks: the process group.
        replica: the model.
        faults: where corrupt ranks are named.
        device: name of this rank's kind of device.
        every: steps from one check of the shares to the next; 0: on suspicion only.

    Attributes:
        names: "rank 3 on node-7" for every rank, in their order.

    Raises:
        TransientError: a rank fails the self-test.
    """

    def __init__(self, out: Path, ranks: Ranks, replica: Replica, faults: Faults, device: str, every: int) -> None:
        self._ranks, self._replica, self._faults, self._device = ranks, replica, faults, device
        self._every, self.names = every, named(ranks)
        self._suspects = Suspects(out, ranks)
        self._norms: deque[float] = deque(maxlen=RECENT)
        # Other kinds of device round otherwise, so that each rank can be compared with itself only.
        alike = len(set(gathered(ranks, device))) == 1
        self._shift = 1 if alike and len(replica.peers) > 1 else 0
        if failed := failed_self_test(ranks, device):
            self._end(0, f"{self._listed(failed)} fails the self-test")

    def check_weights(self, step: int) -> None:
        """Compares the weights with which a step began, as its gradient has exchanged them.

        Raises:
            TransientError: they are not equal; names the rank if it can.
        """
        self._compare(step, "weights", self._replica.hashes)

    def check_state(self, step: int) -> None:
        """Compares all state, before it is saved as that after `step` steps; raises as `check_weights`."""
        if self._replica.copies:
            _, hashes = self._ranks.sum_and_collect(self._no_sums(), self._replica.state_hashes())
            self._compare(step, "state", hashes)

    def due(self, step: int) -> bool:
        """Whether the ranks check one another's shares of the gradient at this step without a suspicion."""
        return self._every > 0 and (step + 1) % self._every == 0

    def doubts(self, found: Gradient, refused: bool) -> bool:
        """Whether a gradient has to be computed again: the guard refuses it, or its norm is far from those before."""
        far = len(self._norms) >= SOME and found.norm > FAR * median(self._norms)
        if not refused and not far:
            self._norms.append(found.norm)
        return refused or far

    def agreed(
        self, step: int, loop: Recomputing, parts: Mapping[int, Batch], found: Gradient | None = None
    ) -> Gradient:
        """Returns the gradient of a step on which all ranks agree: each computes the next rank's share and its own.

        Args:
            step: 0-based.
            loop: computes gradients.
            parts: this rank's microbatches.
            found: their gradient, where it was just computed.

        Raises:
            TransientError: a rank does not compute what another one does, or not the same twice.
        """
        shares: tuple[float | None, float | None] = (None, self._replica.share if found else None)
        stop, named = found is not None and found.stop, list[int]()
        for _ in range(ATTEMPTS):
            stop |= loop.forward_backward(loop.parts_of(self._shift) if self._shift else parts).stop
            across = self._replica.share
            found = loop.forward_backward(parts)
            stop, now = stop | found.stop, (across, self._replica.share)
            steady = all(old is None or self._same(old, new) for old, new in zip(shares, now, strict=True))
            wavering, apart = self._differing(now, steady)
            if wavering:
                named = wavering
                self._report(step, f"{self._listed(named)} computed two gradients from the same batch")
            if not apart:
                return found._replace(stop=stop)
            if not wavering and None not in shares:
                self._end_tested(step, apart, "does not compute the gradient that another rank does")
            shares = now
        return self._end(step, f"{self._listed(named)} does not compute the same gradient twice")

    def _differing(self, found: tuple[float, float], is_steady: bool) -> tuple[list[int], list[int]]:
        """Returns the ranks that differ from themselves, and those that differ from others.

        Args:
            found: this rank's fingerprints of the next rank's share and of its own.
            is_steady: whether both are what they were before.
        """
        peers = self._replica.peers
        following = peers[(peers.index(self._ranks.rank) + self._shift) % len(peers)]
        row = [torch.tensor(float(value), dtype=torch.float64) for value in (*found, following, not is_steady)]
        across, own, following_of, wavering = self._ranks.sum_and_collect(self._no_sums(), row)[1]
        pairs = [
            (rank, int(other))
            for rank, other in enumerate(following_of)
            if not self._same(across[rank], own[int(other)])
        ]
        # Who is wrong differs in two pairs, who is right in one; where there are two peers both differ in both.
        counts = [sum(rank in pair for pair in pairs) for rank in range(self._ranks.world)]
        apart = [rank for rank, count in enumerate(counts) if count and count == max(counts)]
        return [rank for rank, value in enumerate(wavering) if value], apart

    def _same(self, one: float, other: float) -> bool:
        if one == other or (math.isnan(one) and math.isnan(other)):
            return True
        return abs(one - other) <= self._replica.share_tolerance * abs(one)

    def _compare(self, step: int, what: str, hashes: Sequence[Sequence[float]]) -> None:
        for copies, of_ranks in zip(self._replica.copies, hashes, strict=True):
            named = copies.of(what)
            if corrupt := copies.differing(of_ranks):
                self._suspects.keep(step, named, of_ranks, self.names)
                self._end_tested(step, corrupt, f"{named} not equal to those of the other {copies.holders}")
            for name in self._suspects.of(step, named, of_ranks):
                self._report(step, f"{name} had other {named} than when the step was repeated")

    def _end_tested(self, step: int, corrupt: Sequence[int], what: str) -> NoReturn:
        failed = failed_self_test(self._ranks, self._device)
        test = f"; {self._listed(failed)} fails the self-test" if failed else ""
        self._end(step, f"{self._listed(corrupt)}: {what}{test}")

    def _end(self, step: int, what: str) -> NoReturn:
        self._report(step, what)
        raise TransientError(
            f"silent corruption at step {step}: {what}", "all ranks begin again with the newest checkpoint"
        )

    def _report(self, step: int, what: str) -> None:
        self._faults.report(CORRUPTION, step, what, _DO)

    def _listed(self, corrupt: Sequence[int]) -> str:
        return " or ".join(self.names[rank] for rank in corrupt)

    def _no_sums(self) -> Tensor:
        return torch.zeros(0, dtype=torch.float64, device=self._ranks.device)


class Suspects:
    """The last disagreement of a run, on one rank.

    Args:
        out: folder of the run.
        ranks: the process group; every rank constructs this.
    """

    def __init__(self, out: Path, ranks: Ranks) -> None:
        self._path, self._ranks = out / FILE, ranks
        text = self._path.read_text() if ranks.rank == 0 and self._path.exists() else "null"
        self._found = json.loads(ranks.broadcast_text(text))

    def keep(self, step: int, what: str, hashes: Sequence[float], names: Sequence[str]) -> None:
        """Writes what was compared at a step, the hash of every rank, and the ranks' names."""
        if self._ranks.rank == 0:
            content = {"step": step, "what": what, "hashes": list(hashes), "names": list(names)}
            temporary = self._path.with_suffix(".aside")
            temporary.write_text(json.dumps(content))
            temporary.rename(self._path)

    def of(self, step: int, what: str, right: Sequence[float]) -> list[str]:
        """Returns the names of the ranks that had another hash at this step before, and forgets the step.

        Args:
            step: 0-based.
            what: what is compared.
            right: the hashes now, on which all replicas agree. If no rank had these before, or the number of ranks has
                changed, the repetition is no proof, and no name is returned.
        """
        found = self._found
        if not found or (found["step"], found["what"]) != (step, what):
            return []
        self._found = None
        if self._ranks.rank == 0:
            self._path.unlink(missing_ok=True)
        pairs = list(zip(found["hashes"], right, strict=False))
        wrong = [before != now for before, now in pairs]
        if all(wrong) or len(found["hashes"]) != len(right):
            return []
        return [name for name, other in zip(found["names"], wrong, strict=True) if other]


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
