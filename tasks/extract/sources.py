"""Which files a source takes: on this machine, or on an object store.

Reads the names and sizes of files outside the store, used by `stage` and `files`.
"""

import fnmatch
import glob
import os
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass

from tasks.errors import InputError
from tasks.extract.config import FileSource
from tasks.store import Store
from tasks.text import hash64

_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_MAGIC = "*?["
_WILD = re.compile(r"\*\*/|\*\*?|\?|\[!?[^\]]+\]")
_MEANING = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_PLACEHOLDERS = {"{stdlib}": "stdlib", "{site_packages}": "purelib"}


@dataclass(frozen=True)
class SourceFile:
    """One file of a source.

    Attributes:
        path: where it stands: a local path, or an fsspec URL ("s3://bucket/folder/file").
        name: what it is called in the corpus: its path below the fixed folder of the pattern.
        bytes: its size as it stands.
    """

    path: str
    name: str
    bytes: int

    @property
    def codec(self) -> str | None:
        """The compression that the end of the name tells, as Arrow calls it."""
        return _CODECS.get(os.path.splitext(self.name)[1])

    def local(self) -> str:
        """Returns a local path; an object is fetched once into the cache of this machine."""
        if "://" not in self.path:
            return self.path
        return Store(self.path.removesuffix(f"/{self.name}")).local(self.name)


def find_files(source: FileSource) -> list[SourceFile]:
    """Returns the files of a source in name order.

    Raises:
        InputError: the pattern is not absolute or matches no file.
        StoreError, TransientError: the object store that it names cannot be used, or did not answer.
    """
    pattern = source.path
    for placeholder, name in _PLACEHOLDERS.items():
        pattern = pattern.replace(placeholder, sysconfig.get_path(name))
    folder = _fixed_folder(pattern)
    where = f'the pattern "{source.path}" of the file source "{source.name}"'
    if "://" in pattern:
        found = list(_objects(folder, pattern.removeprefix(f"{folder}/")))
    elif os.path.isabs(pattern):
        found = [_local(path, folder) for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    else:
        raise InputError(f"{where} is not absolute", "begin it with /, {stdlib}, {site_packages} or s3://")
    kept = [file for file in found if not any(fnmatch.fnmatch(file.name, glob_) for glob_ in source.exclude)]
    if not kept:
        raise InputError(f"{where} matches no file below {folder}", "correct it, or remove the source from the recipe")
    return sorted(_sample(kept, source), key=lambda file: file.name)


def _fixed_folder(pattern: str) -> str:
    steps = pattern.split("/")
    fixed = next((i for i, step in enumerate(steps) if any(char in step for char in _MAGIC)), len(steps) - 1)
    return "/".join(steps[:fixed]) or "/"


def _local(path: str, folder: str) -> SourceFile:
    return SourceFile(path, os.path.relpath(path, folder).replace(os.sep, "/"), os.path.getsize(path))


def _objects(folder: str, pattern: str) -> Iterator[SourceFile]:
    store, wanted = Store(folder), _compiled(pattern)
    for name in store.list(""):
        if wanted.fullmatch(name):
            yield SourceFile(f"{folder}/{name}", name, store.size(name))


def _compiled(pattern: str) -> re.Pattern[str]:
    """Returns a glob as a regular expression: `**` stands for any number of folders, `*` and `?` for no slash."""
    parts, at = [], 0
    for wild in _WILD.finditer(pattern):
        parts += [re.escape(pattern[at : wild.start()]), _MEANING.get(wild[0]) or wild[0].replace("[!", "[^")]
        at = wild.end()
    return re.compile("".join([*parts, re.escape(pattern[at:])]), re.S)


def _sample(files: list[SourceFile], source: FileSource) -> list[SourceFile]:
    if source.max_files is None and source.max_bytes is None:
        return files
    # By hash of the name: a sample of the whole tree, not its first folders, and the same one on every machine.
    ordered = sorted(files, key=lambda file: (hash64(file.name), file.name))[: source.max_files]
    taken, total = [], 0
    for file in ordered:
        total += file.bytes
        if source.max_bytes is not None and total > source.max_bytes:
            break
        taken.append(file)
    return taken or ordered[:1]
