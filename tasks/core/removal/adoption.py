"""Claims on the files of an artifact: whether other versions may adopt them, or they are removed.

Reads and writes, beside the record of the artifact, `.removal/<number>.claim` (`Claim`): an adopter, or as the last one
the removal of the files. A claim is created exclusively under the number after the last one, so all processes see the
same order. A removal is refused while there is an adopter that it was not decided with, and nobody adopts after it.

An adopter claims before it publishes its record. Until then, and if it is killed, `.adopting` in its own folder shows
that the record may yet come; the next run of its stage removes the file. An adopter with neither does not count.
"""

import contextlib
from collections.abc import Collection, Sequence
from functools import partial

from tasks.core.artifact import RECORD, REMOVED, Artifact, ArtifactId, ArtifactRecord, Removal
from tasks.core.config import Config
from tasks.core.errors import InputError, TransientError
from tasks.core.remote import concurrently
from tasks.core.store import AlreadyPublished, Store

CLAIMS = ".removal"
"""Folder of the claims, and of the rounds of a removal."""
CLAIM = ".claim"
ADOPTING = ".adopting"


class Claim(Config):
    """Content of a claim: the address of an adopter, or the removal."""

    adopter: str = ""
    removal: Removal | None = None


def claim(source: Artifact, adopter: ArtifactId) -> None:
    """Claims the files of `source` for a version that adopts them; may be repeated after a kill.

    Raises:
        TransientError: they are being removed, or were.
    """
    store, number = source.store, 0
    with store.write(f"{adopter.path}/{ADOPTING}") as file:
        file.write(str(source.address).encode())
    if names := _names(store, source.path):
        number = _number(names[-1]) + 1
    while True:
        last = _read(store, source.path, _name(number - 1)) if number else Claim()
        if last.removal:
            _mark(store, source.path, last.removal)  # whoever claimed it may have been killed
            store.remove_files([f"{adopter.path}/{ADOPTING}"])
            raise TransientError(f"{source.address} is being removed ({last.removal.why})", "run the stage again")
        if last.adopter == str(adopter) or _append(store, source.path, number, Claim(adopter=str(adopter))):
            return
        number += 1


def close(artifact: Artifact, removal: Removal, adopters: Collection[ArtifactId]) -> None:
    """Claims the files for their removal, and marks them as removed for all readers; may be repeated after a kill.

    Args:
        artifact: the artifact with the files.
        removal: why and when.
        adopters: adopters that are known not to need the files.

    Raises:
        InputError: another version has adopted them in the meantime, or is adopting them.
    """
    store, path = artifact.store, artifact.path
    known = {str(adopter) for adopter in adopters}
    while True:
        names = _names(store, path)
        claims = list(concurrently(partial(_read, store, path), names))
        if claims and (earlier := claims[-1].removal):
            removal = earlier
            break
        for adopter in dict.fromkeys(one.adopter for one in claims if one.adopter not in known):
            _check(artifact, ArtifactId.parse(adopter))
        if _append(store, path, _number(names[-1]) + 1 if names else 0, Claim(removal=removal)):
            break
    _mark(store, path, removal)


def is_closed(store: Store, path: str) -> bool:
    """Returns whether the files in a folder of an artifact are claimed for their removal."""
    names = _names(store, path)
    return bool(names) and _read(store, path, names[-1]).removal is not None


def _check(artifact: Artifact, adopter: ArtifactId) -> None:
    """Raises InputError if an adopter has its record, or may yet publish it."""
    store, found = artifact.store, None
    comes = store.exists(f"{adopter.path}/{ADOPTING}")  # before the record, since it goes after the record has come
    with contextlib.suppress(FileNotFoundError):
        found = store.read(f"{adopter.path}/{RECORD}")
    if found is not None:
        try:
            record = ArtifactRecord.model_validate_json(found)
        except ValueError:
            raise InputError(
                f"the record of {adopter}, which has adopted its files, is not readable", "restore it"
            ) from None
        if (record.adopted_from, record.content) == (str(artifact.address), artifact.record.content):
            raise InputError(f"{adopter} has adopted its files in the meantime", "run `sluice gc` again")
    elif comes:
        remedy = f"run its stage again, or remove {store.url(adopter.path)}; then run `sluice gc` again"
        raise InputError(f"{adopter} is adopting its files, or was killed meanwhile", remedy)


def _names(store: Store, path: str) -> Sequence[str]:
    # `Store.names` sends two requests for a folder that does not exist, which is the usual case.
    return sorted(name for name in store.sizes(f"{path}/{CLAIMS}") if name.endswith(CLAIM))


def _name(number: int) -> str:
    return f"{number:06d}{CLAIM}"


def _number(name: str) -> int:
    return int(name.removesuffix(CLAIM))


def _read(store: Store, path: str, name: str) -> Claim:
    return Claim.model_validate_json(store.read(f"{path}/{CLAIMS}/{name}"))


def _append(store: Store, path: str, number: int, one: Claim) -> bool:
    """Publishes a claim; returns False if another process has published one with this number."""
    try:
        store.publish(f"{path}/{CLAIMS}/{_name(number)}", one.model_dump_json(exclude_defaults=True).encode())
    except AlreadyPublished:
        return False
    return True


def _mark(store: Store, path: str, removal: Removal) -> None:
    with contextlib.suppress(AlreadyPublished):
        store.publish(f"{path}/{REMOVED}", removal.model_dump_json().encode())
