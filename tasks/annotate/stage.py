"""Annotate: every document is measured, in one pass.

Reads `extracted`, and the models that the pipeline has trained, where annotators want them. Writes
`attributes/<part>.parquet`: `id`, `error` (null, or what made an annotator fail) and one struct column per annotator in
use, with the part names and the row order of the documents, so that dedup and consolidate join by position.

Documents are never changed or dropped here, and no limit is applied: a changed limit costs the join of consolidate. A
document that makes an annotator fail keeps its place, with nulls and its error.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.annotate.config import AnnotateConfig
from tasks.artifact import Artifact
from tasks.catalogue import STAGES
from tasks.engine import Engine
from tasks.errors import InputError
from tasks.filters.base import Annotator
from tasks.filters.batch import Batch
from tasks.filters.catalogue import annotator
from tasks.part import POISON
from tasks.stage import Inputs, Output, Part, PartSpec, Report

VERSION = 6

MODELS = tuple(STAGES["annotate"].wants)
"""Roles of the inputs that hold trained models."""

_COLUMNS = ["id", "text", "source", "url"]
_ERROR = pa.field("error", pa.string())


def external(config: AnnotateConfig) -> dict[str, list[str]]:
    """Returns the files outside the store that annotators read, by role `annotator:<name>`."""
    found = {name: annotator(name, config.settings[name]).external() for name in config.use}
    return {f"annotator:{name}": paths for name, paths in found.items() if paths}


def run(config: AnnotateConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Annotates every part of `extracted`.

    Raises:
        InputError: a model is not there, or too many documents made an annotator fail.
    """
    extracted = inputs["extracted"]
    models = {role: inputs[role] for role in MODELS if role in inputs}
    specs = [PartSpec(part.name, (extracted, models, config)) for part in extracted.parts]
    records = output.map_parts(engine, annotate_part, specs)
    rows = sum(record.rows_in for record in records)
    poison = sum(record.metrics.get(POISON, 0.0) for record in records)
    if poison > output.max_bad_share * rows:
        where = output.store.url(f"{output.address.path}/attributes/")
        raise InputError(
            f"{output.address}: annotators failed on {poison:.0f} of {rows} documents",
            f"read the causes in the column `error` of {where}",
        )
    return Report(note=f"{rows:,} documents annotated")


def annotate_part(part: Part, payload: tuple[Artifact, Mapping[str, Artifact], AnnotateConfig]) -> None:
    """Annotates the documents of one part; see the module's docstring for what it writes."""
    extracted, models, config = payload
    annotators = {name: annotator(name, config.settings[name]) for name in config.use}
    for one in annotators.values():
        one.prepare(models)
    documents = extracted.table(f"documents/{part.name}.parquet", columns=_COLUMNS).combine_chunks()
    part.count_in(documents.num_rows)
    schema = pa.schema(
        [documents.schema.field("id"), _ERROR, *(pa.field(name, one.type()) for name, one in annotators.items())]
    )
    made = [measured(rows, annotators, schema) for rows in batches(documents, config.batch_bytes)]
    table = pa.concat_tables([schema.empty_table(), *made]).combine_chunks()
    part.table("attributes", table)
    part.metric(POISON, table.num_rows - table.column("error").null_count)


def batches(documents: pa.Table, limit: int) -> Iterator[pa.Table]:
    """Cuts a table into pieces of about `limit` bytes of text; a longer document is a piece of its own."""
    sizes = pc.binary_length(documents.column("text")).to_pylist()
    start = held = 0
    for row, size in enumerate(sizes):
        if held and held + size > limit:
            yield documents.slice(start, row - start)
            start, held = row, 0
        held += size
    if held or start < len(sizes):
        yield documents.slice(start)


def measured(documents: pa.Table, annotators: Mapping[str, Annotator], schema: pa.Schema) -> pa.Table:
    """Runs all annotators on some documents; those that make one fail are found by halving.

    Returns:
        a table of `schema`, with the rows of `documents`.
    """
    try:
        columns = _columns(documents, annotators)
    except Exception as error:  # one document must not stop a part
        if documents.num_rows > 1:
            half = documents.num_rows // 2
            halves = (documents.slice(0, half), documents.slice(half))
            return pa.concat_tables([measured(rows, annotators, schema) for rows in halves])
        cause = f"{type(error).__name__}: {error}"[:500]
        columns = [pa.array([cause], pa.string()), *(pa.array([None], one.type()) for one in annotators.values())]
    return pa.table([documents.column("id").combine_chunks(), *columns], schema=schema)


def _columns(documents: pa.Table, annotators: Mapping[str, Annotator]) -> Sequence[Any]:
    texts, sources, urls = (documents.column(name).to_pylist() for name in _COLUMNS[1:])
    batch = Batch(texts, sources, urls, column=documents.column("text").combine_chunks())
    names = list(annotators)
    for place, (name, one) in enumerate(annotators.items()):
        # A document of 16 MB has splits of hundreds of megabytes: they are not held beside what models take.
        batch.keep_for(names[place:])
        batch.found[name] = one.annotate(batch)
        if name == "language":
            batch.languages = batch.found[name].field("label").to_pylist()
    return [pa.nulls(len(batch), pa.string()), *(batch.found[name] for name in annotators)]
