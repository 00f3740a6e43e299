"""Scores of Hugging Face sequence classifiers from local files: FineWeb-Edu's, toxicity models.

The annotator reads local folders, never the network, and writes one number per score of the recipe; the filter puts
limits on them. Needs the extra `train` (torch). A model of BERT's size scores about one page per second and core, a
fastText model thousands. For a large corpus, train a fastText model on the scores of this one, as Penedo et al. and Li
et al. did with larger teachers (arXiv 2406.17557, section 4; arXiv 2406.11794, section 4.4).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.filters.base import Annotator, ScoreLimits

if TYPE_CHECKING:
    from tasks.core.artifact import Artifact
    from tasks.filters.batch import DocumentBatch
    from tasks.filters.learned.bert import SequenceClassifier


class ModelScore(Config):
    """One score: a model and a label."""

    folder: str
    """Folder with config.json, tokenizer.json and model.safetensors, on the machine that annotates."""
    label: str
    """The label, as named in the model's config.json ("LABEL_0", "toxic")."""


class HuggingFaceMeasures(Annotator):
    """Computes the probability of a label, or the output of a regression: one float32 per score."""

    scores: dict[str, ModelScore] = Field(min_length=1)
    """The scores by name, such as `educational = {folder = "/models/edu", label = "LABEL_0"}`. Scores of the same
    folder share one pass over the text."""
    tokens: int = Field(default=512, ge=2)
    """Maximum number of tokens of a text that are read."""
    chars: int = Field(default=4000, ge=1)
    """Maximum number of characters of a text that are tokenized, from its beginning."""

    _loaded: dict[str, "SequenceClassifier"] = PrivateAttr(default_factory=dict)

    splits: ClassVar[tuple[str, ...]] = ()

    def external(self) -> list[str]:
        """Returns the local paths of the models' files; their bytes are part of the fingerprint."""
        names = ("config.json", "tokenizer.json", "model.safetensors")
        return [f"{folder}/{name}" for folder in self._folders() for name in names]

    def _folders(self) -> list[str]:
        return sorted({score.folder for score in self.scores.values()})

    def field_types(self) -> Mapping[str, str]:
        """See `Annotator.field_types`."""
        return dict.fromkeys(self.scores, "float32")

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """See `Annotator.prepare`; raises InputError when a model is missing or has no such label."""
        try:
            from tasks.filters.learned.bert import SequenceClassifier
        except ImportError as error:
            raise InputError(f"hugging_face needs torch ({error})", "install the extra: sluice[train]") from None
        self._loaded = {folder: SequenceClassifier(folder) for folder in self._folders()}
        for name, score in self.scores.items():
            labels = self._loaded[score.folder].shape.labels
            if score.label not in labels:
                raise InputError(
                    f'the model in {score.folder} has no label "{score.label}", which {name} needs',
                    f"its labels are: {', '.join(labels)}",
                )

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """See `Annotator.measure`; rounded to four digits."""
        import numpy as np

        heads = [text[: self.chars] for text in batch.texts]
        outputs = {folder: model.scores(heads, self.tokens) for folder, model in self._loaded.items()}
        return {
            name: np.round(outputs[score.folder][:, self._loaded[score.folder].shape.labels.index(score.label)], 4)
            for name, score in self.scores.items()
        }


class HuggingFace(ScoreLimits):
    """Drops documents that a model scores too low or too high; without limits it drops nothing.

    Source: FineWeb-Edu keeps texts with at least 3 of 5 points, Penedo et al., arXiv 2406.17557, section 4.

    >>> import numpy as np
    >>> measured = {"educational": np.float32([3.4, 1.2])}
    >>> [(reason, mask.tolist()) for reason, mask in HuggingFace(at_least={"educational": 2.5}).reasons(measured)]
    [('hugging_face_educational_low', [False, True])]
    """

    measured_by: ClassVar[type[Annotator]] = HuggingFaceMeasures
    name: ClassVar[str] = "hugging_face"
