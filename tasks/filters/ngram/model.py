"""An n-gram model: built from n-grams with probabilities, stored as arrays, scores batches of texts.

Reads and writes a folder with `model.json` and one `order-<n>.npy` per order: memory-mapped hash tables, so that the
processes of a machine share them and opening a model takes no time.

An n-gram is identified by its slot: the key of w1..wn consists of the slot of w1..w(n-1) and the slot of wn, so there
are no collisions. The n-grams that end at each position of a batch are searched order by order, each order only at
positions where the order below has matched.

The score of a word is the recursion of back-off models, as defined by the ARPA format: log10 p(w | c) is that of the
entry "c w" if it exists, else the back-off weight of c (0 if c is not an entry) plus log10 p(w | c without its first
word).
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import InputError
from tasks.core.open_files import load_array
from tasks.filters.ngram import words

Keys = NDArray[np.uint64]

ENTRY = np.dtype([("hash", "<u8"), ("prob", "<f4"), ("back", "<f4")])
"""A slot: hash of the key, log10 of the probability, log10 of the back-off weight. Free slots have the hash `_FREE`."""

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
        rows: int32 of shape (m, n): the words of each n-gram, as indices into the vocabulary.
        prob: float32 of shape (m,): log10 of the probability of the last word after the others.
        back: float32 of shape (m,): log10 of the back-off weight as a context; 0 if it is not a context.
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
        log10: log10 of the probability of all sentences, including their ends.
        words: number of words.
        sentences: number of lines with at least one word.
        unknown: number of words that are not in the model.
        log10_unknown: the part of `log10` that these contribute.
    """

    log10: NDArray[np.float64]
    words: NDArray[np.int64]
    sentences: NDArray[np.int64]
    unknown: NDArray[np.int64]
    log10_unknown: NDArray[np.float64]

    @property
    def perplexity(self) -> NDArray[np.float64]:
        """10 ^ (-log10 / (words + sentences)), since sentence ends are predicted like words; infinite without words."""
        return _perplexity(self.log10, self.words + self.sentences)

    @property
    def perplexity_known(self) -> NDArray[np.float64]:
        """Perplexity without the unknown words, whose probability depends only on the size of the vocabulary."""
        return _perplexity(self.log10 - self.log10_unknown, self.words + self.sentences - self.unknown)

    def total(self) -> "Scores":
        """Returns the sums over all texts; arrays have the shape (1,)."""
        return Scores(*(getattr(self, name).sum(keepdims=True) for name in self.__dataclass_fields__))


class DuplicateKey(Exception):
    """A key occurs more than once; `index` is the index of its second occurrence."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Table:
    """A read-only hash table in one memory-mapped array, with batched lookup.

    Open addressing with linear probing. Entries are in the order of their hash, so the same entries give the same
    bytes, and a search ends at the first larger hash. The hash is a bijection of the key, so equal hashes mean equal
    keys. With 16 bytes per slot and 5 slots for 3 entries, a model takes 27 bytes per n-gram, about the same as KenLM's
    hash tables (Heafield 2011, "KenLM: Faster and Smaller Language Model Queries").

    Args:
        slots: array of ENTRY, as built by `build`.
        entries: number of used slots.
    """

    def __init__(self, slots: NDArray[np.void], entries: int) -> None:
        self.slots = slots
        self.entries = entries

    @classmethod
    def build(cls, keys: Keys, prob: NDArray[np.float32], back: NDArray[np.float32]) -> "Table":
        """Returns the table of keys and their values, arrays of equal length; raises DuplicateKey."""
        hashes = _mixed(keys)
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        if (same := np.flatnonzero(hashes[1:] == hashes[:-1])).size:
            raise DuplicateKey(int(order[same[0] + 1]))
        count = np.arange(len(keys))
        # An entry is in its home slot or, if that is taken, right after the previous entry.
        positions = np.maximum.accumulate(_home(hashes, len(keys)) - count) + count
        # Slots after the last home slot are for displaced entries, and a free slot ends every search.
        slots = np.zeros(max(_homes(len(keys)), int(positions.max(initial=0)) + 1) + 1, ENTRY)
        slots["hash"] = _FREE
        slots["hash"][positions] = hashes
        slots["prob"][positions] = prob[order]
        slots["back"][positions] = back[order]
        return cls(slots, len(keys))

    def find(self, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.void]]:
        """Returns, for each key, the slot where the search ended, whether it contains the key, and its entry."""
        hashes = _mixed(keys)
        slots = _home(hashes, self.entries)
        entries = np.take(self.slots, slots)
        unfinished = np.flatnonzero(entries["hash"] < hashes)
        while unfinished.size:
            slots[unfinished] += 1
            following = np.take(self.slots, slots[unfinished])
            entries[unfinished] = following
            unfinished = unfinished[following["hash"] < hashes[unfinished]]
        return slots, entries["hash"] == hashes, entries


class NgramModel:
    """A back-off model.

    Args:
        tables: the n-grams of each order, from 1 up.

    Raises:
        ValueError: <unk>, <s> or </s> is not an entry.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = list(tables)
        slots, exists, _ = tables[0].find(words.hash_words([UNKNOWN, BEGIN, END]))
        if not exists.all():
            raise ValueError("a model must have entries for <unk>, <s> and </s>")
        self._unknown, self._begin, self._end = (int(slot) for slot in slots)

    @property
    def order(self) -> int:
        """Length of the longest n-grams."""
        return len(self.tables)

    @classmethod
    def build(cls, ngrams: Ngrams) -> "NgramModel":
        """Returns the model of `ngrams`; the first n - 1 and the last n - 1 words of each must be n-grams as well.

        Raises:
            ValueError: an n-gram occurs twice.
        """
        first = ngrams.levels[0]
        spelled = words.hash_words(ngrams.words)[first.rows[:, 0]]
        tables = [Table.build(spelled, first.prob, first.back)]
        slot_of = np.full(len(ngrams.words), -1)
        slot_of[first.rows[:, 0]] = tables[0].find(spelled)[0]
        for level in ngrams.levels[1:]:
            context = slot_of[level.rows[:, 0]]
            for index, table in enumerate(tables[1:], start=1):
                context, exists, _ = table.find(_keys(context, slot_of[level.rows[:, index]]))
                assert exists.all(), "the context of an n-gram is not an entry"
            try:
                tables.append(Table.build(_keys(context, slot_of[level.rows[:, -1]]), level.prob, level.back))
            except DuplicateKey as duplicate:
                ngram = " ".join(ngrams.words[word] for word in level.rows[duplicate.index])
                raise ValueError(f'the n-gram "{ngram}" occurs twice') from None
        return cls(tables)

    def save(self, write: Callable[[str, bytes], None]) -> None:
        """Calls `write` with the name and bytes of each file of the model; the same model gives the same bytes."""
        about = {"format": _FORMAT, "words": words.VERSION, "entries": [table.entries for table in self.tables]}
        for number, table in enumerate(self.tables, start=1):
            write(f"order-{number}.npy", _npy(table.slots))
        write(MODEL, json.dumps(about, sort_keys=True, indent=2).encode() + b"\n")

    @classmethod
    def load(cls, local: Callable[[str], str]) -> "NgramModel":
        """Opens a saved model.

        Args:
            local: returns the local path of a file of the model, given its name.

        Raises:
            InputError: the model is of another version, which split texts differently.
        """
        path = Path(local(MODEL))
        about = json.loads(path.read_text("utf-8"))
        if (about["format"], about["words"]) != (_FORMAT, words.VERSION):
            raise InputError(f"{path} is a model of another version of Sluice", "train it again: train_perplexity")
        slots = [load_array(local(f"order-{n + 1}.npy"), mapped=True) for n in range(len(about["entries"]))]
        return cls([Table(array.view(np.ndarray), n) for array, n in zip(slots, about["entries"], strict=True)])

    def score(self, texts: Sequence[str]) -> Scores:
        """Scores texts, a block at a time."""
        sums = np.zeros((2, len(texts)))
        counts = np.zeros((3, len(texts)), np.int64)
        for block in words.split(texts):
            log10, unknown = self.score_words(block.hashes, block.sentences)
            starts = block.sentences[:-1] + 2 * np.arange(len(block.owner))
            # np.add.at adds in order, so that the sum of a text does not depend on the other texts.
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
            hashes: hashes of the words (`words.hash_words`), shape (n_words,).
            sentences: index of the first word of each sentence, and the number of words, shape (n_sentences + 1,).
            begin: whether the first word of a sentence has the context <s>; else it has none.
            end: whether the end of each sentence is predicted.

        Returns:
            log10 probabilities, shape (n_words + 2 x n_sentences,): before the words of each sentence a 0, after them
            the end of the sentence (0 without `end`). And the indices of unknown words in it.
        """
        slots = np.full(len(hashes) + 2 * (len(sentences) - 1), -1)
        number = np.arange(len(sentences) - 1)
        sizes = np.diff(sentences)
        positions = np.arange(len(hashes)) + 2 * np.repeat(number, sizes) + 1
        firsts, lasts = sentences[:-1] + 2 * number, sentences[1:] + 2 * number + 1
        word_slots, is_known, _ = self.tables[0].find(hashes)
        slots[positions] = np.where(is_known, word_slots, self._unknown)
        slots[firsts] = self._begin if begin else -1
        slots[lasts] = self._end if end else -1
        return self._log10(slots, firsts), positions[~is_known]

    def _log10(self, slots: NDArray[np.int64], firsts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the log10 probability at each position.

        Args:
            slots: slots of the words in the table of 1-grams; -1: no word.
            firsts: positions that are not predicted.
        """
        present = slots >= 0
        unigrams = np.take(self.tables[0].slots, np.maximum(slots, 0))
        log10 = unigrams["prob"].astype(np.float64)
        predicted = present.copy()
        predicted[firsts] = False
        # Slot of the n-gram of the current order that ends at each position, and its back-off weight (0 if none does).
        context, back = slots, np.where(present, unigrams["back"], np.float32(0))
        # A longer n-gram can only exist if those without its last and without its first word do.
        candidates = np.flatnonzero(present[:-1] & predicted[1:]) + 1
        for table in self.tables[1:]:
            ngram_slots, exists, entries = table.find(_keys(context[candidates - 1], slots[candidates]))
            # The back-off weight of the context is added everywhere; if the n-gram exists, its probability replaces the
            # sum.
            log10[1:] += back[:-1]
            hits, entries = candidates[exists], entries[exists]
            log10[hits] = entries["prob"]
            context, back = np.empty_like(slots), np.zeros_like(back)
            context[hits], back[hits] = ngram_slots[exists], entries["back"]
            ends = np.zeros(len(slots), bool)
            ends[hits] = True
            candidates = np.flatnonzero(ends[:-1] & ends[1:]) + 1
        log10[~predicted] = 0.0
        return log10


def _perplexity(log10: NDArray[np.float64], predicted: NDArray[np.int64]) -> NDArray[np.float64]:
    mean = np.divide(-log10, predicted, out=np.full(len(log10), np.inf), where=predicted > 0)
    # Values beyond the range of float32 are infinite.
    perplexity: NDArray[np.float64] = np.where(np.isfinite(mean), 10.0 ** np.minimum(mean, 38.0), np.inf)
    return perplexity


def _homes(entries: int) -> int:
    return max(1, entries * 5 // 3)


def _mixed(keys: Keys) -> Keys:
    # Both steps are invertible, so different keys have different hashes; the second moves all bits to the upper half.
    mixed: Keys = (keys ^ (keys >> _HALF)) * _FACTOR
    return mixed


def _home(hashes: Keys, entries: int) -> NDArray[np.int64]:
    """Returns the home slot of each hash; it increases with the hash."""
    return (((hashes >> _HALF) * np.uint64(_homes(entries))) >> _HALF).astype(np.int64)


def _keys(context: NDArray[np.int64], word: NDArray[np.int64]) -> NDArray[np.uint64]:
    keys: NDArray[np.uint64] = ((context << 32) | word).view(np.uint64)
    return keys


def _npy(array: NDArray[np.void]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
