"""A trained model for lm-eval (EleutherAI's harness, 0.4.13): any task of it runs on a checkpoint.

Reads the folder of a registered model (`model.safetensors`, `model.json`, `tokenizer.json`). Needs the extra `lm-eval`,
which is imported only when a model is opened.

    import lm_eval
    from tasks.trainer.lm_eval_model import for_lm_eval
    lm_eval.simple_evaluate(for_lm_eval(Path("model")), tasks=["arc_easy"])
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.core.errors import InputError
from tasks.trainer.inference import Request, Scorer
from tasks.trainer.serve import TextModel

_MAX_NEW_TOKENS = 256
"""Where a task names none; that of lm-eval."""


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
        checked = [self.scorer.checked(Request(prompt, answer)) for _, prompt, answer in requests]
        found = self.scorer.likelihoods(checked)
        return [(one.log_p, one.greedy) for one in found]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Returns ln p of each whole text, in windows that do not overlap, as lm-eval defines it."""
        return [self._rolling(self.scorer.encode(request.args[0])) for request in requests]

    def _rolling(self, tokens: list[int]) -> float:
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        scorer = self.scorer
        windows = get_rolling_token_windows(tokens, scorer.eos_id, scorer.context, context_len=1)
        return sum(one.log_p for one in scorer.likelihoods([Request(*make_disjoint_window(one)) for one in windows]))

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
