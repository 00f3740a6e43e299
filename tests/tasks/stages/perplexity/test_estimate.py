"""Modified Kneser-Ney: every probability equals that of a second, literal implementation of the formulas."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from tasks.filters.ngram.words import words
from tests.tasks.stages.perplexity.learning import VERSES, babble, learnt

Gram = tuple[str, ...]


def table(ngrams) -> dict[Gram, tuple[float, float]]:
    """Every entry of a model: log10 of probability and of back-off weight."""
    return {
        tuple(ngrams.words[word] for word in row): (float(prob), float(back))
        for level in ngrams.levels
        for row, prob, back in zip(level.rows.tolist(), level.prob, level.back, strict=True)
    }


class Textbook:
    """Interpolated modified Kneser-Ney by Chen & Goodman 1999, implemented literally without optimization."""

    def __init__(self, texts: list[str], order: int, prune: tuple[int, ...] = (0, 0, 0, 0)) -> None:
        sentences = [("<s>", *line, "</s>") for text in texts for line in words(text)]
        self.raw = [
            Counter(s[i : i + n] for s in sentences for i in range(len(s) - n + 1)) for n in range(1, order + 1)
        ]
        self.order = order
        self.kept = [{g for g, c in grams.items() if c > prune[n]} for n, grams in enumerate(self.raw)]
        self.adjusted = [self._adjusted(n) for n in range(1, order + 1)]
        self.discounts = [self._discounts(a) for a in self.adjusted]
        self.after: dict[Gram, dict[str, int]] = defaultdict(dict)
        for grams in self.adjusted:
            for gram, count in grams.items():
                self.after[gram[:-1]][gram[-1]] = count
        self.vocabulary = {g[0] for g in self.raw[0]} - {"<s>"} | {"<unk>"}

    def _adjusted(self, n: int) -> dict[Gram, int]:
        if n == self.order:
            return dict(self.raw[-1])
        before = defaultdict(set)
        for gram in self.raw[n]:
            before[gram[1:]].add(gram[0])
        starts = {gram: count for gram, count in self.raw[n - 1].items() if gram[0] == "<s>" and n > 1}
        return {**{gram: len(firsts) for gram, firsts in before.items()}, **starts}

    @staticmethod
    def _discounts(adjusted: dict[Gram, int]) -> tuple[float, ...]:
        t = Counter(adjusted.values())
        y = t[1] / (t[1] + 2 * t[2])
        return (0.0, 1 - 2 * y * t[2] / t[1], 2 - 3 * y * t[3] / t[2], 3 - 4 * y * t[4] / t[3])

    def weight(self, context: Gram) -> float:
        """b(context): the probability mass that the words after it leave."""
        n, total = len(context), sum(self.after[context].values())
        return 1.0 - sum(
            (count - self.discounts[n][min(count, 3)]) / total
            for word, count in self.after[context].items()
            if (*context, word) in self.kept[n]
        )

    def prob(self, gram: Gram) -> float:
        context, word = gram[:-1], gram[-1]
        below = self.prob(gram[1:]) if context else 1 / len(self.vocabulary)
        if not self.after.get(context):
            return below
        count = self.after[context].get(word, 0)
        total = sum(self.after[context].values())
        own = (count - self.discounts[len(context)][min(count, 3)]) / total if gram in self.kept[len(context)] else 0.0
        return own + self.weight(context) * below


@pytest.mark.parametrize(("order", "prune"), [(2, (0, 0)), (3, (0, 0, 0)), (4, (0, 0, 1, 1)), (3, (0, 1, 2))])
def test_every_probability_and_weight_matches_the_textbook(order: int, prune: tuple[int, ...]) -> None:
    texts = babble()
    made, book = learnt(texts, order, prune), Textbook(texts, order, prune)
    assert not any(made.fallback)
    found = table(made.ngrams)
    assert {gram for kept in book.kept for gram in kept} | {("<unk>",)} == set(found)
    for gram, (prob, back) in found.items():
        if gram != ("<s>",):
            assert prob == pytest.approx(math.log10(book.prob(gram)), abs=2e-6), gram
        if len(gram) < order and book.after.get(gram):
            assert back == pytest.approx(math.log10(book.weight(gram)), abs=2e-6), gram


def test_the_discounts_follow_from_the_counts_of_counts() -> None:
    texts = babble()
    made, book = learnt(texts, 3), Textbook(texts, 3)
    for found, wanted in zip(made.discounts, book.discounts, strict=True):
        assert found == pytest.approx(wanted[1:])


@pytest.mark.parametrize("prune", [(0, 0, 0), (0, 1, 1), (0, 0, 3)])
def test_probabilities_after_any_context_sum_to_one(prune: tuple[int, ...]) -> None:
    found = table(learnt(babble(), 3, prune).ngrams)
    vocabulary = [gram[0] for gram in found if len(gram) == 1 and gram != ("<s>",)]

    def prob(gram: Gram) -> float:
        if gram in found:
            return found[gram][0]
        return found.get(gram[:-1], (0.0, 0.0))[1] + prob(gram[1:])

    contexts = [(), ("<s>",), ("waa",), ("wba", "waa"), ("<s>", "wba"), ("<unk>",), ("waa", "<unk>")]
    for context in contexts:
        assert sum(10 ** prob((*context, word)) for word in vocabulary) == pytest.approx(1, abs=1e-4), context


def test_words_outside_the_vocabulary_give_their_mass_to_no_entry() -> None:
    every, few = learnt(babble(), 3), learnt(babble(), 3, vocabulary=20)
    assert len(few.ngrams.levels[0].prob) == 23
    unknown = [[gram for gram in table(made.ngrams) if "<unk>" in gram] for made in (every, few)]
    assert unknown == [[("<unk>",)], [("<unk>",)]]
    assert sum(10**p for g, (p, _) in table(few.ngrams).items() if len(g) == 1 and g != ("<s>",)) == pytest.approx(1)


def test_the_sentence_begin_is_never_predicted_and_has_a_weight() -> None:
    found = table(learnt(VERSES, 3).ngrams)
    assert found[("<s>",)][0] == -99
    assert found[("<s>",)][1] < 0
    assert not any("<s>" in gram[1:] or "</s>" in gram[:-1] for gram in found)


def test_a_text_too_small_for_its_own_discounts_gets_defaults() -> None:
    made = learnt(["one two three"], 2)
    assert made.fallback == [True, True]
    assert made.discounts[0] == (0.5, 1.0, 1.5)
    assert np.isfinite(made.ngrams.levels[1].prob).all()
