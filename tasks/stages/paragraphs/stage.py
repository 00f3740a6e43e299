"""Stage paragraphs: documents -> repeated paragraphs in each document.

Reads `extracted` (documents/). Writes

    places/ runs/             per part, the paragraphs, and those to count (`scan`); intermediate files, which are not
                              in the artifact
    counts/ top/              per range of hashes, documents and domains of the repeated paragraphs (`count`)
    top.parquet               the most repeated paragraphs of all ranges (`passes.COUNTS`)
    paragraphs/ repeats/      per part, the repeated paragraphs (`tasks.formats.documents.document`)
    examples/                 per part, beginnings of the most repeated paragraphs (`mark`)
    boilerplate.parquet       the 100 most repeated paragraphs with counts and an example (`BOILERPLATE`)
    report.html               the same as a page; also in MLflow

Documents are neither dropped nor changed here; consolidate does that.

    scan     per part, on workers             the only pass over all texts
    count    per range of hashes, on workers  exact numbers of documents and domains
    top      in this process                  the 100 most repeated
    mark     per part, on workers             share and spans

Memory of this process: 100 rows per range of hashes, one range at a time.
"""

from collections.abc import Iterable
from functools import partial

import pyarrow as pa

from tasks.core.artifact import ArtifactFolder, PartRecord
from tasks.core.engine import Engine
from tasks.core.pages import template
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report, total
from tasks.formats.dedup.sorted_runs import Buckets, bucket_count
from tasks.formats.documents.document import parts_of
from tasks.formats.hooks import Hooks, words_version
from tasks.stages.paragraphs import ParagraphsConfig
from tasks.stages.paragraphs.passes import (
    COUNTS,
    EXAMPLE,
    FOLDER,
    TOP,
    TOP_FILE,
    count_part,
    mark_part,
    most_repeated,
    scan_part,
)

VERSION = 2
PAGE, TABLE = "report.html", "boilerplate.parquet"

BOILERPLATE = pa.schema(
    [
        *(COUNTS.field(name) for name in ("documents", "texts", "domains", "hash")),
        *(EXAMPLE.field(name) for name in ("url", "example")),
    ]
)

HOOKS = Hooks(code=words_version)


def run(config: ParagraphsConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Finds repeated paragraphs in all documents; raises InputError if there is no document."""
    extracted = inputs["extracted"]
    names = parts_of(extracted)
    own = output.folder
    runs = Buckets("runs", len(names))
    specs = [PartSpec(f"scan-{name}", (name, path)) for name, path in zip(names, runs.paths(), strict=True)]
    scanning = partial(scan_part, config.min_words, extracted.folder)
    scanned = output.map_parts(engine, scanning, specs, conserved=False)
    ranges = Buckets(FOLDER, bucket_count(int(total(scanned, "counted")), config.bucket_paragraphs))
    specs = [PartSpec(ranges.name(number), number) for number in range(ranges.count)]
    counted = output.map_parts(engine, partial(count_part, config, own, runs, ranges), specs, conserved=False)
    _write_top(ranges.sibling(TOP), own, output)
    marking = partial(mark_part, extracted.folder, own, ranges)
    marked = output.map_parts(engine, marking, [PartSpec(name, name) for name in names])
    metrics = _metrics(scanned, counted, marked)
    if "report" not in output.committed:
        with output.part("report", conserved=False) as part:
            write_report(part, config, collect(own, names), metrics)
    output.log_file("report.html", own.read(PAGE))
    output.log_file("boilerplate.parquet", own.read(TABLE))
    output.leave_out(record.name for record in scanned)
    return Report(metrics=metrics, note=_note(metrics))


def _write_top(ranges: Buckets, own: ArtifactFolder, output: Output) -> None:
    """Writes the most repeated paragraphs of all ranges."""
    if "top" in output.committed:
        return
    top = COUNTS.empty_table()
    for path in ranges.paths("parquet"):
        top = most_repeated([top, own.table(path)])
    with output.part("top", conserved=False) as part:
        part.write_table(TOP_FILE, top)


def _metrics(
    scanned: Iterable[PartRecord], counted: Iterable[PartRecord], marked: Iterable[PartRecord]
) -> dict[str, float]:
    marked, counted = list(marked), list(counted)
    characters = total(marked, "characters")
    return {
        "documents": float(sum(record.rows_in for record in marked)),
        "documents_with_repeats": total(marked, "documents_with_repeats"),
        "paragraphs": total(scanned, "paragraphs"),
        "distinct": total(counted, "distinct"),
        "repeated": total(counted, "repeated"),
        "repeated_share": total(marked, "repeated_characters") / characters if characters else 0.0,
    }


def _note(metrics: dict[str, float]) -> str:
    return (
        f"{metrics['repeated']:,.0f} of {metrics['distinct']:,.0f} paragraphs are repeated; "
        f"{metrics['documents_with_repeats']:,.0f} of {metrics['documents']:,.0f} documents repeat others in "
        f"{metrics['repeated_share']:.1%} of the characters"
    )


def collect(own: ArtifactFolder, names: Iterable[str]) -> pa.Table:
    """Returns BOILERPLATE: the most repeated paragraphs with counts and examples."""
    tables = (own.table(f"examples/{name}.parquet") for name in names)
    examples = {row["hash"]: row for table in tables for row in table.to_pylist()}
    top = own.table(TOP_FILE).to_pylist()
    rows = [{**row, **examples[row["hash"]]} for row in top]
    return pa.Table.from_pylist([{name: row[name] for name in BOILERPLATE.names} for row in rows], schema=BOILERPLATE)


def write_report(part: Part, config: ParagraphsConfig, boilerplate: pa.Table, metrics: dict[str, float]) -> None:
    """Writes the table and the page."""
    part.write_table(TABLE, boilerplate)
    part.write(PAGE, page(config, boilerplate, metrics))


def page(config: ParagraphsConfig, boilerplate: pa.Table, metrics: dict[str, float]) -> bytes:
    """Returns the page as HTML in UTF-8, without scripts and external resources."""
    context = {"config": config, "rows": boilerplate.to_pylist(), "metrics": metrics}
    return template(__package__, "report.html").render(context).encode("utf-8", "replace")
