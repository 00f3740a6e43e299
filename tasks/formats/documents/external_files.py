"""External files: files outside the store that a recipe names by a pattern; listing and unpacking.

Reads names, sizes and bytes, on this machine or on an object store. How a file is packed, and what else it may be, is
taken from its first bytes, since names lie; from the ending of its name where these do not say, so that a damaged file
is not taken for a plain one. gzip, zstd, bzip2 and zip are unpacked while they are read, in bounded memory.
"""

import contextlib
import functools
import glob
import io
import logging
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from tasks.core.errors import InputError
from tasks.core.store import Store

log = logging.getLogger("sluice.formats")

CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""Compressions by the suffix of a name, in Arrow's terms."""
ZIP = "zip"

_PACKED = (
    (re.compile(rb"\x1f\x8b\x08"), "gzip"),
    (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", re.S), "zstd"),
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), "bz2"),
    (re.compile(rb"PK(?:\x03\x04|\x05\x06)"), ZIP),
)
_TAR = 257
_OTHERS = (
    (re.compile(rb"(?s:.{%d})ustar" % _TAR), "a tar archive", "unpack it"),
    (re.compile(rb"\xfd7zXZ\0"), "an xz file", "unpack it, or pack it with zstd"),
    (re.compile(rb"7z\xbc\xaf\x27\x1c"), "a 7-Zip archive", "unpack it"),
    (re.compile(rb"Rar!"), "a RAR archive", "unpack it"),
    (re.compile(rb"\x04\x22\x4d\x18"), "an LZ4 file", "unpack it, or pack it with zstd"),
    (re.compile(rb"PAR1"), "a Parquet file", 'set kind = "parquet"'),
    (re.compile(rb"ARROW1"), "an Arrow file", "write it as Parquet"),
    (re.compile(rb"SQLite format 3\0"), "an SQLite database", "write its rows as JSON lines or Parquet"),
    (re.compile(rb"%PDF-"), "a PDF file", 'set kind = "pdf"'),
    (re.compile(rb"(?:WARC|warc)/[01]\."), "a WARC file", 'set kind = "warc"'),
    (re.compile(rb"\x89PNG|GIF8|\xff\xd8\xff"), "a picture", "leave it out"),
    (re.compile(rb"\s*<(?:!doctype|\?xml|html|rss|feed)", re.I), "HTML or XML", "leave it out, or convert it"),
)
_HEAD = 512
# Those of an operating system and of an editor, not of the author.
_ASIDE = re.compile(r"(?:^|/)(?:__MACOSX/|\.)|(?:^|/)(?:thumbs\.db|desktop\.ini)$", re.I)

_MAGIC = "*?["
_WILD = re.compile(r"\*\*/|\*\*?|\?|\[!?[^\]]+\]")
_MEANING = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


@dataclass(frozen=True)
class SourceFile:
    """One file outside the store.

    Attributes:
        path: a local path, or an fsspec URL ("s3://bucket/folder/file").
        name: its path below the fixed folder of the pattern that found it.
        bytes: its size as stored.
    """

    path: str
    name: str
    bytes: int

    @property
    def is_packed(self) -> bool:
        """Whether it is compressed, by the suffix of its name: nothing is read."""
        return codec_of(self.name) is not None or self.name.endswith(".zip")

    def packing(self) -> str | None:
        """Returns the compression in Arrow's terms, ZIP or None; see `packing_of`."""
        return packing_of(self.local(), self.name)

    def local(self) -> str:
        """Returns a local path; an object is fetched once into the cache of this machine."""
        if "://" not in self.path:
            return self.path
        return Store(self.path.removesuffix(f"/{self.name}")).local(self.name)

    @contextlib.contextmanager
    def open(self) -> Iterator[io.BufferedReader]:
        """Opens it for reading, decompressed; raises InputError when it cannot be read to the end."""
        with self.readable():
            packing = self.packing()
            if packing == ZIP:
                raise OSError("it is a zip file")
            with opened(self.local(), packing) as file:
                yield file

    @contextlib.contextmanager
    def readable(self) -> Iterator[None]:
        """Raises InputError for the errors of reading it."""
        try:
            yield
        except (OSError, EOFError, pa.ArrowException) as error:
            raise InputError(f"{self.path} cannot be read ({error})", "mend it or leave it out") from error


def find(pattern: str, whose: str) -> list[SourceFile]:
    """Returns the files that a pattern matches, sorted by name.

    Args:
        pattern: absolute glob or URL on an object store; `**` stands for any number of folders, `*` for none.
        whose: the setting that names the pattern, for messages: 'the reference "wiki"'.

    Raises:
        InputError: the pattern is not absolute or matches no file.
        StoreError, TransientError: the object store that it names cannot be used, or did not answer.
    """
    folder = _fixed_folder(pattern)
    if "://" in pattern:
        files = list(_objects(folder, pattern.removeprefix(f"{folder}/")))
    elif os.path.isabs(pattern):
        files = [_local(path, folder) for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    else:
        raise InputError(f'the pattern "{pattern}" of {whose} is not absolute', "begin it with / or s3://")
    if not files:
        raise InputError(f'the pattern "{pattern}" of {whose} matches no file below {folder}', "correct it")
    return sorted(files, key=lambda file: file.name)


def _fixed_folder(pattern: str) -> str:
    steps = pattern.split("/")
    fixed = next((i for i, step in enumerate(steps) if any(char in step for char in _MAGIC)), len(steps) - 1)
    return "/".join(steps[:fixed]) or "/"


def _local(path: str, folder: str) -> SourceFile:
    return SourceFile(path, os.path.relpath(path, folder).replace(os.sep, "/"), os.path.getsize(path))


def _objects(folder: str, pattern: str) -> Iterator[SourceFile]:
    store, regex = Store(folder), _compiled(pattern)
    for name in store.list(""):
        if regex.fullmatch(name):
            yield SourceFile(f"{folder}/{name}", name, store.size(name))


def _compiled(pattern: str) -> re.Pattern[str]:
    """Returns a glob as a regular expression: `**` stands for any number of folders, `*` and `?` for no slash."""
    parts, at = [], 0
    for wild in _WILD.finditer(pattern):
        parts += [re.escape(pattern[at : wild.start()]), _MEANING.get(wild[0]) or wild[0].replace("[!", "[^")]
        at = wild.end()
    return re.compile("".join([*parts, re.escape(pattern[at:])]), re.S)


def codec_of(name: str) -> str | None:
    """Returns the compression by the suffix of a name, in Arrow's terms.

    >>> codec_of("wiki.jsonl.zst")
    'zstd'
    """
    return CODECS.get(os.path.splitext(name)[1])


def packing_by_head(head: bytes) -> str | None:
    """Returns the packing by the first bytes of a file: a compression in Arrow's terms, ZIP, or None."""
    return next((name for magic, name in _PACKED if magic.match(head)), None)


def packing_of(path: str, name: str) -> str | None:
    """Returns the packing of a local file: by its first bytes, else by its name."""
    with open(path, "rb") as file:
        return packing_by_head(file.read(_HEAD)) or codec_of(name)


def other_kind(head: bytes) -> tuple[str, str] | None:
    """Returns what else unpacked bytes are and what to do with such a file, or None where they do not say.

    >>> other_kind(b"PAR1...")
    ('a Parquet file', 'set kind = "parquet"')
    """
    return next(((what, remedy) for magic, what, remedy in _OTHERS if magic.match(head)), None)


@contextlib.contextmanager
def opened(path: str, codec: str | None) -> Iterator[io.BufferedReader]:
    """Opens a local file for reading, decompressed; raises OSError when it is damaged."""
    with pa.OSFile(path) as raw:
        stream = pa.CompressedInputStream(raw, codec) if codec else raw
        yield io.BufferedReader(cast(io.RawIOBase, stream), 1 << 20)


@contextlib.contextmanager
def unpacked(path: str, packing: str | None, endings: re.Pattern[str]) -> Iterator[Iterator[Any]]:
    """Opens a local file; yields its streams of unpacked bytes one after the other, each to be read before the next.

    Args:
        path: of the file.
        packing: as `packing_of` returns it.
        endings: of the names of the members of a zip file that are meant, where it has several.

    Raises:
        OSError: the file is damaged, encrypted or made to exhaust the machine, or its members do not tell what is
            meant. What is read from a stream of a zip file raises it within `explained`.
    """
    with contextlib.ExitStack() as files:
        if packing != ZIP:
            raw = files.enter_context(pa.OSFile(path))
            yield iter([files.enter_context(pa.CompressedInputStream(raw, packing)) if packing else raw])
            return
        with explained():
            archive = files.enter_context(zipfile.ZipFile(path))
            members = _meant(archive, os.path.getsize(path), endings)
        yield (stream for member in members for stream in _member(archive, member))


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raises OSError for the errors of a zip file, and of what is in it, that is read."""
    try:
        yield
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error, EOFError, ValueError) as error:
        raise OSError(f"it cannot be unpacked: {error}") from error


def _meant(archive: zipfile.ZipFile, size: int, endings: re.Pattern[str]) -> list[zipfile.ZipInfo]:
    """Returns the members that hold what is looked for, in the order of the archive."""
    held = [member for member in archive.infolist() if not member.is_dir() and not _ASIDE.search(member.filename)]
    # Deflate unpacks to a thousand times its size at most; members that lie over each other have no limit.
    if sum(member.compress_size for member in held) > size:
        raise OSError("the members of the zip file lie over each other: it is made to exhaust who unpacks it")
    meant = [member for member in held if endings.search(member.filename)] or held
    if len(meant) > 1 and meant is held:
        raise OSError(f"none of the {len(held)} files in the zip file has the ending of what is looked for: unpack it")
    if not meant:
        raise OSError("the zip file holds no file")
    if len(meant) < len(held):
        _warn(str(archive.filename), ", ".join([member.filename for member in held if member not in meant][:10]))
    return meant


@functools.cache  # a file is opened several times
def _warn(path: str, names: str) -> None:
    log.warning("%s: not read, by the endings of their names: %s", path, names)


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[Any]:
    """Yields the bytes of a member, decompressed where it is compressed itself."""
    with explained(), archive.open(member) as peeked:
        codec = packing_by_head(peeked.read(_HEAD))
    if codec == ZIP:
        raise OSError(f"{member.filename} of the zip file is a zip file itself: unpack it")
    with archive.open(member) as stream:
        if codec:
            with pa.CompressedInputStream(pa.PythonFile(stream, "r"), codec) as inner:
                yield inner
        else:
            yield stream
