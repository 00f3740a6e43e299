"""Detection of silent data corruption: ranks with wrong results or state are identified by comparison.

Weights. Ranks with copies of the same weights exchange hashes of them at every step, as part of the step's all-reduce,
and hashes of all their state before a checkpoint. If hashes differ, the run ends and all ranks restart from the newest
checkpoint. The correct hash may be unknown then; it is known after the step is repeated, and the faulty rank is
reported (`Suspects`).

Gradients. The contribution of a rank to the gradient has no copy. If loss or norm are suspicious, and at a regular
interval, every rank computes the contribution of the next rank and then its own again, and fingerprints of both are
compared with those of that rank and with the original ones. A transient bit flip does not recur, and a device that
always computes wrong results differs from another one. So no suspicious gradient is trained on that a second
computation does not confirm, and a rank whose results are wrong and reproducible is named.

A sharded rank computes fingerprints only in steps in which they are compared: a pass over the gradient of each
microbatch costs up to 4 % of a step. So the rank of the first transient flip that makes a gradient suspicious may be
unknown. It is corrected and reported, and in the WATCHED steps after it the rank of another one is named.

Devices. At the start, and when ranks differ, all ranks compute a fixed problem (`self_test`), whose result is
bit-identical on devices of the same kind.

Both require reproducible results: bit-identical on a CPU, and for gradients up to a tolerance on a GPU. Silent
corruption is common in large fleets: Dixit et al. 2021, arXiv 2102.11245.
"""

import json
import math
import platform
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NoReturn

import torch
from torch import Tensor

from tasks.core.errors import TransientError
from tasks.trainer.data.batches import Batch
from tasks.trainer.gradient import Gradient, GradientComputer
from tasks.trainer.integrity.guard import LossGuard
from tasks.trainer.logs import CORRUPTION, Faults
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replica import hash_of, minority

OUTLIER_RATIO = 10.0
"""A gradient is recomputed if its norm exceeds this multiple of the median of recent norms."""
MAX_NORMS, MIN_NORMS = 64, 8
"""Maximum and minimum number of recent norms for this comparison."""
WATCHED = 200
"""Steps after a suspicious gradient in which all ranks have fingerprints."""
ATTEMPTS = 3
"""Maximum number of rounds of recomputation, in one of which all ranks must agree."""
_DO = "take the node of this rank out of the pool and test its hardware if it is named again"
FILE = "suspects.json"


class Integrity:
    """Checks the ranks of a run; all ranks call the methods at the same time.

    Args:
        out: folder of the run.
        computer: computes the gradients.
        guard: of the run; a gradient that it refuses is suspicious.
        faults: log of faults, in which corrupt ranks are reported.
        device: name of this rank's kind of device.
        every: steps between two checks of the gradient contributions; 0: only on suspicion.

    Attributes:
        names: "rank 3 on node-7" for every rank, in rank order.

    Raises:
        TransientError: a rank fails the self-test.
    """

    def __init__(
        self, out: Path, computer: GradientComputer, guard: LossGuard, faults: Faults, device: str, every: int
    ) -> None:
        self._computer, self._guard, self._faults, self._device = computer, guard, faults, device
        self._replica, ranks = computer.replica, computer.replica.ranks
        self._ranks = ranks
        self._every = every
        hosts = gather_text(ranks, socket.gethostname())
        self.names = [f"rank {rank} on {host}" for rank, host in enumerate(hosts)]
        self._suspects = Suspects(out, ranks)
        self._norms: deque[float] = deque(maxlen=MAX_NORMS)
        self._watched_until = 0
        # Other kinds of devices round differently; with mixed devices, a rank can be compared only with itself.
        same_devices = len(set(gather_text(ranks, device))) == 1
        self._shift = 1 if same_devices and len(self._replica.peers) > 1 else 0
        if failed := failed_self_test(ranks, device):
            self._end(0, f"{self._listed(failed)} fails the self-test")

    def gradient(self, step: int, parts: Mapping[int, Batch]) -> Gradient:
        """Returns the gradient of a step; if it is suspicious, it is recomputed on this rank and on others.

        Args:
            step: 0-based.
            parts: this rank's microbatches by number.

        Raises:
            TransientError: the weights at the start of the step differ, or a rank differs from another rank or from
                itself; identifies the rank if possible.
        """
        if self._every and (step + 1) % self._every == 0:
            return self._agreed(step, parts)
        gradient = self._computed(step, parts, compared=step < self._watched_until)
        if not self._is_suspicious(gradient):
            return gradient
        self._watched_until = step + 1 + WATCHED
        return self._agreed(step, parts, gradient)

    def _computed(self, step: int, parts: Mapping[int, Batch], compared: bool = True) -> Gradient:
        """Computes a gradient, and compares the weights, using the hashes exchanged with it."""
        gradient = self._computer.gradient(parts, compared)
        self._compare(step, "weights", self._replica.hashes)
        return gradient

    def check_state(self, step: int) -> None:
        """Compares all state before the checkpoint after `step` steps; raises like `gradient`."""
        if self._replica.copies:
            _, hashes = self._ranks.sum_and_collect(self._no_sums(), self._replica.state_hashes())
            self._compare(step, "state", hashes)

    def _is_suspicious(self, gradient: Gradient) -> bool:
        """Whether a gradient must be recomputed: the guard refuses it, or its norm is an outlier."""
        far = len(self._norms) >= MIN_NORMS and gradient.norm > OUTLIER_RATIO * median(self._norms)
        # Outliers included: they hardly move a median, and a new level must not be an outlier for ever.
        if math.isfinite(gradient.norm):
            self._norms.append(gradient.norm)
        return far or bool(self._guard.reason(gradient))

    def _agreed(self, step: int, parts: Mapping[int, Batch], gradient: Gradient | None = None) -> Gradient:
        """Returns the verified gradient of a step; each rank recomputes the next rank's contribution and its own.

        Args:
            step: 0-based.
            parts: this rank's microbatches.
            gradient: their gradient, if it was just computed.
        """
        shares: tuple[float | None, float | None] = (None, self._replica.share if gradient else None)
        first, is_named = gradient, shares[1] is not None
        stop, wavering_ranks = gradient is not None and gradient.stop, list[int]()
        for _ in range(ATTEMPTS):
            others = self._computer.parts(step, self._shift) if self._shift else parts
            stop |= self._computed(step, others).stop
            across = self._share()
            gradient = self._computed(step, parts)
            stop, now = stop | gradient.stop, (across, self._share())
            is_steady = all(old is None or self._equal(old, new) for old, new in zip(shares, now, strict=True))
            unsteady, differing = self._differing(now, is_steady)
            if unsteady:
                wavering_ranks = unsteady
                self._report(step, f"{self._listed(wavering_ranks)} computed two gradients from the same batch")
            if not differing:
                if first and not is_named:
                    self._report_unnamed(step, first, gradient)
                return gradient._replace(stop=stop)
            if not unsteady and None not in shares:
                self._end_tested(step, differing, "does not compute the gradient that another rank does")
            shares = now
        return self._end(step, f"{self._listed(wavering_ranks)} does not compute the same gradient twice")

    def _share(self) -> float:
        assert self._replica.share is not None, "the replica has no fingerprint of a gradient that is compared"
        return self._replica.share

    def _report_unnamed(self, step: int, first: Gradient, again: Gradient) -> None:
        """Reports that a suspicious gradient without fingerprints was wrong, if it differs from the agreed one."""
        if not (self._equal(first.loss, again.loss) and self._equal(first.norm, again.norm)):
            found = f"loss {first.loss:.6g} and norm {first.norm:.6g}, and again {again.loss:.6g} and {again.norm:.6g}"
            self._faults.report(
                CORRUPTION,
                step,
                f"a rank computed two gradients from the same batch ({found}); it is not known which",
                f"nothing: if it happens again within {WATCHED} steps, the rank is named",
            )

    def _differing(self, fingerprints: tuple[float, float], is_steady: bool) -> tuple[list[int], list[int]]:
        """Returns the ranks that differ from themselves, and the ranks that differ from others.

        Args:
            fingerprints: this rank's fingerprints of the next rank's contribution and of its own.
            is_steady: whether both are unchanged since the last round.
        """
        peers = self._replica.peers
        following = peers[(peers.index(self._ranks.rank) + self._shift) % len(peers)]
        row = (*fingerprints, following, not is_steady)
        across, own, following_of, unsteady = self._ranks.sum_and_collect(self._no_sums(), row)[1]
        pairs = [
            (rank, int(other))
            for rank, other in enumerate(following_of)
            if not self._equal(across[rank], own[int(other)])
        ]
        # A wrong rank differs in two pairs, its correct neighbors in one each; with two peers, both differ in both
        # pairs.
        counts = [sum(rank in pair for pair in pairs) for rank in range(self._ranks.world)]
        differing = [rank for rank, count in enumerate(counts) if count and count == max(counts)]
        return [rank for rank, value in enumerate(unsteady) if value], differing

    def _equal(self, a: float, b: float) -> bool:
        if a == b or (math.isnan(a) and math.isnan(b)):
            return True
        return abs(a - b) <= self._replica.share_tolerance * abs(a)

    def _compare(self, step: int, what: str, hashes: Sequence[Sequence[float]]) -> None:
        for copies, of_ranks in zip(self._replica.copies, hashes, strict=True):
            description = copies.of(what)
            if corrupt := copies.differing(of_ranks):
                self._suspects.keep(step, description, of_ranks, self.names)
                self._end_tested(step, corrupt, f"{description} not equal to those of the other {copies.holders}")
            for name in self._suspects.of(step, description, of_ranks):
                self._report(step, f"{name} had other {description} than when the step was repeated")

    def _end_tested(self, step: int, corrupt: Sequence[int], what: str) -> NoReturn:
        failed = failed_self_test(self._ranks, self._device)
        test = f"; {self._listed(failed)} fails the self-test" if failed else ""
        self._end(step, f"{self._listed(corrupt)}: {what}{test}")

    def _end(self, step: int, what: str) -> NoReturn:
        self._report(step, what)
        raise TransientError(
            f"silent corruption at step {step}: {what}", "all ranks restart from the newest checkpoint"
        )

    def _report(self, step: int, what: str) -> None:
        self._faults.report(CORRUPTION, step, what, _DO)

    def _listed(self, corrupt: Sequence[int]) -> str:
        return " or ".join(self.names[rank] for rank in corrupt)

    def _no_sums(self) -> Tensor:
        return torch.zeros(0, dtype=torch.float64, device=self._ranks.device)


class Suspects:
    """The last disagreement between ranks of a run, kept until the step is repeated.

    Args:
        out: folder of the run.
        ranks: the process group; every rank constructs this.
    """

    def __init__(self, out: Path, ranks: Ranks) -> None:
        self._path, self._ranks = out / FILE, ranks
        text = self._path.read_text() if ranks.rank == 0 and self._path.exists() else "null"
        self._record = json.loads(ranks.broadcast_text(text))

    def keep(self, step: int, what: str, hashes: Sequence[float], names: Sequence[str]) -> None:
        """Writes the compared state at a step (`what`), the hash of every rank, and the ranks' names."""
        if self._ranks.rank == 0:
            content = {"step": step, "what": what, "hashes": list(hashes), "names": list(names)}
            temporary = self._path.with_suffix(".aside")
            temporary.write_text(json.dumps(content))
            temporary.rename(self._path)

    def of(self, step: int, what: str, right: Sequence[float]) -> list[str]:
        """Returns the names of the ranks that had another hash at this step before, and removes the record.

        Args:
            step: 0-based.
            what: the compared state.
            right: the current hashes, on which all replicas agree. If all hashes differ from the earlier ones, or the
                number of ranks has changed, the repetition proves nothing, and no name is returned.
        """
        previous = self._record
        if not previous or (previous["step"], previous["what"]) != (step, what):
            return []
        self._record = None
        if self._ranks.rank == 0:
            self._path.unlink(missing_ok=True)
        pairs = list(zip(previous["hashes"], right, strict=False))
        differs = [before != now for before, now in pairs]
        if all(differs) or len(previous["hashes"]) != len(right):
            return []
        return [name for name, is_wrong in zip(previous["names"], differs, strict=True) if is_wrong]


def self_test(device: torch.device) -> int:
    """Returns the hash of a fixed forward and backward pass; it is equal on devices of the same kind."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(96, 96, generator=generator).to(device).requires_grad_() for _ in range(3)]
    x = torch.randn(64, 96, generator=generator).to(device)
    for weight in weights:
        x = torch.softmax(x @ weight, dim=-1) + torch.nn.functional.silu(x)
    x.square().sum().backward()  # type: ignore[no-untyped-call]
    return int(hash_of([x, *(weight.grad for weight in weights if weight.grad is not None)]))


def failed_self_test(ranks: Ranks, kind: str) -> list[int]:
    """Returns the ranks whose self-test differs from the majority of ranks with the same kind of device.

    Args:
        ranks: the process group; every rank calls this.
        kind: name of the device or the processor.
    """
    results = gather_text(ranks, f"{kind} {self_test(ranks.device)}")
    groups: dict[str, dict[int, float]] = {}
    for rank, result in enumerate(results):
        name, _, value = result.rpartition(" ")
        groups.setdefault(name, {})[rank] = float(value)
    return sorted(rank for group in groups.values() for rank in minority(group))


def processor() -> str:
    """Returns the model name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def gather_text(ranks: Ranks, text: str, size: int = 256) -> list[str]:
    """Gathers a text from every rank, truncated to `size` bytes; returns the texts on every rank."""
    table = torch.zeros((ranks.world, size), dtype=torch.int32, device=ranks.device)
    data = text.encode()[:size]
    table[ranks.rank, : len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(table)
    ranks.sum([table])
    return [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in table.tolist()]
