"""Inference with a trained model: generation, and log-likelihoods of answers given prompts.

`Decoding` is a KV cache: a new token of each row computes only its own query, key and value. The shapes of the matrix
products differ from those of a full forward pass, so hidden states are equal up to rounding. `continuation` samples or
decodes greedily; `Scorer` computes likelihoods and greedy answers for evaluation tasks.

`Scorer` follows the rules of lm-eval 0.4.13 (`lm_eval/api/model.py`, `lm_eval/models/huggingface.py`), so that the
numbers agree: white space at the end of a prompt is tokenized with the answer; prompt and answer are tokenized together
and split after the number of tokens that the prompt has alone; a prompt that is too long is truncated from the left,
which is logged.
A token across the end of the prompt ("=-") stays whole; lm-eval puts the prompt's own last token ("=") in its place.
End-of-text precedes the prompt, as it precedes every document in training; before a prompt of a model from elsewhere
are the tokens that its own tokenizer puts there.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from pydantic import Field
from tokenizers import Tokenizer
from torch import Tensor

from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.trainer.evaluation.items import ScoringRequest, checked, split_request
from tasks.trainer.model.attention import Attend, Scores, masked_attention, sdpa_mask
from tasks.trainer.model.model_file import stop_ids
from tasks.trainer.model.transformer import Transformer, rotary, scores_of

log = logging.getLogger(__name__)


class Decoding:
    """Incremental decoding of a batch of rows, with a KV cache.

    Args:
        model: the whole model, in evaluation mode.
        rows: tokens of each row, at least one; each row is a separate document.
        room: maximum number of tokens that can be appended to each row.
    """

    def __init__(self, model: Transformer, rows: Sequence[Sequence[int]], room: int) -> None:
        self._model = model
        self._lengths = torch.tensor([len(row) for row in rows])
        longest, device = int(self._lengths.max()), model.head_weight.device
        # Padding is at the end of a row, which causal attention ignores; new tokens overwrite it.
        tokens = torch.tensor([[*row, *[row[-1]] * (longest - len(row))] for row in rows], device=device)
        shape = (len(rows), model.config.kv_heads, longest + room, model.config.head_dim)
        like = model.head_weight.detach()
        windows = [model.config.window_of(int(index)) for index in model.layers]
        self._layers = [
            _Layer(like.new_zeros(shape), like.new_zeros(shape), scores_of(model.config, window)) for window in windows
        ]
        documents = torch.zeros_like(tokens)
        attends = {layer.scores: sdpa_mask(documents, scores=layer.scores) for layer in self._layers}
        positions = torch.arange(longest, device=device).expand_as(tokens)
        of_layers = [partial(_attend_rows, layer, attends[layer.scores]) for layer in self._layers]
        hidden = self._forward(tokens, positions, of_layers)
        self.hidden = hidden[torch.arange(len(rows)), self._lengths - 1]
        """Last hidden state of each row, float [rows, dim]."""

    @torch.no_grad()
    def logits(self) -> Tensor:
        """Returns the logits of each row's next token, float32 [rows, vocabulary]."""
        return self._model.logits(self.hidden).float()

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps only some of the rows, in this order."""
        if list(rows) == list(range(len(self._lengths))):
            return
        at = torch.tensor(rows)
        self._lengths, self.hidden = self._lengths[at], self.hidden[at]
        for layer in self._layers:
            layer.k, layer.v = layer.k[at], layer.v[at]

    def append(self, tokens: Sequence[int]) -> None:
        """Appends the next token of each row."""
        device = self.hidden.device
        positions = self._lengths.to(device)
        longest = int(self._lengths.max()) + 1
        attends = [partial(_attend_token, layer, positions, longest) for layer in self._layers]
        self.hidden = self._forward(torch.tensor(tokens, device=device)[:, None], positions[:, None], attends)[:, 0]
        self._lengths = self._lengths + 1

    @torch.no_grad()
    def _forward(self, tokens: Tensor, positions: Tensor, attends: Sequence[Attend]) -> Tensor:
        """Returns the normalized last hidden state of the tokens, float [rows, tokens, dim]."""
        model = self._model
        assert model.norm is not None
        windows = [layer.scores.window for layer in self._layers]
        angles = {window: rotary(positions, model.config, window) for window in set(windows)}
        x = model.embed(tokens)
        for layer, window, attend in zip(model.layers.values(), windows, attends, strict=True):
            x = layer(x, *angles[window], attend)
        out: Tensor = model.norm(x)
        return out


@dataclass
class _Layer:
    """Cached keys and values of a layer, float [rows, kv_heads, capacity, head_dim] each, and how it scores them."""

    k: Tensor
    v: Tensor
    scores: Scores


def _attend_rows(layer: _Layer, attend: Attend, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
    """An `Attend` for the initial rows; caches their keys and values."""
    layer.k[:, :, : k.shape[2]], layer.v[:, :, : v.shape[2]] = k, v
    return attend(q, k, v, sinks)


def _attend_token(
    layer: _Layer, positions: Tensor, keys: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
) -> Tensor:
    """An `Attend` for one token per row; caches its key and value at the token's position.

    Args:
        layer: keys and values so far.
        positions: int64 [rows], position of the token in each row.
        keys: number of keys of the longest row, with those of the token.
        q: queries, float [rows, heads, 1, head_dim].
        k: keys, float [rows, kv_heads, 1, head_dim].
        v: values, likewise.
        sinks: float [heads]; None: none.
    """
    rows = torch.arange(len(positions), device=positions.device)
    layer.k[rows, :, positions], layer.v[rows, :, positions] = k[:, :, 0], v[:, :, 0]
    earlier = positions[:, None] - torch.arange(keys, device=positions.device)
    valid = earlier >= 0
    if layer.scores.window:
        valid &= earlier < layer.scores.window
    # Query heads that share a key head become queries of one head, so that keys need not be repeated.
    shared = q.reshape(len(q), k.shape[1], -1, q.shape[-1])
    k, v = layer.k[:, :, :keys], layer.v[:, :, :keys]
    sinks = None if sinks is None else sinks.view(shared.shape[1:3])
    attended = masked_attention(shared, k, v, valid[:, None, None, :], layer.scores, sinks)
    return attended.reshape(q.shape)


class Sampling(Config):
    """How a continuation is chosen."""

    max_tokens: int = Field(default=64, ge=1)
    """Maximum number of tokens; end-of-text, and what else ends a text of the model, stops earlier."""
    temperature: float = Field(default=0.0, ge=0)
    """0 selects the most likely token; 1 samples from the unscaled distribution of the model."""
    seed: int = Field(default=0, ge=0)
    """The same prompt and seed give the same text."""


@torch.no_grad()
def continuation(
    model: Transformer,
    prompt: list[int],
    eos_id: int,
    context: int,
    sampling: Sampling,
    stop: Collection[int] = (),
    *,
    begun: bool = False,
) -> list[int]:
    """Returns the tokens that follow `prompt`, without the one that stops it.

    Args:
        model: the model.
        prompt: token ids.
        eos_id: the end-of-text token, which stops the continuation.
        context: maximum number of tokens the model reads; the last ones are used (`check_length`).
        sampling: how the next token is chosen.
        stop: further tokens that stop.
        begun: whether the prompt has its own first token, as that of an imported chat template. Otherwise end-of-text
            is put before it, as before every document.
    """
    generator = torch.Generator().manual_seed(sampling.seed)
    tokens = list(prompt) if begun else [eos_id, *prompt]
    given = len(tokens)
    decoding: Decoding | None = None
    for _ in range(sampling.max_tokens):
        if decoding is None or len(tokens) > context:
            # Beyond the context, every new token removes the first one, which shifts all positions.
            decoding = Decoding(model, [tokens[-context:]], max(0, context - len(tokens)))
        logits = decoding.logits()[0]
        if sampling.temperature == 0:
            token = int(logits.argmax())
        else:
            shares = torch.softmax(logits / sampling.temperature, dim=-1)
            token = int(torch.multinomial(shares, 1, generator=generator))
        if token == eos_id or token in stop:
            break
        tokens.append(token)
        if len(tokens) <= context:
            decoding.append([token])
    return tokens[given:]


def check_length(tokens: int, context: int) -> None:
    """Raises InputError if a prompt of this many tokens, with those before it, is longer than the context."""
    if tokens > context:
        raise InputError(f"the prompt has {tokens:,} tokens, and the model reads {context:,}", "shorten the prompt")


class Likelihood(NamedTuple):
    """ln p of an answer given its prompt, and whether greedy decoding produces the answer."""

    log_p: float
    greedy: bool


@dataclass(frozen=True)
class Scorer:
    """A model with its tokenizer.

    Args:
        model: in evaluation mode.
        tokenizer: the one the model was trained with.
        eos_id: end-of-text.
        context: maximum number of tokens the model reads.
        batch_tokens: tokens per forward pass, including padding; a longer sequence is a separate batch.
        start: tokens before a prompt; None: end-of-text. An empty prompt has end-of-text if there are none.
        stop_ids: tokens besides end-of-text that end a generated text.
    """

    model: Transformer
    tokenizer: Tokenizer
    eos_id: int
    context: int
    batch_tokens: int
    start: tuple[int, ...] | None = None
    stop_ids: Collection[int] = ()

    @classmethod
    def of(cls, model: Transformer, described: Mapping[str, Any], tokenizer: Tokenizer, batch_tokens: int) -> "Scorer":
        """Returns the scorer of a model with this content of `model.json`."""
        stop = stop_ids(described)
        return cls(model, tokenizer, described["eos_id"], described["seq_len"], batch_tokens, stop_ids=stop)

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text, without end-of-text."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def request(self, prompt: str, answer: str) -> ScoringRequest:
        """Returns the tokens of a prompt and of the answer that follows it; raises like `items.checked`."""
        request = split_request(self.tokenizer, prompt, answer)
        return checked(request._replace(prompt=self._begun(request.prompt)), self.context)

    def prompt(self, text: str) -> list[int]:
        """Returns the tokens of a prompt, with those before it."""
        return self._begun(self.encode(text))

    def _begun(self, prompt: list[int]) -> list[int]:
        start = (self.eos_id,) if self.start is None else self.start
        return [*start, *prompt] or [self.eos_id]

    def cuts(self, request: ScoringRequest) -> bool:
        """Returns whether a prompt is cut at its beginning, because it and its answer are longer than the context."""
        # The last token of the answer is only predicted.
        return len(request.prompt) + len(request.answer) > self.context + 1

    def _log_cut(self, count: int, of: int) -> None:
        if count:
            text = "%d of %d prompts are longer than the context of %d tokens, and are cut at their beginning"
            log.warning(text, count, of, self.context)

    @torch.no_grad()
    def likelihoods(self, requests: Sequence[ScoringRequest]) -> list[Likelihood]:
        """Returns the likelihood of the answer of each request (see `items.checked`)."""
        self._log_cut(sum(map(self.cuts, requests)), len(requests))
        # One more than the context, because the last token is only predicted.
        rows = [[*request.prompt, *request.answer][-(self.context + 1) :] for request in requests]
        results: dict[int, Likelihood] = {}
        for batch in row_batches([len(row) - 1 for row in rows], self.batch_tokens):
            hidden = self._hidden([rows[number][:-1] for number in batch])
            for index, number in enumerate(batch):
                row, answer = rows[number], len(requests[number].answer)
                logits = self.model.logits(hidden[index, len(row) - 1 - answer : len(row) - 1]).float()
                labels = torch.tensor(row[-answer:])
                log_p = torch.log_softmax(logits, dim=-1).gather(1, labels[:, None]).double().sum()
                results[number] = Likelihood(float(log_p), bool((logits.argmax(dim=-1) == labels).all()))
        return [results[number] for number in range(len(rows))]

    @torch.no_grad()
    def greedy(self, prompts: Sequence[str], max_new_tokens: int, stop: Sequence[str]) -> list[str]:
        """Returns the greedy continuation of each prompt, up to a token or the first text of `stop` that ends it.

        Raises:
            InputError: `max_new_tokens` leaves no room for a prompt.
        """
        room = self.room(max_new_tokens)
        whole = [self.prompt(prompt) for prompt in prompts]
        self._log_cut(sum(len(tokens) > room for tokens in whole), len(whole))
        prefixes = [tokens[-room:] for tokens in whole]
        results: dict[int, str] = {}
        for batch in row_batches([len(tokens) + max_new_tokens for tokens in prefixes], self.batch_tokens):
            texts = self._continue_greedily([prefixes[number] for number in batch], max_new_tokens, stop)
            results |= dict(zip(batch, texts, strict=True))
        return [results[number] for number in range(len(prefixes))]

    def room(self, max_new_tokens: int) -> int:
        """Returns how many tokens of a prompt are read; raises InputError if new tokens leave no room for any."""
        room = self.context - max_new_tokens
        if room < 1:
            cause = f"{max_new_tokens} new tokens leave no room for a prompt in a context of {self.context}"
            raise InputError(cause, "lower max_new_tokens")
        return room

    def _continue_greedily(self, prefixes: list[list[int]], max_new_tokens: int, stop: Sequence[str]) -> list[str]:
        generated, texts = [list[int]() for _ in prefixes], [""] * len(prefixes)
        active, decoding = list(range(len(prefixes))), Decoding(self.model, prefixes, max_new_tokens)
        for count in range(1, max_new_tokens + 1):
            unfinished = []
            for index, (row, token) in enumerate(zip(active, decoding.logits().argmax(dim=-1).tolist(), strict=True)):
                if token == self.eos_id or token in self.stop_ids:
                    continue
                generated[row].append(token)
                texts[row] = str(self.tokenizer.decode(generated[row]))
                if not any(text in texts[row] for text in stop):
                    unfinished.append(index)
            active = [active[index] for index in unfinished]
            if not active or count == max_new_tokens:
                break
            decoding.keep(unfinished)
            decoding.append([generated[row][-1] for row in active])
        return [_truncate(text, stop) for text in texts]

    def _hidden(self, rows: list[list[int]]) -> torch.Tensor:
        length = max(map(len, rows))
        # Padding is at the end of a row, which causal attention ignores.
        tokens = torch.tensor([row + [self.eos_id] * (length - len(row)) for row in rows])
        return self.model.hidden(tokens, torch.zeros_like(tokens))


def row_batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yields batches of row numbers, long rows first, each of at most `tokens` tokens with padding, or of one row.

    >>> list(row_batches([3, 9, 4], 8))
    [[1], [2, 0]]
    """
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _truncate(text: str, stop: Sequence[str]) -> str:
    for ending in stop:
        text = text.partition(ending)[0]
    return text
