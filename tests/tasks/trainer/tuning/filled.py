"""Models of a fine-tuning from the weights of a plain one, by way of a file, as ranks make them. Not a test module."""

import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tasks.trainer.checkpoints.checkpoint import tensors_in
from tasks.trainer.config import LoraConfig, TuningSpec
from tasks.trainer.model.transformer import Transformer
from tasks.trainer.tuning.model import Weights, fill, outline


def stored(base: Transformer, folder: Path) -> Weights:
    """Writes the weights of a model, and returns them as stored tensors."""
    path = folder / "model.safetensors"
    save_file({name: weight.contiguous() for name, weight in base.state_dict().items()}, path)
    return tensors_in([path])


def filled(base: Transformer, lora: LoraConfig | None = None, seed: int = 0, **settings: Any) -> Any:
    """Returns the model of a fine-tuning that starts from a plain model."""
    tuning = TuningSpec(vocab_size=base.vocab_size, eos_id=0, seq_len=64, lora=lora, **{"loss": "sft", **settings})
    model = outline(base.config, tuning).to_empty(device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        fill(model, stored(base, Path(folder)), seed)
    return model
