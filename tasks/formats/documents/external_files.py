"""External files: files outside the store that a recipe names by a pattern; listing and unpacking.

Reads names, sizes and bytes, on this machine or on an object store.
"""

import contextlib
import glob
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.documents.packing import ZIP, codec_of, opened, packing_of

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
        """Returns the compression in Arrow's terms, ZIP or None; see `tasks.formats.documents.packing.packing_of`."""
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
