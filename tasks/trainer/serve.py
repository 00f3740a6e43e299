"""The trained model as an MLflow pyfunc: reads prompts, returns continuations.

MLflow's pyfunc flavour imports this module by name and calls `_load_pyfunc` with a folder that contains
`model.safetensors`, `model.json` and `tokenizer.json`. Does not import MLflow.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tasks.core.errors import InputError
from tasks.trainer import model_file
from tasks.trainer.checkpoint import MODEL
from tasks.trainer.generate import Sampling, continuation

TOKENIZER = "tokenizer.json"


class TextModel:
    """A model with its tokenizer.

    Args:
        folder: contains the three files.

    Raises:
        InputError: a file is missing, or they do not belong together.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / TOKENIZER).exists():
            raise InputError(f"{folder} holds no {TOKENIZER}", "register the model again")
        self.model, self.description = model_file.load_model(folder / model_file.FILE, folder / MODEL)
        self.tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> list[str]:
        """Returns one continuation per prompt.

        Args:
            model_input: a prompt, prompts, or a table with them in the column "prompt", or else in the first column.
            params: fields of `Sampling`.
        """
        sampling = Sampling(**(params or {}))
        return [self._continue(prompt, sampling) for prompt in prompts_of(model_input)]

    def _continue(self, prompt: str, sampling: Sampling) -> str:
        ids = self.tokenizer.encode(prompt, add_special_tokens=False).ids
        more = continuation(self.model, ids, self.description["eos_id"], self.description["seq_len"], sampling)
        return str(self.tokenizer.decode(more))


def prompts_of(model_input: Any) -> list[str]:
    """Returns the prompts in a text, a sequence of texts or a data frame."""
    if isinstance(model_input, str):
        return [model_input]
    if hasattr(model_input, "columns"):
        column = "prompt" if "prompt" in model_input.columns else model_input.columns[0]
        model_input = model_input[column]
    rows: Iterable[Any] = model_input
    return [row["prompt"] if isinstance(row, dict) else str(row) for row in rows]


def _load_pyfunc(path: str) -> TextModel:
    """Called by MLflow with the folder of the model's files."""
    return TextModel(Path(path))
