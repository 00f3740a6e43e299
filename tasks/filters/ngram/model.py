"""An n-gram model: built from n-grams with probabilities, stored as arrays, scores batches of texts.

Reads and writes a folder with `model.json` and one `order-<n>.npy` per order: hash tables that are mapped into memory,
so that the processes of a machine share them and opening costs nothing.

An n-gram is identified by its slot: the key of w1..wn is the slot of w1..w(n-1) and the slot of wn. So a search for the
n-grams that end at every place of a batch goes order by order, each only at the positions where the order below was
found, without collisions.

The score of a word is the standard recursion of back-off models (the ARPA format's): log10 p(w | c) is the entry of
"c w" if there is one, else the back-off weight of c (0 where c is no entry) plus log10 p(w | c without its first word).
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.core import npy
from tasks.core.errors import InputError
from tasks.filters.ngram import words

Keys = NDArray[np.uint64]

ENTRY = np.dtype([("hash", "<u8"), ("prob", "<f4"), ("back", "<f4")])
"""A slot: hash of the key, log10 of the probability, log10 of the back-off weight."""

_FREE = np.uint64(0xFFFFFFFFFFFFFFFF)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)

UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"

MODEL = "model.json"
_FORMAT = 1


@dataclass(frozen=True)
class Level:
    """The n-grams of one order.

    Attributes:
        rows: int32 of shape (m, n): the words of each, as indices into the vocabulary.
        prob: float32 of shape (m,): log10 of the probability of the last word after the others.
        back: float32 of shape (m,): log10 of the back-off weight as a context; 0 where it is none.
    """

    rows: NDArray[np.int32]
    prob: NDArray[np.float32]
    back: NDArray[np.float32]


@dataclass(frozen=True)
class Ngrams:
    """A vocabulary and the n-grams of each order, from 1 up."""

    words: list[str]
    levels: list[Level]


@dataclass(frozen=True)
class Scores:
    """Scores of texts; every array has the shape (n_texts,).

    Attributes:
        log10: log10 of the probability of its sentences, each with its end.
        words: words of the text.
        sentences: its lines with at least one word.
        unknown: words that are not in the model.
        log10_unknown: their share of `log10`.
    """

    log10: NDArray[np.float64]
    words: NDArray[np.int64]
    sentences: NDArray[np.int64]
    unknown: NDArray[np.int64]
    log10_unknown: NDArray[np.float64]

    @property
    def perplexity(self) -> NDArray[np.float64]:
        """10 ^ (-log10 / (words + sentences)): an end of sentence is predicted as a word is. Infinite without words."""
        return _perplexity(self.log10, self.words + self.sentences)

    @property
    def perplexity_known(self) -> NDArray[np.float64]:
        """The same without the unknown words, whose probability depends only on the size of the vocabulary."""
        return _perplexity(self.log10 - self.log10_unknown, self.words + self.sentences - self.unknown)

    def total(self) -> "Scores":
        """Returns the scores of all texts as one."""
        return Scores(*(getattr(self, name).sum(keepdims=True) for name in self.__dataclass_fields__))


class Twice(Exception):
    """A key was given more than once; `index` is where, the second time."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Table:
    """Some keys with their values: a read-only hash table in one memory-mapped array, with batched look-up.

    Open addressing with linear probing. Entries are placed in the order of their hash, so the same entries give the
    same bytes, and a search ends at the first larger hash. The hash is a bijection of the key, so there are no
    collisions: equal hash means equal key. At 16 bytes per slot and 5 slots for 3 entries a model takes 27 bytes per
    n-gram, about as KenLM's own hash tables (Heafield 2011, "KenLM: Faster and Smaller Language Model Queries").

    Args:
        slots: array of ENTRY, as `build` makes it.
        entries: how many of them are taken.
    """

    def __init__(self, slots: NDArray[np.void], entries: int) -> None:
        self.slots = slots
        self.entries = entries

    @classmethod
    def build(cls, keys: Keys, prob: NDArray[np.float32], back: NDArray[np.float32]) -> "Table":
        """Makes the table of some keys; raises Twice."""
        hashes = _mixed(keys)
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        if (same := np.flatnonzero(hashes[1:] == hashes[:-1])).size:
            raise Twice(int(order[same[0] + 1]))
        count = np.arange(len(keys))
        # An entry is at its home slot, or right after the previous entry where that is taken.
        places = np.maximum.accumulate(_home(hashes, len(keys)) - count) + count
        # Beyond the last home slot: displaced entries, and a free slot that ends every search.
        slots = np.zeros(max(_homes(len(keys)), int(places.max(initial=0)) + 1) + 1, ENTRY)
        slots["hash"] = _FREE
        slots["hash"][places] = hashes
        slots["prob"][places] = prob[order]
        slots["back"][places] = back[order]
        return cls(slots, len(keys))

    def find(self, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.void]]:
        """Looks keys up; returns the slot of each, whether it contains the key, and its entry."""
        hashes = _mixed(keys)
        slots = _home(hashes, self.entries)
        found = np.take(self.slots, slots)
        left = np.flatnonzero(found["hash"] < hashes)
        while left.size:
            slots[left] += 1
            now = np.take(self.slots, slots[left])
            found[left] = now
            left = left[now["hash"] < hashes[left]]
        return slots, found["hash"] == hashes, found


class NgramModel:
    """A back-off model of some order.

    Args:
        tables: the n-grams of each order, from 1 up.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = list(tables)
        slots, known, _ = tables[0].find(words.hash_words([UNKNOWN, BEGIN, END]))
        if not known.all():
            raise ValueError("a model has entries for <unk>, <s> and </s>")
        self._unknown, self._begin, self._end = (int(slot) for slot in slots)

    @property
    def order(self) -> int:
        """The longest n-grams it has."""
        return len(self.tables)

    @classmethod
    def build(cls, ngrams: Ngrams) -> "NgramModel":
        """Makes the tables of `ngrams`; the first and the last n - 1 words of each must be there as well.

        Raises:
            ValueError: an n-gram is there twice.
        """
        first = ngrams.levels[0]
        spelled = words.hash_words(ngrams.words)[first.rows[:, 0]]
        tables = [Table.build(spelled, first.prob, first.back)]
        slot_of = np.full(len(ngrams.words), -1)
        slot_of[first.rows[:, 0]] = tables[0].find(spelled)[0]
        for level in ngrams.levels[1:]:
            context = slot_of[level.rows[:, 0]]
            for place, table in enumerate(tables[1:], start=1):
                context, known, _ = table.find(_keys(context, slot_of[level.rows[:, place]]))
                assert known.all(), "the context of an n-gram is no entry"
            try:
                tables.append(Table.build(_keys(context, slot_of[level.rows[:, -1]]), level.prob, level.back))
            except Twice as twice:
                shown = " ".join(ngrams.words[word] for word in level.rows[twice.index])
                raise ValueError(f'the n-gram "{shown}" is there twice') from None
        return cls(tables)

    def save(self, write: Callable[[str, bytes], None]) -> None:
        """Calls `write` with name and bytes of each of the model's files; the same model gives the same bytes."""
        about = {"format": _FORMAT, "words": words.VERSION, "entries": [table.entries for table in self.tables]}
        for number, table in enumerate(self.tables, start=1):
            write(f"order-{number}.npy", _npy(table.slots))
        write(MODEL, json.dumps(about, sort_keys=True, indent=2).encode() + b"\n")

    @classmethod
    def load(cls, local: Callable[[str], str]) -> "NgramModel":
        """Opens a saved model.

        Args:
            local: gives the local path of one of its files.

        Raises:
            InputError: it was made by another version, which split texts otherwise.
        """
        path = Path(local(MODEL))
        about = json.loads(path.read_text("utf-8"))
        if (about["format"], about["words"]) != (_FORMAT, words.VERSION):
            raise InputError(f"{path} is a model of another version of Sluice", "train it again: train_perplexity")
        slots = [npy.load(local(f"order-{n + 1}.npy"), mapped=True) for n in range(len(about["entries"]))]
        return cls([Table(array.view(np.ndarray), n) for array, n in zip(slots, about["entries"], strict=True)])

    def score(self, texts: Sequence[str]) -> Scores:
        """Scores texts, a block at a time."""
        sums = np.zeros((2, len(texts)))
        counts = np.zeros((3, len(texts)), np.int64)
        for block in words.split(texts):
            log10, unknown = self.score_words(block.hashes, block.sentences)
            starts = block.sentences[:-1] + 2 * np.arange(len(block.owner))
            # One after the other: the sum of a text must not depend on the texts beside it.
            np.add.at(sums[0], block.owner, np.add.reduceat(log10, starts) if len(starts) else 0.0)
            owners = np.repeat(block.owner, np.diff(block.sentences) + 2)
            np.add.at(sums[1], owners[unknown], log10[unknown])
            counts[0] += np.bincount(block.owner, np.diff(block.sentences), len(texts)).astype(np.int64)
            counts[1] += np.bincount(block.owner, minlength=len(texts))
            counts[2] += np.bincount(owners[unknown], minlength=len(texts))
        return Scores(sums[0], counts[0], counts[1], counts[2], sums[1])

    def score_words(
        self, hashes: NDArray[np.uint64], sentences: NDArray[np.int64], *, begin: bool = True, end: bool = True
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Scores every word of some sentences.

        Args:
            hashes: the words, as `words` hashes them.
            sentences: where each sentence begins, and the end of the last.
            begin: whether a sentence starts in the context of its begin mark; else its first word has no context.
            end: whether the end of each sentence is predicted.

        Returns:
            log10 of the probability of each place, with one place more before and after each sentence: 0 before it,
            the end of the sentence after it (0 without `end`). And the places of unknown words.
        """
        slots = np.full(len(hashes) + 2 * (len(sentences) - 1), -1)
        number = np.arange(len(sentences) - 1)
        sizes = np.diff(sentences)
        places = np.arange(len(hashes)) + 2 * np.repeat(number, sizes) + 1
        firsts, lasts = sentences[:-1] + 2 * number, sentences[1:] + 2 * number + 1
        found, known, _ = self.tables[0].find(hashes)
        slots[places] = np.where(known, found, self._unknown)
        slots[firsts] = self._begin if begin else -1
        slots[lasts] = self._end if end else -1
        return self._scored(slots, firsts), places[~known]

    def _scored(self, slots: NDArray[np.int64], firsts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns log10 of each place; `slots` are -1 where there is no word, `firsts` are never predicted."""
        present = slots >= 0
        unigrams = np.take(self.tables[0].slots, np.maximum(slots, 0))
        log10 = unigrams["prob"].astype(np.float64)
        predicted = present.copy()
        predicted[firsts] = False
        # Of the longest n-gram found so far that ends at a place: its slot, and its weight as a context or 0.
        context, back = slots, np.where(present, unigrams["back"], np.float32(0))
        # A longer n-gram can only exist if those without its last and without its first word do.
        places = np.flatnonzero(present[:-1] & predicted[1:]) + 1
        for table in self.tables[1:]:
            found, known, entries = table.find(_keys(context[places - 1], slots[places]))
            # The back-off weight of the context is added to all; where the n-gram exists its probability replaces the
            # sum.
            log10[1:] += back[:-1]
            hits, entries = places[known], entries[known]
            log10[hits] = entries["prob"]
            context, back = np.empty_like(slots), np.zeros_like(back)
            context[hits], back[hits] = found[known], entries["back"]
            ends = np.zeros(len(slots), bool)
            ends[hits] = True
            places = np.flatnonzero(ends[:-1] & ends[1:]) + 1
        log10[~predicted] = 0.0
        return log10


def _perplexity(log10: NDArray[np.float64], predicted: NDArray[np.int64]) -> NDArray[np.float64]:
    mean = np.divide(-log10, predicted, out=np.full(len(log10), np.inf), where=predicted > 0)
    # Values beyond float32 are infinite.
    perplexity: NDArray[np.float64] = np.where(np.isfinite(mean), 10.0 ** np.minimum(mean, 38.0), np.inf)
    return perplexity


def _homes(entries: int) -> int:
    return max(1, entries * 5 // 3)


def _mixed(keys: Keys) -> Keys:
    # Both steps can be undone, so different keys have different hashes; the second moves all bits into the upper half.
    mixed: Keys = (keys ^ (keys >> _HALF)) * _FACTOR
    return mixed


def _home(hashes: Keys, entries: int) -> NDArray[np.int64]:
    """Spreads hashes over the homes without changing their order."""
    return (((hashes >> _HALF) * np.uint64(_homes(entries))) >> _HALF).astype(np.int64)


def _keys(context: NDArray[np.int64], word: NDArray[np.int64]) -> NDArray[np.uint64]:
    keys: NDArray[np.uint64] = ((context << 32) | word).view(np.uint64)
    return keys


def _npy(array: NDArray[np.void]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
