"""Stage dedup_index: the documents that a version publishes -> the index with them (`tasks.formats.dedup.dedup_index`).

Reads `extracted` (id, url), `duplicates` (order of preference and sorted runs), `documents` (what is kept, what went as
a duplicate, what of earlier versions is replaced), the index of the version before, and the takedowns in force. Writes

    rows/ texts/ bands/ captures/ names/ copies/ ids/   parts that this version adds, and those that it writes again
    index.json                                          the list of all parts with a document or a copy

and, while it runs, `seen/`, `leaving/`, `of_version/` and `of_index/` (`fates`).

    seen     per part of the documents   what has become of each
    leaving  per part of the index       what leaves it
    fates    per bucket of ids           what is known already, which copies end or have another keeper
    <part>   per part of either          the parts

A part of the index before is written again where a document leaves it (replaced or taken down), or a copy in it was
judged again or has another keeper now; and where it is merged with its neighbours. All others stay where they are: a
version costs what its own documents cost, and a pass over the ids of the index.
"""

import json
from collections.abc import Sequence
from functools import partial

from tasks.core.artifact import PartRecord
from tasks.core.engine import Engine
from tasks.core.ledger import VERSIONS
from tasks.core.stage import Inputs, Output, PartSpec, Report
from tasks.formats.dedup.dedup_index import (
    FILE,
    DedupIndex,
    IndexPart,
    Manifest,
    Origin,
    index_of,
    index_refs,
    signatures_of,
)
from tasks.formats.dedup.sorted_runs import Buckets, bucket_count
from tasks.formats.documents.document import parts_of
from tasks.formats.documents.tombstones import tombstones_of
from tasks.stages.dedup_index import DedupIndexConfig
from tasks.stages.dedup_index.fates import Work, fates_part
from tasks.stages.dedup_index.parts import (
    COPIES_METRIC,
    Own,
    added_part,
    leaving_part,
    leaving_path,
    rewritten_part,
    seen_part,
)

VERSION = 2

_PER_BUCKET = 1_000_000
"""Ids per bucket, about: 150 bytes of memory for each."""


def run(config: DedupIndexConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the index of this version.

    Raises:
        InputError: an artifact with parts of the index before is gone or has changed since.
    """
    before = index_of(inputs)
    extracted = inputs["extracted"]
    names = parts_of(extracted)
    folders = (extracted.folder, inputs["duplicates"].folder, inputs["documents"].folder)
    work = Work(*folders, output.store, output.address, before, tombstones_of(inputs))
    first = sum(len(origin.parts) for origin in before.manifest.origins)
    own = [Own(name, number, first + number) for number, name in enumerate(names)]

    seen = output.map_parts(
        engine, partial(seen_part, work), [PartSpec(f"seen-{one.name}", one) for one in own], conserved=False
    )
    specs = [PartSpec(f"leaving-{number:05d}", number) for number in range(before.count)]
    leaving = output.map_parts(engine, partial(leaving_part, work), specs, conserved=False)
    ids = before.entries + int(sum(record.metrics["seen"] for record in seen))
    fates = Buckets("fates", bucket_count(ids, _PER_BUCKET))
    runs = [one.seen for one in own], [leaving_path(number) for number in range(before.count)]
    specs = [PartSpec(fates.name(number), number) for number in range(fates.count)]
    joined = output.map_parts(engine, partial(fates_part, work, *runs, fates), specs, conserved=False)

    added = [PartSpec(f"{output.version}-{one.name}", one) for one in own]
    adding = partial(added_part, work, fates.sibling("of_version"))
    parts = [_written(output, record) for record in output.map_parts(engine, adding, added, conserved=False)]
    groups = merge_groups([part.documents for part in before.manifest.parts], config.merge, config.documents_per_part)
    again = [PartSpec(f"{output.version}-again-{group[0]:05d}", tuple(group)) for group in groups]
    rewriting = partial(rewritten_part, work, fates.sibling("of_index"))
    kept = [
        _written(output, record) if record.metrics["written"] else _referenced(before, group[0], inputs)
        for group, record in zip(groups, output.map_parts(engine, rewriting, again, conserved=False), strict=True)
    ]
    content = extracted.record.content
    manifest = Manifest(
        cycles=(*before.manifest.cycles, output.version),
        origins=(*before.manifest.origins, Origin(artifact=str(extracted.address), content=content, parts=names)),
        parts=tuple(part for part in (*kept, *parts) if part.documents or part.copies),
        signatures=signatures_of(inputs["duplicates"].record.config),
    )
    if "index" not in output.committed:
        with output.part("index", conserved=False) as part, part.file(FILE) as file:
            file.write(json.dumps(manifest.model_dump(mode="json"), indent=0).encode())
    output.leave_out([record.name for record in (*seen, *leaving, *joined)])
    return _report(manifest, parts, int(sum(record.metrics["left"] for record in leaving)), output)


def _written(output: Output, record: PartRecord) -> IndexPart:
    """Returns the entry of a part that this stage has written."""
    copies = int(record.metrics[COPIES_METRIC])
    return IndexPart(artifact=str(output.address), name=record.name, documents=record.rows_out, copies=copies)


def _report(manifest: Manifest, added: Sequence[IndexPart], left: int, output: Output) -> Report:
    counts = {
        "documents": sum(part.documents for part in manifest.parts),
        "copies": sum(part.copies for part in manifest.parts),
        "added": sum(part.documents for part in added),
        "left": left,
        "parts": len(manifest.parts),
        VERSIONS: len(manifest.cycles),
    }
    note = (
        f"{counts['documents']:,} documents of {counts[VERSIONS]} versions are known; {counts['added']:,} were "
        f"added, {left:,} have left"
    )
    metrics = {name: float(number) for name, number in counts.items()}
    return Report(metrics=metrics, note=note, inputs=index_refs(output.store, manifest.parts, output.address))


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
