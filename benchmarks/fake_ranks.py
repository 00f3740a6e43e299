"""Memory and collectives of one rank of a large layout, counted without its devices.

    python -m benchmarks.fake_ranks

Builds the code of a training (`tasks/trainer/parallel`) for one rank of up to thousands, as fake process groups and
fake tensors: every operation has shapes and dtypes, and no data. Counted are, over the gradient of a step:

- memory: bytes of all storages that are alive, after each operation, and their maximum. Includes weights, moments,
  gradients, gathered weights, activations, and buffers of collectives. Does not include the allocator's fragmentation,
  workspaces of libraries, the process's CUDA context, and NCCL's own buffers.
- collectives: number and bytes by dimension of the layout and kind. Does not include the numbers that all ranks
  of a step sum (`Ranks.sum_and_collect`).

Kernels are those of a GPU: variable-length flash attention, a fused norm, 4,096 positions of logits at a time; with
context parallelism those of a CPU, because flex attention needs its compiler to have no scores in memory. Layers
are not compiled; the compiler would store fewer intermediate results of a layer. Writes `fake_ranks.json`.
"""

import time
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, cast
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.tensor import DTensor, debug
from torch.distributed.tensor._redistribute import clear_redistribute_planner_cache
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.harness import keep, parser
from tasks.trainer.config import TrainConfig
from tasks.trainer.data.batches import Batch
from tasks.trainer.model.attention import Bounds
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.kernels import varlen
from tasks.trainer.model.shape import LOSS_ROWS, SIZES, ModelShape
from tasks.trainer.optim import build_optimizer, local
from tasks.trainer.parallel.apply import shards_of
from tasks.trainer.parallel.fit import memory_of_rank
from tasks.trainer.parallel.fsdp import accumulate
from tasks.trainer.parallel.mesh import DIMENSIONS, Mesh
from tasks.trainer.parallel.pipeline import Pipeline
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.place import Layout
from tasks.trainer.planning.traffic import collectives

VOCABULARY, SEQ_LEN = 128_256, 8192
LLAMA_405B = ModelConfig(
    layers=126, dim=16384, heads=128, kv_heads=8, ffn_multiple=3.25, rope_theta=500_000.0, tie_embeddings=False
)
"""Llama 3.1 405B (arXiv 2407.21783, table 3)."""
CASES = {
    "70b": (SIZES["70b"].model, Layout(shard=64, tensor=8, pipeline=4, zero=1, recompute="selective"), 512),
    "405b": (LLAMA_405B, Layout(shard=128, tensor=8, pipeline=16, zero=1, recompute="selective"), 2048),
}
"""Model, layout and sequences of a step."""
KINDS = {
    "all_gather_into_tensor": "all_gather",
    "_allgather_base_": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "all_reduce": "all_reduce",
    "allreduce_": "all_reduce",
    "alltoall_base_": "all_to_all",
    "send": "send",
}
"""Kinds of collectives by the names of torch's operators."""


@dataclass(frozen=True)
class Counts:
    """What one rank has and sends during the gradient of a step.

    Attributes:
        memory: bytes of the storages alive at the peak: `weights`, `moments`, `gradients`, and `others`.
        calls: number of collectives by "dimension kind", such as "tensor all_gather"; dimensions are those of the mesh,
            and `state` is shard x context.
        sizes: bytes of their largest buffer, that is the result of a gather and the input of the others.
        seconds: duration of the count.
    """

    memory: Mapping[str, int]
    calls: Mapping[str, int]
    sizes: Mapping[str, int]
    seconds: float

    @property
    def peak(self) -> int:
        """Peak of all storages in bytes."""
        return sum(self.memory.values())


def counted(run: TrainConfig, layout: Layout, vocab_size: int, seq_len: int, rank: int) -> Counts:
    """Returns the counts of a rank of a layout; the process must not have a process group."""
    started = time.perf_counter()
    kernels = nullcontext() if layout.context > 1 else _kernels_of_a_gpu(_even_rows(run, layout, seq_len))
    with fake_group(rank, layout.ranks), kernels:
        mesh = Mesh.of(layout, Ranks(rank, layout.ranks, 0, layout.ranks))
        chunks = shards_of(run, mesh, vocab_size, seq_len)
        with FakeTensorMode(allow_non_fake_inputs=True), Storages() as storages:
            for chunk in chunks:
                chunk.to_empty(device="cpu")
            parameters = {name: parameter for chunk in chunks for name, parameter in chunk.named_parameters()}
            optimizer = build_optimizer(parameters, run)
            microbatches = [_batch(run, layout, seq_len, chunks[0].rows) for _ in range(_microbatches(run, layout))]
            with Collectives(mesh) as collectives:
                if layout.pipeline > 1:
                    pipeline = Pipeline(chunks, mesh, run, seq_len)
                    # The vote on whether all ranks know the shapes would read a number that no rank has sent.
                    pipeline.schedule._warmup_p2p = _agreed  # type: ignore[method-assign,assignment]
                    pipeline.backward(microbatches)
                else:
                    (model,) = chunks
                    accumulate(model, microbatches, layout.zero)
            state = {
                "weights": sum(local(parameter).nbytes for parameter in parameters.values()),
                "moments": sum(local(tensor).nbytes for tensor in optimizer.state().values()),
                "gradients": sum(local(cast(Tensor, parameter.grad)).nbytes for parameter in parameters.values()),
            }
    memory = {**state, "others": storages.peak - sum(state.values())}
    return Counts(memory, dict(collectives.calls), dict(collectives.sizes), time.perf_counter() - started)


def _microbatches(run: TrainConfig, layout: Layout) -> int:
    return run.batch_size // run.microbatch // layout.data_ranks


def _batch(run: TrainConfig, layout: Layout, seq_len: int, rows: Tensor | None) -> Batch:
    """Returns a microbatch of one document per sequence at the positions of this rank."""
    documents = torch.zeros(run.microbatch, seq_len, dtype=torch.int64)
    tokens = torch.zeros(run.microbatch, seq_len // layout.context, dtype=torch.int64)
    starts = torch.zeros(17, dtype=torch.int32)
    return Batch(tokens, tokens.clone(), documents, Bounds(starts, seq_len))


def _agreed(stages: Any, *_: object) -> None:
    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC


@contextmanager
def fake_group(rank: int, world: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()
        # The cache has the names of groups.
        debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
        clear_redistribute_planner_cache()


@contextmanager
def _kernels_of_a_gpu(rows: list[int]) -> Iterator[None]:
    """Within the block, a model on a CPU calls the operators that it would on a GPU.

    Args:
        rows: that a rank exchanges with each of the ranks of its experts; fake counts have no values.
    """

    def fused(x: Tensor, shape: Any, weight: Tensor, eps: float) -> Tensor:
        result: Tensor = _FusedNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
        return result

    with ExitStack() as stack:
        stack.enter_context(mock.patch("tasks.trainer.parallel.apply.best_kernel", return_value=varlen))
        stack.enter_context(mock.patch("tasks.trainer.model.transformer.F.rms_norm", fused))
        stack.enter_context(mock.patch("tasks.trainer.model.experts.grouped_product", _grouped))
        stack.enter_context(mock.patch("tasks.trainer.parallel.experts.rows_of_ranks", return_value=(rows, rows)))
        stack.enter_context(mock.patch.dict(LOSS_ROWS, cpu=LOSS_ROWS["cuda"]))
        yield


def _grouped(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    return torch.nn.functional.grouped_mm(rows, weight.mT, offs=counts.cumsum(0, dtype=torch.int32))


def _even_rows(run: TrainConfig, layout: Layout, seq_len: int) -> list[int]:
    """Returns the rows that a rank sends to each rank of `expert` in a layer if all get as many."""
    chosen = run.model.experts.per_token if run.model.experts else 0
    return [run.microbatch * seq_len * chosen // layout.expert] * layout.expert


class _FusedNorm(torch.autograd.Function):
    """RMSNorm that stores what the kernel of a GPU does: its input and the reciprocal root."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        root = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, root)
        return x * root * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, root = ctx.saved_tensors
        scaled = grads[0] * weight
        along = (scaled * x).mean(-1, keepdim=True)
        return root * (scaled - x * root.square() * along), (grads[0] * x * root).flatten(0, -2).sum(0), None


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums the bytes of the storages that are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive, self.peak = 0, 0
        self._patches = ExitStack()
        self._is_paused = False
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:  # its operators on local tensors are dispatched here, too
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        if self._is_paused:
            return out
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                self._add(tensor.untyped_storage())
        return out

    def __enter__(self) -> "Storages":
        resize, propagate = torch.UntypedStorage.resize_, ShardingPropagator._propagate_tensor_meta_non_cached

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            self._resize(storage)
            return result

        def propagated(*args: Any) -> Any:  # the shapes of whole tensors are computed with tensors that nobody has
            self._is_paused = True
            try:
                return propagate(*args)
            finally:
                self._is_paused = False

        patches = (torch.UntypedStorage, "resize_", resized), (ShardingPropagator, propagate.__name__, propagated)
        for owner, name, replacement in patches:
            self._patches.enter_context(mock.patch.object(owner, name, replacement))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        self._patches.close()

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = 0
        weakref.finalize(storage, self._free, key)
        self._resize(storage)

    def _resize(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._sizes:
            self.alive += storage.nbytes() - self._sizes[key]
            self._sizes[key] = storage.nbytes()
            self.peak = max(self.peak, self.alive)

    def _free(self, key: int) -> None:
        self.alive -= self._sizes.pop(key)


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts collectives, and the bytes of their largest buffer, by dimension and kind."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        names = {tuple(dist.get_process_group_ranks(mesh.group(name))): name for name in DIMENSIONS}
        names |= {tuple(dist.get_process_group_ranks(mesh.states["state"].get_group())): "state"}
        if mesh.experts:
            for part, name in (("expert_state", "experts of a rank"), ("expert", "expert")):
                names |= {tuple(dist.get_process_group_ranks(mesh.experts[part].get_group())): name}
        self._names = {ranks: name for ranks, name in names.items() if len(ranks) > 1}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        namespace, _, rest = str(func).partition(".")
        kind = KINDS.get(rest.removesuffix(".default")) if namespace in ("c10d", "_c10d_functional") else None
        if kind:
            leaves = tree_leaves((args, kwargs, out))
            name = f"{self._dimension(leaves)} {kind}"
            self.calls[name] += 1
            self.sizes[name] += max(tensor.nbytes for tensor in leaves if isinstance(tensor, Tensor))
        return out

    def _dimension(self, leaves: Any) -> str:
        """Returns the dimension whose group is among the arguments of a collective, as an object or by name."""
        for leaf in leaves:
            if isinstance(leaf, str) and leaf not in ("sum", "max", "avg"):
                group = cast(Any, c10d)._resolve_process_group(leaf)
            elif isinstance(leaf, torch.ScriptObject):
                group = dist.ProcessGroup.unbox(leaf)
            else:
                continue
            return self._names.get(tuple(dist.get_process_group_ranks(group)), "one rank")
        raise LookupError("a collective without a group")


def planned(run: TrainConfig, layout: Layout, shape: ModelShape, seq_len: int, stage: int) -> dict[str, Any]:
    """Returns the figures of the plan of a run for a rank with the coordinate `stage` in the pipeline."""
    calls: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for one in collectives(layout, run, shape, seq_len, stage):
        calls[f"{one.dimension} {one.kind}"] += one.calls
        sizes[f"{one.dimension} {one.kind}"] += round(one.size)
    memory = memory_of_rank(layout, run, shape, seq_len, stage)
    return {"peak": sum(memory.values()), "memory": memory, "calls": dict(calls), "sizes": dict(sizes)}


def main() -> None:
    """Counts the first and the last rank of each case."""
    parser(__doc__).parse_args()
    figures: dict[str, Any] = {}
    for name, (model, layout, batch_size) in CASES.items():
        run = TrainConfig(model=model, precision="bf16", batch_size=batch_size, microbatch=1)
        shape, figures[name] = ModelShape.of(model, VOCABULARY), {"layout": layout.model_dump(exclude_defaults=True)}
        for rank, stage in ((0, 0), (layout.ranks - 1, layout.pipeline - 1)):
            found = counted(run, layout, VOCABULARY, SEQ_LEN, rank)
            plan = planned(run, layout, shape, SEQ_LEN, stage)
            figures[name][f"rank {rank} of {layout.ranks}"] = {
                "seconds": round(found.seconds),
                "counted": {"peak": found.peak, **asdict(found)},
                "planned": plan,
                "planned / counted": round(plan["peak"] / found.peak, 3),
                "largest checkpoint file": max(found.memory["weights"], found.memory["moments"]),
            }
    keep("fake_ranks", figures)


if __name__ == "__main__":
    main()
