"""Examples from chunks: the text of each is learned as the response to its document's title and its headings.

Reads `chunks/<part>.parquet` (`tasks.formats.documents.chunks`).
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part
from tasks.formats.documents.chunks import KIND, asked
from tasks.formats.documents.tombstones import TAKEDOWN, Tombstones
from tasks.stages.finetune.config import ExamplesConfig
from tasks.stages.finetune.encoding import Segments, segments

NOT_CHOSEN = "not_chosen"
_BATCH = 512
_KEPT = ("document", "url", "source", "pages", "boxes")


def rows_of_chunks(
    config: ExamplesConfig, chunks: ArtifactFolder, name: str, gone: Tombstones, part: Part
) -> Iterator[tuple[dict[str, Any], list[Segments], str]]:
    """Yields the chosen chunks of a part: their origin, their text, and the id of their document.

    Counts all chunks, and rejects those that are not chosen and those of documents that are taken down.
    """
    assert config.chunks is not None
    conditions = config.chunks.conditions
    table = chunks.table(f"{KIND}/{name}.parquet")
    taken_down = gone.mask(table.select(["document", "url"]).rename_columns(["id", "url"]))
    number = 0
    for batch in table.append_column("gone", pa.array(taken_down)).to_batches(max_chunksize=_BATCH):
        for chunk in batch.to_pylist():
            number += 1
            part.count_in()
            if chunk["gone"]:
                part.reject(TAKEDOWN)
            elif any(chunk[column] not in values for column, values in conditions.items()):
                part.reject(NOT_CHOSEN)
            else:
                origin = {"line": number, "id": chunk["id"], **{column: chunk[column] for column in _KEPT}}
                yield origin, [_segments(config, chunk)], chunk["document"]


def _segments(config: ExamplesConfig, chunk: dict[str, Any]) -> Segments:
    question = asked(chunk["title"], chunk["sections"])
    said = [*([("user", question)] if question else []), ("assistant", chunk["text"][chunk["body"] :])]
    return list(segments(said, config.template, learned=True))
