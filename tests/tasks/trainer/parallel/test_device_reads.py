"""A step reads results back from the device once, not once per microbatch, for which the device would have to idle."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.utils._python_dispatch import TorchDispatchMode

from tasks.trainer.config import LoraConfig
from tasks.trainer.data.batches import with_learned
from tasks.trainer.model.kernels import varlen
from tasks.trainer.model.transformer import Transformer, build
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replica import hash_of
from tasks.trainer.parallel.replicated import Replicated
from tasks.trainer.parallel.sharded import Sharded
from tasks.trainer.parallel.start import default_layout
from tasks.trainer.place import Layout
from tests.tasks.trainer.parallel.parallel_worker import SEQ_LEN, VOCABULARY, batch, config
from tests.tasks.trainer.tuning.filled import filled

READS = {torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.masked_select}


class Reads(TorchDispatchMode):
    """Counts the operators that wait for a device: `item`, `nonzero`, and what is built on them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = func.overloadpacket is torch.ops.aten.index and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        self.count += func.overloadpacket in READS or by_mask
        return func(*args, **(kwargs or {}))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], int]:
    """Returns the number of reads of a call; a tensor of a batch may be read with `numpy`, which is for CPU tensors."""

    def of(call: Callable[[], object]) -> int:
        counter = Reads()
        with monkeypatch.context() as patch:
            for name in ("cpu", "tolist"):
                original = getattr(Tensor, name)

                def counted(tensor: Tensor, original: Any = original) -> Any:
                    counter.count += 1
                    return original(tensor)

                patch.setattr(Tensor, name, counted)
            with counter:
                call()
        return counter.count

    return of


@pytest.fixture
def alone() -> Iterator[Ranks]:
    """The only rank of a process group, which is left after the test."""
    yield Ranks(0, 1, 0)
    if dist.is_initialized():
        dist.destroy_process_group()


def masked(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, *_: object, **options: object) -> Tensor:
    """`varlen_attn` without a read, which the flash kernel does not need either."""
    index = torch.arange(len(q))
    document = torch.searchsorted(starts, index, right=True)
    mask = (document[:, None] == document) & (index[:, None] >= index)
    heads = (tensor.transpose(0, 1) for tensor in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask, enable_gqa=True).transpose(0, 1)


def test_the_counter_counts_reads(reads: Callable[[Callable[[], object]], int]) -> None:
    numbers = torch.arange(3)
    assert reads(lambda: (int(numbers[0]), numbers.nonzero(), numbers[numbers > 1], numbers.tolist())) == 4
    assert reads(lambda: numbers[None].expand(2, 3) + 1) == 0


@pytest.mark.parametrize("layout", [None, Layout()])
def test_microbatches_are_computed_without_a_read(
    alone: Ranks,
    monkeypatch: pytest.MonkeyPatch,
    reads: Callable[[Callable[[], object]], int],
    layout: Layout | None,
) -> None:
    monkeypatch.setattr("tasks.trainer.model.kernels.varlen_attn", masked)
    run = config(tie=True)
    model: Replicated | Sharded = Replicated(run, VOCABULARY, alone)
    if layout:
        model = Sharded(run, layout, VOCABULARY, SEQ_LEN, alone)
    model.initialize()
    (model.chunks[0] if isinstance(model, Sharded) else model.model).kernel = varlen
    parts = {number: batch(0, number) for number in range(4)}
    expected, labels, _ = model.forward_backward(parts)
    assert labels == sum(int((part.labels >= 0).sum()) for part in parts.values())
    one, four = (reads(lambda some=some: model.forward_backward(some)) for some in ({0: parts[0]}, parts))
    assert one == four
    assert model.forward_backward(parts)[0] == expected


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_of_a_sharded_rank_reads_its_device_once(
    alone: Ranks, reads: Callable[[Callable[[], object]], int], optimizer: str
) -> None:
    run = config(tie=True, optimizer=optimizer)
    model = Sharded(run, Layout(), VOCABULARY, SEQ_LEN, alone)
    model.initialize()
    parts = {number: batch(0, number) for number in range(2)}

    def step() -> None:
        model.forward_backward(parts, compared=True)
        model.clip(1.0)
        model.optimizer.step(1e-3)

    assert reads(step) == 1


def test_one_rank_has_one_buffer_of_gradients_and_by_default_casts_its_weights_once_a_step(alone: Ranks) -> None:
    layout, tuned = (default_layout(None, 1, 1, gpu=True, tunes=tunes) for tunes in (False, True))
    assert layout
    assert tuned
    assert (layout.zero, tuned.zero) == (2, 3)
    assert default_layout(None, 2, 8, gpu=True) == Layout(replicate=2, shard=8)
    model = Sharded(config(tie=True).model_copy(update={"precision": "bf16"}), layout, VOCABULARY, SEQ_LEN, alone)
    model.initialize()
    parts = {number: batch(0, number) for number in range(2)}
    allocate, gather = DefaultReduceScatter.allocate, FSDPParam.init_unsharded_param
    with (
        mock.patch.object(DefaultReduceScatter, "allocate", autospec=True, side_effect=allocate) as buffers,
        mock.patch.object(FSDPParam, "init_unsharded_param", autospec=True, side_effect=gather) as casts,
    ):
        model.forward_backward(parts)
    assert casts.call_count == len(model.parameters)
    modules = sum(isinstance(module, FSDPModule) for module in model.chunks[0].modules())
    assert buffers.call_count == len(parts) * modules


def test_a_fingerprint_is_made_only_to_be_compared_and_clipping_takes_no_operation(
    alone: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = config(tie=True)
    model = Sharded(run, Layout(), VOCABULARY, SEQ_LEN, alone)
    model.initialize()
    hashed: list[int] = []

    def counted(tensors: Iterable[Tensor]) -> Tensor:
        found = list(tensors)
        hashed.extend(tensor.numel() for tensor in found)
        return hash_of(found)

    monkeypatch.setattr("tasks.trainer.parallel.fsdp.hash_of", counted)
    parts = {number: batch(0, number) for number in range(2)}
    model.forward_backward(parts)
    assert (model.share, hashed) == (None, [])
    model.forward_backward(parts, compared=True)
    assert isinstance(model.share, float)
    assert sum(hashed) == len(parts) * sum(parameter.numel() for parameter in model.parameters.values())
    with mock.patch.object(Reads, "__torch_dispatch__", side_effect=AssertionError), Reads():
        assert model.clip(1e-3) > 1e-3


@pytest.mark.parametrize("has_adapters", [False, True])
def test_microbatches_of_preferences_are_computed_without_a_read(
    alone: Ranks,
    monkeypatch: pytest.MonkeyPatch,
    reads: Callable[[Callable[[], object]], int],
    has_adapters: bool,
) -> None:
    monkeypatch.setattr("tasks.trainer.model.kernels.varlen_attn", masked)
    run = config(tie=True)
    lora = LoraConfig(rank=2) if has_adapters else None
    policy = filled(build(run.model, VOCABULARY, 0), lora, loss="dpo")
    model = Replicated(run, VOCABULARY, alone, policy)
    for module in policy.modules():
        if isinstance(module, Transformer):
            module.kernel = varlen
    plain = {number: batch(0, number) for number in range(4)}
    parts = {number: with_learned(part) for number, part in plain.items()}
    one, four = (reads(lambda some=some: model.forward_backward(some)) for some in ({0: parts[0]}, parts))
    assert one == four
    assert reads(lambda: model.forward_backward(plain)) > four
    losses = [model.forward_backward(some) for some in (parts, plain)]
    assert losses[0] == losses[1]
