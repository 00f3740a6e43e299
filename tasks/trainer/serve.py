"""The trained model for other programs: an MLflow pyfunc that continues prompts, and a model of lm-eval.

Both read the folder of a registered model: `model.safetensors`, `model.json`, `tokenizer.json`. MLflow's pyfunc flavour
imports this module by name and calls `_load_pyfunc`; MLflow itself is not imported. lm-eval (EleutherAI's harness,
0.4.13) is the extra `lm-eval`, imported only when a model is opened:

    import lm_eval
    from tasks.trainer.serve import for_lm_eval
    lm_eval.simple_evaluate(for_lm_eval(Path("model")), tasks=["arc_easy"])
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tasks.core.errors import InputError
from tasks.trainer.checkpoints.checkpoint import MODEL
from tasks.trainer.inference import Sampling, Scorer, ScoringRequest, continuation
from tasks.trainer.interchange.huggingface import asked
from tasks.trainer.model import model_file

TOKENIZER = "tokenizer.json"
TEMPLATE = "template"
"""In the `model.json` of a fine-tuned model: the text around messages."""
_MAX_NEW_TOKENS = 256
"""Where a task names none; that of lm-eval."""


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


def _load_pyfunc(path: str) -> TextModel:
    """Called by MLflow with the folder of the model's files."""
    return TextModel(Path(path))


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


def for_lm_eval(folder: Path, batch_tokens: int = 16_384) -> Any:
    """Returns a model as lm-eval takes it, a `TemplateLM`.

    Args:
        folder: contains the three files.
        batch_tokens: tokens per forward pass, padding included.

    Raises:
        InputError: lm-eval is not installed, a file is missing, or they do not belong together.
    """
    try:
        from lm_eval.api.model import TemplateLM
    except ImportError as error:
        raise InputError(f"lm-eval cannot be imported ({error})", "install the extra lm-eval") from None
    loaded = TextModel(folder)
    described = loaded.description
    scorer = Scorer(loaded.model, loaded.tokenizer, described["eos_id"], described["seq_len"], batch_tokens)
    return type("SluiceLM", (_Methods, TemplateLM), {"scorer": scorer})()


class _Methods:
    """What lm-eval leaves to a model, on its `scorer`. A request has `args`: a prompt, and an answer or options."""

    scorer: Scorer

    @property
    def eot_token_id(self) -> int:
        """End-of-text, which also stands before every prompt."""
        return self.scorer.eos_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """Returns the tokens of a text, with end-of-text before them unless `add_special_tokens` is False."""
        before = [] if add_special_tokens is False else [self.scorer.eos_id]
        return [*before, *self.scorer.encode(string)]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        checked = [self.scorer.checked(ScoringRequest(prompt, answer)) for _, prompt, answer in requests]
        found = self.scorer.likelihoods(checked)
        return [(one.log_p, one.greedy) for one in found]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Returns ln p of each whole text, in windows that do not overlap, as lm-eval defines it."""
        return [self._rolling(self.scorer.encode(request.args[0])) for request in requests]

    def _rolling(self, tokens: list[int]) -> float:
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        scorer = self.scorer
        windows = get_rolling_token_windows(tokens, scorer.eos_id, scorer.context, context_len=1)
        return sum(
            one.log_p for one in scorer.likelihoods([ScoringRequest(*make_disjoint_window(one)) for one in windows])
        )

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Returns the greedy continuation of each prompt; raises InputError where a task wants to sample."""
        groups: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for number, request in enumerate(requests):
            options = request.args[1]
            if options.get("do_sample") or options.get("temperature"):
                raise InputError("a task of lm-eval samples", "set its do_sample to false: this model is greedy")
            until = options.get("until") or []
            stop = (until,) if isinstance(until, str) else tuple(until)
            groups.setdefault((options.get("max_gen_toks", _MAX_NEW_TOKENS), stop), []).append(number)
        texts: dict[int, str] = {}
        for (most, stop), numbers in groups.items():
            found = self.scorer.greedy([requests[number].args[0] for number in numbers], most, stop)
            texts |= dict(zip(numbers, found, strict=True))
        return [texts[number] for number in range(len(requests))]
