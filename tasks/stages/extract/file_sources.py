"""Selection of the files of a source: those that match its pattern without the excluded ones, or a sample of them.

Reads the names and sizes of external files.
"""

import fnmatch
import sysconfig

from tasks.core.errors import InputError
from tasks.formats.documents.external_files import SourceFile, find
from tasks.formats.documents.text import hash64
from tasks.stages.extract.config import PLACEHOLDERS, FileSource


def find_files(source: FileSource) -> list[SourceFile]:
    """Returns the files of a source in name order.

    Raises:
        InputError: the pattern matches no file, or all of them are excluded.
        StoreError, TransientError: the object store that it names cannot be used, or did not answer.
    """
    pattern = source.path
    for placeholder, name in PLACEHOLDERS.items():
        pattern = pattern.replace(placeholder, sysconfig.get_path(name))
    found = find(pattern, f'the file source "{source.name}"')
    kept = [file for file in found if not any(fnmatch.fnmatch(file.name, glob) for glob in source.exclude)]
    if not kept:
        raise InputError(f'the file source "{source.name}" excludes all {len(found)} files', "correct its exclude")
    return sorted(_sample(kept, source), key=lambda file: file.name)


def _sample(files: list[SourceFile], source: FileSource) -> list[SourceFile]:
    if source.max_files is None and source.max_bytes is None:
        return files
    # By hash of the name: a sample of the whole tree, the same on every machine.
    ordered = sorted(files, key=lambda file: (hash64(file.name), file.name))[: source.max_files]
    taken, total = [], 0
    for file in ordered:
        total += file.bytes
        if source.max_bytes is not None and total > source.max_bytes:
            break
        taken.append(file)
    return taken or ordered[:1]
