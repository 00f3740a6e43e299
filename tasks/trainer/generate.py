"""Text generation: one token after the other, greedy or sampled.

What a token attends to is kept (`decoding`), as long as the whole text is in the context; from there on the last tokens
are read again for every new one.
"""

import torch
from pydantic import Field

from tasks.core.config import Config
from tasks.trainer.decoding import Decoding
from tasks.trainer.model.transformer import Transformer


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
