"""Occurrences of a word list in a document: slurs, obscenities or any other list.

The annotator reads a file that the user supplies (Sluice ships none), one word or phrase per line, blank lines and
lines that begin with "#" left out; the filter limits count and share. Words are those of
`tasks.formats.documents.text.words`, on both sides: case is ignored, "don't" is two words, and in scripts without
spaces every letter is one, so that an entry there is a run of letters. A word inside another word does not match.

Sources: pages with any word of a list are dropped by C4, Raffel et al., arXiv 1910.10683, section 2.2; the count
as a column, RedPajama-V2, Weber et al., arXiv 2411.12372. Dodge et al., arXiv 2104.08758, section 5, measured which
groups such lists exclude: a count combined with a classifier is safer than dropping a page at one match.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from tasks.core.errors import InputError
from tasks.filters.base import Annotator, Filter, Measured, Reasons

if TYPE_CHECKING:
    from tasks.core.artifact import Artifact
    from tasks.filters.batch import Batch


class Entries:
    """A list of words and phrases, ready to be looked up.

    Args:
        entries: words or phrases.

    Every entry has at least one word.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        from tasks.formats.documents.text import words

        self._words = words
        self._phrases = {tuple(words(entry)) for entry in entries}
        sizes: dict[str, set[int]] = {}
        for phrase in self._phrases:
            sizes.setdefault(phrase[0], set()).add(len(phrase))
        # The longest first: of several at one position the longest counts.
        self._sizes = {first: sorted(found, reverse=True) for first, found in sizes.items()}

    def count(self, text: str) -> tuple[int, int, int]:
        """Returns the number of matches, of words they cover, and of all words.

        >>> Entries(["bad", "bad apple", "rotten"]).count("A BAD apple, a bad-tempered badger.")
        (2, 3, 7)
        """
        split = self._words(text)
        hits, covered, free = 0, 0, 0
        for place in [place for place, word in enumerate(split) if word in self._sizes]:
            if place >= free and (size := self._size_at(split, place)):
                hits, covered, free = hits + 1, covered + size, place + size
        return hits, covered, len(split)

    def _size_at(self, split: list[str], place: int) -> int:
        """Returns the words of the longest entry that begins at `place`, or 0."""
        sizes = self._sizes[split[place]]
        return next((size for size in sizes if tuple(split[place : place + size]) in self._phrases), 0)


def read_entries(path: str) -> Entries:
    """Reads a list; raises InputError when it is missing, empty, or has a line without a word."""
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
            raise InputError(f"line {number} of the word list {path} holds no word", "remove it or mend it")
        entries.append(line)
    if not entries:
        raise InputError(f"the word list {path} is empty", "write one word or phrase per line")
    return Entries(entries)


class LexiconMeasures(Annotator):
    """Counts the entries of a list in a document (`hits`) and the share of its words that they cover (`share`)."""

    measures: ClassVar[Mapping[str, str]] = {"hits": "int32", "share": "float32"}

    path: str = ""
    """The list: a file on the machine that annotates. Empty: nothing is looked up, and nothing is found."""

    _entries: Entries | None = PrivateAttr(default=None)

    def external(self) -> list[str]:
        """Returns the list as a local path: its bytes are part of the fingerprint."""
        return [self.path] if self.path else []

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """See `Annotator.prepare`; raises InputError when the list cannot be read."""
        self._entries = read_entries(self.path) if self.path else None

    def measure(self, batch: "Batch") -> Mapping[str, Any]:
        """See `Annotator.measure`."""
        entries = self._entries
        counts = [entries.count(text) if entries else (0, 0, 0) for text in batch.texts]
        return {
            "hits": [hits for hits, _, _ in counts],
            "share": [covered / total if total else 0.0 for _, covered, total in counts],
        }


class Lexicon(Filter):
    """Drops documents in which a list's words are too thick on the ground.

    Source: C4 drops a page at the first word of its list (`max_hits = 0` does the same), Raffel et al., arXiv
    1910.10683, section 2.2.

    >>> import numpy as np
    >>> measured = {"hits": np.int32([0, 1, 9]), "share": np.float32([0, 0.001, 0.2])}
    >>> [(reason, goes.tolist()) for reason, goes in Lexicon(max_hits=5).reasons(measured)]
    [('lexicon_hits', [False, False, True]), ('lexicon_share', [False, False, True])]
    """

    measured_by = LexiconMeasures

    max_hits: int | None = Field(default=None, ge=0)
    """More matches: `lexicon_hits`. None: no limit."""
    max_share: float = Field(default=0.02, ge=0, le=1)
    """A larger share of the words: `lexicon_share`."""

    def reasons(self, measured: Measured) -> Reasons:
        """See `Filter.reasons`."""
        if self.max_hits is not None:
            yield "lexicon_hits", measured["hits"] > self.max_hits
        yield "lexicon_share", measured["share"] > self.max_share
