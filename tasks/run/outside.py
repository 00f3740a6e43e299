"""Inputs from outside the store: files that settings name, files of the Hugging Face hub, tables of lakes, and code.

A file enters by name and hash. Files of the hub are read at one commit by all runs of a version, and enter by the
hashes that the hub states, without a download. A table is read at one snapshot, which is its content. Code enters by
its own version.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from tasks.core.artifact import CODE, EXTERNAL, Artifact, ArtifactId, InputRef
from tasks.core.clients import hub
from tasks.core.config import Config, sha256_of_json
from tasks.core.digest import sha256_of_stream
from tasks.core.errors import InputError
from tasks.core.store import AlreadyPublished, Store, open_outside
from tasks.formats.documents.external_files import DatasetFiles
from tasks.formats.hooks import Hooks
from tasks.formats.lakes import TableAddress

PINS = ".pins"
"""Folder in an artifact that is not complete yet, with the commits and snapshots that its runs read."""


_ORDER = (list, DatasetFiles, TableAddress)
"""Kinds of inputs in the order of their references, which is part of fingerprints."""


def external_refs(hooks: Hooks[Any], config: Config, store: Store, own: ArtifactId) -> Iterator[InputRef]:
    """Yields references to the inputs from outside the store that a stage reads: files, then datasets, then tables.

    The commit of a dataset, which its address names, and the snapshot of a table, which is its content, are resolved
    once for a version: later runs of the version read them from the record, or before there is one from `PINS`.

    Raises:
        InputError: a file or table cannot be read, or no file of a dataset matches.
        TransientError: see `tasks.core.clients.hub.commit_of`.
    """
    declared = hooks.external(config) if hooks.external else {}
    is_pinned = any(not isinstance(source, list) for source in declared.values())
    recorded = _recorded(store, own) if is_pinned else {}
    for role, source in sorted(declared.items(), key=lambda item: (_ORDER.index(type(item[1])), item[0])):
        if isinstance(source, DatasetFiles):
            yield _dataset_ref(role, source, recorded.get(role), store, own)
        elif isinstance(source, TableAddress):
            yield _table_ref(role, source, recorded.get(role), store, own)
        else:
            content = sha256_of_json([[os.path.basename(path), _sha256(role, path)] for path in source])
            yield InputRef(role=role, address=f"{EXTERNAL}{role}", fingerprint=content, content=content)


def _dataset_ref(
    role: str, dataset: DatasetFiles, recorded: InputRef | None, store: Store, own: ArtifactId
) -> InputRef:
    """Returns the reference to files of the hub at one commit; one that changes none of them is the same input."""
    path = hub.parse_any(dataset.path)
    if recorded and recorded.address == f"{EXTERNAL}{_at(path, recorded)}":
        return recorded
    pinned = path
    if not path.is_pinned:
        commit = _pinned(store, own, [path.name, path.revision], lambda: hub.commit_of(path))
        pinned = path._replace(revision=commit)
    content = sha256_of_json([[file.name, file.digest] for file in dataset.find(str(pinned))])
    return InputRef(role=role, address=f"{EXTERNAL}{pinned}", fingerprint=content, content=content)


def _table_ref(role: str, table: TableAddress, recorded: InputRef | None, store: Store, own: ArtifactId) -> InputRef:
    if recorded and recorded.content.startswith(f"{table.format}:"):
        return recorded
    key = [table.format, table.path, table.version, table.timestamp]
    identity = _pinned(store, own, key, table.current)
    return InputRef(role=role, address=f"{EXTERNAL}{role}", fingerprint=identity, content=identity)


def _recorded(store: Store, own: ArtifactId) -> dict[str, InputRef]:
    """Returns the inputs that a version has recorded, by role; {} if it is not complete."""
    existing = Artifact.find(store, own)
    return {ref.role: ref for ref in existing.record.inputs} if existing else {}


def _at(path: hub.HubPath, ref: InputRef) -> hub.HubPath:
    """Returns a path at the commit that a recorded input names; the path itself if it has a commit of its own."""
    address = ref.address.removeprefix(EXTERNAL)
    if path.is_pinned or not hub.is_hub(address):
        return path
    return path._replace(revision=hub.parse_any(address).revision)


def _pinned(store: Store, own: ArtifactId, key: list[Any], find: Callable[[], str]) -> str:
    """Returns what the first run of a version has found for a key."""
    pin = f"{own.path}/{PINS}/{sha256_of_json(key)[:16]}"
    if not store.exists(pin):
        with contextlib.suppress(AlreadyPublished):
            store.publish(pin, find().encode())
    return store.read(pin).decode()


def code_refs(hooks: Hooks[Any], config: Config) -> Iterator[InputRef]:
    """Yields references to code with its own versions, which only some settings use."""
    for name, version in sorted(hooks.code(config).items() if hooks.code else ()):
        yield InputRef(role=f"{CODE}{name}", address=f"{CODE}{name}", fingerprint=version, content=version)


def _sha256(role: str, path: str) -> str:
    try:
        with open_outside(path) as file:
            return sha256_of_stream(file)
    except OSError as error:
        raise InputError(f"{role}: {path} cannot be read ({error.strerror or error})", "correct the path") from None
