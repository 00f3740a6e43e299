"""Scores: the back-off recursion in batches, and the same from a file."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tasks.core.errors import InputError
from tasks.filters.ngram.model import MODEL, NgramModel
from tasks.filters.ngram.words import VERSION, hash_words, words
from tests.tasks.stages.perplexity.learning import VERSES, babble, learnt, model
from tests.tasks.stages.perplexity.test_estimate import table


def recursion(entries: dict, order: int, sentence: list[str], begin: bool, end: bool) -> list[float]:
    """log10 of each word and of the end, by sequential lookups."""
    known = [word if (word,) in entries else "<unk>" for word in sentence]
    line = [*(["<s>"] if begin else []), *known, *(["</s>"] if end else [])]

    def prob(gram: tuple[str, ...]) -> float:
        if gram in entries:
            return entries[gram][0]
        return entries.get(gram[:-1], (0.0, 0.0))[1] + prob(gram[1:])

    return [prob(tuple(line[max(0, at - order + 1) : at + 1])) for at in range(begin, len(line))]


@pytest.mark.parametrize("begin", [True, False])
@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize(("order", "prune"), [(2, (0, 0)), (3, (0, 0, 0)), (4, (0, 0, 1, 1)), (5, (0, 0, 0, 1, 1))])
def test_every_word_scores_as_by_the_recursive_definition(order: int, prune: tuple, begin: bool, end: bool) -> None:
    made = learnt(babble(), order, prune)
    sentences = [line[0] for text in babble(40, seed=2) for line in [words(text + " unheard " + text)]]
    hashes = hash_words([word for sentence in sentences for word in sentence])
    bounds = np.cumsum([0, *map(len, sentences)])
    found, unknown = NgramModel.build(made.ngrams).score_words(hashes, bounds, begin=begin, end=end)
    entries = table(made.ngrams)
    wanted = []
    for sentence in sentences:
        wanted += [0.0, *recursion(entries, order, sentence, begin, end), *([] if end else [0.0])]
    assert found == pytest.approx(wanted, abs=1e-5)
    assert len(unknown) == sum((word,) not in entries for sentence in sentences for word in sentence) >= 40


def test_the_score_of_a_text_does_not_depend_on_its_batch() -> None:
    scorer = model(VERSES)
    texts = ["the cat sat", "", "a log\n\nsaw the dog", "nothing known here", "…", "a" * 300_000 + " cat " * 70_000]
    together = scorer.score(texts)
    for index, text in enumerate(texts):
        alone = scorer.score([text])
        assert alone.log10[0] == together.log10[index]
        assert (alone.words[0], alone.sentences[0], alone.unknown[0]) == (
            together.words[index],
            together.sentences[index],
            together.unknown[index],
        )


def test_the_score_of_a_text_is_the_sum_over_its_words_and_ends_of_lines() -> None:
    made = learnt(VERSES)
    entries = table(made.ngrams)
    text = "the cat saw a zebra\n\na log"
    wanted = sum(sum(recursion(entries, 3, line, begin=True, end=True)) for line in words(text))
    assert NgramModel.build(made.ngrams).score(["mat", text]).log10[1] == pytest.approx(wanted, abs=1e-5)


def test_words_sentences_and_unknown_words_are_counted() -> None:
    found = model(VERSES).score(["the cat sat .\n\nzebra sat", "", "zebra"])
    assert found.words.tolist() == [6, 0, 1]
    assert found.sentences.tolist() == [2, 0, 1]
    assert found.unknown.tolist() == [1, 0, 1]
    assert found.log10_unknown[0] < 0 == found.log10_unknown[1]


def test_perplexity_counts_the_ends_of_lines_and_is_infinite_without_words() -> None:
    found = model(VERSES).score(["the cat sat\nthe dog sat", "\n"])
    assert found.perplexity[0] == pytest.approx(10 ** (-found.log10[0] / 8))
    assert found.perplexity[1] == np.inf
    assert found.total().perplexity[0] == pytest.approx(found.perplexity[0])


def test_memory_does_not_grow_with_the_length_of_a_text() -> None:
    scorer = model(VERSES)
    text = "the cat sat on the mat\n" * 500_000
    scorer.score([text])  # tables that are created once

    def peak(size: int) -> int:
        tracemalloc.start()
        scorer.score([text[:size]])
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    assert peak(10_000_000) - 10_000_000 < 1.2 * peak(1_000_000)


def test_no_texts_have_no_scores() -> None:
    assert model(VERSES).score([]).perplexity.shape == (0,)


def saved(scorer: NgramModel, folder: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    scorer.save(files.__setitem__)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return files


def test_a_saved_model_scores_the_same_and_saves_the_same_bytes(tmp_path: Path) -> None:
    scorer = model(babble(), 4)
    files = saved(scorer, tmp_path)
    assert set(files) == {MODEL, "order-1.npy", "order-2.npy", "order-3.npy", "order-4.npy"}
    again = NgramModel.load(lambda name: str(tmp_path / name))
    texts = babble(50, seed=3)
    assert (again.score(texts).log10 == scorer.score(texts).log10).all()
    assert saved(again, tmp_path) == files


def test_a_model_of_another_version_is_refused(tmp_path: Path) -> None:
    saved(model(VERSES), tmp_path)
    (tmp_path / MODEL).write_text((tmp_path / MODEL).read_text().replace(VERSION, "1"))
    with pytest.raises(InputError, match="another version of Sluice"):
        NgramModel.load(lambda name: str(tmp_path / name))


def test_two_models_of_the_same_text_in_another_order_are_the_same(tmp_path: Path) -> None:
    texts = babble()
    assert saved(model(texts), tmp_path) == saved(model(texts[::-1]), tmp_path)
