"""Greedy generation with kept keys and values, against reading the whole sequence for every token.

    python -m benchmarks.generation [--rounds 3]

Both continue the same prompts of random tokens in one batch, on one thread, by turns, and both are ours: what is
compared is `tasks.trainer.inference` alone. The tokens must be equal. Writes `benchmarks/results/generation.json`: CPU
seconds of both, and their ratio in the median of the rounds, for prompts and continuations of some lengths.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.harness import keep
from tasks.trainer.config import ModelConfig
from tasks.trainer.inference import Decoding
from tasks.trainer.model.transformer import Transformer, build

VOCABULARY, ROWS = 4096, 8
MODELS = {
    "2 M": ModelConfig(layers=4, dim=128, heads=4, kv_heads=2, tie_embeddings=False),
    "28 M": ModelConfig(layers=8, dim=512, heads=8, kv_heads=4, tie_embeddings=False),
}
LENGTHS = ((32, 32), (192, 64), (448, 64))
"""Tokens of a prompt, and of its continuation."""


@torch.no_grad()
def again(model: Transformer, prompts: list[list[int]], more: int) -> list[list[int]]:
    """Returns the prompts with their continuations; reads all of both for every token."""
    rows = [list(prompt) for prompt in prompts]
    for _ in range(more):
        tokens = torch.tensor(rows)
        hidden = model.hidden(tokens, torch.zeros_like(tokens))[:, -1]
        for row, token in zip(rows, F.linear(hidden, model.head_weight).argmax(dim=-1).tolist(), strict=True):
            row.append(token)
    return rows


def kept(model: Transformer, prompts: list[list[int]], more: int) -> list[list[int]]:
    """Returns the same; keeps keys and values."""
    rows = [list(prompt) for prompt in prompts]
    read = Decoding(model, prompts, more)
    for count in range(more):
        chosen = read.logits().argmax(dim=-1).tolist()
        for row, token in zip(rows, chosen, strict=True):
            row.append(token)
        if count + 1 < more:
            read.append(chosen)
    return rows


def seconds(run: Callable[[], list[list[int]]]) -> tuple[float, list[list[int]]]:
    started = time.process_time()
    found = run()
    return time.process_time() - started, found


def measured(model: Transformer, prompt: int, more: int, rounds: int) -> dict[str, Any]:
    """Returns CPU seconds of both and their ratio."""
    draw = torch.Generator().manual_seed(0)
    prompts: list[list[int]] = torch.randint(0, VOCABULARY, (ROWS, prompt), generator=draw).tolist()
    pairs = []
    for _ in range(rounds):
        (slow, one), (fast, two) = (seconds(lambda way=way: way(model, prompts, more)) for way in (again, kept))
        assert one == two, "both write the same"
        pairs.append((slow, fast))
    return {
        "prompt": prompt,
        "new_tokens": more,
        "rows": ROWS,
        "read_again_s": round(median(slow for slow, _ in pairs), 3),
        "kept_s": round(median(fast for _, fast in pairs), 3),
        "ratio": round(median(slow / fast for slow, fast in pairs), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    figures = {}
    for name, config in MODELS.items():
        model = build(config, VOCABULARY, 0).eval()
        with torch.no_grad():  # a head begins at zero, where all tokens are equally likely
            model.head_weight.normal_(generator=torch.Generator().manual_seed(1))
        figures[name] = [measured(model, prompt, more, rounds) for prompt, more in LENGTHS]
    keep("generation", {"parameters": figures})


if __name__ == "__main__":
    main()
