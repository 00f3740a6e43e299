"""Scores of Hugging Face sequence classifiers from local files: FineWeb-Edu's, toxicity models.

The annotator reads local folders, never the network, and writes one number per score of the recipe; the
filter puts limits on them. Needs the extra `train` (torch). A model of BERT's size reads about one page per second and
core where a fastText model reads thousands: train one of those on this one's scores for a corpus of any size, as
Penedo et al. and Li et al. did with larger teachers (arXiv 2406.17557, section 4; arXiv 2406.11794, section 4.4).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.filters.base import Annotator, Bounds

if TYPE_CHECKING:
    from tasks.core.artifact import Artifact
    from tasks.filters.batch import Batch
    from tasks.filters.learned.bert import SequenceClassifier


class ModelScore(Config):
    """One score: a model and a label."""

    folder: str
    """Folder with config.json, tokenizer.json and model.safetensors, on the machine that annotates."""
    label: str
    """The label, as the model's config.json calls it ("LABEL_0", "toxic")."""


class HuggingFaceMeasures(Annotator):
    """Computes the probability of a label, or the output of a regression: one float32 per score."""

    scores: dict[str, ModelScore] = Field(min_length=1)
    """The scores by name, as `educational = {folder = "/models/edu", label = "LABEL_0"}`. Scores
    of the same folder share one pass over the text."""
    tokens: int = Field(default=512, ge=2)
    """Most tokens of a text that are read."""
    chars: int = Field(default=4000, ge=1)
    """Characters from the beginning that are tokenised at all."""

    _loaded: dict[str, "SequenceClassifier"] = PrivateAttr(default_factory=dict)

    def external(self) -> list[str]:
        """Returns the files of the models as local paths: their bytes are part of the fingerprint."""
        names = ("config.json", "tokenizer.json", "model.safetensors")
        return [f"{folder}/{name}" for folder in self._folders() for name in names]

    def _folders(self) -> list[str]:
        return sorted({wanted.folder for wanted in self.scores.values()})

    def named(self) -> Mapping[str, str]:
        """See `Annotator.named`."""
        return dict.fromkeys(self.scores, "float32")

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """See `Annotator.prepare`; raises InputError when a model is missing or has no such label."""
        try:
            from tasks.filters.learned.bert import SequenceClassifier
        except ImportError as error:
            raise InputError(f"hugging_face needs torch ({error})", "install the extra: sluice[train]") from None
        self._loaded = {folder: SequenceClassifier(folder) for folder in self._folders()}
        for name, wanted in self.scores.items():
            labels = self._loaded[wanted.folder].shape.labels
            if wanted.label not in labels:
                raise InputError(
                    f'the model in {wanted.folder} has no label "{wanted.label}", which {name} needs',
                    f"its labels are: {', '.join(labels)}",
                )

    def measure(self, batch: "Batch") -> Mapping[str, Any]:
        """See `Annotator.measure`; rounded to four digits."""
        import numpy as np

        heads = [text[: self.chars] for text in batch.texts]
        outputs = {folder: model.scores(heads, self.tokens) for folder, model in self._loaded.items()}
        return {
            name: np.round(outputs[wanted.folder][:, self._loaded[wanted.folder].shape.labels.index(wanted.label)], 4)
            for name, wanted in self.scores.items()
        }


class HuggingFace(Bounds):
    """Drops documents that a model scores too low or too high; without limits it drops nothing.

    Source: FineWeb-Edu keeps texts with at least 3 of 5 points, Penedo et al., arXiv 2406.17557, section 4.

    >>> import numpy as np
    >>> measured = {"educational": np.float32([3.4, 1.2])}
    >>> [(why, goes.tolist()) for why, goes in HuggingFace(at_least={"educational": 2.5}).reasons(measured)]
    [('hugging_face_educational_low', [False, True])]
    """

    measured_by: ClassVar[type[Annotator]] = HuggingFaceMeasures
    name: ClassVar[str] = "hugging_face"
