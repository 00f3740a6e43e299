"""NF4: the codes and the error of bitsandbytes, and a projection whose gradients are those of its rounded weight."""

import pytest
import torch
import torch.nn.functional as F

from tasks.trainer.tuning.lora import VALUES, Nf4Linear, dequantise, quantise

SHAPES = [(64, 64), (48, 96), (7, 33), (1, 1), (128, 256)]


def weight(shape: tuple[int, ...], scale: float = 0.05) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale


@pytest.mark.parametrize("shape", SHAPES)
def test_every_weight_gets_the_nearest_of_the_sixteen_values(shape: tuple[int, ...]) -> None:
    given = weight(shape)
    codes, scales = quantise(given)
    back = dequantise(codes, scales, given.shape)
    assert codes.numel() == -(-given.numel() // 2)
    values = torch.tensor(VALUES)
    each = scales.repeat_interleave(64)[: given.numel()].view(shape)
    nearest = (given[..., None] - each[..., None] * values).abs().amin(dim=-1)
    torch.testing.assert_close((given - back).abs(), nearest, atol=1e-7, rtol=0)


def test_zero_stays_zero() -> None:
    given = torch.zeros(130)
    assert torch.equal(dequantise(*quantise(given), given.shape), given)


@pytest.mark.oracle("bitsandbytes")
@pytest.mark.parametrize("shape", SHAPES)
def test_codes_scales_and_error_are_those_of_bitsandbytes(shape: tuple[int, ...]) -> None:
    import bitsandbytes.functional as bitsandbytes

    given = weight(shape)
    packed, state = bitsandbytes.quantize_nf4(given, blocksize=64)
    codes, scales = quantise(given)
    ours = dequantise(codes, scales, given.shape)
    assert torch.equal(codes, packed.flatten())
    assert torch.equal(scales, state.absmax)
    # As one row: its CPU kernel takes the wrong scales where rows are no multiple of a block, as in (48, 96).
    theirs = bitsandbytes.dequantize_nf4(*bitsandbytes.quantize_nf4(given.flatten(), blocksize=64)).view(shape)
    torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=1e-6)
    torch.testing.assert_close((given - ours).norm(), (given - theirs).norm())


def test_gradients_flow_through_and_not_to_the_weight() -> None:
    linear = Nf4Linear(weight((24, 40)))
    x = torch.randn(5, 40, requires_grad=True)
    linear(x).square().sum().backward()
    other = x.detach().clone().requires_grad_()
    F.linear(other, linear.dequantised()).square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad)
    assert not list(linear.parameters())
    assert not linear.state_dict()
