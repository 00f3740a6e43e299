"""Scores of classifiers trained by this pipeline: quality, educational value, toxicity, or others of the recipe.

The annotator reads models of an artifact of kind `classifiers` (stage `train_classifiers`) and writes one probability
per model; the filter puts limits on them. One annotator runs all these models, so each text is truncated and split
once.

Sources: fastText, Joulin et al., "Bag of Tricks for Efficient Text Classification", arXiv 1607.01759; reference text
against crawl as a gate of quality, Brown et al., arXiv 2005.14165, appendix A, with fastText as in DCLM, Li et al.,
arXiv 2406.11794, section 4.4.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from tasks.filters.base import Annotator, ScoreLimits

if TYPE_CHECKING:
    from tasks.core.artifact import Artifact
    from tasks.filters.batch import DocumentBatch
    from tasks.filters.learned.fasttext import FastText


class ClassifierMeasures(Annotator):
    """Computes the probability of each named model's positive label: one float32 field per model, 0..1.

    `model.json` of the model has the positive label ("reference" for a quality classifier, "toxic" for a toxicity
    classifier) and the number of characters to read, which is the same as in training. A text without words scores 0.
    """

    models: tuple[str, ...] = Field(default=("quality",), min_length=1)
    """Names of models in the artifact."""

    _loaded: "dict[str, FastText]" = PrivateAttr(default_factory=dict)

    splits: ClassVar[tuple[str, ...]] = ()

    def field_types(self) -> Mapping[str, str]:
        """See `Annotator.field_types`."""
        return dict.fromkeys(self.models, "float32")

    def trained(self) -> Mapping[str, tuple[str, ...]]:
        """See `Annotator.trained`."""
        return {"classifiers": self.models}

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """See `Annotator.prepare`; raises InputError when a model is missing or has no positive label."""
        from tasks.filters.learned.fasttext import load

        self._loaded.update({name: load(models, name, "classifier") for name in self.models})

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """See `Annotator.measure`."""
        return {name: self._loaded[name].scores(batch.texts) for name in self.models}


class Classifier(ScoreLimits):
    """Drops documents that a trained model scores too low or too high; without limits it drops nothing.

    DCLM (arXiv 2406.11794, section 4.4) keeps the 10 % of the crawl with the highest scores. The model card, and
    `what-if` on the annotated corpus, show which score corresponds to which share.

    >>> import numpy as np
    >>> limits = Classifier(at_least={"quality": 0.5}, at_most={"toxicity": 0.9})
    >>> measured = {"quality": np.float32([0.9, 0.2]), "toxicity": np.float32([0.1, 0.1])}
    >>> [(reason, mask.tolist()) for reason, mask in limits.reasons(measured)]
    [('classifier_quality_low', [False, True]), ('classifier_toxicity_high', [False, False])]
    """

    measured_by: ClassVar[type[Annotator]] = ClassifierMeasures
    name: ClassVar[str] = "classifier"
