"""A model folder of Hugging Face, made of a checkpoint: what `transformers`, and servers that read its folders, load.

Reads `model.safetensors`, the content of `model.json` and a `tokenizer.json`; makes the files of the folder. Weights
are copied, renamed, byte for byte.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tasks.core.errors import InputError
from tasks.trainer.config import ModelConfig
from tasks.trainer.interchange.huggingface import llama_config, llama_name

CARD, WEIGHTS = "README.md", "model.safetensors"
_HEADER_LENGTH = 8
_PIECE = 1 << 20


def small_files(described: Mapping[str, Any], tokenizer: str, template: str = "") -> dict[str, bytes]:
    """Returns all files but weights and card, by name.

    Args:
        described: content of the checkpoint's `model.json`.
        tokenizer: content of its `tokenizer.json`. The exported one puts end-of-text before every text, as the model
            has read it before every document.
        template: chat template of a model that was fine-tuned (`chat_template`); "": none.

    Raises:
        InputError: the model has a setting that the Llama layout cannot hold.
    """
    model = ModelConfig.model_validate(described["model"])
    eos_id, seq_len = described["eos_id"], described["seq_len"]
    encoder = Tokenizer.from_str(tokenizer)
    eos = encoder.id_to_token(eos_id)
    encoder.post_processor = TemplateProcessing(
        single=f"{eos} $A", pair=f"{eos} $A {eos} $B", special_tokens=[(eos, eos_id)]
    )
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": eos,
        "eos_token": eos,
        "model_max_length": seq_len,
        "clean_up_tokenization_spaces": False,
        **({"chat_template": template} if template else {}),
    }
    contents = {
        "config.json": llama_config(model, described["vocab_size"], seq_len, eos_id),
        "generation_config.json": {"bos_token_id": eos_id, "eos_token_id": eos_id, "do_sample": False},
        "tokenizer_config.json": about,
    }
    files = {name: (json.dumps(content, indent=2) + "\n").encode() for name, content in contents.items()}
    return {**files, "tokenizer.json": encoder.to_str(pretty=True).encode()}


def copy_renamed(source: BinaryIO, target: BinaryIO, rename: Callable[[str], str] = llama_name) -> None:
    """Copies a safetensors file with other names of its tensors, in memory of one piece.

    The format: a little-endian u64, a JSON object of so many bytes, then the data, which offsets in it refer to.

    Raises:
        InputError: the source is no safetensors file, or has a weight that the layout does not know.
    """
    try:
        header = json.loads(source.read(int.from_bytes(source.read(_HEADER_LENGTH), "little")))
        named = {rename(name): place for name, place in header.items() if name != "__metadata__"}
    except (ValueError, MemoryError, OverflowError) as error:
        raise InputError(f"the weights cannot be read ({error})", "run the stage train again") from None
    except KeyError as error:
        raise InputError(f"the Llama layout has no weight {error}", "export a checkpoint of this version") from None
    # Readers of the format in `transformers` ask for the framework; the data begin at a multiple of eight.
    text = json.dumps({"__metadata__": {"format": "pt"}, **named}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target.write(len(text).to_bytes(_HEADER_LENGTH, "little") + text)
    shutil.copyfileobj(source, target, _PIECE)
