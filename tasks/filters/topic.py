"""The topic of a document, by a classifier that this pipeline has trained on labelled texts.

The annotator reads a model of many labels from an artifact of kind `classifiers` (stage `train_classifiers`) and writes
the likeliest label and its probability; the filter drops topics that a corpus should do without. Mixtures may name
topics as they name sources.

Sources: fastText, Joulin et al., arXiv 1607.01759; topics to balance a corpus by, Wettig et al., "Organize the Web:
Constructing Domains Enhances Pre-Training Data Curation", arXiv 2502.10341.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from tasks.artifact import Artifact
from tasks.filters.base import Annotator, Filter, Measured
from tasks.filters.batch import Batch
from tasks.filters.fasttext_model import FastText, load

NONE = ""
"""The topic of a text without a word."""


class TopicMeasures(Annotator):
    """Labels a document with the likeliest of the model's labels, and says how likely it is (0..1)."""

    model: str = "topic"
    """Name of the model in the artifact."""

    _loaded: FastText = PrivateAttr()

    def type(self) -> pa.StructType:
        """See `Annotator.type`."""
        label = pa.field("label", pa.string(), nullable=False)
        return pa.struct([label, pa.field("score", pa.float32(), nullable=False)])

    def prepare(self, models: Mapping[str, Artifact]) -> None:
        """See `Annotator.prepare`; raises InputError when the model is not there."""
        self._loaded = load(models, self.model)

    def measure(self, batch: Batch) -> Mapping[str, Any]:
        """See `Annotator.measure`."""
        probabilities = self._loaded.probabilities(batch.texts)
        best = probabilities.argmax(axis=1)
        scores = probabilities[np.arange(len(batch)), best]
        names = self._loaded.meaning.labels
        return {
            "label": [names[label] if score else NONE for label, score in zip(best, scores, strict=True)],
            "score": scores,
        }


class Topic(Filter):
    """Drops documents of unwanted topics, where the model is sure enough; without `drop` it drops nothing.

    Source: Wettig et al., arXiv 2502.10341, section 4: topics as a handle on what a corpus holds.

    >>> import numpy as np
    >>> unwanted = Topic(drop=("lyrics",), min_score=0.8)
    >>> measured = {"label": np.array(["news", "lyrics", "lyrics"]), "score": np.float32([0.9, 0.9, 0.5])}
    >>> [(reason, goes.tolist()) for reason, goes in unwanted.reasons(measured)]
    [('topic_lyrics', [False, True, False])]
    """

    measured_by: ClassVar[type[Annotator]] = TopicMeasures

    drop: tuple[str, ...] = ()
    """Labels of the topics to do without."""
    min_score: float = Field(default=0.5, ge=0, le=1)
    """A topic that is less likely than this drops nothing."""

    def reasons(self, measured: Measured) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """See `Filter.reasons`."""
        sure = measured["score"] >= np.float32(self.min_score)
        for label in self.drop:
            yield f"topic_{label}", sure & (measured["label"] == label)
