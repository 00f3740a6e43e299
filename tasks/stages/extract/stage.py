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
rejection of its own. A first pass (`first_pass`) reads only identities (for a crawl from the index of its WARC files),
so that on any number of workers
- the same URL with the same bytes is one document, however often it was captured: the first one in input order;
- a page as rendered by a browser replaces the captures of its URL in the same source.

The second pass extracts in a child process with limits (see `guard`): a page that exceeds the limit of time or memory
is quarantined, and the part continues.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain, repeat

import pyarrow as pa

from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.part import POISON
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report, part_names
from tasks.formats.dedup.dedup_index import index_of
from tasks.formats.documents.document import REJECTED, document_id
from tasks.formats.documents.tombstones import tombstones_of
from tasks.formats.hooks import Hooks
from tasks.formats.web.url import host_of
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.files import read_unit
from tasks.stages.extract.first_pass.exclusions import EXCLUDED, PartInput, exclude_rows, leave_out
from tasks.stages.extract.guard import MEMORY_BYTES, PATIENCE, ExtractionGuard, Outcome
from tasks.stages.extract.html import check_installed
from tasks.stages.extract.parser import Parser, find_parser
from tasks.stages.extract.part_files import OrderedDocuments, PagedFiles, write_documents
from tasks.stages.extract.partitioning import arrange, divide, run_names
from tasks.stages.extract.returned import returned_parts
from tasks.stages.extract.row import Content, InputRow, Poison, Rejected
from tasks.stages.extract.sources import external, input_units, license_refs

VERSION = 14

# Modules that an extractor needs and `content` does not import; their import must not count as time of the first page.
_SLOW_TO_IMPORT = {"blocks": ("tasks.stages.extract.blocks",), "trafilatura": ("trafilatura",)}


HOOKS = Hooks(external=external)


def run(config: ExtractConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Extracts every capture and file.

    Raises:
        NothingNewError: the recipe has streams, and there is no new message and no other input.
        InputError: there is no input, a file of rows is of another kind or has no text, no row gives a document, or the
            extractor is not installed.
    """
    _check_installed(config)
    licenses = license_refs(config, inputs)
    units = input_units(config, inputs, output.address)
    parts = arrange(divide(units, config, engine), config)
    part_inputs = [PartInput(config, tuple(part_units)) for part_units in parts]
    specs = list(map(PartSpec, part_names(len(parts)), part_inputs, run_names(parts)))
    names = [spec.name for spec in specs]
    records = output.map_parts(engine, extract_part, exclude_rows(specs, units, output, engine))
    records += returned_parts(index_of(inputs), tombstones_of(inputs), names, output, engine)
    leave_out(output)
    documents = sum(record.rows_out for record in records)
    if not documents:
        reasons = sum((Counter(record.rejected) for record in records), Counter[str]())
        counts = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        raise InputError(f"{output.address}: no row gave a document ({counts or 'the inputs hold no rows'})")
    return Report(note=f"{documents:,} documents in {len(records)} parts", inputs=licenses)


def extract_part(part: Part, part_input: PartInput) -> None:
    """Extracts and writes one part; see the docstring of the module."""
    config = part_input.config
    _check_installed(config)  # on this worker, too
    guard = _guard(config)
    rejected: list[dict[str, str]] = []
    paged = PagedFiles(recognized=any(parser.recognizes for parser in _parsers(config)))
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


def _parsers(config: ExtractConfig) -> list[Parser]:
    return [find_parser(name, settings) for name, settings in config.parsers.items()]


def _check_installed(config: ExtractConfig) -> None:
    """Raises InputError if the extractor or a package that a parser needs is not installed."""
    check_installed(config)
    for parser in _parsers(config):
        parser.check_installed()


def _guard(config: ExtractConfig) -> ExtractionGuard:
    """Returns a guard whose child imports the modules that the settings need before its first page."""
    cpu_s = config.max_page_cpu_s
    modules = _SLOW_TO_IMPORT.get(config.extractor, ())
    if not config.parsers:
        return ExtractionGuard(cpu_s, modules)
    parsers = _parsers(config)
    needed = dict.fromkeys(name for parser in parsers for name in (type(parser).__module__, *parser.needed_modules))
    silent_s = max(PATIENCE * (parser.cpu_s or cpu_s) + parser.wait_s for parser in parsers)
    memory_bytes = max(parser.memory_bytes or MEMORY_BYTES for parser in parsers)
    modules = (*modules, "tasks.stages.extract.parser", *needed)
    return ExtractionGuard(cpu_s, modules, max(PATIENCE * cpu_s, silent_s), memory_bytes)


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
    rows = (row for unit in part_input.units for row in read_unit(unit, part_input.config))
    reasons = part_input.excluded.read() if part_input.excluded else b""
    for row, reason in zip(rows, chain(reasons, repeat(0)), strict=False):
        yield replace(row, refused=EXCLUDED[reason]) if reason and not row.refused else row


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
        "form": content.form,
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
