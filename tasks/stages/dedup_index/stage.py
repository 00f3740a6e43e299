"""Stage dedup_index: the documents that a version publishes -> the index with them (`tasks.formats.dedup_index`).

Reads `extracted` (id, url), `duplicates` (order of preference and sorted runs), `documents` (what is kept, what went as
a duplicate, what of earlier versions is replaced), the index of the version before, and the takedowns in force. Writes

    rows/ texts/ bands/ captures/ names/ copies/   the parts that this version adds, and those that it writes again
    index.json                                     the list of all parts

and, while it runs, `gone/<part>.parquet`: the ids of what leaves a part of the index before.

A part of the index before is written again where a document leaves it (replaced or taken down), or a copy in it returns
or is without its keeper now; and where it is merged with its neighbours. All others stay where they are: a version
costs what its own documents cost, a look at the copies in the index, and one at its ids where there are takedowns.
"""

import json
from collections.abc import Sequence
from functools import partial

from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, PartSpec, Report
from tasks.formats.dedup_index import FILE, DedupIndex, IndexPart, Manifest, index_of, refs_to
from tasks.formats.documents import parts_of
from tasks.formats.returned import is_returned
from tasks.formats.tombstones import tombstones_of
from tasks.stages.dedup_index.added import added_part
from tasks.stages.dedup_index.config import DedupIndexConfig
from tasks.stages.dedup_index.rewritten import GONE, gone_part, rewritten_part
from tasks.stages.dedup_index.work import Work

VERSION = 1


def run(config: DedupIndexConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the index of this version.

    Raises:
        InputError: an artifact with parts of the index before is gone or has changed since.
    """
    before, own = index_of(inputs), str(output.address)
    extracted = inputs["extracted"]
    names = parts_of(extracted)
    folders = (extracted.folder, inputs["duplicates"].folder, inputs["documents"].folder)
    returned = tuple(filter(is_returned, names))
    work = Work(*folders, output.store, output.address, before, tombstones_of(inputs), returned)
    origin = len(before.manifest.origins)

    added = [PartSpec(f"{output.version}-{name}", (name, origin + number)) for number, name in enumerate(names)]
    records = output.map_parts(engine, partial(added_part, work), added, conserved=False)
    parts = [IndexPart(artifact=own, name=record.name, documents=record.rows_out) for record in records]
    count = sum(part.documents for part in parts)

    gone = [PartSpec(f"{GONE}-{number:05d}", number) for number in range(before.count)]
    left = sum(record.rows_out for record in output.map_parts(engine, partial(gone_part, work), gone, conserved=False))
    groups = merge_groups([part.documents for part in before.manifest.parts], config.merge, config.documents_per_part)
    again = [PartSpec(f"{output.version}-again-{group[0]:05d}", tuple(group)) for group in groups]
    rewritten = output.map_parts(engine, partial(rewritten_part, work), again, conserved=False)
    kept: list[IndexPart] = []
    for group, record in zip(groups, rewritten, strict=True):
        if record.metrics["written"]:
            kept.append(IndexPart(artifact=own, name=record.name, documents=record.rows_out))
        else:
            kept.append(_referenced(before, group[0], inputs))
    manifest = Manifest(
        cycles=(*before.manifest.cycles, output.version),
        origins=(*before.manifest.origins, *((str(extracted.address), name) for name in names)),
        parts=(*kept, *parts),
    )
    if "index" not in output.committed:
        with output.part("index", conserved=False) as part, part.file(FILE) as file:
            file.write(json.dumps(manifest.model_dump(mode="json"), indent=0).encode())
    output.leave_out([spec.name for spec in gone])
    total = sum(part.documents for part in manifest.parts)
    metrics = {"documents": total, "added": count, "left": left, "parts": len(manifest.parts)}
    note = f"{total:,} documents of {len(manifest.cycles)} versions are known; {count:,} were added, {left:,} have left"
    return Report(
        metrics={name: float(number) for name, number in metrics.items()},
        note=note,
        inputs=refs_to(output.store, manifest.parts, output.address),
    )


def merge_groups(documents: Sequence[int], merge: int, most: int) -> list[list[int]]:
    """Divides the parts of an index into groups of neighbours; a group of several is written as one.

    Args:
        documents: of each part.
        merge: parts per group at least; fewer stay on their own.
        most: documents in a group at most.

    >>> merge_groups([9, 2, 2, 2, 1, 3], 3, 7)
    [[0], [1, 2, 3, 4], [5]]
    """
    groups: list[list[int]] = []
    run: list[int] = []

    def close() -> None:
        groups.extend([run] if len(run) >= merge else [[number] for number in run])

    for number, size in enumerate(documents):
        if sum(documents[one] for one in run) + size > most:
            close()
            run = []
        run.append(number)
    close()
    return groups


def _referenced(before: DedupIndex, number: int, inputs: Inputs) -> IndexPart:
    """Returns the entry of a part that stays in the artifact where it is."""
    part = before.manifest.parts[number]
    return part if part.content else part.model_copy(update={"content": inputs["index"].record.content})
