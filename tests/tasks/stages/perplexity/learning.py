"""Small models for the tests of this folder."""

import random
from collections.abc import Sequence

from tasks.filters.ngram.model import NgramModel
from tasks.stages.perplexity.estimate import EstimatedModel, estimate
from tasks.stages.perplexity.reference import concatenate, to_word_ids

VERSES = [
    "the cat sat on the mat .\nthe dog sat on the log .\na cat and a dog sat .",
    "the mat was on the log\nthe cat saw the dog , and the dog saw the cat",
    "a dog is a dog\na cat is a cat\nthe log was a log",
]


def babble(count: int = 300, seed: int = 1) -> list[str]:
    """Returns lines of words of unequal frequency, each word depending a little on the one before it."""
    draw = random.Random(seed)
    words = [f"w{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(400)]
    texts = []
    for _ in range(count):
        line, at = [], 0
        for _ in range(draw.randint(1, 12)):
            at = (at % 3 + int(draw.paretovariate(0.8))) % len(words)
            line.append(words[at])
        texts.append(" ".join(line))
    return texts


def learnt(
    texts: Sequence[str], order: int = 3, prune: Sequence[int] = (0,) * 6, vocabulary: int = 10_000
) -> EstimatedModel:
    """Learns a model from texts."""
    text = concatenate([to_word_ids(texts)], vocabulary)
    return estimate(text.ids, text.words, order, prune)


def model(texts: Sequence[str], order: int = 3, **more: object) -> NgramModel:
    """Learns a model and loads it for scoring."""
    return NgramModel.build(learnt(texts, order, **more).ngrams)  # type: ignore[arg-type]
