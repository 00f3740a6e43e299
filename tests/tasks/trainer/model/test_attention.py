"""Every attention kernel follows the mask: only earlier keys of the same document."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import attention as attention_module

from tasks.core.errors import InputError
from tasks.trainer.model.attention import (
    MIN_DOCUMENTS,
    PLAIN,
    Bounds,
    Kernel,
    Scores,
    document_mask,
    sdpa_mask,
)
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.kernels import BLOCK, block_mask, flex, varlen
from tasks.trainer.model.transformer import build
from tasks.trainer.parallel import compilation
from tasks.trainer.parallel.compilation import best_kernel

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: these kernels have a backward pass there")
flex_warns = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
LENGTHS = ((3, 1, 200, 96, 60), (360,))
"""Tokens of the documents of two sequences: some within a block, one over several, one sequence without a boundary."""


def packed(lengths: tuple[tuple[int, ...], ...] = LENGTHS) -> Tensor:
    """Numbers of the documents, int64 [sequences, positions]."""
    return torch.stack([torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in lengths])


def heads_of(documents: Tensor, width: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries of four heads, and keys and values of two."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((documents.shape[0], heads, documents.shape[1], width) for heads in (4, 2, 2))
    q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
    return q, k, v


@flex_warns
@pytest.mark.parametrize("kernel", [sdpa_mask, flex])
def test_packed_documents_attend_as_each_does_alone(kernel: Kernel) -> None:
    documents = packed()
    q, k, v = heads_of(documents)
    found = kernel(documents, None)(q, k, v)
    for row, lengths in enumerate(LENGTHS):
        parts = zip(*(tensor[row].split(lengths, dim=1) for tensor in (q, k, v)), strict=True)
        alone = [F.scaled_dot_product_attention(*part, is_causal=True, enable_gqa=True) for part in parts]
        torch.testing.assert_close(found[row], torch.cat(alone, dim=1), atol=2e-6, rtol=1e-5)


@flex_warns
@pytest.mark.parametrize("kernel", [sdpa_mask, flex])
def test_the_content_of_a_document_changes_no_bit_of_another(kernel: Kernel) -> None:
    documents = packed()
    q, k, v = heads_of(documents)
    before = kernel(documents, None)(q, k, v)
    changed = (documents == 2) & (torch.arange(2) == 0)[:, None]
    for tensor in (q, k, v):
        tensor += changed[:, None, :, None] * 1e3
    after = kernel(documents, None)(q, k, v)
    kept = ~changed[:, None, :, None].expand_as(after)
    assert torch.equal(before[kept], after[kept])
    assert not torch.equal(before[~kept], after[~kept])


@flex_warns
def test_a_context_parallel_rank_computes_its_rows_of_the_whole() -> None:
    documents = packed()
    q, k, v = heads_of(documents)
    whole = sdpa_mask(documents)(q, k, v)
    rows = torch.cat((torch.arange(90, 180), torch.arange(270, 360)))
    for kernel in (sdpa_mask, flex):
        torch.testing.assert_close(kernel(documents, rows)(q[:, :, rows], k, v), whole[:, :, rows])


@pytest.mark.parametrize("length", [3 * BLOCK, 2 * BLOCK + 1])
def test_attention_blocks_are_skipped_full_or_masked_according_to_the_mask(length: int) -> None:
    documents = packed(((200, length - 200), (length,)))
    blocks = -(-length // BLOCK)
    padded = F.pad(document_mask(documents)[:, 0], (0, blocks * BLOCK - length, 0, blocks * BLOCK - length))
    seen = padded.unflatten(2, (blocks, BLOCK)).unflatten(1, (blocks, BLOCK)).sum(dim=(2, 4))
    mask = block_mask(documents)
    assert torch.equal(mask.kv_num_blocks[:, 0], ((seen > 0) & (seen < BLOCK * BLOCK)).sum(-1))
    assert mask.full_kv_num_blocks is not None
    assert torch.equal(mask.full_kv_num_blocks[:, 0], (seen == BLOCK * BLOCK).sum(-1))
    assert torch.equal(mask.to_dense()[:, 0], (seen > 0).int())


def test_bounds_are_the_document_starts_the_end_and_the_longest_length() -> None:
    documents = packed()
    begins = [
        row * documents.shape[1] + index
        for row, numbers in enumerate(documents.tolist())
        for index, number in enumerate(numbers)
        if not index or number != numbers[index - 1]
    ]
    found = Bounds.of(documents.numpy())
    assert found.starts.dtype == torch.int32
    assert found.starts.tolist() == begins + [documents.numel()] * (MIN_DOCUMENTS + 1 - len(begins))
    assert found.longest == 360
    assert Bounds.of(packed(((100, 260 - 100, 100),)).numpy()).longest == 256
    assert Bounds.of(packed(((1,) * 360,)).numpy()).longest == 1


def test_bounds_have_few_distinct_shapes_over_batches() -> None:
    counts = [1, 7, MIN_DOCUMENTS, MIN_DOCUMENTS + 1, 30, 2 * MIN_DOCUMENTS]
    found = [Bounds.of(torch.arange(64)[None].clamp(max=count - 1).numpy()).starts for count in counts]
    assert [len(one) - 1 for one in found] == [MIN_DOCUMENTS] * 3 + [2 * MIN_DOCUMENTS] * 3
    assert all(len(one[one < 64]) == count for one, count in zip(found, counts, strict=True))


def by_document(
    q: Tensor, k: Tensor, v: Tensor, begins: Tensor, ends: Tensor, *longest: int, **options: object
) -> Tensor:
    """`varlen_attn` with a causal window according to its documentation: attention within concatenated documents."""
    assert options.keys() == {"window_size", "enable_gqa", "scale"}
    back, ahead = options["window_size"]  # type: ignore[misc]
    assert ahead == 0
    assert begins is ends
    assert min(longest) >= int(begins.diff().max())
    pieces = [tensor.split(begins.diff().tolist()) for tensor in (q, k, v)]
    parts = [[piece.transpose(0, 1) for piece in group] for group in zip(*pieces, strict=True) if len(group[0])]
    whole = []
    for part in parts:
        order = torch.arange(part[0].shape[1])
        behind = order[:, None] - order
        seen = (behind >= 0) & (behind <= (back if back >= 0 else len(order)))
        whole.append(F.scaled_dot_product_attention(*part, seen, scale=options["scale"], enable_gqa=True))  # type: ignore[arg-type]
    return torch.cat([part.transpose(0, 1) for part in whole])


@pytest.mark.parametrize("scores", [PLAIN, Scores(window=20, scale=0.5)])
def test_varlen_packs_and_unpacks_documents(monkeypatch: pytest.MonkeyPatch, scores: Scores) -> None:
    monkeypatch.setattr("tasks.trainer.model.kernels.varlen_attn", by_document)
    documents = packed()
    q, k, v = heads_of(documents)
    wanted = sdpa_mask(documents, scores=scores)(q, k, v)
    for bounds in (None, Bounds.of(documents.numpy())):
        torch.testing.assert_close(varlen(documents, None, bounds, scores)(q, k, v), wanted, atol=2e-6, rtol=1e-5)


def test_varlen_refuses_partial_positions() -> None:
    with pytest.raises(InputError, match="whole sequences"):
        varlen(packed(), torch.arange(4))
    with pytest.raises(InputError, match="no cap of scores"):
        varlen(packed(), scores=Scores(cap=5.0))
    with pytest.raises(InputError, match="has no sinks"):
        varlen(packed())(*heads_of(packed()), torch.zeros(4))


def one_by_one(
    documents: Tensor, q: Tensor, k: Tensor, v: Tensor, scores: Scores, sinks: Tensor | None = None
) -> Tensor:
    """Attention as its definition: a query, a key and a score at a time."""
    out = torch.zeros_like(q)
    for row, head, at in ((0, 0, 0), (0, 1, 203), (0, 2, 290), (1, 3, 5), (1, 0, 359)):
        keys = [key for key in range(at + 1) if documents[row, key] == documents[row, at]]
        keys = [key for key in keys if not scores.window or at - key < scores.window]
        products = torch.stack([q[row, head, at] @ k[row, head // 2, key] for key in keys]) * scores.scale
        capped = scores.cap * torch.tanh(products / scores.cap) if scores.cap else products
        total = capped.exp().sum() + (0 if sinks is None else sinks[head].exp())
        out[row, head, at] = capped.exp() / total @ v[row, head // 2, keys]
    return out


@flex_warns
@pytest.mark.parametrize("kernel", [sdpa_mask, flex])
@pytest.mark.parametrize(
    "scores", [Scores(20, 0.0, 0.5), Scores(0, 1.5, 0.5), Scores(150, 1.5, 0.7), Scores(1, 0.0, 1.0)]
)
@pytest.mark.parametrize("sinks", [None, torch.tensor([-3.0, 0.0, 1.0, 4.0])])
@pytest.mark.parametrize("rows", [None, torch.cat((torch.arange(150), torch.arange(200, 360)))])
def test_windows_capped_scores_and_sinks_follow_their_definition(
    kernel: Kernel, scores: Scores, sinks: Tensor | None, rows: Tensor | None
) -> None:
    documents = packed()
    q, k, v = heads_of(documents)
    wanted = one_by_one(documents, q, k, v, scores, sinks)
    own = torch.arange(360) if rows is None else rows
    found = kernel(documents, rows, None, scores)(q[:, :, own], k, v, sinks)
    for row, head, at in wanted.abs().sum(-1).nonzero().tolist():
        place = int((own == at).nonzero())
        torch.testing.assert_close(found[row, head, place], wanted[row, head, at], atol=2e-6, rtol=1e-5)


@flex_warns
@pytest.mark.parametrize("kernel", [sdpa_mask, flex])
def test_a_compiled_layer_is_reused_for_other_batches(kernel: Kernel) -> None:
    config = ModelConfig(layers=1, dim=32, heads=4, kv_heads=2)
    layer = build(config, 8, 0).layers["0"]
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    x, angles = torch.randn(1, 40, 32), torch.ones(1, 1, 40, 4)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for lengths in ((40,), (13, 27), (1, 2, 3, 34)):
            attend = kernel(packed((lengths,)), None)
            torch.testing.assert_close(
                compiled(x, angles, angles, attend), layer(x, angles, angles, attend), atol=1e-5, rtol=1e-5
            )


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, int], tuple[str, ...]], list[str]]:
    """Fakes a GPU of a capability with some flash attention packages; returns the list of those that are activated."""

    def fake(capability: tuple[int, int], packages: tuple[str, ...]) -> list[str]:
        activated: list[str] = []

        def activate(name: str) -> None:
            if name not in packages:
                raise ImportError(name)
            activated.append(name)

        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        # torch lists what it can use, whether or not the package is installed.
        monkeypatch.setattr(attention_module, "list_flash_attention_impls", lambda: ["FA3", "FA4"])
        monkeypatch.setattr(attention_module, "activate_flash_attention_impl", activate)
        return activated

    return fake


@pytest.fixture
def chosen(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Returns the logged choices of a kernel."""
    compilation._log_once.cache_clear()
    caplog.set_level("INFO", compilation.log.name)
    return lambda: [record.getMessage() for record in caplog.records if record.name == compilation.log.name]


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize(
    ("capability", "packages", "flash"),
    [
        ((8, 0), ("FA3", "FA4"), "FA2"),
        ((8, 9), (), "FA2"),
        ((9, 0), (), "FA2"),
        ((9, 0), ("FA3",), "FA3"),
        ((9, 0), ("FA3", "FA4"), "FA4"),
        ((10, 0), ("FA3",), "FA2"),
        ((10, 0), ("FA4",), "FA4"),
        ((12, 0), ("FA3", "FA4"), "FA2"),
    ],
)
def test_a_gpu_gets_the_newest_flash_attention_that_it_supports_and_that_is_installed(
    gpu: Any, chosen: Callable[[], list[str]], capability: tuple[int, int], packages: tuple[str, ...], flash: str
) -> None:
    activated = gpu(capability, packages)
    for dtype in (BF16, FP16):
        assert best_kernel(torch.device("cuda"), dtype, ModelConfig()) is varlen
    assert set(activated) == {flash} - {"FA2"}
    assert chosen() == [f"attention by varlen with {flash}: on SM {capability[0]}.{capability[1]}"]


@pytest.mark.parametrize(
    ("capability", "dtype", "context", "settings", "reason"),
    [
        ((9, 0), FP32, 1, {}, "flash attention has no float32"),
        ((7, 5), FP16, 1, {}, "flash attention needs SM 8.0, and the GPU has 7.5"),
        ((9, 0), BF16, 2, {}, "2 ranks share a sequence"),
        ((7, 0), FP32, 1, {}, "flash attention has no float32, flash attention needs SM 8.0, and the GPU has 7.0"),
        ((9, 0), BF16, 1, {"attention_sinks": True}, "flash attention of torch has no gradient of sinks"),
    ],
)
def test_a_gpu_gets_flex_where_flash_attention_does_not_apply(
    gpu: Any,
    chosen: Callable[[], list[str]],
    capability: tuple[int, int],
    dtype: torch.dtype,
    context: int,
    settings: dict[str, Any],
    reason: str,
) -> None:
    activated = gpu(capability, ("FA3", "FA4"))
    assert best_kernel(torch.device("cuda"), dtype, ModelConfig(**settings), context) is flex
    assert not activated
    assert chosen() == [f"attention by flex: {reason}"]


def test_cpu_training_uses_the_reference_kernel_and_logs_the_choice_once(chosen: Callable[[], list[str]]) -> None:
    for _ in range(2):
        assert best_kernel(torch.device("cpu"), FP32, ModelConfig()) is sdpa_mask
    assert chosen() == ["attention by sdpa_mask: on a CPU"]


@on_gpu
@pytest.mark.parametrize(
    ("kernel", "heads", "sunk"),
    [(flex, 2, False), (flex, 4, False), (flex, 2, True), (varlen, 2, False), (varlen, 4, False)],
)
def test_gpu_kernels_match_outputs_and_gradients_of_the_reference(kernel: Kernel, heads: int, sunk: bool) -> None:
    documents = packed().cuda()
    q, k, v = (tensor.cuda().bfloat16() for tensor in heads_of(documents, 64))
    inputs = [q, k.repeat_interleave(heads // 2, dim=1), v.repeat_interleave(heads // 2, dim=1)]
    inputs += [torch.tensor([-3.0, 0.0, 1.0, 4.0], device="cuda")] if sunk else []
    weights = torch.randn_like(q)

    def of(kernel: Kernel, dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs]
        out = kernel(documents, None)(*leaves)
        return out, *torch.autograd.grad((out * weights).sum(), leaves)

    wanted = of(sdpa_mask, torch.float32)
    for expected, got in zip(wanted, of(kernel, torch.bfloat16), strict=True):
        assert float((got.float() - expected).norm() / expected.norm()) < 0.02


@on_gpu
def test_a_gpu_never_gets_a_dense_mask() -> None:
    device = torch.device("cuda")
    plain, bf16 = ModelConfig(), torch.bfloat16
    assert best_kernel(device, bf16, plain) is varlen
    assert best_kernel(device, bf16, plain, context=2) is best_kernel(device, torch.float32, plain) is flex
    model = build(ModelConfig(layers=1, dim=128, heads=2, kv_heads=1), 64, 0).to(device, torch.bfloat16)
    model.kernel = best_kernel(device, bf16, plain)
    tokens = torch.zeros(2, 360, dtype=torch.int64, device=device)
    model.loss(tokens, packed().to(device), tokens).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
