"""Stage chunks: kept documents -> chunks for fine-tuning, cut along their structure to a budget of tokens.

Reads `documents` (kept/), of `extracted` the layout of paged documents and their texts, `tokenizer`, and the takedowns
in force (`takedowns`), whose documents give no chunk. Writes

    cut/ runs/               the chunks of each part (`cut`); not in the artifact
    copies/<range>.bin       every chunk with the text of another one that is kept (COPY), by row; not in the artifact
    chunks/<part>.parquet    the chunks that are kept (`tasks.formats.documents.chunks.CHUNK`)
    rejected/<part>.parquet  the others, with reasons (`tasks.formats.documents.chunks.REJECTED`)

in three steps on workers:

    cut      per part             the one pass over the texts
    compare  per range of hashes  equal texts
    keep     per part             what becomes of each chunk

Rows in are chunks that were cut; each goes out or is rejected with one reason.
"""

from collections.abc import Iterable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder, PartRecord
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report
from tasks.formats.dedup import document_ids, sorted_runs
from tasks.formats.dedup.document_ids import HALVES, range_of, row_of
from tasks.formats.dedup.sorted_runs import Buckets, bucket_count
from tasks.formats.documents.chunks import CHUNK, KIND, REJECTED
from tasks.stages.chunks import ChunksConfig
from tasks.stages.chunks.cut import KEPT, RUN, Job, cut_part

VERSION = 2

COPY = np.dtype([("key", "<u8"), ("of", HALVES)])
"""A chunk that is not kept: its row in `cut/` as a row id, and the id of the chunk that is."""

DUPLICATE = "duplicate"


def run(config: ChunksConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Cuts all kept documents; raises InputError where there is none."""
    documents, extracted = inputs["documents"], inputs["extracted"]
    names = documents.names(KEPT)
    taken_down = tuple(one.folder for one in inputs.many("takedowns")) if "takedowns" in inputs else ()
    job = Job(config, documents.folder, extracted.folder, inputs["tokenizer"].folder, taken_down)
    paged = {*extracted.names("layout/")}
    runs = Buckets("runs", len(names))
    own = ArtifactFolder(output.store, output.address, output.address.path)
    specs = [
        PartSpec(f"cut-{name}", (number, name, runs.path(number), name in paged)) for number, name in enumerate(names)
    ]
    cut = output.map_parts(engine, partial(cut_part, job), specs, conserved=False)
    if not _sum(cut, "documents"):
        raise InputError(f"{documents.address} has no kept document", "look at its funnel for the reasons")
    copies = Buckets("copies", bucket_count(int(_sum(cut, "cut")), config.bucket_chunks))
    specs = [PartSpec(copies.name(number), number) for number in range(copies.count)]
    compared = output.map_parts(engine, partial(compare_part, own, runs, copies), specs, conserved=False)
    specs = [PartSpec(name, (number, name)) for number, name in enumerate(names)]
    kept = output.map_parts(engine, partial(keep_part, own, copies), specs)
    output.leave_out(record.name for record in (*cut, *compared))
    metrics = _metrics(cut, kept)
    return Report(metrics=metrics, note=_note(metrics))


def _sum(records: Iterable[PartRecord], name: str) -> float:
    return sum(record.metrics.get(name, 0.0) for record in records)


def _metrics(cut: Iterable[PartRecord], kept: Iterable[PartRecord]) -> dict[str, float]:
    kept = list(kept)
    reasons = sorted({reason for record in kept for reason in record.rejected})
    return {
        "documents": _sum(cut, "documents"),
        "cut": _sum(cut, "cut"),
        "chunks": float(sum(record.rows_out for record in kept)),
        "tokens": _sum(kept, "tokens"),
        **{tier: _sum(kept, tier) for tier in ("gold", "silver")},
        **{f"rejected/{name}": float(sum(one.rejected.get(name, 0) for one in kept)) for name in reasons},
    }


def _note(metrics: dict[str, float]) -> str:
    mean = metrics["tokens"] / metrics["chunks"] if metrics["chunks"] else 0.0
    kept = f"{metrics['chunks']:,.0f} of {metrics['cut']:,.0f} chunks are kept, with {mean:,.0f} tokens each"
    return f"{kept}; of {metrics['documents']:,.0f} documents"


def compare_part(own: ArtifactFolder, runs: Buckets, copies: Buckets, part: Part, number: int) -> None:
    """Writes one range of hashes; runs on a worker.

    Args:
        own: the stage's artifact.
        runs: names of its runs.
        copies: names of the files that are written.
        part: receives them.
        number: of the range.
    """
    sorted_runs.write(
        part, copies.path(number), [copied(sorted_runs.read_bucket(own, runs.paths(), RUN, number, copies.count))]
    )


def copied(runs: NDArray[np.void]) -> NDArray[np.void]:
    """Returns COPY of all chunks but one of each text, sorted by row.

    The chunk of a gold document is kept before others, of equal ones that with the lowest id: so it depends neither on
    the parts nor on their order.

    Args:
        runs: records of RUN.
    """
    order = np.lexsort((runs["id"][:, 1], runs["id"][:, 0], runs["rank"], runs["rest"], runs["key"]))
    runs = runs[order]
    new = np.ones(len(runs), np.bool_)
    new[1:] = (runs["key"][1:] != runs["key"][:-1]) | (runs["rest"][1:] != runs["rest"][:-1])
    kept = np.maximum.accumulate(np.where(new, np.arange(len(runs)), 0))
    found = np.empty(int((~new).sum()), COPY)
    found["key"], found["of"] = runs["row"][~new], runs["id"][kept][~new]
    return sorted_runs.by_key(found)


def keep_part(own: ArtifactFolder, copies: Buckets, part: Part, given: tuple[int, str]) -> None:
    """Writes the part with a number and a name; runs on a worker."""
    number, name = given
    cut = own.table(f"cut/{name}.parquet")
    found = sorted_runs.read_range(own, copies.paths(), COPY, *range_of(number))
    keepers = np.full(cut.num_rows, None, object)
    keepers[row_of(found["key"])] = document_ids.unpack(found["of"]).to_pylist()
    of = pa.array(keepers, pa.string())
    reasons = pc.if_else(pc.is_valid(of), DUPLICATE, cut.column("reason").combine_chunks())
    stays = pc.equal(reasons, "")
    part.count_in(cut.num_rows)
    kept = cut.filter(stays).select(CHUNK.names).combine_chunks()
    part.table(KIND, kept)
    gone = cut.append_column("duplicate_of", of)
    gone = gone.set_column(gone.schema.get_field_index("reason"), REJECTED.field("reason"), reasons)
    gone = gone.filter(pc.invert(stays)).select(REJECTED.names).combine_chunks()
    part.table("rejected", gone, out=False)
    for reason in gone.column("reason").to_pylist():
        part.reject(reason)
    part.metric("tokens", pc.sum(kept.column("tokens")).as_py() or 0)
    for tier in kept.column("tier").to_pylist():
        part.metric(tier, 1)
