"""Limits of a language from reference text: what `sluice limits` prints, and writes to `limits.json`.

Reads clean texts of the language, a page each; returns stop words and limits.

The method is that of FineWeb2 (Penedo et al., arXiv 2506.20920, section on filtering), which compares several ways to
carry an English limit over. Used are three of them:

- "MeanStd": the limit is as many standard deviations from the mean of the language as the English limit is from the
  mean of English. Reference texts are translations of each other, so the difference between two languages is one of the
  languages and not of the texts.
- "MedianRatio", for the mean word, with means: the limit has the same ratio to the mean as in English. Pages of one
  text are more alike than those of manuals, and have too small a deviation.
- "Quantile", here as a bound: a limit drops at most DROPPED of the reference text, which is clean.

The loosest counts. A limit is never looser than `Derived.loosest`, and, as the reference is of few kinds of text,
never stricter than the English one; except the longest mean word, because a limit for words of letters says nothing
about Chinese. A language whose mean word has more than LONGEST_MEAN characters is written without spaces or with other
marks between words, and has no limits on it.

Stop words are the STOP_WORDS most frequent words; of an alphabet, those of two letters and more. The share of a word is
the least of the shares in the sources of the reference, so that the subject of one manual is no stop word. Each script
of a language has its own list. A text has at least HALF the share of stop words that all but DROPPED of the pages have,
and QUARTER of it if the pages are of one source; their lines are then no model of those of other pages, and need not
end as sentences.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.filters.base import fields
from tasks.filters.batch import DocumentBatch
from tasks.filters.catalogue import annotator, filter_of
from tasks.filters.counting.scripts import letters_by_script, main_scripts
from tasks.filters.language_values import plain_words

DROPPED = 0.001
"""Maximum share of the reference text that a limit drops."""
STOP_WORDS = 50
"""Stop words of a script."""
HALF, QUARTER = 0.5, 0.25
"""Other kinds of text have fewer stop words than a manual: news half as many."""
LONGEST_MEAN = 20.0
MIN_STOP_WORDS = 2
"""Gopher's number of different stop words."""
FEWEST_DOCUMENTS = 4
"""Documents below which no limits are derived."""
_TABLES = 0.01
"""Pages of a manual that are mostly tables or code, which say nothing about the stop words of prose."""
_SOURCE_WORDS = 2_000
_SCRIPT_SHARE = 0.05
"""Minimum share of a script of the words of the reference."""
_BATCH = 200


class Derived(NamedTuple):
    """A limit that depends on the language.

    Attributes:
        filter: its name.
        path: of the limit in its settings.
        loosest: the loosest value.
        stricter: whether it can be stricter than the English one.
    """

    filter: str
    path: str
    loosest: float
    stricter: bool = False

    @property
    def is_mean_word(self) -> bool:
        """Whether it is a limit on the mean word."""
        return self.path.endswith("_mean_word")


DERIVED = (
    Derived("gopher_quality", "min_mean_word", 1.0),
    Derived("gopher_quality", "max_mean_word", LONGEST_MEAN, stricter=True),
    Derived("gopher_quality", "min_letters", 0.5),
    Derived("fineweb", "min_sentence_lines", 0.0),
    Derived("fineweb", "max_short_lines", 1.0),
    Derived("fineweb", "max_line_ends", 0.4),
    *(Derived("gopher_repetition", f"max_top_ngram.{size}", 0.4) for size in (2, 3, 4)),
    *(Derived("gopher_repetition", f"max_duplicate_ngram.{size}", 0.4) for size in range(5, 11)),
)

FIXED: Mapping[str, Mapping[str, Any]] = {"fineweb": {"max_repeat_chars": 0.1}}
"""Limits that FineWeb2 loosens for all languages (README of its repository: 0.1 instead of 0.01)."""


class Text(NamedTuple):
    """A page of reference text and the name of its source."""

    text: str
    source: str


class Spread(NamedTuple):
    """Mean and standard deviation of a measured value over the reference text."""

    mean: float
    deviation: float


class Values(NamedTuple):
    """What is known of a language.

    Attributes:
        reference: documents by source and words, and for English mean and deviation of the value of each limit.
        stop_words: the most frequent first.
        limits: limits by filter.
    """

    reference: dict[str, Any]
    stop_words: list[str]
    limits: dict[str, dict[str, Any]]


def derive(language: str, texts: Sequence[Text], english: Mapping[str, Spread]) -> Values:
    """Returns the values of a language.

    Args:
        language: its code, as the annotator `language` writes it.
        texts: clean reference text, FEWEST_DOCUMENTS at least.
        english: figures of English reference text of the same kind, by path; empty for English itself, which has the
            general limits.
    """
    measured = measure(language, [text for text, _ in texts])
    spreads = {path: Spread(float(values.mean()), float(values.std())) for path, (values, _) in measured.items()}
    words = [(source, list(plain_words(text))) for text, source in texts]
    stop_words = stop_words_of(words)
    limits: dict[str, dict[str, Any]] = {name: dict(values) for name, values in FIXED.items()} if english else {}
    if english and len({source for _, source in texts}) == 1:
        limits["fineweb"]["min_sentence_lines"] = 0.0
    for one in DERIVED if english else ():
        path = f"{one.filter}.{one.path}"
        values, side = measured[path]
        if one.is_mean_word and spreads[path].mean > LONGEST_MEAN:
            continue
        bound = _bound(one, values, side, spreads[path], english[path])
        if one.path not in limits.get(one.filter, {}) and (bound != _default(one) or one.is_mean_word):
            _assign(limits.setdefault(one.filter, {}), one.path, bound)
    if english:
        limits.setdefault("gopher_quality", {})["min_stop_words"] = MIN_STOP_WORDS
        limits["gopher_quality"]["min_stop_share"] = _min_stop_share(words, frozenset(stop_words))
    by_source: Counter[str] = Counter(source for _, source in texts)
    reference = {
        "documents": dict(sorted(by_source.items())),
        "words": sum(len(of) for _, of in words),
    }
    if not english:
        reference["spreads"] = {path: [round(one.mean, 4), round(one.deviation, 4)] for path, one in spreads.items()}
    return Values(reference, stop_words, limits)


def measure(
    language: str, texts: Sequence[str]
) -> dict[str, tuple[NDArray[np.float64], Literal["least", "most", "below"]]]:
    """Returns the value of each text, and the side of the limit, by filter and path of each derived limit."""
    found: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
    sides: dict[str, Literal["least", "most", "below"]] = {}
    names = dict.fromkeys(one.filter for one in DERIVED)
    for begin in range(0, len(texts), _BATCH):
        batch = DocumentBatch(texts[begin : begin + _BATCH], languages=[language] * len(texts[begin : begin + _BATCH]))
        for name in names:
            values = fields(annotator(name, {}).annotate(batch))
            for threshold in filter_of(name, type(filter_of(name, {})).elsewhere).thresholds(values):
                path = f"{name}.{threshold.path}"
                found[path].append(np.asarray(threshold.values, np.float64))
                sides[path] = threshold.side
    return {
        path: (np.concatenate(found[path]), sides[path]) for path in (f"{one.filter}.{one.path}" for one in DERIVED)
    }


def _bound(one: Derived, values: NDArray[np.float64], side: str, own: Spread, english: Spread) -> float:
    """Returns the loosest of MeanStd, the quantile, MedianRatio for the mean word and mostly the English limit.

    It is not looser than `loosest`.
    """
    limit = _default(one)
    scaled = own.mean + (limit - english.mean) / max(english.deviation, 1e-9) * own.deviation
    of_english = [] if one.stricter else [limit]
    if one.is_mean_word:
        of_english.append(own.mean * limit / english.mean)
    if side == "least":
        return round(max(min(scaled, float(np.quantile(values, DROPPED)), *of_english), one.loosest), 3)
    return round(min(max(scaled, float(np.quantile(values, 1 - DROPPED)), *of_english), one.loosest), 3)


def _default(one: Derived) -> float:
    """Returns the general limit, which describes English."""
    value: Any = filter_of(one.filter, {}).model_dump(mode="json")
    for key in one.path.split("."):
        value = value[key]
    return float(value)


def _assign(limits: dict[str, Any], path: str, value: float) -> None:
    name, _, key = path.partition(".")
    if key:
        limits.setdefault(name, {})[key] = value
    else:
        limits[name] = value


def stop_words_of(texts: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Returns the stop words of texts, given as source and words, by script and share.

    >>> words = "und in the house und im haus und da".split()
    >>> stop_words_of([("a", words * 900), ("b", ["und", "haus"] * 2000)])[:2]
    ['und', 'haus']
    """
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for source, words in texts:
        script = _script(words)
        counts[script][source].update(word for word in words if _can_stop(word))
    totals = {script: sum(count.total() for count in by_source.values()) for script, by_source in counts.items()}
    found: dict[str, None] = {}
    for script, total in sorted(totals.items(), key=lambda item: -item[1]):
        if total >= _SCRIPT_SHARE * sum(totals.values()):
            found.update(dict.fromkeys(_of_script(counts[script])))
    return list(found)


def _of_script(counts: Mapping[str, Counter[str]]) -> list[str]:
    largest = max(counts, key=lambda source: counts[source].total())
    sources = [source for source in counts if source == largest or counts[source].total() >= _SOURCE_WORDS]
    shares = {
        word: min(counts[source][word] / counts[source].total() for source in sources) for word in counts[largest]
    }
    return sorted((word for word in shares if shares[word]), key=lambda word: (-shares[word], word))[:STOP_WORDS]


def _script(words: Sequence[str]) -> str:
    """Returns the script of most of the words, by the first letter of each; Chinese and Japanese have one."""
    first = "".join(next((char for char in word if char.isalpha()), "") for word in words)
    (script,) = main_scripts(letters_by_script([first]).sum(axis=1))
    return "HAN" if script == "KANA" else script


def _can_stop(word: str) -> bool:
    """Returns whether a word has a letter, and more than one if its letters have upper and lower case."""
    letters = [char for char in word if char.isalpha()]
    return len(letters) > 1 or (bool(letters) and letters[0].lower() == letters[0].upper())


def _min_stop_share(texts: Sequence[tuple[str, Sequence[str]]], stop_words: frozenset[str]) -> float:
    shares = [sum(word in stop_words for word in words) / max(1, len(words)) for _, words in texts]
    part = QUARTER if len({source for source, _ in texts}) == 1 else HALF
    return round(part * float(np.quantile(shares, _TABLES)), 3)
