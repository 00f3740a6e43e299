"""Stage chunks: kept documents -> chunks for fine-tuning, cut along their structure within a token budget.

Reads `documents` (kept/), `tokenizer`, layouts and texts of paged documents in `extracted`, and the takedowns in force
(`takedowns`), whose documents have no chunks. Writes

    cut/ runs/               the chunks of each part (`cut`); not in the artifact
    copies/<range>.bin       every chunk with the text of another, kept chunk (COPY), by row; not in the artifact
    chunks/<part>.parquet    the kept chunks (`tasks.formats.documents.chunks.CHUNK`)
    rejected/<part>.parquet  the others, with reasons (`tasks.formats.documents.chunks.REJECTED`)

in three steps on workers:

    cut      per part             the only pass over the texts
    compare  per range of hashes  finds equal texts
    keep     per part             writes kept and rejected chunks

Rows in are all chunks; each is a row out, or is rejected for one reason.
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
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report, total
from tasks.formats.dedup import document_ids, sorted_runs
from tasks.formats.dedup.document_ids import HALVES, range_of, row_of
from tasks.formats.dedup.sorted_runs import Buckets, bucket_count
from tasks.formats.documents.chunks import CHUNK, KIND, REJECTED
from tasks.formats.hooks import Hooks, words_version
from tasks.stages.chunks import ChunksConfig
from tasks.stages.chunks.cut import KEPT, RUN, CutJob, cut_part

VERSION = 2

COPY = np.dtype([("key", "<u8"), ("of", HALVES)])
"""Record of a duplicate chunk: its row in `cut/` as a row id, and the id of the kept chunk."""

DUPLICATE = "duplicate"

HOOKS = Hooks(code=words_version)


def run(config: ChunksConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Cuts all kept documents into chunks; raises InputError if there are none."""
    documents, extracted = inputs["documents"], inputs["extracted"]
    names = documents.names(KEPT)
    takedowns = tuple(takedown.folder for takedown in inputs.many("takedowns")) if "takedowns" in inputs else ()
    job = CutJob(config, documents.folder, extracted.folder, inputs["tokenizer"].folder, takedowns)
    with_layouts = {*extracted.names("layout/")}
    runs = Buckets("runs", len(names))
    own = output.folder
    specs = [
        PartSpec(f"cut-{name}", (number, name, runs.path(number), name in with_layouts))
        for number, name in enumerate(names)
    ]
    cut = output.map_parts(engine, partial(cut_part, job), specs, conserved=False)
    if not total(cut, "documents"):
        raise InputError(f"{documents.address} has no kept document", "look at its funnel for the reasons")
    copies = Buckets("copies", bucket_count(int(total(cut, "cut")), config.bucket_chunks))
    specs = [PartSpec(copies.name(number), number) for number in range(copies.count)]
    compared = output.map_parts(engine, partial(compare_part, own, runs, copies), specs, conserved=False)
    specs = [PartSpec(name, number) for number, name in enumerate(names)]
    kept = output.map_parts(engine, partial(keep_part, own, copies), specs)
    output.leave_out(record.name for record in (*cut, *compared))
    metrics = _metrics(cut, kept)
    return Report(metrics=metrics, note=_note(metrics))


def _metrics(cut: Iterable[PartRecord], kept: Iterable[PartRecord]) -> dict[str, float]:
    kept = list(kept)
    reasons = sorted({reason for record in kept for reason in record.rejected})
    return {
        "documents": total(cut, "documents"),
        "cut": total(cut, "cut"),
        "chunks": float(sum(record.rows_out for record in kept)),
        "tokens": total(kept, "tokens"),
        **{tier: total(kept, tier) for tier in ("gold", "silver")},
        **{f"rejected/{name}": float(sum(record.rejected.get(name, 0) for record in kept)) for name in reasons},
    }


def _note(metrics: dict[str, float]) -> str:
    mean = metrics["tokens"] / metrics["chunks"] if metrics["chunks"] else 0.0
    kept = f"{metrics['chunks']:,.0f} of {metrics['cut']:,.0f} chunks are kept, with {mean:,.0f} tokens each"
    return f"{kept}; of {metrics['documents']:,.0f} documents"


def compare_part(own: ArtifactFolder, runs: Buckets, copies: Buckets, part: Part, number: int) -> None:
    """Writes one range of hashes; runs on a worker.

    Args:
        own: folder of the stage's artifact.
        runs: names of its runs.
        copies: names of the written files.
        part: receives the file.
        number: number of the range.
    """
    sorted_runs.write(
        part, copies.path(number), [find_copies(sorted_runs.read_bucket(own, runs.paths(), RUN, number, copies.count))]
    )


def find_copies(runs: NDArray[np.void]) -> NDArray[np.void]:
    """Returns the COPY records of all chunks except one per text, sorted by row.

    Chunks of gold documents are preferred, then the lowest id, so that the result depends neither on the parts nor on
    their order.

    Args:
        runs: RUN records.
    """
    order = np.lexsort((runs["id"][:, 1], runs["id"][:, 0], runs["rank"], runs["rest"], runs["key"]))
    runs = runs[order]
    new = np.ones(len(runs), np.bool_)
    new[1:] = (runs["key"][1:] != runs["key"][:-1]) | (runs["rest"][1:] != runs["rest"][:-1])
    kept = np.maximum.accumulate(np.where(new, np.arange(len(runs)), 0))
    records = np.empty(int((~new).sum()), COPY)
    records["key"], records["of"] = runs["row"][~new], runs["id"][kept][~new]
    return sorted_runs.by_key(records)


def keep_part(own: ArtifactFolder, copies: Buckets, part: Part, number: int) -> None:
    """Writes the kept and rejected chunks of a part, given by its number; runs on a worker."""
    cut = own.table(f"cut/{part.name}.parquet")
    records = sorted_runs.read_range(own, copies.paths(), COPY, *range_of(number))
    keepers = np.full(cut.num_rows, None, object)
    keepers[row_of(records["key"])] = document_ids.unpack(records["of"]).to_pylist()
    of = pa.array(keepers, pa.string())
    reasons = pc.if_else(pc.is_valid(of), DUPLICATE, cut.column("reason").combine_chunks())
    is_kept = pc.equal(reasons, "")
    part.count_in(cut.num_rows)
    kept = cut.filter(is_kept).select(CHUNK.names).combine_chunks()
    part.table(KIND, kept)
    rejected = cut.append_column("duplicate_of", of)
    rejected = rejected.set_column(rejected.schema.get_field_index("reason"), REJECTED.field("reason"), reasons)
    rejected = rejected.filter(pc.invert(is_kept)).select(REJECTED.names).combine_chunks()
    part.table("rejected", rejected, out=False)
    for reason in rejected.column("reason").to_pylist():
        part.reject(reason)
    part.metric("tokens", pc.sum(kept.column("tokens")).as_py() or 0)
    for tier in kept.column("tier").to_pylist():
        part.metric(tier, 1)
