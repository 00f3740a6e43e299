"""One pass of annotators over the documents of a part; the annotators share the splits of a text.

Reads one part of `extracted`, and the columns of existing groups that the annotators read. Writes one part of every
missing group (`documents.groups`). Each is committed separately, so a killed pass resumes at the first missing one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core import parquet
from tasks.core.artifact import Artifact, ArtifactFolder, PartRecord
from tasks.core.part import POISON, Part, commit_part
from tasks.core.stage import group_by_size
from tasks.filters.base import Annotator
from tasks.filters.batch import DocumentBatch
from tasks.filters.catalogue import annotator
from tasks.formats.documents.document import check_ids_digest, ids_digest, with_ids_digest
from tasks.formats.documents.groups import KIND, path_of
from tasks.formats.documents.structure import without_marks
from tasks.stages.annotate import AnnotateConfig

_COLUMNS = ["id", "text", "source", "url", "form"]
_ERROR = pa.field("error", pa.string())


@dataclass(frozen=True)
class Pass:
    """Arguments that are sent to workers. Picklable; the size does not depend on the number of parts.

    Attributes:
        config: the stage's settings.
        extracted: the documents.
        models: artifacts with trained models, by kind.
        folders: folder in the store of each group, existing or not, by annotator in the order of `use`.
        fingerprints: fingerprints of the groups that the pass writes, by annotator.
        attempt: id of the writing attempt.
    """

    config: AnnotateConfig
    extracted: ArtifactFolder
    models: Mapping[str, Artifact]
    folders: Mapping[str, str]
    fingerprints: Mapping[str, str]
    attempt: str


class AnnotatorResult(NamedTuple):
    """Results of one annotator by row: the error (null on success) and the attributes (null on failure)."""

    errors: pa.StringArray
    column: pa.StructArray

    def slice(self, start: int, length: int) -> "AnnotatorResult":
        """Returns the results of the rows `start` to `start + length`."""
        return AnnotatorResult(self.errors.slice(start, length), self.column.slice(start, length))


def reads_of(reader: Annotator, names: Sequence[str]) -> list[str]:
    """Returns those of the annotators `names` whose attributes `reader` reads."""
    return [name for name in names if name in (*reader.reads, *reader.needs)]


def models_of(reader: Annotator, inputs: Mapping[str, Artifact]) -> dict[str, Artifact]:
    """Returns the artifacts with trained models that an annotator reads, by kind; missing ones are omitted."""
    return {kind: inputs[kind] for kind in sorted(reader.trained()) if kind in inputs}


def measure_part(work: Pass, task: tuple[str, Sequence[str]]) -> dict[str, PartRecord]:
    """Annotates the documents of one part; runs on a worker.

    Args:
        work: the pass.
        task: name of the part, and the groups to write, in the order of `use`.

    Returns:
        records of the written parts, by annotator.
    """
    name, missing = task
    annotators = {group: annotator(group, work.config.settings[group]) for group in missing}
    for current in annotators.values():
        current.prepare(models_of(current, work.models))
    documents = work.extracted.table(f"documents/{name}.parquet", columns=_COLUMNS).combine_chunks()
    reads = {other for current in annotators.values() for other in reads_of(current, list(work.folders))}
    existing = {other: _read_group(work, other, name, documents) for other in sorted(reads - set(missing))}
    results: dict[str, list[AnnotatorResult]] = {group: [] for group in missing}
    sizes = pc.binary_length(documents.column("text")).to_pylist()
    for start, end in group_by_size(sizes, work.config.batch_bytes):
        existing_slices = {other: result.slice(start, end - start) for other, result in existing.items()}
        for group, result in run_annotators(documents.slice(start, end - start), annotators, existing_slices).items():
            results[group].append(result)
    ids = documents.column("id")
    return {group: _commit(work, group, name, ids, annotators[group], results[group]) for group in missing}


def _read_group(work: Pass, other: str, name: str, documents: pa.Table) -> AnnotatorResult:
    """Reads one part of an existing group."""
    store, path = work.extracted.store, f"{work.folders[other]}/{path_of(name)}"
    table = parquet.read(store.local(path)).combine_chunks()
    check_ids_digest(ids_digest(documents.column("id")), table, f"{work.extracted.address} and {path}")
    return AnnotatorResult(table.column(_ERROR.name).combine_chunks(), table.column(other).combine_chunks())


def _commit(
    work: Pass, group: str, name: str, ids: pa.ChunkedArray, author: Annotator, results: Sequence[AnnotatorResult]
) -> PartRecord:
    part = Part(work.extracted.store, work.folders[group], name, work.attempt)
    errors = pa.chunked_array([result.errors for result in results], _ERROR.type)
    column = pa.chunked_array([result.column for result in results], author.type())
    table = with_ids_digest(pa.table([errors, column], schema=pa.schema([_ERROR, pa.field(group, author.type())])), ids)
    part.count_in(len(ids))
    part.table(KIND, table.combine_chunks())
    part.metric(POISON, len(ids) - table.column(_ERROR.name).null_count)
    for name, value in author.summary(column.combine_chunks()).items():
        part.metric(f"{group}/{name}", value)
    return commit_part(work.extracted.store, work.folders[group], work.fingerprints[group], part.record(conserved=True))


def run_annotators(
    documents: pa.Table, annotators: Mapping[str, Annotator], existing: Mapping[str, AnnotatorResult]
) -> dict[str, AnnotatorResult]:
    """Runs annotators in sequence on some documents.

    Args:
        documents: table with `_COLUMNS`.
        annotators: annotators by name, in execution order.
        existing: results of other annotators on these documents, by name.

    Returns:
        results by annotator.
    """
    remaining = list(annotators.values())
    stored = _batch(documents)
    plain = _batch(_without_marks(documents)) if _is_marked(documents) else stored
    results = dict(existing)
    for position, (name, current) in enumerate(annotators.items()):
        # The splits of a document of 16 MB take hundreds of megabytes; they are freed before models allocate memory.
        for batch in {id(batch): batch for batch in (stored, plain)}.values():
            batch.free_splits(but={split for later in remaining[position:] for split in later.splits})
        batch = stored if current.places else plain
        read = {other: results[other] for other in reads_of(current, list(results))}
        results[name] = _run_annotator(documents, current, read, batch)
    return {name: results[name] for name in annotators}


def _run_annotator(
    documents: pa.Table, current: Annotator, read: Mapping[str, AnnotatorResult], batch: DocumentBatch | None = None
) -> AnnotatorResult:
    """Runs one annotator; if it fails, bisects the batch to find the documents on which it fails.

    Documents on which an annotator that it reads has failed count as failures of this one.
    """
    failed = [other for other, result in read.items() if result.errors.null_count < len(result.errors)]
    cause = f"not measured: {', '.join(failed)} failed"
    if not failed:
        try:
            batch = batch or _batch(documents if current.places else _without_marks(documents))
            batch.set_annotations({other: result.column for other, result in read.items()})
            return AnnotatorResult(pa.nulls(documents.num_rows, pa.string()), current.annotate(batch))
        except Exception as error:  # one document must not fail a part
            cause = f"{type(error).__name__}: {error}"[:500]
    rows = documents.num_rows
    if rows == 1:
        return AnnotatorResult(pa.array([cause], pa.string()), pa.array([None], current.type()))
    halves = []
    for start, length in ((0, rows // 2), (rows // 2, rows - rows // 2)):
        half = {name: result.slice(start, length) for name, result in read.items()}
        halves.append(_run_annotator(documents.slice(start, length), current, half))
    errors, columns = [half.errors for half in halves], [half.column for half in halves]
    return AnnotatorResult(pa.concat_arrays(errors), pa.concat_arrays(columns))


def _batch(documents: pa.Table) -> DocumentBatch:
    texts, sources, urls = (documents.column(name).to_pylist() for name in ("text", "source", "url"))
    return DocumentBatch(texts, sources, urls, column=documents.column("text").combine_chunks())


def _is_marked(documents: pa.Table) -> bool:
    return "markdown" in documents.column("form").unique().to_pylist()


def _without_marks(documents: pa.Table) -> pa.Table:
    """Returns the documents with the plain text of those that have marks of Markdown."""
    if not _is_marked(documents):
        return documents
    columns = (documents.column(name).to_pylist() for name in ("text", "form"))
    texts = [without_marks(text) if form == "markdown" else text for text, form in zip(*columns, strict=True)]
    return documents.set_column(documents.column_names.index("text"), "text", pa.chunked_array([texts], pa.string()))
