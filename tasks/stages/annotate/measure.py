"""One pass over the documents of a part: all annotators that have something to measure see them split once.

Reads one part of `extracted`, and of the groups that were measured before as much as the annotators read. Writes one
part of every group that is missing (`tasks.core.groups`), committed one by one: a pass that is killed goes on at the
first group of the first part that is not there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core import parquet
from tasks.core.artifact import Artifact, ArtifactFolder, PartRecord
from tasks.core.groups import KIND, path_of
from tasks.core.part import POISON, Part, commit_part
from tasks.filters.base import Annotator
from tasks.filters.batch import Batch
from tasks.filters.catalogue import annotator
from tasks.formats.documents import mark_of, marked, same_mark
from tasks.stages.annotate.config import AnnotateConfig
from tasks.stages.annotate.groups import models_of, reads_of

_COLUMNS = ["id", "text", "source", "url"]
_ERROR = pa.field("error", pa.string())


@dataclass(frozen=True)
class Pass:
    """What workers need to know. Picklable, and no larger for more parts.

    `folders` says where in the store each group lies or comes to lie, by annotator in the order of `use`;
    `fingerprints` are those of the groups that the pass makes.
    """

    config: AnnotateConfig
    extracted: ArtifactFolder
    models: Mapping[str, Artifact]
    folders: Mapping[str, str]
    fingerprints: Mapping[str, str]
    attempt: str


class Found(NamedTuple):
    """What one annotator has found: the errors, null where it did not fail, and its column, null where it did."""

    errors: pa.StringArray
    column: pa.StructArray

    def slice(self, start: int, length: int) -> "Found":
        """Returns the findings on some documents."""
        return Found(self.errors.slice(start, length), self.column.slice(start, length))


def measure_part(work: Pass, task: tuple[str, Sequence[str]]) -> dict[str, PartRecord]:
    """Measures the documents of one part; runs on a worker.

    Args:
        work: the pass.
        task: name of the part, and the groups to measure, in the order of `use`.

    Returns:
        the records of the groups' parts, by annotator.
    """
    name, missing = task
    annotators = {one: annotator(one, work.config.settings[one]) for one in missing}
    for by in annotators.values():
        by.prepare(models_of(by, work.models))
    documents = work.extracted.table(f"documents/{name}.parquet", columns=_COLUMNS).combine_chunks()
    read = {other for by in annotators.values() for other in reads_of(by, list(work.folders))}
    known = {other: _read(work, other, name, documents) for other in sorted(read - set(missing))}
    made: dict[str, list[Found]] = {one: [] for one in missing}
    for start, length in batches(documents, work.config.batch_bytes):
        before = {other: found.slice(start, length) for other, found in known.items()}
        for one, found in measured(documents.slice(start, length), annotators, before).items():
            made[one].append(found)
    return {one: _commit(work, one, name, documents.column("id"), annotators[one], made[one]) for one in missing}


def _read(work: Pass, other: str, name: str, documents: pa.Table) -> Found:
    """Reads what was measured before of one part."""
    store, path = work.extracted.store, f"{work.folders[other]}/{path_of(name)}"
    table = parquet.read(store.local(path)).combine_chunks()
    same_mark(mark_of(documents.column("id")), table, f"{work.extracted.address} and {path}")
    return Found(*(table.column(column).combine_chunks() for column in (_ERROR.name, other)))


def _commit(work: Pass, one: str, name: str, ids: pa.ChunkedArray, by: Annotator, made: Sequence[Found]) -> PartRecord:
    part = Part(work.extracted.store, work.folders[one], name, work.attempt)
    errors = pa.chunked_array([found.errors for found in made], _ERROR.type)
    column = pa.chunked_array([found.column for found in made], by.type())
    table = marked(pa.table([errors, column], schema=pa.schema([_ERROR, pa.field(one, by.type())])), ids)
    part.count_in(len(ids))
    part.table(KIND, table.combine_chunks())
    part.metric(POISON, len(ids) - table.column(_ERROR.name).null_count)
    return commit_part(work.extracted.store, work.folders[one], work.fingerprints[one], part.record(conserved=True))


def batches(documents: pa.Table, limit: int) -> Iterator[tuple[int, int]]:
    """Cuts a table into pieces of about `limit` bytes of text; a longer document is a piece of its own.

    Returns:
        first row and number of rows of each.
    """
    sizes = pc.binary_length(documents.column("text")).to_pylist()
    start = held = 0
    for row, size in enumerate(sizes):
        if held and held + size > limit:
            yield start, row - start
            start, held = row, 0
        held += size
    if held or start < len(sizes):
        yield start, len(sizes) - start


def measured(documents: pa.Table, annotators: Mapping[str, Annotator], before: Mapping[str, Found]) -> dict[str, Found]:
    """Runs annotators on some documents, one after the other.

    Args:
        documents: `_COLUMNS`.
        annotators: by name, in the order in which they run.
        before: what others have found on these documents.

    Returns:
        what each has found, by name.
    """
    batch, names = _batch(documents), list(annotators)
    found = dict(before)
    for place, (name, one) in enumerate(annotators.items()):
        # A document of 16 MB has splits of hundreds of megabytes: they are not held beside what models take.
        batch.keep_for(names[place:])
        found[name] = _measured(documents, one, {other: found[other] for other in reads_of(one, list(found))}, batch)
    return {name: found[name] for name in names}


def _measured(documents: pa.Table, one: Annotator, read: Mapping[str, Found], batch: Batch | None = None) -> Found:
    """Runs one annotator; the documents that make it fail, or one that it reads, are found by halving."""
    failed = [other for other, found in read.items() if found.errors.null_count < len(found.errors)]
    cause = f"not measured: {', '.join(failed)} failed"
    if not failed:
        try:
            batch = batch or _batch(documents)
            batch.show({other: found.column for other, found in read.items()})
            return Found(pa.nulls(len(batch), pa.string()), one.annotate(batch))
        except Exception as error:  # one document must not stop a part
            cause = f"{type(error).__name__}: {error}"[:500]
    rows = documents.num_rows
    if rows == 1:
        return Found(pa.array([cause], pa.string()), pa.array([None], one.type()))
    halves = [
        _measured(
            documents.slice(start, length), one, {other: found.slice(start, length) for other, found in read.items()}
        )
        for start, length in ((0, rows // 2), (rows // 2, rows - rows // 2))
    ]
    return Found(*(pa.concat_arrays(several) for several in zip(*halves, strict=True)))


def _batch(documents: pa.Table) -> Batch:
    texts, sources, urls = (documents.column(name).to_pylist() for name in _COLUMNS[1:])
    return Batch(texts, sources, urls, column=documents.column("text").combine_chunks())
