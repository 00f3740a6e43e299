"""Small random models of `transformers` with a tokenizer, as folders. Not a test module."""

import json
from pathlib import Path
from typing import Any

import torch

from tasks.stages.tokens import TokenizerConfig
from tasks.stages.tokens.bpe import train
from tests.corpora import corpus
from tests.late import transformers

CONTEXT = 256
CLASSES = {
    family: (f"{name}Config", f"{name.removesuffix('Text')}ForCausalLM")
    for family, name in (
        *(("llama", "Llama"), ("mistral", "Mistral"), ("qwen2", "Qwen2"), ("qwen3", "Qwen3"), ("olmo2", "Olmo2")),
        *(("olmo3", "Olmo3"), ("smollm3", "SmolLM3"), ("gemma2", "Gemma2"), ("gemma3", "Gemma3Text")),
        *(("nanochat", "NanoChat"), ("mixtral", "Mixtral"), ("qwen3_moe", "Qwen3Moe")),
        ("gpt_oss", "GptOss"),
    )
}
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
END = "<|endoftext|>"


def write_folder(
    folder: Path,
    *,
    family: str = "llama",
    dtype: torch.dtype = torch.float32,
    shard_size: str = "1GB",
    **settings: Any,
) -> Path:
    """Writes a folder as `save_pretrained` does; returns it. The weights are random, also those of the norms."""
    folder.mkdir(parents=True)
    tokenizer = train((row["text"] for row in corpus(40)), TokenizerConfig(vocab_size=300))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    config_class, model_class = (getattr(transformers, name) for name in CLASSES[family])
    window = {"sliding_window": None} if family in ("mistral", "mixtral") else {}
    config = config_class(**{**SMALL, "vocab_size": tokenizer.get_vocab_size(), **window, **settings})
    model, generator = model_class(config), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.3 * noise if "norm" in name else 0.15 * noise)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard_size)
    return folder


def change(path: Path, **fields: Any) -> None:
    """Sets fields of a JSON file; None removes a field."""
    content = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
