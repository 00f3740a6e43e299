r"""Files of n-gram models: ARPA files, binary files of KenLM, and those of the stage `train_perplexity`.

ARPA is the text format of back-off models that KenLM, SRILM and others share: a header `\data\` with lines
`ngram <n>=<count>`, one section `\<n>-grams:` per order, `\end\`. The line of an n-gram has the log10 of its
probability, its words, and optionally the log10 of its back-off weight. Files may be compressed (.gz, .zst, .bz2).
Source: SRILM's ngram-format(5). As in KenLM, `<UNK>` means `<unk>`, and without it unknown words have log10
probability -100.

Binary files of KenLM need the package `kenlm` (extra `kenlm`, which pip compiles with a C++ compiler). All formats give
the same scores.
"""

import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.filters.ngram.model import BEGIN, END, MODEL, UNKNOWN, Level, NgramModel, Ngrams, Scores
from tasks.filters.ngram.words import words
from tasks.formats.documents.external_files import codec_of, open_decompressed

_COUNT = re.compile(rb"ngram\s+(\d+)\s*=\s*(\d+)")
_LINES = 100_000
_MOST_ORDERS = 9
_NO_UNKNOWN = -100.0
_ZERO = -99.0  # ARPA's logarithm of zero; some files write -inf

_MIXER = np.uint64(0x9E3779B97F4A7C15)

ABOUT = "about.json"
_ARPA = (".arpa", ".lm")


class TextScorer(Protocol):
    """A language model that scores texts."""

    def score(self, texts: Sequence[str]) -> Scores:
        """Returns the scores of the texts, in order."""


@dataclass(frozen=True)
class PerplexityModel:
    """A language model, and the maximum perplexities of head and middle; None if there are no buckets."""

    scorer: TextScorer
    cuts: tuple[float, float] | None


def load_artifact(artifact: Artifact) -> dict[str, PerplexityModel]:
    """Opens the models of an artifact of kind `perplexity`, by language."""
    languages = sorted(path.partition("/")[0] for path in artifact.files() if path.endswith(f"/{MODEL}"))
    models = {}
    for language in languages:
        head, middle = json.loads(artifact.read(f"{language}/{ABOUT}"))["cuts"]
        model = NgramModel.load(partial(_local, artifact, language))
        models[language] = PerplexityModel(model, (head, middle))
    return models


def load_file(path: str) -> TextScorer:
    """Opens a model file: ARPA by its extension, else KenLM's binary format.

    Raises:
        InputError: the file is missing or damaged, or needs a package that is not installed.
    """
    plain = Path(path).with_suffix("") if codec_of(path) else Path(path)
    if plain.suffix not in _ARPA:
        return KenlmModel(path)
    try:
        return NgramModel.build(read_arpa(path))
    except ValueError as error:
        raise InputError(f"the ARPA file {path} is damaged: {error}", "create it again") from None


class KenlmModel:
    """A binary model, scored by the package `kenlm`."""

    def __init__(self, path: str) -> None:
        if not Path(path).is_file():
            raise InputError(f"there is no model at {path}", "correct the path")
        try:
            kenlm = import_module("kenlm")
        except ImportError:
            raise InputError(
                f"{path} is not named as an ARPA file (.arpa), and kenlm, which reads binary files, is not installed",
                "pip install 'sluice[kenlm]' (needs a C++ compiler), or name the ARPA file of the model",
            ) from None
        try:
            self._model: Any = kenlm.Model(path)
        except OSError as error:
            raise InputError(f"kenlm cannot read {path} ({error})", "create it again with build_binary") from None

    def score(self, texts: Sequence[str]) -> Scores:
        """Scores texts word by word, because KenLM's own sums are in float32, with errors of 1e-3 on long lines."""
        rows = np.zeros((5, len(texts)))
        for number, text in enumerate(texts):
            for sentence in words(text):
                scores = list(self._model.full_scores(" ".join(sentence)))
                unknown = [log10 for log10, _, is_unknown in scores if is_unknown]
                total = sum(log10 for log10, _, _ in scores)
                rows[:, number] += (total, len(sentence), 1, len(unknown), sum(unknown))
        counts = rows[1:4].astype(np.int64)
        return Scores(rows[0], counts[0], counts[1], counts[2], rows[4])


def read_arpa(path: str) -> Ngrams:
    """Reads a model and adds missing n-grams (`add_missing_ngrams`).

    Raises:
        InputError: the file is not a valid ARPA file; the message has the line and the defect.
    """
    try:
        with open_decompressed(path, codec_of(path)) as file:
            return _ArpaReader(path, file).read()
    except (OSError, EOFError) as error:
        raise InputError(
            f"the ARPA file {path} cannot be read ({error})", "correct the path, or fetch it again"
        ) from None


def write_arpa(ngrams: Ngrams, write: Callable[[bytes], object]) -> None:
    """Writes a model with several calls of `write`; numbers have the shortest form that gives the same float32."""
    header = "".join(f"ngram {n}={len(level.prob)}\n" for n, level in enumerate(ngrams.levels, start=1))
    write(f"\\data\\\n{header}".encode())
    words = pa.array(ngrams.words)
    for n, level in enumerate(ngrams.levels, start=1):
        write(f"\n\\{n}-grams:\n".encode())
        for begin in range(0, len(level.prob), _LINES):
            part = slice(begin, begin + _LINES)
            columns = [words.take(pa.array(level.rows[part, column])) for column in range(n)]
            fields = [pa.array(level.prob[part]).cast(pa.string()), pc.binary_join_element_wise(*columns, " ")]
            if n < len(ngrams.levels):
                fields.append(pa.array(level.back[part]).cast(pa.string()))
            lines = pc.binary_join_element_wise(*fields, "\t")
            write("\n".join([*lines.to_pylist(), ""]).encode())
    write(b"\n\\end\\\n")


def add_missing_ngrams(ngrams: Ngrams) -> Ngrams:
    """Returns the model with the missing prefixes and suffixes of its n-grams; scores do not change.

    Programs that prune single n-grams may remove n-grams whose extensions remain, and a search order by order would
    stop there. A missing n-gram is added with the probability of the back-off recursion and the weight 1, as in KenLM.

    Args:
        ngrams: the model; `ngrams.levels[0].rows` is the vocabulary in order.
    """
    levels = list(ngrams.levels)
    missing: dict[int, NDArray[np.int32]] = {}
    # From the highest order down, because an added n-gram may need another one in the order below.
    for n in range(len(levels) - 1, 1, -1):
        above = np.concatenate((levels[n].rows, missing.get(n, levels[n].rows[:0])))
        needed = np.concatenate((above[:, :-1], above[:, 1:]))
        absent = needed[~np.isin(_row_keys(needed), _row_keys(levels[n - 1].rows))]
        if len(absent):
            missing[n - 1] = np.unique(absent, axis=0)
    for n in sorted(missing):
        levels[n] = _add_rows(levels[n], missing[n], levels[n - 1])
    return Ngrams(ngrams.words, levels)


def _add_rows(level: Level, rows: NDArray[np.int32], below: Level) -> Level:
    keys = _row_keys(below.rows)
    order = np.argsort(keys)
    context = order[np.searchsorted(keys, _row_keys(rows[:, :-1]), sorter=order)]
    shorter = order[np.searchsorted(keys, _row_keys(rows[:, 1:]), sorter=order)]
    prob = below.back[context] + below.prob[shorter]
    return Level(
        np.concatenate((level.rows, rows)),
        np.concatenate((level.prob, prob)),
        np.concatenate((level.back, np.zeros(len(rows), np.float32))),
    )


def _row_keys(rows: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Returns a hash of each n-gram; the probability of a collision among ten million n-grams is 3e-6."""
    keys = np.zeros(len(rows), np.uint64)
    for column in range(rows.shape[1]):
        mixed = (keys + rows[:, column].astype(np.uint64) + np.uint64(1)) * _MIXER
        keys = mixed ^ (mixed >> np.uint64(29))
    return keys


class _ArpaReader:
    """Sequential reader of an ARPA file."""

    def __init__(self, path: str, file: io.BufferedReader) -> None:
        self._path = path
        self._lines: Iterator[bytes] = iter(file)
        self._number = 0
        self._words: dict[bytes, int] = {}

    def read(self) -> Ngrams:
        counts, line = self._header()
        levels = []
        for n, count in enumerate(counts, start=1):
            if line != f"\\{n}-grams:".encode():
                raise self._error(f"expected \\{n}-grams:, not {_quoted(line)}")
            levels.append(self._section(n, count, last=n == len(counts)))
            line = self._next()
        if line != b"\\end\\":
            raise self._error(f"expected \\end\\, not {_quoted(line)}")
        return add_missing_ngrams(Ngrams(self._vocabulary(levels), levels))

    def _header(self) -> tuple[list[int], bytes]:
        """Returns the number of n-grams of each order, and the line after the header."""
        line = self._next()
        while line and line != b"\\data\\":
            line = self._next()
        if not line:
            raise self._error("there is no line \\data\\")
        counts: list[int] = []
        while (line := self._next()) and not line.startswith(b"\\"):
            match = _COUNT.fullmatch(line)
            if not match or int(match[1]) != len(counts) + 1:
                raise self._error(f'expected "ngram {len(counts) + 1}=<count>", not {_quoted(line)}')
            counts.append(int(match[2]))
        if not 1 <= len(counts) <= _MOST_ORDERS:
            raise self._error(f"the header lists {len(counts)} orders; 1 to {_MOST_ORDERS} are supported")
        return counts, line

    def _section(self, n: int, count: int, *, last: bool) -> Level:
        columns: tuple[list[Any], ...] = ([np.empty((0, n), np.int32)], [np.empty(0)], [np.empty(0)])
        remaining = count
        while remaining:
            first = self._number + 1
            lines = [line.split() for line in islice(self._lines, min(_LINES, remaining))]
            self._number += len(lines)
            if not lines:
                raise self._error(f"the file ends after {count - remaining:,} of {count:,} {n}-grams")
            sizes = {n + 1} if last else {n + 1, n + 2}
            try:
                parsed = self._parse(lines, n, sizes)
            except (ValueError, LookupError):
                self._number, defect = self._first_defect(lines, n, sizes, first)
                raise self._error(defect) from None
            for chunks, column in zip(columns, parsed, strict=True):
                chunks.append(column)
            remaining -= len(lines)
        rows, prob, back = map(np.concatenate, columns)
        return Level(rows, prob.astype(np.float32), back.astype(np.float32))

    def _parse(self, lines: list[list[bytes]], n: int, sizes: set[int]) -> tuple[Any, Any, Any]:
        """Returns rows, probabilities and weights of some lines; raises ValueError or KeyError if one is invalid."""
        if not sizes.issuperset(map(len, lines)):
            raise ValueError
        words: Iterable[bytes] = chain.from_iterable(fields[1 : n + 1] for fields in lines)
        if n == 1:
            words = [_canonical(word) for word in words]
            new = dict(zip(words, range(len(self._words), len(self._words) + len(words)), strict=True))
            if len(new) < len(words) or new.keys() & self._words.keys():
                raise ValueError
            for word in words:
                word.decode()
            self._words.update(new)
        rows = np.fromiter(map(self._words.__getitem__, map(_canonical, words)), np.int32, n * len(lines))
        prob = np.array([float(fields[0]) for fields in lines])
        back = np.array([float(fields[n + 1]) if len(fields) > n + 1 else 0.0 for fields in lines])
        prob[prob == -np.inf] = _ZERO
        if not ((prob <= 0).all() and np.isfinite(back).all()):
            raise ValueError
        return rows.reshape(-1, n), prob, back

    def _first_defect(self, lines: list[list[bytes]], n: int, sizes: set[int], first: int) -> tuple[int, str]:
        """Returns the number and the defect of the first invalid line; `first` is the number of the first line."""
        expected = " or ".join(map(str, sorted(sizes)))
        unigrams: set[bytes] = set()
        for number, fields in enumerate(lines, start=first):
            if len(fields) not in sizes:
                return number, f"the line of a {n}-gram has {expected} fields, not {_quoted(b' '.join(fields))}"
            for value in (fields[0], *fields[n + 1 :]):
                if not _is_number(value):
                    return number, f"{_quoted(value)} is not a number"
            if float(fields[0]) > 0:
                return number, f"the logarithm of a probability is at most 0, not {_quoted(fields[0])}"
            for word in map(_canonical, fields[1 : n + 1]):
                if n > 1 and word not in self._words:
                    return number, f"the word {_quoted(word)} is no 1-gram of this file"
                if n == 1 and (word in self._words or word in unigrams):
                    return number, f"the word {_quoted(word)} occurs twice"
                if "\ufffd" in word.decode(errors="replace"):
                    return number, f"the word {_quoted(word)} is not UTF-8"
                unigrams.add(word)
        raise AssertionError("one of these lines is invalid")

    def _vocabulary(self, levels: list[Level]) -> list[str]:
        words = [word.decode() for word in self._words]
        for mark in (BEGIN, END):
            if mark not in words:
                raise InputError(f"the ARPA file {self._path} has no 1-gram {mark}", "use a model trained on sentences")
        if UNKNOWN not in words:
            first = levels[0]
            rows = np.append(first.rows, np.array([[len(words)]], np.int32), axis=0)
            levels[0] = Level(
                rows, np.append(first.prob, np.float32(_NO_UNKNOWN)), np.append(first.back, np.float32(0))
            )
            words.append(UNKNOWN)
        return words

    def _next(self) -> bytes:
        """Returns the next line that is not blank, stripped; empty at the end of the file."""
        for line in self._lines:
            self._number += 1
            if stripped := line.strip():
                return stripped
        return b""

    def _error(self, defect: str) -> InputError:
        return InputError(
            f"{self._path}, line {self._number:,}: {defect}", "this ARPA file is invalid: create it again"
        )


def _canonical(word: bytes) -> bytes:
    return b"<unk>" if word == b"<UNK>" else word


def _is_number(value: bytes) -> bool:
    try:
        return not math.isnan(float(value))
    except ValueError:
        return False


def _quoted(line: bytes) -> str:
    text = line.decode(errors="replace")
    return f'"{text[:80]}"' if text else "the end of the file"


def _local(artifact: Artifact, folder: str, name: str) -> str:
    return artifact.local(f"{folder}/{name}")
