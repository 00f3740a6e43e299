"""Training of one classifier and inference on its held-out texts.

Writes fastText's input file to a scratch folder. The bytes of the model are the same for the same texts and settings,
because a single thread applies the updates in a fixed order.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import InputError
from tasks.filters.learned.fasttext_model import LABEL, FastText, Meaning, line_of
from tasks.filters.learned.signals import fit, matrix
from tasks.stages.classifiers.config import ClassifierSettings, FastTextSettings
from tasks.stages.classifiers.texts import Example


@dataclass(frozen=True)
class Trained:
    """A trained classifier.

    Attributes:
        meaning: its description, with the name of its file.
        data: the bytes of that file.
        probabilities: of each label for each held-out text, shape (n texts, n labels).
    """

    meaning: Meaning
    data: bytes
    probabilities: NDArray[Any]


def train(settings: ClassifierSettings, learn: Sequence[Example], heldout: Sequence[Example], scratch: str) -> Trained:
    """Trains on `learn` and predicts `heldout`.

    Args:
        settings: of the classifier.
        learn: training texts.
        heldout: held-out texts.
        scratch: an existing folder on this machine.

    Raises:
        InputError: fastText cannot learn from these texts with these settings.
    """
    labels = tuple(sorted({example.label for example in learn}))
    if settings.method == "signals":
        return _signals(settings, labels, learn, heldout)
    name = "model.ftz" if settings.fasttext.quantised else "model.bin"
    meaning = Meaning(method="fasttext", file=name, labels=labels, positive=settings.positive, chars=settings.chars)
    model_file = os.path.join(scratch, name)
    _fasttext(settings, meaning, learn, scratch, model_file)
    # Predicted from the written file with the class that annotators use.
    probabilities = FastText(model_file, meaning).probabilities(example.text for example in heldout)
    with open(model_file, "rb") as file:
        return Trained(meaning, file.read(), probabilities)


def _fasttext(
    settings: ClassifierSettings, meaning: Meaning, learn: Sequence[Example], scratch: str, model_file: str
) -> None:
    import fasttext

    number = {label: f"{LABEL}{index}" for index, label in enumerate(meaning.labels)}
    text_file = os.path.join(scratch, "texts.txt")
    with open(text_file, "w", encoding="utf-8") as file:
        for example in learn:
            file.write(f"{number[example.label]} {line_of(example.text, settings.chars)}\n")
    try:
        model = fasttext.train_supervised(text_file, **_options(settings))
        if settings.fasttext.quantised:
            model.quantize(qnorm=True, thread=1)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"fastText cannot train the classifier {settings.name} ({error})",
            "lower its learning_rate where numbers overflow; set quantised = false where the model is too small for it",
        ) from error
    model.save_model(model_file)


def _options(settings: ClassifierSettings) -> dict[str, Any]:
    options: FastTextSettings = settings.fasttext
    return {
        "epoch": options.epochs,
        "lr": options.learning_rate,
        "dim": options.dimensions,
        "wordNgrams": options.word_ngrams,
        "minn": options.char_ngrams[0],
        "maxn": options.char_ngrams[1],
        "bucket": options.buckets,
        "minCount": options.min_count,
        "seed": settings.seed,
        "thread": 1,  # threads update shared weights without locks, in an order that varies
        "verbose": 0,
    }


def _signals(
    settings: ClassifierSettings, labels: tuple[str, ...], learn: Sequence[Example], heldout: Sequence[Example]
) -> Trained:
    meaning = Meaning(
        method="signals", file="weights.json", labels=labels, positive=settings.positive, chars=settings.chars
    )
    positive = np.array([example.label == settings.positive for example in learn])
    weights = fit(matrix((example.text for example in learn), settings.chars), positive, settings.ridge)
    chance = weights.probabilities(matrix((example.text for example in heldout), settings.chars))
    columns = [chance if label == settings.positive else 1 - chance for label in labels]
    return Trained(meaning, weights.model_dump_json(indent=1).encode() + b"\n", np.column_stack(columns))
