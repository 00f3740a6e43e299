"""Index of blocklist entries: sorted 64-bit hashes with a category each.

Five million domains take 50 MB and are read in seconds; the index is stored in the cache folder of the machine
(`tasks.core.cache`), from which all workers map it into memory. The chance of a hash collision per look-up is below one
in 10^12 (XXH3, 64 bits). Entries themselves are not stored.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from tasks.core import cache, npy
from tasks.filters.blocklists.address import entry_key
from tasks.filters.blocklists.sources import Source

_FORMAT = "blocklist-1"
_CHUNK = 1 << 23
# A line with nothing but a domain in ASCII, which nearly all are: read without parsing, ten times as fast.
_PLAIN = re.compile(rb"^[ \t]*(?:www\.)?([a-z0-9_](?:[a-z0-9._-]*[a-z0-9])?)[ \t\r]*$", re.MULTILINE)


class Index:
    """Entries of lists, by hash.

    Args:
        hashes: ascending.
        categories: of each entry, as an index into `names`.
        names: the categories.
    """

    def __init__(self, hashes: NDArray[np.uint64], categories: NDArray[np.uint16], names: Sequence[str]) -> None:
        self._hashes = hashes
        self._categories = categories
        self._names = names

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, keys: Sequence[str]) -> list[str | None]:
        """Returns the category of each key, or None where it is no entry."""
        if not len(self):
            return [None] * len(keys)
        wanted = np.fromiter((_hash(key.encode()) for key in keys), np.uint64, len(keys))
        place = np.minimum(np.searchsorted(self._hashes, wanted), len(self) - 1)
        hit = self._hashes[place] == wanted
        return [self._names[self._categories[at]] if yes else None for at, yes in zip(place, hit, strict=True)]


def load(sources: Sequence[Source]) -> Index:
    """Returns the entries of all sources; one that is in several has the category of the first."""
    names = list(dict.fromkeys(source.category for source in sources))
    hashes, categories = [cache.folder() / f"{_content(sources)}.{part}.npy" for part in ("hashes", "categories")]
    if not (hashes.exists() and categories.exists()):
        read = _read(sources, names)
        _save(hashes, read[0])
        _save(categories, read[1])
    # Memory-mapped: pages that are never looked up stay on disk, and workers share the rest.
    return Index(npy.load(hashes, mapped=True), npy.load(categories, mapped=True), names)


def _content(sources: Sequence[Source]) -> str:
    digest = hashlib.sha256(_FORMAT.encode())
    for source in sources:
        with open(source.local, "rb") as file:
            digest.update(f"\n{source.category}\n{source.name}\n".encode())
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"blocklist-{digest.hexdigest()[:40]}"


def _read(sources: Sequence[Source], names: list[str]) -> tuple[NDArray[np.uint64], NDArray[np.uint16]]:
    hashes, categories = [np.empty(0, np.uint64)], [np.empty(0, np.uint16)]
    for source in sources:
        for chunk in _chunks(source):
            hashes.append(np.fromiter(map(_hash, _keys(chunk)), np.uint64))
            categories.append(np.full(len(hashes[-1]), names.index(source.category), np.uint16))
    every = np.concatenate(hashes)
    # Of equal entries the first is kept: `unique` sorts stably.
    unique, first = np.unique(every, return_index=True)
    return unique, np.concatenate(categories)[first]


def _chunks(source: Source) -> Iterator[bytes]:
    """Yields whole lines, some megabytes at a time."""
    rest = b""
    with source.open() as file:
        while data := file.read(_CHUNK):
            rest += data
            cut = rest.rfind(b"\n") + 1
            yield rest[:cut]
            rest = rest[cut:]
    yield rest


def _keys(chunk: bytes) -> list[bytes]:
    lowered = chunk.lower()
    plain: list[bytes] = _PLAIN.findall(lowered)
    if len(plain) == len(lowered.split()):
        return plain
    found = (entry_key(line) for line in chunk.decode("utf-8", "replace").splitlines())
    return [key.encode() for key in found if key is not None]


def _hash(key: bytes) -> int:
    return xxhash.xxh3_64_intdigest(key)


def _save(path: Path, array: NDArray[np.generic]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            np.save(file, array)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
