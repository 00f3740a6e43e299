"""Blocklists of domains and URLs: reading, a compact index, look-up.

    files ─► find_sources (files by category) ─► entry_key of each line ─► load_index (sorted hashes)
    URL   ─► keys_of (of the entries that would match it) ─► Index.find ─► category and entry

Folders have the layout of the lists of the Université Toulouse Capitole (UT1): one folder per category, in it
`domains` and `urls`, one entry per line, plain or gzip. No list is part of this project.

A key has no scheme, no port and no "www.", because lists and pages differ in them: "b.example.com" for a domain,
"example.com/a/b" for a URL. The parser is ada (WHATWG URLs).

Five million domains take 50 MB and are read in seconds; the index is stored in the cache folder of the machine
(`tasks.core.cache`), from which all workers map it into memory. The chance of a hash collision per look-up is below one
in 10^12 (XXH3, 64 bits). Entries themselves are not stored.
"""

import gzip
import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import ada_url
import numpy as np
import xxhash
from numpy.typing import NDArray

from tasks.core import cache, npy
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.web.url import authority, bare, split_port, target

_LIST_NAMES = ("domains", "domains.gz", "urls", "urls.gz")

_MOST_KEYS = 24
"""Domains and beginnings of the path that are looked up. The shallow ones come first, since lists contain these:
whatever is appended to a URL does not displace them."""

_CUT = re.compile(r"[/?&]+")

_FORMAT = "blocklist-1"
_CHUNK = 1 << 23
# A line with nothing but a domain in ASCII, which nearly all are: read without parsing, ten times as fast.
_PLAIN = re.compile(rb"^[ \t]*(?:www\.)?([a-z0-9_](?:[a-z0-9._-]*[a-z0-9])?)[ \t\r]*$", re.MULTILINE)


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


def find_sources(folders: Sequence[str], files: Mapping[str, str], categories: Sequence[str] | None) -> list[Source]:
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


def load_index(sources: Sequence[Source]) -> Index:
    """Returns the entries of all sources; one that is in several has the category of the first."""
    names = list(dict.fromkeys(source.category for source in sources))
    hashes, categories = [cache.folder() / f"{_content(sources)}.{part}.npy" for part in ("hashes", "categories")]
    if not (hashes.exists() and categories.exists()):
        read = _read(sources, names)
        _save(hashes, read[0])
        _save(categories, read[1])
    # Memory-mapped: pages that are never looked up stay on disk, and workers share the rest.
    return Index(npy.load(hashes, mapped=True), npy.load(categories, mapped=True), names)


def keys_of(url: str) -> Iterator[str]:
    """Yields the keys of every entry that matches a URL, the closest first.

    First the URL itself, without its query, and its prefixes, cut at "/", "?" and "&"; then its host and the parent
    domains down to two labels. Of a very long URL those in between are left out. An IP address has no parent domain.

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
    """Returns the key of one line of a list, or None where it has no entry.

    Read are domains, "*.domain", URLs with or without scheme, and lines of a hosts file ("0.0.0.0 domain"); "#" and "!"
    begin comments.

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
    """Returns host and path with query of a URL in canonical form, or None where it is no http or https URL.

    >>> host_and_path("HTTPS://www.Bücher.example:8080/a/../b?q=1#top")
    ('xn--bcher-kva.example', '/b?q=1')
    """
    try:
        href = ada_url.normalize_url(url)
    except (ValueError, UnicodeError):
        return None
    if not href.startswith(("http://", "https://")):
        return None
    host, _ = split_port(authority(href).rpartition("@")[2])
    return bare(host.rstrip(".")), target(href).partition("#")[0]


def _file(category: str, path: str) -> Source:
    folder, _, name = path.rpartition("/")
    source = Source(_word(category), folder or ("/" if path.startswith("/") else "."), name)
    if not name or not Store(source.folder).exists(name):
        raise InputError(f"the blocklist {path} is not there", "correct the path, or put the list there")
    return source


def _folder(folder: str) -> Iterator[Source]:
    for path in Store(folder).list(""):
        category, _, name = path.rpartition("/")
        if category and name in _LIST_NAMES:
            yield Source(_word(category), folder, path)


def _word(category: str) -> str:
    """Returns the category as a machine word: it becomes part of a reason."""
    return re.sub(r"[^a-z0-9]+", "_", category.lower()).strip("_") or "unnamed"


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
            hashes.append(np.fromiter(map(_hash, _chunk_keys(chunk)), np.uint64))
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


def _chunk_keys(chunk: bytes) -> list[bytes]:
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
