"""External files: files outside the store that a recipe names by a pattern; listing, decompression, JSON lines.

Reads names, sizes and bytes, on this machine or on an object store.
"""

import contextlib
import glob
import io
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from tasks.core.errors import InputError
from tasks.core.store import Store

_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_MAGIC = "*?["
_WILD = re.compile(r"\*\*/|\*\*?|\?|\[!?[^\]]+\]")
_MEANING = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_BUFFER = 1 << 20


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
    def codec(self) -> str | None:
        """The compression by the suffix of the name, in Arrow's terms."""
        return codec_of(self.name)

    def local(self) -> str:
        """Returns a local path; an object is fetched once into the cache of this machine."""
        if "://" not in self.path:
            return self.path
        return Store(self.path.removesuffix(f"/{self.name}")).local(self.name)

    @contextlib.contextmanager
    def open(self) -> Iterator[io.BufferedReader]:
        """Opens it for reading, decompressed; raises InputError when it cannot be read to the end."""
        try:
            with opened(self.local(), self.codec) as file:
                yield file
        except (OSError, EOFError, pa.ArrowException) as error:
            raise InputError(f"{self.path} cannot be read ({error})", "mend it or leave it out") from error

    def rows(self) -> Iterator[tuple[int, Any]]:
        """Yields number (from 1) and content of each non-blank line; raises InputError where one is not JSON."""
        with self.open() as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    try:
                        yield number, json.loads(line)  # bytes: with or without a byte order mark
                    except (ValueError, RecursionError) as error:
                        raise InputError(
                            f"{self.path}, line {number}: not JSON ({error})", "mend it or leave it out"
                        ) from None


def codec_of(name: str) -> str | None:
    """Returns the compression by the suffix of a name, in Arrow's terms.

    >>> codec_of("wiki.jsonl.zst")
    'zstd'
    """
    return _CODECS.get(os.path.splitext(name)[1])


@contextlib.contextmanager
def opened(path: str, codec: str | None) -> Iterator[io.BufferedReader]:
    """Opens a local file for reading, decompressed; raises OSError when it is damaged."""
    with pa.OSFile(path) as raw:
        stream = pa.CompressedInputStream(raw, codec) if codec else raw
        yield io.BufferedReader(cast(io.RawIOBase, stream), _BUFFER)


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
