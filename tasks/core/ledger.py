"""The ledger: the graph of artifacts and of the inputs they were made from.

Reads the records of all artifacts of a store. There is no second copy of them that could become inconsistent.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.errors import InputError
from tasks.core.remote import concurrently
from tasks.core.store import Store
from tasks.core.version_index import addresses, dependencies, entered_newness, newness

log = logging.getLogger("sluice.ledger")


class Ledger:
    """All artifacts of a store at the time the ledger is opened.

    An artifact whose record cannot be read is skipped with a warning, so that it does not hide the others.

    Args:
        store: the store to read.
        prefix: folder to read, such as a recipe's name; "" for all.
        kinds: kinds to read, such as "checkpoint", of any recipe; () for all.
    """

    def __init__(self, store: Store, prefix: str = "", kinds: Collection[str] = ()) -> None:
        self.store = store
        self._by_address: dict[str, Artifact] = {}
        self._unreadable: dict[str, InputError] = {}
        chosen = [id_ for id_ in addresses(store, prefix) if not kinds or id_.name.partition("/")[2] in kinds]
        for address, found in zip(chosen, concurrently(self._open, chosen), strict=True):
            if isinstance(found, Artifact):
                self._by_address[str(address)] = found
            else:
                log.warning("%s", found)
                self._unreadable[str(address)] = found

    def _open(self, address: ArtifactId) -> Artifact | InputError:
        try:
            return Artifact.open_at(self.store, address)
        except InputError as error:
            return error

    def __iter__(self) -> Iterator[Artifact]:
        return iter(
            sorted(self._by_address.values(), key=lambda artifact: (artifact.record.finished, artifact.address))
        )

    def find(self, address: str) -> Artifact:
        """Returns the artifact "name@version"; raises InputError."""
        if address in self._unreadable:
            raise self._unreadable[address]
        try:
            return self._by_address[address]
        except KeyError:
            raise InputError(f"no artifact {address} in {self.store.root}", "list them with `sluice ledger`") from None

    def ancestors(self, address: str) -> list[str]:
        """Returns the ids of all artifacts that `address` was made from or adopted from, nearest first, each once."""
        return self._walk(address, self._parents)

    def descendants(self, address: str) -> list[str]:
        """Returns the ids of all artifacts made from or adopted from `address`, nearest first, each once."""
        return self._walk(address, self._children)

    def drift(self, address: str) -> list[str]:
        """Returns one line for each input of `address` that is missing or whose content has changed since."""
        refs = self.find(address).record.inputs
        return [line for ref in refs if (line := changed(ref, self._by_address.get(ref.address)))]

    def _parents(self, address: str) -> list[str]:
        artifact = self._by_address.get(address)
        return dependencies(artifact.record) if artifact else []

    def _children(self, address: str) -> list[str]:
        return [str(user.address) for user in self if address in dependencies(user.record)]

    def _walk(self, address: str, neighbors: Callable[[str], list[str]]) -> list[str]:
        self.find(address)
        visited: dict[str, None] = {}
        front = [address]
        while front:
            front = [
                neighbor
                for current in front
                for neighbor in neighbors(current)
                if neighbor not in visited and neighbor != address
            ]
            visited.update(dict.fromkeys(front))
        return list(visited)


def changed(ref: InputRef, current: Artifact | None) -> str:
    """Returns how an input differs from the artifact that exists now, as "role: difference"; "" if it does not."""
    if current is None:
        return "" if ref.address.startswith(("external:", "code:")) else f"{ref.role}: {ref.address} is gone"
    if current.record.content != ref.content:
        return f"{ref.role}: {ref.address} has other bytes than when it was read"
    return ""


def newest(store: Store, name: str, *, but: str = "", unless: str = "") -> Artifact | None:
    """Returns the newest artifact `name` at any version except `but`, or None; see `newest_of`."""
    versions = newest_first(store, name, but=but)
    return next((artifact for artifact in versions if not (unless and is_marked(artifact, unless))), None)


def newest_first(store: Store, name: str, *, but: str = "") -> Iterator[Artifact]:
    """Yields the artifacts `name` at all versions except `but`, in the order of `newest_of`, and reads one at a time.

    One request lists the versions, and one how new they are by the index. A record decides about its version, so the
    order is right also if somebody copied or removed a version, which costs its record, or the index.

    Raises:
        InputError: a record cannot be read that may be that of the next artifact.
    """
    entered = entered_newness(store, name)
    ids = {version: ArtifactId(name, version) for version in store.folders(name) if version != but}
    unknown = [id_ for version, id_ in ids.items() if version not in entered]
    found = {one.address.version: one for one in concurrently(partial(Artifact.find, store), unknown) if one}
    waiting = {version: entered[version] for version in ids if version in entered}
    waiting |= {version: newness(artifact.record) for version, artifact in found.items()}
    while waiting:
        version = max(waiting, key=waiting.__getitem__)
        if artifact := found.get(version):
            del waiting[version]
            yield artifact
        elif artifact := Artifact.find(store, ids[version]):
            found[version], waiting[version] = artifact, newness(artifact.record)
        else:
            del waiting[version]


def newest_of(versions: Iterable[Artifact], unless: str = "") -> Artifact | None:
    """Returns the newest of some versions of an artifact, or None.

    The newest is the one that contains the most versions (`VERSIONS`), so that an old version that is run again with
    other limits, or finishes late, does not become the newest. Ties, and artifacts without this metric, are ordered by
    the time they were finished.

    Args:
        versions: the versions.
        unless: kind of a mark (`is_marked`); artifacts with one do not count.
    """
    artifacts = sorted(versions, key=lambda artifact: newness(artifact.record), reverse=True)
    return next((artifact for artifact in artifacts if not (unless and is_marked(artifact, unless))), None)


def at_version(store: Store, name: str, version: str) -> Artifact | None:
    """Returns the artifact `name` at a version, or the newest one for ""; None if there is none."""
    return Artifact.find(store, ArtifactId(name, version)) if version else newest(store, name)


def is_marked(artifact: Artifact, kind: str) -> bool:
    """Returns whether the artifact of a kind at the same version refers to this artifact as it is now."""
    mark = ArtifactId(f"{artifact.address.name.partition('/')[0]}/{kind}", artifact.address.version)
    found = Artifact.find(artifact.store, mark)
    return found is not None and any(
        ref.address == str(artifact.address) and artifact.matches(ref) for ref in found.record.inputs
    )


def versions_of(store: Store, name: str, *, but: str = "") -> list[Artifact]:
    """Returns the artifacts `name` at all versions except `but`, sorted by version.

    One request lists the versions, and one reads the record of each, however many files they have.

    Raises:
        InputError: a record cannot be read.
    """
    ids = [ArtifactId(name, version) for version in store.folders(name) if version != but]
    return [artifact for artifact in concurrently(partial(Artifact.find, store), ids) if artifact]
