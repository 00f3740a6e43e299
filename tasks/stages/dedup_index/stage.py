"""Stage dedup_index: the published documents of a version -> the index with them (`tasks.formats.dedup.dedup_index`).

Reads `extracted` (id, url), `duplicates` (preference, sorted runs), `documents` (kept documents, rejected duplicates,
and replaced documents of earlier versions), the index of the previous version, and the takedowns in force. Writes

    rows/ texts/ bands/ captures/ names/ copies/ ids/   the parts that this version adds, and rewritten ones
    index.json                                          the list of all parts with a document or a copy

and, as intermediate files, `seen/`, `leaving/`, `of_version/` and `of_index/` (`fates`).

    seen     per part of the documents   the outcome of each document
    leaving  per part of the index       the entries that leave it
    fates    per bucket of ids           entries that are indexed already, removed copies and changed keepers
    <part>   per part of either          the parts

A part of the previous index is rewritten if a document leaves it (replaced or taken down), if one of its copies was
judged again or has another keeper, or if it is merged with adjacent parts. All others remain in their artifacts: the
cost of a version is that of its own documents, plus a pass over the ids of the index.
"""

import json
from collections.abc import Sequence
from functools import partial

from tasks.core.artifact import PartRecord
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, PartSpec, Report
from tasks.core.version_index import VERSIONS
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
from tasks.stages.dedup_index.fates import IndexWorkspace, fates_part
from tasks.stages.dedup_index.parts import (
    COPIES_METRIC,
    VersionPart,
    added_part,
    leaving_part,
    leaving_path,
    rewritten_part,
    seen_part,
)

VERSION = 2

_PER_BUCKET = 1_000_000
"""Approximate number of ids per bucket, at 150 bytes of memory each."""


def run(config: DedupIndexConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the index of this version.

    Raises:
        InputError: an artifact with parts of the previous index is gone or has changed.
    """
    before = index_of(inputs)
    extracted = inputs["extracted"]
    names = parts_of(extracted)
    work = IndexWorkspace(
        extracted=extracted.folder,
        duplicates=inputs["duplicates"].folder,
        documents=inputs["documents"].folder,
        own=output.folder,
        before=before,
        takedowns=tombstones_of(inputs),
    )
    first = sum(len(origin.parts) for origin in before.manifest.origins)
    version_parts = [VersionPart(name, number, first + number) for number, name in enumerate(names)]

    seen = output.map_parts(
        engine,
        partial(seen_part, work),
        [PartSpec(f"seen-{part.name}", part) for part in version_parts],
        conserved=False,
    )
    specs = [PartSpec(f"leaving-{number:05d}", number) for number in range(before.count)]
    leaving = output.map_parts(engine, partial(leaving_part, work), specs, conserved=False)
    ids = before.entries + int(sum(record.metrics["seen"] for record in seen))
    fates = Buckets("fates", bucket_count(ids, _PER_BUCKET))
    runs = [part.seen for part in version_parts], [leaving_path(number) for number in range(before.count)]
    specs = [PartSpec(fates.name(number), number) for number in range(fates.count)]
    joined = output.map_parts(engine, partial(fates_part, work, *runs, fates), specs, conserved=False)

    specs = [PartSpec(f"{output.version}-{part.name}", part) for part in version_parts]
    adding = partial(added_part, work, fates.sibling("of_version"))
    parts = [_new_entry(output, record) for record in output.map_parts(engine, adding, specs, conserved=False)]
    groups = merge_groups([part.documents for part in before.manifest.parts], config.merge, config.documents_per_part)
    specs = [PartSpec(f"{output.version}-again-{group[0]:05d}", tuple(group)) for group in groups]
    rewriting = partial(rewritten_part, work, fates.sibling("of_index"))
    kept = [
        _new_entry(output, record) if record.metrics["written"] else _old_entry(before, group[0], inputs)
        for group, record in zip(groups, output.map_parts(engine, rewriting, specs, conserved=False), strict=True)
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


def _new_entry(output: Output, record: PartRecord) -> IndexPart:
    """Returns the index entry of a part that this stage has written."""
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


def merge_groups(documents: Sequence[int], merge: int, limit: int) -> list[list[int]]:
    """Divides the parts of an index into groups of adjacent parts; a group of several parts is merged.

    Args:
        documents: number of documents of each part.
        merge: minimum number of parts to merge.
        limit: maximum number of documents in a merged part.

    >>> merge_groups([9, 2, 2, 2, 1, 3], 3, 7)
    [[0], [1, 2, 3, 4], [5]]
    """
    groups: list[list[int]] = []
    run: list[int] = []

    def close() -> None:
        groups.extend([run] if len(run) >= merge else [[number] for number in run])

    for number, size in enumerate(documents):
        if sum(documents[member] for member in run) + size > limit:
            close()
            run = []
        run.append(number)
    close()
    return groups


def _old_entry(before: DedupIndex, number: int, inputs: Inputs) -> IndexPart:
    """Returns the index entry of a part that remains in its artifact."""
    part = before.manifest.parts[number]
    return part if part.content else part.model_copy(update={"content": inputs["index"].record.content})
