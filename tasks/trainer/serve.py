"""The trained model as an MLflow pyfunc: reads prompts, returns continuations.

MLflow's pyfunc flavour imports this module by name and calls `_load_pyfunc` with a folder that contains
`model.safetensors`, `model.json` and `tokenizer.json`. Does not import MLflow.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tasks.core.errors import InputError
from tasks.trainer.chat_template import asked
from tasks.trainer.checkpoints.checkpoint import MODEL
from tasks.trainer.inference import Sampling, continuation
from tasks.trainer.model import model_file

TOKENIZER = "tokenizer.json"
TEMPLATE = "template"
"""In the `model.json` of a fine-tuned model: the text around messages."""


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
            model_input: a prompt, prompts, or a table with them in the column "prompt", or else in the first column. Of
                a fine-tuned model a prompt may be messages, {role, content} each, in place of a text: it answers them.
            params: fields of `Sampling`.

        Raises:
            InputError: a prompt is messages, and the model has no template for them, or they cannot be read.
        """
        sampling = Sampling(**(params or {}))
        return [self._continue(self._text(prompt), sampling) for prompt in prompts_of(model_input)]

    def _text(self, prompt: Any) -> str:
        if isinstance(prompt, str):
            return prompt
        if TEMPLATE not in self.description:
            raise InputError("the model was not fine-tuned, and answers no messages", "give it the text to continue")
        return asked(self.description[TEMPLATE], prompt)

    def _continue(self, prompt: str, sampling: Sampling) -> str:
        ids = self.tokenizer.encode(prompt, add_special_tokens=False).ids
        more = continuation(self.model, ids, self.description["eos_id"], self.description["seq_len"], sampling)
        return str(self.tokenizer.decode(more))


def prompts_of(model_input: Any) -> list[Any]:
    """Returns the prompts, a text or a list of messages each, in a text, a sequence of them or a data frame."""
    if isinstance(model_input, str):
        return [model_input]
    if hasattr(model_input, "columns"):
        column = "prompt" if "prompt" in model_input.columns else model_input.columns[0]
        model_input = model_input[column]
    rows: Iterable[Any] = model_input
    return [_prompt(row) for row in rows]


def _prompt(row: Any) -> Any:
    """Returns a text or a list of messages."""
    if isinstance(row, dict):
        row = row["messages"] if "messages" in row else row["prompt"]
    if hasattr(row, "tolist"):  # as MLflow's server gives lists
        row = row.tolist()
    return row if isinstance(row, list) else str(row)


def _load_pyfunc(path: str) -> TextModel:
    """Called by MLflow with the folder of the model's files."""
    return TextModel(Path(path))
