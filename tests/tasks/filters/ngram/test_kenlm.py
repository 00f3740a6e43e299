"""The scores equal KenLM's on the same ARPA file, if the package kenlm is installed."""

import io
import random
from pathlib import Path

import numpy as np
import pytest

from tasks.filters.ngram.files import KenlmModel, load_file, write_arpa
from tasks.filters.ngram.words import hash_words, words
from tests.tasks.filters.ngram.test_arpa import at
from tests.tasks.stages.perplexity.learning import babble, learnt
from tests.tasks.stages.perplexity.test_stage import texts_of

kenlm = pytest.importorskip(
    "kenlm", reason="kenlm is not installed, so nothing compares our scores with its own: pip install kenlm (needs g++)"
)


def arpa(folder: Path, texts: list[str], order: int = 4, prune: tuple = (0, 0, 1, 1), vocabulary: int = 8000) -> str:
    file = io.BytesIO()
    write_arpa(learnt(texts, order, prune, vocabulary).ngrams, file.write)
    return at(folder, file.getvalue())


def worst_difference(path: str, texts: list[str]) -> float:
    """The largest difference in log10 of any sentence, with and without its begin and end."""
    ours, theirs = load_file(path), kenlm.Model(path)
    worst = 0.0
    for sentence in (sentence for text in texts for sentence in words(text)):
        line, hashes = " ".join(sentence), hash_words(sentence)
        for begin in (True, False):
            for end in (True, False):
                found = ours.score_words(hashes, np.array([0, len(sentence)]), begin=begin, end=end)[0].sum()
                # Word by word, because KenLM sums in float32.
                wanted = sum(log10 for log10, _, _ in theirs.full_scores(line, bos=begin, eos=end))
                worst = max(worst, abs(found - wanted))
                if len(sentence) < 20:
                    assert found == pytest.approx(theirs.score(line, bos=begin, eos=end), abs=1e-4)
    return worst


@pytest.mark.parametrize("order", [2, 3, 5])
def test_every_sentence_scores_as_in_kenlm(tmp_path: Path, order: int) -> None:
    path = arpa(tmp_path, babble(), order, (0, 0, 0, 1, 1))
    texts = [*babble(80, seed=9), "unheard waa unheard unheard", "waa", "unheard"]
    assert worst_difference(path, texts) < 1e-4


def test_real_text_scores_as_in_kenlm(tmp_path: Path, shared_data: Path) -> None:
    texts = texts_of(shared_data, "wiki")
    path = arpa(tmp_path, texts[:1500])
    assert worst_difference(path, [*texts[1500:1600], *texts_of(shared_data, "web")[:5]]) < 1e-4


def test_a_pruned_model_scores_as_in_kenlm(tmp_path: Path) -> None:
    """Removes random bigrams that end a trigram, like programs that prune n-grams individually.

    Bigrams that start a trigram are kept: without them KenLM refuses the file.
    """
    path = Path(arpa(tmp_path, babble(), 3, (0, 0, 0)))
    head, _, rest = path.read_text().partition("\\2-grams:\n")
    section, _, top = rest.partition("\n\n")
    draw = random.Random(3)
    contexts = {tuple(line.split("\t")[1].split()[:2]) for line in top.split("\n") if line.count("\t")}
    bigrams = section.split("\n")
    kept = [line for line in bigrams if tuple(line.split("\t")[1].split()) in contexts or draw.random() < 0.3]
    assert len(kept) < len(bigrams) - 20
    head = head.replace(f"ngram 2={len(bigrams)}", f"ngram 2={len(kept)}")
    path.write_text(f"{head}\\2-grams:\n" + "\n".join(kept) + "\n\n" + top)
    assert worst_difference(str(path), babble(100, seed=9)) < 1e-4


def test_the_annotator_can_use_kenlm(tmp_path: Path, shared_data: Path) -> None:
    texts = texts_of(shared_data, "wiki")
    path = arpa(tmp_path, texts[:500])
    ours, theirs = load_file(path).score(texts[500:540]), KenlmModel(path).score(texts[500:540])
    assert ours.log10 == pytest.approx(theirs.log10, abs=1e-4)
    assert ours.perplexity == pytest.approx(theirs.perplexity, rel=1e-4)
    for name in ("words", "sentences", "unknown"):
        assert (getattr(ours, name) == getattr(theirs, name)).all(), name
