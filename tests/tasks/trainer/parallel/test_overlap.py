"""What overlaps with computation, and why: gathered weights, and collectives of tensor parallelism."""

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as fsdp

from benchmarks.fake_ranks import fake_group
from tasks.trainer.config import TrainConfig
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.transformer import Transformer
from tasks.trainer.parallel import apply, compilation
from tasks.trainer.parallel.apply import shards_of
from tasks.trainer.parallel.compilation import Decision, decide_tensor, decide_weights, make_tensor_asynchronous
from tasks.trainer.parallel.mesh import Mesh
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.place import Layout

GPU, CPU = torch.device("cuda"), torch.device("cpu")
TENSOR = {"tensor": 4}


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({}, Decision(False, "each rank has them")),
        ({"replicate": 2, "tensor": 4}, Decision(False, "each rank has them")),
        ({"shard": 2}, Decision(True, "they are sharded")),
        ({"context": 2, "zero": 1}, Decision(True, "they are sharded")),
    ],
    ids=str,
)
def test_weights_are_gathered_ahead_if_they_are_sharded(layout: dict[str, int], expected: Decision) -> None:
    assert decide_weights(Layout(**layout)) == expected


@pytest.mark.parametrize(
    ("layout", "run", "given", "expected"),
    [
        (TENSOR, {}, {}, Decision(True, "gathers and sums")),
        (
            TENSOR,
            {"microbatch": 1},
            {},
            Decision(True, "sums only; with microbatch = 1 the compiler does not recognize the gathers"),
        ),
        ({"shard": 8}, {}, {}, Decision(False, "no matrix is split")),
        (
            TENSOR | {"async_tensor": False},
            {},
            {},
            Decision(False, "async_tensor = false in [place.train.layout]"),
        ),
        (TENSOR, {}, {"device": CPU}, Decision(False, "only GPUs share memory")),
        (TENSOR, {}, {"compiled": False}, Decision(False, "layers are not compiled")),
        (
            TENSOR,
            {"precision": "fp8"},
            {},
            Decision(False, "an fp8 product needs the largest value of its whole input"),
        ),
        (TENSOR, {}, {"ranks_per_node": 2}, Decision(False, "ranks that share a matrix are on several nodes")),
        (TENSOR, {}, {"connected": False}, Decision(False, "the GPUs cannot read each other's memory")),
    ],
    ids=str,
)
def test_tensor_parallelism_is_asynchronous_where_it_can_be(
    layout: dict[str, Any], run: dict[str, Any], given: dict[str, Any], expected: Decision
) -> None:
    facts = {"compiled": True, "device": GPU, "ranks_per_node": 8, "connected": True, **given}
    facts["compiled"] = Decision(facts["compiled"], "")
    settings = TrainConfig(**{"batch_size": 8, "microbatch": 2, "precision": "bf16", **run})
    assert decide_tensor(Layout(**layout), settings, **facts) == expected


def recorded(layout: Layout, *, tied: bool) -> list[str]:
    """Returns what the first of some ranks does in the gradient of one batch: gathers, and parts that compute."""
    events: list[str] = []
    gather = fsdp.foreach_all_gather  # type: ignore[attr-defined]

    def noted(parameters: Any, *rest: Any) -> Any:
        events.append(f"gather {name_of(parameters[0]._module_info.module)}")
        return gather(parameters, *rest)

    names: dict[nn.Module, str] = {}

    def name_of(module: nn.Module) -> str:
        return next(name for part, name in names.items() if module in set(part.modules()))

    run = TrainConfig(model=ModelConfig(layers=3, dim=32, heads=4, kv_heads=4, tie_embeddings=tied))
    with fake_group(0, layout.ranks), mock.patch.object(fsdp, "foreach_all_gather", noted):
        (model,) = shards_of(run, Mesh.of(layout, Ranks(0, layout.ranks, 0, layout.ranks)), 64, 16)
        model.to_empty(device="cpu")
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        ends = {} if tied else {model.embedding: "embedding", model.head: "head"}
        names |= {part: name for part, name in ends.items() if part is not None}
        names |= {layer: f"layer {number}" for number, layer in model.layers.items()} | {model: "model"}
        for number, layer in model.layers.items():
            watch(layer.get_submodule("ffn"), f"layer {number}", events)
        tokens = torch.zeros(2, 16, dtype=torch.int64)
        model.loss(tokens, tokens, tokens).backward()  # type: ignore[no-untyped-call]
    return events


def watch(module: nn.Module, name: str, events: list[str]) -> None:
    """Notes when a module computes its output and its gradient."""
    module.register_forward_pre_hook(lambda *_: events.append(f"{name} computes"))
    module.register_full_backward_pre_hook(lambda *_: events.append(f"{name} computes gradients"))


def test_a_layer_is_gathered_before_the_one_before_it_computes_in_both_passes() -> None:
    events = recorded(Layout(shard=4, compile=False), tied=False)
    assert events == [
        "gather model",
        "gather embedding",
        "gather layer 0",
        "gather layer 1",
        "layer 0 computes",
        "gather layer 2",
        "layer 1 computes",
        "gather head",
        "layer 2 computes",
        "gather layer 2",
        "gather model",
        "gather layer 1",
        "layer 2 computes gradients",
        "gather layer 0",
        "layer 1 computes gradients",
        "layer 0 computes gradients",
    ]


def test_a_tied_embedding_is_gathered_once_in_each_pass_with_the_model() -> None:
    events = recorded(Layout(shard=4, compile=False), tied=True)
    assert events[:4] == ["gather model", "gather layer 0", "gather layer 1", "layer 0 computes"]
    assert events[6:9] == ["layer 2 computes", "gather model", "gather layer 2"]
    assert events.count("gather model") == 2


@pytest.fixture
def compiler_settings() -> Iterator[None]:
    from torch._inductor import config
    from torch.distributed import _symmetric_memory

    with config.patch(_micro_pipeline_tp=False), mock.patch.dict(_symmetric_memory._group_name_to_store, clear=True):
        yield
    torch._dynamo.reset()


@pytest.mark.soak  # it loads the patterns of the compiler
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compiler_settings")
def test_the_compiler_overlaps_the_collectives_of_a_layer() -> None:
    with fake_group(0, 4), mock.patch("torch.distributed.is_nccl_available", return_value=True):
        mesh = Mesh.of(Layout(tensor=4), Ranks(0, 4, 0, 4))
        make_tensor_asynchronous(mesh)
        gathers_and_sums, sums_only = (collectives(mesh, microbatch) for microbatch in (2, 1))
    summed = {"fused_matmul_reduce_scatter": 2, "reduce_scatter_tensor": 2}
    assert gathers_and_sums == {"fused_all_gather_matmul": 4} | summed
    assert sums_only == {"all_gather_into_tensor": 4} | summed


def collectives(mesh: Mesh, microbatch: int) -> Counter[str]:
    """Returns the number of collectives of a compiled layer in both passes, by kind."""
    found: Counter[str] = Counter()
    torch._dynamo.reset()
    model = Transformer(ModelConfig(layers=1, dim=128, heads=8, kv_heads=4), 512).bfloat16()
    apply._split(model, mesh.tensor)
    layer = model.layers["0"]
    layer.compile(backend=counting(found), fullgraph=True)
    x = torch.randn(microbatch, 64, 128, dtype=torch.bfloat16, requires_grad=True)
    angles, documents = torch.randn(microbatch, 1, 256, 8), torch.zeros(microbatch, 256, dtype=torch.int64)
    layer(x, angles, angles, model.kernel(documents, None, None)).sum().backward()
    return found


def counting(found: Counter[str]) -> Any:
    """Returns a compiler that counts the collectives in the graphs that inductor would generate code for."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func  # type: ignore[attr-defined]
    from torch._guards import detect_fake_mode
    from torch._inductor.compile_fx import fake_tensor_prop
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
    from torch._inductor.virtualized import V

    def compiler(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        changed = copy.deepcopy(graph)
        with V.set_fake_mode(detect_fake_mode(inputs)):
            view_to_reshape(changed)  # type: ignore[no-untyped-call]
            fake_tensor_prop(changed, inputs)
            post_grad_passes(changed, False)
        names = [str(node.target) for node in changed.graph.nodes if node.op == "call_function"]
        of_groups = [name.split(".") for name in names if name.startswith(("symm_mem.", "_c10d_functional."))]
        found.update(kind for _, kind, *_ in of_groups if kind != "wait_tensor")
        return make_boxed_func(graph.forward)  # a CPU has no memory that the overlapping operators use

    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler, decompositions=select_decomp_table())


def test_the_decision_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", compilation.log.name)
    compilation._log_once.cache_clear()
    with fake_group(0, 8):
        mesh = Mesh.of(Layout(shard=2, tensor=4), Ranks(0, 8, 0, 8))
        for _ in range(2):
            compilation.overlap_of(mesh, TrainConfig(), Decision(False, ""))
    assert [record.getMessage() for record in caplog.records if record.name == compilation.log.name] == [
        "weights are gathered ahead: they are sharded; tensor parallelism is not asynchronous: only GPUs share memory"
    ]
