"""Blocklists of domains and URLs: parsing, a compact index, and lookup.

    files ─► find_files (files by category) ─► entry_key of each line ─► load_index (sorted hashes)
    URL   ─► keys_of (keys of all entries that would match it) ─► BlocklistIndex.find ─► category and entry

Folders have the layout of the lists of the Université Toulouse Capitole (UT1): one folder per category with the files
`domains` and `urls`, one entry per line, plain or gzip. No list is part of this project.

A key has no scheme, no port and no "www.", because lists and pages differ in them: "b.example.com" for a domain,
"example.com/a/b" for a URL. URLs are parsed by ada (WHATWG).

Five million domains take 50 MB and load in seconds. The index is stored in the cache folder of the machine
(`tasks.core.cache`), and all workers map it into memory. The probability of a hash collision is below 10^-12 per lookup
(XXH3, 64 bits). The entries themselves are not stored.
"""

import gzip
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import ada_url
import numpy as np
import xxhash
from numpy.typing import NDArray

from tasks.core import cache
from tasks.core.errors import InputError
from tasks.core.open_files import load_array
from tasks.core.store import Store
from tasks.formats.web.url import authority, bare, identity, split_port, target

_LIST_NAMES = ("domains", "domains.gz", "urls", "urls.gz")

_MOST_KEYS = 24
"""Maximum number of domains and of path prefixes that are looked up for one URL. The shortest prefixes are used,
because lists contain those; appending to a URL does not displace them."""

_CUT = re.compile(r"[/?&]+")

_FORMAT = "blocklist-2"
_CHUNK = 1 << 23
# A line with nothing but an ASCII domain, as nearly all are. Matching it is ten times as fast as parsing a URL.
_PLAIN = re.compile(rb"^[ \t]*(?:www\.)?([a-z0-9_](?:[a-z0-9._-]*[a-z0-9])?)[ \t\r]*$", re.MULTILINE)


class BlocklistFile(NamedTuple):
    """One file of a blocklist and the category of its entries."""

    category: str
    folder: str
    name: str

    @property
    def local(self) -> str:
        """Path of the file on this machine; a remote file is fetched into the cache."""
        return Store(self.folder).local(self.name)

    def open(self) -> BinaryIO:
        """Opens the file for reading, decompressed."""
        return cast(BinaryIO, (gzip.open if self.name.endswith(".gz") else open)(self.local, "rb"))


class BlocklistIndex:
    """Entries of blocklists, by hash.

    Args:
        hashes: uint64 of shape (n_entries,), ascending.
        categories: uint16 of shape (n_entries,): category of each entry as an index into `names`.
        names: the categories.
    """

    def __init__(self, hashes: NDArray[np.uint64], categories: NDArray[np.uint16], names: Sequence[str]) -> None:
        self._hashes = hashes
        self._categories = categories
        self._names = names

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, keys: Sequence[str]) -> list[str | None]:
        """Returns the category of each key, or None if no entry has this key."""
        if not len(self):
            return [None] * len(keys)
        hashes = np.fromiter((_hash(key.encode()) for key in keys), np.uint64, len(keys))
        positions = np.minimum(np.searchsorted(self._hashes, hashes), len(self) - 1)
        hits = self._hashes[positions] == hashes
        return [self._names[self._categories[at]] if hit else None for at, hit in zip(positions, hits, strict=True)]


def find_files(
    folders: Sequence[str], files: Mapping[str, str], categories: Sequence[str] | None
) -> list[BlocklistFile]:
    """Returns the files to read: first those of `files`, then those of the folders in order of folder and category.

    Args:
        folders: local folders or store URLs, each with one folder per category.
        files: path or URL of a list, by category.
        categories: the categories of the folders to read; None for all.

    Raises:
        InputError: a folder, a file or a category is missing.
    """
    selected = [_file(category, path) for category, path in sorted(files.items())]
    available: set[str] = set()
    for folder in folders:
        sources = list(_folder(folder))
        if not sources:
            raise InputError(f"{folder} has no <category>/domains or <category>/urls", "unpack the lists there")
        available.update(source.category for source in sources)
        selected += [source for source in sources if categories is None or source.category in categories]
    if missing := sorted(set(categories or ()) - available):
        raise InputError(f"no folder has the category {missing[0]}", f"choose from {', '.join(sorted(available))}")
    return selected


def load_index(sources: Sequence[BlocklistFile]) -> BlocklistIndex:
    """Returns the index of all files; an entry that is in several of them has the category of the first."""
    names = list(dict.fromkeys(source.category for source in sources))
    hashes, categories = [cache.folder() / f"{_cache_key(sources)}.{part}.npy" for part in ("hashes", "categories")]
    if not (hashes.exists() and categories.exists()):
        hash_array, category_array = _read(sources, names)
        _save(hashes, hash_array)
        _save(categories, category_array)
    # Memory-mapped: pages that are never looked up are never loaded, and workers share the rest.
    return BlocklistIndex(load_array(hashes, mapped=True), load_array(categories, mapped=True), names)


def keys_of(url: str) -> Iterator[str]:
    """Yields the keys of all entries that would match a URL, the most specific first.

    These are the URL itself, the URL without its query, and its prefixes up to each "/", "?" and "&"; then its host
    and the parent domains down to two labels. For a very long URL only the longest and the shortest ones are yielded.
    An IP address has no parent domain.

    >>> list(keys_of("http://a.b.example.com/x/y?q=1"))[:4]
    ['a.b.example.com/x/y?q=1', 'a.b.example.com/x/y', 'a.b.example.com/x', 'a.b.example.com']
    >>> list(keys_of("http://a.b.example.com/"))
    ['a.b.example.com', 'b.example.com', 'example.com']
    """
    parts = host_and_path(url)
    if parts is None:
        return
    host, path = parts
    path = path.rstrip("/")
    ends = {len(path), len(path.partition("?")[0].rstrip("/"))}
    ends.update(cut.start() for cut in islice(_CUT.finditer(path), _MOST_KEYS + 1))
    for end in sorted(ends - {0}, reverse=True):
        yield host + path[:end]
    yield host
    if host.endswith("]") or host.replace(".", "").isdigit():
        return
    labels = host.split(".")[-_MOST_KEYS:]
    yield from (".".join(labels[first:]) for first in range(1, len(labels) - 1))


def entry_key(line: str) -> str | None:
    """Returns the key of one line of a list, or None if the line has no entry.

    An entry is a domain, "*.domain", a URL with or without a scheme, or a line of a hosts file ("0.0.0.0 domain"). "#"
    and "!" begin comments.

    >>> [entry_key(line) for line in ("0.0.0.0 ads.example.com # x", "http://Example.org/A/", "*.example.net", "# no")]
    ['ads.example.com', 'example.org/A', 'example.net', None]
    """
    words = line.partition("#")[0].split()
    if not words or words[0].startswith("!"):
        return None
    entry = words[-1] if len(words) == 2 and words[0] in ("0.0.0.0", "127.0.0.1", "::", "::1") else words[0]
    entry = entry.removeprefix("*").removeprefix(".")
    parts = host_and_path(entry if "://" in entry else f"http://{entry}")
    return None if parts is None or not parts[0] else parts[0] + parts[1].rstrip("/")


def host_and_path(url: str) -> tuple[str, str] | None:
    """Returns the host, and the `identity` of path and query, of a URL; None if it is not http or https.

    >>> host_and_path("HTTPS://www.Bücher.example:8080/a/../%7eb?q=1#top")
    ('xn--bcher-kva.example', '/~b?q=1')
    """
    try:
        href = ada_url.normalize_url(url)
    except (ValueError, UnicodeError):
        return None
    if not href.startswith(("http://", "https://")):
        return None
    host, _ = split_port(authority(href).rpartition("@")[2])
    return bare(host.rstrip(".")), identity(target(href).partition("#")[0])


def _file(category: str, path: str) -> BlocklistFile:
    source = BlocklistFile(_slug(category), *os.path.split(path))
    if not source.name or not Store(source.folder).exists(source.name):
        raise InputError(f"the blocklist {path} does not exist", "correct the path, or put the list there")
    return source


def _folder(folder: str) -> Iterator[BlocklistFile]:
    for path in Store(folder).list(""):
        category, _, name = path.rpartition("/")
        if category and name in _LIST_NAMES:
            yield BlocklistFile(_slug(category), folder, path)


def _slug(category: str) -> str:
    """Returns the category in lower-case letters, digits and underscores, as part of a reason."""
    return re.sub(r"[^a-z0-9]+", "_", category.lower()).strip("_") or "unnamed"


def _cache_key(sources: Sequence[BlocklistFile]) -> str:
    digest = hashlib.sha256(_FORMAT.encode())
    for source in sources:
        with open(source.local, "rb") as file:
            digest.update(f"\n{source.category}\n{source.name}\n".encode())
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"blocklist-{digest.hexdigest()[:40]}"


def _read(sources: Sequence[BlocklistFile], names: list[str]) -> tuple[NDArray[np.uint64], NDArray[np.uint16]]:
    hashes, categories = [np.empty(0, np.uint64)], [np.empty(0, np.uint16)]
    for source in sources:
        for chunk in _chunks(source):
            hashes.append(np.fromiter(map(_hash, _chunk_keys(chunk)), np.uint64))
            categories.append(np.full(len(hashes[-1]), names.index(source.category), np.uint16))
    # `np.unique` sorts stably, so the first of equal entries is kept.
    unique, first = np.unique(np.concatenate(hashes), return_index=True)
    return unique, np.concatenate(categories)[first]


def _chunks(source: BlocklistFile) -> Iterator[bytes]:
    """Yields whole lines, `_CHUNK` bytes at a time."""
    rest = b""
    with source.open() as file:
        while data := file.read(_CHUNK):
            rest += data
            cut = rest.rfind(b"\n") + 1
            yield rest[:cut]
            rest = rest[cut:]
    yield rest


def _chunk_keys(chunk: bytes) -> list[bytes]:
    lowered = chunk.lower()
    domains: list[bytes] = _PLAIN.findall(lowered)
    if len(domains) == len(lowered.split()):
        return domains
    keys = (entry_key(line) for line in chunk.decode("utf-8", "replace").splitlines())
    return [key.encode() for key in keys if key is not None]


def _hash(key: bytes) -> int:
    return xxhash.xxh3_64_intdigest(key)


def _save(path: Path, array: NDArray[np.generic]) -> None:
    with cache.claim_copy(path, array.nbytes) as aside:
        if aside:
            with aside.open("wb") as file:
                np.save(file, array)
            os.replace(aside, path)
