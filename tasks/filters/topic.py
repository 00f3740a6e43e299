"""Topic of a document, by a classifier that this pipeline trained on labelled texts.

The annotator reads a model with many labels from an artifact of kind `classifiers` (stage `train_classifiers`) and
writes the most probable label and its probability; the filter drops unwanted topics.

Sources: fastText, Joulin et al., arXiv 1607.01759; balancing a corpus by topic, Wettig et al., "Organize the Web:
Constructing Domains Enhances Pre-Training Data Curation", arXiv 2502.10341.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from tasks.filters.base import Annotator, Filter, Measurements, Reasons

if TYPE_CHECKING:
    from tasks.core.artifact import Artifact
    from tasks.filters.batch import DocumentBatch
    from tasks.filters.learned.fasttext import FastText

NONE = ""
"""The topic of a text without words."""


class TopicMeasures(Annotator):
    """Labels a document with the most probable of the model's labels and its probability (0..1)."""

    splits: ClassVar[tuple[str, ...]] = ()
    measures: ClassVar[Mapping[str, str]] = {"label": "string", "score": "float32"}

    model: str = "topic"
    """Name of the model in the artifact."""

    _loaded: "FastText" = PrivateAttr()

    def trained(self) -> Mapping[str, tuple[str, ...]]:
        """See `Annotator.trained`."""
        return {"classifiers": (self.model,)}

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """See `Annotator.prepare`; raises InputError if the model is missing or of another method."""
        from tasks.filters.learned.fasttext import load

        self._loaded = load(models, self.model, "topic")

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """See `Annotator.measure`."""
        probabilities = self._loaded.probabilities(batch.texts)
        best, scores = probabilities.argmax(axis=1), probabilities.max(axis=1)
        names = self._loaded.description.labels
        return {
            "label": [names[label] if score else NONE for label, score in zip(best, scores, strict=True)],
            "score": scores,
        }


class Topic(Filter):
    """Drops documents of unwanted topics if the probability is high enough; without `drop` it drops nothing.

    Source: Wettig et al., arXiv 2502.10341, section 4: controlling the composition of a corpus by topic.

    >>> import numpy as np
    >>> unwanted = Topic(drop=("lyrics",), min_score=0.8)
    >>> measured = {"label": np.array(["news", "lyrics", "lyrics"]), "score": np.float32([0.9, 0.9, 0.5])}
    >>> [(reason, mask.tolist()) for reason, mask in unwanted.reasons(measured)]
    [('topic_lyrics', [False, True, False])]
    """

    measured_by: ClassVar[type[Annotator]] = TopicMeasures

    drop: tuple[str, ...] = ()
    """Labels of the unwanted topics."""
    min_score: float = Field(default=0.5, ge=0, le=1)
    """Documents whose topic has a lower probability are kept."""

    def reasons(self, measured: Measurements) -> Reasons:
        """See `Filter.reasons`."""
        probable = measured["score"] >= self.min_score
        for label in self.drop:
            yield f"topic_{label}", probable & (measured["label"] == label)
