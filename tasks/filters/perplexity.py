"""Perplexity of a text under an n-gram model of good reference text.

The annotator reads models of an artifact of kind `perplexity` (stage `train_perplexity`), or a file that the recipe
names; the filter drops texts above a limit or in unwanted buckets. Training and scoring use the same definition of
words (`tasks.filters.ngram.words`).

Sources: perplexity as a filter, and the buckets head, middle and tail of a crawl: Wenzek et al. 2019, "CCNet:
Extracting High Quality Monolingual Datasets from Web Crawl Data", arXiv 1911.00359. The scores equal those of KenLM:
Heafield 2011, "KenLM: Faster and Smaller Language Model Queries".
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, model_validator

from tasks.core.errors import InputError
from tasks.filters import UNDETERMINED
from tasks.filters.base import Annotator, Filter, Measurements, Reasons, Threshold

if TYPE_CHECKING:
    from tasks.core.artifact import Artifact
    from tasks.filters.batch import DocumentBatch
    from tasks.filters.ngram.files import PerplexityModel

Bucket = Literal["head", "middle", "tail"]


class PerplexityMeasures(Annotator):
    """Scores each document with the model of its language or, without one, the model for any language ("und").

    Without a model, a document has perplexity NaN, 0 words and no bucket, and passes the filter. A document without
    words has an infinite perplexity and is in the tail. Without the annotator `language`, only the model for any
    language is used.
    """

    splits: ClassVar[tuple[str, ...]] = ()
    segmented: ClassVar[bool] = True
    version: ClassVar[int] = 2
    reads: ClassVar[tuple[str, ...]] = ("language",)

    file: str = ""
    """Absolute path of an external model, used for every language: an ARPA file (.arpa, .arpa.gz) or, if the package
    kenlm is installed, a binary file of KenLM. Its text must have been split as in `tasks.filters.ngram.words`."""

    cuts: tuple[float, float] | None = None
    """Maximum perplexities of head and middle. None: those of the model, or no buckets if it has none."""

    measures: ClassVar[Mapping[str, str]] = {
        "perplexity": "float32",
        "log10_prob": "float64",
        "words": "int32",
        "unknown_share": "float32",
        "bucket": "string",
    }

    _models: dict[str, "PerplexityModel"] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _cuts_rise(self) -> "PerplexityMeasures":
        if self.cuts and not 1 <= self.cuts[0] <= self.cuts[1]:
            raise ValueError("cuts must be two perplexities of at least 1, the lower one first")
        if self.file and not self.file.startswith("/"):
            raise ValueError(f'the path "{self.file}" is not absolute: begin it with /')
        return self

    def external(self) -> list[str]:
        """See `Annotator.external`: the model file, if the settings name one."""
        return [self.file] if self.file else []

    def trained(self) -> Mapping[str, tuple[str, ...]]:
        """See `Annotator.trained`: the models of all languages, unless `file` is set."""
        return {} if self.file else {"perplexity": ()}

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """See `Annotator.prepare`; raises InputError if there is no model or it cannot be read."""
        from tasks.filters.ngram.files import PerplexityModel, load_artifact, load_file

        if self.file:
            self._models.update({UNDETERMINED: PerplexityModel(load_file(self.file), None)})
        elif "perplexity" in models:
            self._models.update(load_artifact(models["perplexity"]))
        else:
            raise InputError(
                "the annotator perplexity has no model", "run the stage train_perplexity first, or set its `file`"
            )

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """See `Annotator.measure`.

        `perplexity` is 10 ^ (-log10_prob / (words + lines with a word)). `log10_prob` is the log10 probability of all
        lines and line ends of the document, rounded to four digits. `words` includes punctuation marks, and
        `unknown_share` is the share of them that the model does not know. `bucket` is head, middle, tail or "".
        """
        import numpy as np

        size = len(batch)
        perplexity, log10 = np.full(size, np.nan, np.float32), np.full(size, np.nan)
        words, unknown = np.zeros(size, np.int32), np.zeros(size, np.float32)
        bucket = np.full(size, "", object)
        for language, rows in self._by_model(batch.languages).items():
            model = self._models[language]
            scores = model.scorer.score([batch.texts[row] for row in rows])
            perplexity[rows], log10[rows], words[rows] = scores.perplexity, np.round(scores.log10, 4), scores.words
            unknown[rows] = scores.unknown / np.maximum(scores.words, 1)
            if cuts := self.cuts or model.cuts:
                names = np.array(["head", "middle", "tail"], object)
                bucket[rows] = names[np.searchsorted(np.array(cuts, np.float32), perplexity[rows])]
        return {
            "perplexity": perplexity,
            "log10_prob": log10,
            "words": words,
            "unknown_share": unknown,
            "bucket": bucket,
        }

    def _by_model(self, languages: Sequence[str]) -> dict[str, list[int]]:
        """Returns the rows that each model scores, by the language of the model."""
        rows: dict[str, list[int]] = {}
        for row, language in enumerate(languages):
            model = language if language in self._models else UNDETERMINED
            if model in self._models:
                rows.setdefault(model, []).append(row)
        return rows


class Perplexity(Filter):
    """Drops documents with a perplexity above a limit, or in unwanted buckets.

    Without limits it drops nothing. A good limit depends on the model: see its card, and `what-if` on the annotated
    corpus. CCNet's word vectors were best when trained on the head.

    >>> import numpy as np
    >>> measured = {
    ...     "perplexity": np.float32([210.0, 9000.0]),
    ...     "unknown_share": np.float32([0.02, 0.4]),
    ...     "bucket": np.array(["head", "tail"], object),
    ... }
    >>> [(reason, mask.tolist()) for reason, mask in Perplexity(max_perplexity=2000).reasons(measured)]
    [('perplexity_high', [False, True])]
    >>> [(reason, mask.tolist()) for reason, mask in Perplexity(drop_buckets=("tail",)).reasons(measured)]
    [('perplexity_tail', [False, True])]
    """

    max_perplexity: float | None = Field(default=None, gt=1)
    """Documents with a higher perplexity are dropped; None for no limit."""
    drop_buckets: tuple[Bucket, ...] = ()
    """Buckets to drop: "tail", or "middle" and "tail"."""
    max_unknown_share: float | None = Field(default=None, ge=0, lt=1)
    """Documents with a larger share of words that the model does not know are dropped; None for no limit."""

    measured_by: ClassVar[type[Annotator]] = PerplexityMeasures

    def reasons(self, measured: Measurements) -> Reasons:
        """See `Filter.reasons`."""
        yield from super().reasons(measured)
        for bucket in self.drop_buckets:
            yield f"perplexity_{bucket}", measured["bucket"] == bucket

    def thresholds(self, measured: Measurements) -> Iterator[Threshold]:
        """See `Filter.thresholds`."""
        values = measured["perplexity"]
        yield Threshold("max_perplexity", "perplexity_high", "most", self.max_perplexity, values)
        unknown = measured["unknown_share"]
        yield Threshold("max_unknown_share", "perplexity_unknown_words", "most", self.max_unknown_share, unknown)
