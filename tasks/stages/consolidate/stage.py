"""Stage consolidate: documents and all verdicts on them -> kept (masked) and rejected documents, and the funnel.

Reads `extracted`, `attributes`, `duplicates` and, if the recipe has them, `contamination` and `paragraphs`, which must
have the same parts and rows, and the takedowns in force (`takedowns`). Documents that are taken down are rejected
before any other rule, regardless of their source, and appear on no page. Writes

    kept/<part>.parquet      kept documents; text, title and metadata masked; with language, score and tier
                             (KEPT_SCHEMA)
    rejected/<part>.parquet  dropped documents: first reason, all reasons, the document that it duplicates (schema
                             REJECTED), the attributes that the filters read, one struct column each, and, if the
                             recipe has these inputs, its evaluation item and repeated paragraphs
                             (`document.TOP_ITEM`, `REPEATED_SPANS`)
    index/ keys/             rows of the rejected documents by URL and id (`tasks.formats.documents.key_index`)
    replaced/<part>.parquet  documents of earlier versions that this version replaces (`resolve.REPLACED`)
    funnel.parquet           source x language x step x reason x tier: documents and bytes (`funnel`)
    hosts.parquet            documents and kept documents per host
    language_pairs.parquet   documents whose second language is close, by pair
    audit.html               sample documents of every verdict
    duplicates.html, .json   dedup's audit with texts (`duplicates_page`)
    counts/ hosts/ pairs/ samples/ copies/ withheld/  the tables of each part (added up by `sums`)

Reasons are ordered by filter, then contamination, repeated paragraphs, and duplication. Duplicates are resolved after
filtering (`resolve`), so that a filtered or contaminated document is never the keeper of one that passes.
"""

import logging
from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.engine import Engine
from tasks.core.errors import InputError, NothingNewError
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report
from tasks.filters import UNDETERMINED
from tasks.filters.language_values import OTHER
from tasks.formats.dedup.exchange import Exchange
from tasks.formats.documents import key_index
from tasks.formats.documents.document import CONTAMINATED, DOCUMENT, REPEATED
from tasks.formats.documents.groups import KIND
from tasks.formats.documents.tombstones import TAKEDOWN, page_term
from tasks.stages.consolidate import audit, duplicates_page, sums
from tasks.stages.consolidate.aligned_inputs import AlignedInputs, AlignedParts
from tasks.stages.consolidate.config import GOLD, SILVER, ConsolidateConfig
from tasks.stages.consolidate.funnel import (
    DEDUP,
    EXTRACT,
    KEPT,
    MOST_LOST,
    OUTCOME,
    STEPS,
    UNCHANGED,
    add_pairs,
    count,
    count_hosts,
    count_pairs,
    csv_of,
    draw,
    filter_losses,
    totals,
)
from tasks.stages.consolidate.mask import mask_metadata, mask_texts, mask_titles
from tasks.stages.consolidate.resolve import copies_in_part, leave_out, resolve_parts, write_replaced
from tasks.stages.consolidate.rules import COLUMNS, Verdicts, check_measured, step_of, verdicts

VERSION = 13

log = logging.getLogger("sluice.consolidate")

_SCORES = [pa.field("language", pa.string(), nullable=False), pa.field("prose_score", pa.float32())]
_SHOWN = ("language", "prose_score")
"""The annotators of `_SCORES`."""
KEPT_SCHEMA = pa.schema([*DOCUMENT, *_SCORES, pa.field("tier", pa.string(), nullable=False)])  # silver or gold
REJECTED = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),  # the first one
        pa.field("reasons", pa.list_(pa.string()), nullable=False),
        pa.field("duplicate_of", pa.string()),  # id of the document that it duplicates
        *_SCORES,
    ]
)


def run(config: ConsolidateConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes kept and rejected documents, the funnel and the audit page.

    Raises:
        InputError: the inputs do not have the same parts, an attribute was not measured, annotators failed on too many
            documents, or no document passes.
        NothingNewError: none does, as most are unchanged since an earlier version or have been published by one.
    """
    aligned = AlignedInputs(
        extracted=inputs["extracted"],
        attributes=inputs["attributes"],
        duplicates=inputs["duplicates"],
        store=output.store,
        folder=output.address.path,
        takedowns=tuple(inputs.many("takedowns")) if "takedowns" in inputs else (),
        contamination=inputs.get("contamination"),
        paragraphs=inputs.get("paragraphs"),
    )
    names = aligned.names()
    check_measured(config, aligned.attribute_schema(names[0]), str(aligned.attributes.address))
    parts = aligned.parts
    copies = resolve_parts(config, parts, aligned, output, engine)
    replaced = write_replaced(parts, aligned, copies, output, engine)
    specs = [PartSpec(part.name, part.number) for part in aligned.numbered() if not part.earlier]
    key_index.merge(output, engine, output.map_parts(engine, partial(consolidate_part, config, parts, copies), specs))
    output.check_poison(f"the column `error` of {_error_folders(parts)}")
    _write_whole(config, parts, names, output, engine)
    funnel = parts.own("funnel.parquet")
    nearly_lost = _warn(funnel, output)
    _refuse_empty(funnel, output, follows=any(ref.role == "index" for ref in aligned.duplicates.record.inputs))
    output.log_file("funnel.png", partial(draw, funnel, str(output.address)))
    output.log_file("funnel.csv", csv_of(funnel))
    for page in ("audit.html", duplicates_page.PAGE, duplicates_page.DATA):
        output.log_file(page, output.store.read(f"{output.address.path}/{page}"))
    metrics = _metrics(funnel) | {"replaced": float(replaced), "sources_nearly_lost": float(len(nearly_lost))}
    without_limits = _without_limits(config, funnel)
    metrics["without_language_limits"] = float(without_limits.total())
    leave_out(output)
    sums.leave_out(output)
    return Report(metrics=metrics, note="; ".join([_note(metrics), *nearly_lost, *_languages_note(without_limits)]))


def _error_folders(aligned: AlignedParts) -> str:
    failed = (group.files for group in aligned.groups.values() if group.failed)
    return ", ".join(files.store.url(f"{files.path}/{KIND}/") for files in failed)


def _write_whole(
    config: ConsolidateConfig, aligned: AlignedParts, names: list[str], output: Output, engine: Engine
) -> None:
    """Writes the sums of the tables of all parts, and the pages."""
    if "whole" in output.committed:
        return
    folder = aligned.own_folder
    last = sums.add_groups(config.samples, folder, names, output, engine)
    whole = sums.add_tables(folder, last, config.samples)
    with output.part("whole", conserved=False) as part:
        part.write_table("funnel.parquet", whole.counts)
        part.write_table("language_pairs.parquet", whole.pairs)
        largest = sums.write_hosts(folder, last, part, "hosts.parquet", audit.MOST_HOSTS)
        part.write("audit.html", audit.page(whole.counts, largest, whole.pairs, whole.samples))
        duplicates_page.write_page(aligned, part, whole.copies, whole.withheld)


def consolidate_part(
    config: ConsolidateConfig, aligned: AlignedParts, copies: Exchange, part: Part, number: int
) -> None:
    """Writes the part with this number; runs on a worker."""
    name = part.name
    annotators = [annotator for annotator in aligned.groups if annotator in (*config.reads(), *_SHOWN)]
    documents, judged, duplicates = aligned.part(name, None, annotators, COLUMNS)
    part.count_in(documents.num_rows)
    taken_down = aligned.taken_down(documents)
    resolved = copies_in_part(aligned, copies, number)
    results = verdicts(config, documents.column("source"), judged, resolved, duplicates, taken_down)
    is_kept = results.is_kept
    part.metric("promoted", pc.sum(duplicates.filter(is_kept).column("duplicate_of").is_valid()).as_py() or 0)
    documents = _scored(documents, judged)
    _write_kept(
        config, part, documents.filter(is_kept), judged.filter(is_kept), [tier for tier in results.tiers if tier]
    )
    _write_rejected(config, part, documents, judged, results)
    _write_counts(aligned, part, documents, results)
    pairs = [count_pairs(judged.column("language").combine_chunks(), is_kept)] if "language" in aligned.groups else []
    part.table("pairs", add_pairs(pairs), out=False)
    _write_samples(config, part, documents, judged, results.reasons)
    duplicates_page.write_copies(config, aligned, part, documents, judged, results.first, taken_down)


def _scored(documents: pa.Table, judged: pa.Table) -> pa.Table:
    """Adds the columns language ("und" if not measured) and prose score."""
    rows = documents.num_rows

    def field(annotator: str, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        if annotator not in judged.column_names:
            return pa.chunked_array([pa.nulls(rows, kind)], kind)
        return pc.struct_field(judged.column(annotator), name)

    language = pc.fill_null(field("language", "label", pa.string()), UNDETERMINED)
    return documents.append_column("language", language).append_column(
        "prose_score", field("prose_score", "score", pa.float32())
    )


def _write_kept(config: ConsolidateConfig, part: Part, kept: pa.Table, judged: pa.Table, tier: list[str]) -> None:
    texts = mask_texts(config, kept, judged, [True] * kept.num_rows, part)
    columns = {
        "text": pa.array(texts, pa.string()),
        "title": mask_titles(config, kept.column("title")),
        "metadata": mask_metadata(config, kept.column("metadata")),
    }
    for name, values in columns.items():
        kept = kept.set_column(kept.schema.get_field_index(name), DOCUMENT.field(name), values)
    part.table("kept", kept.append_column("tier", pa.array(tier, pa.string())).cast(KEPT_SCHEMA).combine_chunks())


def _write_rejected(
    config: ConsolidateConfig, part: Part, documents: pa.Table, judged: pa.Table, results: Verdicts
) -> None:
    is_dropped = pc.invert(results.is_kept)
    dropped = documents.filter(is_dropped)
    reasons = [row for row in results.reasons if row]
    for first, *_ in reasons:
        part.reject(first)
    values = {
        "reason": pa.array([row[0] for row in reasons], pa.string()),
        "reasons": pa.array(reasons, pa.list_(pa.string())),
        "duplicate_of": pa.array(results.duplicate_of, pa.string()).filter(is_dropped),
    }
    columns = [values[name] if name in values else dropped.column(name).combine_chunks() for name in REJECTED.names]
    rows = pa.table(columns, schema=REJECTED)
    for name in _deciding_columns(config, judged):
        if name not in REJECTED.names:
            rows = rows.append_column(name, judged.column(name).filter(is_dropped))
    part.table("rejected", rows.combine_chunks(), out=False)
    terms = ((key_index.ID, rows["id"].to_pylist()), (key_index.URL, map(page_term, rows["url"].to_pylist())))
    keys = [key_index.keys_of(kind, values) for kind, values in terms]
    key_index.write_part_keys(part, np.concatenate(keys), np.tile(np.arange(len(rows)), len(keys)))


def _deciding_columns(config: ConsolidateConfig, judged: pa.Table) -> list[str]:
    """Returns the names of the columns on which verdicts are based, for rejected documents and the audit page."""
    return [*config.filters, *(name for name in (CONTAMINATED, REPEATED) if name in judged.column_names)]


def _write_counts(aligned: AlignedParts, part: Part, documents: pa.Table, results: Verdicts) -> None:
    sizes = pc.binary_length(documents.column("text"))
    first = results.first
    verdict_columns = [[step_of(reason) for reason in first], first, results.tiers]
    columns = [
        *(documents.column(name) for name in ("source", "language")),
        *(pa.array(column) for column in verdict_columns),
        sizes,
    ]
    rejections = aligned.extract_rejections(part.name)
    rows = rejections.num_rows
    rejected_columns = {"language": [""] * rows, "step": [EXTRACT] * rows, "tier": [""] * rows, "bytes": [None] * rows}
    rejected_columns |= {name: rejections.column(name) for name in ("source", "reason")}
    outcomes = [
        pa.table(columns, OUTCOME.names).cast(OUTCOME),
        pa.table(rejected_columns).select(OUTCOME.names).cast(OUTCOME),
    ]
    part.table("counts", count(pa.concat_tables(outcomes)), out=False)
    part.table("hosts", count_hosts(documents.column("host"), results.is_kept, sizes.combine_chunks()), out=False)


def _write_samples(
    config: ConsolidateConfig, part: Part, documents: pa.Table, judged: pa.Table, reasons: list[list[str]]
) -> None:
    rows = audit.choose(reasons, documents.column("id").to_pylist(), config.samples)
    rows = [row for row in rows if reasons[row][:1] != [TAKEDOWN]]  # texts that are taken down are not shown
    indices = pa.array(rows, pa.int64())
    sampled, attributes = documents.take(indices), judged.take(indices)
    texts = mask_texts(config, sampled, attributes, [not reasons[row] for row in rows])
    measured = attributes.select(_deciding_columns(config, attributes))
    part.table("samples", audit.samples(sampled, measured, [reasons[row] for row in rows], texts), out=False)


def _warn(funnel: pa.Table, output: Output) -> list[str]:
    """Logs a warning for every source of which filters drop more than MOST_LOST; returns the warnings."""
    warnings = []
    for source, (documents, reasons) in filter_losses(funnel).items():
        if (lost := reasons.total()) > MOST_LOST * documents:
            most = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common(3))
            warnings.append(f"source {source} loses {lost:,} of its {documents:,} documents ({most})")
            log.warning(
                "[%s] %s: look at samples in audit.html; if they are good, set limits for the source, "
                "[consolidate.limits.%s.<filter>], and check them with what-if",
                output.address,
                warnings[-1],
                source,
            )
    return warnings


def _without_limits(config: ConsolidateConfig, funnel: pa.Table) -> Counter[str]:
    """Returns the numbers of documents of filtered sources by language, for languages without limits of their own."""
    counts: Counter[str] = Counter()
    for row in totals(funnel, ["source", "language", "step"]):
        is_judged = row["source"] not in config.trusted and row["source"] in (config.sources or (row["source"],))
        if row["step"] != EXTRACT and is_judged and config.language_of(row["language"]) == OTHER:
            counts[row["language"]] += row["documents"]
    return counts


def _languages_note(counts: Counter[str]) -> list[str]:
    most = ", ".join(f"{language} {count:,}" for language, count in counts.most_common(3))
    return [f"{counts.total():,} documents have languages without limits of their own ({most})"] if counts else []


def _refuse_empty(funnel: pa.Table, output: Output, *, follows: bool) -> None:
    """Raises if no document is left; `follows`: earlier versions have published documents."""
    rows = funnel.to_pylist()
    if any(row["step"] == KEPT for row in rows):
        return
    lost: Counter[str] = Counter()
    for row in rows:
        lost[row["reason"]] += row["documents"]
    most = ", ".join(f"{reason} {count:,}" for reason, count in lost.most_common(3))
    see = f"see why in {output.store.url(output.address.path)}/rejected"
    if all(row["step"] in (EXTRACT, DEDUP) or row["reason"] == TAKEDOWN for row in rows):
        see = f"there is nothing new to publish, and no limit is the cause; {see}"
    else:
        see = f"loosen [consolidate], or {see}"
    cause = f"{output.address}: none of {lost.total():,} captures and files is left ({most})"
    known = sum(row["documents"] for row in rows if row["reason"] == UNCHANGED or row["step"] == DEDUP)
    # A page that changes every month and is too short, such as an index, is no reason to stop.
    raise (NothingNewError if follows and 2 * known >= lost.total() else InputError)(cause, see)


def _note(metrics: dict[str, float]) -> str:
    dropped = [f"{step} {metrics[f'gone_in_{step}']:,.0f}" for step in STEPS if step != KEPT]
    kept = f"{metrics['kept']:,.0f} of {metrics['captures']:,.0f} captures and files are kept"
    return f"{kept} ({metrics['kept_share']:.0%}); gone in {', '.join(dropped)}"


def _metrics(funnel: pa.Table) -> dict[str, float]:
    rows = totals(funnel, ["source", "step"])
    steps = {step: sum(row["documents"] for row in rows if row["step"] == step) for step in STEPS}
    total = sum(steps.values())
    kept = {row["source"]: float(row["documents"]) for row in rows if row["step"] == KEPT}
    by_tier = {row["tier"]: float(row["documents"]) for row in totals(funnel, ["tier"])}
    return {
        "captures": float(total),
        **{f"gone_in_{step}": float(number) for step, number in steps.items() if step != KEPT},
        "kept": float(steps[KEPT]),
        **{tier: by_tier.get(tier, 0.0) for tier in (GOLD, SILVER)},
        "kept_share": steps[KEPT] / total,
        "kept_bytes": float(sum(row["bytes"] for row in rows if row["step"] == KEPT)),
        **{f"kept/{source}": number for source, number in kept.items()},
        **{
            f"filtered_share/{name}": reasons.total() / total
            for name, (total, reasons) in filter_losses(funnel).items()
        },
    }
