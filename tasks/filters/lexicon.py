"""Occurrences of a word list in a document: slurs, obscenities or any other list.

The annotator reads a file that the user supplies (Sluice ships none) with one word or phrase per line; blank lines and
lines that begin with "#" are ignored. The filter limits count and share. Entries and texts are split by
`tasks.formats.documents.text.words`: case is ignored, "don't" is two words, and in scripts without spaces every letter
is a word, so that an entry is a run of letters. Only whole words match.

Sources: C4 drops pages with any word of a list, Raffel et al., arXiv 1910.10683, section 2.2; RedPajama-V2 has the
count as a column, Weber et al., arXiv 2411.12372. Dodge et al., arXiv 2104.08758, section 5, measured which groups such
lists exclude: a count combined with a classifier is safer than dropping a page at the first match.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from tasks.core.errors import InputError
from tasks.filters.base import Annotator, Filter, Measurements, Threshold

if TYPE_CHECKING:
    from tasks.core.artifact import Artifact
    from tasks.filters.batch import DocumentBatch


class Entries:
    """A list of words and phrases, indexed by first word.

    Args:
        entries: words or phrases, each with at least one word.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        from tasks.formats.documents.text import words

        self._words = words
        self._phrases = {tuple(words(entry)) for entry in entries}
        sizes: dict[str, set[int]] = {}
        for phrase in self._phrases:
            sizes.setdefault(phrase[0], set()).add(len(phrase))
        # Descending, because the longest entry that matches at a position counts.
        self._sizes = {first: sorted(lengths, reverse=True) for first, lengths in sizes.items()}

    def count(self, text: str) -> tuple[int, int, int]:
        """Returns the number of matches, the number of words in them, and the number of all words.

        >>> Entries(["bad", "bad apple", "rotten"]).count("A BAD apple, a bad-tempered badger.")
        (2, 3, 7)
        """
        words = self._words(text)
        hits, covered, end = 0, 0, 0
        for index in [index for index, word in enumerate(words) if word in self._sizes]:
            if index >= end and (size := self._size_at(words, index)):
                hits, covered, end = hits + 1, covered + size, index + size
        return hits, covered, len(words)

    def _size_at(self, words: list[str], index: int) -> int:
        """Returns the number of words of the longest entry that begins at `index`, or 0."""
        sizes = self._sizes[words[index]]
        return next((size for size in sizes if tuple(words[index : index + size]) in self._phrases), 0)


def read_entries(path: str) -> Entries:
    """Reads a list; raises InputError if it is missing or empty, or has an entry without a word."""
    from tasks.formats.documents.text import words

    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the word list {path} cannot be read ({error})", "name a file of UTF-8 text") from None
    entries = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if not words(line):
            raise InputError(f"line {number} of the word list {path} has no word", "remove or correct it")
        entries.append(line)
    if not entries:
        raise InputError(f"the word list {path} is empty", "write one word or phrase per line")
    return Entries(entries)


class LexiconMeasures(Annotator):
    """Counts the entries of a list in a document (`hits`) and the share of its words that they cover (`share`)."""

    splits: ClassVar[tuple[str, ...]] = ()
    measures: ClassVar[Mapping[str, str]] = {"hits": "int32", "share": "float32"}

    path: str = ""
    """The list: a file on the machine that annotates. Empty: no list, and all counts are 0."""

    _entries: Entries | None = PrivateAttr(default=None)

    def external(self) -> list[str]:
        """Returns the local path of the list; its bytes are part of the fingerprint."""
        return [self.path] if self.path else []

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """See `Annotator.prepare`; raises InputError when the list cannot be read."""
        self._entries = read_entries(self.path) if self.path else None

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """See `Annotator.measure`."""
        entries = self._entries
        counts = [entries.count(text) if entries else (0, 0, 0) for text in batch.texts]
        return {
            "hits": [hits for hits, _, _ in counts],
            "share": [covered / total if total else 0.0 for _, covered, total in counts],
        }


class Lexicon(Filter):
    """Drops documents with too many words of a list.

    Source: C4 drops a page at the first word of its list (`max_hits = 0` does the same), Raffel et al., arXiv
    1910.10683, section 2.2.

    >>> import numpy as np
    >>> measured = {"hits": np.int32([0, 1, 9]), "share": np.float32([0, 0.001, 0.2])}
    >>> [(reason, mask.tolist()) for reason, mask in Lexicon(max_hits=5).reasons(measured)]
    [('lexicon_hits', [False, False, True]), ('lexicon_share', [False, False, True])]
    """

    measured_by = LexiconMeasures

    max_hits: int | None = Field(default=None, ge=0)
    """More matches: `lexicon_hits`. None: no limit."""
    max_share: float = Field(default=0.02, ge=0, le=1)
    """Larger share of the words: `lexicon_share`."""

    def thresholds(self, measured: Measurements) -> Iterator[Threshold]:
        """See `Filter.thresholds`."""
        yield Threshold("max_hits", "lexicon_hits", "most", self.max_hits, measured["hits"])
        yield Threshold("max_share", "lexicon_share", "most", self.max_share, measured["share"])
