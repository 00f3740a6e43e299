"""The boilerplate report: the most repeated paragraphs of the corpus.

Reads `top.parquet` and the `examples/` of all parts. Writes `boilerplate.parquet` (BOILERPLATE, by descending
documents) and `report.html`.
"""

import io
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.artifact import ArtifactFolder
from tasks.core.pages import template
from tasks.core.stage import Part
from tasks.stages.paragraphs.config import ParagraphsConfig
from tasks.stages.paragraphs.count import COUNTS
from tasks.stages.paragraphs.mark import EXAMPLE, TOP_FILE

PAGE, TABLE = "report.html", "boilerplate.parquet"
BOILERPLATE = pa.schema(
    [
        *(COUNTS.field(name) for name in ("documents", "texts", "domains", "hash")),
        *(EXAMPLE.field(name) for name in ("url", "example")),
    ]
)


def collect(own: ArtifactFolder, names: Iterable[str]) -> pa.Table:
    """Returns BOILERPLATE: the most repeated paragraphs with their examples."""
    found = (own.table(f"examples/{name}.parquet") for name in names)
    examples = {row["hash"]: row for table in found for row in table.to_pylist()}
    top = own.table(TOP_FILE).to_pylist()
    rows = [{**row, **examples[row["hash"]]} for row in top]
    return pa.Table.from_pylist([{name: row[name] for name in BOILERPLATE.names} for row in rows], schema=BOILERPLATE)


def write(part: Part, config: ParagraphsConfig, boilerplate: pa.Table, metrics: dict[str, float]) -> None:
    """Writes the table and the page."""
    with part.file(TABLE, rows=boilerplate.num_rows) as file:
        file.write(as_parquet(boilerplate))
    with part.file(PAGE) as file:
        file.write(page(config, boilerplate, metrics))


def page(config: ParagraphsConfig, boilerplate: pa.Table, metrics: dict[str, float]) -> bytes:
    """Returns the page as HTML in UTF-8, without scripts and external resources."""
    described = {"config": config, "rows": boilerplate.to_pylist(), "metrics": metrics}
    return template(__package__, "report.html").render(described).encode("utf-8", "replace")


def as_parquet(table: pa.Table) -> bytes:
    """Returns a table as a Parquet file."""
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", compression_level=3)
    return file.getvalue()
