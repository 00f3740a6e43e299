"""External files: lists and unpacks files outside the store that match a pattern of a recipe.

Reads names, sizes and bytes, on this machine, on an object store or in a dataset of the Hugging Face hub. The packing
of a file is detected from its first bytes, because names can be wrong; if these are not conclusive, from its suffix, so
that a damaged file is not read as a plain one. gzip, zstd, bzip2 and zip are unpacked while they are read, in bounded
memory.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import pyarrow as pa

from tasks.core.clients import hub
from tasks.core.errors import InputError
from tasks.core.store import Store

log = logging.getLogger("sluice.formats")

CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""Compression by file name suffix, as Arrow names it."""
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
# Zip members that an operating system or an editor adds.
_JUNK = re.compile(r"(?:^|/)(?:__MACOSX/|\.)|(?:^|/)(?:thumbs\.db|desktop\.ini)$", re.I)

_MAGIC = "*?["
_WILD = re.compile(r"\*\*/|\*\*?|\?|\[!?[^\]]+\]")
_MEANING = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


@dataclass(frozen=True)
class SourceFile:
    """One file outside the store.

    Attributes:
        path: a local path, an fsspec URL ("s3://bucket/folder/file"), or a file of a commit ("hf://…@…/file").
        name: path relative to the fixed folder of the pattern that matched it.
        bytes: size as stored.
        digest: of a file of the hub, the hash that the hub states for it; "" of others.
    """

    path: str
    name: str
    bytes: int
    digest: str = ""

    @property
    def is_packed(self) -> bool:
        """Whether the file is compressed, by its suffix alone."""
        return codec_of(self.name) is not None or self.name.endswith(".zip")

    def packing(self) -> str | None:
        """Returns the compression as Arrow names it, ZIP or None; see `packing_of`."""
        return packing_of(self.local(), self.name)

    def local(self) -> str:
        """Returns a local path; a remote object is fetched once into the cache of this machine."""
        if "://" not in self.path:
            return self.path
        if hub.is_hub(self.path):
            return hub.local_copy(hub.parse_any(self.path), self.bytes, self.digest)
        return Store(self.path.removesuffix(f"/{self.name}")).local(self.name)

    @contextlib.contextmanager
    def open(self) -> Iterator[io.BufferedReader]:
        """Opens the file for reading, decompressed; raises InputError if it cannot be read to the end."""
        with self.readable():
            packing = self.packing()
            if packing == ZIP:
                raise OSError("it is a zip file")
            with open_decompressed(self.local(), packing) as file:
                yield file

    @contextlib.contextmanager
    def readable(self) -> Iterator[None]:
        """Converts errors of reading the file to InputError."""
        try:
            yield
        except (OSError, EOFError, pa.ArrowException) as error:
            raise InputError(f"{self.path} cannot be read ({error})", "fix it or remove it") from error


class DatasetFiles(NamedTuple):
    """Files of the hub that a stage reads: their pattern or address, and what returns its files."""

    path: str
    find: Callable[[str], Sequence[SourceFile]]


def find(pattern: str, setting: str) -> list[SourceFile]:
    """Returns the files that a pattern matches, sorted by name.

    Args:
        pattern: absolute glob, URL on an object store, or address of a dataset (its revision is resolved now); `**`
            matches any number of folders, `*` does not match "/".
        setting: the setting that has the pattern, for messages: 'the reference "wiki"'.

    Raises:
        InputError: the pattern is not absolute or matches no file, or the hub does not have or give the dataset.
        StoreError, TransientError: the object store or hub cannot be used, or did not answer.
    """
    folder = _fixed_folder(pattern)
    if hub.is_hub(pattern):
        files = list(_of_dataset(hub.parse(pattern)))
    elif "://" in pattern:
        files = list(_objects(folder, pattern.removeprefix(f"{folder}/")))
    elif os.path.isabs(pattern):
        files = [_local(path, folder) for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    else:
        raise InputError(f'the pattern "{pattern}" of {setting} is not absolute', "begin it with / or s3://")
    if not files:
        raise InputError(f'the pattern "{pattern}" of {setting} matches no file below {folder}', "correct it")
    return sorted(files, key=lambda file: file.name)


def model_file(address: str) -> list[SourceFile]:
    """Returns the file of a model of the hub that an address with a commit names, as the only item.

    Raises:
        InputError, TransientError: see `tasks.core.clients.hub.model_file`.
    """
    file = hub.model_file(hub.parse_model(address))
    return [SourceFile(address, os.path.basename(file.path), file.bytes, file.digest)]


def _fixed_folder(pattern: str) -> str:
    segments = pattern.split("/")
    fixed = next((i for i, step in enumerate(segments) if any(char in step for char in _MAGIC)), len(segments) - 1)
    return "/".join(segments[:fixed]) or "/"


def _local(path: str, folder: str) -> SourceFile:
    return SourceFile(path, os.path.relpath(path, folder).replace(os.sep, "/"), os.path.getsize(path))


def _objects(folder: str, pattern: str) -> Iterator[SourceFile]:
    regex = _compiled(pattern)
    for name, size in Store(folder).sizes("").items():
        if regex.fullmatch(name):
            yield SourceFile(f"{folder}/{name}", name, size)


def _of_dataset(pattern: hub.HubPath) -> Iterator[SourceFile]:
    pinned = pattern._replace(revision=hub.commit_of(pattern))
    folder = _fixed_folder(pattern.path).strip("/")
    below = f"{folder}/" if folder else ""
    regex = _compiled(pattern.path.removeprefix(below))
    for file in hub.files_below(pinned, folder):
        if regex.fullmatch(name := file.path.removeprefix(below)):
            yield SourceFile(str(pinned._replace(path=file.path)), name, file.bytes, file.digest)


def _compiled(pattern: str) -> re.Pattern[str]:
    """Returns a glob as a regular expression: `**` matches any number of folders, `*` and `?` do not match a slash."""
    parts, at = [], 0
    for wild in _WILD.finditer(pattern):
        parts += [re.escape(pattern[at : wild.start()]), _MEANING.get(wild[0]) or wild[0].replace("[!", "[^")]
        at = wild.end()
    return re.compile("".join([*parts, re.escape(pattern[at:])]), re.S)


def codec_of(name: str) -> str | None:
    """Returns the compression by the suffix of a name, as Arrow names it.

    >>> codec_of("wiki.jsonl.zst")
    'zstd'
    """
    return CODECS.get(os.path.splitext(name)[1])


def packing_by_head(head: bytes) -> str | None:
    """Returns the packing by the first bytes of a file: a compression as Arrow names it, ZIP, or None."""
    return next((name for magic, name in _PACKED if magic.match(head)), None)


def packing_of(path: str, name: str) -> str | None:
    """Returns the packing of a local file, by its first bytes, else by its suffix."""
    with open(path, "rb") as file:
        return packing_by_head(file.read(_HEAD)) or codec_of(name)


def other_kind(head: bytes) -> tuple[str, str] | None:
    """Returns the format of unpacked bytes and the remedy to suggest, or None for an unknown format.

    >>> other_kind(b"PAR1...")
    ('a Parquet file', 'set kind = "parquet"')
    """
    return next(((kind, remedy) for magic, kind, remedy in _OTHERS if magic.match(head)), None)


@contextlib.contextmanager
def open_decompressed(path: str, codec: str | None) -> Iterator[io.BufferedReader]:
    """Opens a local file for reading, decompressed; raises OSError if it is damaged."""
    with pa.OSFile(path) as raw:
        stream = pa.CompressedInputStream(raw, codec) if codec else raw
        yield io.BufferedReader(cast(io.RawIOBase, stream), 1 << 20)


@contextlib.contextmanager
def open_streams(path: str, packing: str | None, endings: re.Pattern[str]) -> Iterator[Iterator[Any]]:
    """Opens a local file and yields an iterator of its unpacked byte streams; read each before taking the next.

    Args:
        path: path of the file.
        packing: as returned by `packing_of`.
        endings: matches the names of the members to read of a zip file with several.

    Raises:
        OSError: the file is damaged, encrypted or a zip bomb, or no member can be selected. Reads from a stream must
            run inside `zip_errors` to raise OSError too.
    """
    with contextlib.ExitStack() as files:
        if packing != ZIP:
            raw = files.enter_context(pa.OSFile(path))
            yield iter([files.enter_context(pa.CompressedInputStream(raw, packing)) if packing else raw])
            return
        with zip_errors():
            archive = files.enter_context(zipfile.ZipFile(path))
            members = _selected_members(archive, os.path.getsize(path), endings)
        yield (stream for member in members for stream in _member(archive, member))


@contextlib.contextmanager
def zip_errors() -> Iterator[None]:
    """Converts errors of reading a zip file or its members to OSError."""
    try:
        yield
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error, EOFError, ValueError) as error:
        raise OSError(f"it cannot be unpacked: {error}") from error


def zip_files(archive: zipfile.ZipFile, size: int) -> list[zipfile.ZipInfo]:
    """Returns the members of a zip file of `size` bytes, without folders; raises OSError if they overlap."""
    files = [member for member in archive.infolist() if not member.is_dir()]
    # Deflate expands data a thousandfold at most; overlapping members have no limit.
    if sum(member.compress_size for member in files) > size:
        raise OSError("the members of the zip file overlap: it is a zip bomb")
    return files


def _selected_members(archive: zipfile.ZipFile, size: int, endings: re.Pattern[str]) -> list[zipfile.ZipInfo]:
    """Returns the members to read, in the order of the archive."""
    files = [member for member in zip_files(archive, size) if not _JUNK.search(member.filename)]
    selected = [member for member in files if endings.search(member.filename)] or files
    if len(selected) > 1 and selected is files:
        raise OSError(f"none of the {len(files)} files in the zip file has an expected suffix: unpack it")
    if not selected:
        raise OSError("the zip file holds no file")
    if len(selected) < len(files):
        _warn_skipped(
            str(archive.filename), ", ".join([member.filename for member in files if member not in selected][:10])
        )
    return selected


@functools.cache  # a file is opened several times
def _warn_skipped(path: str, names: str) -> None:
    log.warning("%s: members skipped by their suffixes: %s", path, names)


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[Any]:
    """Yields the stream of a member, decompressed if the member itself is compressed."""
    with zip_errors(), archive.open(member) as peeked:
        codec = packing_by_head(peeked.read(_HEAD))
    if codec == ZIP:
        raise OSError(f"{member.filename} of the zip file is a zip file itself: unpack it")
    with archive.open(member) as stream:
        if codec:
            with pa.CompressedInputStream(pa.PythonFile(stream, "r"), codec) as inner:
                yield inner
        else:
            yield stream
