"""Settings of a rank's process: memory allocator, threads, precision of fp32 products, garbage collection.

Imports torch only when it is configured, because `set_allocator` must come before.
"""

import gc
import os
from collections.abc import MutableMapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import torch

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""torch reads the first one that is set."""
COLLECT_EVERY = 200
"""Maximum number of steps between two garbage collections."""


def set_allocator(environment: MutableMapping[str, str] = os.environ) -> None:
    """Lets segments of GPU memory grow, which avoids most fragmentation, unless the environment configures them.

    torch reads the variable when it is imported.
    """
    if not any(name in environment for name in ALLOCATOR_VARIABLES):
        environment[ALLOCATOR_VARIABLES[0]] = "expandable_segments:True"


def configure_torch(threads: int, device: "torch.device") -> None:
    """Sets the threads of torch, and on a GPU the precision of fp32 products.

    There they are computed in TF32, which has the mantissa of fp16 and takes an eighth of the time. Results are
    bit-exact only on a CPU, where products remain in fp32.

    Args:
        threads: per operation.
        device: of the model.
    """
    import torch

    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")


class GarbageCollection:
    """Restricts garbage collections to points where no rank waits for another one; a context manager.

    Python starts a collection at any allocation. In the middle of a step all ranks wait for the one that collects, and
    each of them collects at another time. Objects from before the run are never examined.
    """

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()
        gc.disable()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        gc.enable()
        gc.unfreeze()

    def after_step(self, steps: int, saved: bool) -> None:
        """Collects after a checkpoint was started, and after every COLLECT_EVERY steps.

        Args:
            steps: number of completed steps, equal on all ranks.
            saved: whether a checkpoint was started after them.
        """
        if saved or steps % COLLECT_EVERY == 0:
            gc.collect()
