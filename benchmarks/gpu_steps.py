"""Training steps of the product's own engine on made-up batches, timed."""

import gc
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_kernels import documents_of, synchronise
from tasks.trainer.config import TrainConfig
from tasks.trainer.data.batches import Batch
from tasks.trainer.model import loss as loss_module
from tasks.trainer.model.attention import Kernel
from tasks.trainer.model.shape import Shape, Size, attended_length, flops_per_token
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.sharded import Sharded
from tasks.trainer.place import Layout
from tasks.trainer.planning.config import peak_flops

BATCHES = 4
"""Different batches that steps repeat, so that no shape of `cu_seqlens` comes after the warm-up."""
MEAN_DOCUMENT = 700
"""Mean tokens of a document."""


@dataclass(frozen=True)
class Variant:
    """A model as it is built: what needs other weights or another graph."""

    size: str
    precision: Literal["bf16", "fp8"]
    """Of the forward and backward pass, as in `TrainConfig`."""
    recompute: str = "none"


@dataclass(frozen=True)
class Workload:
    """What a variant computes in a step."""

    seq_len: int
    microbatch: int
    documents: bool = True
    """Whether attention ends at documents; without, it is plain causal."""
    kernel: str = "best"
    head_chunk: int = 512
    """Positions whose logits exist at a time."""


def engine_of(variant: Variant, size: Size, compiled: bool) -> Sharded:
    """Builds the engine of one rank on the device that there is."""
    run = TrainConfig(
        model=size.model, steps=1000, batch_size=1, microbatch=1, milestones=1, precision=variant.precision
    )
    layout = Layout.model_validate({"recompute": variant.recompute, "compile": compiled, "zero": 2})
    ranks = Ranks(0, 1, 0)
    return Sharded(run, layout, size.vocab_size, 2048, ranks)


def batches_of(load: Workload, vocab_size: int) -> list[Batch]:
    """Returns batches of random tokens; a label is the token that follows."""
    made = []
    for seed in range(BATCHES):
        shape = (load.microbatch, load.seq_len)
        tokens = np.random.default_rng(seed).integers(0, vocab_size, (shape[0], shape[1] + 1))
        numbers = documents_of(*shape, min(MEAN_DOCUMENT, load.seq_len / 3), seed).numpy()
        made.append(Batch.of(tokens[:, :-1], tokens[:, 1:], numbers if load.documents else np.zeros(shape, np.int64)))
    return [batch.pinned() if torch.cuda.is_available() else batch for batch in made]


def train_steps(engine: Sharded, batches: list[Batch], steps: int) -> tuple[list[float], float]:
    """Takes steps of one microbatch each; returns the seconds of each and the last loss."""
    device, taken, loss = engine.mesh.device, [], 0.0
    for step in range(steps):
        synchronise(device)
        started = time.perf_counter()
        loss, _, _ = engine.forward_backward({0: batches[step % len(batches)]})
        engine.clip(1.0)
        engine.optimizer.step(1e-4)
        synchronise(device)
        taken.append(time.perf_counter() - started)
    return taken, loss


def measured(engine: Sharded, size: Size, load: Workload, kernel: Kernel, steps: int) -> dict[str, Any]:
    """Returns the figures of a workload; a third of the steps warms up. The caller has set the kernel's flash."""
    device = engine.mesh.device
    torch._dynamo.reset()
    engine.chunks[0].kernel = kernel
    loss_module.CHUNK = load.head_chunk
    batches = batches_of(load, size.vocab_size)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    warm, _ = train_steps(engine, batches, max(1, steps // 3))
    taken, loss = train_steps(engine, batches, steps - len(warm))
    step_s = float(np.median(taken))
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return {
        **asdict(load),
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
    runs = np.concatenate([np.diff(batch.cu_seqlens.numpy()) for batch in batches])
    by = {"": load.seq_len, "_causal": attended_length(runs)}
    flops = {name: per_s * flops_per_token(Shape.of(size.model, size.vocab_size), keys) for name, keys in by.items()}
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return {
        "tokens_per_s": round(per_s),
        **{f"tflops{name}": round(value / 1e12, 1) for name, value in flops.items()},
        **{f"mfu{name}": round(value / peak, 4) if peak else None for name, value in flops.items()},
    }


def top_kernels(engine: Sharded, batches: list[Batch], count: int = 20) -> list[dict[str, Any]]:
    """Returns the operations on which three steps spend most of the device's time."""
    cuda = engine.mesh.device.type == "cuda"
    train_steps(engine, batches, 1)
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as found:
        train_steps(engine, batches, 3)
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
    """Returns memory of engines that are gone to the device."""
    gc.collect()
    torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
