"""Scores of Hugging Face sequence classifiers whose weights stand on disk: FineWeb-Edu's, models of toxicity.

The annotator reads local folders, never the network, and writes one number per score that the recipe asks for; the
filter puts limits on them. Needs the extra `train` (torch). A model of BERT's size reads about one page per second and
core where a fastText model reads thousands: train one of those on this one's scores for a corpus of any size, as
Penedo et al. and Li et al. did with larger teachers (arXiv 2406.17557, section 4; arXiv 2406.11794, section 4.4).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.filters.base import Annotator
from tasks.filters.bounds import Bounds

if TYPE_CHECKING:
    from tasks.core.artifact import Artifact
    from tasks.filters.batch import Batch
    from tasks.filters.learned.bert import SequenceClassifier


class Asked(Config):
    """One number that is asked of a model."""

    folder: str
    """Folder with config.json, tokenizer.json and model.safetensors, on the machine that annotates."""
    label: str
    """The label, as the model's config.json calls it ("LABEL_0", "toxic")."""


class HuggingFaceMeasures(Annotator):
    """Asks models for the probability of a label, or, of a regression, for its output: one float32 per score."""

    scores: dict[str, Asked] = Field(min_length=1)
    """What is asked, by the name it gets here, as `educational = {folder = "/models/edu", label = "LABEL_0"}`. Scores
    of one folder cost one reading."""
    tokens: int = Field(default=512, ge=2)
    """Most tokens of a text that are read."""
    chars: int = Field(default=4000, ge=1)
    """Characters from the beginning that are tokenised at all."""

    _loaded: dict[str, "SequenceClassifier"] = PrivateAttr(default_factory=dict)

    def external(self) -> list[str]:
        """Returns the files of the models as local paths: their bytes bear on the fingerprint."""
        names = ("config.json", "tokenizer.json", "model.safetensors")
        return [f"{folder}/{name}" for folder in self._folders() for name in names]

    def _folders(self) -> list[str]:
        return sorted({asked.folder for asked in self.scores.values()})

    def named(self) -> Mapping[str, str]:
        """See `Annotator.named`."""
        return dict.fromkeys(self.scores, "float32")

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """See `Annotator.prepare`; raises InputError when a model is not there or has no such label."""
        try:
            from tasks.filters.learned.bert import SequenceClassifier
        except ImportError as error:
            raise InputError(f"hugging_face needs torch ({error})", "install the extra: sluice[train]") from None
        self._loaded = {folder: SequenceClassifier(folder) for folder in self._folders()}
        for name, asked in self.scores.items():
            labels = self._loaded[asked.folder].shape.labels
            if asked.label not in labels:
                raise InputError(
                    f'the model in {asked.folder} has no label "{asked.label}", which {name} asks for',
                    f"its labels are: {', '.join(labels)}",
                )

    def measure(self, batch: "Batch") -> Mapping[str, Any]:
        """See `Annotator.measure`; rounded to four digits."""
        import numpy as np

        heads = [text[: self.chars] for text in batch.texts]
        found = {folder: model.scores(heads, self.tokens) for folder, model in self._loaded.items()}
        return {
            name: np.round(found[asked.folder][:, self._loaded[asked.folder].shape.labels.index(asked.label)], 4)
            for name, asked in self.scores.items()
        }


class HuggingFace(Bounds):
    """Drops documents that a model scores too low or too high; without limits it drops nothing.

    Source: FineWeb-Edu keeps what its classifier gives 3 of 5 points, Penedo et al., arXiv 2406.17557, section 4.

    >>> import numpy as np
    >>> measured = {"educational": np.float32([3.4, 1.2])}
    >>> [(why, goes.tolist()) for why, goes in HuggingFace(at_least={"educational": 2.5}).reasons(measured)]
    [('hugging_face_educational_low', [False, True])]
    """

    measured_by: ClassVar[type[Annotator]] = HuggingFaceMeasures
    name: ClassVar[str] = "hugging_face"
