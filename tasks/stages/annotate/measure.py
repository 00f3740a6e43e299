"""One pass of annotators over the documents of a part; the annotators share the splits of a text.

Reads one part of `extracted`, and of existing groups the columns that the annotators read. Writes one part of every
missing group (`tasks.core.groups`), each committed on its own: a killed pass resumes at the first group of the first
part that is missing.
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
from tasks.filters.batch import DocumentBatch
from tasks.filters.catalogue import annotator
from tasks.formats.documents.document import check_ids_digest, ids_digest, with_ids_digest
from tasks.stages.annotate import AnnotateConfig

_COLUMNS = ["id", "text", "source", "url"]
_ERROR = pa.field("error", pa.string())


@dataclass(frozen=True)
class Pass:
    """The job description that is sent to workers. Picklable; its size does not depend on the number of parts.

    Attributes:
        config: the stage's settings.
        extracted: the documents.
        models: artifacts with trained models, by kind.
        folders: folder in the store of each group, existing or to be written, by annotator in the order of `use`.
        fingerprints: of the groups that the pass writes, by annotator.
        attempt: id of the attempt that writes.
    """

    config: AnnotateConfig
    extracted: ArtifactFolder
    models: Mapping[str, Artifact]
    folders: Mapping[str, str]
    fingerprints: Mapping[str, str]
    attempt: str


class Found(NamedTuple):
    """Results of one annotator, row by row: the error, null on success, and the attributes, null on failure."""

    errors: pa.StringArray
    column: pa.StructArray

    def slice(self, start: int, length: int) -> "Found":
        """Returns the results of the rows `start` to `start + length`."""
        return Found(self.errors.slice(start, length), self.column.slice(start, length))


def reads_of(reader: Annotator, among: Sequence[str]) -> list[str]:
    """Returns the annotators of `among` whose attributes `reader` reads."""
    return [other for other in among if other in (*reader.reads, *reader.needs)]


def models_of(reader: Annotator, inputs: Mapping[str, Artifact]) -> dict[str, Artifact]:
    """Returns the artifacts with trained models that an annotator reads, by kind; missing ones are left out."""
    return {kind: inputs[kind] for kind in sorted(reader.trained()) if kind in inputs}


def measure_part(work: Pass, task: tuple[str, Sequence[str]]) -> dict[str, PartRecord]:
    """Measures the documents of one part; runs on a worker.

    Args:
        work: the pass.
        task: name of the part, and the groups to measure, in the order of `use`.

    Returns:
        the records of the groups' parts, by annotator.
    """
    name, missing = task
    annotators = {group: annotator(group, work.config.settings[group]) for group in missing}
    for current in annotators.values():
        current.prepare(models_of(current, work.models))
    documents = work.extracted.table(f"documents/{name}.parquet", columns=_COLUMNS).combine_chunks()
    read = {other for current in annotators.values() for other in reads_of(current, list(work.folders))}
    known = {other: _read(work, other, name, documents) for other in sorted(read - set(missing))}
    results: dict[str, list[Found]] = {group: [] for group in missing}
    for start, length in batches(documents, work.config.batch_bytes):
        before = {other: found.slice(start, length) for other, found in known.items()}
        for group, found in measured(documents.slice(start, length), annotators, before).items():
            results[group].append(found)
    ids = documents.column("id")
    return {group: _commit(work, group, name, ids, annotators[group], results[group]) for group in missing}


def _read(work: Pass, other: str, name: str, documents: pa.Table) -> Found:
    """Reads one part of an existing group."""
    store, path = work.extracted.store, f"{work.folders[other]}/{path_of(name)}"
    table = parquet.read(store.local(path)).combine_chunks()
    check_ids_digest(ids_digest(documents.column("id")), table, f"{work.extracted.address} and {path}")
    return Found(*(table.column(column).combine_chunks() for column in (_ERROR.name, other)))


def _commit(
    work: Pass, group: str, name: str, ids: pa.ChunkedArray, author: Annotator, results: Sequence[Found]
) -> PartRecord:
    part = Part(work.extracted.store, work.folders[group], name, work.attempt)
    errors = pa.chunked_array([found.errors for found in results], _ERROR.type)
    column = pa.chunked_array([found.column for found in results], author.type())
    table = with_ids_digest(pa.table([errors, column], schema=pa.schema([_ERROR, pa.field(group, author.type())])), ids)
    part.count_in(len(ids))
    part.table(KIND, table.combine_chunks())
    part.metric(POISON, len(ids) - table.column(_ERROR.name).null_count)
    return commit_part(work.extracted.store, work.folders[group], work.fingerprints[group], part.record(conserved=True))


def batches(documents: pa.Table, limit: int) -> Iterator[tuple[int, int]]:
    """Splits a table into batches of about `limit` bytes of text; a longer document is a batch of its own.

    Returns:
        first row and number of rows of each.
    """
    sizes = pc.binary_length(documents.column("text")).to_pylist()
    start = batch_size = 0
    for row, size in enumerate(sizes):
        if batch_size and batch_size + size > limit:
            yield start, row - start
            start, batch_size = row, 0
        batch_size += size
    if batch_size or start < len(sizes):
        yield start, len(sizes) - start


def measured(documents: pa.Table, annotators: Mapping[str, Annotator], before: Mapping[str, Found]) -> dict[str, Found]:
    """Runs annotators in sequence on some documents.

    Args:
        documents: `_COLUMNS`.
        annotators: by name, in execution order.
        before: results of other annotators on these documents, by name.

    Returns:
        results by annotator.
    """
    batch, names = _batch(documents), list(annotators)
    found = dict(before)
    for position, (name, current) in enumerate(annotators.items()):
        # The splits of a document of 16 MB take hundreds of megabytes: freed before models allocate theirs.
        batch.free_unread_splits(names[position:])
        read = {other: found[other] for other in reads_of(current, list(found))}
        found[name] = _measured(documents, current, read, batch)
    return {name: found[name] for name in names}


def _measured(
    documents: pa.Table, current: Annotator, read: Mapping[str, Found], batch: DocumentBatch | None = None
) -> Found:
    """Runs one annotator; bisects the batch to find documents on which it, or an annotator that it reads, fails."""
    failed = [other for other, found in read.items() if found.errors.null_count < len(found.errors)]
    cause = f"not measured: {', '.join(failed)} failed"
    if not failed:
        try:
            batch = batch or _batch(documents)
            batch.set_annotations({other: found.column for other, found in read.items()})
            return Found(pa.nulls(len(batch), pa.string()), current.annotate(batch))
        except Exception as error:  # one document must not stop a part
            cause = f"{type(error).__name__}: {error}"[:500]
    rows = documents.num_rows
    if rows == 1:
        return Found(pa.array([cause], pa.string()), pa.array([None], current.type()))
    halves = [
        _measured(
            documents.slice(start, length), current, {name: found.slice(start, length) for name, found in read.items()}
        )
        for start, length in ((0, rows // 2), (rows // 2, rows - rows // 2))
    ]
    return Found(*(pa.concat_arrays(pair) for pair in zip(*halves, strict=True)))


def _batch(documents: pa.Table) -> DocumentBatch:
    texts, sources, urls = (documents.column(name).to_pylist() for name in _COLUMNS[1:])
    return DocumentBatch(texts, sources, urls, column=documents.column("text").combine_chunks())
