"""Training on a GPU: are the attention kernels equal, how fast is a step, and what takes its time.

    python -m benchmarks.train_gpu [--budget SECONDS] [--out FILE]

First every attention kernel beside the reference, forward and backward. Then a sweep over models, precisions, lengths,
masks and microbatches, 30 steps each by the engine that trains (`tasks.trainer.parallel.sharded`), one GPU, random
tokens, documents of 700 tokens in the mean. FILE is written anew after each configuration, so that what was measured is
there when the machine is not any more. A configuration that does not fit in memory is noted and the next one tried;
those for which the budget does not last are listed as not run. `--tiny` shows on a CPU in seconds that all of it runs.

`mfu` counts 6 FLOPs per weight in a matrix product and 12 x layers x width x length per token for attention, as if it
were not causal: the convention of PaLM and llm-foundry. `mfu_causal` counts the keys that are attended, within
documents. Both are of the dense bf16 peak of the data sheet, fp8 too.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu_kernels import parity
from benchmarks.gpu_steps import Variant, Workload, batches_of, engine_of, free, measured, top_kernels
from benchmarks.harness import store
from tasks.trainer.config import ModelConfig
from tasks.trainer.model.attention import Kernel, best_kernel
from tasks.trainer.model.flex import flex
from tasks.trainer.model.shape import SIZES, Size
from tasks.trainer.planning.config import peak_flops

SWEEP: dict[Variant, list[Workload]] = {
    Variant("1.3b", "bf16"): [
        Workload(2048, 16, head_chunk=4096),
        Workload(8192, 4, head_chunk=4096),
        Workload(8192, 4, head_chunk=4096, documents=False),
        Workload(2048, 16),
        Workload(2048, 16, head_chunk=4096, kernel="flex"),
        Workload(8192, 4, head_chunk=4096, kernel="flex"),
        Workload(2048, 32, head_chunk=4096),
    ],
    Variant("1.3b", "fp8"): [Workload(2048, 16, head_chunk=4096), Workload(8192, 4, head_chunk=4096)],
    Variant("350m", "bf16"): [Workload(2048, 32, head_chunk=4096), Workload(2048, 64, head_chunk=4096)],
    Variant("1.3b", "bf16", "selective"): [Workload(2048, 32, head_chunk=4096), Workload(8192, 8, head_chunk=4096)],
}
"""What matters most first. The first workload is the one that is profiled."""
TINY: dict[Variant, list[Workload]] = {
    Variant("tiny", precision, recompute): [Workload(64, 2)]
    for precision, recompute in (("bf16", "none"), ("fp8", "none"), ("bf16", "selective"))
}
TINY_SIZE = Size(ModelConfig(layers=2, dim=32, heads=2, kv_heads=1), 64)


class Sweep:
    """Runs configurations while the time lasts, and keeps what they gave.

    Args:
        out: file of the results.
        budget: seconds from now on.
        tiny: whether everything is small and on a CPU.
    """

    def __init__(self, out: Path, budget: float, tiny: bool) -> None:
        self.out, self.tiny = out, tiny
        self.started, self.budget = time.perf_counter(), budget
        self.steps = 3 if tiny else 30
        self.device = torch.device("cpu") if tiny else torch.device("cuda", 0)
        self.figures: dict[str, Any] = {"card": card(self.device), "configurations": []}
        self.longest = 0.0

    def run(self) -> None:
        """Measures everything."""
        shape = (1, 160, 4, 16) if self.tiny else (2, 2048, 16, 128)
        self.figures["parity"] = parity(self.device, shape, 1 if self.tiny else 10)
        self.keep()
        for variant, loads in (TINY if self.tiny else SWEEP).items():
            self._variant(variant, loads)
            free()
            self.keep()

    def keep(self) -> None:
        """Writes what there is."""
        self.figures["seconds"] = round(self.elapsed, 1)
        store("train_gpu", self.figures, self.out)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started

    def _variant(self, variant: Variant, loads: list[Workload]) -> None:
        size = TINY_SIZE if self.tiny else SIZES[variant.size]
        engine = None
        for load in loads:
            if self.elapsed + self.longest > self.budget:
                self._note(variant, {**vars(load), "not_run": "the budget of time is spent"})
                continue
            began = time.perf_counter()
            try:
                engine = engine or engine_of(variant, size, compiled=not self.tiny)
                self._note(variant, measured(engine, size, load, self._kernel(load), self.steps))
                if "profile" not in self.figures:
                    top = top_kernels(engine, batches_of(load, size.vocab_size))
                    self.figures["profile"] = {**vars(variant), **vars(load), "top": top}
            except Exception as error:  # what does not run on this card is a result
                fits = not isinstance(error, torch.OutOfMemoryError)
                failed = f"{type(error).__name__}: {error}"[:500] if fits else "out of memory"
                self._note(variant, {**vars(load), "failed": failed})
                # A step that broke off leaves the engine between two states, and tensors in the frames of its error.
                error.__traceback__, engine = None, None
            free()
            self.longest = max(self.longest, time.perf_counter() - began)

    def _kernel(self, load: Workload) -> Kernel:
        return flex if load.kernel == "flex" else best_kernel(self.device, torch.bfloat16)

    def _note(self, variant: Variant, figures: dict[str, Any]) -> None:
        line = {**vars(variant), **figures}
        self.figures["configurations"].append(line)
        print({name: value for name, value in line.items() if value is not None}, flush=True)
        self.keep()


def card(device: torch.device) -> dict[str, Any]:
    """Returns what the figures depend on: card, torch, CUDA."""
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "name": "CPU"}
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        found |= {"name": about.name, "sm": f"{about.major}.{about.minor}", "peak_flops": peak_flops(about.name)}
        found["memory_gib"] = round(about.total_memory / 2**30, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    target = Path(__file__).parent / "results" / "train_gpu.json"
    parser.add_argument("--budget", type=float, default=460.0, help="seconds for all of it")
    parser.add_argument("--out", type=Path, default=target, help="file of the results")
    parser.add_argument("--tiny", action="store_true", help="a tiny configuration of everything, on a CPU")
    given = parser.parse_args()
    if given.tiny:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        parser.error("this machine has no GPU; --tiny shows on a CPU that the program runs")
    torch._dynamo.config.automatic_dynamic_shapes = False  # another microbatch is compiled for its own shape
    Sweep(given.out, given.budget, given.tiny).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
