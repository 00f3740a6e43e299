"""Gopher's quality rules: drop texts that are not prose.

Source of every rule and limit: Rae et al., "Scaling Language Models: Methods, Analysis & Insights from Training
Gopher", arXiv 2112.11446, appendix A.1.1 "Quality filtering". The paper does not define "word"; the definition is that
of datatrove's GopherQualityFilter, so that both give the same verdicts.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from tasks.filters.base import Annotator, Filter, Measurements, Threshold, share
from tasks.filters.language_values import CHARS_PER_WORD, ENGLISH, plain_words, require_shipped, shipped

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tasks.filters.batch import DocumentBatch


_STOP_WORD_CHARS = 100_000
"""Characters of a text whose words are compared in languages other than English; bounds the memory."""
_RECURRING_WORDS = 300
"""Words of `_RECURRING_LETTERS` at the beginning of a text in which recurring ones are counted."""
_RECURRING_LETTERS = 3
_FEWEST_RECURRING = 150
"""Such words below which their share is not measured: of 100 words of Korean news 4 recur, of 150 at least 12."""
_NO_LIST = -1
# UTF-8 read as Windows-1252 or Latin-1: the first bytes C2 to C5 of Latin letters with a second byte, and the beginning
# of typographic marks and of Vietnamese vowels.
_SECOND = "\u0080-\u00bf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
_MOJIBAKE = f"[Â-Å][{_SECOND}]|â€|áº|á»"


class GopherQualityMeasures(Annotator):
    """Measurements of Gopher's quality rules; words include punctuation marks (`tasks.filters.counting.words`)."""

    segmented: ClassVar[bool] = True
    version: ClassVar[int] = 5

    reads: ClassVar[tuple[str, ...]] = ("language",)

    english: tuple[str, ...] = ENGLISH
    """Languages to which the rules on stop words and mean word length apply, since these describe English. Without the
    annotator `language` every document is "und"."""

    shipped: str = Field(default_factory=lambda: shipped().name, validate_default=True)
    """Name of the shipped stop words of other languages; "" for none."""

    stop_words: dict[str, tuple[str, ...]] = {}
    """Stop words by language, lower-case, instead of the shipped ones; `sluice limits` finds them in reference text."""

    measures: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("words", "symbols", "letters", "hashes", "ellipses"), "int32"),
        **dict.fromkeys(("lines", "bullets", "ellipsis_lines", "stop_words"), "int32"),
        **dict.fromkeys(("mean_word", "stop_share", "recurring"), "float32"),
        "mojibake": "int32",
        "english": "bool",
    }

    @field_validator("shipped")
    @classmethod
    def _known(cls, name: str) -> str:
        return require_shipped(name)

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """Counts words, words of symbols only, words with a letter, "#", ellipses, and lines of several kinds.

        `mean_word` is the mean length, in code points, of the words that are not symbols; 0 if there are none.
        `stop_words` are the different ones of the document's language, `stop_share` their share of all words; -1 if
        none are known. `recurring` is the share of words of three letters and more, among the first 300, that are not
        the only one of their kind; -1 in a text of fewer than 150. Neither share is measured in English. `mojibake`
        counts sequences of characters that are UTF-8 decoded with a wrong character set.
        """
        import numpy as np
        import pyarrow.compute as pc

        words, lines = batch.words, batch.line_columns
        ellipsis = pc.or_(pc.ends_with(lines.stripped, "..."), pc.ends_with(lines.stripped, "…"))
        bullet = pc.or_(pc.starts_with(lines.stripped, "•"), pc.starts_with(lines.stripped, "-"))
        return {
            "words": words.counts,
            "symbols": words.symbols,
            "letters": words.letters,
            "mean_word": share(words.chars - words.symbol_chars, words.counts - words.symbols),
            "hashes": [text.count("#") for text in batch.texts],
            "ellipses": [text.count("...") + text.count("…") for text in batch.texts],
            # A line end at the end of the text does not begin another line.
            "lines": np.diff(lines.starts) - (lines.chars[lines.starts[1:] - 1] == 0),
            "bullets": lines.per_document(bullet.to_numpy(zero_copy_only=False)),
            "ellipsis_lines": lines.per_document(ellipsis.to_numpy(zero_copy_only=False)),
            **self._frequent_words(batch),
            "mojibake": pc.count_substring_regex(batch.column, _MOJIBAKE),
            "english": [language in self.english for language in batch.languages],
        }

    def _frequent_words(self, batch: "DocumentBatch") -> "dict[str, NDArray[Any]]":
        """Returns different stop words, and the shares of stop words and of recurring words, of each document."""
        import numpy as np

        counts = batch.words.stop_words.copy()
        shares, recurring = (np.full(len(batch), _NO_LIST, np.float32) for _ in range(2))
        known = {**(shipped().stop_words if self.shipped else {}), **self.stop_words}
        for row, (language, text) in enumerate(zip(batch.languages, batch.texts, strict=True)):
            if language in self.english:
                continue
            counts[row] = _NO_LIST
            words = list(plain_words(text[:_STOP_WORD_CHARS]))
            recurring[row] = _recurring(words)
            if stop_words := frozenset(known.get(language, ())):
                found = [word for word in words if word in stop_words]
                counts[row], shares[row] = len(set(found)), len(found) / max(1, len(words))
        return {"stop_words": counts, "stop_share": shares, "recurring": recurring}


def _recurring(words: Sequence[str]) -> float:
    """Returns the share of recurring words among the first long ones, or -1 for too few.

    >>> _recurring(["und", "der"] * 80 + [f"wort{n}" for n in range(40)])
    0.8
    """
    long = [word for word in words if len(word) >= _RECURRING_LETTERS and not word.isdigit()][:_RECURRING_WORDS]
    if len(long) < _FEWEST_RECURRING:
        return _NO_LIST
    return sum(count for count in Counter(long).values() if count > 1) / len(long)


class GopherQuality(Filter):
    """Drops texts that are not prose: too short or long, symbols, lists, truncated lines, few stop words.

    >>> GopherQuality().verdict("Click here")
    'gopher_quality_few_words'
    >>> GopherQuality().verdict("The cat that sat with me is gone to the hills. " * 6)
    """

    measured_by = GopherQualityMeasures

    min_words: int = Field(default=50, ge=0)
    """Fewer words that are not symbols: `gopher_quality_few_words`. Paper: 50."""

    max_words: int = Field(default=100_000, ge=1)
    """More such words: `gopher_quality_many_words`. Paper: 100,000."""

    all_languages: bool = False
    """Apply the limits on mean word length and stop words to all documents, not only to English ones, and count at
    least a word per ten characters, for scripts without spaces. `consolidate` sets it for other languages."""

    min_mean_word: float | None = Field(default=3.0, ge=0)
    """Shorter mean word, in characters: `gopher_quality_short_mean_word`. Paper: 3."""

    max_mean_word: float | None = Field(default=10.0, ge=0)
    """Longer mean word: `gopher_quality_long_mean_word`. Paper: 10."""

    max_symbol_share: float = Field(default=0.1, ge=0)
    """More hash signs per word: `gopher_quality_hashes`; more ellipses: `gopher_quality_ellipses`. Paper: 0.1."""

    max_bullet_lines: float = Field(default=0.9, ge=0, le=1)
    """Larger share of lines that begin with a bullet: `gopher_quality_bullets`. Paper: 0.9."""

    max_ellipsis_lines: float = Field(default=0.3, ge=0, le=1)
    """Larger share of lines that end with an ellipsis: `gopher_quality_ellipsis_lines`. Paper: 0.3."""

    min_letters: float = Field(default=0.8, ge=0, le=1)
    """Smaller share of words with a letter in them: `gopher_quality_few_letters`. Paper: 0.8."""

    min_stop_words: int = Field(default=2, ge=0)
    """Fewer different words of {the, be, to, of, and, that, have, with}: `gopher_quality_stop_words`. Paper: 2. In
    other languages those of the language."""

    min_stop_share: float | None = Field(default=None, ge=0, le=1)
    """Smaller share of stop words, in languages other than English: `gopher_quality_stop_share`. None: no limit."""

    min_recurring: float | None = Field(default=None, ge=0, le=1)
    """Smaller share of words that occur more than once, in languages other than English: `gopher_quality_no_words`.
    Random letters hardly repeat a long word; text of any language does (Zipf's law). None: no limit."""

    max_mojibake: float | None = Field(default=None, ge=0)
    """More sequences of wrongly decoded characters per word: `gopher_quality_mojibake`. None: no limit."""

    elsewhere: ClassVar[Mapping[str, Any]] = {
        "all_languages": True,
        "min_recurring": 0.06,
        "max_mojibake": 0.01,
        "min_mean_word": None,
        "max_mean_word": None,
        "min_stop_words": 0,
    }

    def thresholds(self, measured: Measurements) -> Iterator[Threshold]:
        """See `Filter.thresholds`."""
        import numpy as np

        words, plain, mean = measured["words"], measured["words"] - measured["symbols"], measured["mean_word"]
        lines, english = measured["lines"], measured["english"].astype(bool) | self.all_languages
        if self.all_languages:
            words_of_chars = (plain * mean / CHARS_PER_WORD).astype(int)
            enough = np.maximum(plain, words_of_chars)
        else:
            enough = plain

        def limit(
            name: str, reason: str, values: "NDArray[Any]", applies: "NDArray[np.bool_] | None" = None
        ) -> Threshold:
            side: Literal["least", "most"] = "least" if name.startswith("min_") else "most"
            return Threshold(name, f"gopher_quality_{reason}", side, getattr(self, name), values, applies)

        yield limit("min_words", "few_words", enough)
        yield limit("max_words", "many_words", plain)
        yield limit("min_mean_word", "short_mean_word", mean, english)
        yield limit("max_mean_word", "long_mean_word", mean, english)
        yield limit("max_symbol_share", "hashes", share(measured["hashes"], words))
        yield limit("max_symbol_share", "ellipses", share(measured["ellipses"], words))
        yield limit("max_bullet_lines", "bullets", share(measured["bullets"], lines))
        yield limit("max_ellipsis_lines", "ellipsis_lines", share(measured["ellipsis_lines"], lines))
        yield limit("min_letters", "few_letters", share(measured["letters"], words))
        yield limit(
            "min_stop_words", "stop_words", measured["stop_words"], english & (measured["stop_words"] > _NO_LIST)
        )
        yield limit("min_stop_share", "stop_share", measured["stop_share"], measured["stop_share"] > _NO_LIST)
        yield limit("min_recurring", "no_words", measured["recurring"], measured["recurring"] > _NO_LIST)
        yield limit("max_mojibake", "mojibake", share(measured["mojibake"], words))
