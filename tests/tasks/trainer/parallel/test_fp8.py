"""Products in fp8: exact for values that fp8 represents, close for others, also under FSDP."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tasks.core.errors import InputError
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.transformer import build
from tasks.trainer.parallel.fp8 import Fp8Linear, quantize, use_fp8

CPU = torch.device("cpu")


def pair(out: int, width: int) -> tuple[nn.Linear, nn.Sequential]:
    """A linear layer, and one in fp8 with the same weight."""
    plain = nn.Linear(width, out, bias=False)
    narrow = nn.Sequential(nn.Linear(width, out, bias=False))
    narrow[0].weight = nn.Parameter(plain.weight.detach().clone())
    use_fp8(narrow, CPU)
    return plain, narrow


def passes(layer: nn.Module, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the gradients of input and weight."""
    x = x.clone().requires_grad_()
    out = layer(x)
    return out.detach(), *torch.autograd.grad(out, (x, next(layer.parameters())), grad)


def test_integers_representable_in_fp8_are_multiplied_exactly() -> None:
    # Scaled by 448 / 7 and 57344 / 7, both powers of two, the whole numbers up to 7 are numbers of e4m3 and e5m2.
    generator = torch.Generator().manual_seed(0)
    x, weight, grad = (
        torch.randint(-7, 8, shape, generator=generator).float() for shape in ((2, 16, 48), (32, 48), (2, 16, 32))
    )
    plain, narrow = pair(32, 48)
    for layer in (plain, narrow[0]):
        layer.weight.data.copy_(weight)
    for expected, found in zip(passes(plain, x, grad), passes(narrow, x, grad), strict=True):
        assert torch.equal(found, expected)


def test_other_numbers_are_multiplied_within_a_few_percent() -> None:
    torch.manual_seed(0)
    plain, narrow = pair(64, 128)
    x, grad = torch.randn(64, 128), torch.randn(64, 64)
    for expected, found in zip(passes(plain, x, grad), passes(narrow, x, grad), strict=True):
        assert 0 < float((found - expected).norm() / expected.norm()) < 0.08


def test_each_tensor_of_a_product_is_searched_for_its_largest_value_once() -> None:
    searches: list[int] = []

    class Searches(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket is torch.ops.aten.amax:
                searches.append(args[0].numel())
            return func(*args, **(kwargs or {}))

    _, narrow = pair(32, 48)
    with Searches():
        passes(narrow[0], torch.randn(16, 48), torch.randn(16, 32))
    assert searches == [16 * 48, 32 * 48, 16 * 32], "input, weight, gradient of the output"


def test_the_scale_follows_the_tensor() -> None:
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    small, small_scale = quantize(x * 2**-20, torch.float8_e4m3fn)
    narrow, scale = quantize(x, torch.float8_e4m3fn)
    assert torch.equal(small.float(), narrow.float())
    assert float(scale / small_scale) == 2**20
    zeros, _ = quantize(torch.zeros(16, 16), torch.float8_e4m3fn)
    assert not zeros.float().any()


def test_only_hidden_matrices_of_suitable_shape_use_fp8() -> None:
    model = build(ModelConfig(layers=1, dim=48, heads=6, kv_heads=1, qkv_bias=True, tie_embeddings=False), 40, 0)
    before = {name: parameter for name, parameter in model.named_parameters()}
    use_fp8(model.layers, CPU)
    narrow = {name for name, module in model.named_modules() if isinstance(module, Fp8Linear)}
    # Keys and values of one head of size 8 are not a multiple of 16.
    assert narrow == {f"layers.0.{name}" for name in ("attention.wq", "attention.wo", "ffn.w1", "ffn.w2", "ffn.w3")}
    assert all(before[name] is parameter for name, parameter in model.named_parameters())


def test_a_bias_is_added_to_the_product() -> None:
    _, narrow = pair(32, 48)
    x, bias = torch.randn(16, 48), torch.randn(32)
    without = narrow(x)
    narrow[0].bias = nn.Parameter(bias)
    out = narrow(x)
    torch.testing.assert_close(out, without + bias)
    out.sum().backward()
    assert torch.equal(narrow[0].bias.grad, torch.full((32,), 16.0))


def test_under_autocast_outputs_have_its_dtype_and_gradients_that_of_the_weight() -> None:
    _, narrow = pair(32, 48)
    x = torch.randn(16, 48)
    with torch.autocast("cpu", torch.bfloat16):
        out = narrow(x)
    out.sum().backward()
    assert out.dtype == torch.bfloat16
    assert narrow[0].weight.grad.dtype == torch.float32


def test_unsupported_row_counts_are_refused() -> None:
    _, narrow = pair(32, 48)
    with pytest.raises(InputError, match="17 positions"):
        narrow(torch.randn(17, 48))


def test_a_gpu_without_fp8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    with pytest.raises(InputError, match=r"NVIDIA A100 \(SM 8.0\) cannot multiply in fp8"):
        use_fp8(nn.Sequential(nn.Linear(16, 16, bias=False)), torch.device("cuda"))


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_a_sharded_layer_computes_the_same() -> None:
    _, narrow = pair(32, 48)
    x, grad = torch.randn(16, 48, dtype=torch.bfloat16), torch.randn(16, 32, dtype=torch.bfloat16)
    expected = narrow.bfloat16()
    wanted = passes(expected, x, grad)
    sharded = pair(32, 48)[1]
    sharded[0].weight = nn.Parameter(expected[0].weight.detach().float())
    fully_shard(sharded, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    x = x.clone().requires_grad_()
    out = sharded(x)
    out.backward(grad)
    weight = sharded[0].weight
    assert isinstance(weight.grad, DTensor)
    assert weight.grad.dtype == weight.dtype == torch.float32
    assert torch.equal(out, wanted[0])
    assert x.grad is not None
    assert torch.equal(x.grad, wanted[1])
    assert torch.equal(weight.grad.full_tensor(), wanted[2].float())
