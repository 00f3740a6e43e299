"""How a run starts at a place: its layout, its ranks, and why it cannot start. Does not import torch.

The plan, the launcher and the ranks decide with these functions, so that what is planned is what runs.
`python -m tasks.trainer.parallel.start` prints the device of this machine as JSON. It is a process of its own, because
one that has looked at a GPU keeps some of its memory.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.core.errors import InputError
from tasks.trainer.config import TrainConfig
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.parallel.fit import layout_reasons, layout_warnings, refuse
from tasks.trainer.place import Layout

if TYPE_CHECKING:
    import torch

FP8_CAPABILITY = (8, 9)
"""The compute capability (SM) from which GPUs multiply in fp8."""


@dataclass(frozen=True)
class Device:
    """What a rank computes with.

    Attributes:
        name: as CUDA reports it, or as the plan names it.
        capability: the compute capability of a GPU (SM major, minor); None: it is not known.
    """

    name: str
    capability: tuple[int, int] | None = None

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.name != "CPU"


CPU = Device("CPU")


@dataclass(frozen=True)
class Start:
    """How a run starts.

    Attributes:
        layout: how its ranks share the work; None: each has the whole model.
        nodes: number of nodes.
        ranks_per_node: ranks that start on each node.
        per_node: ranks that there are on each node; the others do not start.
        reasons: why it cannot start; none if it can.
        warnings: what makes it slow.
    """

    layout: Layout | None
    nodes: int
    ranks_per_node: int
    per_node: int
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """Ranks that start on all nodes."""
        return self.nodes * self.ranks_per_node

    def check(self) -> None:
        """Raises RecipeError with all reasons, if there are any."""
        refuse(self.reasons)


def default_layout(
    layout: Layout | None, nodes: int, ranks_per_node: int, *, gpu: bool, tunes: bool = False
) -> Layout | None:
    """Returns the layout of the state; None if every rank has all of it, as on CPUs by default.

    On GPUs the default is to shard it over the GPUs of a node, and to replicate it over nodes. On a single GPU of a
    node weights stay in the dtype of the pass until the optimizer changes them (`zero` 2), because there is no one to
    gather them from; those of a fine-tuning (`tunes`), which may be most of the memory, do not.
    """
    if layout or not gpu:
        return layout
    return Layout(replicate=nodes, shard=ranks_per_node, zero=2 if ranks_per_node == 1 and not tunes else 3)


def start_of(
    layout: Layout | None,
    run: TrainConfig,
    shape: ModelShape,
    seq_len: int,
    nodes: int,
    per_node: int,
    device: Device | None,
    *,
    tunes: bool = False,
) -> Start:
    """Returns how a run starts.

    Without a layout each rank gets the same number of microbatches of a step. The number of ranks is not part of the
    run's identity, so a small run (a canary) has fewer of them instead of failing, with a warning.

    Args:
        layout: the layout of the place; None: it has none.
        run: settings of the run.
        shape: of its model.
        seq_len: positions of a training sequence.
        nodes: number of nodes.
        per_node: ranks that can start on each node (`nproc` of the place).
        device: of the ranks; None: unknown, and then neither whether it multiplies in fp8 nor the default layout is
            decided.
        tunes: whether it is a fine-tuning.
    """
    ranks, reasons, warnings = per_node, list[str](), list[str]()
    if layout is None:
        ranks, reasons, warnings = _equal_shares(run, nodes, per_node)
        layout = default_layout(None, nodes, ranks, gpu=device is not None and device.is_gpu, tunes=tunes)
    if layout:
        reasons += layout_reasons(layout, run, shape, seq_len, nodes, ranks)
        warnings += layout_warnings(layout, nodes, ranks)
    if run.precision == "fp8" and device and (reason := fp8_reason(device, layout)):
        reasons.append(reason)
    return Start(layout, nodes, ranks, per_node, tuple(reasons), tuple(warnings))


def _equal_shares(run: TrainConfig, nodes: int, per_node: int) -> tuple[int, list[str], list[str]]:
    """Returns the most ranks of a node that can share a step equally, and why there are none, or fewer than there."""
    microbatches, of = run.common_batch // run.microbatch, "ramp and batch_size" if run.ramp else "batch_size"
    shared = f"{microbatches} microbatches a step ({of} {run.common_batch} / microbatch {run.microbatch})"
    ranks = max((n for n in range(1, per_node + 1) if microbatches % (nodes * n) == 0), default=0)
    if not ranks:
        return 1, [f"{nodes} nodes cannot share {shared} equally: {_remedy(run, nodes)}"], []
    if ranks == per_node:
        return ranks, [], []
    where = f"{ranks} of {per_node} ranks start" + (f" on each of {nodes} nodes" if nodes > 1 else "")
    return ranks, [], [f"only {where}, because more cannot share {shared} equally: {_remedy(run, nodes * per_node)}"]


def _remedy(run: TrainConfig, ranks: int) -> str:
    """Returns settings with which `ranks` ranks have equally many microbatches."""
    most, multiple = run.common_batch // ranks, ranks * run.microbatch
    smaller = next((n for n in range(most, 0, -1) if run.common_batch % (n * ranks) == 0), 0)
    batches = "batch_size and those of ramp" if run.ramp else "batch_size"
    settings = [f"[train] {batches} to a multiple of {multiple}", *([f"microbatch = {smaller}"] if smaller else [])]
    return f"set {' or '.join(settings)}"


def fp8_reason(device: Device, layout: Layout | None) -> str:
    """Returns why ranks on a device cannot multiply in fp8; "" if they can, or if that is unknown.

    In a layout they can on a CPU, slowly, for tests.
    """
    if not device.is_gpu:
        return "" if layout else 'fp8 needs a GPU: set [train] precision = "bf16", or train on a GPU'
    if device.capability is None or device.capability >= FP8_CAPABILITY:
        return ""
    major, minor = device.capability
    return (
        f"{device.name} (SM {major}.{minor}) cannot multiply in fp8: train in bf16, or on a GPU from SM 8.9 (Ada, "
        "Hopper, Blackwell)"
    )


def check_fp8(device: Device, layout: Layout | None) -> None:
    """Raises InputError with `fp8_reason`, on a rank."""
    cause, _, remedy = fp8_reason(device, layout).partition(": ")
    if cause:
        raise InputError(cause, remedy)


def device_of_ranks(command: Sequence[str] = (sys.executable, "-m", __name__)) -> Device | None:
    """Returns the device of ranks on this machine, which a process of its own finds; None if it fails."""
    found = subprocess.run([*command], capture_output=True, text=True, check=False)
    if found.returncode:
        return None
    name, capability = json.loads(found.stdout)
    return Device(name, tuple(capability) if capability else None)


def device_of(device: "torch.device") -> Device:
    """Returns the device of a rank."""
    import torch

    if device.type != "cuda":
        return CPU
    return Device(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))


def main() -> None:
    """Prints the device of ranks on this machine."""
    import torch

    found = device_of(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    print(json.dumps([found.name, found.capability]))


if __name__ == "__main__":
    main()
