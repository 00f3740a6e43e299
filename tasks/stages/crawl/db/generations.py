"""Old generations of the crawl DB: which of them nothing reads any more, and their removal.

Reads the records of a recipe's crawl cycles. Removes the files of `crawldb/p<n>` at old versions; their records stay,
so lineage stays whole and no stage is run again, and `.pruned.json` beside each says when and why the files went.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tasks.core.artifact import RECORD, Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import newest, versions_of
from tasks.core.store import Store

MARK = ".pruned.json"
_CRAWLDB, _COMPLETE = "crawldb", "warc"


@dataclass(frozen=True)
class Generation:
    """The crawl DB of one cycle.

    Attributes:
        version: of the cycle.
        finished: when its last partition was written.
        bytes: of its files.
        databases: its partitions.
        kept: why it stays, or "".
    """

    version: str
    finished: datetime
    bytes: int
    databases: tuple[Artifact, ...]
    kept: str


def generations(
    store: Store, recipe: str, keep: int, older_than: timedelta, now: datetime | None = None
) -> list[Generation]:
    """Returns the generations whose files are there, the newest first, and whether each is to stay.

    To stay are the newest `keep`, those younger than `older_than`, and what a later cycle reads or may read: the one
    that the next cycle begins from, those of cycles that are not complete, and those that such cycles began from.

    Raises:
        InputError: `keep` is below 1, or a record cannot be read.
    """
    if keep < 1:
        raise InputError("--keep is below 1", "the next cycle begins from the newest generation, so it has to stay")
    now = now or datetime.now(UTC)
    needed = _needed(store, recipe)
    found = []
    for version, databases in _by_version(store, recipe).items():
        there = [one for one in databases if store.exists(_last(one))]
        if there:
            finished = max(one.record.finished for one in databases)
            size = sum(one.record.bytes for one in there)
            found.append((finished, version, size, tuple(databases)))
    found.sort(reverse=True)
    rows = []
    for place, (finished, version, size, partitions) in enumerate(found):
        kept = next((needed[one.address] for one in partitions if one.address in needed), "")
        if not kept and place < keep:
            kept = f"one of the newest {keep}"
        if not kept and now - finished < older_than:
            kept = f"younger than {older_than.days} days"
        rows.append(Generation(version, finished, size, partitions, kept))
    return rows


def remove(generation: Generation, why: str) -> None:
    """Removes the files of a generation; raises ValueError for one that is to stay. May be repeated after a kill."""
    if generation.kept:
        raise ValueError(f"{generation.version} stays: {generation.kept}")
    for one in generation.databases:
        with one.store.write(_mark(one)) as file:
            file.write(json.dumps({"at": datetime.now(UTC).isoformat(), "why": why}).encode())
        for path in one.files():
            one.store.remove(f"{one.path}/{path}")


def require(database: Artifact) -> None:
    """Raises InputError where the files of a crawl DB were removed."""
    if database.store.exists(_mark(database)):
        when = json.loads(database.store.read(_mark(database)))["at"][:16]
        raise InputError(f"the files of {database.address} were removed on {when} (prune)", "name a newer version")


def _last(database: Artifact) -> str:
    """Returns the path of the file that is removed last."""
    return f"{database.path}/{database.files()[-1]}"


def _mark(database: Artifact) -> str:
    return f"{database.path}/{MARK}"


def _by_version(store: Store, recipe: str) -> dict[str, list[Artifact]]:
    found: dict[str, list[Artifact]] = {}
    for member in store.folders(f"{recipe}/{_CRAWLDB}"):
        for one in versions_of(store, f"{recipe}/{_CRAWLDB}/{member}"):
            found.setdefault(one.address.version, []).append(one)
    return found


def _needed(store: Store, recipe: str) -> dict[ArtifactId, str]:
    """Returns the crawl DBs that a later cycle reads or may read, and why."""
    complete = newest(store, f"{recipe}/{_COMPLETE}")
    needed = dict.fromkeys(_read_by([complete] if complete else [], recipe), "the next cycle begins from it")
    members = (*store.folders(f"{recipe}/fetchlist"), *store.folders(f"{recipe}/{_CRAWLDB}"))
    lists = [f"{recipe}/ranks", *(f"{recipe}/fetchlist/{member}" for member in dict.fromkeys(members))]
    databases = [f"{recipe}/{_CRAWLDB}/{member}" for member in dict.fromkeys(members)]
    for version in store.folders(f"{recipe}/seeds"):
        if store.exists(f"{recipe}/{_COMPLETE}/{version}/{RECORD}"):
            continue
        begun_from = _read_by(_at(store, lists, version), recipe)
        needed |= dict.fromkeys(begun_from, f"{version} began from it and is not complete")
        needed |= {one.address: "its cycle is not complete" for one in _at(store, databases, version)}
    return needed


def _at(store: Store, names: Iterable[str], version: str) -> list[Artifact]:
    """Returns those of some artifacts that are there at a version."""
    return list(filter(None, (Artifact.find(store, ArtifactId(name, version)) for name in names)))


def _read_by(artifacts: Iterable[Artifact], recipe: str) -> list[ArtifactId]:
    refs = (ArtifactId.parse(ref.address) for one in artifacts for ref in one.record.inputs if "@" in ref.address)
    return [address for address in refs if address.name.startswith(f"{recipe}/{_CRAWLDB}/")]
