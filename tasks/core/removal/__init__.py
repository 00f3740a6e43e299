"""Removal of the files of an artifact that nothing needs, except those that other versions refer to.

Reads the manifests of the versions that refer to it; writes, beside its record, `.removed.json` (`Removal`: when, why,
what is removed, and what stays for whom) and `.removal/`:

    <round>.begun    a further round has begun
    <round>.json     its decision: each path that stays, with the address of a version that refers to it

The first round begins with `.removed.json`. When the last version that refers to a file is removed, a further round
removes the file. A version that is removed itself keeps nothing. No removal begins while others have adopted the files,
unless it was decided with them (`tasks.core.removal.adoption`).

A commit that refers to the files and a removal can run at the same time, on any machines, and either can be killed. The
commit enters its references in the version index, then looks for a removal; the removal says that it has begun, then
looks for references. So at least one of them sees the other: either the files stay, or the commit is refused. Of two
removals one decides, since decisions are created exclusively, and both delete the same files; so when a round is
complete, all that it deletes is gone, and a commit that finds its files may use them.
"""

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from tasks.core import manifest
from tasks.core.artifact import RECORD, REMOVED, Artifact, ArtifactId, ArtifactRecord, Kept, Removal
from tasks.core.errors import DriftError, InputError, TransientError
from tasks.core.manifest import MANIFESTS, FileEntry, Parts
from tasks.core.removal.adoption import CLAIM, CLAIMS, close, is_closed
from tasks.core.store import AlreadyPublished, Store
from tasks.core.version_index import entered_users

ROUNDS = CLAIMS
_BEGUN, _DECISION = ".begun", ".json"


def begin(artifact: Artifact, why: str, at: datetime, adopters: Collection[ArtifactId] = ()) -> None:
    """Marks the files of an artifact as removed, from now on for all readers; `proceed` removes them.

    Args:
        artifact: the artifact.
        why: the reason.
        at: the time.
        adopters: versions that have adopted the files and do not need them either.

    Raises:
        InputError: a manifest is missing or damaged, or another version has adopted the files.
        ValueError: the files are those of another artifact, from which this one was adopted.
    """
    if artifact.record.adopted_from:
        raise ValueError(
            f"{artifact.address} has no files of its own: they are those of {artifact.record.adopted_from}"
        )
    for _ in artifact.parts.groups():  # without all manifests, the removal could not be completed
        pass
    close(artifact, Removal(at=at, why=why), adopters)


def proceed(artifact: Artifact, known: Iterable[ArtifactId] = ()) -> None:
    """Removes what no version refers to of an artifact whose removal has begun; may be repeated after a kill.

    Args:
        artifact: the artifact.
        known: versions that refer to it, beside those in the version index.

    Raises:
        InputError: a manifest is missing or damaged, of this artifact or of a version that refers to it.
    """
    store, removal = artifact.store, artifact.removal()
    assert removal, artifact.address
    last = _last_round(artifact.store, artifact.path)
    if removal.round == last:
        decided, referenced = (_decided(artifact, last), _referenced(artifact, known)) if removal.kept else ({}, {})
        if decided.keys() <= referenced.keys():
            if not removal.kept.keys() <= set(referenced.values()):  # others refer to them now
                _describe(artifact, removal, {path: referenced[path] for path in decided})
            return
        last += 1
        _create(store, f"{_round(artifact.path, last)}{_BEGUN}", b"")
    kept = _decide(artifact, last, known)
    before = _decided(artifact, last - 1) if last else None
    for group in artifact.parts.groups():
        candidates = [entry.path for entry in group.entries_at("") if before is None or entry.path in before]
        store.remove_files([f"{artifact.path}/{path}" for path in candidates if path not in kept])
    _describe(artifact, removal.model_copy(update={"round": last}), kept)


def _describe(artifact: Artifact, removal: Removal, kept: dict[str, str]) -> None:
    """Writes `.removed.json`: how many files are gone, and how many stay for whom."""
    gone, stay = 0, dict[str, Kept]()
    for entry in artifact.parts.entries_at(""):
        if by := kept.get(entry.path):
            so_far = stay.get(by, Kept(files=0, bytes=0))
            stay[by] = Kept(files=so_far.files + 1, bytes=so_far.bytes + entry.bytes)
        else:
            gone += 1
    described = removal.model_copy(update={"files": gone, "kept": dict(sorted(stay.items()))})
    with artifact.store.write(f"{artifact.path}/{REMOVED}") as file:
        file.write(described.model_dump_json().encode())


def remove_files(artifact: Artifact, why: str, at: datetime) -> None:
    """Removes the files of an artifact that no version refers to, and keeps its record; see `begin` and `proceed`."""
    begin(artifact, why, at)
    proceed(artifact)


def is_complete(removal: Removal) -> bool:
    """Returns whether all files that nothing referred to are gone: the removal was not killed in its first round."""
    return removal.round >= 0


def check_references(store: Store, record: ArtifactRecord) -> None:
    """Checks that the files of other versions that an artifact refers to stay; after it is entered in the index.

    Raises:
        TransientError: they are being removed now.
        InputError: they are gone.
    """
    own = ArtifactId.parse(record.artifact)
    for address in map(ArtifactId.parse, record.elsewhere()):
        removal = None
        with contextlib.suppress(FileNotFoundError):
            removal = Removal.model_validate_json(store.read(f"{address.path}/{REMOVED}"))
        remedy = "run the stage again: it takes over parts of a version whose files exist, or makes them"
        if removal and removal.round != _last_round(store, address.path):
            cause = f"{own} takes over parts of {address}, whose files are being removed ({removal.why})"
            raise TransientError(cause, f"let `sluice gc` end, then {remedy}")
        why, sizes = removal.why if removal else "not by `sluice gc`", store.sizes(address.path)
        for entry in Parts(store, own.path, record.manifests).entries_at(address.version):
            if sizes.get(entry.path) != entry.bytes:
                cause = f"{own} takes over parts of {address}, whose files were removed in the meantime"
                raise InputError(f"{cause}, such as {entry.path} ({why})", remedy)


def check_referrers(store: Store, record: ArtifactRecord) -> None:
    """Checks that an artifact has the files that other versions refer to, if it was made before and removed by hand.

    Raises:
        DriftError: a version refers to a file of an earlier artifact of this id that has other bytes, or none.
    """
    own = ArtifactId.parse(record.artifact)
    for user in entered_users(store, own):
        if user.name != own.name or user == own:
            continue
        found = None
        with contextlib.suppress(InputError):  # what it was adopted from is gone
            found = Artifact.find(store, user)
        if found is None or found.record.adopted_from or found.removal():  # unfinished ones are checked at their commit
            continue
        wanted = {entry.path: entry.sha256 for entry in found.parts.entries_at(own.version)}
        for entry in Parts(store, own.path, record.manifests).entries_at("") if wanted else ():
            if wanted.get(entry.path) == entry.sha256:
                del wanted[entry.path]
        if wanted:
            cause = f"{user} refers to files of an earlier {own}, which has other bytes now, such as {min(wanted)}"
            raise DriftError(cause, "give the run another version")


def forget(store: Store, address: ArtifactId) -> None:
    """Removes what an earlier artifact of this id has left of its removal, if its record is gone."""
    if not store.sizes(f"{address.path}/{ROUNDS}"):
        return
    names = store.names(address.path)
    if RECORD not in names and (REMOVED in names or is_closed(store, address.path)):
        store.remove(f"{address.path}/{ROUNDS}")
        store.remove(f"{address.path}/{REMOVED}")


def _decide(artifact: Artifact, number: int, known: Iterable[ArtifactId]) -> dict[str, str]:
    """Returns which files stay, and who refers to each: as another process has decided, or by the references now."""
    with contextlib.suppress(FileNotFoundError):
        return _decided(artifact, number)
    kept = _referenced(artifact, known)
    if number:
        before = _decided(artifact, number - 1)
        kept = {path: by for path, by in kept.items() if path in before}
    try:
        artifact.store.publish(f"{_round(artifact.path, number)}{_DECISION}", json.dumps(kept, sort_keys=True).encode())
    except AlreadyPublished:
        return _decided(artifact, number)
    return kept


def _decided(artifact: Artifact, number: int) -> dict[str, str]:
    kept: dict[str, str] = json.loads(artifact.store.read(f"{_round(artifact.path, number)}{_DECISION}"))
    return kept


def _referenced(artifact: Artifact, known: Iterable[ArtifactId]) -> dict[str, str]:
    """Returns the paths of the files that other versions refer to, each with the address of one of them."""
    own, referenced = artifact.address, dict[str, str]()
    for user in sorted({*entered_users(artifact.store, own), *known}):
        if user.name == own.name and user != own:
            for entry in _references(artifact.store, user, own.version):
                referenced[entry.path] = str(user)
    return referenced


def _references(store: Store, user: ArtifactId, home: str) -> Iterator[FileEntry]:
    """Yields the files in the folder of a version that a committed artifact, or one that may yet be, refers to."""
    found = Artifact.find(store, user)
    unfinished: list[FileEntry] = []
    if found is None:
        for name in store.names(f"{user.path}/{MANIFESTS}"):
            with contextlib.suppress(FileNotFoundError):  # of an attempt that another one was faster than
                unfinished += manifest.read_files(store.read(f"{user.path}/{MANIFESTS}/{name}"), home)
        found = Artifact.find(store, user)
    if found is None:
        yield from unfinished
    elif found.removal() is None:
        yield from found.parts.entries_at(home)


def _last_round(store: Store, path: str) -> int:
    names = (name for name in store.names(f"{path}/{ROUNDS}") if not name.endswith(CLAIM))
    return max((int(name.partition(".")[0]) for name in names), default=0)


def _round(path: str, number: int) -> str:
    return f"{path}/{ROUNDS}/{number:04d}"


def _create(store: Store, path: str, data: bytes) -> None:
    """Creates a file, unless another process has."""
    with contextlib.suppress(AlreadyPublished):
        store.publish(path, data)
