"""Exported models compute the same in `transformers`, and GGUF files have the layout of llama.cpp."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.core.errors import InputError
from tasks.formats.tokens.pieces import IN_LLAMA_CPP
from tasks.stages.tokens import TokenizerConfig
from tasks.stages.tokens.bpe import train
from tasks.trainer.inference import Sampling, continuation
from tasks.trainer.interchange.gguf_file import pairwise, pre_tokenizer_name, write_gguf
from tasks.trainer.interchange.huggingface import llama_config, names_in, small_files
from tasks.trainer.interchange.weights import copy_renamed
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.transformer import Transformer, build
from tests.corpora import Made
from tests.late import transformers

SEQ_LEN, STEPS = 64, 40
LONG = 150
"""Tokens of a long text, several times the positions that the model was trained on."""
PROMPTS = ("The river runs", "café 東京 – don't 123", "import os\n\n\ndef main():\n    ")
SCALINGS: dict[str, Any] = {
    "none": None,
    "linear": {"kind": "linear", "factor": 2.0},
    "llama3": {"kind": "llama3", "factor": 4.0, "original_length": 32},
    "yarn": {"kind": "yarn", "factor": 4.0, "original_length": 32},
}


def model_of(tied: bool, kv_heads: int, scaling: str, vocab_size: int, **others: Any) -> Transformer:
    """Returns a model with only random weights: new models have a head of zeros and norms of ones."""
    settings = {"layers": 3, "dim": 64, "heads": 4, "kv_heads": kv_heads, "tie_embeddings": tied, **others}
    model = build(ModelConfig.model_validate({**settings, "rope_scaling": SCALINGS[scaling]}), vocab_size, 1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.3 * noise if "norm" in name else 0.15 * noise)
    return model.eval()


def exported(folder: Path, model: Transformer, tokenizer: str) -> Path:
    """Writes the folder of a model."""
    (folder / "hf").mkdir(parents=True)
    save_file(model.state_dict(), folder / "ours.safetensors")
    config = model.config.model_dump(mode="json")
    described = {"model": config, "vocab_size": model.vocab_size, "eos_id": 0, "seq_len": SEQ_LEN}
    for name, content in small_files(described, tokenizer).items():
        (folder / "hf" / name).write_bytes(content)
    with (folder / "ours.safetensors").open("rb") as source, (folder / "hf" / "model.safetensors").open("wb") as target:
        copy_renamed(source, target, names_in(model.config))
    return folder / "hf"


@pytest.mark.parametrize(
    ("tied", "kv_heads", "scaling"),
    [(True, 4, "none"), (False, 2, "none"), (False, 1, "linear"), (True, 2, "llama3"), (False, 2, "yarn")],
)
def test_logits_and_greedy_tokens_are_equal(
    made: Made, tmp_path: Path, tied: bool, kv_heads: int, scaling: str
) -> None:
    text = made.tokenizer.read("tokenizer.json").decode()
    vocab_size = len(json.loads(text)["model"]["vocab"])
    ours = model_of(tied, kv_heads, scaling, vocab_size)
    folder = exported(tmp_path, ours, text)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.randint(vocab_size, (2, SEQ_LEN), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        difference = (ours(tokens, torch.zeros_like(tokens)) - theirs(tokens).logits).abs().max()
    assert difference <= 1e-4
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("The river runs", return_tensors="pt").input_ids
    assert prompt[0, 0] == 0, "end-of-text stands before every text"
    written = theirs.generate(prompt, max_new_tokens=STEPS, do_sample=False)[0, prompt.shape[1] :].tolist()
    mine = continuation(ours, prompt[0, 1:].tolist(), 0, SEQ_LEN, Sampling(max_tokens=STEPS))
    assert written[: len(mine)] == mine
    assert len(mine) == STEPS or written[len(mine) :][:1] == [0]
    assert len(set(mine)) > 3, "a text that repeats one token would be equal by chance"


@pytest.mark.parametrize(
    ("tied", "scaling"),
    [
        *((True, "none"), (False, "linear"), (True, "llama3"), (False, "yarn")),
        *(
            pytest.param(tied, scaling, marks=pytest.mark.soak)
            for tied, scaling in ((False, "none"), (True, "linear"), (False, "llama3"), (True, "yarn"))
        ),
    ],
)
def test_long_greedy_texts_are_equal_with_every_setting_changed(
    made: Made, tmp_path: Path, tied: bool, scaling: str
) -> None:
    text = made.tokenizer.read("tokenizer.json").decode()
    vocab_size = len(json.loads(text)["model"]["vocab"])
    others = {"ffn_multiple": 3.5, "rope_theta": 500_000.0, "norm_eps": 1e-3}
    ours = model_of(tied, 2, scaling, vocab_size, **others)
    folder = exported(tmp_path, ours, text)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for prompt in PROMPTS:
        begun = tokenizer(prompt, return_tensors="pt").input_ids
        whole = theirs.generate(begun, min_new_tokens=LONG, max_new_tokens=LONG, do_sample=False)
        with torch.no_grad():
            logits = ours(whole, torch.zeros_like(whole))[0, begun.shape[1] - 1 : -1]
        # Each token is the one that our model finds the most likely behind those before it, so a greedy text of ours
        # is this one; the end of text was forbidden.
        assert logits[:, 1:].argmax(-1).add(1).tolist() == whole[0, begun.shape[1] :].tolist()


def test_the_exported_tokenizer_gives_the_same_tokens(made: Made, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    text = made.tokenizer.read("tokenizer.json").decode()
    folder = exported(tmp_path, model_of(True, 4, "none", len(json.loads(text)["model"]["vocab"])), text)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), Tokenizer.from_str(text)
    # Every byte is a token, so any text has tokens, and models can stop anywhere.
    odd = "".join(map(chr, range(1, 0x300))) + "𝔘🏳️‍🌈\u202e\ufeff\t\r\n \u3000"
    for one in ("Plain words, and 12 numbers.", "  naïve\n\ncafé – 東京", "don't stop", odd):
        ids = theirs(one).input_ids
        assert ids == [0, *ours.encode(one, add_special_tokens=False).ids]
        assert theirs.decode(ids[1:]) == one
        for half in (len(ids) // 2, 1 + len(ids) // 2):
            assert theirs.decode(ids[1:half]) == ours.decode(ids[1:half])


def test_end_of_text_is_one_token_unless_special_tokens_are_split(made: Made, tmp_path: Path) -> None:
    text = made.tokenizer.read("tokenizer.json").decode()
    folder = exported(tmp_path, model_of(True, 4, "none", len(json.loads(text)["model"]["vocab"])), text)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    end = theirs.eos_token
    assert theirs(f"one{end}two").input_ids.count(0) == 2, "before the text, and in it"
    assert theirs(f"one{end}two", split_special_tokens=True).input_ids.count(0) == 1, "a text that quotes it"
    assert theirs.decode(theirs(f"one{end}two").input_ids, skip_special_tokens=True) == "onetwo"
    assert theirs(["a", "b"]).input_ids == [theirs("a").input_ids, theirs("b").input_ids]


def test_a_setting_without_a_llama_equivalent_is_refused_by_name() -> None:
    class Wider(ModelConfig):
        depth: int = 0
        """A setting that is newer than the layouts."""

    assert llama_config(Wider(), 300, SEQ_LEN, 0)["num_hidden_layers"] == 4
    with pytest.raises(InputError, match=r"represents \[train\.model\] depth = 128 together.* cannot represent depth"):
        llama_config(Wider(depth=128), 300, SEQ_LEN, 0)


def test_gguf_has_shape_tokens_and_weights_with_permuted_queries_and_keys(made: Made, tmp_path: Path) -> None:
    text = made.tokenizer.read("tokenizer.json").decode()
    vocabulary = json.loads(text)["model"]["vocab"]
    model = model_of(False, 2, "none", len(vocabulary))
    folder = exported(tmp_path, model, text)
    write_gguf(folder, tmp_path / "model.gguf", "test")
    read = gguf.GGUFReader(tmp_path / "model.gguf")
    assert read.get_field("general.architecture").contents() == "llama"
    assert read.get_field("llama.attention.head_count_kv").contents() == 2
    assert read.get_field("llama.feed_forward_length").contents() == model.config.ffn_dim
    tokens = read.get_field("tokenizer.ggml.tokens").contents()
    assert [vocabulary[token] for token in tokens] == list(range(len(vocabulary)))
    weights = {tensor.name: tensor.data for tensor in read.tensors}
    ours = {name: weight.numpy() for name, weight in load_file(tmp_path / "ours.safetensors").items()}
    assert len(weights) == len(ours)
    np.testing.assert_array_equal(weights["blk.1.ffn_gate.weight"], ours["layers.1.ffn.w1.weight"])
    np.testing.assert_array_equal(weights["output.weight"], ours["head.weight"])
    query = ours["layers.2.attention.wq.weight"]
    half = model.config.head_dim // 2
    # llama.cpp rotates rows 2i and 2i + 1 of a head as a pair, we rotate i and i + half.
    for head, pair in ((0, 0), (1, 3), (3, half - 1)):
        first = head * 2 * half
        np.testing.assert_array_equal(weights["blk.2.attn_q.weight"][first + 2 * pair], query[first + pair])
        np.testing.assert_array_equal(weights["blk.2.attn_q.weight"][first + 2 * pair + 1], query[first + half + pair])
    np.testing.assert_array_equal(weights["blk.2.attn_k.weight"], pairwise(ours["layers.2.attention.wk.weight"], 2))


def test_gguf_refuses_unsupported_settings(made: Made, tmp_path: Path) -> None:
    text = made.tokenizer.read("tokenizer.json").decode()
    folder = exported(tmp_path, model_of(True, 2, "yarn", 300), text)
    with pytest.raises(InputError, match="kind = yarn is not written to GGUF"):
        write_gguf(folder, tmp_path / "a.gguf", "test")
    other = json.loads(text) | {"pre_tokenizer": {"type": "Whitespace"}}
    folder = exported(tmp_path / "b", model_of(True, 2, "none", 300), json.dumps(other))
    with pytest.raises(
        InputError, match=r"the pre-tokenizer differs from those of GPT-2, Qwen 2, Qwen 3\.5 and Llama 3"
    ):
        write_gguf(folder, tmp_path / "b.gguf", "test")
    for number, (settings, said) in enumerate(
        (
            ({"norm_place": "post", "qk_norm": "projection"}, "a model in the layout of olmo2 is not written to GGUF"),
            ({"rope_pattern": "rn"}, "layout of smollm3"),
            ({"window": 8}, "layout of mistral"),
            ({"qk_norm": True, "window": 8}, r"\[train\.model\] window is not written to GGUF"),
        )
    ):
        folder = exported(tmp_path / str(number), model_of(True, 2, "none", 300, **settings), text)
        with pytest.raises(InputError, match=said):
            write_gguf(folder, tmp_path / "c.gguf", "test")


@pytest.mark.parametrize(("setting", "kind"), [("qkv_bias", "qwen2"), ("qk_norm", "qwen3")])
def test_gguf_of_qwen_has_its_vectors_padding_and_rows_as_they_are(
    made: Made, tmp_path: Path, setting: str, kind: str
) -> None:
    text = made.tokenizer.read("tokenizer.json").decode()
    size = len(json.loads(text)["model"]["vocab"])
    model = model_of(True, 2, "linear", size, **{setting: True, "vocab_rows": size + 7, "head_width": 24})
    folder = exported(tmp_path, model, text)
    write_gguf(folder, tmp_path / "model.gguf", "test")
    read = gguf.GGUFReader(tmp_path / "model.gguf")
    assert read.get_field("general.architecture").contents() == kind
    assert read.get_field(f"{kind}.attention.key_length").contents() == 24
    assert read.get_field(f"{kind}.rope.scaling.type").contents() == "linear"
    assert read.get_field("tokenizer.ggml.tokens").contents()[-1] == f"[PAD{size + 6}]"
    weights = {tensor.name: tensor.data for tensor in read.tensors}
    ours = {name: weight.numpy() for name, weight in load_file(tmp_path / "ours.safetensors").items()}
    assert len(weights) == len(ours)
    np.testing.assert_array_equal(weights["blk.2.attn_q.weight"], ours["layers.2.attention.wq.weight"])
    theirs, own = ("attn_k.bias", "wk.bias") if setting == "qkv_bias" else ("attn_k_norm.weight", "k_norm.weight")
    np.testing.assert_array_equal(weights[f"blk.1.{theirs}"], ours[f"layers.1.attention.{own}"])


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


@pytest.mark.parametrize(("whole_words", "name"), [(False, "qwen2"), (False, "qwen35"), (True, "llama-bpe")])
def test_pre_tokenizers_of_qwen_and_llama3_have_their_names_in_llama_cpp(whole_words: bool, name: str) -> None:
    pattern = {"Regex": next(regex for regex, known in IN_LLAMA_CPP.items() if known == name)}
    tokenizer = {
        "normalizer": None if whole_words else {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{**SPLIT, "pattern": pattern}, BYTES]},
        "model": {"ignore_merges": whole_words},
    }
    assert pre_tokenizer_name(tokenizer) == name
    for changed in ({"model": {"ignore_merges": not whole_words}}, {"normalizer": {"type": "NFKC"}}):
        with pytest.raises(InputError, match="the pre-tokenizer differs"):
            pre_tokenizer_name({**tokenizer, **changed})


def test_our_default_tokenizer_has_a_name_in_llama_cpp_and_one_that_it_would_split_otherwise_is_refused() -> None:
    names = {}
    for settings in ({}, {"split": "gpt2"}, {"split": "o200k", "digits": "left"}, {"digits": "left"}):
        made = json.loads(train(["some text"] * 3, TokenizerConfig(vocab_size=260, **settings)).to_str())
        try:
            names[str(settings)] = pre_tokenizer_name(made)
        except InputError as error:
            names[str(settings)] = str(error)
    assert list(names.values())[:2] == ["qwen35", "gpt-2"]
    assert all("splits every text in the same way" in said for said in list(names.values())[2:])
    with pytest.raises(InputError, match="GGUF has no tokenizer of the type Unigram"):
        pre_tokenizer_name({"model": {"type": "Unigram", "vocab": []}})


def test_biases_together_with_norms_of_heads_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"no layout .* qkv_bias = true, qk_norm = true together: that of qwen2 cannot"
    ):
        llama_config(ModelConfig(qkv_bias=True, qk_norm=True), 300, SEQ_LEN, 0)
