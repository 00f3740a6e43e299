"""Retention: which files of a recipe are still needed, and the removal of the others.

Reads the records of all artifacts of the store, and `.retention/<recipe>.json`, which has the time at which each
artifact was first listed as unneeded. Removal deletes files and keeps records (`tasks.core.removal`), so lineage stays
complete, no stage runs again, and whoever reads a removed file learns when and why it was removed. Of an artifact that
is not needed, files that kept versions refer to stay until the last of these is removed. The MLflow runs of such
artifacts are kept, or marked as deleted (`delete_runs`).

Needed are

- the newest versions, with everything that their artifacts were made from, except what older crawls worked with, and
  the inputs from the version before;
- what the next version will read: the newest crawl DB, dedup index, mixture, champion;
- crawl cycles that are not complete, because a cleared task may continue them;
- every registered model, with everything that its trace shows;
- takedowns, reports of months, captures by their age, and what artifacts of other recipes were made from.

What an artifact read from the version before it is not needed to read or to trace the artifact.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import Ledger, newest_of
from tasks.core.removal import begin, is_complete, proceed
from tasks.core.store import Store
from tasks.core.version_index import VersionIndex
from tasks.formats.dedup import dedup_index
from tasks.formats.dedup.dedup_index import DedupIndex
from tasks.formats.documents.tombstones import TAKEDOWN
from tasks.formats.tokens.origins import accumulates, read_origins
from tasks.run.catalogue import PARTS, STAGES
from tasks.run.place import Retention
from tasks.run.result import Json
from tasks.run.tracking import send
from tasks.run.variants import bases

log = logging.getLogger("sluice.retention")

FOLDER = ".retention"
MODELS = ("model", "merged_model", "tuned_model")
"""Kinds of models that are registered; a merged one is if it becomes the challenger."""
CAPTURES = "segment"
MONTH = "month"
"""Kind of the reports of months (`tasks.run.monthly`)."""
CRAWL = "crawl"
_CRAWL_STATE = ("crawldb", "fetchlist", "ranks", "seeds")
"""Kinds that a crawl works with. No trace shows them."""
_MONTH = timedelta(days=30)
_NEWEST = "one of the newest"


@dataclass(frozen=True)
class Holding:
    """The files of one artifact.

    Attributes:
        artifact: its id.
        bytes: size of the files in its folder; of those that are not needed, without what needed versions refer to.
        finished: time at which the artifact was made.
        needed: why the files are needed; "" if they are not.
        listed: time at which they were first listed as unneeded; None if they are needed, or are listed now.
        due: whether they have been listed for the whole grace period.
        stays: whether the artifact was removed, and these are the files that stay for a version that refers to them.
    """

    artifact: str
    bytes: int
    finished: datetime
    needed: str
    listed: datetime | None
    due: bool
    stays: bool = False


@dataclass(frozen=True)
class Survey:
    """The files of a recipe at one time, and what the policy does with them.

    Attributes:
        recipe: name of the recipe.
        policy: the settings.
        holdings: the files of every artifact that has its own, oldest first. Files of a removed artifact that stay are
            needed by the version that refers to them.
        removed: ids of the artifacts whose files this run has removed.
    """

    recipe: str
    policy: Retention
    holdings: list[Holding]
    removed: list[str]

    @property
    def unneeded(self) -> list[Holding]:
        """Files that nothing needs."""
        return [one for one in self.holdings if not one.needed]

    def to_json(self) -> Json:
        """Returns the fields as JSON values."""
        return {**asdict(self), "policy": self.policy.model_dump(mode="json"), "bytes": self.bytes()}

    def bytes(self) -> dict[str, int]:
        """Returns the sizes of the needed files, the unneeded ones, and those among them that are due."""
        return {
            "needed": sum(one.bytes for one in self.holdings if one.needed),
            "unneeded": sum(one.bytes for one in self.unneeded),
            "due": sum(one.bytes for one in self.unneeded if one.due),
        }

    def text(self) -> str:
        """Returns the survey as text: sizes by the reason why files are needed, the unneeded ones, and a forecast."""
        sizes: dict[str, int] = {}
        for one in self.holdings:
            if one.needed:
                sizes[one.needed] = sizes.get(one.needed, 0) + one.bytes
        lines = [f"{_mb(size)}  {reason}" for reason, size in sorted(sizes.items(), key=lambda item: -item[1])]
        lines.append(f"{_mb(self.bytes()['needed'])}  needed")
        lines += ["", *(self._line(one) for one in self.unneeded)] if self.unneeded else ["", "nothing is unneeded"]
        if self.unneeded:
            lines.append(f"{_mb(self.bytes()['unneeded'])}  unneeded")
        if forecast := self._forecast():
            lines += ["", forecast]
        return "\n".join(lines)

    def _line(self, one: Holding) -> str:
        grace = timedelta(days=self.policy.grace_days)
        if one.artifact in self.removed:
            state = "removed"
        elif one.due:
            state = "to be removed"
        else:
            state = f"to be removed from {(one.listed or datetime.now(UTC)) + grace:%Y-%m-%d} on"
        return f"{_mb(one.bytes)}  {one.artifact}  {state}"

    def _forecast(self) -> str:
        """Returns what a further version adds, by the versions that are kept in full; "" without one."""
        by_version: dict[str, int] = {}
        for one in self.holdings:
            if one.needed.startswith(_NEWEST):
                version = ArtifactId.parse(one.artifact).version
                by_version[version] = by_version.get(version, 0) + one.bytes
        if not by_version:
            return ""
        mean = sum(by_version.values()) / len(by_version)
        return (
            f"A version adds {_mb(mean).strip()} on average. With the last {self.policy.versions} in full these take "
            f"{_mb(mean * self.policy.versions).strip()}; every registered model keeps its share of a version."
        )


def survey(
    store: Store, recipe: str, policy: Retention, now: datetime | None = None, drop: Collection[str] = ()
) -> Survey:
    """Returns which files of a recipe are needed and why; changes nothing.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        policy: `[place.retention]`.
        now: the time; default: the current time.
        drop: versions whose models and unfinished work are not protected.

    Raises:
        InputError: a version of `drop` does not exist, or has the champion.
    """
    return _survey(_Records(store, recipe), policy, now or datetime.now(UTC), drop)


def _survey(records: "_Records", policy: Retention, now: datetime, drop: Collection[str]) -> Survey:
    _check_dropped(records, drop)
    needed = records.needed(policy, now, drop)
    listed = _listed(records.store, records.recipe)
    grace = timedelta(days=policy.grace_days)
    holdings = []
    for artifact in records.own:
        address, record = str(artifact.address), artifact.record
        if record.adopted_from or not record.bytes:
            continue
        if (removal := artifact.removal()) and is_complete(removal):
            for user, kept in removal.kept.items():
                reason = f"{user} refers to them"
                holdings.append(Holding(address, kept.bytes, record.finished, reason, None, False, stays=True))
            continue
        size = record.stored()
        since = listed.get(address) if address not in needed else None
        due = address not in needed and now - (since or now) >= grace
        if address not in needed:
            size -= records.referenced_by(needed, address)
        holdings.append(Holding(address, size, record.finished, needed.get(address, ""), since, due))
    return Survey(records.recipe, policy, holdings, [])


def collect(
    store: Store, recipe: str, policy: Retention, now: datetime | None = None, drop: Collection[str] = ()
) -> Survey:
    """Removes the files that have been listed for the whole grace period, and lists those that are unneeded now.

    A run that was killed is completed by the next one. An artifact whose manifests cannot be read keeps its files, with
    a warning. Arguments and errors are those of `survey`.
    """
    now, records = now or datetime.now(UTC), _Records(store, recipe)
    found = _survey(records, policy, now, drop)
    listed = {one.artifact: (one.listed or now).isoformat() for one in found.unneeded}
    with store.write(_state(recipe)) as file:  # before the removal: what is removed has been listed
        file.write(json.dumps(listed, indent=1, sort_keys=True).encode())
    return Survey(recipe, policy, found.holdings, _remove(records, found, listed, now))


def _remove(records: "_Records", found: Survey, listed: Mapping[str, str], now: datetime) -> list[str]:
    """Removes the files that are due, and those that stayed for a version that is removed now; returns the artifacts.

    All artifacts are marked before any file is removed, since a version that is removed needs no file of another one.
    """
    begun, removed = [one.artifact for one in found.holdings if one.stays], []
    for address in (one.artifact for one in found.unneeded if one.due):
        try:
            adopters = records.adopters.get(address, ())
            begin(records.artifacts[address], f"no longer needed since {listed[address][:10]}", now, adopters)
            begun.append(address)
        except InputError as error:
            log.warning("%s cannot be removed: %s", address, error)
    for address in dict.fromkeys(begun):
        try:
            proceed(records.artifacts[address], map(ArtifactId.parse, records.referring.get(address, ())))
            removed.append(address)
        except InputError as error:
            log.warning("%s cannot be removed: %s", address, error)
    due = {one.artifact for one in found.unneeded if one.due}
    return [address for address in removed if address in due]


def delete_runs(store: Store, recipe: str, uri: str) -> int:
    """Marks the MLflow runs of all artifacts without files as deleted; returns the number of those that were not yet.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        uri: address of the MLflow server; "": there is none.

    Raises:
        TransientError: the server does not respond; the next call completes what is left.
    """
    removed = {str(artifact.address) for artifact in Ledger(store, recipe) if artifact.removal()}
    return send.delete_runs(uri, recipe, removed) if uri and removed else 0


def _state(recipe: str) -> str:
    return f"{FOLDER}/{recipe}.json"


def _listed(store: Store, recipe: str) -> dict[str, datetime]:
    try:
        content = json.loads(store.read(_state(recipe)))
    except FileNotFoundError:
        return {}
    return {address: datetime.fromisoformat(time) for address, time in content.items()}


def _check_dropped(records: "_Records", drop: Collection[str]) -> None:
    for version in sorted(set(drop) - {artifact.address.version for artifact in records.own}):
        raise InputError(f"{records.recipe} has no version {version}", "name versions that `sluice ledger` lists")
    for champion in records.champions() if drop else ():
        if champion.version in drop:
            raise InputError(f"{champion} is the champion", "promote another model first")


Inputs = Callable[[Artifact], list[str]]
"""The artifacts whose files are needed with those of an artifact."""


@dataclass(frozen=True)
class _Root:
    """Artifacts that are needed for a reason, with what they were made from as far as `inputs` returns it."""

    addresses: Sequence[str]
    reason: str
    inputs: Inputs


class _Records:
    """The records of a store, as far as they matter for one recipe.

    Args:
        store: the store.
        recipe: name of the recipe.
    """

    def __init__(self, store: Store, recipe: str) -> None:
        self.store, self.recipe = store, recipe
        self.artifacts = {str(artifact.address): artifact for artifact in Ledger(store)}
        self.own = [artifact for artifact in self.artifacts.values() if artifact.address.name.startswith(f"{recipe}/")]
        self.versions = VersionIndex(store, recipe).versions()
        self.referring: dict[str, list[str]] = {}
        """The artifacts that refer to files of an artifact."""
        self.adopters: dict[str, list[ArtifactId]] = {}
        """The artifacts that have adopted the files of an artifact. They need them no more than their owner does."""
        for address, artifact in self.artifacts.items():
            if owner := artifact.record.adopted_from:
                self.adopters.setdefault(owner, []).append(artifact.address)
            for home in artifact.record.elsewhere():
                self.referring.setdefault(home, []).append(address)

    def referenced_by(self, users: Collection[str], address: str) -> int:
        """Returns the most bytes of an artifact that one of some others refers to; they mostly refer to the same."""
        found = (self.artifacts[one].record.elsewhere() for one in self.referring.get(address, ()) if one in users)
        return max((sizes[address] for sizes in found), default=0)

    def needed(self, policy: Retention, now: datetime, drop: Collection[str]) -> dict[str, str]:
        """Returns the ids of all artifacts whose files are needed, with the first reason that applies."""
        needed: dict[str, str] = {}
        for root in self._roots(policy, now, drop):
            visited: set[str] = set()
            front = list(root.addresses)
            while front:
                address = front.pop()
                if address in visited or address not in self.artifacts:
                    continue
                visited.add(address)
                artifact = self.artifacts[address]
                for one in (address, *_parts_of_index(artifact)):
                    needed.setdefault(one, root.reason)
                front += root.inputs(artifact)
        return needed

    def champions(self) -> Iterator[ArtifactId]:
        """Yields the models that the newest decisions name."""
        for kind in ("champion", "tuned_champion"):
            if newest := self._newest(kind):
                yield ArtifactId.parse(json.loads(newest.read("champion.json"))["champion"]["artifact"])

    def _roots(self, policy: Retention, now: datetime, drop: Collection[str]) -> Iterator[_Root]:
        yield _Root(self._of_kinds(TAKEDOWN), "a takedown", _alone)
        yield _Root(self._of_kinds(MONTH), "the report of a month", _alone)
        yield from self._versions(policy.versions, drop)
        yield _Root(list(self._next_inputs()), "the next version begins from it", _alone)
        for model in self._of_kinds(*MODELS):
            if ArtifactId.parse(model).version not in drop:
                yield _Root([model], f"the trace of {model}", _traced)
        captures = [self.artifacts[address] for address in self._of_kinds(CAPTURES)]
        if policy.warc_months is not None:
            limit = now - policy.warc_months * _MONTH
            captures = [capture for capture in captures if capture.record.finished > limit]
        kept = "" if policy.warc_months is None else f" for {policy.warc_months} months"
        yield _Root([str(capture.address) for capture in captures], f"captures are kept{kept}", _alone)
        for address, artifact in self.artifacts.items():
            if not artifact.address.name.startswith(f"{self.recipe}/"):
                yield _Root(_made_from(artifact), f"{address} was made from it", _made_from)

    def _of_kinds(self, *kinds: str) -> list[str]:
        return [str(artifact.address) for artifact in self.own if _kind(str(artifact.address)) in kinds]

    def _newest(self, kind: str, unless: str = "") -> Artifact | None:
        name = f"{self.recipe}/{kind}"
        return newest_of((one for one in self.own if one.address.name == name), unless)

    def _versions(self, most: int, drop: Collection[str]) -> Iterator[_Root]:
        """Yields the newest versions and the crawl cycles that are not complete, with what they began from."""
        parts: dict[str, list[Artifact]] = {}
        for artifact in filter(_is_part, self.own):
            parts.setdefault(artifact.address.version, []).append(artifact)
        begun = [version for version in self.versions if version in parts and version not in drop]
        base_of = bases(self.own)
        # The variants of a version, for its canaries, are not further versions.
        ranks = {base: rank for rank, base in enumerate(dict.fromkeys(base_of.get(one, one) for one in begun))}
        for version in begun:
            rank = ranks[base_of.get(version, version)]
            if rank < most or self._is_unfinished_cycle(parts[version], version):
                reason = f"{_NEWEST} {most} versions" if rank < most else f"{version} is not complete"
                own = [str(artifact.address) for artifact in parts[version]]
                yield _Root(own, reason, _traced)
                previous = [address for artifact in parts[version] for address in _previous(artifact)]
                yield _Root(previous, f"{version} began from it", _alone)

    def _is_unfinished_cycle(self, parts: Sequence[Artifact], version: str) -> bool:
        """Returns whether a crawl cycle has begun and not ended: a cleared task may continue it."""
        stages = [STAGES.get(artifact.record.stage) for artifact in parts]
        has_begun = any(stage and stage.dag == CRAWL for stage in stages)
        return has_begun and f"{self.recipe}/{PARTS[CRAWL]}@{version}" not in self.artifacts

    def _next_inputs(self) -> Iterator[str]:
        """Yields what the next version will read from the newest complete one (`lineage.previous_inputs`)."""
        for previous in (previous for stage in STAGES.values() for previous in stage.previous.values()):
            if completed := self._newest(previous.completed_by, previous.unless):
                name = f"{self.recipe}/{previous.kind.removesuffix('/*')}"
                yield f"{name}@{completed.address.version}"
                inputs = (ref.address for ref in completed.record.inputs)
                yield from (address for address in inputs if address.startswith((f"{name}/", f"{name}@")))


def _is_part(artifact: Artifact) -> bool:
    """Returns whether an artifact belongs to a version, unlike a takedown, and a report, which is of all months."""
    stage = STAGES.get(artifact.record.stage)
    return (stage is None or stage.dag in PARTS) and _kind(str(artifact.address)) != MONTH


def _alone(artifact: Artifact) -> list[str]:
    """Returns the artifact whose files an artifact has adopted, if any; not what it was made from."""
    return [artifact.record.adopted_from] if artifact.record.adopted_from else []


def _made_from(artifact: Artifact) -> list[str]:
    """Returns the artifacts that an artifact was made from, without `_previous` and `_parts_of_index`."""
    left_out = set(_previous(artifact))
    record = artifact.record
    files = [record.adopted_from] if record.adopted_from else []
    refs = (ref for ref in record.inputs if ref.role != dedup_index.PART_ROLE)
    return [*(ref.address for ref in refs if ref.address not in left_out), *files, *_documents_of(artifact)]


def _documents_of(artifact: Artifact) -> list[str]:
    """Returns the documents of earlier versions whose tokens accumulated shards have; traces show them."""
    if _kind(str(artifact.address)) != "shards" or not accumulates(artifact) or artifact.removal():
        return []
    return sorted({origin.documents for origin in read_origins(artifact).values()})


def _previous(artifact: Artifact) -> list[str]:
    """Returns the artifacts of the version before that an artifact was made from."""
    stage = STAGES.get(artifact.record.stage)
    return [ref.address for ref in artifact.record.inputs if stage and ref.role in stage.previous]


def _traced(artifact: Artifact) -> list[str]:
    """Returns what of `_made_from` a trace can show."""
    return [address for address in _made_from(artifact) if _kind(address) not in _CRAWL_STATE]


def _parts_of_index(artifact: Artifact) -> list[str]:
    """Returns the artifacts with the parts and the texts of a dedup index, which it needs without their own inputs."""
    if _kind(str(artifact.address)) != dedup_index.KIND or artifact.removal():
        return []
    manifest = DedupIndex.open(artifact).manifest
    return [*(part.artifact for part in manifest.parts), *(origin.artifact for origin in manifest.origins)]


def _kind(address: str) -> str:
    """Returns the kind in an address, without member: "segment" for "demo/segment/p0@dev"; "" for a file outside."""
    name, at_sign, _ = address.partition("@")
    return name.split("/")[1] if at_sign and "/" in name else ""


def _mb(size: float) -> str:
    return f"{size / 1e6:>12,.1f} MB"
