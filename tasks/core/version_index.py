"""The index of a store: the versions of a recipe, the artifacts of a version, and the users of an artifact.

Listing a store lists every file of every artifact, and the ledger reads every record. The index answers with one
listing of a folder, whatever the size of the store. It consists of empty files, since only their creation is atomic in
every store, named after ids with "/" as "%2F":

    .index/<recipe>/versions/<version>             each version
    .index/<recipe>/begun/<UTC time>~<version>     the time of its first artifact
    .index/<recipe>/artifacts/<version>/<kind>     its artifacts
    .index/<recipe>/newest/<kind>/<versions>~<UTC time>~<version>
                                                   how new each version of a kind is: the versions that it contains
                                                   (`VERSIONS`), and the time at which it was finished
    .index/<recipe>/users/<artifact>/<user>        artifacts of other versions that were made or adopted from it, or
                                                   refer to its files
    .index/<recipe>/whole                          everything that existed before is entered

An artifact is entered before its record is published, so no artifact is missing. An entry may lack its artifact, if the
process was killed or somebody removed it: readers check that the record exists.
"""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from urllib.parse import quote, unquote

from tasks.core.artifact import RECORD, Artifact, ArtifactId, ArtifactRecord
from tasks.core.errors import InputError
from tasks.core.store import AlreadyPublished, Store

log = logging.getLogger("sluice.index")

INDEX = ".index"
VERSIONS = "versions"
"""Metric of artifacts that accumulate versions: the number of versions that one contains."""

Newness = tuple[float, datetime, str]
"""Versions that an artifact contains, the time at which it was finished, and its version: the largest is the newest."""

_TIME = "%Y%m%dT%H%M%S.%f"


def newness(record: ArtifactRecord) -> Newness:
    """Returns how new an artifact is among those of its name."""
    version = ArtifactId.parse(record.artifact).version
    return record.metrics.get(VERSIONS, 0.0), record.finished.astimezone(UTC), version


def dependencies(record: ArtifactRecord) -> list[str]:
    """Returns the addresses that an artifact depends on, each once.

    These are its inputs, the artifact that it was adopted from, and the versions whose files it refers to.
    """
    files = [record.adopted_from] if record.adopted_from else []
    return list(dict.fromkeys([*(ref.address for ref in record.inputs), *files, *record.elsewhere()]))


def enter(store: Store, record: ArtifactRecord, at: datetime) -> None:
    """Enters an artifact whose record is about to be published, at a time (UTC); may be repeated."""
    own = ArtifactId.parse(record.artifact)
    recipe, kind = _split(own)
    _create(store, f"{INDEX}/{recipe}/artifacts/{own.version}/{quote(kind, safe='')}")
    versions, finished, _ = newness(record)
    _create(store, f"{_newest(own.name)}/{versions!r}~{finished:{_TIME}}~{own.version}")
    for address in dependencies(record):
        name, at_sign, version = address.partition("@")
        if not at_sign:
            continue  # a file outside the store
        used = ArtifactId(name, version)
        if (_split(used)[0], used.version) != (recipe, own.version):
            _create(store, f"{_users(used)}/{quote(record.artifact, safe='')}")
    if _create(store, f"{INDEX}/{recipe}/versions/{own.version}"):
        _create(store, f"{INDEX}/{recipe}/begun/{at:{_TIME}}~{own.version}")


def entered_users(store: Store, address: ArtifactId) -> list[ArtifactId]:
    """Returns the ids of the users of an artifact that were ever entered, also by a run that has not committed yet."""
    return [ArtifactId.parse(unquote(name)) for name in sorted(store.names(_users(address)))]


def entered_newness(store: Store, name: str) -> dict[str, Newness]:
    """Returns how new each version of the artifacts `name` is, in one request.

    A version that is missing has a record from before the index, or none. One with a record may be less new, if it was
    made again.
    """
    entered: dict[str, Newness] = {}
    for entry in store.names(_newest(name)):
        versions, finished, version = entry.split("~", 2)
        found = float(versions), datetime.strptime(finished, _TIME).replace(tzinfo=UTC), version
        entered[version] = max(found, entered.get(version, found))
    return entered


class VersionIndex:
    """The artifacts of a recipe by version.

    A recipe without an index, or whose index was removed, is entered as a whole at the first use.

    Args:
        store: the store to read.
        recipe: name of the recipe.
    """

    def __init__(self, store: Store, recipe: str) -> None:
        self.store = store
        self.recipe = recipe
        if not store.exists(f"{INDEX}/{recipe}/whole"):
            self._enter_all()

    def versions(self) -> list[str]:
        """Returns the versions, those begun last first."""
        begun: dict[str, str] = {}
        for name in self.store.names(f"{INDEX}/{self.recipe}/begun"):
            time, _, version = name.partition("~")
            begun.setdefault(version, time)
        known = self.store.names(f"{INDEX}/{self.recipe}/versions")
        return sorted(known, key=lambda version: (begun.get(version, ""), version), reverse=True)

    def artifacts(self, version: str) -> list[Artifact]:
        """Returns the artifacts of a version in the order in which they were finished.

        An artifact whose record cannot be read is skipped with a warning.
        """
        kinds = self.store.names(f"{INDEX}/{self.recipe}/artifacts/{version}")
        ids = (ArtifactId(f"{self.recipe}/{unquote(kind)}", version) for kind in kinds)
        found = [artifact for id_ in ids if (artifact := find_readable(self.store, id_))]
        return sorted(found, key=lambda artifact: (artifact.record.finished, artifact.address))

    def users(self, address: ArtifactId, most: int | None = None) -> list[str]:
        """Returns the addresses of the artifacts that were made or adopted from `address`, sorted.

        Args:
            address: the artifact.
            most: number of users of other versions that are returned, the first ones by name; None for all.
        """
        others = (unquote(name) for name in sorted(self.store.names(_users(address))))
        users = set(islice((other for other in others if find_readable(self.store, ArtifactId.parse(other))), most))
        for artifact in self.artifacts(address.version):
            if str(address) in dependencies(artifact.record):
                users.add(str(artifact.address))
        return sorted(users)

    def users_of_version(self, version: str) -> Iterator[str]:
        """Yields the addresses of the artifacts of other versions and recipes made or adopted from a version.

        Artifact by artifact, so that a caller can stop; a user of several is repeated. Reads names only: an artifact
        that was removed, or whose run was killed, is included.
        """
        for kind in self.store.names(f"{INDEX}/{self.recipe}/artifacts/{version}"):
            used = ArtifactId(f"{self.recipe}/{unquote(kind)}", version)
            yield from map(unquote, self.store.names(_users(used)))

    def _enter_all(self) -> None:
        for id_ in addresses(self.store, self.recipe):
            if artifact := find_readable(self.store, id_):
                enter(self.store, artifact.record, artifact.record.finished)
        _create(self.store, f"{INDEX}/{self.recipe}/whole")


def addresses(store: Store, prefix: str) -> Iterator[ArtifactId]:
    """Yields the ids of all artifacts below a folder, from a listing of all files."""
    for path in store.list(prefix):
        folder, _, file = path.rpartition("/")
        if file == RECORD:
            name, _, version = folder.rpartition("/")
            yield ArtifactId(name, version)


def find_readable(store: Store, address: ArtifactId) -> Artifact | None:
    """Returns the artifact at `address`; None if it is missing or cannot be read (a warning)."""
    try:
        return Artifact.find(store, address)
    except InputError as error:
        log.warning("%s", error)
        return None


def _split(address: ArtifactId) -> tuple[str, str]:
    """Returns the recipe and the kind of an artifact."""
    recipe, _, kind = address.name.partition("/")
    return recipe, kind


def _newest(name: str) -> str:
    recipe, _, kind = name.partition("/")
    return f"{INDEX}/{recipe}/newest/{quote(kind, safe='')}"


def _users(address: ArtifactId) -> str:
    return f"{INDEX}/{_split(address)[0]}/users/{quote(str(address), safe='')}"


def _create(store: Store, path: str) -> bool:
    """Creates an empty file; returns whether this call did."""
    try:
        store.publish(path, b"")
    except AlreadyPublished:
        return False
    return True
