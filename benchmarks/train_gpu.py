"""Training on a GPU: equality of the attention kernels, speed of a step, and its profile.

    python -m benchmarks.train_gpu [--budget SECONDS] [--out FILE]

A sweep over models, precisions, lengths, masks and microbatches, 30 steps each, one GPU, random tokens, documents of
700 tokens on average. A step is that of `tasks.trainer.loop`: threads that prepare batches, the engine in the default
layout with its compiler and kernels, checks of the gradient, the optimizer and its schedule; without files (shards,
logs, checkpoints). Weights are drawn on the device, with about the deviations of a training. A step ends when the next
one begins, and the device is not waited for in between.

The main figures, 1.3b at 2,048 positions, come first and take about four minutes; then every attention kernel is
compared with the reference, forward and backward; then the rest. FILE is rewritten after each configuration, so that
results survive the loss of the machine. A configuration for which the planner's estimate exceeds the memory is listed
with the estimate and does not run; one that runs out of memory anyway is noted and the next one runs; those for which
the time budget has no room are listed as not run. `--tiny` runs everything in seconds on a CPU.

`mfu` counts 6 FLOPs per weight in a matrix product and 12 x layers x width x length per token for attention, as if it
were not causal: the convention of PaLM and llm-foundry. `mfu_causal` counts only the attended keys, within
documents. Both are relative to the dense bf16 peak of the data sheet, also for fp8.
"""

import gc
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.harness import RESULTS, parser, store
from tasks.trainer.config import TrainConfig
from tasks.trainer.data.batches import Batch, Loader, StepData
from tasks.trainer.data.withheld import Withheld
from tasks.trainer.gradient import GradientComputer
from tasks.trainer.integrity.corruption import Integrity
from tasks.trainer.integrity.guard import LossGuard
from tasks.trainer.integrity.pace import SlowRanks
from tasks.trainer.logs import Faults
from tasks.trainer.model.attention import Kernel, sdpa_mask
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.kernels import activate_flash, flex, varlen
from tasks.trainer.model.shape import SIZES, ModelShape, Size, attended_length, flops_per_token
from tasks.trainer.model.transformer import initial_constant
from tasks.trainer.optim import learning_rate
from tasks.trainer.parallel.fit import memory_per_rank
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.sharded import Sharded
from tasks.trainer.parallel.start import default_layout
from tasks.trainer.place import Layout, TrainPlace
from tasks.trainer.planning.config import PlanConfig, peak_flops

TOLERANCE = 0.02
"""Largest difference from the reference in fp32, over its norm, that rounding to bf16 explains."""
BATCHES = 4
"""Different batches that steps repeat, so that no shape of their bounds comes after the warm-up."""
ALONE = Ranks(0, 1, 0)
MARGIN = 1.5
"""A configuration begins if the budget has this multiple of what the longest one took."""
MEAN_DOCUMENT = 700
"""Mean tokens of a document."""


def documents_of(sequences: int, seq_len: int, mean: float, seed: int) -> Tensor:
    """Returns document numbers, int64 [sequences, seq_len], with log-normal lengths (sigma 1) cut at sequence ends."""
    generator = np.random.default_rng(seed)
    total = sequences * seq_len
    lengths = np.maximum(1, generator.lognormal(np.log(mean) - 0.5, 1.0, 8 + int(8 * total / mean)).astype(np.int64))
    numbers = np.repeat(np.arange(len(lengths)), lengths)[:total]
    return torch.from_numpy(numbers.reshape(sequences, seq_len))


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(device: torch.device, call: Callable[[], object], repeats: int) -> float:
    """Returns the median time of a call in seconds, after a warm-up call."""
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
        device: to compute on; on a CPU in fp32 and only forward, like `flex` there.
        sequences: their number.
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
        """Returns the output, and with a backward pass the gradients of queries, keys and values."""
        leaves = [tensor.detach().requires_grad_(self.backward) for tensor in inputs]
        out = kernel(documents, None)(*leaves)
        grads = torch.autograd.grad((out * self.weights).sum(), leaves) if self.backward else ()
        return [out.detach(), *grads]

    def reference(self) -> list[Tensor]:
        """Returns the result of `passes` for the reference in fp32."""
        return self.passes(sdpa_mask, self.documents, [tensor.float() for tensor in self.inputs])

    def leak(self, kernel: Kernel) -> float:
        """Returns the largest change of other documents' outputs after a change of one document."""
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
            name: seconds(self.device, partial(self.passes, kernel, documents, self.inputs), repeats)
            for name, documents in (("documents", self.documents), ("plain_causal", whole))
        }
        return {
            "errors": dict(zip(("out", "dq", "dk", "dv"), (round(error, 6) for error in errors), strict=False)),
            "leak": self.leak(kernel),
            "equal": max(errors) < TOLERANCE,
            "ms": {name: round(1e3 * value, 3) for name, value in times.items()},
        }


def parity(device: torch.device, shape: tuple[int, int, int, int], repeats: int) -> dict[str, Any]:
    """Returns figures of each kernel of the device, and the flash attention of a training, which is left active.

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
        kernels["varlen FA2"] = _tried(case, varlen, reference, repeats)
        flash = activate_flash(device)
        if flash != "FA2":
            kernels[f"varlen {flash}"] = _tried(case, varlen, reference, repeats)
    named = dict(zip(("sequences", "seq_len", "heads", "width"), shape, strict=True))
    return {"shape": {**named, "kv_heads": shape[2] // 2}, "kernels": kernels, "flash": flash}


def _tried(case: Case, kernel: Kernel, reference: list[Tensor], repeats: int) -> dict[str, Any]:
    try:
        return case.figures(kernel, reference, repeats)
    except Exception as error:  # a kernel that fails on this card is a result
        return {"failed": f"{type(error).__name__}: {error}"[:500]}


@dataclass(frozen=True)
class Variant:
    """Settings of a model that need other weights or another graph."""

    size: str
    precision: Literal["bf16", "fp8"]
    """Of the forward and backward pass, as in `TrainConfig`."""
    recompute: str = "none"


@dataclass(frozen=True)
class Workload:
    """Work of a variant in a step."""

    seq_len: int
    microbatch: int
    documents: bool = True
    """Whether attention ends at documents; without, it is plain causal."""


def settings_of(variant: Variant, size: Size, load: Workload) -> tuple[TrainConfig, Layout]:
    """Returns the settings of a run with one microbatch a step, and its layout on one GPU."""
    run = TrainConfig(
        model=size.model,
        steps=1000,
        batch_size=load.microbatch,
        microbatch=load.microbatch,
        milestones=1,
        precision=variant.precision,
    )
    layout = default_layout(None, 1, 1, gpu=True)
    assert layout is not None
    return run, layout.model_copy(update={"recompute": variant.recompute})


def estimated_gib(variant: Variant, size: Size, load: Workload, gpu: bool) -> float:
    """Returns the planner's estimate of the peak memory of a step."""
    run, layout = settings_of(variant, size, load)
    needs = memory_per_rank(layout, run, ModelShape.of(size.model, size.vocab_size), load.seq_len, gpu=gpu)
    return round(sum(needs.values()) / 2**30, 1)


def usable_gib(device: torch.device) -> float:
    """Returns the memory that a plan lets a step use; on a CPU there is no limit."""
    if device.type != "cuda":
        return math.inf
    return torch.cuda.get_device_properties(device).total_memory * PlanConfig().memory_share / 2**30


def engine_of(variant: Variant, size: Size, load: Workload) -> Sharded:
    """Builds the engine of one rank on the available device; it takes microbatches of other sizes, too."""
    run, layout = settings_of(variant, size, load)
    engine = Sharded(run, layout, size.vocab_size, load.seq_len, ALONE)
    draw(engine)
    return engine


@torch.no_grad()
def draw(engine: Sharded) -> None:
    """Sets weights of the sizes of initial ones, drawn on the device: a CPU takes longer for them than the steps do."""
    for name, parameter in engine.parameters.items():
        constant, shard = initial_constant(engine.run.model, name, parameter.shape), parameter.to_local()
        _ = shard.normal_(0.0, shard.shape[-1] ** -0.5) if constant is None else shard.fill_(constant)


class RandomBatches(StepData):
    """Batches of random tokens in documents, one microbatch a step; a label is the next token.

    Args:
        load: their sequences.
        vocab_size: tokens of the vocabulary.
    """

    def __init__(self, load: Workload, vocab_size: int) -> None:
        self.load, self.vocab_size, self.eos_id, self.identity = load, vocab_size, 0, ""
        self.seq_len, self.batch_size, self.microbatch, self.file_names = (
            load.seq_len,
            load.microbatch,
            load.microbatch,
            (),
        )

    def close(self) -> None:
        """Does nothing."""

    def microbatches(self, step: int, numbers: Sequence[int]) -> dict[int, Batch]:
        """Returns the microbatch of a step, which is that of BATCHES steps before."""
        seed, shape = step % BATCHES, (self.microbatch, self.seq_len)
        tokens = np.random.default_rng(seed).integers(0, self.vocab_size, (shape[0], shape[1] + 1))
        documents = documents_of(*shape, min(MEAN_DOCUMENT, self.seq_len / 3), seed).numpy()
        documents = documents if self.load.documents else np.zeros(shape, np.int64)
        return dict.fromkeys(numbers, Batch.of(tokens[:, :-1], tokens[:, 1:], documents))

    def slices_in(self, source: str, sequence: int) -> Any:
        """Returns nothing: the tokens are of no file."""
        raise NotImplementedError

    def slices(self, step: int) -> list[dict[str, Any]]:
        """Returns nothing: the tokens are of no file."""
        return []


class Steps:
    """The steps of a training (`tasks.trainer.loop`) without its files; a context manager.

    Args:
        engine: of the training.
        data: its batches.
        steps: that are prepared at most.
    """

    def __init__(self, engine: Sharded, data: RandomBatches, steps: int) -> None:
        self.engine, self.step, self.loss = engine, 0, math.nan
        self._folder = tempfile.TemporaryDirectory()
        out, ranks, clip = Path(self._folder.name), engine.ranks, engine.run.optim.clip
        self._guard, faults = LossGuard(), Faults(out)
        self._withheld = Withheld(out, ranks, data, engine.run.steps, [])
        computer = GradientComputer(engine, clip, data, self._withheld)
        self._integrity = Integrity(out, computer, self._guard, faults, "benchmark", TrainPlace().check_every)
        self._slow_ranks = SlowRanks(engine, self._integrity.names, faults)
        self._loader = Loader(data, engine.numbers, steps, engine.mesh.device)

    def __enter__(self) -> "Steps":
        return self

    def __exit__(self, *exc: object) -> None:
        self._loader.__exit__(*exc)
        self._folder.cleanup()

    def take(self, steps: int) -> list[float]:
        """Takes steps; returns the seconds from the end of one to the end of the next."""
        device, ends = self.engine.mesh.device, []
        synchronise(device)
        for _ in range(steps):
            ends.append(time.perf_counter())
            parts = self._withheld.without(self.step, self._loader.microbatches(self.step))
            gradient = self._integrity.gradient(self.step, parts)
            self._guard.refusal(self.step, gradient)
            self.engine.optimizer.step(learning_rate(self.engine.run.optim, self.step, self.engine.run.steps))
            self._slow_ranks.after_step(self.step, {})
            self.step, self.loss = self.step + 1, gradient.loss
        synchronise(device)
        return [end - begin for begin, end in pairwise([*ends, time.perf_counter()])]


def measured(engine: Sharded, size: Size, load: Workload, steps: int) -> dict[str, Any]:
    """Returns the figures of a workload; the first third of the steps is warm-up."""
    device, data = engine.mesh.device, RandomBatches(load, size.vocab_size)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with Steps(engine, data, steps) as training:
        warm = training.take(max(1, steps // 3))
        taken, loss = training.take(steps - len(warm)), training.loss
    batches = [data.microbatches(step, [0])[0] for step in range(BATCHES)]
    step_s = float(np.median(taken))
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return {
        "step_s": round(step_s, 4),
        "slowest_s": round(max(taken), 4),
        "warm_up_s": round(sum(warm), 1),
        "loss": round(loss, 4),
        "memory_gib": memory and round(memory, 1),
        **rates(size, load, batches, step_s, device),
    }


def rates(size: Size, load: Workload, batches: list[Batch], step_s: float, device: torch.device) -> dict[str, Any]:
    """Returns tokens/s, FLOP/s and MFU by the convention (every key of the sequence) and by keys that are attended."""
    per_s = load.microbatch * load.seq_len / step_s
    runs = np.concatenate([np.diff(batch.bounds.starts.numpy()) for batch in batches])
    by = {"": load.seq_len, "_causal": attended_length(runs)}
    flops = {
        name: per_s * flops_per_token(ModelShape.of(size.model, size.vocab_size), keys) for name, keys in by.items()
    }
    peak = peak_flops(torch.cuda.get_device_name(device), "bf16") if device.type == "cuda" else None
    return {
        "tokens_per_s": round(per_s),
        **{f"tflops{name}": round(value / 1e12, 1) for name, value in flops.items()},
        **{f"mfu{name}": round(value / peak, 4) if peak else None for name, value in flops.items()},
    }


def top_kernels(engine: Sharded, size: Size, load: Workload, count: int = 20) -> list[dict[str, Any]]:
    """Returns the operations on which three steps spend most of the device's time."""
    cuda = engine.mesh.device.type == "cuda"
    with Steps(engine, RandomBatches(load, size.vocab_size), 4) as training:
        training.take(1)
        with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as found:
            training.take(3)
    spent = {
        event.key: event.self_device_time_total if cuda else event.self_cpu_time_total for event in found.key_averages()
    }
    total = sum(spent.values())
    most = sorted(spent, key=lambda name: -spent[name])[:count]
    return [
        {"kernel": name[:120], "ms_per_step": round(spent[name] / 3e3, 3), "share": round(spent[name] / total, 4)}
        for name in most
    ]


def free() -> None:
    """Returns memory of deleted engines to the device."""
    gc.collect()
    torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


Configurations = list[tuple[Variant, list[Workload]]]
MAIN: Configurations = [
    (Variant("1.3b", "bf16"), [Workload(2048, 8), Workload(2048, 16)]),
    (Variant("1.3b", "bf16", "selective"), [Workload(2048, 16)]),
    (Variant("1.3b", "fp8"), [Workload(2048, 8), Workload(2048, 16)]),
]
"""What matters most first, and of a variant the smallest first. The first workload is the one that is profiled."""
REST: Configurations = [
    (Variant("1.3b", "bf16"), [Workload(8192, 2), Workload(8192, 2, documents=False), Workload(8192, 4)]),
    (Variant("350m", "bf16"), [Workload(2048, 16), Workload(2048, 32)]),
    (Variant("1.3b", "fp8"), [Workload(8192, 2)]),
    (Variant("1.3b", "bf16", "selective"), [Workload(8192, 4), Workload(2048, 32)]),
]
TINY_MAIN: Configurations = [
    (Variant("tiny", "bf16"), [Workload(64, 2), Workload(64, 4)]),
    (Variant("tiny", "fp8"), [Workload(64, 2)]),
]
TINY_REST: Configurations = [(Variant("tiny", "bf16", "selective"), [Workload(64, 2, documents=False)])]
TINY_SIZE = Size(ModelConfig(layers=2, dim=32, heads=2, kv_heads=1), 64)


class Sweep:
    """Runs configurations while time is left, and collects their results.

    Args:
        out: file of the results.
        budget: seconds from now on.
        tiny: whether to run a small version on a CPU.
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
        main, rest = (TINY_MAIN, TINY_REST) if self.tiny else (MAIN, REST)
        self._sweep(main)
        shape = (1, 160, 4, 16) if self.tiny else (2, 2048, 16, 128)
        if self.elapsed < self.budget:
            self.figures["parity"] = parity(self.device, shape, 1 if self.tiny else 10)
        self.keep()
        self._sweep(rest)

    def _sweep(self, configurations: Configurations) -> None:
        for variant, loads in configurations:
            self._variant(variant, loads)
            free()

    def keep(self) -> None:
        """Writes the results so far."""
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
            needed, usable = estimated_gib(variant, size, load, self.device.type == "cuda"), usable_gib(self.device)
            line = {**vars(load), "estimated_gib": needed}
            if needed > usable:
                self._note(variant, {**line, "not_run": f"it needs about {needed:.1f} GiB of {usable:.1f}"})
                continue
            # The next one can take longer, since each variant is compiled.
            if self.elapsed + MARGIN * self.longest > self.budget:
                self._note(variant, {**line, "not_run": "the budget of time is spent"})
                continue
            began = time.perf_counter()
            try:
                engine = engine or engine_of(variant, size, load)
                self._note(variant, line | measured(engine, size, load, self.steps))
                if "profile" not in self.figures:
                    top = top_kernels(engine, size, load)
                    self.figures["profile"] = {**vars(variant), **vars(load), "top": top}
                    self.keep()
            except Exception as error:  # a failure on this card is a result
                fits = not isinstance(error, torch.OutOfMemoryError)
                failed = f"{type(error).__name__}: {error}"[:500] if fits else "out of memory"
                self._note(variant, {**line, "failed": failed})
                # A failed step leaves the engine in an inconsistent state, and tensors in the frames of its exception.
                error.__traceback__, engine = None, None
            free()
            self.longest = max(self.longest, time.perf_counter() - began)

    def _note(self, variant: Variant, figures: dict[str, Any]) -> None:
        line = {**vars(variant), **figures}
        self.figures["configurations"].append(line)
        print({name: value for name, value in line.items() if value is not None}, flush=True)
        self.keep()


def card(device: torch.device) -> dict[str, Any]:
    """Returns the environment of the figures: card, torch, CUDA."""
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "name": "CPU"}
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        found |= {
            "name": about.name,
            "sm": f"{about.major}.{about.minor}",
            "peak_flops": peak_flops(about.name, "bf16"),
        }
        found["memory_gib"] = round(about.total_memory / 2**30, 1)
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--budget", type=float, default=460.0, help="total time in seconds")
    options.add_argument("--out", type=Path, default=RESULTS / "train_gpu.json", help="file of the results")
    options.add_argument("--tiny", action="store_true", help="a tiny configuration of everything, on a CPU")
    given = options.parse_args()
    if given.tiny:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        options.error("this machine has no GPU; --tiny shows on a CPU that the program runs")
    torch._dynamo.config.automatic_dynamic_shapes = False  # another microbatch is compiled for its own shape
    Sweep(given.out, given.budget, given.tiny).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
