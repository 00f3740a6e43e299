"""Local disk buffer for closed parts of a crawl task, readable by the task's next attempt.

In the task's scratch folder, one folder per attempt:

    buffer/<attempt>/lock          locked while the attempt runs
    buffer/<attempt>/<stem>/...    the files of a part; closed when part.json (its record) is there

Nothing is fsynced: a kill loses nothing from the kernel's page cache, and after a crash of the machine the checksums in
part.json show which parts are complete.
"""

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from tasks.core.artifact import PartRecord
from tasks.core.digest import sha256_of_file
from tasks.core.errors import StoreError, TransientError
from tasks.core.store import Store

log = logging.getLogger("sluice.crawl")

MANIFEST = "part.json"


class Staging(Store):
    """A folder on this machine that is written straight, without the promises of a store."""

    @contextlib.contextmanager
    def write(self, path: str) -> Iterator[BinaryIO]:
        """Yields a binary file at `path`; a partly written one is kept.

        Raises:
            StoreError: the disk is full or may not be written.
        """
        try:
            with self._explained(path, remote_errors=False):
                full = self._full(path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "wb") as file:
                    yield cast(BinaryIO, file)
        except StoreError as error:
            raise StoreError(f"captures cannot be kept on this machine: {error.cause}", error.remedy) from error


@dataclass(frozen=True)
class Closed:
    """A part whose complete files are in `folder`, described by `record`."""

    folder: Path
    record: PartRecord

    @property
    def bytes(self) -> int:
        """Size of its files."""
        return sum(entry.bytes for entry in self.record.files)

    def remove(self) -> None:
        """Removes it from the disk."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Buffer:
    """The folder of one attempt, locked while it runs.

    Args:
        scratch: the task's scratch folder on this machine.
        attempt: name of this attempt.

    Attributes:
        folder: of this attempt.
        staging: the same, to write the files of parts to (below a stem of their own).
    """

    def __init__(self, scratch: str, attempt: str) -> None:
        self.folder = Path(scratch) / "buffer" / attempt
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder)
        self.staging = Staging(str(self.folder))

    def close_part(self, stem: str, record: PartRecord) -> Closed:
        """Declares the files below `stem` whole."""
        folder = self.folder / stem
        with self.staging.write(f"{stem}/{MANIFEST}.new") as file:
            file.write(record.model_dump_json().encode())
        os.replace(folder / f"{MANIFEST}.new", folder / MANIFEST)
        return Closed(folder, record)

    def found(self) -> list[Closed]:
        """Takes over and returns the closed parts of ended attempts on this machine; removes their other files.

        Raises:
            TransientError: another attempt has ended the task meanwhile, and has cleared its scratch folder.
        """
        try:
            return self._found()
        except FileNotFoundError:
            if self.folder.exists():
                raise
            cause = f"another attempt of this task has ended and cleared {self.folder.parent}"
            raise TransientError(cause, "the next try finds what it has stored") from None

    def _found(self) -> list[Closed]:
        found = []
        for folder in sorted(self.folder.parent.iterdir()):
            if folder == self.folder:
                continue
            lock = _lock(folder)
            if lock is None:
                log.warning("another attempt of this task is at work on this machine (%s)", folder)
                continue
            found += [closed for part in sorted(folder.iterdir()) if (closed := self._taken_over(part))]
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
        return sorted(found, key=lambda closed: closed.folder.name)

    def free(self) -> int:
        """Returns the free bytes of the disk; 0 when the folder is missing."""
        with contextlib.suppress(FileNotFoundError):
            return shutil.disk_usage(self.folder.parent.parent).free
        return 0

    def release(self, *, empty: bool) -> None:
        """Releases the folder: removes it when empty, else leaves it to the next attempt."""
        if self._lock is not None:
            if empty:
                shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    def _taken_over(self, folder: Path) -> Closed | None:
        try:
            record = PartRecord.model_validate_json((folder / MANIFEST).read_bytes())
            whole = all(sha256_of_file(folder / entry.path) == entry.sha256 for entry in record.files)
        except (OSError, ValueError):
            return None  # a file that was open
        if not whole:
            log.warning("the buffered part %s is damaged; its pages are fetched again", folder)
            return None
        mine = self.folder / folder.name
        os.replace(folder, mine)
        return Closed(mine, record)


def _lock(folder: Path) -> int | None:
    """Locks an attempt's folder for this process; returns the descriptor, or None when its owner is running."""
    # A record lock, not flock(): children that are forked do not inherit it, and it ends with the process.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor
    return None
