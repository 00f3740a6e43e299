"""Serving of a trained model: an MLflow pyfunc that continues prompts, and a model for lm-eval.

Both read the folder of a registered model: `model.safetensors`, `model.json`, `tokenizer.json`. MLflow's pyfunc flavor
imports this module by name and calls `_load_pyfunc`; MLflow itself is not imported. lm-eval (EleutherAI's harness,
0.4.13) is the extra `lm-eval`, imported only when a model is opened:

    import lm_eval
    from tasks.trainer.serve import for_lm_eval
    lm_eval.simple_evaluate(for_lm_eval(Path("model")), tasks=["arc_easy"])
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tasks.core.errors import InputError
from tasks.trainer.checkpoints.checkpoint import MODEL
from tasks.trainer.evaluation.items import ScoringRequest, checked
from tasks.trainer.inference import Sampling, Scorer, check_length, continuation
from tasks.trainer.interchange.chat_template import JINJA, ChatTemplate
from tasks.trainer.interchange.huggingface import render_prompt
from tasks.trainer.model import model_file

TOKENIZER = "tokenizer.json"
TEMPLATE = "template"
"""Key in the `model.json` of a fine-tuned model: the record of its template (`tasks.stages.finetune.templates`)."""
_MAX_NEW_TOKENS = 256
"""Default for tasks that set none, as in lm-eval."""


class TextModel:
    """A model with its tokenizer.

    Args:
        folder: contains the three files.

    Raises:
        InputError: a file is missing, or they do not belong together.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / TOKENIZER).exists():
            raise InputError(f"{folder} has no {TOKENIZER}", "register the model again")
        self.model, self.description = model_file.load_model(folder / model_file.FILE, folder / MODEL)
        self.tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        record = self.description.get(TEMPLATE, {})
        self._chat: ChatTemplate | None = None
        if JINJA in record:
            self._chat = ChatTemplate(record, (folder / TOKENIZER).read_text(encoding="utf-8"))
        ends = (self.tokenizer.token_to_id(token) for token in record.get("stop", ()))
        self._stop = model_file.stop_ids(self.description).union(token for token in ends if token is not None)

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> list[str]:
        """Returns one continuation per prompt.

        Args:
            model_input: a prompt, a sequence of prompts, or a data frame with prompts in the column "prompt", or else
                in the first column. For a fine-tuned model, a prompt can be a list of messages {role, content} instead
                of a text, or an object with them in "messages" and what its chat template reads besides in "tools" and
                "chat_template_kwargs"; the model generates the response.
            params: fields of `Sampling`. A continuation that outgrows the context goes on from its last tokens.

        Raises:
            InputError: a prompt is longer than the context, or consists of messages and the model has no template, or a
                message is malformed.
        """
        sampling = Sampling(**(params or {}))
        return [self._continue(prompt, sampling) for prompt in prompts_of(model_input)]

    def _continue(self, prompt: Any, sampling: Sampling) -> str:
        eos_id, context = self.description["eos_id"], self.description["seq_len"]
        begun = self._chat is not None and not isinstance(prompt, str)
        if self._chat and begun:
            ids = _chat_prompt(self._chat, prompt)
        else:
            ids = self.tokenizer.encode(self._text(prompt), add_special_tokens=False).ids
        check_length(len(ids) + (not begun), context)
        continued = continuation(self.model, ids, eos_id, context, sampling, self._stop, begun=begun)
        return str(self.tokenizer.decode(continued))

    def _text(self, prompt: Any) -> str:
        if isinstance(prompt, str):
            return prompt
        if TEMPLATE not in self.description:
            raise InputError("the model was not fine-tuned and accepts no messages", "give it the text to continue")
        return render_prompt(self.description[TEMPLATE], prompt["messages"])


def _chat_prompt(chat: ChatTemplate, prompt: Mapping[str, Any]) -> list[int]:
    """Returns the tokens of a prompt; raises InputError if the chat template refuses it."""
    try:
        conversation = chat.read(prompt.get("messages"), prompt.get("tools"), prompt.get("chat_template_kwargs"))
        return chat.encode(chat.render(conversation, prompt=True).text)[0]
    except ValueError as error:
        raise InputError(f"a message cannot be read ({error})", "change the messages") from None


def _load_pyfunc(path: str) -> TextModel:
    """Loads the model; MLflow calls this with the folder of the model's files."""
    return TextModel(Path(path))


def prompts_of(model_input: Any) -> list[Any]:
    """Returns the prompts of a text, a sequence or a data frame; each is a text, or an object with `messages`."""
    if isinstance(model_input, str):
        return [model_input]
    if hasattr(model_input, "columns"):
        column = "prompt" if "prompt" in model_input.columns else model_input.columns[0]
        model_input = model_input[column]
    rows: Iterable[Any] = model_input
    return [_prompt(row) for row in rows]


def _prompt(row: Any) -> Any:
    """Returns a text, or an object with `messages`."""
    row = _plain(row)
    if isinstance(row, dict):
        row = row if "messages" in row else row["prompt"]
    if isinstance(row, list):
        row = {"messages": row}
    return row if isinstance(row, dict) else str(row)


def _plain(value: Any) -> Any:
    """Returns a value with lists instead of arrays, as which MLflow's server passes them."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def for_lm_eval(folder: Path, batch_tokens: int = 16_384) -> Any:
    """Returns a model for lm-eval, a `TemplateLM`.

    Args:
        folder: contains the three files.
        batch_tokens: tokens per forward pass, including padding.

    Raises:
        InputError: lm-eval is not installed, a file is missing, or they do not belong together.
    """
    try:
        from lm_eval.api.model import TemplateLM
    except ImportError as error:
        raise InputError(f"lm-eval cannot be imported ({error})", "install the extra lm-eval") from None
    model = TextModel(folder)
    scorer = Scorer.of(model.model, model.description, model.tokenizer, batch_tokens)
    return type("SluiceLM", (_LmEvalMethods, TemplateLM), {"scorer": scorer})()


class _LmEvalMethods:
    """The methods that lm-eval requires of a model. The `args` of a request are a prompt and an answer or options."""

    scorer: Scorer

    @property
    def eot_token_id(self) -> int:
        """End-of-text, which also precedes every prompt."""
        return self.scorer.eos_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """Returns the tokens of a text, with end-of-text before them unless `add_special_tokens` is False."""
        before = [] if add_special_tokens is False else [self.scorer.eos_id]
        return [*before, *self.scorer.encode(string)]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        context = self.scorer.context
        tokens = [checked(ScoringRequest(prompt, answer), context) for _, prompt, answer in requests]
        return [(likelihood.log_p, likelihood.greedy) for likelihood in self.scorer.likelihoods(tokens)]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Returns ln p of each whole text, in windows that do not overlap, as lm-eval defines it."""
        return [self._rolling(self.scorer.encode(request.args[0])) for request in requests]

    def _rolling(self, tokens: list[int]) -> float:
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        scorer = self.scorer
        windows = get_rolling_token_windows(tokens, scorer.eos_id, scorer.context, context_len=1)
        requests = [ScoringRequest(*make_disjoint_window(window)) for window in windows]
        return sum(likelihood.log_p for likelihood in scorer.likelihoods(requests))

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Returns the greedy continuation of each prompt; raises InputError if a task requires sampling."""
        groups: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for number, request in enumerate(requests):
            options = request.args[1]
            if options.get("do_sample") or options.get("temperature"):
                raise InputError(
                    "a task of lm-eval requires sampling", "set its do_sample to false: this model decodes greedily"
                )
            until = options.get("until") or []
            stop = (until,) if isinstance(until, str) else tuple(until)
            groups.setdefault((options.get("max_gen_toks", _MAX_NEW_TOKENS), stop), []).append(number)
        texts: dict[int, str] = {}
        for (max_new_tokens, stop), numbers in groups.items():
            continuations = self.scorer.greedy([requests[number].args[0] for number in numbers], max_new_tokens, stop)
            texts |= dict(zip(numbers, continuations, strict=True))
        return [texts[number] for number in range(len(requests))]
