"""Stage `text_index`: an index of the words of kept documents, and of the letters of their titles and URLs.

Reads `documents` (kept/); writes `words/group-<number>-of-<count>.sqlite`, one index per group of files
(`tasks.formats.documents.text_index`). A group is a part, which one worker writes.
"""

from functools import partial

from tasks.core import parquet
from tasks.core.artifact import ArtifactFolder
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report
from tasks.formats.documents.text_index import FOLDER, KEPT, TextIndexWriter, group_name
from tasks.stages.text_index import TextIndexConfig

VERSION = 2

_COLUMNS = ("title", "url", "text", "source", "host", "language", "tier", "prose_score")
_BATCH = 2_000


def run(config: TextIndexConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the index of every group of files."""
    documents = inputs["documents"]
    rows = {file.path: file.rows or 0 for file in documents.entries(KEPT)}
    groups: list[list[str]] = []
    size = 0
    for path in documents.files(KEPT):
        if not groups or size >= config.group_documents:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += rows[path]
    specs = [PartSpec(group_name(number, len(groups)), paths) for number, paths in enumerate(groups)]
    records = output.map_parts(engine, partial(_index_group, documents.folder, config.phrases), specs)
    indexed = sum(record.rows_out for record in records)
    return Report(note=f"words of {indexed:,} documents in {len(groups):,} files")


def _index_group(documents: ArtifactFolder, phrases: bool, part: Part, paths: list[str]) -> None:
    """Writes one index; runs on a worker."""
    with TextIndexWriter(phrases) as writer:
        for path in paths:
            writer.begin(path)
            with parquet.open_file(documents.local(path)) as file:
                for batch in file.iter_batches(_BATCH, columns=list(_COLUMNS)):
                    writer.add(batch.to_pylist())
        part.count_in(writer.rows)
        part.count_out(writer.rows)
        with part.file(f"{FOLDER}/{part.name}.sqlite", rows=writer.rows) as target:
            writer.write(target)
