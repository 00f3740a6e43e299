"""One sorted CDXJ index from those of many WARC files, in bounded memory and with few open files.

Lines are sorted in memory in runs of some `RUN_BYTES`; several runs are merged from the local disk.
"""

import heapq
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from tasks.core.artifact import ArtifactFolder
from tasks.core.part import Part
from tasks.core.remote import concurrently
from tasks.core.stage import group_by_size

RUN_BYTES = 256 << 20
"""Bytes of the indexes that are sorted in memory at a time, which takes 1.3 times as much."""


class IndexFile(NamedTuple):
    """The index of one WARC file: the segment, its path in it, and its size."""

    segment: ArtifactFolder
    path: str
    bytes: int


def write_index(part: Part, path: str, files: Sequence[IndexFile], rows: int) -> None:
    """Writes the lines of all indexes in order, with file names relative to the store.

    Args:
        part: the part to write.
        path: the file.
        files: the indexes.
        rows: their number of lines.
    """
    bounds = list(group_by_size([one.bytes for one in files], RUN_BYTES))
    with tempfile.TemporaryDirectory(prefix="sluice-index-") as folder, ExitStack() as stack:
        runs: list[Iterator[str]] = []
        for number, (first, end) in enumerate(bounds):
            lines = sorted(line for one in concurrently(_lines, files[first:end]) for line in one)
            if len(bounds) == 1:
                runs.append(iter(lines))
            else:
                run = stack.enter_context(open(f"{folder}/{number}", "w+", encoding="utf-8"))
                run.writelines(lines)
                run.seek(0)
                runs.append(run)
        with part.file(path, rows=rows) as file:
            for line in heapq.merge(*runs):
                file.write(line.encode())


def _lines(index: IndexFile) -> list[str]:
    lines = []
    for line in filter(None, index.segment.read(index.path).decode().split("\n")):
        url_key, timestamp, fields = line.split(" ", 2)
        entry = json.loads(fields)
        entry["filename"] = f"{index.segment.path}/{entry['filename']}"
        lines.append(f"{url_key} {timestamp} {json.dumps(entry, ensure_ascii=True)}\n")
    return lines
