"""fastText models: those of the stage `train_classifiers`, and external files, which are validated first.

Reads a folder `<name>/` of an artifact of kind `classifiers`: the file that fastText wrote and `model.json`
(`ModelDescription`).

fastText checks only the first bytes of a file. For a truncated file it silently uses zeros as the missing weights, or
never returns. So `labels_of` compares the size of the file with its header and reads its labels, in about a second for
a million words. Source of the layout: fastText 0.9.2, `FastText::saveModel` and the `save` methods that it calls
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
from tasks.filters.catalogue import mismatch

KIND = "classifiers"
"""The kind of artifact that contains the models."""
DESCRIPTION = "model.json"
LABEL = "__label__"

# Underscores separate words, so that a page with the word "__label__0" cannot assign itself a label.
_TOKEN = re.compile(r"[^\W_]+|[^\w\s\x00-\x1f\x7f]")

_MAGIC, _VERSION, _SUPERVISED, _LABEL = 793712314, 12, 3, 1
_PREFIX = b"__label__"


class ModelDescription(Config):
    """Content of `model.json`: the file of a trained model, its labels, and how much of a text it reads."""

    method: str
    """`fasttext` or `signals`."""
    file: str
    """Name of the model's file, in the same folder."""
    labels: tuple[str, ...]
    """Names of the labels; fastText's own name of the n-th is `__label__<n>`."""
    positive: str
    """The label whose probability is the score; "" for a topic model."""
    chars: int
    """Number of characters, from the beginning of a text, that the model reads."""


def line_of(text: str, chars: int) -> str:
    r"""Returns the beginning of a text as a line of lower-case words and punctuation marks: the input of fastText.

    >>> line_of("Don't  PANIC!\n__label__1", 100)
    "don ' t panic ! label 1"
    """
    return " ".join(_TOKEN.findall(text[:chars].lower()))


class FastText:
    """A loaded model of the stage `train_classifiers`."""

    def __init__(self, path: str, description: ModelDescription) -> None:
        import fasttext

        self.description = description
        self._model = fasttext.load_model(path)

    def probabilities(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """Returns the probability of every label, shape (n_texts, n_labels); 0 for a text without words."""
        lines = [line_of(text, self.description.chars) for text in texts]
        probabilities = np.zeros((len(lines), len(self.description.labels)), dtype=np.float32)
        nonempty = [row for row, line in enumerate(lines) if line]
        if not nonempty:
            return probabilities
        columns = {f"{LABEL}{number}": number for number in range(len(self.description.labels))}
        predictions = self._model.predict([lines[row] for row in nonempty], k=-1)
        for row, labels, scores in zip(nonempty, *predictions, strict=True):
            probabilities[row, [columns[label] for label in labels]] = scores
        # A probability can exceed 1 by a rounding error.
        return np.minimum(probabilities, np.float32(1.0))

    def scores(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """Returns the probability of the positive label, shape (n_texts,)."""
        return self.probabilities(texts)[:, self.description.labels.index(self.description.positive)]


def description_of(models: Mapping[str, Artifact], name: str, annotator: str) -> ModelDescription:
    """Returns the description of the trained model `name`, for use by `annotator`.

    Raises:
        InputError: there are no trained models, none has this name, or the annotator cannot use it.
    """
    artifact = models.get(KIND)
    if artifact is None:
        raise InputError(f'there are no trained classifiers, so no "{name}"', "run the stage train_classifiers first")
    names = [path.removesuffix(f"/{DESCRIPTION}") for path in artifact.files() if path.endswith(f"/{DESCRIPTION}")]
    if name not in names:
        raise InputError(
            f'{artifact.address} has no model "{name}" (it has: {", ".join(names) or "none"})',
            "name one of these, or describe it in the recipe under [[classifiers.train]]",
        )
    description = ModelDescription.model_validate_json(artifact.read(f"{name}/{DESCRIPTION}"))
    if error := mismatch(annotator, description.method, description.positive):
        cause, remedy = error
        raise InputError(f'the model "{name}" {cause}', remedy)
    return description


def load(models: Mapping[str, Artifact], name: str, annotator: str) -> FastText:
    """Returns the fastText model `name` for `annotator`; raises InputError like `description_of`."""
    description = description_of(models, name, annotator)
    artifact = models[KIND]
    # The content hash is part of the key, because an artifact of the same id may be written again during this process.
    model: FastText = _load(artifact.local(f"{name}/{description.file}"), artifact.record.content, description)
    return model


@lru_cache(maxsize=8)
def _load(path: str, content: str, description: ModelDescription) -> FastText:
    return FastText(path, description)


def labels_of(path: str) -> tuple[str, ...]:
    """Returns the labels of a supervised model, without `__label__`, in the order of the file.

    Raises:
        InputError: the file is missing, or is not a complete supervised fastText model.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _ModelFileReader(data, path).labels()
    except OSError as error:
        raise InputError(
            f"the language model {path} cannot be read ({error.strerror})", "correct annotate.settings.language.model"
        ) from None
    except (ValueError, struct.error):  # empty, or shorter than its header declares
        raise InputError(f"{path} is truncated", "fetch it again") from None


class _ModelFileReader:
    """Sequential reader of a model file; raises ValueError or struct.error if the file is truncated."""

    def __init__(self, data: mmap.mmap, path: str) -> None:
        self._data, self._path, self._at = data, path, 0

    def labels(self) -> tuple[str, ...]:
        if self._read("2i") != (_MAGIC, _VERSION):
            raise InputError(f"{self._path} is no fastText model", "name the .bin or .ftz file itself, unpacked")
        if self._read("12id")[7] != _SUPERVISED:
            raise InputError(f"{self._path} has word vectors and no labels", "name a model for language identification")
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
            raise ValueError("truncated")
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
        values: tuple[int, ...] = struct.unpack_from(f"<{form}", self._data, self._at)
        self._skip(struct.calcsize(f"<{form}"))
        return values

    def _skip(self, count: int) -> None:
        self._at += count
        if count < 0 or self._at > len(self._data):
            raise ValueError("truncated")
