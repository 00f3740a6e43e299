"""Blocklists of URLs and domains, and banned words in URLs.

The lists are the user's own; the layout is that of the UT1 lists (Université Toulouse Capitole,
https://dsi.ut-capitole.fr/blacklists/), which FineWeb (Penedo et al. 2024, section 3.3) and RedPajama-V2 used too.
"""

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr, model_validator

from tasks.filters.base import Annotator, Filter, Measured, Reasons

if TYPE_CHECKING:
    import pyarrow as pa

    from tasks.core.artifact import Artifact
    from tasks.filters.batch import Batch
    from tasks.filters.blocklists import Index, Source

_NO_WORD = re.compile(r"[^a-z0-9]+")


class UrlListed(Annotator):
    """Looks up the address of a document in lists of domains and URLs.

    An entry "example.com" covers the domain and all below it; "example.com/a" covers that URL and those below it
    in the path. "www.", the scheme and the port do not count. The closest entry gives the category; of equal entries,
    the first list in the order below. Without lists nothing is found.
    """

    folders: tuple[str, ...] = ()
    """Local folders or store URLs with lists: `<category>/domains` and `<category>/urls`, plain or `.gz`."""

    categories: tuple[str, ...] | None = None
    """Which categories of the folders to read; None for all."""

    files: dict[str, str] = {}
    """Single lists by category: one domain or URL per line, or lines of a hosts file; plain or `.gz`."""

    allow: tuple[str, ...] = ()
    """Exceptions: domains and URLs that never match a list."""

    banned_words: tuple[str, ...] = ()
    """Banned words in a URL: category `banned_word`. Words are separated by characters other than letters and
    digits, as in datatrove's URLFilter (FineWeb), whose `banned_words` these are."""

    _index: "Index | None" = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _of_folders(self) -> "UrlListed":
        if self.categories and not self.folders:
            raise ValueError("categories are those of folders: name folders, or leave categories out")
        return self

    def type(self) -> "pa.StructType":
        """See `Annotator.type`: `category` and the `entry` that matched, both null where none did."""
        import pyarrow as pa

        return pa.struct([pa.field("category", pa.string()), pa.field("entry", pa.string())])

    def external(self) -> list[str]:
        """Returns the lists as local paths: their bytes are part of the fingerprint."""
        from tasks.filters.blocklists import find_sources

        return [source.local for source in find_sources(self.folders, self.files, self.categories)]

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """Reads the lists; see `Annotator.prepare`."""
        from tasks.filters.blocklists import find_sources

        read = []
        for source in find_sources(self.folders, self.files, self.categories):
            stat = os.stat(source.local)
            read.append((source, stat.st_size, stat.st_mtime_ns))
        self._index = _load(tuple(read))

    def measure(self, batch: "Batch") -> Mapping[str, Any]:
        """See `Annotator.measure`."""
        from tasks.filters.blocklists import entry_key, keys_of

        allowed = {entry_key(entry) for entry in self.allow}
        banned = frozenset(word.lower() for word in self.banned_words)
        listed = [list(keys_of(url)) for url in batch.urls]
        if self._index is None:
            raise ValueError("prepare reads the lists first")
        hits = iter(self._index.find([key for one in listed for key in one]))
        found: list[tuple[str | None, str | None]] = []
        for url, one in zip(batch.urls, listed, strict=True):
            matches = [(category, key) for key, category in zip(one, hits, strict=False) if category is not None]
            if allowed.intersection(one):
                found.append((None, None))
            elif matches:
                found.append(matches[0])
            else:
                found.append(_banned(url, banned))
        return {"category": [category for category, _ in found], "entry": [entry for _, entry in found]}


def _banned(url: str, banned: frozenset[str]) -> tuple[str | None, str | None]:
    word = next((word for word in _NO_WORD.split(url.lower()) if word in banned), None) if banned else None
    return (None, None) if word is None else ("banned_word", word)


@lru_cache(maxsize=4)
def _load(read: "tuple[tuple[Source, int, int], ...]") -> "Index":
    """Loads the lists once per process and state of the files: consecutive parts use the same lists."""
    from tasks.filters.blocklists import load_index

    return load_index([source for source, _, _ in read])


class UrlBlocklist(Filter):
    """Drops documents whose URL is on a list: `url_blocklist_<category>`.

    The rule of FineWeb (URL filtering first) and RefinedWeb (Penedo et al. 2023, section 3.1), here after the fact, so
    that a category can be let in again without another pass.

    >>> UrlBlocklist().verdict("A page about gardens.", url="https://example.com/gardens")
    >>> listed = UrlListed(banned_words=("casino",))
    >>> listed.prepare({})
    >>> from tasks.filters.base import fields
    >>> from tasks.filters.batch import Batch
    >>> found = fields(listed.annotate(Batch(["Play now."], urls=["https://example.com/best-casino"])))
    >>> [(reason, mask.tolist()) for reason, mask in UrlBlocklist().reasons(found)]
    [('url_blocklist_banned_word', [True])]
    """

    measured_by = UrlListed

    categories: tuple[str, ...] | None = None
    """Categories to drop; None for every one that was found."""

    def reasons(self, measured: Measured) -> Reasons:
        """See `Filter.reasons`."""
        found = measured["category"]
        for category in sorted({one for one in found if one is not None}):
            if self.categories is None or category in self.categories:
                yield f"url_blocklist_{category}", found == category
