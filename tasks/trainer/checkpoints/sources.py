"""Where a node finds the files of a checkpoint that are not on its disk: copies, and milestones of the artifact."""

import json
import shutil
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.core.part import PARTS
from tasks.core.store import Store
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.fork import Fork
from tasks.trainer.config import TrainSpec


class Source(Protocol):
    """Committed checkpoints in a store."""

    store: Store
    required: bool
    """Whether a run cannot start while the store is unavailable."""

    def steps(self) -> list[int]:
        """Returns the steps of the committed checkpoints, ascending, without verifying them; raises SluiceError."""

    def folder_of(self, step: int) -> str:
        """Returns the folder with the files of a committed checkpoint, relative to the store; raises SluiceError."""


class CopySource:
    """Copies of checkpoints in a folder of a store; a copy is committed by its marker (`copies`)."""

    def __init__(self, store: Store, folder: str, *, required: bool) -> None:
        self.store, self.folder, self.required = store, folder, required

    def steps(self) -> list[int]:
        """See `Source`."""
        return sorted(_steps_in(self.store, self.folder))

    def folder_of(self, step: int) -> str:
        """See `Source`."""
        return str(self.marker(step)["folder"])

    def marker(self, step: int) -> dict[str, Any]:
        """Returns the marker of a copy: fingerprint, folder, first and sha256; raises InputError if it is malformed."""
        path = self.marker_path(step)
        try:
            marker = json.loads(self.store.read(path))
            if not {"fingerprint", "folder", "first", "sha256"} <= marker.keys():
                raise ValueError("keys are missing")
        except (ValueError, AttributeError) as error:
            raise InputError(f"{self.store.url(path)} is not the marker of a copy ({error})") from error
        return dict(marker)

    def marker_path(self, step: int) -> str:
        """Returns the path of the marker of a copy."""
        return f"{self.folder}/{checkpoint.name_of(step)}.json"


class MilestoneSource:
    """The milestones of an artifact, whose folder in the store is given."""

    required = True

    def __init__(self, store: Store, artifact: str) -> None:
        self.store, self.artifact = store, artifact

    def steps(self) -> list[int]:
        """See `Source`."""
        return sorted(_steps_in(self.store, f"{self.artifact}/{PARTS}"))

    def folder_of(self, step: int) -> str:
        """See `Source`."""
        return f"{self.artifact}/checkpoints/{checkpoint.name_of(step)}"


def sources_of(spec: TrainSpec) -> list[Source]:
    """Returns the sources of a run on several nodes, in the order in which they are tried."""
    sources: list[Source] = []
    for copy in spec.copies:
        store = Store(copy.store)
        sources.append(CopySource(store, copy.folder, required=copy.required))
        if copy.required:
            sources.append(MilestoneSource(store, str(PurePosixPath(copy.folder).parent)))
    if spec.copies and spec.fork:
        sources.append(Fork(spec.fork, Path(spec.out)))
    return sources


def fetch_file(store: Store, folder: str, file: str, sha256: str, target: Path) -> None:
    """Copies a file of a checkpoint to `target`, which appears only after its SHA-256 is verified.

    Raises:
        FileNotFoundError, InputError: it is missing or damaged.
        SluiceError, OSError: the store cannot be read, or `target` not written.
    """
    unfinished = target.with_name(f".{target.name}")
    with store.open(f"{folder}/{file}") as source, unfinished.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
    if sha256_of_file(unfinished) != sha256:
        unfinished.unlink()
        raise InputError(f"{store.url(folder)}/{file} does not have the sha256 its checkpoint states", "delete it")
    unfinished.rename(target)


def _steps_in(store: Store, folder: str) -> list[int]:
    names = (path[len(folder) + 1 :].removesuffix(".json") for path in store.list(folder) if path.endswith(".json"))
    return [int(match[1]) for match in map(checkpoint.NAME.fullmatch, names) if match]
