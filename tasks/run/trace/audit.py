"""Audit of takedowns: lists all takedowns of a recipe and checks that current artifacts contain nothing of them.

Reads all takedowns, and every URL, id and sequence of the newest crawl DB, documents, chunks, plan, examples and dedup
index, which the next cycle, tokens, training and fine-tuning will read. It does not rely on earlier reports. For models
it lists what they have read. A model cannot forget, so this does not count as present.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.ledger import newest, versions_of
from tasks.core.store import Store
from tasks.formats.dedup import dedup_index
from tasks.formats.dedup.dedup_index import DedupIndex
from tasks.formats.documents.tombstones import TAKEDOWN, Lift, Tombstone, Tombstones, in_force, read, read_lifted
from tasks.formats.tokens.readings import EXAMPLES
from tasks.run.lake import TableCheck
from tasks.run.result import Json
from tasks.stages.crawl.storage.crawldb import URLS_FILE
from tasks.stages.takedown.report import CHUNKS, MODELS, ArtifactReport, artifact_report, of_artifact

LAKE = "lake"
"""Kind of the checks of tables in a lake."""

_REMEDIES = {
    "crawldb": "run crawl again: its next cycle lists none of them, and marks them",
    "documents": "run corpus again, with a new version",
    "plan": "run tokens again, with a new version",
    CHUNKS: "run tokens again, with a new version",
    EXAMPLES: "run finetune again, with a new version",
    dedup_index.KIND: "run corpus again, with a new version",
}


@dataclass(frozen=True)
class TakedownRequest:
    """A takedown, with the numbers of its values that are still in force and of values that it lifts, by kind."""

    takedown: str
    date: str
    requested_by: str
    reason: str
    new: dict[str, int]
    lifts: dict[str, int]


@dataclass(frozen=True)
class ArtifactCheck:
    """Number of URLs or documents in a current artifact that are taken down, and some of them.

    `says` is the result as text. If it is not known what the artifact contains, `present` is at least 1.
    """

    artifact: str
    kind: str
    present: int
    examples: list[str]
    says: str


@dataclass(frozen=True)
class Audit:
    """All takedowns of a recipe, and checks of its newest artifacts.

    Attributes:
        recipe: name of the recipe.
        takedowns: all takedowns, oldest first.
        in_force: number of values in force, by kind.
        values: the values in force, by kind.
        checked: checks of the current artifacts.
        models: models that have read values in force, or of which this is not known.
    """

    recipe: str
    takedowns: list[TakedownRequest]
    in_force: dict[str, int]
    values: dict[str, list[str]]
    checked: list[ArtifactCheck]
    models: list[ArtifactReport]

    @property
    def absent(self) -> bool:
        """Whether no current artifact contains a value in force."""
        return not any(check.present for check in self.checked)

    def to_json(self) -> Json:
        """Returns the fields and `absent` as JSON values."""
        fields = asdict(self)
        models = fields.pop("models")
        return {**fields, "absent": self.absent, "models": models}

    def text(self) -> str:
        """Returns the audit as text."""
        lines = []
        for request in self.takedowns:
            by = f" for {request.requested_by}" if request.requested_by else ""
            lifts = f", lifts {_counts(request.lifts)}" if request.lifts else ""
            reason = f": {request.reason}" if request.reason else ""
            lines.append(
                f"{request.date or 'no date':26} {request.takedown}  {_counts(request.new)}{lifts}{by}{reason}"
            )
        lines.append(f"in force: {_counts(self.in_force)}" if lines else f"{self.recipe} has no takedown")
        lines.append("")
        for check in self.checked:
            lines.append(f"{check.artifact:40} {check.says}")
            lines += [f"    {example}" for example in check.examples]
        lines += [f"{model['artifact']:40} {_model_text(model)}" for model in self.models]
        if not self.checked:
            lines.append("nothing was made yet")
        return "\n".join(lines)


def audit(store: Store, recipe: str, tables: Sequence[TableCheck] = ()) -> Audit:
    """Lists all takedowns of a recipe and checks its newest artifacts for them.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        tables: checks of the tables of its lake (`tasks.run.lake.check_lake`), which the audit lists.

    Raises:
        InputError: an artifact cannot be read.
    """
    heads = in_force(store, recipe)
    stones, lifted = read(heads), read_lifted(heads)
    tombstones = Tombstones.of(stones)
    checks = [*_check_crawldbs(store, recipe, tombstones), *_check_newest(store, recipe, tombstones)]
    kinds = sorted({stone.kind for stone in stones})
    return Audit(
        recipe=recipe,
        takedowns=[_request(takedown, stones, lifted) for takedown in _by_date(store, recipe)],
        in_force=dict(Counter(stone.kind for stone in stones)),
        values={kind: [stone.value for stone in stones if stone.kind == kind] for kind in kinds},
        checked=[*checks, *_check_dedup_index(store, recipe, tombstones), *map(_check_table, tables)],
        models=_models(store, recipe, tombstones),
    )


def _by_date(store: Store, recipe: str) -> list[Artifact]:
    takedowns = versions_of(store, f"{recipe}/{TAKEDOWN}")
    return sorted(takedowns, key=lambda takedown: (takedown.record.config["date"], takedown.address))


def _request(takedown: Artifact, stones: list[Tombstone], lifted: list[Lift]) -> TakedownRequest:
    config, address = takedown.record.config, str(takedown.address)
    return TakedownRequest(
        takedown=address,
        date=config["date"],
        requested_by=config["requested_by"],
        reason=config["reason"],
        new=dict(Counter(stone.kind for stone in stones if stone.takedown == address)),
        lifts=dict(Counter(value.kind for value in lifted if value.lifted_by == address)),
    )


def _models(store: Store, recipe: str, tombstones: Tombstones) -> list[ArtifactReport]:
    """Returns all models that have read values in force, or of which this is not known, by version."""
    models = (of_artifact(model, tombstones) for kind in MODELS for model in versions_of(store, f"{recipe}/{kind}"))
    return [artifact_report(model) for model in models if model.rows or model.problem] if tombstones else []


def _model_text(model: ArtifactReport) -> str:
    if model["problem"]:
        return f"not known: {model['problem']}"
    steps = f", {model['first_step']} .. {model['last_step']}" if model["steps"] else ""
    began = f"; began with the weights of {', '.join(model['through'])}" if "through" in model else ""
    return (
        f"has read {model['documents']:,} in {model['steps']:,} steps{steps}; "
        f"seen by the states of steps {', '.join(map(str, model['checkpoints'])) or 'none'}{began}"
    )


def _check_crawldbs(store: Store, recipe: str, tombstones: Tombstones) -> Iterator[ArtifactCheck]:
    """Checks the URLs that the crawl DB of the newest cycle can still fetch, in each of its partitions."""
    warc = newest(store, f"{recipe}/warc")
    prefix = f"{recipe}/crawldb/"
    for ref in warc.record.inputs if warc else ():
        if ref.address.startswith(prefix):
            artifact = Artifact.open_at(store, ArtifactId.parse(ref.address))
            rows = artifact.table(URLS_FILE, ["url"], pc.field("next_due").is_valid())
            urls = [url for url in rows.column("url").to_pylist() if tombstones.covers_url(url)]
            yield _check(artifact, "crawldb", urls)


def _check_newest(store: Store, recipe: str, tombstones: Tombstones) -> Iterator[ArtifactCheck]:
    for kind in ("documents", CHUNKS, "plan", EXAMPLES):
        artifact = newest(store, f"{recipe}/{kind}")
        if artifact:
            affected = of_artifact(artifact, tombstones)
            yield _check(artifact, kind, [f"{row['url']} ({row['id']})" for row in affected.rows], affected.problem)


def _check_dedup_index(store: Store, recipe: str, tombstones: Tombstones) -> Iterator[ArtifactCheck]:
    """Checks the documents in the newest dedup index and their copies, if the recipe has an index."""
    artifact = newest(store, f"{recipe}/{dedup_index.KIND}")
    if artifact:
        index = DedupIndex.open(artifact)
        tables = (table for number in range(index.count) for table in (index.names(number), index.copies(number)))
        rows = [row for table in tables for row in table.filter(pa.array(tombstones.mask(table))).to_pylist()]
        yield _check(artifact, dedup_index.KIND, [f"{row['url']} ({row['id']})" for row in rows])


def _check_table(table: TableCheck) -> ArtifactCheck:
    read = f"{table.files:,} files were read; of {table.versions:,} versions {table.readable:,} can be read"
    says = f"present: {table.present:,}: run lake again; {read}" if table.present else f"absent: {read}"
    return ArtifactCheck(table.folder, LAKE, table.present, table.examples, says)


def _check(artifact: Artifact, kind: str, present: list[str], problem: str = "") -> ArtifactCheck:
    if problem:
        says = f"not known: {problem}"
    elif present:
        says = f"present: {len(present):,}, made before the takedown: {_REMEDIES[kind]}"
    else:
        says = "absent"
    return ArtifactCheck(str(artifact.address), kind, len(present) or int(bool(problem)), present[:3], says)


def _counts(numbers: dict[str, int]) -> str:
    return (
        ", ".join(f"{number:,} {kind}{'s' * (number > 1)}" for kind, number in sorted(numbers.items())) or "nothing new"
    )
