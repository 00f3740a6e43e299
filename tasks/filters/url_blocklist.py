"""Blocklists of URLs and domains, and banned words in URLs.

The user supplies the lists. Source of their layout: the UT1 lists (Université Toulouse Capitole,
https://dsi.ut-capitole.fr/blacklists/), which FineWeb (Penedo et al. 2024, section 3.3) and RedPajama-V2 also use.
"""

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr, model_validator

from tasks.filters.base import Annotator, Filter, Measurements, Reasons

if TYPE_CHECKING:
    import pyarrow as pa

    from tasks.core.artifact import Artifact
    from tasks.filters.batch import DocumentBatch
    from tasks.filters.blocklists import BlocklistFile, BlocklistIndex

_NO_WORD = re.compile(r"[^a-z0-9]+")


class UrlBlocklistMeasures(Annotator):
    """Looks up the URL of a document in lists of domains and URLs.

    The entry "example.com" matches the domain and its subdomains; "example.com/a" matches that URL and those below it
    in the path. "www.", the scheme and the port are ignored. The most specific entry determines the category; if
    several lists have it, the first of them in the order of the settings. Without lists nothing matches. Equivalent
    spellings of a path match each other.
    """

    version: ClassVar[int] = 2

    folders: tuple[str, ...] = ()
    """Local folders or store URLs with lists: `<category>/domains` and `<category>/urls`, plain or `.gz`."""

    categories: tuple[str, ...] | None = None
    """Categories of the folders to read; None for all."""

    files: dict[str, str] = {}
    """Single lists by category: one domain or URL per line, or a hosts file; plain or `.gz`."""

    allow: tuple[str, ...] = ()
    """Exceptions: domains and URLs that never match a list."""

    banned_words: tuple[str, ...] = ()
    """Banned words in a URL: category `banned_word`. The words of a URL are its runs of letters and digits, as for
    `banned_words` of datatrove's URLFilter (FineWeb)."""

    _index: "BlocklistIndex | None" = PrivateAttr(default=None)

    splits: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _of_folders(self) -> "UrlBlocklistMeasures":
        if self.categories and not self.folders:
            raise ValueError("categories are those of folders: name folders, or leave categories out")
        return self

    def type(self) -> "pa.StructType":
        """See `Annotator.type`: `category` and the matching `entry`, both null if none matched."""
        import pyarrow as pa

        return pa.struct([pa.field("category", pa.string()), pa.field("entry", pa.string())])

    def external(self) -> list[str]:
        """Returns the local paths of the lists; their bytes are part of the fingerprint."""
        from tasks.filters.blocklists import find_files

        return [file.local for file in find_files(self.folders, self.files, self.categories)]

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """Reads the lists; see `Annotator.prepare`."""
        from tasks.filters.blocklists import find_files

        states = []
        for file in find_files(self.folders, self.files, self.categories):
            stat = os.stat(file.local)
            states.append((file, stat.st_size, stat.st_mtime_ns))
        self._index = _load(tuple(states))

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """See `Annotator.measure`."""
        from tasks.filters.blocklists import entry_key, keys_of

        allowed = {entry_key(entry) for entry in self.allow}
        banned = frozenset(word.lower() for word in self.banned_words)
        keys_by_url = [list(keys_of(url)) for url in batch.urls]
        if self._index is None:
            raise ValueError("call prepare before measure: it reads the lists")
        categories = iter(self._index.find([key for keys in keys_by_url for key in keys]))
        results: list[tuple[str | None, str | None]] = []
        for url, keys in zip(batch.urls, keys_by_url, strict=True):
            matches = [(category, key) for key, category in zip(keys, categories, strict=False) if category is not None]
            if allowed.intersection(keys):
                results.append((None, None))
            elif matches:
                results.append(matches[0])
            else:
                results.append(_banned(url, banned))
        return {"category": [category for category, _ in results], "entry": [entry for _, entry in results]}


def _banned(url: str, banned: frozenset[str]) -> tuple[str | None, str | None]:
    word = next((word for word in _NO_WORD.split(url.lower()) if word in banned), None) if banned else None
    return (None, None) if word is None else ("banned_word", word)


@lru_cache(maxsize=4)
def _load(states: "tuple[tuple[BlocklistFile, int, int], ...]") -> "BlocklistIndex":
    """Loads the lists once per process, and again when the size or time of a file has changed."""
    from tasks.filters.blocklists import load_index

    return load_index([file for file, _, _ in states])


class UrlBlocklist(Filter):
    """Drops documents whose URL is on a list: `url_blocklist_<category>`.

    The rule of FineWeb and RefinedWeb (Penedo et al. 2023, section 3.1), which filter URLs first. Here the lookup is a
    measurement like the others, so that a category can be allowed again without another pass.

    >>> UrlBlocklist().verdict("A page about gardens.", url="https://example.com/gardens")
    >>> annotator = UrlBlocklistMeasures(banned_words=("casino",))
    >>> annotator.prepare({})
    >>> from tasks.filters.base import fields
    >>> from tasks.filters.batch import DocumentBatch
    >>> batch = DocumentBatch(["Play now."], urls=["https://example.com/best-casino"])
    >>> [(reason, mask.tolist()) for reason, mask in UrlBlocklist().reasons(fields(annotator.annotate(batch)))]
    [('url_blocklist_banned_word', [True])]
    """

    measured_by = UrlBlocklistMeasures

    categories: tuple[str, ...] | None = None
    """Categories to drop; None for all."""

    def reasons(self, measured: Measurements) -> Reasons:
        """See `Filter.reasons`."""
        categories = measured["category"]
        for category in sorted({category for category in categories if category is not None}):
            if self.categories is None or category in self.categories:
                yield f"url_blocklist_{category}", categories == category
