"""Audit of takedowns: all of a recipe, and for what is current the proof that nothing of them is in it.

Reads all takedowns, and of the newest crawl DB, documents, chunks, plan, examples and dedup index the URLs, ids and
sequences: what the next cycle, the next tokens, and the next training and fine-tuning read. Nothing is taken from a
report: every row is looked at. Of all models it lists what they have read: they cannot forget it, so it does not count
as present.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.ledger import newest, versions_of
from tasks.core.store import Store
from tasks.formats.dedup import dedup_index
from tasks.formats.dedup.dedup_index import DedupIndex
from tasks.formats.documents.tombstones import TAKEDOWN, Lift, Tombstone, Tombstones, in_force, read, read_lifted
from tasks.formats.tokens.readings import EXAMPLES
from tasks.stages.crawl.storage.crawldb import URLS_FILE
from tasks.stages.takedown.report import CHUNKS, MODELS, described, of_artifact

_AGAIN = {
    "crawldb": "run crawl again: its next cycle lists none of them, and marks them",
    "documents": "run corpus again, with a new version",
    "plan": "run tokens again, with a new version",
    CHUNKS: "run tokens again, with a new version",
    EXAMPLES: "run finetune again, with a new version",
    dedup_index.KIND: "run corpus again, with a new version",
}


@dataclass(frozen=True)
class Request:
    """A takedown: by kind the number of values that are still in force of it, and of those that it lifts."""

    takedown: str
    date: str
    requested_by: str
    reason: str
    new: dict[str, int]
    lifts: dict[str, int]


@dataclass(frozen=True)
class Checked:
    """A current artifact: how many URLs or documents that are taken down are present in it, and some examples."""

    artifact: str
    kind: str
    present: int
    examples: list[str]
    says: str


@dataclass(frozen=True)
class Audit:
    """All takedowns of a recipe, and what of them is in its newest artifacts.

    Attributes:
        recipe: its name.
        takedowns: all of them, oldest first.
        in_force: number of values in force, by kind.
        values: these values, by kind.
        checked: what is current.
        models: those that have read any, as a report of a takedown describes them.
    """

    recipe: str
    takedowns: list[Request]
    in_force: dict[str, int]
    values: dict[str, list[str]]
    checked: list[Checked]
    models: list[dict[str, Any]]

    @property
    def absent(self) -> bool:
        """Whether nothing current has any of it."""
        return not any(one.present for one in self.checked)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON has them."""
        found = asdict(self)
        models = found.pop("models")
        return {**found, "absent": self.absent, "models": models}

    def text(self) -> str:
        """Returns it as text."""
        lines = []
        for one in self.takedowns:
            by = f" for {one.requested_by}" if one.requested_by else ""
            lifts = f", lifts {_counts(one.lifts)}" if one.lifts else ""
            why = f": {one.reason}" if one.reason else ""
            lines.append(f"{one.date or 'no date':26} {one.takedown}  {_counts(one.new)}{lifts}{by}{why}")
        lines.append(f"in force: {_counts(self.in_force)}" if lines else f"{self.recipe} has no takedown")
        lines.append("")
        for checked in self.checked:
            lines.append(f"{checked.artifact:40} {checked.says}")
            lines += [f"    {example}" for example in checked.examples]
        lines += [f"{one['artifact']:40} {_reading(one)}" for one in self.models]
        if not self.checked:
            lines.append("nothing was made yet")
        return "\n".join(lines)


def audit(store: Store, recipe: str) -> Audit:
    """Returns all takedowns of a recipe, and what of them is in its newest artifacts.

    Raises:
        InputError: an artifact cannot be read.
    """
    heads = in_force(store, recipe)
    stones, lifted = read(heads), read_lifted(heads)
    tombstones = Tombstones.of(stones)
    checked = [*_crawldbs(store, recipe, tombstones), *_newest(store, recipe, tombstones)]
    return Audit(
        recipe=recipe,
        takedowns=[_request(one, stones, lifted) for one in _by_date(store, recipe)],
        in_force=dict(Counter(stone.kind for stone in stones)),
        values={
            kind: [one.value for one in stones if one.kind == kind] for kind in sorted({one.kind for one in stones})
        },
        checked=[*checked, *_indexes(store, recipe, tombstones)],
        models=_models(store, recipe, tombstones),
    )


def _by_date(store: Store, recipe: str) -> list[Artifact]:
    made = versions_of(store, f"{recipe}/{TAKEDOWN}")
    return sorted(made, key=lambda one: (one.record.config["date"], one.address))


def _request(one: Artifact, stones: list[Tombstone], lifted: list[Lift]) -> Request:
    config, address = one.record.config, str(one.address)
    return Request(
        takedown=address,
        date=config["date"],
        requested_by=config["requested_by"],
        reason=config["reason"],
        new=dict(Counter(stone.kind for stone in stones if stone.takedown == address)),
        lifts=dict(Counter(gone.kind for gone in lifted if gone.lifted_by == address)),
    )


def _models(store: Store, recipe: str, tombstones: Tombstones) -> list[dict[str, Any]]:
    """Returns all models that have read some of it, or of which it is not known, by version."""
    made = (of_artifact(one, tombstones) for kind in MODELS for one in versions_of(store, f"{recipe}/{kind}"))
    return [described(one) for one in made if one.rows or one.problem] if tombstones else []


def _reading(one: dict[str, Any]) -> str:
    if one["problem"]:
        return f"not known: {one['problem']}"
    steps = f", {one['first_step']} .. {one['last_step']}" if one["steps"] else ""
    began = f"; began with the weights of {', '.join(one['through'])}" if "through" in one else ""
    return (
        f"has read {one['documents']:,} in {one['steps']:,} steps{steps}; "
        f"seen by the states of steps {', '.join(map(str, one['checkpoints'])) or 'none'}{began}"
    )


def _crawldbs(store: Store, recipe: str, tombstones: Tombstones) -> Iterator[Checked]:
    """Yields what can still be fetched by the crawl DB of the newest cycle, for each of its partitions."""
    warc = newest(store, f"{recipe}/warc")
    prefix = f"{recipe}/crawldb/"
    for ref in warc.record.inputs if warc else ():
        if ref.address.startswith(prefix):
            artifact = Artifact.open_at(store, ArtifactId.parse(ref.address))
            rows = artifact.table(URLS_FILE, ["url"], pc.field("next_due").is_valid())
            urls = [url for url in rows.column("url").to_pylist() if tombstones.covers_url(url)]
            yield _checked(artifact, "crawldb", urls)


def _newest(store: Store, recipe: str, tombstones: Tombstones) -> Iterator[Checked]:
    for kind in ("documents", CHUNKS, "plan", EXAMPLES):
        artifact = newest(store, f"{recipe}/{kind}")
        if artifact:
            found = of_artifact(artifact, tombstones)
            yield _checked(artifact, kind, [f"{row['url']} ({row['id']})" for row in found.rows], found.problem)


def _indexes(store: Store, recipe: str, tombstones: Tombstones) -> Iterator[Checked]:
    """Yields what of it the newest dedup index knows, where the recipe has one: documents, and their copies."""
    artifact = newest(store, f"{recipe}/{dedup_index.KIND}")
    if artifact:
        index = DedupIndex.open(artifact)
        held = (table for number in range(index.count) for table in (index.names(number), index.copies(number)))
        found = [row for table in held for row in table.filter(pa.array(tombstones.mask(table))).to_pylist()]
        yield _checked(artifact, dedup_index.KIND, [f"{row['url']} ({row['id']})" for row in found])


def _checked(artifact: Artifact, kind: str, present: list[str], problem: str = "") -> Checked:
    if problem:
        says = f"not known: {problem}"
    elif present:
        says = f"present: {len(present):,}, made before the takedown: {_AGAIN[kind]}"
    else:
        says = "absent"
    return Checked(str(artifact.address), kind, len(present) or int(bool(problem)), present[:3], says)


def _counts(numbers: dict[str, int]) -> str:
    return (
        ", ".join(f"{number:,} {kind}{'s' * (number > 1)}" for kind, number in sorted(numbers.items())) or "nothing new"
    )
