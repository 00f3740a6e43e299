"""A trained model for lm-eval (EleutherAI's harness, 0.4.13): any task of it runs on a checkpoint.

Reads the folder of a registered model (`model.safetensors`, `model.json`, `tokenizer.json`). Needs the
extra `lm-eval`; nothing of Sluice imports this module.

    import lm_eval
    from tasks.trainer.lm_eval_model import SluiceLM
    lm_eval.simple_evaluate(SluiceLM(Path("model")), tasks=["arc_easy"])
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from tasks.core.errors import InputError
from tasks.trainer.likelihood import Likelihood, Request, Scorer
from tasks.trainer.serve import TextModel

_MAX_NEW_TOKENS = 256
"""Where a task names none; that of lm-eval."""


class SluiceLM(TemplateLM):  # type: ignore[misc]  # lm-eval has no types
    """The three methods of lm-eval, on a `Scorer`.

    Args:
        folder: contains the three files.
        batch_tokens: tokens per forward pass, padding included.

    Raises:
        InputError: a file is missing, or they do not belong together.
    """

    def __init__(self, folder: Path, batch_tokens: int = 16_384) -> None:
        super().__init__()
        loaded = TextModel(folder)
        described = loaded.description
        self.scorer = Scorer(loaded.model, loaded.tokenizer, described["eos_id"], described["seq_len"], batch_tokens)

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
        found = self.scorer.likelihoods([Request(prompt, answer) for _, prompt, answer in requests])
        return [tuple(one) for one in found]  # type: ignore[misc]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Returns ln p of each whole text, in windows that do not overlap, as lm-eval defines it."""
        return [self._rolling(self.scorer.encode(request.args[0])) for request in requests]

    def _rolling(self, tokens: list[int]) -> float:
        context, eos_id = self.scorer.context, self.scorer.eos_id
        windows = get_rolling_token_windows(tokens, prefix_token=eos_id, max_seq_len=context, context_len=1)
        found: list[Likelihood] = self.scorer.likelihoods([Request(*make_disjoint_window(one)) for one in windows])
        return sum(one.log_p for one in found)

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns the greedy continuation of each prompt; raises InputError where a task wants to sample."""
        groups: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for number, request in enumerate(requests):
            options = request.args[1]
            if options.get("do_sample") or options.get("temperature"):
                raise InputError(
                    f"the task {request.task_name} samples", "set do_sample to false: this model is greedy"
                )
            until = options.get("until") or []
            stop = (until,) if isinstance(until, str) else tuple(until)
            groups.setdefault((options.get("max_gen_toks", _MAX_NEW_TOKENS), stop), []).append(number)
        texts: dict[int, str] = {}
        for (most, stop), numbers in groups.items():
            texts |= zip(numbers, self.scorer.greedy([requests[n].args[0] for n in numbers], most, stop), strict=True)
        return [texts[number] for number in range(len(requests))]
