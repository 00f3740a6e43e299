"""Quality of English pages: a regression over surface features, fitted to human judgments.

The annotator writes one score per document, the filter puts a limit on it. The weights were fitted to the 196 majority
votes on web pages that DCLM published (Li et al., arXiv 2406.11794, appendix on human judgments; data of
mlfoundations/dclm, MIT). The cross-validated AUC is 0.91; that of the page length alone is 0.80, and that of a fastText
classifier of reference text against crawl is lower still (`python -m benchmarks.classifiers scores` refits and compares
them). The features were selected on these votes, so 0.91 is optimistic: on unused votes of the study it is 0.87. For
other labels, train a model with the stage `train_classifiers` (method `signals`) and set `model`.

Our own rule in addition: a list of titles or names, with almost no sentences, scores at most LIST_SCORE. The signals
alone would rate it as good, because its words are those of well-edited pages, but a list should not be repeated as
gold.

English only: the signals count English words. Pages written in the first person score lower, because the raters rated
them lower; the score rates pages as training text, not their authors.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from tasks.filters import UNDETERMINED
from tasks.filters.base import Annotator, Filter, Measurements, Threshold
from tasks.filters.learned.signals import CHARS, Weights, matrix

if TYPE_CHECKING:
    from tasks.core.artifact import Artifact
    from tasks.filters.batch import DocumentBatch

RIDGE = 20.0
"""The ridge penalty with which the weights below were fitted."""

WEIGHTS = Weights(
    bias=0.288655,
    terms={
        "log_words": (0.316002, 5.506138, 0.910719),
        "stop_share": (0.356715, 0.250941, 0.05328),
        "pronoun_share": (-0.219539, 0.022359, 0.023728),
        "distinct_share": (-0.36442, 0.652604, 0.111099),
        "title_share": (-0.314555, 0.201524, 0.118488),
        "upper_share": (-0.303634, 0.045673, 0.023626),
        "mark_share": (-0.439065, 0.032953, 0.016093),
        "ellipsis_share": (-0.245881, 0.001966, 0.005323),
        "log_prose": (0.244477, 5.732196, 2.886704),
        "log_line": (0.163358, 4.890549, 1.124044),
        "log_line_words": (0.174506, 3.35722, 0.807742),
        "repeated_lines": (-0.164638, 0.009422, 0.035008),
    },
)
"""Result of `tasks.filters.learned.signals.fit` on those votes."""

LIST_SCORE = 0.4
"""Maximum score of a list: below gold (0.5), and above the default limit of the filter (0.2)."""

_END = re.compile(r"[.!?…][\"'”’)\]]{0,3}(?=\s|\Z)")
_TITLE_WORDS = 25
_MOST_TITLES = 0.5
_MOST_WORDS_PER_END = 80

_SCORED_LANGUAGES = ("en", UNDETERMINED)
"""English, and texts without letters; because of `needs`, "und" has no other meaning here."""


def is_list(text: str) -> bool:
    r"""Returns whether most words of a text are in titles, or it has hardly any sentence ends.

    A title is a line of at most 25 words without a sentence end, unless the next line begins with a lower-case letter.

    >>> is_list("Window is blank after a reload\nWrong icon in the tool bar"), is_list("It rained. We stayed at home.")
    (True, False)
    """
    lines = [line for raw in text.split("\n") if (line := raw.strip())]
    sizes = [len(line.split()) for line in lines]
    is_continued = [line[0].islower() for line in lines[1:]] + [False]
    ends = [len(_END.findall(line)) for line in lines]
    titles = sum(
        size
        for size, end, continued in zip(sizes, ends, is_continued, strict=True)
        if size <= _TITLE_WORDS and not end and not continued
    )
    words = sum(sizes)
    return titles > _MOST_TITLES * words or words > _MOST_WORDS_PER_END * max(1, sum(ends))


class QualityMeasures(Annotator):
    """Scores a document from 0 to 1 by twelve signals of its first characters; NaN if it is not in English.

    The annotator `language` determines the language and must be in use, because weights fitted on English pages do not
    apply to others. A text without letters has no language, and is scored.
    """

    splits: ClassVar[tuple[str, ...]] = ()
    version: ClassVar[int] = 2

    needs: ClassVar[tuple[str, ...]] = ("language",)

    measures: ClassVar[Mapping[str, str]] = {"score": "float32"}

    model: str = ""
    """Name of a `signals` model in the artifact of trained classifiers; "" for the built-in weights."""

    _weights: Weights = PrivateAttr(default=WEIGHTS)
    _chars: int = PrivateAttr(default=CHARS)

    def trained(self) -> Mapping[str, tuple[str, ...]]:
        """See `Annotator.trained`."""
        return {"classifiers": (self.model,)} if self.model else {}

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """See `Annotator.prepare`; raises InputError if the model is missing or of another method."""
        from tasks.filters.learned.fasttext import KIND, description_of

        if not self.model:
            return
        description = description_of(models, self.model, "quality")
        self._weights = Weights.model_validate_json(models[KIND].read(f"{self.model}/{description.file}"))
        self._chars = description.chars

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """See `Annotator.measure`."""
        import numpy as np

        scores = self._weights.probabilities(matrix(batch.texts, self._chars))
        if not self.model:  # a model trained on other labels may rate lists as it likes
            lists = np.fromiter((is_list(text[: self._chars]) for text in batch.texts), dtype=bool, count=len(batch))
            scores = np.where(lists, np.minimum(scores, np.float32(LIST_SCORE)), scores)
        scored = np.fromiter((name in _SCORED_LANGUAGES for name in batch.languages), dtype=bool, count=len(batch))
        return {"score": np.where(scored, scores, np.float32(np.nan))}


class Quality(Filter):
    r"""Drops English pages of low quality: menus, teasers, lists of names, fragments of forums.

    Source of the weights: the human judgments of DCLM, Li et al., arXiv 2406.11794. Pages in other languages have no
    score and are kept.

    >>> Quality().verdict("HOME | SHOP | CART (0)\nSubscribe to: Post Comments (Atom)\nRead More...")
    'quality_low'
    >>> Quality().verdict(
    ...     "The river rises in the hills to the north of the town and is fed by three streams. In spring it floods "
    ...     "the meadows on both sides, which is why the oldest of the farms stand on the higher ground to the west."
    ... )
    """

    measured_by = QualityMeasures

    min_score: float = Field(default=0.2, ge=0, le=1)
    """Lower score: `quality_low`. A limit of 0.2 keeps 98 % of the pages that people rated as good and drops 36 % of
    the others, cross-validated on the votes on which the signals were also selected: expect less on other pages."""

    def thresholds(self, measured: Measurements) -> Iterator[Threshold]:
        """See `Filter.thresholds`."""
        yield Threshold("min_score", "quality_low", "least", self.min_score, measured["score"])
