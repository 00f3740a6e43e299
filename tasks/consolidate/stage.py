"""Consolidate: joins documents with every verdict on them, drops once, masks, and counts what became of each capture.

Reads `extracted`, `attributes` and `duplicates`, co-partitioned (checked). Writes

    kept/<part>.parquet      documents that stay, text masked, with language and quality_score (schema KEPT_SCHEMA)
    rejected/<part>.parquet  documents that go: first reason, all reasons, what they are a copy of (schema REJECTED)
    funnel.parquet           source x step x reason: documents and bytes, captures to kept (tasks.consolidate.funnel)
    copies/ counts/          copies after the other rules, and the funnel of each part

Used by tokenizer and encode (kept/), by the plugin and by people who ask why a page is not in the corpus (rejected/). A
document has its first reason in the order language, quality, copy. Copies are resolved last, so that a document that is
dropped for another reason never is the keeper of one that would be good enough.
"""

from collections import Counter
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.consolidate.config import ConsolidateConfig
from tasks.consolidate.figure import draw
from tasks.consolidate.funnel import EXTRACT, KEPT, STEPS, add, count, source_of
from tasks.consolidate.joint import Joint
from tasks.consolidate.mask import mask
from tasks.consolidate.resolve import COPIES, resolve
from tasks.consolidate.rules import reasons, step_of
from tasks.documents import DOCUMENT
from tasks.engine import Engine
from tasks.errors import InputError
from tasks.stage import Inputs, Output, Part, PartSpec, Report

VERSION = 1

KEPT_SCHEMA = pa.schema(
    [*DOCUMENT, pa.field("language", pa.string(), nullable=False), pa.field("quality_score", pa.float32())]
)
REJECTED = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),  # the first one
        pa.field("reasons", pa.list_(pa.string()), nullable=False),
        pa.field("duplicate_of", pa.string()),  # id of the document it is a copy of
        pa.field("language", pa.string(), nullable=False),
        pa.field("quality_score", pa.float32()),
    ]
)


def run(config: ConsolidateConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Runs the stage.

    Raises:
        InputError: the inputs were not made for one another, or no document passes.
    """
    extracted, attributes, duplicates = (inputs[role] for role in ("extracted", "attributes", "duplicates"))
    joint = Joint(extracted, attributes, duplicates, output.store, output.address.path)
    names = joint.names()
    _write_copies(config, joint, names, output)
    output.map_parts(engine, partial(consolidate_part, config, joint), [PartSpec(name, name) for name in names])
    funnel = add(joint.own(f"counts/{name}.parquet") for name in names)
    if "funnel" not in output.committed:
        with output.part("funnel", conserved=False) as part, part.file("funnel.parquet", rows=funnel.num_rows) as file:
            pq.write_table(funnel, file, compression="zstd", compression_level=3)
    _refuse_empty(funnel, output)
    output.log_file("funnel.png", draw(funnel, str(output.address)))
    return Report(metrics=_metrics(funnel))


def _write_copies(config: ConsolidateConfig, joint: Joint, names: list[str], output: Output) -> None:
    if "copies" in output.committed:
        return
    found = {}
    if config.dedup:
        found = resolve(config, joint, names)
    with output.part("copies", conserved=False) as part:
        for name in names:
            copies = found.get(name, COPIES.empty_table())
            with part.file(f"copies/{name}.parquet", rows=copies.num_rows) as file:
                pq.write_table(copies, file, compression="zstd", compression_level=3)


def consolidate_part(config: ConsolidateConfig, joint: Joint, part: Part, name: str) -> None:
    """Makes one part; runs on a worker."""
    documents, judged, copies = joint.part(name, None, None, ["id", "duplicate_of", "kind"])
    part.count_in(documents.num_rows)
    going = {row["id"]: row for row in joint.own(f"copies/{name}.parquet").to_pylist()}
    why = reasons(config, documents.column("source"), judged)
    keeper: list[str | None] = []
    for reason, row in zip(why, copies.to_pylist(), strict=True):
        # A document that fails a rule keeps dedup's verdict as a further reason; one that passes has the resolved one.
        copy = (row if row["duplicate_of"] and config.dedup else None) if reason else going.get(row["id"])
        keeper.append(copy["duplicate_of"] if copy else None)
        if copy:
            reason.append(f"duplicate_{copy['kind']}")
    stays = pa.array([not reason for reason in why], pa.bool_())
    part.metric("promoted", pc.sum(copies.filter(stays).column("duplicate_of").is_valid()).as_py() or 0)
    documents = documents.append_column("language", judged.column("language")).append_column(
        "quality_score", judged.column("quality_score")
    )
    _write_kept(config, part, documents.filter(stays), judged.filter(stays))
    _write_rejected(part, documents, why, keeper)
    _write_counts(joint, part, documents, why)


def _write_kept(config: ConsolidateConfig, part: Part, kept: pa.Table, judged: pa.Table) -> None:
    if config.mask_pii:
        masked = []
        for identity, text, spans in zip(
            kept.column("id").to_pylist(),
            kept.column("text").to_pylist(),
            judged.column("pii_spans").to_pylist(),
            strict=True,
        ):
            try:
                masked.append(mask(text, spans) if spans else text)
            except ValueError as error:
                raise InputError(f"document {identity}: {error}", "run annotate on these documents again") from error
            part.metric("pii_masked", len(spans or ()))
        kept = kept.set_column(
            kept.schema.get_field_index("text"), DOCUMENT.field("text"), pa.array(masked, pa.string())
        )
    part.table("kept", kept.select(KEPT_SCHEMA.names).cast(KEPT_SCHEMA).combine_chunks())


def _write_rejected(part: Part, documents: pa.Table, why: list[list[str]], keeper: list[str | None]) -> None:
    goes = pa.array([bool(reason) for reason in why], pa.bool_())
    gone = documents.filter(goes)
    several = [reason for reason in why if reason]
    for reason, *_ in several:
        part.reject(reason)
    columns = {
        "reason": pa.array([reason[0] for reason in several], pa.string()),
        "reasons": pa.array(several, pa.list_(pa.string())),
        "duplicate_of": pa.array([one for one, reason in zip(keeper, why, strict=True) if reason], pa.string()),
    }
    made = [columns[name] if name in columns else gone.column(name).combine_chunks() for name in REJECTED.names]
    part.table("rejected", pa.table(made, schema=REJECTED), out=False)


def _write_counts(joint: Joint, part: Part, documents: pa.Table, why: list[list[str]]) -> None:
    sizes = pc.binary_length(documents.column("text")).to_pylist()
    rows: list[tuple[str, str, str, int, int | None]] = [
        (source, step_of(reason[0]) if reason else KEPT, reason[0] if reason else "", 1, size)
        for source, size, reason in zip(documents.column("source").to_pylist(), sizes, why, strict=True)
    ]
    refused = joint.extracted.table(f"rejected/{part.name}.parquet").to_pylist()
    rows += [
        (row.get("source") or source_of(row["record_id"], row["url"]), EXTRACT, row["reason"], 1, None)
        for row in refused
    ]
    part.table("counts", count(rows), out=False)


def _refuse_empty(funnel: pa.Table, output: Output) -> None:
    rows = funnel.to_pylist()
    if any(row["step"] == KEPT for row in rows):
        return
    lost: Counter[str] = Counter()
    for row in rows:
        lost[row["reason"]] += row["documents"]
    most = ", ".join(f"{reason} {count:,}" for reason, count in lost.most_common(3))
    raise InputError(
        f"{output.address}: none of {lost.total():,} captures and files is left ({most})",
        f"loosen [consolidate], or see why in {output.store.url(output.address.path)}/rejected",
    )


def _metrics(funnel: pa.Table) -> dict[str, float]:
    rows = funnel.to_pylist()
    steps = {step: sum(row["documents"] for row in rows if row["step"] == step) for step in STEPS}
    total = sum(steps.values())
    kept = {row["source"]: float(row["documents"]) for row in rows if row["step"] == KEPT}
    return {
        "captures": float(total),
        **{f"gone_in_{step}": float(number) for step, number in steps.items() if step != KEPT},
        "kept": float(steps[KEPT]),
        "kept_share": steps[KEPT] / total,
        "kept_bytes": float(sum(row["bytes"] for row in rows if row["step"] == KEPT)),
        **{f"kept/{source}": number for source, number in kept.items()},
    }
