"""Stage extract: extracts documents from captures, local files and messages.

Reads the `warc` artifact (the WARC files of a crawl), the files of `[[extract.files]]`, and the artifacts `messages`
(of `[[extract.streams]]`) and `archived` (of `[[extract.archives]]`). Writes `documents/<part>.parquet` (sorted by id)
and `rejected/<part>.parquet`, with the schemas of `tasks.formats.documents.document`; on request also
`jsonl/<part>.jsonl.gz`, the same documents for readers without Parquet. Parts with paged files (PDF) also have
`layout/<part>.parquet` and `pages/<part>.parquet`.

With a dedup index (`tasks.formats.dedup.dedup_index`), returned documents are copied from earlier versions into parts
of their own.

Input rows are records with captured content, damaged positions of external WARC files, files, and rows of JSON and
Parquet files; each gives one document or one rejection. In a file with text, a page that needs OCR is a row and a
rejection of its own. A first pass reads only identities (for a crawl from the index of its WARC files), so that
on any number of workers
- the same URL with the same bytes is one document, however often it was captured: the first one in input order;
- a page as rendered by a browser replaces the captures of its URL in the same source.

The second pass extracts in a child process with limits (see `guard`): a page that exceeds the limit of time or memory
is quarantined, and the part continues.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core import hub
from tasks.core.artifact import EXTERNAL, Artifact, InputRef
from tasks.core.config import sha256_of_json
from tasks.core.engine import Engine
from tasks.core.errors import InputError, NothingNewError
from tasks.core.part import POISON
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report, group_by_run, part_names
from tasks.core.store import Store
from tasks.formats.dedup.dedup_index import index_of
from tasks.formats.documents.document import REJECTED, document_id
from tasks.formats.documents.external_files import DatasetFiles, SourceFile
from tasks.formats.documents.tombstones import tombstones_of
from tasks.formats.hooks import External, Hooks
from tasks.formats.warc.archive import CAPTURES, warc_files
from tasks.formats.web.url import host_of
from tasks.stages.extract.captures import read_warc
from tasks.stages.extract.config import (
    FILES,
    LICENSE,
    WARC,
    WEB,
    ArchiveFiles,
    ExtractConfig,
    FileSource,
    MessageFiles,
    Topic,
)
from tasks.stages.extract.files import RowCounts, check_row_counts, count_rows, read_file
from tasks.stages.extract.guard import PATIENCE, ExtractionGuard, Outcome
from tasks.stages.extract.html import check_installed
from tasks.stages.extract.identity import (
    ExcludedRows,
    Identity,
    excluded_rows,
    identities,
    indexed_identities,
    unit_identities,
)
from tasks.stages.extract.parser import find_parser
from tasks.stages.extract.part_files import OrderedDocuments, PagedFiles, returned_parts, write_documents
from tasks.stages.extract.partitioning import ROW_KINDS, InputUnit, arrange, divide, find_files, run_names, select_files
from tasks.stages.extract.row import Content, InputRow, Poison, Rejected

log = logging.getLogger("sluice.extract")

VERSION = 12

# Modules that an extractor needs and `content` does not import; their import must not count as time of the first page.
_SLOW_TO_IMPORT = {"blocks": ("tasks.stages.extract.blocks",), "trafilatura": ("trafilatura",)}


@dataclass(frozen=True)
class PartInput:
    """Input of one part.

    Attributes:
        store: store of the crawl; None without a crawl.
        config: settings of the stage.
        units: input units of the part.
        excluded: rows that give no document because of other rows.
        quick: whether identities use quick digests; not if they are compared with those of an index, which are SHA-1.
    """

    store: Store | None
    config: ExtractConfig
    units: tuple[InputUnit, ...]
    excluded: ExcludedRows = field(default_factory=ExcludedRows)
    quick: bool = True


def external(config: ExtractConfig) -> dict[str, External]:
    """Returns the sources from outside the store, by role `files:<source>`."""
    return {_role(source): _external(source) for source in config.files}


HOOKS = Hooks(external=external)


def _external(source: FileSource) -> External:
    """Returns the local paths of a source, or the dataset or the table that it is."""
    if hub.is_dataset(source.path):
        return DatasetFiles(source.path, partial(_files_at, source))
    return source.table() or [file.local() for file in find_files(source)]


def _files_at(source: FileSource, path: str) -> list[SourceFile]:
    return find_files(source.model_copy(update={"path": path}))


def _role(source: FileSource) -> str:
    return f"{FILES}{source.name}"


def _at_commit(source: FileSource, inputs: Inputs) -> FileSource:
    """Returns a source with the commit that the run has resolved, if it is a dataset."""
    ref = inputs.external.get(_role(source))
    if ref is None or not hub.is_dataset(source.path):
        return source
    return source.model_copy(update={"path": ref.address.removeprefix(EXTERNAL)})


def _license_refs(sources: Sequence[FileSource]) -> Iterator[InputRef]:
    """Yields what the cards of datasets state as their license, for the record; not part of the fingerprint."""
    for source in sources:
        if hub.is_dataset(source.path) and (stated := hub.license_of(hub.parse(source.path))):
            digest = sha256_of_json(stated)
            address = f"{EXTERNAL}{stated}"
            yield InputRef(role=f"{LICENSE}{source.name}", address=address, fingerprint=digest, content=digest)


def run(config: ExtractConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Extracts every capture and file.

    Raises:
        NothingNewError: the recipe has streams, and there is no new message and no other input.
        InputError: there is no input, a file of rows is of another kind or has no text, no row gives a document, or the
            extractor is not installed.
    """
    check_installed(config)
    warc = inputs.get("warc")
    store = warc.store if warc else None
    crawled = warc_files(warc) if warc else []
    units = [InputUnit(SourceFile(f.path, f.path, f.bytes), records=f.records, index=f.index) for f in crawled]
    sources = [_at_commit(source, inputs) for source in config.files]
    licenses = tuple(_license_refs(sources))
    for source in sources:
        pinned = inputs.external.get(_role(source))
        files, unmatched = select_files(source, pinned.content if pinned and source.table() else "")
        units += [InputUnit(file, source) for file in files]
        for glob in unmatched:
            log.warning('[%s] exclude of "%s": the glob "%s" matches no file', output.address, source.name, glob)
    units += _message_units(inputs.get("messages"), config)
    units += _archive_units(inputs.get("archived"), config)
    if not units and "messages" in inputs:
        raise NothingNewError(f"{output.address}: there is no new message, and no WARC file or local file")
    if not units:
        raise InputError(
            f"{output.address}: there is no WARC file and no local file", "crawl first, or add [[extract.files]]"
        )
    quick = not any(unit.index for unit in units)
    parts = arrange(divide(units, config, engine), config)
    part_inputs = [PartInput(store, config, tuple(group), quick=quick) for group in parts]
    specs = list(map(PartSpec, part_names(len(part_inputs)), part_inputs, run_names(parts)))
    if any(spec.name not in output.committed for spec in specs):
        groups = group_by_run(specs)
        results = dict(engine.map(run_identities, groups))
        tally = sum((tally for _, tally in results.values()), Counter[tuple[str, str, str]]())
        check_row_counts(tally, [(unit.file, unit.source) for unit in units if unit.source is not None])
        by_part = {
            spec.name: rows
            for number, group in enumerate(groups)
            for spec, rows in zip(group, results[number][0], strict=True)
        }
        excluded = excluded_rows([by_part[spec.name] for spec in specs])
        specs = [
            replace(spec, payload=replace(spec.payload, excluded=rows))
            for spec, rows in zip(specs, excluded, strict=True)
        ]
    records = output.map_parts(engine, extract_part, specs)
    names = [spec.name for spec in specs]
    records += returned_parts(index_of(inputs), tombstones_of(inputs), names, output, engine)
    reasons = sum((Counter(record.rejected) for record in records), Counter[str]())
    if not any(record.rows_out for record in records):
        counts = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        raise InputError(f"{output.address}: no row gave a document ({counts or 'the inputs hold no rows'})")
    note = f"{sum(record.rows_out for record in records):,} documents in {len(records)} parts"
    return Report(note=note, inputs=licenses)


def _message_units(messages: Artifact | None, config: ExtractConfig) -> Iterator[InputUnit]:
    """Yields the files of messages, by stream."""
    if messages is None:
        return
    sizes = {entry.path: entry.bytes for part in messages.parts for entry in part.files}
    for stream in config.streams:
        fields = stream.model_dump(exclude={*Topic.model_fields} - {"name"})
        source = MessageFiles(kind="jsonl", path=messages.store.url(messages.path), **fields)
        for path in messages.files(f"messages/{stream.name}/"):
            yield InputUnit(SourceFile(f"{source.path}/{path}", path, sizes[path]), source)


def _archive_units(archived: Artifact | None, config: ExtractConfig) -> Iterator[InputUnit]:
    """Yields the WARC files of archived captures, by source."""
    if archived is None:
        return
    sizes = {entry.path: entry.bytes for part in archived.parts for entry in part.files}
    for archive in config.archives:
        source = ArchiveFiles(name=archive.name, kind=WARC, path=archived.store.url(archived.path))
        for path in archived.files(f"{CAPTURES}{archive.name}/"):
            name = f"{archived.path}/{path}"
            yield InputUnit(SourceFile(archived.store.url(name), name, sizes[path]), source)


def extract_part(part: Part, part_input: PartInput) -> None:
    """Extracts and writes one part; see the docstring of the module."""
    config = part_input.config
    check_installed(config)  # on this worker, too
    guard = _guard(config)
    rejected: list[dict[str, str]] = []
    paged = PagedFiles()
    with OrderedDocuments() as documents:
        for row, outcome in guard.outcomes(_rows_to_extract(part_input)):
            part.count_in()
            if reason := _refusal(part, row, outcome, config):
                rejected.append({"record_id": row.record_id, "url": row.url, "source": row.source, "reason": reason})
                paged.add_rejected(row, outcome)
            elif isinstance(outcome, Content):
                document = _document(row, outcome)
                documents.add(document)
                rejected += paged.add_document(part, row, str(document["id"]), outcome)
                for reason in row.left_out:
                    part.metric(reason, 1)
        write_documents(part, documents, jsonl=config.jsonl)
    paged.write(part)
    rejected.sort(key=lambda row: (row["url"], row["record_id"], row["source"], row["reason"]))
    part.table("rejected", pa.Table.from_pylist(rejected, REJECTED), out=False)


def _guard(config: ExtractConfig) -> ExtractionGuard:
    """Returns a guard whose child imports the modules that the settings need before its first page."""
    cpu_s = config.max_page_cpu_s
    modules = _SLOW_TO_IMPORT.get(config.extractor, ())
    if not config.parsers:
        return ExtractionGuard(cpu_s, modules)
    parsers = [find_parser(name, settings) for name, settings in config.parsers.items()]
    needed = dict.fromkeys(module for parser in parsers for module in (type(parser).__module__, *parser.modules))
    silent_s = max(PATIENCE * (parser.cpu_s or cpu_s) + parser.wait_s for parser in parsers)
    return ExtractionGuard(cpu_s, (*modules, "tasks.stages.extract.parser", *needed), max(PATIENCE * cpu_s, silent_s))


def _refusal(part: Part, row: InputRow, outcome: Outcome, config: ExtractConfig) -> str:
    """Counts and returns the reason why a row gives no document; "" for a document."""
    if isinstance(outcome, Poison):
        part.quarantine(row.record_id or row.url, outcome)
        return POISON
    if isinstance(outcome, Rejected):
        reason = outcome.reason
    elif len(outcome.text) < config.min_chars:
        reason = "too_short" if outcome.text else "empty"
    else:
        return ""
    part.reject(reason)
    return reason


def _rows_to_extract(part_input: PartInput) -> Iterator[InputRow]:
    for number, row in enumerate(_rows(part_input)):
        reason = part_input.excluded.reason(number)
        yield replace(row, refused=reason) if reason and not row.refused else row


def _document(row: InputRow, content: Content) -> dict[str, object]:
    return {
        "id": document_id(row.url, row.payload_digest),
        "record_id": row.record_id,
        "url": row.url,
        "host": host_of(row.url),
        "fetched_at": row.fetched_at,
        "title": content.title,
        "language_hint": content.language_hint,
        "published": content.published if _is_past(content.published, row.fetched_at) else None,
        "canonical": content.canonical or None,
        "licence": content.licence or None,
        "metadata": row.metadata or _metadata_json(content),
        "text": content.text,
        "source": row.source,
        "payload_digest": row.payload_digest,
        "warc_file": row.warc_file,
        "warc_offset": row.warc_offset,
    }


def _metadata_json(content: Content) -> str | None:
    stated = {name: value for name in ("author", "site") if (value := getattr(content, name))}
    return json.dumps(stated, ensure_ascii=False) if stated else None


def _is_past(published: datetime | None, fetched: datetime | None) -> bool:
    # One day of tolerance for times without a time zone.
    return published is None or fetched is None or published <= fetched + timedelta(days=1)


def _rows(part_input: PartInput) -> Iterator[InputRow]:
    for unit in part_input.units:
        yield from _unit_rows(part_input, unit)


def _unit_rows(part_input: PartInput, unit: InputUnit, *, quick: bool = False) -> Iterator[InputRow]:
    if unit.source is not None:
        yield from read_file(unit.file, unit.source, part_input.config, quick=quick, piece=unit.piece)
    elif part_input.store is not None:
        yield from _crawl_rows(part_input.store, unit, part_input.config, quick)


def _crawl_rows(store: Store, unit: InputUnit, config: ExtractConfig, quick: bool) -> Iterator[InputRow]:
    readable = 0
    with store.open(unit.file.path) as file:
        for row in read_warc(file, unit.file.path, WEB, config, quick=quick, own=bool(unit.index)):
            readable += not row.damaged
            yield row
    # Damage in external files is tolerated; a file of the crawl was complete when it was published.
    if readable != unit.records:
        raise InputError(
            f"{store.url(unit.file.path)}: {unit.records} captures were published, {readable} can be read",
            "the file was damaged later: restore it, or crawl again as another version",
        )


def run_identities(specs: Sequence[PartSpec]) -> tuple[list[NDArray[np.void]], RowCounts]:
    """Returns `part_identities` of the parts of a run, and the counts of their rows; runs on a worker."""
    tally: RowCounts = Counter()
    return [part_identities(spec.payload, tally) for spec in specs], tally


def part_identities(part_input: PartInput, tally: RowCounts) -> NDArray[np.void]:
    """Returns the identities (IDENTITY) of the rows of a part; counts the rows of JSON and Parquet files in `tally`."""
    return identities(_unit_identities(part_input, unit, tally) for unit in part_input.units)


def _unit_identities(part_input: PartInput, unit: InputUnit, tally: RowCounts) -> Iterable[Identity]:
    if unit.index and part_input.store is not None:
        with part_input.store.open(unit.index) as file:
            listed = indexed_identities(file, unit.records)
        if listed is not None:
            return listed
    rows = _unit_rows(part_input, unit, quick=part_input.quick)
    if unit.source is not None and unit.source.kind in ROW_KINDS:
        rows = count_rows(rows, unit.file, unit.source, tally)
    return unit_identities(unit, rows)
