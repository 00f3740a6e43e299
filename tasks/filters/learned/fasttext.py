"""fastText classifiers of the stage `train_classifiers`: loading and prediction.

Reads a folder `<name>/` of an artifact of kind `classifiers`: the file that fastText wrote and `model.json`
(`Meaning`), the description of its labels.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import Artifact
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.filters.learned.trained import misfit

KIND = "classifiers"
"""The kind of artifact that contains the models."""
MEANING = "model.json"
LABEL = "__label__"

# Underscores separate words: a page with the word "__label__0" must not be able to give itself a label.
_TOKEN = re.compile(r"[^\W_]+|[^\w\s\x00-\x1f\x7f]")


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
