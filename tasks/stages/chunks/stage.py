"""Stage chunks: kept documents -> chunks for fine-tuning, cut along their structure to a budget of tokens.

Reads `documents` (kept/), of `extracted` the layout of paged documents and their texts, `tokenizer`, and the takedowns
in force (`takedowns`), whose documents give no chunk. Writes

    chunks/<part>.parquet    the chunks that are kept (`tasks.formats.chunks.CHUNK`)
    rejected/<part>.parquet  the others, with reasons (`tasks.formats.chunks.REJECTED`)
    cut/ runs/ copies/       what the steps below leave to each other; not in the artifact

    cut      per part, on workers             the one pass over the texts (`cut`)
    compare  per range of hashes, on workers  equal texts (`equal`)
    keep     per part, on workers             what becomes of each chunk (`equal`)

Rows in are chunks that were cut; each goes out or is rejected with one reason.
"""

from collections.abc import Iterable
from functools import partial

from tasks.core.artifact import ArtifactFolder, PartRecord
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, PartSpec, Report
from tasks.formats.dedup.sorted_runs import Buckets, bucket_count
from tasks.stages.chunks.config import ChunksConfig
from tasks.stages.chunks.equal import compare_part, keep_part
from tasks.stages.chunks.units import KEPT, Job, cut_part

VERSION = 2


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
