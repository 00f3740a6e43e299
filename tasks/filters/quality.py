"""Quality of English pages: a regression over surface features, fitted to human judgements.

The annotator writes one score per document, the filter puts a limit on it. The weights here were fitted to the 196
majority votes over web pages that DCLM published (Li et al., arXiv 2406.11794, appendix on human judgements; data of
mlfoundations/dclm, MIT): cross-validated AUC 0.91, where the length of a page alone has 0.80 and a fastText gate of
reference text against crawl less than that (`python -m benchmarks.classifiers scores` refits and compares them). As
the features were chosen on these votes, that is optimistic: on votes of the study that were not used it is 0.87.
Other labels give other weights: the stage `train_classifiers`, method `signals`, makes a model that `model` names here.

Our own rule beside it: a list of titles or names, a text with next to no sentence, scores LIST_SCORE at most. Its words
are those of well-kept pages, and the signals alone call it good; it is not what a corpus should repeat as gold.

English only: the signals count English words. Pages of an author who says "I" score lower, because the raters gave
them lower marks; the score rates pages as training text, not their authors.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from tasks.filters.base import Annotator, Filter, Measured, Reasons
from tasks.filters.language import UNDETERMINED
from tasks.filters.learned.signals import CHARS, Weights, matrix

if TYPE_CHECKING:
    from tasks.core.artifact import Artifact
    from tasks.filters.batch import Batch

RIDGE = 20.0
"""The penalty that the weights below were fitted with."""

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
"""The most that a list scores: no gold (0.5), and above the limit below which pages are dropped (0.2)."""

_END = re.compile(r"[.!?…][\"'”’)\]]{0,3}(?=\s|\Z)")
_TITLE_WORDS = 25
_MOST_TITLES = 0.5
_MOST_WORDS_PER_END = 80

_READ = ("en", UNDETERMINED)
"""English, and texts without a letter: `needs` sees to it that "und" means no more."""


def is_list(text: str) -> bool:
    r"""Returns whether most words of a text are in titles, or hardly any sentence ends in it.

    A title is a line of at most 25 words without the end of a sentence, unless the next line goes on in small letters.

    >>> is_list("Window is blank after a reload\nWrong icon in the tool bar"), is_list("It rained. We stayed at home.")
    (True, False)
    """
    lines = [line for raw in text.split("\n") if (line := raw.strip())]
    sizes = [len(line.split()) for line in lines]
    goes_on = [line[0].islower() for line in lines[1:]] + [False]
    ends = [len(_END.findall(line)) for line in lines]
    titles = sum(
        size
        for size, end, continued in zip(sizes, ends, goes_on, strict=True)
        if size <= _TITLE_WORDS and not end and not continued
    )
    words = sum(sizes)
    return titles > _MOST_TITLES * words or words > _MOST_WORDS_PER_END * max(1, sum(ends))


class QualityMeasures(Annotator):
    """Scores a document 0..1 by twelve signals of its first characters; not a number where it is in another language.

    Whether it is English says the annotator `language`, which must be in use: what was learnt on English pages says
    nothing about others. A text without a letter is of no language, and scored.
    """

    version: ClassVar[int] = 2

    needs: ClassVar[tuple[str, ...]] = ("language",)

    measures: ClassVar[Mapping[str, str]] = {"score": "float32"}

    model: str = ""
    """Name of a `signals` model in the artifact of trained classifiers; "" for the weights that come with Sluice."""

    _weights: Weights = PrivateAttr(default=WEIGHTS)
    _chars: int = PrivateAttr(default=CHARS)

    def trained(self) -> Mapping[str, tuple[str, ...]]:
        """See `Annotator.trained`."""
        return {"classifiers": (self.model,)} if self.model else {}

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """See `Annotator.prepare`; raises InputError when the model is missing or of another method."""
        from tasks.filters.learned.fasttext import KIND, meaning_of

        if not self.model:
            return
        meaning = meaning_of(models, self.model, "quality")
        self._weights = Weights.model_validate_json(models[KIND].read(f"{self.model}/{meaning.file}"))
        self._chars = meaning.chars

    def measure(self, batch: "Batch") -> Mapping[str, Any]:
        """See `Annotator.measure`."""
        import numpy as np

        scores = self._weights.probabilities(matrix(batch.texts, self._chars))
        if not self.model:  # what other labels call good is theirs to say
            lists = np.fromiter((is_list(text[: self._chars]) for text in batch.texts), dtype=bool, count=len(batch))
            scores = np.where(lists, np.minimum(scores, np.float32(LIST_SCORE)), scores)
        english = np.fromiter((language in _READ for language in batch.languages), dtype=bool, count=len(batch))
        return {"score": np.where(english, scores, np.float32(np.nan))}


class Quality(Filter):
    r"""Drops English pages of low quality: menus, teasers, lists of names, scraps of forums.

    Source of the weights: the human judgements of DCLM, Li et al., arXiv 2406.11794. Pages in other languages have no
    score and stay.

    >>> Quality().verdict("HOME | SHOP | CART (0)\nSubscribe to: Post Comments (Atom)\nRead More...")
    'quality_low'
    >>> Quality().verdict(
    ...     "The river rises in the hills to the north of the town and is fed by three streams. In spring it floods "
    ...     "the meadows on both sides, which is why the oldest of the farms stand on the higher ground to the west."
    ... )
    """

    measured_by = QualityMeasures

    min_score: float = Field(default=0.2, ge=0, le=1)
    """A lower score: `quality_low`. 0.2 keeps 98 % of the pages that people called good and drops 36 % of the others,
    cross-validated on the votes by which the signals were also chosen: on other pages expect less."""

    def reasons(self, measured: Measured) -> Reasons:
        """See `Filter.reasons`."""
        yield "quality_low", measured["score"] < self.min_score
