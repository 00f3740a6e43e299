"""Perplexity of a text under an n-gram model of good reference text.

The annotator reads models of an artifact of kind `perplexity` (stage `train_perplexity`), or a file that the recipe
names; the filter drops texts above a limit or in unwanted buckets. Words are defined in
`tasks.filters.ngram.words`, for training and scoring.

Sources: perplexity as a filter, and head, middle and tail of a crawl: Wenzek et al. 2019, "CCNet: Extracting High
Quality Monolingual Datasets from Web Crawl Data", arXiv 1911.00359. The model: Heafield 2011, "KenLM: Faster and
Smaller Language Model Queries", whose scores it equals.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, model_validator

from tasks.core.errors import InputError
from tasks.filters.base import Annotator, Filter, Measured, Reasons
from tasks.filters.language import UNDETERMINED

if TYPE_CHECKING:
    from tasks.core.artifact import Artifact
    from tasks.filters.batch import Batch
    from tasks.filters.ngram.files import Loaded

Bucket = Literal["head", "middle", "tail"]


class PerplexityMeasures(Annotator):
    """Scores each document with the model of its language, or else with the one for any language ("und").

    A document for which there is neither has a perplexity that is not a number, no words and no bucket, and passes the
    filter. A document without a word has an infinite perplexity and is in the tail. Without the annotator `language`
    every document is of unknown language, and only a model for any language scores it.
    """

    reads: ClassVar[tuple[str, ...]] = ("language",)

    file: str = ""
    """Absolute path of a model of another making, for every language: an ARPA file (.arpa, .arpa.gz), or a binary one
    of KenLM's, if the package kenlm is installed. It must be made of the words of `tasks.filters.ngram.words`.
    """

    cuts: tuple[float, float] | None = None
    """Perplexities up to which a document is head and middle; None: those of the model; without any, no bucket."""

    measures: ClassVar[Mapping[str, str]] = {
        "perplexity": "float32",
        "log10_prob": "float64",
        "words": "int32",
        "unknown_share": "float32",
        "bucket": "string",
    }

    _models: dict[str, "Loaded"] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _cuts_rise(self) -> "PerplexityMeasures":
        if self.cuts and not 1 <= self.cuts[0] <= self.cuts[1]:
            raise ValueError("cuts are two perplexities of at least 1, the lower one first")
        if self.file and not self.file.startswith("/"):
            raise ValueError(f'the path "{self.file}" is not absolute: begin it with /')
        return self

    def external(self) -> list[str]:
        """See `Annotator.external`: the model file, where one is named."""
        return [self.file] if self.file else []

    def trained(self) -> Mapping[str, tuple[str, ...]]:
        """See `Annotator.trained`: models of all languages, unless one is read from a file."""
        return {} if self.file else {"perplexity": ()}

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """See `Annotator.prepare`; raises InputError when there is no model, or it cannot be read."""
        from tasks.filters.ngram.files import Loaded, load_artifact, load_file

        if self.file:
            self._models.update({UNDETERMINED: Loaded(load_file(self.file), None)})
        elif "perplexity" in models:
            self._models.update(load_artifact(models["perplexity"]))
        else:
            raise InputError(
                "the annotator perplexity has no model", "run the stage train_perplexity first, or set its `file`"
            )

    def measure(self, batch: "Batch") -> Mapping[str, Any]:
        """See `Annotator.measure`.

        `perplexity`: 10 ^ (-log10_prob / (words + lines with a word)). `log10_prob`: of all lines of the document,
        with their ends, to four places. `words`: punctuation marks among them. `unknown_share`: of the words.
        `bucket`: head, middle, tail, or empty.
        """
        import numpy as np

        size = len(batch)
        perplexity, log10 = np.full(size, np.nan, np.float32), np.full(size, np.nan)
        words, unknown = np.zeros(size, np.int32), np.zeros(size, np.float32)
        bucket = np.full(size, "", object)
        for language, places in self._by_model(batch.languages).items():
            model = self._models[language]
            found = model.scorer.score([batch.texts[place] for place in places])
            perplexity[places], log10[places], words[places] = found.perplexity, np.round(found.log10, 4), found.words
            unknown[places] = found.unknown / np.maximum(found.words, 1)
            if cuts := self.cuts or model.cuts:
                names = np.array(["head", "middle", "tail"], object)
                bucket[places] = names[np.searchsorted(np.array(cuts, np.float32), perplexity[places])]
        return {
            "perplexity": perplexity,
            "log10_prob": log10,
            "words": words,
            "unknown_share": unknown,
            "bucket": bucket,
        }

    def _by_model(self, languages: Sequence[str]) -> dict[str, list[int]]:
        places: dict[str, list[int]] = {}
        for place, language in enumerate(languages):
            known = language if language in self._models else UNDETERMINED
            if known in self._models:
                places.setdefault(known, []).append(place)
        return places


class Perplexity(Filter):
    """Drops documents with a perplexity above a limit, or in unwanted buckets.

    Without limits it drops nothing: what perplexity is too high depends on the model, and its card and a what-if over
    the annotated corpus tell. CCNet's word vectors were best when trained on the head.

    >>> import numpy as np
    >>> measured = {
    ...     "perplexity": np.float32([210.0, 9000.0]),
    ...     "unknown_share": np.float32([0.02, 0.4]),
    ...     "bucket": np.array(["head", "tail"], object),
    ... }
    >>> [(reason, goes.tolist()) for reason, goes in Perplexity(max_perplexity=2000).reasons(measured)]
    [('perplexity_high', [False, True])]
    >>> [(reason, goes.tolist()) for reason, goes in Perplexity(drop_buckets=("tail",)).reasons(measured)]
    [('perplexity_tail', [False, True])]
    """

    max_perplexity: float | None = Field(default=None, gt=1)
    """Documents with a higher one are dropped; None for no limit."""
    drop_buckets: tuple[Bucket, ...] = ()
    """Buckets to drop: "tail", or "middle" and "tail"."""
    max_unknown_share: float | None = Field(default=None, ge=0, lt=1)
    """Documents with a larger share of words unknown to the model are dropped; None for no limit."""

    measured_by: ClassVar[type[Annotator]] = PerplexityMeasures

    def reasons(self, measured: Measured) -> Reasons:
        """See `Filter.reasons`."""
        if self.max_perplexity is not None:
            yield "perplexity_high", measured["perplexity"] > self.max_perplexity
        if self.max_unknown_share is not None:
            yield "perplexity_unknown_words", measured["unknown_share"] > self.max_unknown_share
        for bucket in self.drop_buckets:
            yield f"perplexity_{bucket}", measured["bucket"] == bucket
