"""Parts of the index before that are written again, on their own or merged with their neighbours.

Reads these parts, what the version replaces of them (`replaced/` of `documents`), and the takedowns. Writes
`leaving/<part>.bin`, a run of `fates.LEAVING` with what leaves one part, and then the parts.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats.dedup import document_ids, sorted_runs
from tasks.formats.dedup.dedup_index import COPIES, KINDS, NAMES, ROW, RUNS
from tasks.formats.dedup.document_ids import range_of, row_ids_of, row_of
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.stages.dedup_index.fates import ENDS, FATE, FORGOTTEN, HERE, LEAVING, MOVES, REPLACED, TAKEN, Work
from tasks.stages.dedup_index.parts import entries, of_rows, write_part


def leaving_path(number: int) -> str:
    """Returns the run of LEAVING of one part of the index before."""
    return f"leaving/leaving-{number:05d}.bin"


def leaving_part(work: Work, part: Part, number: int) -> None:
    """Writes what leaves one part: what is taken down, and what this version replaces; runs on a worker."""
    replaced = work.documents.table(f"replaced/earlier-{number:05d}.parquet")
    rows = replaced.column("row").to_numpy()
    found = entries(document_ids.pack(replaced.column("id")), row_ids_of(number, rows), REPLACED, LEAVING)
    kinds = pc.utf8_slice_codeunits(replaced.column("reason"), len("duplicate_"))
    found["kind"] = pc.index_in(kinds, value_set=pa.array(KINDS)).to_numpy()
    found["by"] = document_ids.pack(replaced.column("replaced_by"))
    leaving = [found]
    if work.takedowns:  # names and copies of a whole part are read for takedowns alone
        names, copies = work.before.names(number), work.before.copies(number)
        taken, forgotten = (np.flatnonzero(work.takedowns.mask(table)) for table in (names, copies))
        leaving = [found[~np.isin(rows, taken)]]
        for table, gone, role in ((names, taken, TAKEN), (copies, forgotten, FORGOTTEN)):
            ids = document_ids.pack(table.column("id").take(pa.array(gone)))
            leaving.append(entries(ids, row_ids_of(number, gone), role, LEAVING))
    every = np.concatenate(leaving, dtype=LEAVING)  # named, or NumPy gives ids the byte order of the machine
    sorted_runs.write(part, leaving_path(number), [sorted_runs.by_key(every)])
    part.metric("left", int(np.isin(every["role"], (TAKEN, REPLACED)).sum()))


def rewritten_part(work: Work, fates: Buckets, part: Part, numbers: tuple[int, ...]) -> None:
    """Writes some parts as one; nothing, where it is one and nothing of it changes. Runs on a worker."""
    of_parts = [sorted_runs.read_range(work.own, fates.paths(), FATE, *range_of(number)) for number in numbers]
    leaving = [_leaving(work, number) for number in numbers]
    if len(numbers) == 1 and not len(of_parts[0]) and not len(leaving[0]):
        part.metric("written", 0)
        return
    part.metric("written", 1)
    copies = [_rewritten_copies(work, *of_part) for of_part in zip(numbers, of_parts, leaving, strict=True)]
    stays = [_stays(work, number, gone) for number, gone in zip(numbers, leaving, strict=True)]
    firsts = np.cumsum([0, *(int(mask.sum()) for mask in stays)]).tolist()
    held = list(zip(numbers, stays, strict=True))
    # With the dtype named: without it NumPy gives the ids the byte order of the machine.
    rows = np.concatenate([work.before.rows(number)[mask] for number, mask in held], dtype=ROW)
    runs = {
        folder: np.concatenate(
            [
                of_rows(_leaving_run(work, folder, number), mask, first)
                for (number, mask), first in zip(held, firsts, strict=False)
            ]
        )
        for folder in RUNS
    }
    names = [work.before.names(number).filter(pa.array(mask)) for number, mask in held]
    write_part(part, rows, runs, pa.concat_tables([NAMES.empty_table(), *names]), pa.concat_tables(copies))


def _leaving(work: Work, number: int) -> NDArray[np.void]:
    return sorted_runs.read_range(work.own, [leaving_path(number)], LEAVING, 0, 1 << 64)


def _stays(work: Work, number: int, leaving: NDArray[np.void]) -> NDArray[np.bool_]:
    stays = np.ones(work.before.manifest.parts[number].documents, np.bool_)
    stays[row_of(leaving["row_id"][np.isin(leaving["role"], (TAKEN, REPLACED))])] = False
    return stays


def _rewritten_copies(work: Work, number: int, fates: NDArray[np.void], leaving: NDArray[np.void]) -> pa.Table:
    """Returns the copies of one part as they are from now on, with what is replaced of it (schema COPIES)."""
    copies = work.before.copies(number)
    keepers = copies.column("duplicate_of").to_pylist()
    moves = fates[fates["what"] == MOVES]
    others = document_ids.unpack(moves["keeper"]).to_pylist()
    for row, keeper, some in zip(row_of(moves["key"]).tolist(), others, moves["keeper"].any(axis=1), strict=True):
        keepers[row] = keeper if some else None
    at = COPIES.get_field_index("duplicate_of")
    stays = np.ones(copies.num_rows, np.bool_)
    stays[row_of(fates["key"][fates["what"] == ENDS])] = False
    moved = copies.set_column(at, COPIES.field(at), pa.array(keepers, pa.string())).filter(pa.array(stays))
    here = fates["key"][fates["what"] == HERE]
    replaced = leaving[(leaving["role"] == REPLACED) & ~np.isin(leaving["row_id"], here)]
    return pa.concat_tables([moved, _as_copies(work, number, replaced)]).combine_chunks()


def _as_copies(work: Work, number: int, replaced: NDArray[np.void]) -> pa.Table:
    """Returns the replaced documents of one part (dtype LEAVING) as copies of those that replace them."""
    at = row_of(replaced["row_id"])
    rows = work.before.rows(number)[at]
    columns = [
        *work.before.names(number).take(pa.array(at)).columns,
        document_ids.unpack(replaced["by"]),
        pa.array(KINDS).take(pa.array(replaced["kind"])),
        pa.array(rows["origin"]),
        pa.array(rows["row"]),
    ]
    return pa.table(columns, schema=COPIES)


def _leaving_run(work: Work, folder: str, number: int) -> NDArray[np.void]:
    files, path = work.before.folders[number], work.before.path(folder, number)
    return sorted_runs.read_range(files, [path], RUNS[folder], 0, 1 << 64)
