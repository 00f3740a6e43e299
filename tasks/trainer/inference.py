"""What a trained model writes and finds likely: generation, and log-likelihoods of answers after prompts.

`Decoding` keeps the keys and values of what a model has read: a new token of each row computes its own query, key and
value alone. Shapes of matrix products differ from those of reading the whole row, so hidden states are equal up to
rounding. `continuation` samples or is greedy; `Scorer` computes likelihoods and greedy answers for evaluation tasks.

`Scorer` follows the rules of lm-eval 0.4.13 (`lm_eval/api/model.py`, `lm_eval/models/huggingface.py`), so that the
numbers agree: white space at the end of a prompt is tokenised with the answer; prompt and answer are tokenised together
and split behind as many tokens as the prompt has alone; a prompt that is too long loses its beginning. End-of-text
stands before the prompt, as before every document in training.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from tokenizers import Tokenizer
from torch import Tensor

from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.trainer.model.attention import Attend, sdpa_mask
from tasks.trainer.model.transformer import Transformer, rotary


class Decoding:
    """Some rows that a model has read, and goes on with a token at a time.

    Args:
        model: the whole model, ready to predict.
        rows: tokens of each row, at least one; each row is a document of its own.
        room: tokens that each row may get.
    """

    def __init__(self, model: Transformer, rows: Sequence[Sequence[int]], room: int) -> None:
        self._model = model
        self._lengths = torch.tensor([len(row) for row in rows])
        longest, device = int(self._lengths.max()), model.head_weight.device
        # What pads a row stands behind it, where causal attention does not look; new tokens take its place.
        tokens = torch.tensor([[*row, *[row[-1]] * (longest - len(row))] for row in rows], device=device)
        shape = (len(rows), model.config.kv_heads, longest + room, model.config.head_dim)
        like = model.head_weight.detach()
        self._layers = [_Layer(like.new_zeros(shape), like.new_zeros(shape)) for _ in model.layers]
        attend = sdpa_mask(torch.zeros_like(tokens))
        positions = torch.arange(longest, device=device).expand_as(tokens)
        hidden = self._through(tokens, positions, [partial(_first, layer, attend) for layer in self._layers])
        self.hidden = hidden[torch.arange(len(rows)), self._lengths - 1]
        """Last hidden state of each row, float [rows, dim]."""

    @torch.no_grad()
    def logits(self) -> Tensor:
        """Returns the logits of each row's next token, float32 [rows, vocabulary]."""
        return F.linear(self.hidden, self._model.head_weight).float()

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with some of the rows, in this order."""
        if list(rows) == list(range(len(self._lengths))):
            return
        at = torch.tensor(rows)
        self._lengths, self.hidden = self._lengths[at], self.hidden[at]
        for layer in self._layers:
            layer.k, layer.v = layer.k[at], layer.v[at]

    def append(self, tokens: Sequence[int]) -> None:
        """Reads the next token of each row."""
        device = self.hidden.device
        places = self._lengths.to(device)
        longest = int(self._lengths.max()) + 1
        seen = (torch.arange(longest, device=device) <= places[:, None])[:, None, None, :]
        attends = [partial(_next, layer, places, seen) for layer in self._layers]
        self.hidden = self._through(torch.tensor(tokens, device=device)[:, None], places[:, None], attends)[:, 0]
        self._lengths = self._lengths + 1

    @torch.no_grad()
    def _through(self, tokens: Tensor, positions: Tensor, attends: Sequence[Attend]) -> Tensor:
        """Returns the normalised last hidden state of some tokens, float [rows, tokens, dim]."""
        model = self._model
        assert model.embedding is not None
        assert model.norm is not None
        cos, sin = rotary(positions, model.config)
        x = model.embedding(tokens)
        for layer, attend in zip(model.layers.values(), attends, strict=True):
            x = layer(x, cos, sin, attend)
        out: Tensor = model.norm(x)
        return out


@dataclass
class _Layer:
    """Keys and values of a layer, float [rows, kv_heads, room, head_dim] each."""

    k: Tensor
    v: Tensor


def _first(layer: _Layer, attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """An `Attend` of the whole rows, which keeps their keys and values."""
    layer.k[:, :, : k.shape[2]], layer.v[:, :, : v.shape[2]] = k, v
    return attend(q, k, v)


def _next(layer: _Layer, places: Tensor, seen: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """An `Attend` of one token per row, which keeps its key and value at the row's place.

    Args:
        layer: keys and values so far.
        places: int64 [rows], where the token stands.
        seen: bool [rows, 1, 1, keys], which keys a row has.
        q: queries, float [rows, heads, 1, head_dim].
        k: keys, float [rows, kv_heads, 1, head_dim].
        v: values, likewise.
    """
    rows = torch.arange(len(places), device=places.device)
    layer.k[rows, :, places], layer.v[rows, :, places] = k[:, :, 0], v[:, :, 0]
    keys = seen.shape[-1]
    # The query heads that share a key stand as queries of one head: nothing is repeated.
    shared = q.reshape(len(q), k.shape[1], -1, q.shape[-1])
    found = F.scaled_dot_product_attention(shared, layer.k[:, :, :keys], layer.v[:, :, :keys], attn_mask=seen)
    return found.reshape(q.shape)


class Sampling(Config):
    """How a continuation is chosen."""

    max_tokens: int = Field(default=64, ge=1)
    """Tokens at most; an end-of-text ends it sooner."""
    temperature: float = Field(default=0.0, ge=0)
    """0 takes the likeliest token; 1 samples from the model's own distribution."""
    seed: int = Field(default=0, ge=0)
    """The same prompt and seed give the same text."""


@torch.no_grad()
def continuation(model: Transformer, prompt: list[int], eos_id: int, context: int, sampling: Sampling) -> list[int]:
    """Returns the tokens that follow `prompt`, without end-of-text.

    Args:
        model: the model.
        prompt: token ids; the model reads end-of-text before them, as before every document.
        eos_id: the end-of-text token.
        context: tokens the model reads at most: the last ones.
        sampling: how the next token is chosen.
    """
    generator = torch.Generator().manual_seed(sampling.seed)
    tokens = [eos_id, *prompt]
    read: Decoding | None = None
    for _ in range(sampling.max_tokens):
        if read is None or len(tokens) > context:
            # The first tokens leave the context with every new one, so that all positions change.
            read = Decoding(model, [tokens[-context:]], max(0, context - len(tokens)))
        logits = read.logits()[0]
        if sampling.temperature == 0:
            chosen = int(logits.argmax())
        else:
            shares = torch.softmax(logits / sampling.temperature, dim=-1)
            chosen = int(torch.multinomial(shares, 1, generator=generator))
        if chosen == eos_id:
            break
        tokens.append(chosen)
        if len(tokens) <= context:
            read.append([chosen])
    return tokens[1 + len(prompt) :]


class ScoringRequest(NamedTuple):
    """A prompt, with end-of-text before it, and the answer behind it, as tokens."""

    prompt: list[int]
    answer: list[int]


class Likelihood(NamedTuple):
    """ln p of an answer after its prompt, and whether each of its tokens is the likeliest one at its place."""

    log_p: float
    greedy: bool


@dataclass(frozen=True)
class Scorer:
    """A model with its tokenizer.

    Args:
        model: ready to predict.
        tokenizer: the one the model was trained with.
        eos_id: end-of-text.
        context: tokens the model reads at most.
        batch_tokens: tokens per forward pass, padding included; a longer sequence is a batch of its own.
    """

    model: Transformer
    tokenizer: Tokenizer
    eos_id: int
    context: int
    batch_tokens: int

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text, without end-of-text."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def request(self, prompt: str, answer: str) -> ScoringRequest:
        """Returns the tokens of a prompt and of the answer behind it; raises as `checked` does."""
        kept = prompt.rstrip()
        whole = self.encode(prompt + answer)
        split = len(self.encode(kept)) if kept else 0
        return self.checked(ScoringRequest([self.eos_id, *whole[:split]], whole[split:]))

    def checked(self, request: ScoringRequest) -> ScoringRequest:
        """Returns a request that can be scored; raises InputError where the answer has no or too many tokens."""
        if not request.answer:
            raise InputError("an answer has no token of its own behind the prompt", "put a space between them")
        if len(request.answer) > self.context:
            cause = f"an answer has {len(request.answer)} tokens, and the context {self.context}"
            raise InputError(cause, "leave the row out")
        return request

    @torch.no_grad()
    def likelihoods(self, requests: Sequence[ScoringRequest]) -> list[Likelihood]:
        """Returns the likelihood of the answer of each request (see `checked`)."""
        # One more than the context: the last token is predicted, not read.
        rows = [[*request.prompt, *request.answer][-(self.context + 1) :] for request in requests]
        found: dict[int, Likelihood] = {}
        for batch in row_batches([len(row) - 1 for row in rows], self.batch_tokens):
            hidden = self._hidden([rows[number][:-1] for number in batch])
            for place, number in enumerate(batch):
                row, answer = rows[number], len(requests[number].answer)
                logits = F.linear(hidden[place, len(row) - 1 - answer : len(row) - 1], self.model.head_weight).float()
                labels = torch.tensor(row[-answer:])
                log_p = torch.log_softmax(logits, dim=-1).gather(1, labels[:, None]).double().sum()
                found[number] = Likelihood(float(log_p), bool((logits.argmax(dim=-1) == labels).all()))
        return [found[number] for number in range(len(rows))]

    @torch.no_grad()
    def greedy(self, prompts: Sequence[str], max_new_tokens: int, stop: Sequence[str]) -> list[str]:
        """Returns the likeliest continuation of each prompt, up to end-of-text or the first text of `stop`, without it.

        Raises:
            InputError: `max_new_tokens` leaves no room for a prompt.
        """
        room = self.context - max_new_tokens
        if room < 1:
            cause = f"{max_new_tokens} new tokens leave no room for a prompt in a context of {self.context}"
            raise InputError(cause, "lower max_new_tokens")
        begun = [[self.eos_id, *self.encode(prompt)][-room:] for prompt in prompts]
        found: dict[int, str] = {}
        for batch in row_batches([len(tokens) + max_new_tokens for tokens in begun], self.batch_tokens):
            texts = self._continued([begun[number] for number in batch], max_new_tokens, stop)
            found |= dict(zip(batch, texts, strict=True))
        return [found[number] for number in range(len(begun))]

    def _continued(self, begun: list[list[int]], max_new_tokens: int, stop: Sequence[str]) -> list[str]:
        more, texts = [list[int]() for _ in begun], [""] * len(begun)
        going, read = list(range(len(begun))), Decoding(self.model, begun, max_new_tokens)
        for count in range(1, max_new_tokens + 1):
            still = []
            for place, (row, token) in enumerate(zip(going, read.logits().argmax(dim=-1).tolist(), strict=True)):
                if token == self.eos_id:
                    continue
                more[row].append(token)
                texts[row] = str(self.tokenizer.decode(more[row]))
                if not any(text in texts[row] for text in stop):
                    still.append(place)
            going = [going[place] for place in still]
            if not going or count == max_new_tokens:
                break
            read.keep(still)
            read.append([more[row][-1] for row in going])
        return [_until(text, stop) for text in texts]

    def _hidden(self, rows: list[list[int]]) -> torch.Tensor:
        length = max(map(len, rows))
        # What pads a row stands behind it, where causal attention does not look.
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


def _until(text: str, stop: Sequence[str]) -> str:
    for ending in stop:
        text = text.partition(ending)[0]
    return text
