"""Checkpoints of torchtitan and nanochat compute what they compute there, and what they have besides is refused."""

import json
import pickle
import re
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.run.import_model import import_model
from tasks.trainer.checkpoints.checkpoint import MODEL
from tasks.trainer.interchange.foreign import convert, foreign_files
from tasks.trainer.model.model_file import load_model
from tasks.trainer.model.transformer import Transformer
from tests.late import transformers
from tests.tasks.trainer.interchange.model_folders import write_folder

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
OF_TITAN = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "model.layers": "layers",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{one}_proj": f"attention.w{one}" for one in "qkvo"},
    **{"mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3"},
}


def imported(folder: Path, tmp_path: Path) -> Transformer:
    """The model of a folder as `import-model` publishes it."""
    checkpoint = import_model(Store(str(tmp_path / "store")), "mine", "one", str(folder)).checkpoint
    return load_model(
        Path(checkpoint.local("model.json")), Path(checkpoint.local(f"checkpoints/step-00000000/{MODEL}"))
    )[0]


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pairs_first(weight: Tensor, heads: int) -> Tensor:
    """Orders the rows of each head so that the two numbers of a rotated pair are adjacent, as in Meta's Llama."""
    rows = []
    for head in weight.chunk(heads):
        first, second = head.chunk(2)
        rows += [row for pair in zip(first, second, strict=True) for row in pair]
    return torch.stack(rows)


def titan(folder: Path, prefix: str = "", **more: Tensor) -> Path:
    """A checkpoint of torchtitan of the Llama in a model folder, whose weights are removed."""
    state = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        heads = 4 if "q_proj" in name else 2
        own = pairs_first(weight, heads) if ".q_proj" in name or ".k_proj" in name else weight
        for theirs, ours in OF_TITAN.items():
            name = name.replace(theirs, ours)
        state[prefix + name] = own
    others = {
        "optimizer.state.output.weight.exp_avg": torch.ones(3),
        "train_state": {"step": 3},
        "dataloader": {"a": 1},
    }
    (folder / "model.safetensors").unlink()
    dcp.save({**state, **others, **more}, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_checkpoint_of_torchtitan_computes_the_same(tmp_path: Path, cached: Path, prefix: str) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {**scaling, "original_max_position_embeddings": 32, "rope_theta": 500_000.0}
    folder = write_folder(tmp_path / "titan", rope_parameters=rope)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours = imported(titan(folder, prefix), tmp_path)
    tokens = torch.randint(ours.vocab_size, (2, 64), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens, torch.zeros_like(tokens)), theirs(tokens).logits, atol=1e-4, rtol=0)
    assert list((cached / "models").iterdir()) == [], "the converted folder is removed"
    assert {".metadata", "__0_0.distcp", "config.json"} <= set(foreign_files(folder))


def test_what_a_llama_of_torchtitan_has_not_is_refused_by_name(tmp_path: Path) -> None:
    folder = titan(write_folder(tmp_path / "moe"), **{"layers.0.moe.router.gate.weight": torch.ones(3)})
    with pytest.raises(InputError, match=r"has layers\.0\.moe\.router\.gate\.weight, which a Llama of torchtitan has"):
        convert(folder, tmp_path)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(InputError, match='model_type = "qwen3" is not llama'):
        convert(folder, tmp_path)


class _Runs:
    """An object whose pickle calls a function."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (eval, ("1/0",))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (pickle.dumps(_Runs()), "builtins.eval"),
        # A module's imports: dataclass() runs the names of the fields of the class that it gets.
        (b"ctorch.distributed.checkpoint.metadata\ndataclass\n.", "torch.distributed.checkpoint.metadata.dataclass"),
        (b"ctorch.distributed.checkpoint.planner\nreduce\n.", "torch.distributed.checkpoint.planner.reduce"),
    ],
)
def test_metadata_that_would_run_code_is_refused(tmp_path: Path, content: bytes, named: str) -> None:
    folder = write_folder(tmp_path / "bad")
    (folder / ".metadata").write_bytes(content)
    with pytest.raises(InputError, match=f"{re.escape(named)}, which is not a part of a checkpoint"):
        convert(folder, tmp_path)


LAYERS, HEADS, KEYS, DIM, VOCABULARY, CONTEXT = 2, 4, 2, 32, 300, 64


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],))


def turned(x: Tensor) -> Tensor:
    """Queries or keys [batch, positions, heads, width], turned as nanochat does."""
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[1]).float(), 10_000 ** -(torch.arange(half) / half))[None, :, None]
    pairs = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), -angles)
    return torch.cat((pairs.real, pairs.imag), dim=-1)


def nanochat_logits(state: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """The model of nanochat of 2025, written from its list of features."""
    x = norm(state["transformer.wte.weight"].float()[tokens])
    for layer in range(LAYERS):
        own = {name.split(".", 3)[3]: w for name, w in state.items() if name.startswith(f"transformer.h.{layer}.")}
        q, k, v = (F.linear(norm(x), own[f"attn.c_{one}.weight"]).unflatten(-1, (-1, DIM // HEADS)) for one in "qkv")
        q, k = norm(turned(q)), norm(turned(k))
        heads = (one.transpose(1, 2) for one in (q, k, v))
        y = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        x = x + F.linear(y.transpose(1, 2).flatten(2), own["attn.c_proj.weight"])
        x = x + F.linear(F.linear(norm(x), own["mlp.c_fc.weight"]).relu() ** 2, own["mlp.c_proj.weight"])
    return 15 * torch.tanh(F.linear(norm(x), state["lm_head.weight"]) / 15)


def nanochat(folder: Path, tensors: dict[str, Tensor] | None = None, **settings: object) -> dict[str, Tensor]:
    """Writes a checkpoint of nanochat; returns its weights."""
    whole = write_folder(folder.parent / "with tokenizer")
    folder.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(whole / name, folder)
    shutil.rmtree(whole)
    width = KEYS * DIM // HEADS
    in_layer = {"attn.c_q": (DIM, DIM), "attn.c_k": (width, DIM), "attn.c_v": (width, DIM), "attn.c_proj": (DIM, DIM)}
    in_layer |= {"mlp.c_fc": (4 * DIM, DIM), "mlp.c_proj": (DIM, 4 * DIM)}
    shapes = {f"transformer.h.{at}.{name}.weight": shape for at in range(LAYERS) for name, shape in in_layer.items()}
    shapes |= {"transformer.wte.weight": (VOCABULARY, DIM), "lm_head.weight": (VOCABULARY, DIM)}
    generator = torch.Generator().manual_seed(1)
    state = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    state["transformer.wte.weight"] = state["transformer.wte.weight"].bfloat16()
    torch.save(
        {f"_orig_mod.{name}": weight for name, weight in {**state, **(tensors or {})}.items()},
        folder / "model_000020.pt",
    )
    stated = {"sequence_len": CONTEXT, "vocab_size": VOCABULARY, "n_layer": LAYERS, "n_head": HEADS, "n_kv_head": KEYS}
    meta = {"step": 20, "model_config": {**stated, "n_embd": DIM, **settings}}
    (folder / "meta_000020.json").write_text(json.dumps(meta))
    (folder / "model_000003.pt").write_bytes(b"an older one")
    (folder / "meta_000003.json").write_text("{}")
    return state


def test_a_checkpoint_of_nanochat_computes_the_same(tmp_path: Path, cached: Path) -> None:
    state = nanochat(tmp_path / "nano")
    ours = imported(tmp_path / "nano", tmp_path)
    tokens = torch.randint(VOCABULARY, (2, CONTEXT), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        found = ours(tokens, torch.zeros_like(tokens))
    assert found.abs().max() > 5, "the cap matters"
    torch.testing.assert_close(found, nanochat_logits(state, tokens), atol=1e-4, rtol=0)
    assert foreign_files(tmp_path / "nano")[:2] == ["meta_000020.json", "model_000020.pt"]


@pytest.mark.parametrize(
    ("tensor", "settings", "said"),
    [
        ("resid_lambdas", {}, "resid_lambdas: factors of the residual stream of a newer nanochat is not supported"),
        ("value_embeds.1.weight", {}, r"value_embeds\.1\.weight: embeddings of values"),
        ("transformer.h.0.attn.new.weight", {}, r"attn\.new\.weight: a feature"),
        ("", {"window_pattern": "SSSL"}, 'window_pattern = "SSSL" of nanochat is not supported'),
    ],
)
def test_newer_features_of_nanochat_are_refused_by_name(
    tmp_path: Path, tensor: str, settings: dict[str, object], said: str
) -> None:
    nanochat(tmp_path / "nano", {tensor: torch.ones(2)} if tensor else {}, **settings)
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match=said):
        convert(tmp_path / "nano", tmp_path / "out")
    (tmp_path / "nano" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"has no tokenizer\.json"):
        convert(tmp_path / "nano", tmp_path / "out")
