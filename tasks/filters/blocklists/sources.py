"""Files of blocklist entries by category.

Folders have the layout of the lists of the Université Toulouse Capitole (UT1): one folder per category, in it
`domains` and `urls`, one entry per line, plain or gzip.
"""

import gzip
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple, cast

from tasks.core.errors import InputError
from tasks.core.store import Store

_NAMES = ("domains", "domains.gz", "urls", "urls.gz")


class Source(NamedTuple):
    """One file and the category of its entries."""

    category: str
    folder: str
    name: str

    @property
    def local(self) -> str:
        """The path of the file on this machine; a remote one is fetched into the cache."""
        return Store(self.folder).local(self.name)

    def open(self) -> BinaryIO:
        """Opens the file's lines, without their compression."""
        return cast(BinaryIO, (gzip.open if self.name.endswith(".gz") else open)(self.local, "rb"))


def find(folders: Sequence[str], files: Mapping[str, str], categories: Sequence[str] | None) -> list[Source]:
    """Returns the files to read, those of `files` first, then folder by folder and category by category.

    Args:
        folders: local folders or store URLs, each with one folder per category.
        files: path or URL of a list by category.
        categories: which categories of the folders to take; None for all.

    Raises:
        InputError: a folder, a file or a category is missing.
    """
    selected = [_file(category, path) for category, path in sorted(files.items())]
    known: set[str] = set()
    for folder in folders:
        sources = list(_folder(folder))
        if not sources:
            raise InputError(f"{folder} holds no <category>/domains and no <category>/urls", "unpack the lists there")
        known.update(source.category for source in sources)
        selected += [source for source in sources if categories is None or source.category in categories]
    if missing := sorted(set(categories or ()) - known):
        raise InputError(f"no folder holds the category {missing[0]}", f"known are: {', '.join(sorted(known))}")
    return selected


def _file(category: str, path: str) -> Source:
    folder, _, name = path.rpartition("/")
    source = Source(_word(category), folder or ("/" if path.startswith("/") else "."), name)
    if not name or not Store(source.folder).exists(name):
        raise InputError(f"the blocklist {path} is not there", "correct the path, or put the list there")
    return source


def _folder(folder: str) -> Iterator[Source]:
    for path in Store(folder).list(""):
        category, _, name = path.rpartition("/")
        if category and name in _NAMES:
            yield Source(_word(category), folder, path)


def _word(category: str) -> str:
    """Returns the category as a machine word: it becomes part of a reason."""
    return re.sub(r"[^a-z0-9]+", "_", category.lower()).strip("_") or "unnamed"
