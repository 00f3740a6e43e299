r"""Files of n-gram models: ARPA files, KenLM's binary ones, those of the stage `train_perplexity`.

ARPA is the text format of back-off models that KenLM, SRILM and others share: a head `\data\` with `ngram <n>=<count>`
lines, one section `\<n>-grams:` per order, `\end\`. The line of an n-gram has log10 of its probability, its words,
and log10 of its back-off weight, which may be missing. Files may be compressed (.gz, .zst, .bz2). Source: SRILM's
ngram-format(5); `<UNK>` is `<unk>` and a file without it gives unknown words -100, as in KenLM.

A binary file of KenLM's needs the package `kenlm` (extra `kenlm`, a source package: pip needs a C++ compiler for it).
All give the same scores.
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
_ZERO = -99.0  # ARPA's logarithm of zero, for files that write -inf

_MIXER = np.uint64(0x9E3779B97F4A7C15)

ABOUT = "about.json"
_ARPA = (".arpa", ".lm")


class Scorer(Protocol):
    """What gives texts their scores."""

    def score(self, texts: Sequence[str]) -> Scores:
        """Scores texts."""


@dataclass(frozen=True)
class Loaded:
    """A model and the perplexities up to which a document is head and middle; None where not set."""

    scorer: Scorer
    cuts: tuple[float, float] | None


def load_artifact(artifact: Artifact) -> dict[str, Loaded]:
    """Opens the models of an artifact of kind `perplexity`, by language."""
    languages = sorted(path.partition("/")[0] for path in artifact.files() if path.endswith(f"/{MODEL}"))
    found = {}
    for language in languages:
        head, middle = json.loads(artifact.read(f"{language}/{ABOUT}"))["cuts"]
        model = NgramModel.load(partial(_local, artifact, language))
        found[language] = Loaded(model, (head, middle))
    return found


def load_file(path: str) -> Scorer:
    """Opens a model file.

    Raises:
        InputError: it is not there, is damaged, or needs a package that is not installed.
    """
    plain = Path(path).with_suffix("") if codec_of(path) else Path(path)
    if plain.suffix not in _ARPA:
        return KenlmModel(path)
    try:
        return NgramModel.build(read_arpa(path))
    except ValueError as error:
        raise InputError(f"the ARPA file {path} is damaged: {error}", "make it anew") from None


class KenlmModel:
    """A model that KenLM reads."""

    def __init__(self, path: str) -> None:
        if not Path(path).is_file():
            raise InputError(f"no model at {path}", "correct the path")
        try:
            kenlm = import_module("kenlm")
        except ImportError:
            raise InputError(
                f"{path} is no ARPA file by its name (.arpa), and kenlm is not installed to read it as a binary one",
                "pip install 'sluice[kenlm]' (needs a C++ compiler), or name the ARPA file it was made from",
            ) from None
        try:
            self._model: Any = kenlm.Model(path)
        except OSError as error:
            raise InputError(f"kenlm cannot read {path} ({error})", "make it anew with build_binary") from None

    def score(self, texts: Sequence[str]) -> Scores:
        """Scores texts, word by word: KenLM's own sums are in float32, with errors of 1e-3 on long lines."""
        rows = np.zeros((5, len(texts)))
        for number, text in enumerate(texts):
            for sentence in words(text):
                found = list(self._model.full_scores(" ".join(sentence)))
                unknown = [log10 for log10, _, unseen in found if unseen]
                total = sum(log10 for log10, _, _ in found)
                rows[:, number] += (total, len(sentence), 1, len(unknown), sum(unknown))
        counts = rows[1:4].astype(np.int64)
        return Scores(rows[0], counts[0], counts[1], counts[2], rows[4])


def read_arpa(path: str) -> Ngrams:
    """Reads a model and adds the n-grams that it lacks (`closed`).

    Raises:
        InputError: it is not one, or is damaged; names the line and the defect.
    """
    try:
        with open_decompressed(path, codec_of(path)) as file:
            return _Reader(path, file).read()
    except (OSError, EOFError) as error:
        raise InputError(
            f"the ARPA file {path} cannot be read ({error})", "correct the path, or fetch it anew"
        ) from None


def write_arpa(ngrams: Ngrams, write: Callable[[bytes], object]) -> None:
    """Writes a model, piece by piece; numbers are the shortest that read back as the same float32."""
    head = "".join(f"ngram {n}={len(level.prob)}\n" for n, level in enumerate(ngrams.levels, start=1))
    write(f"\\data\\\n{head}".encode())
    words = pa.array(ngrams.words)
    for n, level in enumerate(ngrams.levels, start=1):
        write(f"\n\\{n}-grams:\n".encode())
        for begin in range(0, len(level.prob), _LINES):
            part = slice(begin, begin + _LINES)
            columns = [words.take(pa.array(level.rows[part, place])) for place in range(n)]
            fields = [pa.array(level.prob[part]).cast(pa.string()), pc.binary_join_element_wise(*columns, " ")]
            if n < len(ngrams.levels):
                fields.append(pa.array(level.back[part]).cast(pa.string()))
            lines = pc.binary_join_element_wise(*fields, "\t")
            write("\n".join([*lines.to_pylist(), ""]).encode())
    write(b"\n\\end\\\n")


def closed(ngrams: Ngrams) -> Ngrams:
    """Returns the model with the missing prefixes and suffixes of its n-grams; they change no score.

    Programs that prune single n-grams leave out n-grams whose extensions exist, and a search order by order would stop
    there. The missing n-gram is added with the probability of the back-off recursion and the weight 1, as KenLM does.

    Args:
        ngrams: the model; `ngrams.levels[0].rows` is the vocabulary in order.
    """
    levels = list(ngrams.levels)
    holes: dict[int, NDArray[np.int32]] = {}
    # From the highest order down, because an added n-gram may lack one of the order below.
    for n in range(len(levels) - 1, 1, -1):
        above = np.concatenate((levels[n].rows, holes.get(n, levels[n].rows[:0])))
        needed = np.concatenate((above[:, :-1], above[:, 1:]))
        absent = needed[~np.isin(_row_keys(needed), _row_keys(levels[n - 1].rows))]
        if len(absent):
            holes[n - 1] = np.unique(absent, axis=0)
    for n in sorted(holes):
        levels[n] = _filled(levels[n], holes[n], levels[n - 1])
    return Ngrams(ngrams.words, levels)


def _filled(level: Level, rows: NDArray[np.int32], below: Level) -> Level:
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
    """Returns one number per n-gram; two of ten million are the same with a probability of 3e-6."""
    keys = np.zeros(len(rows), np.uint64)
    for place in range(rows.shape[1]):
        mixed = (keys + rows[:, place].astype(np.uint64) + np.uint64(1)) * _MIXER
        keys = mixed ^ (mixed >> np.uint64(29))
    return keys


class _Reader:
    """Reads one file from top to bottom."""

    def __init__(self, path: str, file: io.BufferedReader) -> None:
        self._path = path
        self._lines: Iterator[bytes] = iter(file)
        self._number = 0
        self._words: dict[bytes, int] = {}

    def read(self) -> Ngrams:
        counts, line = self._head()
        levels = []
        for n, count in enumerate(counts, start=1):
            if line != f"\\{n}-grams:".encode():
                raise self._wrong(f"\\{n}-grams: should stand here, not {_shown(line)}")
            levels.append(self._section(n, count, last=n == len(counts)))
            line = self._next()
        if line != b"\\end\\":
            raise self._wrong(f"\\end\\ should stand here, not {_shown(line)}")
        return closed(Ngrams(self._vocabulary(levels), levels))

    def _head(self) -> tuple[list[int], bytes]:
        line = self._next()
        while line and line != b"\\data\\":
            line = self._next()
        if not line:
            raise self._wrong("there is no line \\data\\")
        counts: list[int] = []
        while (line := self._next()) and not line.startswith(b"\\"):
            match = _COUNT.fullmatch(line)
            if not match or int(match[1]) != len(counts) + 1:
                raise self._wrong(f'"ngram {len(counts) + 1}=<count>" should stand here, not {_shown(line)}')
            counts.append(int(match[2]))
        if not 1 <= len(counts) <= _MOST_ORDERS:
            raise self._wrong(f"the head names {len(counts)} orders; 1 to {_MOST_ORDERS} can be read")
        return counts, line

    def _section(self, n: int, count: int, *, last: bool) -> Level:
        columns: tuple[list[Any], ...] = ([np.empty((0, n), np.int32)], [np.empty(0)], [np.empty(0)])
        left = count
        while left:
            first = self._number + 1
            split = [line.split() for line in islice(self._lines, min(_LINES, left))]
            self._number += len(split)
            if not split:
                raise self._wrong(f"the file ends after {count - left:,} of {count:,} {n}-grams")
            sizes = {n + 1} if last else {n + 1, n + 2}
            try:
                found = self._parsed(split, n, sizes)
            except (ValueError, LookupError):
                self._number, fault = self._fault(split, n, sizes, first)
                raise self._wrong(fault) from None
            for chunks, column in zip(columns, found, strict=True):
                chunks.append(column)
            left -= len(split)
        rows, prob, back = map(np.concatenate, columns)
        return Level(rows, prob.astype(np.float32), back.astype(np.float32))

    def _parsed(self, split: list[list[bytes]], n: int, sizes: set[int]) -> tuple[Any, Any, Any]:
        """Returns rows, probabilities and weights of some lines; raises ValueError or KeyError when one is wrong."""
        if not sizes.issuperset(map(len, split)):
            raise ValueError
        words: Iterable[bytes] = chain.from_iterable(fields[1 : n + 1] for fields in split)
        if n == 1:
            words = [_named(word) for word in words]
            fresh = dict(zip(words, range(len(self._words), len(self._words) + len(words)), strict=True))
            if len(fresh) < len(words) or fresh.keys() & self._words.keys():
                raise ValueError
            for word in words:
                word.decode()
            self._words.update(fresh)
        rows = np.fromiter(map(self._words.__getitem__, map(_named, words)), np.int32, n * len(split))
        prob = np.array([float(fields[0]) for fields in split])
        back = np.array([float(fields[n + 1]) if len(fields) > n + 1 else 0.0 for fields in split])
        prob[prob == -np.inf] = _ZERO
        if not ((prob <= 0).all() and np.isfinite(back).all()):
            raise ValueError
        return rows.reshape(-1, n), prob, back

    def _fault(self, split: list[list[bytes]], n: int, sizes: set[int], number: int) -> tuple[int, str]:
        """Returns the number and the defect of the first invalid line."""
        expected = " or ".join(map(str, sorted(sizes)))
        seen: set[bytes] = set()
        for at, fields in enumerate(split, start=number):
            if len(fields) not in sizes:
                return at, f"the line of a {n}-gram has {expected} fields, not {_shown(b' '.join(fields))}"
            for value in (fields[0], *fields[n + 1 :]):
                if not _number(value):
                    return at, f"{_shown(value)} is not a number"
            if float(fields[0]) > 0:
                return at, f"the logarithm of a probability is at most 0, not {_shown(fields[0])}"
            for word in map(_named, fields[1 : n + 1]):
                if n > 1 and word not in self._words:
                    return at, f"the word {_shown(word)} is no 1-gram of this file"
                if n == 1 and (word in self._words or word in seen):
                    return at, f"the word {_shown(word)} is there twice"
                if "\ufffd" in word.decode(errors="replace"):
                    return at, f"the word {_shown(word)} is not UTF-8"
                seen.add(word)
        raise AssertionError("one of these lines is wrong")

    def _vocabulary(self, levels: list[Level]) -> list[str]:
        words = [word.decode() for word in self._words]
        for mark in (BEGIN, END):
            if mark not in words:
                raise InputError(f"the ARPA file {self._path} has no 1-gram {mark}", "use a model made of sentences")
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

    def _wrong(self, what: str) -> InputError:
        return InputError(f"{self._path}, line {self._number:,}: {what}", "this is not a whole ARPA file: make it anew")


def _named(word: bytes) -> bytes:
    return b"<unk>" if word == b"<UNK>" else word


def _number(value: bytes) -> bool:
    try:
        return not math.isnan(float(value))
    except ValueError:
        return False


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace")
    return f'"{text[:80]}"' if text else "the end of the file"


def _local(artifact: Artifact, folder: str, name: str) -> str:
    return artifact.local(f"{folder}/{name}")
