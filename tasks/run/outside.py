"""Inputs from outside the store: files that settings name, datasets of the Hugging Face hub, tables of lakes, and code.

A file enters by name and hash. A dataset is read at one commit by all runs of a version, and its files enter by the
hashes that the hub states, without a download. A table is read at one snapshot, which is its content. Code enters by
its own version.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from tasks.core import hub
from tasks.core.artifact import CODE, EXTERNAL, Artifact, ArtifactId, InputRef
from tasks.core.config import Config, sha256_of_json
from tasks.core.digest import sha256_of_stream
from tasks.core.errors import InputError
from tasks.core.store import AlreadyPublished, Store, open_outside
from tasks.formats.documents.external_files import DatasetFiles

PINS = ".pins"
"""Folder in an artifact that is not complete yet, with the commits and snapshots that its runs read."""


def external_refs(module: Any, config: Config) -> Iterator[InputRef]:
    """Yields references to the files outside the store that a stage reads, whose names and bytes are fingerprinted.

    Raises:
        InputError: a file cannot be read.
    """
    if not hasattr(module, "external"):
        return
    for role, paths in sorted(module.external(config).items()):
        listing = [[os.path.basename(path), _sha256(role, path)] for path in paths]
        content = sha256_of_json(listing)
        yield InputRef(role=role, address=f"{EXTERNAL}{role}", fingerprint=content, content=content)


def dataset_refs(module: Any, config: Config, store: Store, own: ArtifactId) -> Iterator[InputRef]:
    """Yields references to the datasets of the hub that a stage reads, each at one commit, which its address names.

    The commit is resolved once for a version: later runs of the version read it from the record, or before there is one
    from `PINS`. The files enter by name and hash, so that a commit which changes none of them is the same input.

    Raises:
        InputError, TransientError: see `tasks.core.hub.commit_of`; no file matches.
    """
    datasets: dict[str, DatasetFiles] = module.datasets(config) if hasattr(module, "datasets") else {}
    recorded = _recorded(store, own) if datasets else {}
    for role, dataset in sorted(datasets.items()):
        path = hub.parse(dataset.path)
        if (ref := recorded.get(role)) and ref.address == f"{EXTERNAL}{_at(path, ref)}":
            yield ref
            continue
        pinned = path._replace(revision=_pinned_commit(store, own, path))
        content = sha256_of_json([[file.name, file.digest] for file in dataset.find(str(pinned))])
        yield InputRef(role=role, address=f"{EXTERNAL}{pinned}", fingerprint=content, content=content)


def _recorded(store: Store, own: ArtifactId) -> dict[str, InputRef]:
    """Returns the inputs that a version has recorded, by role; {} if it is not complete."""
    existing = Artifact.find(store, own)
    return {ref.role: ref for ref in existing.record.inputs} if existing else {}


def _at(path: hub.HubPath, ref: InputRef) -> hub.HubPath:
    """Returns a path at the commit that a recorded input names; the path itself if it has a commit of its own."""
    address = ref.address.removeprefix(EXTERNAL)
    if path.is_pinned or not hub.is_dataset(address):
        return path
    return path._replace(revision=hub.parse(address).revision)


def table_refs(module: Any, config: Config, store: Store, own: ArtifactId) -> Iterator[InputRef]:
    """Yields references to the tables of lakes that a stage reads, each at one snapshot, which is its content.

    The snapshot is resolved once for a version, like the commit of a dataset.

    Raises:
        InputError: a table cannot be read.
    """
    tables = module.tables(config) if hasattr(module, "tables") else {}
    recorded = _recorded(store, own) if tables else {}
    for role, table in sorted(tables.items()):
        if (ref := recorded.get(role)) and ref.content.startswith(f"{table.format}:"):
            yield ref
            continue
        key = [table.format, table.path, table.version, table.timestamp]
        identity = _pinned(store, own, key, table.current)
        yield InputRef(role=role, address=f"{EXTERNAL}{role}", fingerprint=identity, content=identity)


def _pinned_commit(store: Store, own: ArtifactId, path: hub.HubPath) -> str:
    """Returns the commit that the first run of a version has found for a revision."""
    if path.is_pinned:
        return path.revision
    return _pinned(store, own, [path.dataset, path.revision], lambda: hub.commit_of(path))


def _pinned(store: Store, own: ArtifactId, key: list[Any], find: Callable[[], str]) -> str:
    """Returns what the first run of a version has found for a key."""
    pin = f"{own.path}/{PINS}/{sha256_of_json(key)[:16]}"
    if not store.exists(pin):
        with contextlib.suppress(AlreadyPublished):
            store.publish(pin, find().encode())
    return store.read(pin).decode()


def code_refs(module: Any, config: Config) -> Iterator[InputRef]:
    """Yields references to code with its own versions, which only some settings use."""
    if hasattr(module, "code"):
        for name, version in sorted(module.code(config).items()):
            yield InputRef(role=f"{CODE}{name}", address=f"{CODE}{name}", fingerprint=version, content=version)


def _sha256(role: str, path: str) -> str:
    try:
        with open_outside(path) as file:
            return sha256_of_stream(file)
    except OSError as error:
        raise InputError(f"{role}: {path} cannot be read ({error.strerror or error})", "correct the path") from None
