"""Loading of n-gram models: those of the stage, one per language, or a file that a recipe names.

A file is an ARPA file, or a binary one of KenLM's, which needs the package `kenlm` (extra `kenlm`, a source package:
pip needs a C++ compiler for it). Both give the same scores.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.filters.ngram.files import read_arpa
from tasks.filters.ngram.model import MODEL, NgramModel, Scores
from tasks.filters.ngram.words import words
from tasks.formats.documents.external_files import codec_of

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


def _local(artifact: Artifact, folder: str, name: str) -> str:
    return artifact.local(f"{folder}/{name}")


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
