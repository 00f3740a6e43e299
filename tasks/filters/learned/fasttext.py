"""fastText models: those of the stage `train_classifiers`, and files of others, which are validated first.

Reads a folder `<name>/` of an artifact of kind `classifiers`: the file that fastText wrote and `model.json`
(`Meaning`), the description of its labels.

fastText checks only the first bytes of a file: for a truncated one it silently uses zeros for the missing weights, or
never returns. So `labels_of` compares the file's size with its own header, and reads its labels; for a million words in
about a second. Source of the layout: fastText 0.9.2, `FastText::saveModel` and the `save` methods that it calls
(version 12).
"""

import mmap
import re
import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import Artifact
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.filters.catalogue import misfit

KIND = "classifiers"
"""The kind of artifact that contains the models."""
MEANING = "model.json"
LABEL = "__label__"

# Underscores separate words: a page with the word "__label__0" must not be able to give itself a label.
_TOKEN = re.compile(r"[^\W_]+|[^\w\s\x00-\x1f\x7f]")

_MAGIC, _VERSION, _SUPERVISED, _LABEL = 793712314, 12, 3, 1
_PREFIX = b"__label__"


class Meaning(Config):
    """Description of a trained model: its file, its labels, and how much of a text it reads."""

    method: str
    """`fasttext` or `signals`."""
    file: str
    """Its file, beside this one."""
    labels: tuple[str, ...]
    """Names of the labels; fastText's own label of the n-th is `__label__<n>`."""
    positive: str
    """The label whose probability is the score; "" for a model of many topics."""
    chars: int
    """Characters from the beginning of a text that it reads."""


def line_of(text: str, chars: int) -> str:
    r"""Returns the beginning of a text as one line of lower-case words and marks, as fastText reads it.

    >>> line_of("Don't  PANIC!\n__label__1", 100)
    "don ' t panic ! label 1"
    """
    return " ".join(_TOKEN.findall(text[:chars].lower()))


class FastText:
    """A trained model, loaded."""

    def __init__(self, path: str, meaning: Meaning) -> None:
        import fasttext

        self.meaning = meaning
        self._model = fasttext.load_model(path)

    def probabilities(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """Returns the probability of every label, shape (n texts, n labels); a text without a word gets zeros."""
        lines = [line_of(text, self.meaning.chars) for text in texts]
        chances = np.zeros((len(lines), len(self.meaning.labels)), dtype=np.float32)
        nonempty = [row for row, line in enumerate(lines) if line]
        if not nonempty:
            return chances
        columns = {f"{LABEL}{number}": number for number in range(len(self.meaning.labels))}
        several = self._model.predict([lines[row] for row in nonempty], k=-1)
        for row, labels, scores in zip(nonempty, *several, strict=True):
            chances[row, [columns[label] for label in labels]] = scores
        # A probability can exceed 1 by a rounding error.
        return np.minimum(chances, np.float32(1.0))

    def scores(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """Returns the probability of the positive label, shape (n texts,)."""
        return self.probabilities(texts)[:, self.meaning.labels.index(self.meaning.positive)]


def meaning_of(models: Mapping[str, Artifact], name: str, annotator: str) -> Meaning:
    """Returns the description of the trained model `name`, for use by `annotator`.

    Raises:
        InputError: there are no trained models, none of this name, or the annotator cannot use it.
    """
    artifact = models.get(KIND)
    if artifact is None:
        raise InputError(f'no trained classifiers are given, so not "{name}"', "run the stage train_classifiers first")
    known = [path.removesuffix(f"/{MEANING}") for path in artifact.files() if path.endswith(f"/{MEANING}")]
    if name not in known:
        raise InputError(
            f'{artifact.address} holds no model "{name}" (it has: {", ".join(known) or "none"})',
            "name one of these, or describe it in the recipe under [[classifiers.train]]",
        )
    meaning = Meaning.model_validate_json(artifact.read(f"{name}/{MEANING}"))
    if why := misfit(annotator, meaning.method, meaning.positive):
        cause, remedy = why
        raise InputError(f'the model "{name}" {cause}', remedy)
    return meaning


def load(models: Mapping[str, Artifact], name: str, annotator: str) -> FastText:
    """Returns the fastText model `name` for `annotator`; raises what `meaning_of` raises."""
    meaning = meaning_of(models, name, annotator)
    artifact = models[KIND]
    # By content: an artifact of the same id may have been made again during this process.
    loaded: FastText = _loaded(artifact.local(f"{name}/{meaning.file}"), artifact.record.content, meaning)
    return loaded


@lru_cache(maxsize=8)
def _loaded(path: str, content: str, meaning: Meaning) -> FastText:
    return FastText(path, meaning)


def labels_of(path: str) -> tuple[str, ...]:
    """Returns the labels of a supervised model, without `__label__`, in the file's order.

    Raises:
        InputError: there is no such file, or it is not a complete supervised fastText model.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _FileReader(data, path).labels()
    except OSError as error:
        raise InputError(
            f"the language model {path} cannot be read ({error.strerror})", "correct annotate.settings.language.model"
        ) from None
    except (ValueError, struct.error):  # empty, or shorter than its header declares
        raise InputError(f"{path} is not whole", "fetch it again") from None


class _FileReader:
    """Sequential reader of a model file."""

    def __init__(self, data: mmap.mmap, path: str) -> None:
        self._data, self._path, self._at = data, path, 0

    def labels(self) -> tuple[str, ...]:
        if self._read("2i") != (_MAGIC, _VERSION):
            raise InputError(f"{self._path} is no fastText model", "name the .bin or .ftz file itself, unpacked")
        if self._read("12id")[7] != _SUPERVISED:
            raise InputError(f"{self._path} holds word vectors and no labels", "name a model that tells languages")
        entries, _, _, _, pruned = self._read("3i2q")
        names = [name for name, kind in (self._entry() for _ in range(entries)) if kind == _LABEL]
        self._skip(8 * max(0, pruned))
        input_quantised = self._flag()
        self._matrix(input_quantised)
        output_quantised = self._flag()
        self._matrix(input_quantised and output_quantised)
        return tuple(name.removeprefix(_PREFIX).decode("utf-8", "replace") for name in names)

    def _entry(self) -> tuple[bytes, int]:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise ValueError("cut off")
        name, self._at = self._data[self._at : end], end + 1
        return name, self._read("qb")[1]

    def _matrix(self, quantised: bool) -> None:
        if not quantised:
            rows, columns = self._read("2q")
            self._skip(4 * rows * columns)
            return
        norms = self._flag()
        rows, _, codes = self._read("2qi")
        self._skip(codes)
        self._quantiser()
        if norms:
            self._skip(rows)
            self._quantiser()

    def _quantiser(self) -> None:
        dimensions = self._read("4i")[0]
        self._skip(4 * dimensions * 256)

    def _flag(self) -> bool:
        return bool(self._read("?")[0])

    def _read(self, form: str) -> tuple[int, ...]:
        read: tuple[int, ...] = struct.unpack_from(f"<{form}", self._data, self._at)
        self._skip(struct.calcsize(f"<{form}"))
        return read

    def _skip(self, count: int) -> None:
        self._at += count
        if count < 0 or self._at > len(self._data):
            raise ValueError("cut off")
