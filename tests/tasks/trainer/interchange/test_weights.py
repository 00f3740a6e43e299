"""Weights are read and written in pieces, in files of a limited size, and never rounded."""

import io
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save, save_file

from tasks.core.errors import InputError
from tasks.trainer.interchange import weights
from tasks.trainer.interchange.huggingface import llama_name
from tasks.trainer.interchange.weights import INDEX, copy_renamed, export_weights, tensors_in, write_fp32

LARGEST = 1 << 20
"""Values of the largest tensor."""


def tensors(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"embedding.weight": (1024, LARGEST // 1024), "layers.0.ffn.w1.weight": (512, 512), "norm.weight": (512,)}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def test_memory_does_not_grow_with_a_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_PIECE", LARGEST // 64)
    save_file(tensors(torch.bfloat16), tmp_path / "theirs.safetensors")
    peaks = []
    tracemalloc.start()
    try:
        with (tmp_path / "ours.safetensors").open("wb") as file:
            write_fp32(dict(tensors_in(tmp_path / "theirs.safetensors")), file)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()
        with (tmp_path / "ours.safetensors").open("rb") as source:
            export_weights(source, tmp_path, llama_name, dict.fromkeys(tensors(), "BF16"))
        peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert max(peaks) < 4 * LARGEST / 8, "of the bytes of the largest tensor"
    found = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(found[llama_name(name)], one) for name, one in tensors(torch.bfloat16).items())


def test_weights_are_rounded_to_bf16_as_torch_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_PIECE", 100)
    halves = torch.tensor([0x3F808000, 0x3F818000, 0x3F818001, 0x3F817FFF], dtype=torch.int32).view(torch.float32)
    given = {"norm.weight": torch.cat((torch.randn(509), halves, -halves))}
    export_weights(io.BytesIO(save(given)), tmp_path, llama_name, {}, dtype="BF16")
    assert torch.equal(load_file(tmp_path / "model.safetensors")["model.norm.weight"], given["norm.weight"].bfloat16())
    too_large = {"norm.weight": torch.full((4,), 3.4e38)}
    with pytest.raises(InputError, match=r"norm\.weight has values that BF16 does not have"):
        export_weights(io.BytesIO(save(too_large)), tmp_path, llama_name, {}, dtype="BF16")


def test_files_are_as_large_as_the_limit_allows_and_the_index_names_every_tensor(tmp_path: Path) -> None:
    source = io.BytesIO(save(tensors()))
    export_weights(source, tmp_path, llama_name, {}, 2 << 20)
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*files, INDEX]
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(one.numel() * 4 for one in tensors().values())
    for name, one in tensors().items():
        file = index["weight_map"][llama_name(name)]
        assert torch.equal(load_file(tmp_path / file)[llama_name(name)], one)
        assert file == files[name != "embedding.weight"], "which is larger than a file"


@pytest.mark.parametrize(("dtype", "value"), [("BF16", 1 + 2**-8), ("F16", 1e6), ("F16", 1 + 2**-11)])
def test_a_value_that_would_be_rounded_is_refused(tmp_path: Path, dtype: str, value: float) -> None:
    source = io.BytesIO(save({"norm.weight": torch.tensor([1.0, value])}))
    with np.errstate(over="ignore"), pytest.raises(InputError, match=rf"norm.weight has values that {dtype} does not"):
        export_weights(source, tmp_path, llama_name, {"norm.weight": dtype})


def test_a_tensor_without_a_name_in_the_layout_and_a_file_that_ends_early_are_refused() -> None:
    with pytest.raises(InputError, match="the Llama layout has no weight 'other'"):
        copy_renamed(io.BytesIO(save({"other": torch.ones(1)})), io.BytesIO(), llama_name)
    whole = save({"norm.weight": torch.ones(8)})
    with pytest.raises(InputError, match="the weights end too early"):
        copy_renamed(io.BytesIO(whole[:-4]), io.BytesIO(), llama_name)
    with pytest.raises(InputError, match="the weights cannot be read"):
        copy_renamed(io.BytesIO(b"version https://git-lfs"), io.BytesIO(), llama_name)
