"""A fastText classifier as the stage `train_classifiers` leaves it, and how a text is put before it.

A model is a folder `<name>/` of an artifact of kind `classifiers`: the file that fastText wrote and `model.json`
(`Meaning`), which says what its labels mean.
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
"""The kind of artifact that holds the models."""
MEANING = "model.json"
LABEL = "__label__"

# Underscores part words: a page with the word "__label__0" must not be able to give itself a label.
_TOKEN = re.compile(r"[^\W_]+|[^\w\s\x00-\x1f\x7f]")


class Meaning(Config):
    """What a trained model is: which file, which label is which, and how much of a text it reads."""

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
        found = np.zeros((len(lines), len(self.meaning.labels)), dtype=np.float32)
        asked = [row for row, line in enumerate(lines) if line]
        if not asked:
            return found
        columns = {f"{LABEL}{number}": number for number in range(len(self.meaning.labels))}
        several = self._model.predict([lines[row] for row in asked], k=-1)
        for row, labels, scores in zip(asked, *several, strict=True):
            found[row, [columns[label] for label in labels]] = scores
        # A sure label can exceed 1 by a rounding error.
        return np.minimum(found, np.float32(1.0))

    def scores(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """Returns the probability of the positive label, shape (n texts,)."""
        return self.probabilities(texts)[:, self.meaning.labels.index(self.meaning.positive)]


def meaning_of(models: Mapping[str, Artifact], name: str, annotator: str) -> Meaning:
    """Returns what the trained model `name` is, which `annotator` is going to ask.

    Raises:
        InputError: there are no trained models, none of this name, or the annotator cannot ask it.
    """
    artifact = models.get(KIND)
    if artifact is None:
        raise InputError(f'no trained classifiers are given, so not "{name}"', "run the stage train_classifiers first")
    known = [path.removesuffix(f"/{MEANING}") for path in artifact.files() if path.endswith(f"/{MEANING}")]
    if name not in known:
        raise InputError(
            f'{artifact.address} holds no model "{name}" (it holds: {", ".join(known) or "none"})',
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
    # By content: an artifact at the same address may have been made anew while this process lives.
    loaded: FastText = _loaded(artifact.local(f"{name}/{meaning.file}"), artifact.record.content, meaning)
    return loaded


@lru_cache(maxsize=8)
def _loaded(path: str, content: str, meaning: Meaning) -> FastText:
    return FastText(path, meaning)
