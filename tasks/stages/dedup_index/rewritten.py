"""Parts of the index before that are written again, on their own or merged with their neighbours.

Reads these parts, what the version replaces of them (`replaced/` of `documents`), and the documents that have returned.
Writes `gone/<part>.parquet`, the ids of what leaves one part, and then the parts.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats import sorted_runs
from tasks.formats.dedup_index import COPIES, NAMES, ROW, RUNS
from tasks.stages.dedup_index.work import Work
from tasks.stages.dedup_index.written import of_rows, write_part

GONE = "gone"
_GONE = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("row", pa.int64(), nullable=False)])


def gone_part(work: Work, part: Part, number: int) -> None:
    """Writes what leaves one part: what is taken down, and what this version replaces; runs on a worker."""
    replaced = _replaced(work, number)
    if not work.takedowns:  # the names of a whole part are read for takedowns alone
        part.table(GONE, replaced.select(_GONE.names).cast(_GONE))
        return
    names = work.before.names(number)
    gone = work.takedowns.mask(names)
    gone[replaced.column("row").to_numpy()] = True
    rows = pa.array(np.flatnonzero(gone))
    part.table(GONE, pa.table([names.column("id").take(rows), rows], schema=_GONE))


def rewritten_part(work: Work, part: Part, numbers: tuple[int, ...]) -> None:
    """Writes some parts as one; nothing, where it is one and nothing of it changes. Runs on a worker."""
    gone = pa.concat_tables(_gone(work, number) for number in range(work.before.count)).column("id")
    returned = _returned(work)
    stays = [_stays(work, number) for number in numbers]
    copies = [_copies(work, number, gone, returned) for number in numbers]
    changed = len(numbers) > 1 or not all(mask.all() for mask in stays)
    if not changed and copies[0].equals(work.before.copies(numbers[0])):
        part.metric("written", 0)
        return
    part.metric("written", 1)
    firsts = np.cumsum([0, *(int(mask.sum()) for mask in stays)]).tolist()
    held = list(zip(numbers, stays, strict=True))
    # With the dtype named: without it NumPy gives the ids the byte order of the machine.
    rows = np.concatenate([work.before.rows(number)[mask] for number, mask in held], dtype=ROW)
    runs = {
        folder: np.concatenate(
            [
                of_rows(_run(work, folder, number), mask, first)
                for (number, mask), first in zip(held, firsts, strict=False)
            ]
        )
        for folder in RUNS
    }
    names = [work.before.names(number).filter(pa.array(mask)) for number, mask in held]
    write_part(part, rows, runs, pa.concat_tables([NAMES.empty_table(), *names]), pa.concat_tables(copies))


def _stays(work: Work, number: int) -> NDArray[np.bool_]:
    stays = np.ones(work.before.manifest.parts[number].documents, np.bool_)
    stays[_gone(work, number).column("row").to_numpy()] = False
    return stays


def _gone(work: Work, number: int) -> pa.Table:
    return work.own.table(f"{GONE}/{GONE}-{number:05d}.parquet")


def _replaced(work: Work, number: int) -> pa.Table:
    return work.documents.table(f"replaced/earlier-{number:05d}.parquet")


def _returned(work: Work) -> pa.ChunkedArray:
    """Returns the ids of the documents that this version has been given again."""
    tables = [work.extracted.table(f"documents/{name}.parquet", columns=["id"]) for name in work.returned]
    return pa.chunked_array([chunk for table in tables for chunk in table.column("id").chunks], pa.string())


def _copies(work: Work, number: int, gone: pa.ChunkedArray, returned: pa.ChunkedArray) -> pa.Table:
    """Returns the copies of one part: without those that are taken down or have returned; with what is replaced.

    Those whose keeper leaves the index have none from now on.
    """
    copies = work.before.copies(number)
    ends = pc.is_in(copies.column("id"), value_set=returned.combine_chunks()).to_numpy()
    if work.takedowns:
        ends = ends | work.takedowns.mask(copies)
    copies = copies.filter(pa.array(~ends))
    orphaned = pc.is_in(copies.column("duplicate_of"), value_set=gone.combine_chunks())
    keepers = pc.if_else(orphaned, pa.scalar(None, pa.string()), copies.column("duplicate_of"))
    copies = copies.set_column(2, COPIES.field(2), keepers)
    return pa.concat_tables([copies, _as_copies(work, number)]).combine_chunks()


def _as_copies(work: Work, number: int) -> pa.Table:
    """Returns the replaced documents of one part as copies of those that replace them."""
    replaced = _replaced(work, number)
    if work.takedowns:
        names = work.before.names(number).take(replaced.column("row"))
        replaced = replaced.filter(pa.array(~work.takedowns.mask(names)))
    places = replaced.column("row").to_numpy()
    rows = work.before.rows(number)[places]
    names = work.before.names(number).take(pa.array(places))
    columns = [*names.columns, replaced.column("replaced_by"), pa.array(rows["origin"]), pa.array(rows["row"])]
    return pa.table(columns, schema=COPIES)


def _run(work: Work, folder: str, number: int) -> NDArray[np.void]:
    files, path = work.before.folders[number], work.before.path(folder, number)
    return sorted_runs.read_range(files, [path], RUNS[folder], 0, 1 << 64)
